//! The lock of a store's directory: one process, and within it one open store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind as Io, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use engine_api::{Error, ErrorKind, Result};
use rustix::fs::{Access, OFlags, access};

use crate::regular::read_small;

pub(crate) const LOCK: &str = "LOCK";

/// The owner alone may open the lock's file: whoever can open it, even to read, can hold the lock and keep the store shut.
const MODE: u32 = 0o600;

/// A pipe that stands in the lock's place must not be waited for.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits() as i32;

/// Held as long as the value lives; the kernel releases it when the process ends, however it ends.
pub(crate) struct DirLock {
    file: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing alone does not release it while a process that another thread is just starting still has a copy of
        // the descriptor. A failure leaves the release to the closing.
        let _ = self.file.unlock();
    }
}

impl DirLock {
    /// Takes the lock of `dir` without waiting, and leaves this process's pid in it.
    pub(crate) fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        let at = format!("file={}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(MODE);
        let mut file = open(&path, &mut options).map_err(|e| cannot_open(&path, e))?;
        match file.try_lock() {
            Ok(()) if is_named(&path, &file) => keep_to_owner(&file),
            // Whoever held it has just removed it.
            Ok(()) => return Err(held(dir, &mut file)),
            Err(TryLockError::WouldBlock) => return Err(held(dir, &mut file)),
            Err(TryLockError::Error(e)) => {
                return Err(Error::io(format!("cannot lock the store: {at} reason={e}"), e));
            }
        }
        // Only for the message of whoever is refused: on a full disk the lock holds without it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

/// Whether the file in the lock's place is a lock's: it is empty, or has a pid, or zeros where a loss of power took the pid.
/// One that may not be read is.
pub(crate) fn is_ours(dir: &Path) -> bool {
    let path = dir.join(LOCK);
    read_small(&path).map_or(true, |text| text.iter().all(|byte| byte.is_ascii_digit() || [0, b'\n'].contains(byte)))
}

/// Keeps writers out of `dir` for as long as the file is open, along with others who only read. Changes nothing: where
/// no lock was ever made there is nothing to hold.
pub(crate) fn share(dir: &Path) -> Result<Option<File>> {
    let path = dir.join(LOCK);
    let at = format!("file={}", path.display());
    let mut file = match open(&path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(e) if e.kind() == Io::NotFound => return Ok(None),
        Err(e) => return Err(cannot_open(&path, e)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(held(dir, &mut file)),
        Err(TryLockError::Error(e)) => Err(Error::io(format!("cannot lock the store: {at} reason={e}"), e)),
    }
}

/// Whether this process could take the lock of `dir` if no other held it. Takes nothing and makes nothing; a directory that
/// is missing is not refused.
///
/// # Errors
/// `FixInput`: the file may not be opened, or none may be made, as on a read-only file system.
pub fn check_lock(dir: &Path) -> Result<()> {
    let path = dir.join(LOCK);
    match open(&path, OpenOptions::new().read(true).write(true)) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == Io::NotFound && !dir.exists() => Ok(()),
        Err(e) if e.kind() == Io::NotFound => {
            access(dir, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| cannot_open(&path, e.into()))
        }
        Err(e) => Err(cannot_open(&path, e)),
    }
}

/// Opens what stands in the lock's place, if it is a file.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    let file = options.custom_flags(NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::new(Io::InvalidInput, "not a regular file")),
    }
}

/// Whatever stands there, or does not allow it, has to be changed by somebody.
fn cannot_open(path: &Path, e: std::io::Error) -> Error {
    let message = format!(
        "cannot open the store's lock: file={} reason={e}: the store's owner has to be able to write it",
        path.display()
    );
    match e.kind() {
        Io::IsADirectory | Io::InvalidInput => Error::with_source(ErrorKind::FixInput, message, e),
        _ => Error::io(message, e),
    }
}

/// An earlier version made the file readable for everybody. Where it is not ours to change, it stays as it is.
fn keep_to_owner(file: &File) {
    let loose = file.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
    if loose {
        let _ = file.set_permissions(std::fs::Permissions::from_mode(MODE));
    }
}

/// Whether `path` still names the file: the holder of a directory that was never opened removes it.
fn is_named(path: &Path, file: &File) -> bool {
    let identity = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
    matches!((std::fs::metadata(path), file.metadata()), (Ok(named), Ok(held)) if identity(&named) == identity(&held))
}

/// The process that a lock's file names.
pub(crate) fn pid(file: &mut File) -> String {
    let mut pid = String::new();
    // Without a readable pid the directory alone has to do.
    let _ = file.read_to_string(&mut pid);
    match pid.trim_matches(['\0', '\n']) {
        "" => "unknown".to_owned(),
        pid => pid.to_owned(),
    }
}

fn held(dir: &Path, file: &mut File) -> Error {
    let pid = pid(file);
    // Whoever holds it may end: the same call may succeed later.
    Error::new(
        ErrorKind::Retry,
        format!("store is open in another process: dir={} holder_pid={pid}: stop that process first", dir.display()),
    )
}
