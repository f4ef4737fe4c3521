//! The state that the engine's threads share, and the state of the one writer.
//!
//! Owns: the fields and the order of locks. Must not: do the work of a commit, a flush or a merge; the other files of
//! this folder do. Shared between threads by reference.
//!
//! # Locks, in the order they may be taken
//!
//! 1. `writer`: held by the one write transaction, which owns the WAL and the active memtable.
//! 2. `balancing`: held during a division of the memory, one at a time.
//! 3. `install`: held during a change of the runs (a flush, a merge, a bulk load), one at a time. It guards the
//!    manifest.
//! 4. `publish`: held while `visible` is replaced, by a holder of `writer` or `install`. Held for a few instructions.
//! 5. `work`: guards the requests between threads. Held for a few instructions, and never during an access to a disk,
//!    because commits take it.
//!
//! Readers take no lock: they load `visible` and keep it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use arc_swap::ArcSwap;
use engine_api::{Error, ErrorKind, Result};
use engine_kit::Poison;
use parking_lot::{Condvar, Mutex};

use crate::StrataOptions;
use crate::budget::Budget;
use crate::format::manifest::Manifest;
use crate::format::secret::WalKey;
use crate::format::wal::Wal;
use crate::read::lookup::Reads;
use crate::read::visible::Visible;
use crate::sizes::{Sizes, least_cache_bytes, merge_read_bytes, reserve_bytes, work_bytes};
use crate::storage::Storage;
use crate::write::ahead::Ahead;
use crate::write::counters::Counters;
use crate::write::garbage::Garbage;
use crate::write::limits::pressure_of;
use crate::write::recover::Recovered;

/// State that the engine's threads share.
pub(crate) struct Shared {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) visible: ArcSwap<Visible>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) install: Mutex<Manifest>,
    pub(crate) publish: Mutex<()>,
    pub(crate) poison: Poison,
    pub(crate) wal_key: WalKey,
    pub(crate) budget: Arc<Budget>,
    pub(crate) reads: Arc<Reads>,
    /// Memory left free for flushes, merges and scans, in bytes.
    pub(crate) work_bytes: u64,
    /// Memory that the record cache gets before the second filter plane does, in bytes.
    pub(crate) least_cache_bytes: u64,
    /// Memory of all buffers of a merge together, in bytes.
    pub(crate) merge_read_bytes: u64,
    /// Whether pages stay in memory, according to the newest division of the memory.
    pub(crate) keeps_pages: AtomicBool,
    pub(crate) balancing: Mutex<()>,
    pub(crate) sizes: Sizes,
    pub(crate) reserve_bytes: u64,
    /// How strongly commits are slowed because merges lag, measured at the newest change of the runs: see
    /// `write/limits.rs`.
    pub(crate) pressure: AtomicU32,
    pub(crate) work: Mutex<Work>,
    /// Wakes the thread `strata-merge`, which otherwise looks around after `LOOK_AROUND`.
    pub(crate) wake: Condvar,
    /// Wakes the thread `strata-flush` for a frozen memtable, or for a WAL file that is needed soon.
    pub(crate) flush_wake: Condvar,
    /// Wakes the threads that wait for a flush or a merge.
    pub(crate) done: Condvar,
    pub(crate) next_id: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) garbage: Garbage,
    /// Number of losses that repairs of this store have recorded.
    pub(crate) lost: u64,
}

impl Shared {
    /// Builds the state of a store that was recovered.
    pub(crate) fn new(storage: Arc<dyn Storage>, options: &StrataOptions, sizes: Sizes, found: Recovered) -> Self {
        let Recovered { visible, wal, batch, manifest, budget, reads, next_id } = found;
        let pressure = AtomicU32::new(pressure_of(&visible));
        Self {
            poison: Poison::new("strata", storage.shown()),
            storage,
            visible: ArcSwap::from_pointee(visible),
            writer: Mutex::new(Writer::new(wal, batch)),
            wal_key: manifest.wal_key,
            install: Mutex::new(manifest),
            publish: Mutex::new(()),
            budget,
            reads,
            work_bytes: work_bytes(options, sizes),
            least_cache_bytes: least_cache_bytes(options),
            merge_read_bytes: merge_read_bytes(options),
            keeps_pages: AtomicBool::new(true),
            balancing: Mutex::new(()),
            sizes,
            reserve_bytes: reserve_bytes(options, &sizes),
            pressure,
            work: Mutex::new(Work::default()),
            wake: Condvar::new(),
            flush_wake: Condvar::new(),
            done: Condvar::new(),
            next_id: AtomicU64::new(next_id),
            counters: Counters::default(),
            garbage: Garbage::default(),
            lost: 0,
        }
    }
}

/// State of the one writer.
pub(crate) struct Writer {
    pub(crate) wal: Wal,
    /// Number of the last batch.
    pub(crate) batch: u64,
    /// Delay that commits still have to take, because merges lag.
    pub(crate) owed: Duration,
    /// Number of bytes of the present WAL file that the device was asked to write.
    pub(crate) written_out: u64,
    /// Whether the next WAL file and memtable were already requested.
    pub(crate) prepares: bool,
}

impl Writer {
    pub(crate) fn new(wal: Wal, batch: u64) -> Self {
        Self { wal, batch, owed: Duration::ZERO, written_out: 0, prepares: false }
    }
}

/// Kind and message of a failure that other threads report.
pub(crate) type Failure = (ErrorKind, String);

/// Requests to the engine's threads and their results.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) stop: bool,
    /// Number of requests to settle so far.
    pub(crate) settles_asked: u64,
    /// The last request to settle that is done, successful or not.
    pub(crate) settles_over: u64,
    /// Failure of that request; `None` if it succeeded.
    pub(crate) settle_failed: Option<Failure>,
    /// Number of attempts to flush a memtable, which waiters compare.
    pub(crate) flushes_tried: u64,
    /// Failure of the last flush; `None` if it succeeded.
    pub(crate) flush_failed: Option<Failure>,
    /// Number of attempts to do a step of a merge, which waiters compare.
    pub(crate) merges_tried: u64,
    /// Failure of the last merge step, want of disk space included; `None` if it succeeded.
    pub(crate) merge_failed: Option<Failure>,
    /// Whether a commit that is held asks for a step at once, whatever pause a failure has begun.
    pub(crate) merge_now: bool,
    /// Whether a thread of the engine has ended. Then nobody may wait for it.
    pub(crate) ended: bool,
    /// Names of WAL files that wait to be overwritten.
    pub(crate) spare: Vec<String>,
    /// Preparation of the next WAL file and memtable while commits continue.
    pub(crate) ahead: Ahead,
}

impl Work {
    /// Returns an error once a thread has ended.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.ended {
            return Err(Error::new(
                ErrorKind::Reopen,
                "a thread of the store has ended: close and open the store again",
            ));
        }
        Ok(())
    }
}
