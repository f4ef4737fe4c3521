//! The lock of a store's directory: only one process, and only once in it, may have the store open.
//!
//! Owns: the locks of the directory itself and of the file `LOCK` in it. The directory's lock holds also if the file is
//! moved or replaced; the file has the holder's pid, and earlier versions lock nothing else. Must not: wait for a lock.
//! Used on the thread that opens the store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as Io, Read, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use engine_api::{Code, Error, ErrorKind, Result};
use rustix::fs::{Access, OFlags, access};

use crate::place::Id;
use crate::regular::{self, read_small};

pub(crate) const LOCK: &str = "LOCK";

/// Mode of the lock file: only the owner may open it. Anybody who can open it, even for reading, can hold the lock and
/// so keep the store shut.
const MODE: u32 = 0o600;

/// The lock, held while this value lives. The kernel releases it when the process ends, in whatever way.
pub(crate) struct DirLock {
    file: File,
    dir: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing alone does not release the lock while a process that another thread is just starting has a copy of
        // the descriptor. If this fails, the closing releases it later.
        let _ = self.file.unlock().and(self.dir.unlock());
    }
}

impl DirLock {
    /// Takes the lock of `dir` without waiting, and writes this process's pid into the lock file.
    pub(crate) fn take(dir: &Path) -> Result<Self> {
        let opened = open_dir(dir).map_err(|e| cannot_open_dir(dir, e))?;
        // Some network file systems cannot lock a directory. There the file's lock has to do.
        if let Err(TryLockError::WouldBlock) = opened.try_lock() {
            return Err(is_read(&opened, dir).unwrap_or_else(|| held_itself(dir)));
        }
        if !is_named(dir, &opened) {
            // The previous holder has just removed the directory.
            return Err(held(dir));
        }
        let path = dir.join(LOCK);
        let at = format!("file={}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(MODE);
        let mut file = regular::open(&path, &mut options).map_err(|e| cannot_open(&path, e))?;
        match file.try_lock() {
            Ok(()) if is_named(&path, &file) => keep_to_owner(&file),
            // The previous holder has just removed the file.
            Ok(()) => return Err(held(dir)),
            Err(TryLockError::WouldBlock) => return Err(is_read(&file, dir).unwrap_or_else(|| held(dir))),
            Err(TryLockError::Error(e)) => {
                return Err(Error::io(format!("cannot lock the store: {at} reason={e}"), e));
            }
        }
        // The pid serves only the message to a process that is refused, so on a full disk the lock holds without it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { file, dir: opened })
    }
}

/// Whether the file in the lock's place is a lock file: it is empty or contains a pid, or zeros if a power loss took
/// the pid. A file that may not be read counts as one.
pub(crate) fn is_ours(dir: &Path) -> bool {
    let path = dir.join(LOCK);
    read_small(&path).map_or(true, |text| text.iter().all(|byte| byte.is_ascii_digit() || [0, b'\n'].contains(byte)))
}

/// The lock of a reader, held while this value lives.
pub(crate) struct Shared {
    _dir: File,
    /// `None` if no lock file was ever made.
    _file: Option<File>,
}

/// Keeps writers out of `dir` while the returned value lives, together with other readers. Changes nothing.
pub(crate) fn share(dir: &Path) -> Result<Shared> {
    let opened = open_dir(dir).map_err(|e| cannot_open_dir(dir, e))?;
    // As for a writer.
    if let Err(TryLockError::WouldBlock) = opened.try_lock_shared() {
        return Err(held_itself(dir));
    }
    let path = dir.join(LOCK);
    let file = match regular::open(&path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(e) if e.kind() == Io::NotFound => return Ok(Shared { _dir: opened, _file: None }),
        Err(e) => return Err(cannot_open(&path, e)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Shared { _dir: opened, _file: Some(file) }),
        Err(TryLockError::WouldBlock) => Err(held(dir)),
        Err(TryLockError::Error(e)) => {
            Err(Error::io(format!("cannot lock the store: file={} reason={e}", path.display()), e))
        }
    }
}

/// Returns the pid of the process that has a lock of `dir` for writing, `unknown` if it has left none; `None` if no
/// process does.
///
/// # Errors
/// I/O errors of opening or locking.
pub(crate) fn holder(dir: &Path) -> io::Result<Option<String>> {
    let file = |name: &Path, file: io::Result<File>| match file {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(pid(dir))),
            // As for a writer.
            Err(TryLockError::Error(_)) if name == dir => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        },
        Err(e) if [Io::NotFound, Io::NotADirectory].contains(&e.kind()) => Ok(None),
        Err(e) => Err(e),
    };
    if let Some(pid) = file(dir, open_dir(dir))? {
        return Ok(Some(pid));
    }
    let path = dir.join(LOCK);
    file(&path, regular::open(&path, OpenOptions::new().read(true)))
}

/// Checks that this process could take the lock of `dir` if no other process held it. Takes nothing and creates
/// nothing. A missing directory is not refused.
///
/// # Errors
/// `FixInput` if the file may not be opened, or cannot be created, as on a read-only file system.
pub fn check_lock(dir: &Path) -> Result<()> {
    let path = dir.join(LOCK);
    match regular::open(&path, OpenOptions::new().read(true).write(true)) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == Io::NotFound && !dir.exists() => Ok(()),
        Err(e) if e.kind() == Io::NotFound => {
            access(dir, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| cannot_open(&path, e.into()))
        }
        Err(e) => Err(cannot_open(&path, e)),
    }
}

/// Opens a directory alone: opening a pipe would wait.
fn open_dir(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).open(dir)
}

fn cannot_open_dir(dir: &Path, e: io::Error) -> Error {
    Error::io(format!("cannot open the store's directory: dir={} reason={e}", dir.display()), e)
}

/// Builds the error for a lock file that cannot be opened. Somebody has to change the file or its permissions, unless
/// the file system became read-only: a start after it was mounted again succeeds.
fn cannot_open(path: &Path, e: io::Error) -> Error {
    let way_out = match e.kind() {
        Io::ReadOnlyFilesystem => "dmesg says why it is read-only: mount it for writing",
        _ => "the store's owner has to be able to write it",
    };
    let message = format!("cannot open the store's lock: file={} reason={e}: {way_out}", path.display());
    match e.kind() {
        Io::IsADirectory | Io::InvalidInput => Error::with_source(ErrorKind::FixInput, message, e),
        _ => Error::io(message, e),
    }
}

/// Restricts the lock file to its owner, because an earlier version made it readable for everybody. Leaves it alone if
/// this process may not change it.
fn keep_to_owner(file: &File) {
    let loose = file.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
    if loose {
        let _ = file.set_permissions(std::fs::Permissions::from_mode(MODE));
    }
}

/// Whether `path` still names this open file or directory: the holder of a directory in which no store was made removes
/// its lock file, and then the directory.
fn is_named(path: &Path, opened: &File) -> bool {
    matches!((std::fs::metadata(path), opened.metadata()), (Ok(named), Ok(held)) if Id::of(&named) == Id::of(&held))
}

/// Returns the pid in the lock file of `dir`, or `unknown` if there is none or no process has the file's lock for writing: the
/// pid is then the one of an earlier writer.
fn pid(dir: &Path) -> String {
    let mut pid = String::new();
    // If the pid cannot be read, the message names only the directory.
    if let Ok(mut file) = regular::open(&dir.join(LOCK), OpenOptions::new().read(true))
        && let Err(TryLockError::WouldBlock) = file.try_lock_shared()
    {
        let _ = file.read_to_string(&mut pid);
    }
    match pid.trim_matches(['\0', '\n']) {
        "" => "unknown".to_owned(),
        pid => pid.to_owned(),
    }
}

/// Returns the error of a directory that is locked itself. Any program that may read the directory can have locked it.
fn held_itself(dir: &Path) -> Error {
    Error::new(ErrorKind::Retry, format!("{}; `fuser {}` shows who has locked the directory", held(dir), dir.display()))
        .with_code(Code::Lock)
}

/// Returns the error of a lock that only readers hold; `None` if a writer does. This process may not hold a lock on
/// `locked`.
fn is_read(locked: &File, dir: &Path) -> Option<Error> {
    locked.try_lock_shared().ok()?;
    let shown = dir.display();
    let message =
        format!("a program is reading the store: dir={shown}: wait for its end; `fuser {shown}` shows which one it is");
    Some(Error::new(ErrorKind::Retry, message).with_code(Code::Lock))
}

fn held(dir: &Path) -> Error {
    let pid = pid(dir);
    // The holder may end, so the same call may succeed later.
    Error::new(
        ErrorKind::Retry,
        format!("store is open in another process: dir={} holder_pid={pid}: stop that process first", dir.display()),
    )
    .with_code(Code::Lock)
}
