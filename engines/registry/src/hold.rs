//! Holding a store's directory without opening it: for a program that first has hours of other work to do for it.
//!
//! Owns: what is left of a directory that was held and never opened: nothing, where it was made for that. Must not: make a
//! store. Used on the thread that opens the store.

use std::fs::{self, OpenOptions, TryLockError};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use engine_api::{Error, Result};

use crate::lock::{self, DirLock, LOCK};
use crate::marker;
use crate::store;

/// A directory that no other process can open or hold meanwhile.
pub struct Held {
    dir: PathBuf,
    /// `None` once a store has taken it.
    lock: Option<DirLock>,
    made_dir: bool,
    made_lock: bool,
}

/// Makes `dir`, where it is missing, and takes its lock without waiting. What was made is removed again with the value,
/// unless a store was made in it.
///
/// # Errors
/// `Retry`: another process has it open or holds it; else the file system's.
pub fn hold(dir: &Path) -> Result<Held> {
    let (made_dir, made_lock) = (!dir.exists(), !dir.join(LOCK).exists());
    store::create_dir(dir)?;
    let lock = DirLock::take(dir)?;
    Ok(Held { dir: dir.to_owned(), lock: Some(lock), made_dir, made_lock })
}

/// The process that has the store in `dir` open, or holds the directory; `None` where nobody keeps others out.
///
/// # Errors
/// The lock's file may not be opened, or the file system's.
pub fn holder(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(LOCK);
    let failed = |e: std::io::Error| Error::io(format!("cannot look at file={} reason={e}", path.display()), e);
    let mut file = match lock::open(&path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(e) if [Io::NotFound, Io::NotADirectory].contains(&e.kind()) => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(lock::pid(&mut file))),
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

impl Held {
    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Hands the lock to a store.
    pub(crate) fn into_lock(mut self) -> Option<DirLock> {
        self.lock.take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A store that was begun stays.
        if self.lock.is_none() || !matches!(marker::read(&self.dir), Ok(None)) {
            return;
        }
        // Best effort: a lock's file that stays hinders nobody.
        if self.made_lock {
            let _ = fs::remove_file(self.dir.join(LOCK));
        }
        if self.made_dir {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}
