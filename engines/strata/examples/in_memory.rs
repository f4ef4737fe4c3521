//! Loads a million pairs into a store and measures gets: `cargo run --release -p solkv-engine-strata --example in_memory`

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::time::Instant;

use engine_api::{Checkpoint, Durability, Engine, Result};
use solkv_engine_strata::{StrataEngine, StrataOptions};

const PAIRS: u64 = 1_000_000;

fn key(n: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (lane, bytes) in key.chunks_exact_mut(8).enumerate() {
        let word = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * lane as u64 + 1);
        bytes.copy_from_slice(&(word ^ (word >> 29)).to_be_bytes());
    }
    key
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join("strata-example");
    std::fs::remove_dir_all(&dir).ok();
    let engine = StrataEngine::open(&dir, &StrataOptions { memory_bytes: 1 << 30, ..Default::default() })?;
    let start = Instant::now();
    for batch in 0..PAIRS / 10_000 {
        let mut txn = engine.begin()?;
        for n in batch * 10_000..(batch + 1) * 10_000 {
            txn.put(&key(n), &[n as u8; 32])?;
        }
        let checkpoint = Checkpoint { seq: (batch + 1) * 10_000, ..Checkpoint::default() };
        txn.commit(&checkpoint, Durability::Buffered)?;
    }
    engine.settle()?;
    println!("load: {:.0} pairs/s", PAIRS as f64 / start.elapsed().as_secs_f64());
    let mut reader = engine.reader()?;
    for (name, offset) in [("present, first time", 0), ("present", 0), ("absent", PAIRS)] {
        let start = Instant::now();
        let found = (0..PAIRS).filter(|n| matches!(reader.get(&key(offset + n)), Ok(Some(_)))).count();
        println!("{name}: {found} found, {:.0} ns a get", start.elapsed().as_nanos() as f64 / PAIRS as f64);
    }
    drop(reader);
    Box::new(engine).close()?;
    std::fs::remove_dir_all(&dir).ok();
    Ok(())
}
