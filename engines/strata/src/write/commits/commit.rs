//! A commit: a batch goes into the WAL, then into the memtable, and then it is visible.
//!
//! Owns: that order. Must not: wait, except by `commits/waits.rs` and `commits/rotate.rs`. Runs on the thread of the
//! transaction, under the writer lock.

use std::sync::Arc;

use engine_api::{Checkpoint, ErrorKind, Key, PAIR_BYTES, Result, Value};

use crate::format::page::RECORD_BYTES;
use crate::format::wal;
use crate::write::commits::{Commits, Writer};

/// Disk space for each change of a batch that is larger than a memtable: its record in the WAL, and the run that is
/// written of it, with its filters.
const LARGE_BATCH_BYTES: u64 = 2 * RECORD_BYTES as u64 + 8;

impl Commits {
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
        self.common.poison.check()?;
        wal::refuse_too_large(ops.len())?;
        // The reserve has room for memtables, and not for a batch that is larger than one.
        if ops.len() > self.common.sizes.mem_records {
            self.common.check_reserve(LARGE_BATCH_BYTES * ops.len() as u64)?;
        }
        self.slow_down(writer, ops.len());
        if self.is_full(ops.len()) || writer.wal.bytes() > self.common.sizes.wal_bytes {
            self.rotate(writer, ops.len())?;
        }
        let batch = writer.batch + 1;
        writer.wal.append(batch, checkpoint, ops).map_err(|e| match e.kind() {
            // The record is incomplete and will be overwritten: nothing of it was applied.
            ErrorKind::FreeSpace => e,
            _ => self.common.poison(e),
        })?;
        if synced {
            writer.wal.sync().map_err(|e| self.common.poison(e))?;
        }
        writer.batch = batch;
        self.common.counters.committed_bytes.add(ops.len() as u64 * PAIR_BYTES);
        self.common.counters.wal_bytes.add(writer.wal.last_bytes());
        let now = self.common.newest.load();
        let (active, length) = (Arc::clone(&now.active), now.length);
        for (index, (key, value)) in ops.iter().enumerate() {
            active.append(length + index, self.memory.reads.seed.hash(key), key, *value);
        }
        let length = length + ops.len();
        self.common.newest.publish(|visible| {
            visible.length = length;
            visible.checkpoint = checkpoint.clone();
        });
        self.look_ahead(writer, length, active.capacity());
        Ok(())
    }

    /// Whether the active memtable has no room for so many changes. Holds no state afterwards, because a commit may
    /// then wait for merges, and these wait for the memory and disk space of states that are held.
    fn is_full(&self, changes: usize) -> bool {
        let now = self.common.newest.load();
        now.length + changes > now.active.capacity()
    }
}
