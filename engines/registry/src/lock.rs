//! The lock of a store's directory: one process, and within it one open store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use engine_api::{Error, ErrorKind, Result};

pub(crate) const LOCK: &str = "LOCK";

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
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| Error::io(format!("cannot open the store's lock: {at} reason={e}"), e))?;
        match file.try_lock() {
            Ok(()) => {}
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

fn held(dir: &Path, file: &mut File) -> Error {
    let mut pid = String::new();
    // Without a readable pid the directory alone has to do.
    let _ = file.read_to_string(&mut pid);
    let pid = match pid.trim() {
        "" => "unknown",
        pid => pid,
    };
    Error::new(
        ErrorKind::FixInput,
        format!("store is open in another process: dir={} holder_pid={pid}: stop that process first", dir.display()),
    )
}
