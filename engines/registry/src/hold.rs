//! Holds a store's directory without opening the store, for a program that first has hours of other work to do.
//!
//! Owns: the removal of a directory that was created for holding and in which no store was made. Must not: make a
//! store. Used on the thread that opens the store.

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::{Error, Result};

use crate::directory::create_dir;
use crate::lock::{self, DirLock, LOCK};
use crate::marker;

/// A directory that no other process can open or hold meanwhile.
pub struct Held {
    dir: PathBuf,
    /// The lock; `None` once a store has taken it over.
    lock: Option<DirLock>,
    made_dir: bool,
    made_lock: bool,
}

/// Creates `dir` if it is missing, and takes its lock without waiting. Dropping the value removes the directory and the
/// lock that were created, unless a store was made there.
///
/// # Errors
/// `Retry` if another process has the store open or holds the directory; otherwise I/O errors of creating or locking
/// it.
pub fn hold(dir: &Path) -> Result<Held> {
    let (made_dir, made_lock) = (!dir.exists(), !dir.join(LOCK).exists());
    create_dir(dir)?;
    let lock = DirLock::take(dir)?;
    Ok(Held { dir: dir.to_owned(), lock: Some(lock), made_dir, made_lock })
}

/// Returns the pid of the process that has the store in `dir` open or holds the directory; `None` if no process does.
///
/// # Errors
/// I/O errors of opening or locking the lock file, for example a lack of permission.
pub fn holder(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(LOCK);
    lock::holder(dir).map_err(|e| Error::io(format!("cannot look at file={} reason={e}", path.display()), e))
}

impl Held {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Passes the lock on to a store.
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
        // Best effort: a lock file that stays is harmless.
        if self.made_lock {
            let _ = fs::remove_file(self.dir.join(LOCK));
        }
        if self.made_dir {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}
