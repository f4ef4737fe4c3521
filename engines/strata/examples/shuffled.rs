//! Measures a load in shuffled order at full speed, and its effect on everything else:
//! `cargo run --release -p solkv-engine-strata --example shuffled -- [PAIRS] [MEMORY_MIB] [DIR]`, by default 10,000,000
//! pairs, 64 MiB and a directory in the system's directory for temporary files, which is removed in the end.
//!
//! Prints pairs a second, durations of single commits, the greatest number of delta runs and merge debt, memory and
//! disk, and write amplification. Meanwhile a second thread measures gets of absent keys: a few gets in a row, then a
//! pause, until the load ends. Then the store settles. The program uses nothing that an older strata lacks, so a copy
//! of this file measures an earlier commit as well.

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine_api::{Checkpoint, Durability, Engine, Result};
use solkv_engine_strata::{StrataEngine, StrataOptions};

/// Number of pairs in a commit.
const BATCH: u64 = 10_000;
/// Number of commits between two reads of the statistics.
const LOOK_EVERY: u64 = 5;
/// Number of consecutive gets between two pauses.
const GETS: u64 = 16;
/// Pause between two series of gets.
const PAUSE: Duration = Duration::from_millis(2);

fn key(n: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (lane, bytes) in key.chunks_exact_mut(8).enumerate() {
        let mut word = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * lane as u64 + 1);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.copy_from_slice(&(word ^ (word >> 31)).to_be_bytes());
    }
    key
}

/// Maximum of each figure during the load.
#[derive(Default)]
struct Most {
    runs: u64,
    debt_bytes: u64,
    disk_bytes: u64,
    owed_bytes: u64,
}

/// Returns a statistic of the engine; 0 if this engine has none of that name.
fn stat(engine: &StrataEngine, name: &str) -> Result<u64> {
    Ok(engine.stats()?.details.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value))
}

impl Most {
    fn look(&mut self, engine: &StrataEngine) -> Result<()> {
        let stats = engine.stats()?;
        let of = |name: &str| stats.details.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
        self.runs = self.runs.max(of("delta_runs"));
        self.debt_bytes = self.debt_bytes.max(of("merge_debt_bytes"));
        self.owed_bytes = self.owed_bytes.max(of("memory_owed_bytes"));
        self.disk_bytes = self.disk_bytes.max(stats.disk_bytes);
        Ok(())
    }
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or_default().as_nanos() as f64;
    let sum: Duration = times.iter().sum();
    let mean = sum.as_nanos() as f64 / times.len().max(1) as f64;
    let most = times.last().copied().unwrap_or_default().as_nanos() as f64;
    format!(
        "mean_us={:.2} p50_us={:.2} p99_us={:.2} p999_us={:.2} most_us={:.0} of={}",
        mean / 1e3,
        at(0.5) / 1e3,
        at(0.99) / 1e3,
        at(0.999) / 1e3,
        most / 1e3,
        times.len()
    )
}

/// Asks for keys that nobody puts, until the load has ended. Returns the duration of each get.
fn absent(engine: &StrataEngine, ended: &AtomicBool) -> Result<Vec<Duration>> {
    let (mut reader, mut times, mut n) = (engine.reader()?, Vec::new(), 1 << 40);
    while !ended.load(Ordering::Relaxed) {
        reader.refresh()?;
        for _ in 0..GETS {
            n += 1;
            let (key, start) = (key(n), Instant::now());
            let found = reader.get(&key)?;
            times.push(start.elapsed());
            assert!(found.is_none(), "nobody has put it");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

fn load(engine: &StrataEngine, pairs: u64, most: &mut Most) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for batch in 0..pairs / BATCH {
        let mut txn = engine.begin()?;
        for n in batch * BATCH..(batch + 1) * BATCH {
            txn.put(&key(n), &[batch as u8; 32])?;
        }
        let start = Instant::now();
        txn.commit(&Checkpoint { seq: batch + 1, ..Checkpoint::default() }, Durability::Buffered)?;
        times.push(start.elapsed());
        if batch % LOOK_EVERY == 0 {
            most.look(engine)?;
        }
    }
    Ok(times)
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
}

fn run(dir: &Path, pairs: u64, memory_bytes: u64) -> Result<()> {
    let engine = StrataEngine::open(dir, &StrataOptions { memory_bytes, ..StrataOptions::default() })?;
    let (mut most, ended) = (Most::default(), AtomicBool::new(false));
    let start = Instant::now();
    let (commits, gets) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| absent(&engine, &ended));
        let commits = load(&engine, pairs, &mut most);
        ended.store(true, Ordering::Relaxed);
        (commits, asking.join())
    });
    let took = start.elapsed();
    println!(
        "load pairs={pairs} seconds={:.1} pairs_per_s={:.0}",
        took.as_secs_f64(),
        pairs as f64 / took.as_secs_f64()
    );
    println!("commit {}", percentiles(commits?));
    if let Ok(gets) = gets {
        println!("absent_get {}", percentiles(gets?));
    }
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "most delta_runs={} merge_debt_mib={} disk_mib={} memory_owed_mib={} rss_mib={}",
        most.runs,
        mib(most.debt_bytes),
        mib(most.disk_bytes),
        mib(most.owed_bytes),
        peak_mib()
    );
    let figures = |names: &[&str]| -> Result<()> {
        let shown: Result<Vec<String>> =
            names.iter().map(|name| Ok(format!("{name}={}", stat(&engine, name)?))).collect();
        println!("{}", shown?.join(" "));
        Ok(())
    };
    figures(&["delta_runs", "delta_runs_most", "base_records", "merge_debt_most_percent", "flushes", "merges"])?;
    figures(&["write_amplification_percent", "write_stalls", "write_stall_us", "write_stall_longest_us"])?;
    figures(&["write_slowed", "write_slowed_us", "wal_rotations", "wal_rotation_us", "wal_rotation_longest_us"])?;
    let start = Instant::now();
    engine.settle()?;
    println!("settle seconds={:.1} rss_mib={}", start.elapsed().as_secs_f64(), peak_mib());
    figures(&["delta_runs", "base_records", "write_amplification_percent", "run_read_bytes"])
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (pairs, memory_mib) = (number(10_000_000), number(64));
    let dir = args.next().map(PathBuf::from);
    let kept = tempfile::tempdir().map_err(|e| engine_api::Error::io("cannot make a directory", e))?;
    run(dir.as_deref().unwrap_or(kept.path()), pairs, memory_mib << 20)
}
