//! The open store: the state that readers see, the one writer, and the opening and closing.
//!
//! Owns: publication of new states and the order of locks. Shared between threads by reference.
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

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use engine_api::{
    BulkLoad, Checkpoint, Engine, Error, ErrorKind, Reader, Result, Stats, Warmed, WriteTxn, scrub_by_scan,
};
use engine_kit::Poison;
use parking_lot::{Condvar, Mutex};

use crate::budget::Budget;
use crate::format::manifest::Manifest;
use crate::format::secret::{Seed, WalKey};
use crate::format::wal::Wal;
use crate::read::lookup::Reads;
use crate::read::read_only::ReadOnlyStorage;
use crate::read::reader::StrataReader;
use crate::read::visible::Visible;
use crate::sizes::{least_cache_bytes, merge_read_bytes, reserve_bytes, work_bytes};
use crate::stats::Counters;
use crate::storage::{DirStorage, Storage};
use crate::write::ahead::Ahead;
use crate::write::directory::refuse_files_without_manifest;
use crate::write::garbage::Garbage;
use crate::write::limits::pressure_of;
use crate::write::lost;
use crate::write::recover::{Recovered, recover};
use crate::write::txn::StrataTxn;
use crate::write::{flush, merge};
use crate::{Sizes, StrataOptions};

/// Number of memtables that may wait for their flush before commits have to wait: one is being written, one is next.
pub(crate) const FROZEN_MAX: usize = 2;

/// Checks whether the store may stand at a checkpoint; an error refuses the opening.
pub(crate) type Accept<'a> = &'a dyn Fn(&Checkpoint) -> Result<()>;

/// An open strata store. Its threads end when it is closed or dropped.
pub struct StrataEngine {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

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
    /// Failure of the last merge step, want of disk space included; `None` if it succeeded.
    pub(crate) merge_failed: Option<Failure>,
    /// Whether a thread of the engine has ended. Then nobody may wait for it.
    pub(crate) ended: bool,
    /// Names of WAL files that wait to be overwritten.
    pub(crate) spare: Vec<String>,
    /// Preparation of the next WAL file and memtable while commits continue.
    pub(crate) ahead: Ahead,
}

impl StrataEngine {
    /// Opens the store in `dir`. Creates the directory and the store if they are missing.
    ///
    /// # Errors
    /// `DataDamaged` naming the file; `FixInput` for another version of the format; I/O errors.
    pub fn open(dir: &Path, options: &StrataOptions) -> Result<Self> {
        Self::open_on(created(dir)?, options)
    }

    /// Opens the store as [`StrataEngine::open`] does, unless `accept` refuses the recovered checkpoint. `accept` is
    /// asked before the manifest of an existing store is changed and before any of its files is removed.
    ///
    /// # Errors
    /// As [`StrataEngine::open`]; the error of `accept`.
    pub fn open_accepted(
        dir: &Path,
        options: &StrataOptions,
        accept: &dyn Fn(&Checkpoint) -> Result<()>,
    ) -> Result<Self> {
        Self::working(Self::recovered(created(dir)?, options, Sizes::of(options), accept)?)
    }

    /// Opens the store on any storage, as [`StrataEngine::open`] does.
    ///
    /// # Errors
    /// As [`StrataEngine::open`].
    pub fn open_on(storage: Arc<dyn Storage>, options: &StrataOptions) -> Result<Self> {
        Self::open_sized(storage, options, Sizes::of(options))
    }

    /// Opens the store on any storage with the given sizes instead of those that follow from the memory.
    ///
    /// # Errors
    /// As [`StrataEngine::open`].
    #[doc(hidden)]
    pub fn open_sized(storage: Arc<dyn Storage>, options: &StrataOptions, sizes: Sizes) -> Result<Self> {
        Self::working(Self::recovered(storage, options, sizes, &|_| Ok(()))?)
    }

    fn working(shared: Arc<Shared>) -> Result<Self> {
        let mut engine = Self { shared, threads: Vec::new() };
        for (name, run) in [("strata-flush", flush::run as fn(&Shared)), ("strata-merge", merge::run)] {
            let shared = Arc::clone(&engine.shared);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || run(&shared))
                .map_err(|e| Error::io(format!("cannot start a thread: name={name}"), e))?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// Opens the store in `dir` for reading only. Nothing is written to the directory: files that recovery makes stay
    /// in memory, nothing merges, and commits of a transaction are lost.
    ///
    /// # Errors
    /// As [`StrataEngine::open`].
    pub fn open_read_only(dir: &Path, options: &StrataOptions) -> Result<Self> {
        let shared = Self::recovered(Arc::new(ReadOnlyStorage::new(dir)), options, Sizes::of(options), &|_| Ok(()))?;
        // Nobody may wait for threads that were never started.
        shared.work.lock().ended = true;
        Ok(Self { shared, threads: Vec::new() })
    }

    fn recovered(
        storage: Arc<dyn Storage>,
        options: &StrataOptions,
        sizes: Sizes,
        accept: Accept<'_>,
    ) -> Result<Arc<Shared>> {
        let manifest = match Manifest::read(&*storage)? {
            Some(manifest) => manifest,
            None => {
                refuse_files_without_manifest(&*storage)?;
                let (seed, wal_key) = (Seed::random()?, WalKey::random()?);
                let manifest = Manifest { seed, wal_key, next_id: 1, runs: vec![Vec::new()], ..Manifest::default() };
                manifest.write(&*storage)?;
                manifest
            }
        };
        let lost = lost::read(&*storage)?.len() as u64;
        let recovered = recover(&storage, options, sizes, manifest, accept)?;
        let shared = Shared { lost, ..Shared::new(storage, options, sizes, recovered) };
        shared.balance(0);
        Ok(Arc::new(shared))
    }

    /// Reads every byte of every segment of the newest version and checks it.
    ///
    /// # Errors
    /// `DataDamaged` naming file and offset; I/O errors of reading.
    pub fn scrub(&self) -> Result<()> {
        let version = Arc::clone(&self.shared.visible.load().version);
        version.segments().try_for_each(|segment| crate::read::segment::scrub(segment))
    }

    fn stop(&mut self) {
        self.shared.work.lock().stop = true;
        self.shared.wake.notify_all();
        self.shared.flush_wake.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported by that thread; nothing remains to be done here.
            thread.join().ok();
        }
    }
}

fn created(dir: &Path) -> Result<Arc<dyn Storage>> {
    let storage = DirStorage::open(dir)
        .map_err(|e| Error::io(format!("cannot create the store's directory: dir={} reason={e}", dir.display()), e))?;
    Ok(Arc::new(storage))
}

impl Drop for StrataEngine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Engine for StrataEngine {
    fn label(&self) -> &'static str {
        "strata"
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(StrataReader::new(&self.shared)))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Ok(Box::new(StrataTxn::new(&self.shared, self.shared.writer()?)))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        Ok(self.shared.visible.load().checkpoint.clone())
    }

    fn stats(&self) -> Result<Stats> {
        self.shared.stats()
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        engine_kit::copy_to_new(dir, || crate::write::bulk::snapshot(&self.shared, dir))
    }

    fn bulk(&self) -> Option<&dyn BulkLoad> {
        Some(self)
    }

    fn settle(&self) -> Result<()> {
        // A settled store is as small as possible, so the WAL starts over in an empty file.
        let batch = self.shared.begin_anew(&mut *self.shared.writer()?)?;
        // Commits continue during the flush and the merge; later merges take their records.
        self.shared.wait_for_batch(batch)?;
        self.shared.remove_spares();
        merge::settle(&self.shared)
    }

    fn warm_up(&self, go_on: &mut dyn FnMut(Warmed) -> bool) -> Result<()> {
        crate::read::warm::warm_up(&self.shared, go_on)
    }

    /// Checks every byte of every segment, including those that no scan reads: filters, directories, and records hidden
    /// by newer runs. Then scans the store, for the relations between segments.
    fn scrub(&mut self) -> Result<u64> {
        Self::scrub(self)?;
        scrub_by_scan(&mut *self.reader()?)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        let mut writer = self.shared.writer.lock();
        // A failed flush is never tried again.
        let synced = self.shared.poison.check().and_then(|()| writer.wal.sync());
        drop(writer);
        self.stop();
        synced
    }
}

impl Shared {
    fn new(storage: Arc<dyn Storage>, options: &StrataOptions, sizes: Sizes, found: Recovered) -> Self {
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
