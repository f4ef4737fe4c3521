//! The open store: what readers see, who writes, and how it is recovered.
//!
//! Owns: publication of new states and the order of locks. Shared between threads by reference.
//!
//! # Locks, in the order they may be taken
//!
//! 1. `writer`: the one write transaction; the WAL and the active memtable are its own.
//! 2. `install`: one change of the runs at a time (a flush, a merge, a bulk load), and the manifest.
//! 3. `publish`: replacing `visible`, which both of the above do. Held for a few instructions.
//!
//! Readers take none: they load `visible` and keep it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use engine_api::{BulkLoad, Checkpoint, Engine, Error, ErrorKind, Key, Reader, Result, Stats, Value, WriteTxn};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::StrataOptions;
use crate::budget::Budget;
use crate::file::{PageBuffer, sync_dir};
use crate::filter::{PLANES, hash};
use crate::manifest::Manifest;
use crate::mem::Mem;
use crate::merge;
use crate::page::RECORD_BYTES;
use crate::reader::StrataReader;
use crate::recover::{Recovered, recover};
use crate::segment::{Reads, SEGMENT_RECORDS, Segment, SegmentInfo};
use crate::storage::{DirStorage, Storage};
use crate::txn::StrataTxn;
use crate::version::Version;
use crate::wal::Wal;

/// Memtables that wait for their flush before commits have to wait: one is being written, one is next.
pub(crate) const FROZEN_MAX: usize = 2;
/// A segment has a record for this many bytes of memory: what is held while it is written, ten bytes a record, is then
/// a twenty-fifth of it.
const SEGMENT_SHARE: u64 = 256;
const SEGMENT_RECORDS_MIN: u64 = 63 << 12;
/// A WAL of batches that change nothing ends at this size, so that it cannot grow for ever.
const WAL_BYTES_MAX: u64 = 256 << 20;

/// A strata store.
pub struct StrataEngine {
    pub(crate) shared: Arc<Shared>,
    merger: Option<JoinHandle<()>>,
}

/// What the engine's threads share.
pub(crate) struct Shared {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) visible: ArcSwap<Visible>,
    writer: Mutex<Writer>,
    pub(crate) install: Mutex<Manifest>,
    publish: Mutex<()>,
    poisoned: AtomicBool,
    pub(crate) budget: Arc<Budget>,
    pub(crate) reads: Arc<Reads>,
    /// A segment is given room for its pages while this much memory is left beside it.
    pages_beside_bytes: u64,
    mem_records: usize,
    /// Records of a full segment.
    pub(crate) segment_records: u64,
    reserve_bytes: u64,
    pub(crate) work: Mutex<Work>,
    pub(crate) wake: Condvar,
    pub(crate) done: Condvar,
    pub(crate) next_id: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) stalls: AtomicU64,
}

/// What a reader sees: whole batches, nothing else.
#[derive(Clone)]
pub(crate) struct Visible {
    pub(crate) active: Arc<Mem>,
    /// Entries of it that are committed.
    pub(crate) length: usize,
    /// Newest first.
    pub(crate) frozen: Vec<Arc<Frozen>>,
    pub(crate) version: Arc<Version>,
    pub(crate) checkpoint: Checkpoint,
}

/// A memtable that is complete and waits for its flush.
pub(crate) struct Frozen {
    pub(crate) mem: Arc<Mem>,
    pub(crate) length: usize,
    pub(crate) wal_id: u64,
    pub(crate) batch: u64,
    pub(crate) checkpoint: Checkpoint,
}

/// What the one writer owns.
pub(crate) struct Writer {
    wal: Wal,
    /// Number of the last batch.
    batch: u64,
}

/// What the merging thread is asked for and how it went.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) stop: bool,
    /// Merge everything into the base.
    pub(crate) settle: bool,
    /// Rounds that were completed: what waiters look at.
    pub(crate) rounds: u64,
    /// Why the last round failed.
    pub(crate) failed: Option<(ErrorKind, String)>,
    /// The merging thread has ended: nobody may wait for it.
    pub(crate) ended: bool,
    /// WAL files to be overwritten.
    pub(crate) spare: Vec<String>,
}

impl StrataEngine {
    /// Opens the store in `dir`, creating directory and store when they are missing.
    ///
    /// # Errors
    /// `DataDamaged` naming the file, `FixInput` for a newer format.
    pub fn open(dir: &Path, options: &StrataOptions) -> Result<Self> {
        let storage = DirStorage::open(dir).map_err(|e| {
            Error::io(format!("cannot create the store's directory: dir={} reason={e}", dir.display()), e)
        })?;
        Self::open_on(Arc::new(storage), options)
    }

    /// The same on any storage.
    ///
    /// # Errors
    /// As [`StrataEngine::open`].
    pub fn open_on(storage: Arc<dyn Storage>, options: &StrataOptions) -> Result<Self> {
        let manifest = match Manifest::read(&*storage)? {
            Some(manifest) => manifest,
            None => {
                let manifest = Manifest { next_id: 1, runs: vec![Vec::new()], ..Manifest::default() };
                manifest.write(&*storage)?;
                manifest
            }
        };
        let recovered = recover(&storage, options, manifest)?;
        let shared = Arc::new(Shared::new(storage, options, recovered));
        let merging = Arc::clone(&shared);
        let merger = std::thread::Builder::new()
            .name("strata-merge".to_owned())
            .spawn(move || merge::run(&merging))
            .map_err(|e| Error::io("cannot start the merging thread", e))?;
        Ok(Self { shared, merger: Some(merger) })
    }

    /// Reads every byte of every segment of the newest version and checks it.
    ///
    /// # Errors
    /// `DataDamaged` naming file and offset.
    pub fn scrub(&self) -> Result<()> {
        let version = Arc::clone(&self.shared.visible.load().version);
        version.segments().try_for_each(|segment| crate::segment::scrub(segment))
    }

    fn stop(&mut self) {
        if let Some(merger) = self.merger.take() {
            self.shared.work.lock().stop = true;
            self.shared.wake.notify_all();
            // A panic there is told on its own thread; nothing is left to be done here.
            merger.join().ok();
        }
    }
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
        Ok(self.shared.visible.load().checkpoint)
    }

    fn stats(&self) -> Result<Stats> {
        self.shared.stats()
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        crate::bulk::snapshot(&self.shared, dir)
    }

    fn bulk(&self) -> Option<&dyn BulkLoad> {
        Some(self)
    }

    fn settle(&self) -> Result<()> {
        let mut writer = self.shared.writer()?;
        self.shared.drain(&mut writer)?;
        merge::settle(&self.shared)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        let writer = self.shared.writer.lock();
        // A flush that failed is not tried again.
        let synced = self.shared.refuse_if_poisoned().and_then(|()| writer.wal.sync());
        drop(writer);
        self.stop();
        synced
    }
}

impl Shared {
    fn new(storage: Arc<dyn Storage>, options: &StrataOptions, found: Recovered) -> Self {
        let Recovered { visible, wal, batch, manifest, budget, reads, pages_beside_bytes, mem_records, next_id } =
            found;
        Self {
            storage,
            visible: ArcSwap::from_pointee(visible),
            writer: Mutex::new(Writer { wal, batch }),
            install: Mutex::new(manifest),
            publish: Mutex::new(()),
            poisoned: AtomicBool::new(false),
            budget,
            reads,
            pages_beside_bytes,
            mem_records,
            segment_records: (options.memory_bytes / SEGMENT_SHARE).clamp(SEGMENT_RECORDS_MIN, SEGMENT_RECORDS),
            // Room for a WAL and the run that it becomes.
            reserve_bytes: options.disk_reserve_bytes.max(3 * mem_records as u64 * RECORD_BYTES as u64),
            work: Mutex::new(Work::default()),
            wake: Condvar::new(),
            done: Condvar::new(),
            next_id: AtomicU64::new(next_id),
            written_bytes: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
        }
    }

    /// The writer lock, unless writing is refused.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let writer = self.writer.lock();
        self.refuse_if_poisoned()?;
        let shown = || self.storage.shown();
        let free = self
            .storage
            .free_bytes()
            .map_err(|e| Error::io(format!("cannot ask for the free space: dir={}", shown()), e))?;
        if free < self.reserve_bytes {
            return Err(Error::new(
                ErrorKind::FreeSpace,
                format!(
                    "not enough free disk to write: dir={} free_bytes={free} reserve_bytes={}",
                    shown(),
                    self.reserve_bytes
                ),
            ));
        }
        Ok(writer)
    }

    fn refuse_if_poisoned(&self) -> Result<()> {
        // ORDERING: Relaxed: the flag carries nothing but itself.
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Reopen,
                format!("an earlier write failed, close and open the store again: dir={}", self.storage.shown()),
            ));
        }
        Ok(())
    }

    /// From here on writes are refused: what is on disk is not known.
    pub(crate) fn poison(&self, error: Error) -> Error {
        // ORDERING: Relaxed: see above.
        self.poisoned.store(true, Ordering::Relaxed);
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
        let now = self.visible.load_full();
        if now.length + ops.len() > now.active.capacity() || writer.wal.bytes() > WAL_BYTES_MAX {
            self.rotate(writer, ops.len())?;
        }
        let batch = writer.batch + 1;
        writer.wal.append(batch, checkpoint, ops).map_err(|e| match e.kind() {
            // The record is cut short and will be overwritten: nothing of it was applied.
            ErrorKind::FreeSpace => e,
            _ => self.poison(e),
        })?;
        if synced {
            writer.wal.sync().map_err(|e| self.poison(e))?;
        }
        writer.batch = batch;
        let now = self.visible.load();
        let (active, length) = (Arc::clone(&now.active), now.length);
        for (index, (key, value)) in ops.iter().enumerate() {
            active.append(length + index, hash(key), key, *value);
        }
        self.publish(|visible| {
            visible.length = length + ops.len();
            visible.checkpoint = *checkpoint;
        });
        Ok(())
    }

    /// Replaces what readers see.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Visible)) {
        let _one = self.publish.lock();
        let mut next = Visible::clone(&self.visible.load());
        change(&mut next);
        self.visible.store(Arc::new(next));
    }

    /// Freezes the active memtable and starts a new one, with room for `records`. Waits while too many are frozen.
    fn rotate(&self, writer: &mut Writer, records: usize) -> Result<()> {
        self.wait_for_flush(FROZEN_MAX - 1)?;
        // A synced batch in the next file stands on all of this one.
        writer.wal.sync().map_err(|e| self.poison(e))?;
        // ORDERING: Relaxed: a number that is given once; the manifest orders files.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let spare = self.work.lock().spare.pop();
        let wal = Wal::create(&*self.storage, id, spare)?;
        let old = std::mem::replace(&mut writer.wal, wal);
        let batch = writer.batch;
        let active = Arc::new(Mem::new(records.max(self.mem_records)));
        self.publish(|visible| {
            let mem = std::mem::replace(&mut visible.active, active);
            let (length, checkpoint) = (visible.length, visible.checkpoint);
            visible.frozen.insert(0, Arc::new(Frozen { mem, length, wal_id: old.id(), batch, checkpoint }));
            visible.length = 0;
        });
        let _work = self.work.lock();
        self.wake.notify_all();
        Ok(())
    }

    /// Brings everything that is committed into runs.
    pub(crate) fn drain(&self, writer: &mut Writer) -> Result<()> {
        // Also for batches that changed nothing: their checkpoints must not be replayed behind a newer one.
        if writer.wal.bytes() > 0 {
            self.rotate(writer, 0)?;
        }
        self.wait_for_flush(0)
    }

    /// Waits until at most `most` memtables are frozen; gives up with the merging thread's error.
    fn wait_for_flush(&self, most: usize) -> Result<()> {
        let mut work = self.work.lock();
        if self.visible.load().frozen.len() > most {
            // ORDERING: Relaxed: a statistic.
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
        // A failure of before is tried again once: space may have been freed meanwhile.
        let mut rounds = None;
        while self.visible.load().frozen.len() > most {
            work.check_alive()?;
            if let (Some((kind, why)), Some(since)) = (&work.failed, rounds)
                && work.rounds > since
            {
                return Err(Error::new(*kind, why.clone()));
            }
            rounds.get_or_insert(work.rounds);
            self.wake.notify_all();
            self.done.wait(&mut work);
        }
        Ok(())
    }

    /// Opens a segment that was just written.
    pub(crate) fn open_segment(&self, info: SegmentInfo) -> Result<Arc<Segment>> {
        let segment = Segment::open(&self.storage, info, &self.budget, &self.reads)?;
        (1..PLANES).try_for_each(|plane| segment.load_plane(plane, &self.budget))?;
        if self.budget.left_bytes() >= segment.page_bytes().saturating_add(self.pages_beside_bytes) {
            segment.make_resident(&self.budget);
        }
        // ORDERING: Relaxed: a statistic.
        self.written_bytes.fetch_add(u64::from(segment.pages()) * 4096, Ordering::Relaxed);
        Ok(segment)
    }

    /// A number for a new file.
    pub(crate) fn new_id(&self) -> u64 {
        // ORDERING: Relaxed: as in `rotate`.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes `version` the store's: durable first, then visible. `change` adjusts the manifest and what readers see.
    pub(crate) fn install(
        &self,
        manifest: &mut Manifest,
        version: Version,
        to_manifest: impl FnOnce(&mut Manifest),
        to_visible: impl FnOnce(&mut Visible),
    ) -> Result<()> {
        let mut next = manifest.clone();
        // ORDERING: Relaxed: as in `rotate`.
        next.next_id = self.next_id.load(Ordering::Relaxed);
        next.runs = version.runs().map(|run| run.segments.iter().map(|segment| segment.info).collect()).collect();
        to_manifest(&mut next);
        let before = Arc::clone(&self.visible.load().version);
        let ids = |version: &Version| version.segments().map(|segment| segment.info.id).collect::<BTreeSet<u64>>();
        if let Err(failed) = sync_dir(&*self.storage).and_then(|()| next.write(&*self.storage)) {
            // Where the new manifest is in place after all, its segments must stay; the next opening decides.
            if !matches!(Manifest::read(&*self.storage), Ok(Some(found)) if found == *manifest) {
                return Err(failed);
            }
            let known = ids(&before);
            version.segments().filter(|segment| !known.contains(&segment.info.id)).for_each(|segment| segment.retire());
            return Err(failed);
        }
        let kept = ids(&version);
        *manifest = next;
        self.publish(|visible| {
            visible.version = Arc::new(version);
            to_visible(visible);
        });
        before.segments().filter(|segment| !kept.contains(&segment.info.id)).for_each(|segment| segment.retire());
        Ok(())
    }

    fn stats(&self) -> Result<Stats> {
        let now = self.visible.load();
        let unflushed: usize = now.length + now.frozen.iter().map(|frozen| frozen.length).sum::<usize>();
        // ORDERING: Relaxed: statistics.
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let deltas: u64 = now.version.deltas.iter().map(|run| run.records()).sum();
        Ok(Stats {
            pairs_estimate: now.version.pairs_estimate() + unflushed as u64,
            disk_bytes: self
                .storage
                .used_bytes()
                .map_err(|e| Error::io(format!("cannot list the store's files: dir={}", self.storage.shown()), e))?,
            details: vec![
                ("memtable_records", unflushed as u64),
                ("delta_runs", now.version.deltas.len() as u64),
                ("delta_records", deltas),
                ("base_records", now.version.base.records()),
                ("segments", now.version.segments().count() as u64),
                ("page_reads", read(&self.reads.page_reads)),
                ("filter_errors", read(&self.reads.filter_errors)),
                ("segment_written_bytes", read(&self.written_bytes)),
                ("write_stalls", read(&self.stalls)),
                ("memory_left_bytes", self.budget.left_bytes()),
            ],
        })
    }
}

impl Work {
    /// An error once the merging thread is gone.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.ended {
            return Err(Error::new(ErrorKind::Reopen, "the merging thread has ended: close and open the store again"));
        }
        Ok(())
    }
}

impl Visible {
    /// The value of `key` in this snapshot.
    pub(crate) fn get(&self, key: &Key, buffer: &mut PageBuffer) -> Result<Option<Value>> {
        let hash = hash(key);
        if let Some(found) = self.active.get(self.length, hash, key) {
            return Ok(found);
        }
        for frozen in &self.frozen {
            if let Some(found) = frozen.mem.get(frozen.length, hash, key) {
                return Ok(found);
            }
        }
        self.version.get(key, hash, buffer)
    }
}
