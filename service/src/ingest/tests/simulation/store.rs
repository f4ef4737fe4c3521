//! A real engine and a real feed log in a directory, and the ways in which a process can lose them.
//!
//! Owns: when a commit is interrupted. Must not: change an answer of the engine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine_api::{
    Checkpoint, Durability, Engine, Error, ErrorKind, Key, Reader, Result, Stats, Value, Visitor, WriteTxn,
};
use engine_latency::{Latency, Measured};
use engines::{EngineKind, EngineOptions, OpenMode};
use solana::{ChainCheckpoint, MapPhase};
use tempfile::TempDir;
use workload::Rng;

use super::chain::Chain;
use crate::feed::{Feed, FeedWriter};

/// A file system in memory, on Linux.
const MEMORY: &str = "/dev/shm";

/// Fault that the plan causes at one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process is killed after the feed's append and before the engine's commit.
    KillBefore,
    /// The process is killed after the engine's commit, before anybody hears of it.
    KillAfter,
    /// The process is killed at the first write into the transaction.
    KillInWrites,
    /// The disk is full at the commit, for this many attempts.
    FullAtCommit(u8),
    /// The disk is full at the first write of the transaction, for this many attempts.
    FullAtWrite(u8),
    /// Descriptors are lacking at the commit, for this many attempts.
    WantAtCommit(u8),
    /// Descriptors are lacking at a lookup, once, after this many lookups.
    WantAtRead(u8),
}

/// A number of commits that succeed, and the fault of the commit after them.
pub(super) type Plan = Option<(u32, Fault)>;

/// Directory of a store over all of its lives.
pub(super) struct Store {
    _temp: TempDir,
    dir: PathBuf,
    options: EngineOptions,
    durability: Durability,
    latency: Arc<Latency>,
    /// Whether a batch of lookups waits, as if for a device, so that threads help the ingest.
    waits: bool,
}

/// The opened store and feed of one life of the service.
pub(super) struct Opened {
    pub(super) engine: Arc<Measured>,
    pub(super) writer: FeedWriter,
    pub(super) feed: Arc<Feed>,
    pub(super) plan: Arc<Mutex<Plan>>,
}

impl Store {
    /// Creates a store at the chain's base, as a bootstrap leaves it. Without `known` it does not know the base's
    /// blockhash.
    pub(super) fn create(chain: &Chain, known: bool, durability: Durability, rng: &mut Rng) -> Self {
        let temp = if in_memory() { tempfile::tempdir_in(MEMORY) } else { tempfile::tempdir() };
        let temp = temp.expect("a directory for the store can be made");
        let options = EngineOptions::new(kind(rng));
        let dir = temp.path().join("store");
        let engine = engines::open(&dir, &options, OpenMode::Create).expect("a new store");
        let mut txn = engine.begin().expect("a transaction");
        for (key, value) in &chain.initial {
            txn.put(key, value).expect("a write");
        }
        let blockhash = if known { chain.base.blockhash } else { [0; 32] };
        let (seq, slot) = (chain.initial.len() as u64, Some(chain.base.slot));
        let checkpoint = ChainCheckpoint { seq, slot, blockhash, source: 7, phase: MapPhase::Ready };
        txn.commit(&checkpoint.write(), Durability::Synced).expect("a commit");
        engine.close().expect("closed");
        Self { _temp: temp, dir, options, durability, latency: Latency::new("simulation"), waits: false }
    }

    /// Directory of the engine, the feed's log, and the memory of ingest-apply.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Options with which the engine is opened.
    pub(super) fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Directory of the feed's log.
    pub(super) fn feed_dir(&self) -> PathBuf {
        self.dir.join("feed")
    }

    /// Makes batches of lookups wait as if for a device.
    pub(super) fn slow_down(&mut self) {
        self.waits = true;
    }

    pub(super) fn open(&self) -> Opened {
        let engine = engines::open(&self.dir, &self.options, OpenMode::Existing).expect("the store opens again");
        let plan = Arc::new(Mutex::new(None));
        let engine = Box::new(Mortal { engine, plan: Arc::clone(&plan), waits: self.waits });
        let engine = Arc::new(Measured::new(engine, Arc::clone(&self.latency), "ingest"));
        let checkpoint = ChainCheckpoint::read(&engine.checkpoint().expect("a checkpoint")).expect("a chain's");
        let (mut writer, feed) =
            FeedWriter::open(&self.feed_dir(), &checkpoint, self.durability, 1 << 20).expect("the feed opens again");
        // Segments have the minimum length, and all of them are kept.
        writer.keep(1 << 40);
        Opened { engine, writer, feed, plan }
    }
}

/// Whether the file system in memory has more space than engines keep free. A device would only make commits slower.
fn in_memory() -> bool {
    const ENOUGH_BYTES: u64 = 4 << 30;
    rustix::fs::statvfs(MEMORY).is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) >= ENOUGH_BYTES)
}

/// Picks an engine. The one that opens fastest is picked most often, and each one can come up.
fn kind(rng: &mut Rng) -> EngineKind {
    let kinds = engines::compiled();
    match EngineKind::Lmdb {
        quick if kinds.contains(&quick) && rng.chance(0.9) => quick,
        _ => kinds[rng.below(kinds.len() as u64) as usize],
    }
}

/// An engine whose commits follow a plan.
struct Mortal {
    engine: Box<dyn Engine>,
    plan: Arc<Mutex<Plan>>,
    waits: bool,
}

/// A reader whose lookups follow the plan, and whose batches of lookups wait where the engine's do.
struct MortalReader<'e> {
    reader: Box<dyn Reader + 'e>,
    engine: &'e Mortal,
}

impl MortalReader<'_> {
    fn before_read(&self) -> Result<()> {
        match self.engine.due() {
            Some(Fault::WantAtRead(0)) => {
                *self.engine.plan() = None;
                Err(want())
            }
            Some(Fault::WantAtRead(left)) => {
                *self.engine.plan() = Some((0, Fault::WantAtRead(left - 1)));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Reader for MortalReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        self.before_read()?;
        self.reader.get(key)
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        self.before_read()?;
        if self.engine.waits {
            std::thread::sleep(Duration::from_nanos(1));
        }
        self.reader.get_many(keys, values)
    }

    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
        self.reader.scan_from(first, visit)
    }

    fn checkpoint(&mut self) -> Result<Checkpoint> {
        self.reader.checkpoint()
    }

    fn refresh(&mut self) -> Result<()> {
        self.reader.refresh()
    }
}

/// Message of an error that the plan caused. It tells a planned death from a fault of the engine.
pub(super) const KILLED: &str = "killed by the plan";

fn killed() -> Error {
    Error::new(ErrorKind::Reopen, KILLED)
}

fn full() -> Error {
    Error::new(ErrorKind::FreeSpace, "full by the plan")
}

fn want() -> Error {
    Error::new(ErrorKind::Retry, "no descriptors by the plan")
}

impl Mortal {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().expect("nobody panics while holding it")
    }

    /// Returns the fault of the next commit, if any.
    fn due(&self) -> Option<Fault> {
        self.plan().as_ref().filter(|(commits, _)| *commits == 0).map(|(_, fault)| *fault)
    }
}

impl Engine for Mortal {
    fn label(&self) -> &'static str {
        self.engine.label()
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(MortalReader { reader: self.engine.reader()?, engine: self }))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Ok(Box::new(MortalTxn { txn: self.engine.begin()?, engine: self }))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.engine.checkpoint()
    }

    fn stats(&self) -> Result<Stats> {
        self.engine.stats()
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        self.engine.snapshot(dir)
    }

    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        self.engine.load_sorted(pairs, checkpoint)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.engine.close()
    }
}

struct MortalTxn<'e> {
    txn: Box<dyn WriteTxn + 'e>,
    engine: &'e Mortal,
}

impl MortalTxn<'_> {
    fn before_write(&self) -> Result<()> {
        match self.engine.due() {
            Some(Fault::KillInWrites) => Err(killed()),
            Some(Fault::FullAtWrite(left)) => {
                *self.engine.plan() = (left > 1).then(|| (0, Fault::FullAtWrite(left - 1)));
                Err(full())
            }
            _ => Ok(()),
        }
    }
}

impl WriteTxn for MortalTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        self.txn.get(key)
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.before_write()?;
        self.txn.put(key, value)
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.before_write()?;
        self.txn.delete(key)
    }

    fn commit(self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let Self { txn, engine } = *self;
        match engine.due() {
            Some(Fault::KillBefore) => return Err(killed()),
            Some(Fault::KillAfter) => {
                txn.commit(checkpoint, durability)?;
                return Err(killed());
            }
            Some(Fault::FullAtCommit(left)) => {
                *engine.plan() = (left > 1).then(|| (0, Fault::FullAtCommit(left - 1)));
                return Err(full());
            }
            Some(Fault::WantAtCommit(left)) => {
                *engine.plan() = (left > 1).then(|| (0, Fault::WantAtCommit(left - 1)));
                return Err(want());
            }
            Some(Fault::KillInWrites | Fault::FullAtWrite(_) | Fault::WantAtRead(_)) | None => {}
        }
        txn.commit(checkpoint, durability)?;
        if let Some((commits, _)) = engine.plan().as_mut() {
            *commits = commits.saturating_sub(1);
        }
        Ok(())
    }
}
