//! The lock of a store's directory: only one process, and only once in it, may have the store open.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind as Io, Read, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use engine_api::{Error, ErrorKind, Result};
use rustix::fs::{Access, access};

use crate::place::Id;
use crate::regular::{self, read_small};

pub(crate) const LOCK: &str = "LOCK";

/// Mode of the lock file: only the owner may open it. Anybody who can open it, even for reading, can hold the lock and
/// so keep the store shut.
const MODE: u32 = 0o600;

/// The lock, held while this value lives. The kernel releases it when the process ends, in whatever way.
pub(crate) struct DirLock {
    file: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing alone does not release the lock while a process that another thread is just starting has a copy of
        // the descriptor. If this fails, the closing releases it later.
        let _ = self.file.unlock();
    }
}

impl DirLock {
    /// Takes the lock of `dir` without waiting, and writes this process's pid into the lock file.
    pub(crate) fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        let at = format!("file={}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(MODE);
        let mut file = regular::open(&path, &mut options).map_err(|e| cannot_open(&path, e))?;
        match file.try_lock() {
            Ok(()) if is_named(&path, &file) => keep_to_owner(&file),
            // The previous holder has just removed the file.
            Ok(()) => return Err(held(dir, &mut file)),
            Err(TryLockError::WouldBlock) => return Err(held(dir, &mut file)),
            Err(TryLockError::Error(e)) => {
                return Err(Error::io(format!("cannot lock the store: {at} reason={e}"), e));
            }
        }
        // The pid serves only the message to a process that is refused, so on a full disk the lock holds without it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

/// Makes the lock file of a new store. Without it a reader could not keep a writer out before the first opening for
/// writing.
pub(crate) fn make(dir: &Path) -> Result<()> {
    let path = dir.join(LOCK);
    let made = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path);
    made.map(drop).map_err(|e| cannot_open(&path, e))
}

/// Whether the file in the lock's place is a lock file: it is empty or contains a pid, or zeros if a power loss took
/// the pid. A file that may not be read counts as one.
pub(crate) fn is_ours(dir: &Path) -> bool {
    let path = dir.join(LOCK);
    read_small(&path).map_or(true, |text| text.iter().all(|byte| byte.is_ascii_digit() || [0, b'\n'].contains(byte)))
}

/// Keeps writers out of `dir` while the returned file is open, together with other readers. Changes nothing: if no lock
/// file was ever made, there is nothing to hold, and the result is `None`.
pub(crate) fn share(dir: &Path) -> Result<Option<File>> {
    let path = dir.join(LOCK);
    let at = format!("file={}", path.display());
    let mut file = match regular::open(&path, OpenOptions::new().read(true)) {
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

/// Builds the error for a lock file that cannot be opened. Somebody has to change the file or its permissions.
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

/// Restricts the lock file to its owner, because an earlier version made it readable for everybody. Leaves it alone if
/// this process may not change it.
fn keep_to_owner(file: &File) {
    let loose = file.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
    if loose {
        let _ = file.set_permissions(std::fs::Permissions::from_mode(MODE));
    }
}

/// Whether `path` still names the open file: the holder of a directory in which no store was made removes its lock
/// file.
fn is_named(path: &Path, file: &File) -> bool {
    matches!((std::fs::metadata(path), file.metadata()), (Ok(named), Ok(held)) if Id::of(&named) == Id::of(&held))
}

/// Returns the pid in a lock file, or `unknown` if there is none.
pub(crate) fn pid(file: &mut File) -> String {
    let mut pid = String::new();
    // If the pid cannot be read, the message names only the directory.
    let _ = file.read_to_string(&mut pid);
    match pid.trim_matches(['\0', '\n']) {
        "" => "unknown".to_owned(),
        pid => pid.to_owned(),
    }
}

fn held(dir: &Path, file: &mut File) -> Error {
    let pid = pid(file);
    // The holder may end, so the same call may succeed later.
    Error::new(
        ErrorKind::Retry,
        format!("store is open in another process: dir={} holder_pid={pid}: stop that process first", dir.display()),
    )
}
