//! The message of a process that a damaged LMDB file ends. Reading such a file through the map can only fail by a
//! signal.
//!
//! Owns: the handlers of SIGSEGV and SIGBUS, once a program asks for them, and the names of the open files. Must not:
//! allocate, lock or format within a handler. Runs on the thread that has met the damage.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use libc::{c_char, c_int, c_void, sigaction, siginfo_t};

/// Number of files that can be named at once. A program has at most two stores open, one to read and one to write.
const FILES_MAX: usize = 4;

/// Value of [`EXIT`] without an exit code: the signal's default action ends the process.
const BY_SIGNAL: i32 = -1;
/// Value of [`EXIT`] without handlers: names of files are not kept.
const UNSET: i32 = -2;

/// How long a handler waits for the reader of standard error.
const SAY_LIMIT_MS: c_int = 1000;

static FILES: [AtomicPtr<c_char>; FILES_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; FILES_MAX];
static EXIT: AtomicI32 = AtomicI32::new(UNSET);
/// Earlier actions of SIGSEGV and SIGBUS, kept so that Rust still reports a stack overflow.
static BEFORE: [AtomicPtr<sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
static NAMED: AtomicUsize = AtomicUsize::new(0);

const SIGNALS: [(c_int, &[u8]); 2] = [(libc::SIGSEGV, b"SIGSEGV"), (libc::SIGBUS, b"SIGBUS")];

/// Makes this process explain a memory fault that ends it: the message on standard error names the open LMDB store and
/// says how to continue. The process then ends with `exit_code`, or by the signal's default action if that is `None`.
/// Call this once, before a store is opened.
pub fn explain_faults(exit_code: Option<u8>) {
    // ORDERING: Relaxed here and below: set before any store is opened, and read only within this process's own
    // handlers.
    EXIT.store(exit_code.map_or(BY_SIGNAL, i32::from), Ordering::Relaxed);
    for ((signal, _), before) in SIGNALS.into_iter().zip(&BEFORE) {
        let mut old = MaybeUninit::<sigaction>::uninit();
        // SAFETY: a zeroed action is a valid one. The handler has the signature that SA_SIGINFO demands, and calls only
        // functions that are safe in a handler. `old` is written where the call succeeds.
        let old = unsafe {
            let mut action = MaybeUninit::<sigaction>::zeroed().assume_init();
            action.sa_sigaction = explain as *const () as usize;
            // The handler runs on its own stack, because the fault may be an overflow of the normal one.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            (libc::sigaction(signal, &raw const action, old.as_mut_ptr()) == 0).then(|| old.assume_init())
        };
        if let Some(old) = old {
            // Never freed, because the handlers stay for good.
            before.store(Box::into_raw(Box::new(old)), Ordering::Release);
        }
    }
}

/// Registration of an open file by its name. Dropping it removes the name.
pub(crate) struct Named(Option<usize>);

impl Named {
    /// Registers the name of `file` if there is a handler that needs it.
    pub(crate) fn keep(file: &Path) -> Self {
        if EXIT.load(Ordering::Relaxed) == UNSET {
            return Self(None);
        }
        let Ok(name) = CString::new(file.as_os_str().as_bytes()) else { return Self(None) };
        let slot = NAMED.fetch_add(1, Ordering::Relaxed) % FILES_MAX;
        // Never freed: a handler may be reading the name. Programs with handlers open a few stores, not thousands.
        FILES[slot].store(name.into_raw(), Ordering::Release);
        Self(Some(slot))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            FILES[slot].store(ptr::null_mut(), Ordering::Release);
        }
    }
}

extern "C" fn explain(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let (mut open, can_say) = (false, can_say());
    // ORDERING: Acquire pairs with the Release in `Named::keep`, so that the name's bytes are visible.
    for name in FILES.iter().map(|name| name.load(Ordering::Acquire)).filter(|name| !name.is_null()) {
        open = true;
        if !can_say {
            continue;
        }
        say(b"\nsolkv: memory fault ");
        say(SIGNALS.into_iter().find(|(known, _)| *known == signal).map_or(b"", |(_, name)| name));
        say(b" with an LMDB store open: file=");
        // SAFETY: the pointer is a C string that is never freed.
        say(unsafe { std::slice::from_raw_parts(name.cast::<u8>(), libc::strlen(name)) });
        say(b": most likely the file is cut or damaged, or its device cannot read it (dmesg says so): restore a snapshot, \
            or load the store again\n");
    }
    let exit = EXIT.load(Ordering::Relaxed);
    // SAFETY: all of these functions may be called in a handler. An action kept in `BEFORE` is never freed; without one
    // the default action is set. `info` was passed by the kernel.
    unsafe {
        if open && exit >= 0 {
            libc::_exit(exit);
        }
        let before = BEFORE[usize::from(signal == libc::SIGBUS)].load(Ordering::Acquire);
        let default = MaybeUninit::<sigaction>::zeroed().assume_init();
        let action = if open || before.is_null() { &raw const default } else { before.cast_const() };
        libc::sigaction(signal, action, ptr::null_mut());
        // A fault occurs again when this function returns. A signal that a process has sent does not.
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Whether standard error takes a message within [`SAY_LIMIT_MS`]: a write to a full pipe would never return.
fn can_say() -> bool {
    let mut stderr = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the pointer is to one valid entry, and the function may be called in a handler.
    unsafe { libc::poll(&raw mut stderr, 1, SAY_LIMIT_MS) == 1 }
}

fn say(words: &[u8]) {
    // SAFETY: the pointer and the length are those of the slice. If the write fails there is nobody to tell.
    unsafe { libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len()) };
}
