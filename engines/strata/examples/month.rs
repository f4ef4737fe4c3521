//! Measures a month of mainnet's churn, day by day, as fast as the store takes it:
//! `cargo run --release -p solkv-engine-strata --example month -- --dir DIR`.
//!
//! Each second of the month has 85 creations that outlive their transaction and 75 closes of the oldest account, in batches
//! of 1000 changes, and 17 lookups of popular accounts: one in 1000 of the updates that change nothing. Keys are uniform, so
//! every change falls anywhere. A second thread gets a present and an absent key by turns. Prints a line for each day; the
//! figures of the last day should be those of the first. In the end it counts all pairs and looks up some of them. A month
//! that was stopped goes on where it was: the checkpoint has the number of changes.

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use engine_api::{Checkpoint, Durability, Engine, Key, PAIR_BYTES, Reader, Result};
use engine_kit::Rng;
use solkv_engine_strata::{StrataEngine, StrataOptions};

/// Number of changes in a commit.
const BATCH: u64 = 1000;
/// Creations and changes a second.
const CREATIONS: u64 = 85;
const CHANGES: u64 = 160;
/// Number of looked up keys beside each commit.
const LOOKUPS: usize = 106;
const DAY_CHANGES: u64 = 86_400 * CHANGES / BATCH * BATCH;
/// Number of commits between two reads of the statistics.
const LOOK_EVERY: u64 = 200;
/// Number of pairs in a call of `load_sorted`.
const CHUNK: usize = 4 << 20;
/// Pause between two gets of the reader.
const PAUSE: Duration = Duration::from_micros(500);
/// Number of pairs looked up in the end.
const CHECKED: u64 = 200_000;

/// Measures a month of mainnet's churn.
#[derive(Parser)]
struct Args {
    /// Number of pairs with which the month begins.
    #[arg(long, default_value_t = 100_000_000)]
    pairs: u64,
    #[arg(long, default_value_t = 30)]
    days: u64,
    #[arg(long, default_value_t = 2048)]
    memory_mib: u64,
    /// Directory of the store, which stays.
    #[arg(long)]
    dir: PathBuf,
}

fn key(n: u64) -> Key {
    let mut key = [0; 32];
    for (lane, bytes) in key.chunks_exact_mut(8).enumerate() {
        let mut word = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * lane as u64 + 1);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.copy_from_slice(&(word ^ (word >> 31)).to_be_bytes());
    }
    key
}

fn value(n: u64) -> [u8; 32] {
    key(!n)
}

/// Number of creations among the first `changes`.
fn created(changes: u64) -> u64 {
    changes * CREATIONS / CHANGES
}

/// Numbers of the oldest pair and of the next one after so many changes.
fn live(pairs: u64, changes: u64) -> (u64, u64) {
    (changes - created(changes), pairs + created(changes))
}

fn checkpoint(seq: u64) -> Checkpoint {
    Checkpoint { seq, ..Checkpoint::default() }
}

fn load(engine: &StrataEngine, pairs: u64) -> Result<()> {
    let mut all: Vec<(Key, u64)> = (0..pairs).map(|n| (key(n), n)).collect();
    all.sort_unstable();
    for chunk in all.chunks(CHUNK) {
        let chunk: Vec<_> = chunk.iter().map(|(key, n)| (*key, value(*n))).collect();
        engine.load_sorted(&chunk, &checkpoint(0))?;
    }
    engine.settle()?;
    engine.begin()?.commit(&checkpoint(1), Durability::Synced)
}

/// Durations in microseconds: p50 and p99.
fn percentiles(times: &mut Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or_default();
    let shown = format!("{:.1},{:.0}", at(0.5).as_nanos() as f64 / 1e3, at(0.99).as_nanos() as f64 / 1e3);
    times.clear();
    shown
}

/// Gets a present and an absent key by turns until the number of changes is `u64::MAX`. Passes on the durations of each day.
fn read(engine: &StrataEngine, pairs: u64, done: &AtomicU64, print: &dyn Fn(u64, String)) -> Result<()> {
    let (mut reader, mut rng) = (engine.reader()?, Rng::new(7));
    let (mut present, mut absent, mut day) = (Vec::new(), Vec::new(), None);
    loop {
        let changes = done.load(Ordering::Acquire);
        if changes == u64::MAX {
            return Ok(());
        }
        let now = changes / DAY_CHANGES;
        if day.is_some_and(|day| day != now) {
            let of_day = format!("present_us={} absent_us={}", percentiles(&mut present), percentiles(&mut absent));
            print(now, of_day);
        }
        day = Some(now);
        reader.refresh()?;
        let (oldest, next) = live(pairs, changes);
        // So far from the oldest that the writer does not close it meanwhile.
        let n = oldest + (next - oldest) / 100 + rng.below((next - oldest) / 100 * 99);
        let start = Instant::now();
        let found = reader.get(&key(n))?;
        present.push(start.elapsed());
        assert_eq!(found, Some(value(n)), "changes={changes} n={n}");
        let start = Instant::now();
        let found = reader.get(&key(rng.next() >> 2 | 1 << 62))?;
        absent.push(start.elapsed());
        assert!(found.is_none());
        std::thread::sleep(PAUSE);
    }
}

/// Looks up popular keys, as a service does for updates that change nothing.
fn look_up(reader: &mut dyn Reader, rng: &mut Rng, (oldest, next): (u64, u64)) -> Result<()> {
    // Half of the lookups fall on one key in 256.
    let popular = |rng: &mut Rng| {
        next - 1 - ((next - oldest) as f64 * (rng.below(1 << 32) as f64 / 2f64.powi(32)).powi(8)) as u64
    };
    let keys: Vec<Key> = (0..LOOKUPS).map(|_| key(popular(rng).max(oldest))).collect();
    let mut values = [None; LOOKUPS];
    reader.refresh()?;
    reader.get_many(&keys, &mut values)?;
    assert!(values.iter().all(Option::is_some));
    Ok(())
}

fn write(engine: &StrataEngine, args: &Args, first: u64, done: &AtomicU64, print: &dyn Fn(u64, String)) -> Result<()> {
    let (mut reader, mut rng) = (engine.reader()?, Rng::new(11));
    let (mut commits, mut most, mut started) = (Vec::new(), (0, 0), Instant::now());
    let written = || -> Result<u64> {
        let details = engine.stats()?.details;
        let parts = details.iter().filter(|(name, _)| ["wal_written_bytes", "segment_written_bytes"].contains(name));
        Ok(parts.map(|(_, bytes)| bytes).sum())
    };
    let mut before = written()?;
    let mut changes = first;
    while changes < args.days * DAY_CHANGES {
        let start = Instant::now();
        let mut txn = engine.begin()?;
        for at in changes..changes + BATCH {
            let (oldest, next) = live(args.pairs, at);
            match created(at + 1) > created(at) {
                true => txn.put(&key(next), &value(next))?,
                false => txn.delete(&key(oldest))?,
            }
        }
        changes += BATCH;
        txn.commit(&checkpoint(1 + changes), Durability::Buffered)?;
        commits.push(start.elapsed());
        done.store(changes, Ordering::Release);
        let (oldest, next) = live(args.pairs, changes);
        look_up(&mut *reader, &mut rng, (oldest, next))?;
        if (changes / BATCH).is_multiple_of(LOOK_EVERY) {
            let stats = engine.stats()?;
            let runs = stats.details.iter().find(|(name, _)| *name == "delta_runs").map_or(0, |(_, runs)| *runs);
            most = (most.0.max(runs), most.1.max(stats.disk_bytes * 10 / (next - oldest)));
        }
        if changes.is_multiple_of(DAY_CHANGES) {
            let (took, bytes) = (started.elapsed().as_secs_f64(), written()?);
            let amplification = (bytes - before) as f64 / (DAY_CHANGES * PAIR_BYTES) as f64;
            let of_day = format!(
                "pairs={} changes_per_s={:.0} runs_most={} disk_bytes_a_pair_most={}.{} amplification={amplification:.2} \
                 commit_us={}",
                next - oldest,
                DAY_CHANGES as f64 / took,
                most.0,
                most.1 / 10,
                most.1 % 10,
                percentiles(&mut commits)
            );
            print(changes / DAY_CHANGES, of_day);
            (most, before, started) = ((0, 0), bytes, Instant::now());
        }
    }
    Ok(())
}

/// Counts all pairs and looks some of them up.
fn check(engine: &StrataEngine, pairs: u64, changes: u64) -> Result<()> {
    let (oldest, next) = live(pairs, changes);
    let (mut reader, mut count, mut rng) = (engine.reader()?, 0, Rng::new(13));
    reader.scan(&mut |_, _| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    assert_eq!(count, next - oldest, "pairs");
    for _ in 0..CHECKED {
        let n = rng.below(next);
        assert_eq!(reader.get(&key(n))?, (n >= oldest).then(|| value(n)), "n={n}");
    }
    println!("checked: pairs={count} looked_up={CHECKED}");
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let options = StrataOptions { memory_bytes: args.memory_mib << 20, ..StrataOptions::default() };
    let engine = StrataEngine::open(&args.dir, &options)?;
    if engine.checkpoint()?.seq == 0 {
        let start = Instant::now();
        load(&engine, args.pairs)?;
        println!("loaded: pairs={} seconds={:.0}", args.pairs, start.elapsed().as_secs_f64());
    }
    let first = engine.checkpoint()?.seq - 1;
    let done = AtomicU64::new(first);
    let print = |day: u64, figures: String| println!("day={} {figures}", day.min(args.days));
    std::thread::scope(|scope| -> Result<()> {
        let reading = scope.spawn(|| read(&engine, args.pairs, &done, &print));
        let written = write(&engine, &args, first, &done, &print);
        done.store(u64::MAX, Ordering::Release);
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        written
    })?;
    engine.settle()?;
    check(&engine, args.pairs, engine.checkpoint()?.seq - 1)
}
