//! Measures one setting of LMDB in one turn: gets, commits, loads or scans. Prints the figures.
//!
//! Owns: the calls that are measured and when the clock runs. Must not: write to the given store, but only to a copy.

mod ffi;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use solkv_engine_trials::{
    Bytes32, Random, Sample, ascending_key, copy_store, drop_cache, empty_dir, median, print_figure, time_gets, timed,
    warm_cache, written_bytes,
};

use ffi::{Env, How};

const FILE: &str = "data.mdb";
/// Bytes of the map for each pair of a load. In random order a pair takes up to 132 bytes, and the rest is for pages
/// that are not reusable yet.
const MAP_BYTES_A_PAIR: u64 = 400;
const MAP_BYTES_MIN: u64 = 1 << 30;

/// Measures one setting of LMDB once.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Says which LMDB is linked.
    Version,
    /// Gets of absent and present keys, one after the other.
    Get(Get),
    /// Synced commits of random puts into a copy of a store.
    Commit(Commit),
    /// A load of sorted pairs into a new store.
    Append(Load),
    /// A load of pairs in random order into a new store.
    Shuffled(Load),
}

#[derive(Args)]
struct Get {
    /// A store that `bootstrap --engine lmdb` made.
    #[arg(long)]
    store: PathBuf,
    /// Number of gets of each kind, present and absent.
    #[arg(long, default_value_t = 500_000)]
    gets: usize,
    /// Gives LMDB a comparison that is made for keys of 32 bytes.
    #[arg(long)]
    words: bool,
    /// Measures a copy whose pairs are duplicates of the first two bytes of their keys.
    #[arg(long, conflicts_with_all = ["cold", "words"])]
    dups: Option<PathBuf>,
    /// Begins without the file's pages in the page cache, and scans the store at the end of the turn as well.
    #[arg(long)]
    cold: bool,
    /// Flag of the environment; repeat the option for several flags.
    #[arg(long = "flag")]
    flags: Vec<Flag>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct Commit {
    /// A store that `bootstrap --engine lmdb` made.
    #[arg(long)]
    store: PathBuf,
    /// Directory for the copy, on the device to be measured.
    #[arg(long)]
    work: PathBuf,
    #[arg(long, default_value_t = 60)]
    commits: usize,
    /// Number of puts in one commit.
    #[arg(long, default_value_t = 1000)]
    puts: usize,
    /// Sorts each commit's puts by key first, within the measured time.
    #[arg(long)]
    sorted: bool,
    #[arg(long, value_enum, default_value = "put")]
    how: How,
    #[arg(long = "flag")]
    flags: Vec<Flag>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
    #[arg(long, value_enum, default_value = "put")]
    how: How,
    #[arg(long = "flag")]
    flags: Vec<Flag>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A flag of the environment, as lmdb.h has it.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
enum Flag {
    NoSync,
    NoMetaSync,
    WriteMap,
    MapAsync,
    NoMemInit,
    /// Leaves readahead on. Without this flag the program sets MDB_NORDAHEAD.
    Readahead,
}

fn main() -> Result<()> {
    match Cli::parse().what {
        What::Version => println!("LMDB {}", ffi::version()),
        What::Get(args) => get(&args)?,
        What::Commit(args) => commit(&args)?,
        What::Append(args) => load(&args, How::Append)?,
        What::Shuffled(args) => load(&args, args.how)?,
    }
    Ok(())
}

/// The environment's flags: those that the engine always sets, and the ones asked for.
fn flags(asked: &[Flag]) -> u32 {
    let readahead = if asked.contains(&Flag::Readahead) { 0 } else { ffi::NORDAHEAD };
    asked.iter().fold(ffi::NOTLS | readahead, |flags, flag| {
        flags
            | match flag {
                Flag::NoSync => ffi::NOSYNC,
                Flag::NoMetaSync => ffi::NOMETASYNC,
                Flag::WriteMap => ffi::WRITEMAP,
                Flag::MapAsync => ffi::MAPASYNC,
                Flag::NoMemInit => ffi::NOMEMINIT,
                Flag::Readahead => 0,
            }
    })
}

/// The directory of the engine within a store.
fn data(store: &Path) -> PathBuf {
    store.join("data")
}

fn get(args: &Get) -> Result<()> {
    let file = data(&args.store).join(FILE);
    let map_bytes = file.metadata()?.len().next_multiple_of(1 << 20) as usize;
    let mut random = Random::new(args.seed);
    let absent = random.keys(args.gets, false);
    let open = |asked: &[Flag]| Env::open(&data(&args.store), flags(asked) | ffi::RDONLY | ffi::NOLOCK, map_bytes);
    let present = some_present(&open(&[Flag::Readahead])?, args.gets, &mut random)?;
    if args.cold {
        drop_cache(&file)?;
    } else {
        warm_cache(&file)?;
    }
    let source = open(&args.flags)?;
    let env = match &args.dups {
        Some(work) => as_dups(&source, work, map_bytes)?,
        None => source,
    };
    let txn = env.read()?;
    if args.words {
        txn.compare_words()?;
    }
    let find = |key: &Bytes32| if args.dups.is_some() { txn.get_dup(key) } else { txn.get(key) };
    if !args.cold {
        // Get each key once before the clock runs, because pages in the page cache have to be mapped as well.
        time_gets(&present, true, find)?;
        print_figure("bytes_a_pair", txn.bytes_a_pair()?);
    }
    print_figure("present_ns", time_gets(&present, true, find)?);
    print_figure("absent_ns", time_gets(&absent, false, find)?);
    if args.cold {
        drop(txn);
        drop(env);
        drop_cache(&file)?;
        let env = open(&args.flags)?;
        let (pairs, took) = timed(|| {
            let mut pairs = 0u64;
            env.read()?.scan(|_, _| pairs += 1)?;
            Ok(pairs)
        })?;
        print_figure("scan_pairs_per_s", pairs as f64 / took.as_secs_f64());
    }
    Ok(())
}

/// Returns random keys of the store, evenly from all of it, in random order.
fn some_present(env: &Env, count: usize, random: &mut Random) -> Result<Vec<Bytes32>> {
    let mut sample = Sample::new(count);
    env.read()?.scan(|key, _| {
        if let Ok(key) = Bytes32::try_from(key) {
            sample.add(key, random);
        }
    })?;
    sample.shuffled(random)
}

/// Copies the pairs of `source` into a table of duplicates of a fixed size in `work`, in key order.
fn as_dups(source: &Env, work: &Path, map_bytes: usize) -> Result<Env> {
    empty_dir(work)?;
    let env = Env::open_dups(work, flags(&[]) | ffi::NOSYNC, 2 * map_bytes)?;
    let txn = env.write()?;
    let mut failed = Ok(());
    source.read()?.scan(|key, value| {
        if let (Ok(()), Ok(key), Ok(value)) = (&failed, key.try_into(), value.try_into()) {
            failed = txn.append_dup(key, value);
        }
    })?;
    failed?;
    txn.commit()?;
    env.sync()?;
    Ok(env)
}

/// Synced commits into a copy whose pages are in memory.
fn commit(args: &Commit) -> Result<()> {
    ensure!(args.commits > 0 && args.puts > 0, "commits and puts have to be one or more");
    let source = data(&args.store).join(FILE);
    copy_store(&source, &args.work)?;
    let bytes = source.metadata()?.len();
    let map_bytes = (bytes * 2 + MAP_BYTES_MIN).next_multiple_of(1 << 20) as usize;
    warm_cache(&args.work.join(FILE))?;
    let env = Env::open(&args.work, flags(&args.flags), map_bytes)?;
    let mut random = Random::new(args.seed);
    let (mut puts_ms, mut commits_ms, mut all_ms) = (Vec::new(), Vec::new(), Vec::new());
    // A tenth more commits come first and are not measured. They free pages that later commits use.
    let unmeasured = args.commits / 10 + 2;
    let mut written = 0.0;
    for number in 0..unmeasured + args.commits {
        if number == unmeasured {
            (puts_ms, commits_ms, all_ms) = (Vec::new(), Vec::new(), Vec::new());
            written = written_bytes()?;
        }
        let mut keys = random.keys(args.puts, false);
        let begun = Instant::now();
        if args.sorted {
            keys.sort_unstable();
        }
        let mut txn = env.write()?;
        txn.put_all(&keys, args.how)?;
        let put = begun.elapsed();
        txn.commit()?;
        let all = begun.elapsed();
        puts_ms.push(put.as_secs_f64() * 1e3);
        commits_ms.push((all - put).as_secs_f64() * 1e3);
        all_ms.push(all.as_secs_f64() * 1e3);
    }
    let written = written_bytes()? - written;
    print_figure("batch_ms", median(&mut all_ms));
    print_figure("batch_puts_ms", median(&mut puts_ms));
    print_figure("batch_commit_ms", median(&mut commits_ms));
    if !args.flags.contains(&Flag::WriteMap) {
        print_figure("batch_written_kib", written / 1024.0 / args.commits as f64);
    }
    Ok(())
}

/// A load, until everything is flushed.
fn load(args: &Load, how: How) -> Result<()> {
    ensure!(args.pairs > 0 && args.batch > 0, "pairs and batch have to be one or more");
    empty_dir(&args.work)?;
    let map_bytes = (args.pairs * MAP_BYTES_A_PAIR + MAP_BYTES_MIN).next_multiple_of(1 << 20) as usize;
    let env = Env::open(&args.work, flags(&args.flags), map_bytes)?;
    let mut random = Random::new(args.seed);
    let begun = Instant::now();
    let mut at = 0;
    while at < args.pairs {
        let count = args.batch.min(args.pairs - at);
        let mut keys: Vec<Bytes32> = match how {
            How::Append => (at..at + count).map(|at| ascending_key(&mut random, at, args.pairs)).collect(),
            _ => random.keys(count as usize, false),
        };
        if args.sorted {
            keys.sort_unstable();
        }
        let mut txn = env.write()?;
        txn.put_all(&keys, how)?;
        txn.commit()?;
        at += count;
    }
    let loaded = begun.elapsed();
    env.sync()?;
    let all = begun.elapsed();
    print_figure("load_pairs_per_s", args.pairs as f64 / all.as_secs_f64());
    print_figure("load_flush_s", (all - loaded).as_secs_f64());
    if !args.flags.contains(&Flag::WriteMap) {
        print_figure("load_written_mib", written_bytes()? / 1024.0 / 1024.0);
    }
    Ok(())
}
