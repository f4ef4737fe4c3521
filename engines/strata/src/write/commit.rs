//! Commits: the WAL and the memtable.
//!
//! Owns: the order in which a batch becomes durable and visible. Runs on the thread of the transaction, under the
//! writer lock. `write/limits.rs` has the waits of a commit, `write/rotate.rs` the next file and memtable.

use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result, Value};
use engine_kit::check_space;
use parking_lot::MutexGuard;

use crate::format::page::RECORD_BYTES;
use crate::format::wal;
use crate::read::visible::Visible;
use crate::write::shared::{Shared, Writer};

/// Disk space for each change of a batch that is larger than a memtable: its record in the WAL, and the run that is
/// written of it, with its filters.
const LARGE_BATCH_BYTES: u64 = 2 * RECORD_BYTES as u64 + 8;

impl Shared {
    /// Takes the writer lock, unless writing is refused.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let writer = self.writer.lock();
        self.poison.check()?;
        self.check_reserve(0)?;
        Ok(writer)
    }

    /// Checks that the disk has the reserve and `more_bytes`. Otherwise gives up the WAL files that wait to be
    /// overwritten, and checks again.
    fn check_reserve(&self, more_bytes: u64) -> Result<()> {
        let check = || check_space(self.storage.shown(), self.storage.free_bytes(), self.reserve_bytes + more_bytes);
        match check() {
            Err(short) if short.kind() == ErrorKind::FreeSpace && self.remove_spares() => check(),
            checked => checked,
        }
    }

    /// Refuses writes from now on, because the state on disk is unknown.
    pub(crate) fn poison(&self, error: Error) -> Error {
        self.poison.set();
        match error.kind() {
            ErrorKind::Reopen => error,
            _ => Error::with_source(ErrorKind::Reopen, "a write failed: close and open the store again", error),
        }
    }

    /// Commits one batch of distinct keys.
    pub(crate) fn commit(
        &self,
        writer: &mut Writer,
        ops: &[(Key, Option<Value>)],
        checkpoint: &Checkpoint,
        synced: bool,
    ) -> Result<()> {
        checkpoint.check()?;
        // The transaction may be older than the failure.
        self.poison.check()?;
        wal::refuse_too_large(ops.len())?;
        // The reserve has room for memtables, and not for a batch that is larger than one.
        if ops.len() > self.sizes.mem_records {
            self.check_reserve(LARGE_BATCH_BYTES * ops.len() as u64)?;
        }
        self.slow_down(writer, ops.len());
        if self.is_full(ops.len()) || writer.wal.bytes() > self.sizes.wal_bytes {
            self.rotate(writer, ops.len())?;
        }
        let batch = writer.batch + 1;
        writer.wal.append(batch, checkpoint, ops).map_err(|e| match e.kind() {
            // The record is incomplete and will be overwritten: nothing of it was applied.
            ErrorKind::FreeSpace => e,
            _ => self.poison(e),
        })?;
        if synced {
            writer.wal.sync().map_err(|e| self.poison(e))?;
        }
        writer.batch = batch;
        self.counters.committed(ops.len(), writer.wal.last_bytes());
        let now = self.visible.load();
        let (active, length) = (Arc::clone(&now.active), now.length);
        for (index, (key, value)) in ops.iter().enumerate() {
            active.append(length + index, self.reads.seed.hash(key), key, *value);
        }
        self.publish(|visible| {
            visible.length = length + ops.len();
            visible.checkpoint = checkpoint.clone();
        });
        self.look_ahead(writer, length + ops.len(), active.capacity());
        Ok(())
    }

    /// Whether the active memtable has no room for so many changes. Holds no state afterwards, because a commit may
    /// then wait for merges, and these wait for the memory and disk space of states that are held.
    fn is_full(&self, changes: usize) -> bool {
        let now = self.visible.load();
        now.length + changes > now.active.capacity()
    }

    /// Replaces the state that new readers see.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Visible)) {
        let _one = self.publish.lock();
        let mut next = Visible::clone(&self.visible.load());
        change(&mut next);
        self.visible.store(Arc::new(next));
    }
}
