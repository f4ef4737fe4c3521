//! Measures requests to derived stores of a map at rest, without a service:
//! `cargo run --release -p solkv-derived --example asked -- --dir DIR --memory-mib 4096`.
//!
//! Draws pairs of the map, and asks for the keys of their values, ten at most, and for the value of their keys at the oldest slot
//! that is kept, beside gets of the same keys. Prints a JSON line: median and 99th percentile in ns, and the bytes that each read
//! from the device. A store that memory holds is read into it first; else drop its pages before.

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytesize::ByteSize;
use clap::Parser;
use engine_api::{Engine, Key, Pace, Reader, Result, Value};
use solkv_derived::history::{self, Period};
use solkv_derived::{Position, dir, values};

/// Number of keys in an answer.
const KEYS: usize = 10;

/// Measures requests to derived stores.
#[derive(Parser)]
struct Args {
    /// Directory of the map; nothing in it is changed.
    #[arg(long)]
    dir: PathBuf,
    /// Memory of each store's engine, in MiB.
    #[arg(long, default_value_t = 4096)]
    memory_mib: u64,
    /// Number of requests of each kind.
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// Leave out reading the stores into memory.
    #[arg(long)]
    cold: bool,
}

/// Bytes that this process has read from the device.
fn read_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok()).unwrap_or(0)
}

/// Times requests. Returns their figures as JSON.
fn time(name: &str, keys: &[(Key, Value)], ask: &mut dyn FnMut(&Key, &Value) -> Result<()>) -> Result<String> {
    let (before, mut ns) = (read_bytes(), Vec::with_capacity(keys.len()));
    for (key, value) in keys {
        let start = Instant::now();
        ask(key, value)?;
        ns.push(start.elapsed().as_nanos() as u64);
    }
    ns.sort_unstable();
    let at = |share: f64| ns[((ns.len() - 1) as f64 * share) as usize];
    let reads = (read_bytes() - before) as f64 / keys.len() as f64 / 4096.0;
    Ok(format!("\"{name}\": {{\"p50_ns\": {}, \"p99_ns\": {}, \"pages_read\": {reads:.3}}}", at(0.5), at(0.99)))
}

/// Draws pairs: the first one at or after a random key.
fn draw(reader: &mut dyn Reader, count: u64, seed: u64) -> Result<Vec<(Key, Value)>> {
    let mut drawn = Vec::new();
    for n in 0..count {
        let word = |lane: u64| (seed * count + n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(lane as u32 * 7);
        let mut from: Key = [0; 32];
        from.chunks_exact_mut(8).zip(1..).for_each(|(bytes, lane)| bytes.copy_from_slice(&word(lane).to_be_bytes()));
        reader.scan_from(&from, &mut |key, value| {
            drawn.push((*key, *value));
            ControlFlow::Break(())
        })?;
    }
    Ok(drawn)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let open = |place: &std::path::Path| -> Result<Box<dyn Engine>> {
        let engine = engines::open_read_only(place, Some(ByteSize::mib(args.memory_mib)))?;
        if !args.cold {
            engine.warm_up(&mut |_| Pace::On)?;
        }
        Ok(engine)
    };
    let map = open(&args.dir)?;
    // Drawn with a reader of their own, so that their pages are not in the memory of the others.
    let drawn = draw(&mut *engines::open_read_only(&args.dir, Some(ByteSize::mib(64)))?.reader()?, args.requests, 1)?;
    let mut reader = map.reader()?;
    let mut told = vec![time("get", &drawn, &mut |key, _| reader.get(key).map(drop))?];
    if dir(&args.dir, values::NAME).exists() {
        let store = open(&dir(&args.dir, values::NAME))?;
        let mut entries = store.reader()?;
        let secret = Position::read(&entries.checkpoint()?)?.secret;
        let mut ask = |_: &Key, value: &Value| values::page(&mut *entries, &secret, value, None, KEYS, None).map(drop);
        told.push(time("keys_of", &drawn, &mut ask)?);
    }
    if dir(&args.dir, history::NAME).exists() {
        let period = |(first_slot, place): (u64, PathBuf)| Ok(Arc::new(Period::new(first_slot, open(&place)?)?.0));
        let periods = history::periods(&args.dir)?.into_iter().map(period).collect::<Result<Vec<_>>>()?;
        let slot = periods.first().map_or(0, |period| period.first_slot);
        let mut ask = |key: &Key, _: &Value| {
            history::at(&periods, key, slot)?;
            reader.get(key).map(drop)
        };
        told.push(time("get_at", &drawn, &mut ask)?);
    }
    println!("{{{}}}", told.join(", "));
    Ok(())
}
