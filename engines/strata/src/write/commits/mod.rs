//! Commits: the one writer, and the order in which a batch becomes durable and visible.
//!
//! Owns: the lock `writer`, the first in the order of `write/shared.rs`. Its holder owns the WAL and the active
//! memtable. Must not: flush or merge; a commit waits for the threads that do. Runs on the thread of the transaction;
//! the preparations of `commits/ahead.rs` are made on `strata-flush`.
//!
//! The commit itself is in `commits/commit.rs`, the change to the next WAL file and memtable in `commits/rotate.rs`,
//! and the waits for flushes and merges in `commits/waits.rs`.

mod ahead;
mod commit;
mod rotate;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use engine_api::Result;
use parking_lot::{Mutex, MutexGuard};

use crate::format::secret::WalKey;
use crate::format::wal::Wal;
use crate::write::changes::Changes;
use crate::write::common::Common;
use crate::write::memory::Memory;
use crate::write::runs::Runs;

/// The commits of a store.
pub(crate) struct Commits {
    common: Arc<Common>,
    runs: Arc<Runs>,
    memory: Arc<Memory>,
    writer: Mutex<Writer>,
    wal_key: WalKey,
}

/// State of the one writer.
pub(crate) struct Writer {
    wal: Wal,
    /// Number of the last batch.
    batch: u64,
    /// Delay that commits still have to take, because merges lag.
    owed: Duration,
    /// Number of bytes of the present WAL file that the device was asked to write.
    written_out: u64,
    /// Number of entries of the active memtable that `strata-flush` was asked to take into their order.
    arranged: usize,
    /// Whether the next WAL file and memtable were already requested.
    prepares: bool,
    /// The empty lists of the last transaction, for the next one: no put waits for them to grow to the usual size.
    changes: Changes,
}

impl Writer {
    pub(crate) fn changes(&mut self) -> &mut Changes {
        &mut self.changes
    }
}

impl Commits {
    /// Makes the commits of a store that was recovered up to `batch`; `wal` is an empty file for the next one.
    pub(crate) fn new(
        common: &Arc<Common>,
        runs: &Arc<Runs>,
        memory: &Arc<Memory>,
        wal_key: WalKey,
        (wal, batch): (Wal, u64),
    ) -> Self {
        let changes = Changes::new(memory.reads.seed);
        let writer = Writer { wal, batch, owed: Duration::ZERO, written_out: 0, arranged: 0, prepares: false, changes };
        Self {
            common: Arc::clone(common),
            runs: Arc::clone(runs),
            memory: Arc::clone(memory),
            writer: Mutex::new(writer),
            wal_key,
        }
    }

    /// Takes the writer lock, unless writing is refused.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let writer = self.writer.lock();
        self.common.poison.check()?;
        self.common.check_reserve(0)?;
        Ok(writer)
    }

    /// Makes every commit durable before the store is closed.
    pub(crate) fn close(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        // A failed flush is never tried again.
        self.common.poison.check().and_then(|()| writer.wal.sync())
    }
}
