//! Minimal programs, one an engine: its crate's own calls with the processor's clock around each.
//!
//! Owns: the calls, and the clock. Must not: use histograms, readers or transactions of ours; only the layout of the
//! files is known here, and strata's own crate, which has no other interface. Runs on the main thread.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use engine_api::{Checkpoint, Durability, Engine as _};
use lmdb::Transaction;
use redb::ReadableDatabase;
use serde::{Deserialize, Serialize};
use workload::{Pairs, Rng};

use crate::{BATCH, CACHE_BYTES, MANY, PAIRS, SECONDS};

type Key = [u8; 32];

/// Time to wait for an engine's threads before measuring, the same as in `loadgen`.
const REST: Duration = Duration::from_secs(4);

/// An operation whose time is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Op {
    ReadPositive,
    ReadNegative,
    GetMany,
    /// A put into an open batch.
    Put,
    /// The commit of a batch, with its flush.
    Commit,
}

/// Time of each operation in ns.
pub(crate) type Figures = BTreeMap<Op, f64>;

impl Op {
    /// Returns the name that `loadgen` records the operation by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadPositive => "read_positive",
            Self::ReadNegative => "read_negative",
            Self::GetMany => "get_many",
            Self::Put => "write",
            Self::Commit => "commit",
        }
    }
}

/// Measures the store in `data` by its crate's own calls.
pub(crate) fn measure(engine: &str, data: &Path, op: Op, turn: u64) -> Result<Figures> {
    match engine {
        "rocksdb" => rocks(data, op, turn),
        "lmdb" => lmdb(data, op, turn),
        "redb" => redb(data, op, turn),
        "strata" => strata(data, op, turn),
        other => bail!("no stand-alone program for engine={other}"),
    }
}

fn rocks(data: &Path, op: Op, turn: u64) -> Result<Figures> {
    let mut table = rocksdb::BlockBasedOptions::default();
    table.set_block_cache(&rocksdb::Cache::new_hyper_clock_cache(CACHE_BYTES, 0));
    let mut options = rocksdb::Options::default();
    options.set_compression_type(rocksdb::DBCompressionType::None);
    options.set_block_based_table_factory(&table);
    // Name the column family, because batches of gets need it. Without the options it would have RocksDB's own.
    let families = [(rocksdb::DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
    let db = rocksdb::DB::open_cf_with_opts(&options, data, families)?;
    let value_of = |bytes: rocksdb::DBPinnableSlice<'_>| -> Result<Key> { Ok(bytes.as_ref().try_into()?) };
    if op == Op::Put {
        touch(|key| db.get_pinned(key)?.map(value_of).transpose())?;
        let mut sync = rocksdb::WriteOptions::default();
        sync.set_sync(true);
        return write(turn, |pairs, clock| {
            let mut batch = rocksdb::WriteBatch::default();
            // A transaction reads its own writes, and this map is the least that it needs for that.
            let mut pending: HashMap<Key, Option<Key>, foldhash::fast::RandomState> =
                HashMap::with_capacity_and_hasher(BATCH, foldhash::fast::RandomState::default());
            let mut puts = 0;
            for (key, value) in pairs {
                puts += clock.time(|| {
                    batch.put(key, value);
                    pending.insert(key, Some(value));
                });
            }
            let mut done = Ok(());
            let commit = clock.time(|| {
                batch.put([0], [0; 80]);
                done = db.write_opt(std::mem::take(&mut batch), &sync);
                pending = HashMap::default();
            });
            done?;
            Ok((puts, commit))
        });
    }
    let snapshot = db.snapshot();
    let mut newest = rocksdb::ReadOptions::default();
    newest.set_snapshot(&snapshot);
    if op == Op::GetMany {
        let Some(family) = db.cf_handle(rocksdb::DEFAULT_COLUMN_FAMILY_NAME) else { bail!("no column family") };
        return read_many(turn, |keys, values| {
            let found = db.batched_multi_get_cf_opt(family, keys, false, &newest);
            for (value, found) in values.iter_mut().zip(found) {
                *value = found?.map(value_of).transpose()?;
            }
            Ok(())
        });
    }
    read(op, turn, |key| db.get_pinned_opt(key, &newest)?.map(value_of).transpose())
}

fn lmdb(data: &Path, op: Op, turn: u64) -> Result<Figures> {
    let env = lmdb::Environment::new()
        .set_flags(lmdb::EnvironmentFlags::NO_READAHEAD | lmdb::EnvironmentFlags::NO_TLS)
        .set_max_dbs(2)
        .set_map_size(1 << 36)
        .open(data)?;
    let (pairs_table, meta) = (env.open_db(Some("pairs"))?, env.open_db(Some("meta"))?);
    let get = |txn: &lmdb::RoTransaction<'_>, key: &Key| match txn.get(pairs_table, key) {
        Ok(value) => Ok(Some(value.try_into()?)),
        Err(lmdb::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    };
    if op == Op::Put {
        let txn = env.begin_ro_txn()?;
        touch(|key| get(&txn, key))?;
        txn.abort();
        return write(turn, |pairs, clock| {
            let mut txn = env.begin_rw_txn()?;
            let mut puts = 0;
            for (key, value) in pairs {
                let mut done = Ok(());
                puts += clock.time(|| done = txn.put(pairs_table, &key, &value, lmdb::WriteFlags::empty()));
                done?;
            }
            let mut done = Ok(());
            let commit = clock.time(|| {
                done = txn.put(meta, b"checkpoint", &[0; 80], lmdb::WriteFlags::empty()).and_then(|()| txn.commit());
            });
            done?;
            Ok((puts, commit))
        });
    }
    let txn = env.begin_ro_txn()?;
    if op == Op::GetMany {
        return read_many(turn, in_order(|key| get(&txn, key)));
    }
    read(op, turn, |key| get(&txn, key))
}

fn redb(data: &Path, op: Op, turn: u64) -> Result<Figures> {
    const TABLE: redb::TableDefinition<'static, &[u8; 32], &[u8; 32]> = redb::TableDefinition::new("pairs");
    const META: redb::TableDefinition<'static, &str, &[u8]> = redb::TableDefinition::new("meta");
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    let db = builder.open(data.join("pairs.redb"))?;
    if op == Op::Put {
        let table = db.begin_read()?.open_table(TABLE)?;
        touch(|key| Ok(table.get(key)?.map(|value| *value.value())))?;
        drop(table);
        return write(turn, |pairs, clock| {
            let mut txn = db.begin_write()?;
            txn.set_quick_repair(true);
            let mut table = txn.open_table(TABLE)?;
            let mut puts = 0;
            for (key, value) in pairs {
                let mut done = Ok(());
                puts += clock.time(|| done = table.insert(&key, &value).map(drop));
                done?;
            }
            let close = clock.time(|| drop(table));
            let finish = || {
                txn.open_table(META)?.insert("checkpoint", [0; 80].as_slice())?;
                txn.commit()?;
                anyhow::Ok(())
            };
            let mut done = Ok(());
            let commit = close + clock.time(|| done = finish());
            done?;
            Ok((puts, commit))
        });
    }
    let txn = db.begin_read()?;
    let table = txn.open_table(TABLE)?;
    let get = |key: &Key| Ok(table.get(key)?.map(|value| *value.value()));
    if op == Op::GetMany {
        return read_many(turn, in_order(get));
    }
    read(op, turn, get)
}

fn strata(data: &Path, op: Op, turn: u64) -> Result<Figures> {
    let options = engine_strata::StrataOptions { memory_bytes: CACHE_BYTES as u64, ..Default::default() };
    let engine = engine_strata::StrataEngine::open(data, &options)?;
    if op == Op::Put {
        let mut reader = engine.reader()?;
        touch(|key| Ok(reader.get(key)?))?;
        drop(reader);
        return write(turn, |pairs, clock| {
            let mut txn = engine.begin()?;
            let mut puts = 0;
            for (key, value) in pairs {
                let mut done = Ok(());
                puts += clock.time(|| done = txn.put(&key, &value));
                done?;
            }
            let checkpoint = engine.checkpoint()?;
            let checkpoint = Checkpoint { seq: checkpoint.seq + BATCH as u64, ..checkpoint };
            let mut done = Ok(());
            let commit = clock.time(|| done = txn.commit(&checkpoint, Durability::Synced));
            done?;
            Ok((puts, commit))
        });
    }
    // Reading brings pages into memory, and a reader sees the pages of its own version.
    engine.reader()?.scan(&mut |_, _| ControlFlow::Continue(()))?;
    std::thread::sleep(REST);
    let mut reader = engine.reader()?;
    if op == Op::GetMany {
        return read_many(turn, |keys, values| Ok(reader.get_many(keys, values)?));
    }
    read(op, turn, |key| Ok(reader.get(key)?))
}

/// Makes a batch of gets one by one, in the order of keys, which is the order of pages: a B-tree leaves nothing else to its
/// caller.
fn in_order(mut get: impl FnMut(&Key) -> Result<Option<Key>>) -> impl FnMut(&[Key], &mut [Option<Key>]) -> Result<()> {
    let mut order: Vec<usize> = Vec::with_capacity(MANY);
    move |keys, values| {
        order.clear();
        order.extend(0..keys.len());
        order.sort_unstable_by_key(|at| keys[*at]);
        order.iter().try_for_each(|at| get(&keys[*at]).map(|found| values[*at] = found))
    }
}

/// Gets as many pairs as `loadgen` does before it measures: a tenth. Then both sides have a cache of values of the same
/// size, which matters because absent keys cost more with a large cache.
fn touch(mut get: impl FnMut(&Key) -> Result<Option<Key>>) -> Result<()> {
    let (pairs, mut rng) = (Pairs::new(1), Rng::new(1));
    (0..PAIRS / 10).try_for_each(|_| {
        ensure!(get(&pairs.key(rng.below(PAIRS)))?.is_some(), "a loaded key is missing");
        Ok(())
    })
}

/// Gets, after a tenth of the pairs were read.
fn read(op: Op, turn: u64, mut get: impl FnMut(&Key) -> Result<Option<Key>>) -> Result<Figures> {
    let (pairs, mut rng, mut clock) = (Pairs::new(1), Rng::new(turn), Clock::start());
    touch(&mut get)?;
    let positive = op == Op::ReadPositive;
    let (mut ticks, mut count) = (0, 0);
    for measured in [false, true] {
        let until = until(measured);
        (ticks, count) = (0, 0);
        while Instant::now() < until {
            let index = rng.below(PAIRS);
            let key = if positive { pairs.key(index) } else { pairs.absent_key(rng.next_u64() >> 1) };
            let mut found = Ok(None);
            ticks += clock.time(|| found = get(&key));
            count += 1;
            ensure!(found?.is_some() == positive, "a wrong answer");
        }
    }
    Ok(BTreeMap::from([(op, clock.nanos(ticks) / f64::from(count))]))
}

/// Batches of gets, after a tenth of the pairs were read.
fn read_many(turn: u64, mut get: impl FnMut(&[Key], &mut [Option<Key>]) -> Result<()>) -> Result<Figures> {
    let (pairs, mut rng, mut clock) = (Pairs::new(1), Rng::new(turn), Clock::start());
    let (mut keys, mut values) = (vec![[0; 32]; MANY], vec![None; MANY]);
    for _ in 0..PAIRS / 10 / MANY as u64 {
        keys.iter_mut().for_each(|key| *key = pairs.key(rng.below(PAIRS)));
        get(&keys, &mut values)?;
    }
    let (mut ticks, mut count) = (0, 0);
    for measured in [false, true] {
        let until = until(measured);
        (ticks, count) = (0, 0);
        while Instant::now() < until {
            keys.iter_mut().for_each(|key| *key = pairs.key(rng.below(PAIRS)));
            let mut done = Ok(());
            ticks += clock.time(|| done = get(&keys, &mut values));
            done?;
            count += 1;
            ensure!(values.iter().all(Option::is_some), "a loaded key is missing");
        }
    }
    Ok(BTreeMap::from([(Op::GetMany, clock.nanos(ticks) / f64::from(count))]))
}

/// Commits of `BATCH` puts at random keys; `batch` gives the ticks of its puts and of its commit. Each pair is made
/// right before its put, as `loadgen` does, because a pair from a list would come from a slower cache.
fn write(
    turn: u64,
    mut batch: impl FnMut(&mut dyn Iterator<Item = (Key, Key)>, &mut Clock) -> Result<(u64, u64)>,
) -> Result<Figures> {
    // An engine that has just opened still flushes and compacts the puts of the last run.
    std::thread::sleep(REST);
    let (pairs, mut rng, mut clock) = (Pairs::new(1), Rng::new(turn), Clock::start());
    let (mut puts, mut commits) = (0, Vec::new());
    for measured in [false, true] {
        let until = until(measured);
        (puts, commits) = (0, Vec::new());
        while Instant::now() < until {
            let new = |_| {
                let index = rng.below(PAIRS);
                (pairs.key(index), pairs.value(index, turn as u32 + 1))
            };
            let (of_puts, of_commit) = batch(&mut (0..BATCH).map(new), &mut clock)?;
            puts += of_puts;
            commits.push(of_commit);
        }
    }
    ensure!(!commits.is_empty(), "no commit in {SECONDS} s");
    commits.sort_unstable();
    let middle = commits[commits.len() / 2];
    let per_put = clock.nanos(puts) / (commits.len() * BATCH) as f64;
    Ok(BTreeMap::from([(Op::Put, per_put), (Op::Commit, clock.nanos(middle))]))
}

fn until(measured: bool) -> Instant {
    Instant::now() + Duration::from_secs_f64(if measured { SECONDS } else { SECONDS / 10.0 })
}

/// The processor's clock where it can be read, else the system's: reading the system's takes longer than the fastest
/// puts.
struct Clock {
    started: Instant,
    first: u64,
}

impl Clock {
    fn start() -> Self {
        Self { started: Instant::now(), first: ticks() }
    }

    fn time(&mut self, call: impl FnOnce()) -> u64 {
        let before = ticks();
        call();
        ticks() - before
    }

    /// Converts by the time that has passed since the start on both clocks.
    fn nanos(&self, of: u64) -> f64 {
        let (passed, ticks) = (self.started.elapsed().as_nanos() as f64, ticks() - self.first);
        of as f64 * passed / ticks as f64
    }
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has both instructions; the counter runs at a constant rate since 2008. The fence has
    // earlier loads end first, as in the system's clock: the value's own load would be left out of a get otherwise.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
