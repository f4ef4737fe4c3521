//! Measures gets while everything is in memory, and compares them with a miss of every cache:
//! `cargo run --release -p solkv-engine-strata --example gets -- --pairs 20000000`.
//!
//! The program loads sorted pairs and brings their pages into memory. Then it measures in turns, with 0, 1, 3 and 8
//! delta runs: a get of an absent and of a present key, `get_many` of 100 of either, and dependent loads from memory as
//! large as the first filter plane. Percentiles are of single calls, each less the time of two readings of the clock.
//! For `get_many` they are the call's time divided by its keys. Keys a second are measured over consecutive calls
//! without a clock between them; the median of the rounds is printed. The program uses only the engine's public
//! interface, so it runs on earlier commits as well.

#![allow(clippy::print_stdout, reason = "an example for developers")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use engine_api::{Checkpoint, Durability, Engine, Error, ErrorKind, Key, PAIR_BYTES, Reader, Result, Value};
use memmap2::{Advice, MmapMut};
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

/// Number of keys in a call of `get_many`.
const MANY: usize = 100;
/// Number of keys in one turn: few enough that the keys themselves stay in the processor's caches.
const TURN: usize = 20_000;
/// Number of pairs in a call of `load_sorted`.
const CHUNK: u64 = 1 << 20;
/// Number of records in each delta run, oldest first: runs of three sizes, so few of each size that none is merged.
const DELTAS: [u64; 8] = [1 << 18, 1 << 18, 1 << 18, 1 << 16, 1 << 16, 1 << 16, 1 << 14, 1 << 14];
const MEM_RECORDS: usize = 1 << 14;
const LINE_WORDS: usize = 8;
/// How long a figure must stay the same: more than the second after which strata divides its memory again.
const STEADY: Duration = Duration::from_millis(2500);

/// Measures the cost of gets while everything is in memory.
#[derive(Parser)]
struct Args {
    /// Pairs of the base: at least 4,000,000, or delta runs are merged into it.
    #[arg(long, default_value_t = 20_000_000)]
    pairs: u64,
    /// Numbers of delta runs, ascending, 8 at most.
    #[arg(long, value_delimiter = ',', default_value = "0,1,3,8")]
    runs: Vec<u64>,
    /// Number of turns of each kind of get.
    #[arg(long, default_value_t = 15)]
    rounds: u64,
    /// Only the rows whose names begin so, for a profile.
    #[arg(long, default_value = "")]
    only: String,
    /// Where the store is made: a directory that is removed first and afterwards.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Mixes the bits of a number, as splitmix64 does.
fn mix(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns key `n` of `pairs`: uniform within the range of its chunk, so that chunks can be sorted one by one.
fn key(n: u64, pairs: u64) -> Key {
    let (chunks, chunk) = (pairs.div_ceil(CHUNK), n % pairs / CHUNK);
    let place = (u128::from(chunk) << 64 | u128::from(mix(n))) / u128::from(chunks);
    let words = [place as u64, mix(n ^ 1 << 60), mix(n ^ 2 << 60), mix(n ^ 3 << 60)];
    let mut key = [0; 32];
    key.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
    key
}

/// Returns a key that is in no pair: loaded pairs have lower numbers, and pairs of the delta runs have numbers in
/// between.
fn absent(n: u64, pairs: u64) -> Key {
    key((1 << 50) + n % (1 << 50), pairs)
}

fn at(seq: u64) -> Checkpoint {
    Checkpoint { seq, ..Checkpoint::default() }
}

fn stat(engine: &dyn Engine, name: &str) -> Result<u64> {
    let stats = engine.stats()?;
    Ok(stats.details.iter().find(|(found, _)| *found == name).map_or(0, |(_, value)| *value))
}

fn load(engine: &StrataEngine, pairs: u64) -> Result<()> {
    let mut chunk: Vec<(Key, Value)> = Vec::new();
    for first in (0..pairs).step_by(CHUNK as usize) {
        chunk.clear();
        chunk.extend((first..pairs.min(first + CHUNK)).map(|n| (key(n, pairs), [n as u8; 32])));
        chunk.sort_unstable();
        engine.load_sorted(&chunk, &at(first + 1))?;
    }
    Ok(())
}

/// Adds a delta run of new keys.
fn add_run(engine: &StrataEngine, number: u64, records: u64, pairs: u64) -> Result<()> {
    let mut txn = engine.begin()?;
    for n in 0..records {
        txn.put(&key((number + 1) << 40 | n, pairs), &[1; 32])?;
    }
    txn.commit(&at(pairs + number), Durability::Buffered)?;
    // A load without pairs writes the memtable as a run and merges nothing.
    engine.load_sorted(&[], &at(pairs + number))
}

/// Waits until `value` has not changed for [`STEADY`], and returns it.
fn steady<T: PartialEq>(mut value: impl FnMut() -> Result<T>) -> Result<T> {
    let (mut before, mut since) = (value()?, Instant::now());
    while since.elapsed() < STEADY {
        std::thread::sleep(Duration::from_millis(100));
        let now = value()?;
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    Ok(before)
}

/// Waits until strata has made room for the pages, which it does up to a second after a load. Then reads them, and
/// waits until the kernel has made huge pages of them.
fn warm(engine: &StrataEngine, pairs: u64) -> Result<()> {
    let room_bytes = steady(|| stat(engine, "memory_page_bytes"))?;
    engine.reader()?.scan(&mut |_, _| std::ops::ControlFlow::Continue(()))?;
    let huge = steady(|| {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        Ok(text.lines().find(|line| line.starts_with("AnonHugePages:")).unwrap_or_default().to_owned())
    })?;
    let share = 100.0 * room_bytes as f64 / (pairs * PAIR_BYTES) as f64;
    println!("warm: pages_percent={share:.1} {}", huge.split_whitespace().collect::<Vec<_>>().join(" "));
    Ok(())
}

/// Cache lines linked into one ring in random order, so that each load depends on the one before.
struct Ring {
    map: MmapMut,
    at: usize,
}

impl Ring {
    fn new(bytes: usize) -> Result<Self> {
        let map = MmapMut::map_anon(bytes).map_err(|e| Error::io("no memory for the loads", e))?;
        // With huge pages, as strata maps its filters.
        map.advise(Advice::HugePage).ok();
        let mut ring = Self { map, at: 0 };
        let lines = bytes / 64;
        // Sattolo's shuffle makes one ring of all lines.
        let mut order: Vec<u32> = (0..lines as u32).collect();
        for last in (1..lines).rev() {
            order.swap(last, (mix(last as u64) % last as u64) as usize);
        }
        let words = ring.words();
        order.iter().enumerate().for_each(|(line, next)| words[line * LINE_WORDS] = u64::from(*next));
        Ok(ring)
    }

    fn words(&mut self) -> &mut [u64] {
        let (words, _) = self.map.as_chunks_mut::<8>();
        // SAFETY: a mapping begins at a page, and any eight bytes are a valid number.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }

    #[inline(always)]
    fn step(&mut self) {
        let at = self.at * LINE_WORDS;
        self.at = self.words()[at] as usize;
    }
}

/// Times of single calls, and keys a second of each turn.
struct Row {
    name: &'static str,
    /// Times of the calls with the clock, of all their keys.
    ns: Vec<u32>,
    keys_per_s: Vec<f64>,
    /// Number of keys of a call.
    keys: u32,
}

impl Row {
    fn new(name: &'static str) -> Self {
        Self { name, ns: Vec::new(), keys_per_s: Vec::new(), keys: 1 }
    }

    /// Measures one turn: `calls` calls of `keys` keys each with the clock, and as many without.
    #[inline(always)]
    fn turn(&mut self, calls: usize, keys: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<()> {
        self.keys = keys as u32;
        for n in 0..calls {
            let start = Instant::now();
            call(n)?;
            self.ns.push(start.elapsed().as_nanos() as u32);
        }
        let start = Instant::now();
        for n in calls..2 * calls {
            call(n)?;
        }
        self.keys_per_s.push((calls * keys) as f64 / start.elapsed().as_secs_f64());
        Ok(())
    }

    fn print(&mut self, clock_ns: u32) {
        self.ns.sort_unstable();
        self.keys_per_s.sort_unstable_by(f64::total_cmp);
        let call = |share: f64| self.ns[((self.ns.len() - 1) as f64 * share) as usize].saturating_sub(clock_ns);
        let at = |share| call(share) / self.keys;
        let keys = self.keys_per_s[self.keys_per_s.len() / 2];
        let (p50, p99, each) = (at(0.5), at(0.99), 1e9 / keys);
        println!("  {:<18} p50_ns={p50:<5} p99_ns={p99:<5} keys_per_s={keys:<11.0} ns_a_key={each:.1}", self.name);
    }
}

fn gets(reader: &mut dyn Reader, keys: &[Key], row: &mut Row, found: bool) -> Result<()> {
    let mut right = 0;
    row.turn(TURN, 1, |n| {
        right += usize::from(reader.get(&keys[n])?.is_some() == found);
        Ok(())
    })?;
    all_right(right, keys.len())
}

fn get_manys(reader: &mut dyn Reader, keys: &[Key], row: &mut Row, found: bool) -> Result<()> {
    let (mut right, mut values) = (0, vec![None; MANY]);
    row.turn(TURN / MANY, MANY, |n| {
        reader.get_many(&keys[n * MANY..(n + 1) * MANY], &mut values)?;
        right += values.iter().filter(|value| value.is_some() == found).count();
        Ok(())
    })?;
    all_right(right, keys.len())
}

fn all_right(right: usize, asked: usize) -> Result<()> {
    if right == asked {
        return Ok(());
    }
    Err(Error::new(ErrorKind::DataDamaged, format!("wrong answers: asked={asked} right={right}")))
}

fn measure(engine: &StrataEngine, args: &Args, ring: &mut Ring) -> Result<()> {
    let mut reader = engine.reader()?;
    let names = ["get absent", "get present", "get_many absent", "get_many present", "one miss", "the clock"];
    let [mut absent_one, mut present_one, mut absent_many, mut present_many, mut miss, mut clock] = names.map(Row::new);
    let is_wanted = |row: &Row| row.name.starts_with(args.only.as_str());
    for round in 0..args.rounds {
        let first = (round + 1) * 4 * TURN as u64;
        let keys = |from: u64, key: &dyn Fn(u64) -> Key| (from..from + 2 * TURN as u64).map(key).collect::<Vec<_>>();
        let there = |n: u64| key(mix(n) % args.pairs, args.pairs);
        let none = |n: u64| absent(mix(n), args.pairs);
        let other = first + 2 * TURN as u64;
        if is_wanted(&absent_one) {
            gets(&mut *reader, &keys(first, &none), &mut absent_one, false)?;
        }
        if is_wanted(&absent_many) {
            get_manys(&mut *reader, &keys(other, &none), &mut absent_many, false)?;
        }
        miss.turn(TURN, 1, |_| {
            ring.step();
            Ok(())
        })?;
        if is_wanted(&present_one) {
            gets(&mut *reader, &keys(first, &there), &mut present_one, true)?;
        }
        if is_wanted(&present_many) {
            get_manys(&mut *reader, &keys(other, &there), &mut present_many, true)?;
        }
        clock.turn(TURN, 1, |n| {
            black_box(n);
            Ok(())
        })?;
    }
    black_box(ring.at);
    clock.ns.sort_unstable();
    let clock_ns = clock.ns[clock.ns.len() / 2];
    println!("delta_runs={} pairs={} clock_ns={clock_ns}", stat(engine, "delta_runs")?, args.pairs);
    let rows = [&mut absent_one, &mut present_one, &mut absent_many, &mut present_many, &mut miss];
    rows.into_iter().filter(|row| !row.ns.is_empty()).for_each(|row| row.print(clock_ns));
    if is_wanted(&absent_one) {
        let middle = |row: &Row| f64::from(row.ns[row.ns.len() / 2].saturating_sub(clock_ns));
        println!("  get absent is {:.2} times one miss", middle(&absent_one) / middle(&miss));
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let dir = args.dir.clone().unwrap_or_else(|| std::env::temp_dir().join("strata-gets"));
    std::fs::remove_dir_all(&dir).ok();
    // Room for everything, with the memory for work and for memtables.
    let options =
        StrataOptions { memory_bytes: args.pairs * 64 / 4 * 5 + (1 << 30), disk_reserve_bytes: 0, prefix_bytes: 32 };
    let sizes = Sizes { mem_records: MEM_RECORDS, ..Sizes::of(&options) };
    let storage = solkv_engine_strata::storage::DirStorage::open(&dir).map_err(|e| Error::io("no directory", e))?;
    let engine = StrataEngine::open_sized(std::sync::Arc::new(storage), &options, sizes)?;
    let start = Instant::now();
    load(&engine, args.pairs)?;
    println!("load: pairs={} seconds={:.1}", args.pairs, start.elapsed().as_secs_f64());
    // As large as a filter plane of eight bits a pair.
    let mut ring = Ring::new(args.pairs as usize / 64 * 64)?;
    let mut added = 0;
    for runs in &args.runs {
        while added < (*runs).min(DELTAS.len() as u64) {
            add_run(&engine, added, DELTAS[added as usize], args.pairs)?;
            added += 1;
        }
        warm(&engine, args.pairs)?;
        measure(&engine, &args, &mut ring)?;
    }
    Box::new(engine).close()?;
    std::fs::remove_dir_all(&dir).ok();
    Ok(())
}
