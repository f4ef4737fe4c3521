//! The state that commits, runs and memory have in common, and the free space of the disk.
//!
//! Owns: the refusal of writes after a failure or for want of disk space. Must not: have a lock of its own, or state that
//! a lock of one of the three guards. Any thread.

use std::sync::Arc;

use engine_api::{Error, ErrorKind, Result};
use engine_kit::{Poison, check_space, is_final};

use crate::format::wal;
use crate::read::visible::Newest;
use crate::sizes::Sizes;
use crate::storage::Storage;
use crate::write::counters::Counters;
use crate::write::mailbox::{Failure, Mailbox};

/// State that all parts of the writing side use.
pub(crate) struct Common {
    pub(crate) storage: Arc<dyn Storage>,
    /// The state that new readers see.
    pub(crate) newest: Newest,
    pub(crate) mailbox: Mailbox,
    pub(crate) counters: Counters,
    pub(crate) poison: Poison,
    pub(crate) sizes: Sizes,
    /// Free disk space that `begin` demands and merges leave alone, in bytes.
    pub(crate) reserve_bytes: u64,
    /// Number of losses that repairs of this store have recorded.
    pub(crate) lost: u64,
}

impl Common {
    /// Refuses writes from now on, because the state on disk is unknown.
    pub(crate) fn poison(&self, error: Error) -> Error {
        self.poison.set();
        match error.kind() {
            ErrorKind::Reopen => error,
            _ => Error::with_source(ErrorKind::Reopen, "a write failed: close and open the store again", error),
        }
    }

    /// Counts and describes the failure of a flush or a merge. An error that leaves the disk's state unknown ends
    /// writing.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        self.counters.failures.add(1);
        let error = if is_final(&error) { self.poison(error) } else { error };
        (error.kind(), error.to_string())
    }

    /// Number of records in a usual segment of the store as it is now.
    pub(crate) fn usual_segment_records(&self) -> u64 {
        self.newest.load().version.usual_segment_records(self.sizes.segment_records)
    }

    /// Checks that the disk has the reserve and `more_bytes` for a commit. Otherwise gives up the WAL files that wait to
    /// be overwritten, and checks again.
    pub(crate) fn check_reserve(&self, more_bytes: u64) -> Result<()> {
        let check = || check_space(self.storage.shown(), self.storage.free_bytes(), self.reserve_bytes + more_bytes);
        match check() {
            Err(short) if short.kind() == ErrorKind::FreeSpace && self.remove_spares() => check(),
            checked => checked,
        }
    }

    /// Checks that there is disk space for `bytes` in addition to `reserve_bytes`. Otherwise gives up the WAL files
    /// that wait to be overwritten, and checks again.
    ///
    /// # Errors
    /// `FreeSpace` naming both numbers; I/O errors of asking for the free space.
    pub(crate) fn require_space(&self, bytes: u64, reserve_bytes: u64, for_what: &str) -> Result<()> {
        let shown = || self.storage.shown();
        let ask = || {
            let free = self.storage.free_bytes();
            free.map_err(|e| Error::io(format!("cannot ask for the free space: dir={}", shown()), e))
        };
        let short_of = |free: u64| bytes.saturating_add(reserve_bytes).saturating_sub(free);
        let mut free = ask()?;
        if short_of(free) > 0 && self.remove_spares() {
            free = ask()?;
        }
        let short = short_of(free);
        if reserve_bytes > 0 {
            self.counters.merge_short_bytes.set(short);
        }
        if short == 0 {
            return Ok(());
        }
        let message = format!(
            "not enough free disk for {for_what}: dir={} needed_bytes={bytes} reserve_bytes={reserve_bytes} free_bytes={free}",
            shown()
        );
        Err(Error::new(ErrorKind::FreeSpace, message))
    }

    /// Removes the WAL files that wait to be written or overwritten. Returns whether there were any.
    pub(crate) fn remove_spares(&self) -> bool {
        let (ready, spare) = {
            let mut requests = self.mailbox.lock();
            (requests.ahead.take(), std::mem::take(&mut requests.spare))
        };
        // The next opening removes a file that stays.
        let names: Vec<String> = spare.into_iter().chain(ready.map(|ready| wal::name(ready.wal.id()))).collect();
        names.iter().for_each(|name| drop(self.storage.remove(name)));
        !names.is_empty()
    }
}
