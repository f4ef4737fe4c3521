//! Measures one setting of redb in one turn: commits, loads, or an opening after a kill. Prints the figures.
//!
//! Owns: the calls that are measured and when the clock runs. Must not: write to the given store, but only to a copy.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Parser, Subcommand};
use redb::{
    Builder, Database, Durability, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    TableDefinition, WriteTransaction,
};
use solkv_engine_trials::{
    Bytes32, Random, Sample, ascending_key, copy_store, drop_cache, empty_dir, median, print_figure, time_gets, timed,
    warm_cache, written_bytes,
};

const FILE: &str = "pairs.redb";
/// The engine's table of pairs.
const PAIRS: TableDefinition<'static, &'static Bytes32, &'static Bytes32> = TableDefinition::new("pairs");

/// Measures one setting of redb once.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Synced commits of random puts into a copy of a store.
    Commit(Commit),
    /// Gets of absent and present keys from a copy of a store, one after the other.
    Get(Get),
    /// How long a copy of a store takes to open, without the file in the page cache, after a writer was killed.
    Open(Commit),
    /// A load of sorted pairs into a new store.
    Append(Load),
    /// A load of pairs in random order into a new store.
    Shuffled(Load),
    /// Commits into the store in --work and ends without closing it. `open` runs this.
    #[command(hide = true)]
    Kill(Commit),
}

#[derive(Args)]
struct Commit {
    /// A store that `bootstrap --engine redb` made.
    #[arg(long)]
    store: PathBuf,
    /// Directory for the copy, on the device to be measured.
    #[arg(long)]
    work: PathBuf,
    #[arg(long, default_value_t = 60)]
    commits: u32,
    /// Number of puts in one commit.
    #[arg(long, default_value_t = 1000)]
    puts: usize,
    /// Sorts each commit's puts by key first, within the measured time.
    #[arg(long)]
    sorted: bool,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Args)]
struct Get {
    /// A store that `bootstrap --engine redb` made.
    #[arg(long)]
    store: PathBuf,
    /// Directory for the copy, on the device to be measured.
    #[arg(long)]
    work: PathBuf,
    /// Number of gets of each kind, present and absent.
    #[arg(long, default_value_t = 500_000)]
    gets: usize,
    /// Compacts the copy before the gets.
    #[arg(long)]
    compact: bool,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Args)]
struct Load {
    /// Directory for the store, on the device to be measured.
    #[arg(long)]
    work: PathBuf,
    #[arg(long, default_value_t = 2_000_000)]
    pairs: u64,
    /// Number of pairs in one transaction.
    #[arg(long, default_value_t = 10_000)]
    batch: u64,
    #[arg(long)]
    sorted: bool,
    /// Flushes one transaction in so many, and always the last one. A kill loses the transactions since the last flush.
    #[arg(long, default_value_t = 1)]
    durable_every: u32,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Args)]
struct Settings {
    /// Uses quick repair in one commit of so many: 1 is every commit, 0 is none.
    #[arg(long, default_value_t = 1)]
    quick_repair_every: u32,
    /// Flushes twice a commit also without quick repair.
    #[arg(long)]
    two_phase: bool,
    /// Size of redb's cache in MiB.
    #[arg(long, default_value_t = 1024)]
    cache_mib: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Settings {
    fn builder(&self) -> Builder {
        let mut builder = Database::builder();
        builder.set_cache_size(self.cache_mib << 20);
        builder
    }

    /// Begins the transaction of commit `number`, counted from 1.
    fn begin(&self, db: &Database, number: u32) -> Result<WriteTransaction> {
        let mut txn = db.begin_write()?;
        txn.set_two_phase_commit(self.two_phase);
        txn.set_quick_repair(self.quick_repair_every > 0 && number.is_multiple_of(self.quick_repair_every));
        Ok(txn)
    }
}

fn main() -> Result<()> {
    match Cli::parse().what {
        What::Commit(args) => commit(&args),
        What::Get(args) => get(&args),
        What::Open(args) => open(&args),
        What::Append(args) => load(&args, true),
        What::Shuffled(args) => load(&args, false),
        What::Kill(args) => kill(&args),
    }
}

fn file(store: &Path) -> PathBuf {
    store.join("data").join(FILE)
}

fn put_all(txn: &WriteTransaction, keys: &[Bytes32]) -> Result<()> {
    let mut pairs = txn.open_table(PAIRS)?;
    for key in keys {
        pairs.insert(key, key)?;
    }
    Ok(())
}

/// Appends as the engine's sorted load does.
fn append_all(txn: &WriteTransaction, keys: &[Bytes32]) -> Result<()> {
    let mut pairs = txn.open_table(PAIRS)?;
    let mut cursor = pairs.upper_bound_mut(std::ops::Bound::<&Bytes32>::Unbounded)?;
    for key in keys {
        cursor.insert_before(key, key)?;
    }
    cursor.close()?;
    Ok(())
}

fn commit(args: &Commit) -> Result<()> {
    ensure!(args.commits > 0 && args.puts > 0, "commits and puts have to be one or more");
    copy_store(&file(&args.store), &args.work)?;
    let copy = args.work.join(FILE);
    warm_cache(&copy)?;
    let db = args.settings.builder().open(&copy)?;
    let mut random = Random::new(args.settings.seed);
    let (mut puts_ms, mut commits_ms, mut all_ms) = (Vec::new(), Vec::new(), Vec::new());
    // A tenth more commits come first and are not measured. They fill redb's cache, and free pages that later commits
    // use.
    let unmeasured = args.commits / 10 + 2;
    let mut written = 0.0;
    for number in 1..=unmeasured + args.commits {
        if number == unmeasured + 1 {
            (puts_ms, commits_ms, all_ms) = (Vec::new(), Vec::new(), Vec::new());
            written = written_bytes()?;
        }
        let mut keys = random.keys(args.puts, false);
        let begun = Instant::now();
        if args.sorted {
            keys.sort_unstable();
        }
        let txn = args.settings.begin(&db, number)?;
        put_all(&txn, &keys)?;
        let put = begun.elapsed();
        txn.commit()?;
        let all = begun.elapsed();
        puts_ms.push(put.as_secs_f64() * 1e3);
        commits_ms.push((all - put).as_secs_f64() * 1e3);
        all_ms.push(all.as_secs_f64() * 1e3);
    }
    let written = written_bytes()? - written;
    // If only every Nth commit is special, the median shows one of the others. Only the mean shows the cost of the
    // special ones.
    print_figure("batch_mean_ms", all_ms.iter().sum::<f64>() / f64::from(args.commits));
    print_figure("batch_ms", median(&mut all_ms));
    print_figure("batch_puts_ms", median(&mut puts_ms));
    print_figure("batch_commit_ms", median(&mut commits_ms));
    print_figure("batch_written_kib", written / 1024.0 / f64::from(args.commits));
    Ok(())
}

/// Gets from a copy that redb's cache holds.
fn get(args: &Get) -> Result<()> {
    copy_store(&file(&args.store), &args.work)?;
    let copy = args.work.join(FILE);
    let mut db = args.settings.builder().open(&copy)?;
    if args.compact {
        let (_, took) = timed(|| Ok(db.compact()?))?;
        print_figure("compact_s", took.as_secs_f64());
    }
    let txn = db.begin_read()?;
    let pairs = txn.open_table(PAIRS)?;
    print_figure("bytes_a_pair", copy.metadata()?.len() as f64 / pairs.len()? as f64);
    let mut random = Random::new(args.settings.seed);
    let mut sample = Sample::new(args.gets);
    for pair in pairs.iter()? {
        sample.add(*pair?.0.value(), &mut random);
    }
    let present = sample.shuffled(&mut random)?;
    let absent = random.keys(args.gets, false);
    let find = |key: &Bytes32| Ok(pairs.get(key)?.is_some_and(|value| black_box(value.value()).len() == 32));
    // Once before the clock runs, so that redb's cache has the pages.
    time_gets(&present, true, find)?;
    print_figure("present_ns", time_gets(&present, true, find)?);
    print_figure("absent_ns", time_gets(&absent, false, find)?);
    Ok(())
}

/// Makes a child commit into a copy of the store and end without closing it. Then measures how long the copy takes to
/// open.
fn open(args: &Commit) -> Result<()> {
    copy_store(&file(&args.store), &args.work)?;
    let mut child = Command::new(std::env::current_exe()?);
    child.args(std::env::args_os().skip(1).map(|arg| if arg == "open" { "kill".into() } else { arg }));
    ensure!(child.status()?.code() == Some(KILLED), "the writer did not end as it should");
    let copy = args.work.join(FILE);
    let gib = copy.metadata()?.len() as f64 / f64::from(1 << 30);
    drop_cache(&copy)?;
    let (db, took) = timed(|| Ok(args.settings.builder().open(&copy)?))?;
    db.begin_read()?.open_table(PAIRS)?;
    print_figure("open_s", took.as_secs_f64());
    print_figure("open_s_a_gib", took.as_secs_f64() / gib);
    Ok(())
}

/// The exit code of a writer that ends without closing its store.
const KILLED: i32 = 9;

fn kill(args: &Commit) -> Result<()> {
    let db = args.settings.builder().open(args.work.join(FILE)).context("cannot open the copy")?;
    let mut random = Random::new(args.settings.seed);
    for number in 1..=args.commits {
        let txn = args.settings.begin(&db, number)?;
        put_all(&txn, &random.keys(args.puts, args.sorted))?;
        txn.commit()?;
    }
    // This ends the process as a kill does: nothing is dropped, so redb does not record its allocator's state.
    // SAFETY: ends the process and touches no memory of it.
    unsafe { libc::_exit(KILLED) }
}

/// A load, until everything is flushed and closed.
fn load(args: &Load, ascending: bool) -> Result<()> {
    ensure!(args.pairs > 0 && args.batch > 0 && args.durable_every > 0, "pairs, batch and durable_every: one or more");
    empty_dir(&args.work)?;
    let db = args.settings.builder().create(args.work.join(FILE))?;
    let mut random = Random::new(args.settings.seed);
    let begun = Instant::now();
    let (mut at, mut number) = (0, 0);
    while at < args.pairs {
        number += 1;
        let count = args.batch.min(args.pairs - at);
        let mut txn = args.settings.begin(&db, number)?;
        let last = at + count == args.pairs;
        if !last && !number.is_multiple_of(args.durable_every) {
            txn.set_durability(Durability::None)?;
        }
        if ascending {
            let keys: Vec<_> = (at..at + count).map(|at| ascending_key(&mut random, at, args.pairs)).collect();
            append_all(&txn, &keys)?;
        } else {
            put_all(&txn, &random.keys(count as usize, args.sorted))?;
        }
        txn.commit()?;
        at += count;
    }
    drop(db);
    let bytes = args.work.join(FILE).metadata()?.len();
    print_figure("load_pairs_per_s", args.pairs as f64 / begun.elapsed().as_secs_f64());
    print_figure("load_bytes_a_pair", bytes as f64 / args.pairs as f64);
    print_figure("load_written_mib", written_bytes()? / 1024.0 / 1024.0);
    Ok(())
}
