//! The engine: its opening, its threads, its closing, and the calls of [`engine_api`] that pass on to the parts of this
//! crate.
//!
//! Owns: the public type of an open store. Must not: hold state that readers and writers share, which is in [`Shared`].
//! Shared between threads by reference.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use engine_api::{
    Checkpoint, Engine, Error, Key, Pace, Reader, Repaired, Result, Stats, Value, Warmed, WriteTxn, scrub_by_scan,
};

use crate::format::manifest::Manifest;
use crate::format::secret::{Seed, WalKey};
use crate::read::read_only::ReadOnlyStorage;
use crate::read::reader::StrataReader;
use crate::read::segment;
use crate::read::warm::warm_up;
use crate::stats::stats;
use crate::storage::{DirStorage, Storage};
use crate::write::directory::refuse_files_without_manifest;
use crate::write::recover::recover;
use crate::write::replay::Accept;
use crate::write::shared::Shared;
use crate::write::txn::StrataTxn;
use crate::write::{bulk, flush, lost, merge, repair};
use crate::{Sizes, StrataOptions};

/// An open strata store. Its threads end when it is closed or dropped.
pub struct StrataEngine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
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

    /// Repairs the store in `dir` as far as possible. Nobody may have it open.
    ///
    /// # Errors
    /// `FixInput`: the directory has no file of a store, files of several stores or of another version, or a renamed
    /// WAL file; I/O errors of reading and writing.
    pub fn repair(dir: &Path) -> Result<Repaired> {
        repair::repair(&(Arc::new(DirStorage::existing(dir)) as Arc<dyn Storage>))
    }

    /// Adds a line to the record of losses of the store in `dir` (FORMAT.md, "Lost"). Nobody may have the store open.
    ///
    /// # Errors
    /// I/O errors of reading and writing the record.
    pub fn remember_lost(dir: &Path, lost: &str) -> Result<()> {
        lost::add(&DirStorage::existing(dir), &[lost.to_owned()])
    }

    /// Returns the losses that repairs of the store in `dir` have recorded, a line each. The store may be open.
    ///
    /// # Errors
    /// I/O errors of reading the record.
    pub fn lost(dir: &Path) -> Result<Vec<String>> {
        lost::read(&DirStorage::existing(dir))
    }

    /// Repairs the store on any storage, as [`StrataEngine::repair`] does.
    ///
    /// # Errors
    /// As [`StrataEngine::repair`].
    pub fn repair_on(storage: &Arc<dyn Storage>) -> Result<Repaired> {
        repair::repair(storage)
    }

    /// Opens the store in `dir` for reading only. Nothing is written to the directory: files that recovery makes stay
    /// in memory, nothing merges, and commits of a transaction are lost.
    ///
    /// # Errors
    /// As [`StrataEngine::open`].
    pub fn open_read_only(dir: &Path, options: &StrataOptions) -> Result<Self> {
        let shared = Self::recovered(Arc::new(ReadOnlyStorage::new(dir)), options, Sizes::of(options), &|_| Ok(()))?;
        shared.memory.balance(0);
        // Nobody may wait for threads that were never started.
        shared.common.mailbox.lock().ended = true;
        Ok(Self { shared, threads: Vec::new() })
    }

    /// Reads every byte of every segment of the newest version and checks it.
    ///
    /// # Errors
    /// `DataDamaged` naming file and offset; I/O errors of reading.
    pub fn scrub(&self) -> Result<()> {
        let version = Arc::clone(&self.shared.common.newest.load().version);
        version.segments().try_for_each(|segment| segment::scrub(segment))
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
                let (seed, wal_key) = (Seed::random(options.prefix_bytes)?, WalKey::random()?);
                let manifest = Manifest { seed, wal_key, next_id: 1, runs: vec![Vec::new()], ..Manifest::default() };
                manifest.write(&*storage)?;
                manifest
            }
        };
        let lost = lost::read(&*storage)?.len() as u64;
        let recovered = recover(&storage, options, sizes, manifest, accept)?;
        Ok(Arc::new(Shared::new(storage, options, sizes, recovered, lost)))
    }

    fn stop(&mut self) {
        self.shared.common.mailbox.stop();
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
        Ok(Box::new(StrataReader::new(&self.shared.common.newest, &self.shared.memory.reads)))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Ok(Box::new(StrataTxn::new(&self.shared, self.shared.commits.writer()?)))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        Ok(self.shared.common.newest.load().checkpoint.clone())
    }

    fn stats(&self) -> Result<Stats> {
        stats(&self.shared)
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        engine_kit::copy_to_new(dir, || bulk::copy_store(&self.shared, dir))
    }

    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        bulk::load_sorted(&self.shared, pairs, checkpoint)
    }

    fn settle(&self) -> Result<()> {
        // A settled store is as small as possible, so the WAL starts over in an empty file.
        let batch = self.shared.commits.begin_anew(&mut *self.shared.commits.writer()?)?;
        // Commits continue during the flush and the merge; later merges take their records.
        self.shared.commits.wait_for_batch(batch)?;
        self.shared.common.remove_spares();
        merge::settle(&self.shared)
    }

    fn warm_up(&self, go_on: &mut dyn FnMut(Warmed) -> Pace) -> Result<()> {
        // Right after an opening `strata-merge` may not have made room for the pages yet.
        self.shared.memory.balance(0);
        warm_up(&self.shared.common.newest, &self.shared.memory.reads, go_on)
    }

    /// Checks every byte of every segment, including those that no scan reads: filters, directories, and records hidden
    /// by newer runs. Then scans the store, for the relations between segments.
    fn scrub(&mut self) -> Result<u64> {
        Self::scrub(self)?;
        scrub_by_scan(&mut *self.reader()?)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        let synced = self.shared.commits.close();
        self.stop();
        synced
    }
}
