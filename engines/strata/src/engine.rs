//! The open store: what readers see, who writes, and how it is recovered.
//!
//! Owns: publication of new states and the order of locks. Shared between threads by reference.
//!
//! # Locks, in the order they may be taken
//!
//! 1. `writer`: the one write transaction; the WAL and the active memtable are its own.
//! 2. `balancing`: one division of the memory at a time.
//! 3. `install`: one change of the runs at a time (a flush, a merge, a bulk load), and the manifest.
//! 4. `publish`: replacing `visible`, which both of the above do. Held for a few instructions.
//! 5. `work`: what threads ask of each other. Held for a few instructions, and never while a disk is touched, because
//!    commits take it.
//!
//! Readers take none: they load `visible` and keep it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use engine_api::{BulkLoad, Checkpoint, Engine, Error, ErrorKind, Reader, Result, Stats, WriteTxn, scrub_by_scan};
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

/// Memtables that wait for their flush before commits have to wait: one is being written, one is next.
pub(crate) const FROZEN_MAX: usize = 2;

/// Says whether the store may stand there.
pub(crate) type Accept<'a> = &'a dyn Fn(&Checkpoint) -> Result<()>;

/// A strata store.
pub struct StrataEngine {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the engine's threads share.
pub(crate) struct Shared {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) visible: ArcSwap<Visible>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) install: Mutex<Manifest>,
    pub(crate) publish: Mutex<()>,
    pub(crate) poisoned: AtomicBool,
    pub(crate) wal_key: WalKey,
    pub(crate) budget: Arc<Budget>,
    pub(crate) reads: Arc<Reads>,
    /// Of the memory: what is left for work, what the record cache has before the second filter plane, what the buffers
    /// of a merge take together.
    pub(crate) work_bytes: u64,
    pub(crate) least_cache_bytes: u64,
    pub(crate) merge_read_bytes: u64,
    /// Whether pages stay in memory, as the memory was divided last.
    pub(crate) keeps_pages: AtomicBool,
    pub(crate) balancing: Mutex<()>,
    pub(crate) sizes: Sizes,
    pub(crate) reserve_bytes: u64,
    /// How much of a commit's full speed is taken from it, as the runs were changed last: see `write/limits.rs`.
    pub(crate) pressure: AtomicU32,
    pub(crate) work: Mutex<Work>,
    /// Wakes the merging thread, the flushing thread, and whoever waits for them.
    pub(crate) wake: Condvar,
    pub(crate) flush_wake: Condvar,
    pub(crate) done: Condvar,
    pub(crate) next_id: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) garbage: Garbage,
    /// Things that repairs have given up.
    pub(crate) lost: u64,
}

/// What the one writer owns.
pub(crate) struct Writer {
    pub(crate) wal: Wal,
    /// Number of the last batch.
    pub(crate) batch: u64,
    /// Time that commits have still to give, because merges are behind.
    pub(crate) owed: Duration,
    /// Bytes of the WAL that the device was asked to write.
    pub(crate) written_out: u64,
    /// The next WAL file and memtable were asked for.
    pub(crate) prepares: bool,
}

impl Writer {
    pub(crate) fn new(wal: Wal, batch: u64) -> Self {
        Self { wal, batch, owed: Duration::ZERO, written_out: 0, prepares: false }
    }
}

/// Why something failed.
pub(crate) type Failure = (ErrorKind, String);

/// What the engine's threads are asked for and how it went.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) stop: bool,
    /// How often `settle` was asked for, up to which of these it is over, and why the last of those failed.
    pub(crate) settles_asked: u64,
    pub(crate) settles_over: u64,
    pub(crate) settle_failed: Option<Failure>,
    /// Flushes that were tried: what waiters look at.
    pub(crate) flushes_tried: u64,
    /// Why the last flush failed.
    pub(crate) flush_failed: Option<Failure>,
    /// Why the last merge failed, or was put off for want of space.
    pub(crate) merge_failed: Option<Failure>,
    /// A thread has ended: nobody may wait for it.
    pub(crate) ended: bool,
    /// WAL files to be overwritten.
    pub(crate) spare: Vec<String>,
    /// What is done for the WAL while commits go on.
    pub(crate) ahead: Ahead,
}

impl StrataEngine {
    /// Opens the store in `dir`, creating directory and store when they are missing.
    ///
    /// # Errors
    /// `DataDamaged` naming the file, `FixInput` for a newer format.
    pub fn open(dir: &Path, options: &StrataOptions) -> Result<Self> {
        Self::open_on(created(dir)?, options)
    }

    /// [`StrataEngine::open`], unless `accept` refuses the checkpoint that was recovered: it is asked before anything is
    /// made or removed.
    ///
    /// # Errors
    /// As [`StrataEngine::open`]; that of `accept`.
    pub fn open_accepted(
        dir: &Path,
        options: &StrataOptions,
        accept: &dyn Fn(&Checkpoint) -> Result<()>,
    ) -> Result<Self> {
        Self::working(Self::recovered(created(dir)?, options, Sizes::of(options), accept)?)
    }

    /// The same on any storage.
    ///
    /// # Errors
    /// As [`StrataEngine::open`].
    pub fn open_on(storage: Arc<dyn Storage>, options: &StrataOptions) -> Result<Self> {
        Self::open_sized(storage, options, Sizes::of(options))
    }

    /// [`StrataEngine::open_on`] with other pieces than those that follow from the memory.
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

    /// Opens the store in `dir` and writes nothing there: what recovery makes is kept in memory. Only for reading: nothing
    /// merges, and what a transaction commits is lost.
    ///
    /// # Errors
    /// As [`StrataEngine::open`].
    pub fn open_read_only(dir: &Path, options: &StrataOptions) -> Result<Self> {
        let shared = Self::recovered(Arc::new(ReadOnlyStorage::new(dir)), options, Sizes::of(options), &|_| Ok(()))?;
        // Nobody may wait for a thread that was never started.
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
    /// `DataDamaged` naming file and offset.
    pub fn scrub(&self) -> Result<()> {
        let version = Arc::clone(&self.shared.visible.load().version);
        version.segments().try_for_each(|segment| crate::read::segment::scrub(segment))
    }

    fn stop(&mut self) {
        self.shared.work.lock().stop = true;
        self.shared.wake.notify_all();
        self.shared.flush_wake.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there is told on its own thread; nothing is left to be done here.
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
        crate::write::bulk::snapshot(&self.shared, dir)
    }

    fn bulk(&self) -> Option<&dyn BulkLoad> {
        Some(self)
    }

    fn settle(&self) -> Result<()> {
        // A settled store is as small as it gets: the WAL begins anew in an empty file.
        let batch = self.shared.begin_anew(&mut *self.shared.writer()?)?;
        // Commits go on while it is flushed and merged; what they write is left to the next merges.
        self.shared.wait_for_batch(batch)?;
        self.shared.remove_spares();
        merge::settle(&self.shared)
    }

    /// Every byte of every segment, those that no scan reads (filters, directories, what newer runs hide) among them;
    /// then a scan, for what spans segments.
    fn scrub(&mut self) -> Result<u64> {
        Self::scrub(self)?;
        scrub_by_scan(&mut *self.reader()?)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        let mut writer = self.shared.writer.lock();
        // A flush that failed is not tried again.
        let synced = self.shared.refuse_if_poisoned().and_then(|()| writer.wal.sync());
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
            storage,
            visible: ArcSwap::from_pointee(visible),
            writer: Mutex::new(Writer::new(wal, batch)),
            wal_key: manifest.wal_key,
            install: Mutex::new(manifest),
            publish: Mutex::new(()),
            poisoned: AtomicBool::new(false),
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
    /// An error once a thread is gone.
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
