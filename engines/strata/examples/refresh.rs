//! Measures `refresh` of a serving reader during a load and merges into the base:
//! `cargo run --release -p solkv-engine-strata --example refresh -- [PAIRS]`, by default 2,000,000.
//!
//! Prints wall time and the CPU time of the calling thread, each with a row `nothing` for comparison: the same two
//! readings of the clock with no call between them. Interrupts and other threads cost time in both rows, refreshing in
//! one.

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine_api::{Checkpoint, Durability, Engine, Result};
use solkv_engine_strata::{StrataEngine, StrataOptions};

const BATCH: u64 = 5000;

fn key(n: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (lane, bytes) in key.chunks_exact_mut(8).enumerate() {
        let word = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * lane as u64 + 1);
        bytes.copy_from_slice(&(word ^ (word >> 29)).to_be_bytes());
    }
    key
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Puts every key once, in a pseudorandom order.
fn load(engine: &StrataEngine, pairs: u64, seq: u64) -> Result<()> {
    for batch in 0..pairs / BATCH {
        let mut txn = engine.begin()?;
        for n in batch * BATCH..(batch + 1) * BATCH {
            txn.put(&key(n), &[seq as u8; 32])?;
        }
        let checkpoint = Checkpoint { seq: seq * pairs + batch, ..Checkpoint::default() };
        txn.commit(&checkpoint, Durability::Buffered)?;
    }
    Ok(())
}

/// Durations of calls by the wall clock and on the CPU.
#[derive(Default)]
struct Times {
    wall: Vec<Duration>,
    cpu: Vec<Duration>,
}

impl Times {
    fn add(&mut self, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let (start, on_cpu) = (Instant::now(), cpu_time());
        call()?;
        self.cpu.push(cpu_time().saturating_sub(on_cpu));
        self.wall.push(start.elapsed());
        Ok(())
    }

    fn report(self, what: &str) {
        for (clock, mut times) in [("wall", self.wall), ("CPU", self.cpu)] {
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            let (p50, p99, p999, most) = (at(0.5), at(0.99), at(0.999), at(1.0));
            println!("{what} {clock}: count={} p50={p50:?} p99={p99:?} p99.9={p999:?} longest={most:?}", times.len());
        }
    }
}

fn main() -> Result<()> {
    let pairs = std::env::args().nth(1).and_then(|pairs| pairs.parse().ok()).unwrap_or(2_000_000);
    let dir = std::env::temp_dir().join("strata-refresh");
    std::fs::remove_dir_all(&dir).ok();
    let engine = StrataEngine::open(&dir, &StrataOptions { memory_bytes: 64 << 20, ..Default::default() })?;
    load(&engine, pairs, 0)?;
    engine.settle()?;
    let ended = AtomicBool::new(false);
    let (refresh, nothing) = std::thread::scope(|scope| -> Result<_> {
        let reader = scope.spawn(|| -> Result<_> {
            let mut reader = engine.reader()?;
            let (mut refresh, mut nothing) = (Times::default(), Times::default());
            while !ended.load(Ordering::Relaxed) {
                // As a lookup does: a few gets, then the newest state.
                for n in 0..4 {
                    reader.get(&key(refresh.wall.len() as u64 * 7 + n))?;
                }
                refresh.add(|| reader.refresh())?;
                nothing.add(|| Ok(()))?;
            }
            Ok((refresh, nothing))
        });
        // Every pair is written again: the base is merged during this, and once more by `settle`.
        let loaded = (1..3).try_for_each(|seq| load(&engine, pairs, seq).and_then(|()| engine.settle()));
        ended.store(true, Ordering::Relaxed);
        loaded?;
        reader.join().map_err(|_| engine_api::Error::new(engine_api::ErrorKind::Internal, "the reader panicked"))?
    })?;
    let figures = engine.stats()?.details.into_iter();
    let shown = ["merges", "flushes", "segments", "replaced_dropped"];
    figures.filter(|(name, _)| shown.contains(name)).for_each(|(name, value)| print!("{name}={value} "));
    println!("pairs={pairs}");
    refresh.report("refresh");
    nothing.report("nothing");
    Box::new(engine).close()?;
    std::fs::remove_dir_all(&dir).ok();
    Ok(())
}
