//! The state of a store's writes: the count of commits, and the two reasons to refuse the next write.
//!
//! Owns: the wording of both refusals. Must not: clear a failure, because the state on disk stays unknown until the store
//! is opened again. Threads: [`Commits`] and [`Poison`] are shared by all threads of a store.

use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine_api::{Error, ErrorKind, Result};

/// Number of commits since a store was opened, by which a reader knows whether its snapshot is the newest.
#[derive(Default)]
pub struct Commits(AtomicU64);

impl Commits {
    pub fn count(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `add`: a thread that sees the count takes a snapshot that holds
        // the commit.
        self.0.load(Ordering::Acquire)
    }

    /// Counts a commit that the engine has published already.
    pub fn add(&self) {
        // ORDERING: Release; pairs with `count`.
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Whether a write of a store has failed so that its state on disk is unknown.
pub struct Poison {
    store: String,
    poisoned: AtomicBool,
}

impl Poison {
    pub fn new(engine: &'static str, dir: impl Display) -> Self {
        Self { store: format!("{engine} store failed: dir={dir}"), poisoned: AtomicBool::new(false) }
    }

    /// Refuses all writes from now on.
    pub fn set(&self) {
        // ORDERING: Release pairs with the Acquire in `check`. A write that races past the check fails as well, because
        // every engine here either holds its writer's lock or remembers the failure itself.
        self.poisoned.store(true, Ordering::Release);
    }

    /// Checks that no write has failed.
    ///
    /// # Errors
    /// `Reopen` after [`Poison::set`].
    pub fn check(&self) -> Result<()> {
        // ORDERING: pairs with `set`.
        if !self.poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = format!(
            "an earlier write of this {}: its state on disk is unknown: close the process and open again",
            self.store
        );
        Err(Error::new(ErrorKind::Reopen, message))
    }
}

/// Whether an error leaves the state of the disk, or of the program, unknown, so that no write may follow.
pub fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Reopen | ErrorKind::Internal)
}

/// Refuses a write while the file system has less than `reserve_bytes` free. `dir` names the store in the error.
///
/// # Errors
/// `FreeSpace`, or the I/O error of asking for the free space.
pub fn check_space(dir: impl Display, free_bytes: io::Result<u64>, reserve_bytes: u64) -> Result<()> {
    let free_bytes =
        free_bytes.map_err(|e| Error::io(format!("cannot ask for the free disk space: dir={dir} reason={e}"), e))?;
    if free_bytes >= reserve_bytes {
        return Ok(());
    }
    let message = format!(
        "disk is nearly full: dir={dir} free_bytes={free_bytes} reserve_bytes={reserve_bytes}: free space, then go on"
    );
    Err(Error::new(ErrorKind::FreeSpace, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_is_never_forgotten_and_names_the_store() {
        let poison = Poison::new("redb", "/data/map");
        poison.check().unwrap();
        poison.set();
        for _ in 0..2 {
            let error = poison.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Reopen);
            assert!(error.to_string().contains("this redb store failed: dir=/data/map"), "{error}");
        }
    }

    #[test]
    fn the_reserve_itself_may_be_left_and_no_byte_less() {
        check_space("/data", Ok(100), 100).unwrap();
        assert_eq!(check_space("/data", Ok(99), 100).unwrap_err().kind(), ErrorKind::FreeSpace);
        let lost = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(check_space("/data", Err(lost), 0).unwrap_err().kind(), ErrorKind::FixInput);
    }
}
