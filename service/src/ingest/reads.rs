//! The reads of the ingest: the keys of a slot, looked up together by `get_many`.
//!
//! Owns: how many keys are looked up at once, which keys are got alone, and the threads that do it for an engine whose
//! `get_many` waits for one read of the device after another. Must not: hold a snapshot of the engine between two
//! calls, because a snapshot keeps replaced pages; decide anything by a value.
//! Runs on the ingest-apply thread, and on up to `THREADS_MAX` threads `ingest-read-N`, which start when they are
//! first needed and end with [`Reads`].
//!
//! # Keys that are got alone
//!
//! The latency of a `get_many` does not tell an absent key from a present one. So one key in `KEYS_A_SAMPLE` is drawn
//! at random, got alone before its batch is looked up, and left out of the batch. These gets are the ingest's
//! `read_negative` and `read_positive`.
//!
//! On a cold store such a get waits for the device by itself, and the keys of a batch wait together. Gets alone take at
//! most a hundredth of the time: on a device that answers slowly but many reads at once, fewer keys are drawn. Times in
//! which the device is slow then weigh less in the two latencies.
//!
//! # Why the threads see the newest commit
//!
//! Each of them opens a reader for each piece of work. ingest-apply is the only writer, and it waits for all pieces
//! before it continues. A reader opened meanwhile therefore sees the newest commit, as ingest-apply's own does.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine_api::{Engine, Error, ErrorKind, Key, Reader, Result, Value};
use engine_latency::{Measured, MeasuredReader};
use tracing::warn;

use crate::base::chain::Event;

/// Default number of keys that are looked up together. With fewer, the device idles more often at the end of a batch:
/// TRIED.md has the rates.
pub const DEPTH: usize = 1024;

/// Maximum number of threads that read for ingest-apply: with 16 reads in flight a flash drive delivers most of its
/// rate, and more threads would cost more in switches than they gain.
const THREADS_MAX: usize = 16;

/// Largest number of keys per wait for the device at which the threads are used. A hand-over to all threads and back
/// costs less than one wait, and a lookup in memory costs less than a hundredth of one.
const KEYS_A_WAIT: u64 = 32;

/// Number of keys of which one is got alone.
const KEYS_A_SAMPLE: u64 = 512;

/// Gets alone take at most one part in this many of the time.
const TIME_A_SAMPLE: u32 = 100;

/// Time without gets alone that later ones may use. So a single slow get does not stop the draw.
const SAVED_TIME_MAX: Duration = Duration::from_secs(10);

/// Largest duration of gets alone that counts, because a pause of the machine would stop the draw for days.
const SPENT_MAX: Duration = Duration::from_secs(1);

/// Looks up the keys of slots.
pub struct Reads {
    depth: usize,
    pool: Option<Pool>,
    sample: Sample,
    /// Indexes of the events whose keys are got alone.
    alone: Vec<usize>,
    keys: Vec<Key>,
    found: Vec<Option<Value>>,
    /// Index of the event that each of `keys` belongs to.
    places: Vec<usize>,
    stored: Vec<Option<Value>>,
}

impl Reads {
    /// Creates the reads of `engine`, `depth` keys at once; 1 looks up one key after another. `in_turn` says that the
    /// engine's `get_many` waits for one read of the device after another. The keys that are got alone follow from
    /// `seed`.
    pub fn new(engine: &Arc<Measured>, depth: usize, in_turn: bool, seed: u64) -> Self {
        let depth = depth.max(1);
        let pool = (in_turn && depth > 1).then(|| Pool::new(engine, depth.min(THREADS_MAX)));
        let sample = Sample { seed, seen: 0, drawn: 0, rests_until: before(Instant::now()) };
        let (alone, keys, found) = (Vec::new(), Vec::new(), Vec::new());
        Self { depth, pool, sample, alone, keys, found, places: Vec::new(), stored: Vec::new() }
    }

    /// Returns the values that the store holds for the keys of the first events, at least one event. `is_known` says
    /// the keys that need no lookup; their values are `None`. `reader` must see the newest commit.
    ///
    /// # Errors
    /// Any error of the engine.
    pub fn stored(
        &mut self,
        reader: &mut MeasuredReader<'_>,
        events: &[Event],
        is_known: impl Fn(&Key) -> bool,
    ) -> Result<&[Option<Value>]> {
        self.alone.clear();
        self.keys.clear();
        self.places.clear();
        let mut covered = 0;
        for event in events {
            if self.keys.len() == self.depth {
                break;
            }
            if is_known(&event.key) {
                // It needs no lookup.
            } else if self.sample.takes_next() {
                self.alone.push(covered);
            } else {
                self.keys.push(event.key);
                self.places.push(covered);
            }
            covered += 1;
        }
        self.stored.clear();
        self.stored.resize(covered, None);
        for &place in &self.alone {
            self.stored[place] = reader.get(&events[place].key)?;
            self.sample.rest_after(Duration::from_nanos(reader.last_ns()));
        }
        self.found.clear();
        self.found.resize(self.keys.len(), None);
        match (&self.keys[..], &mut self.found[..]) {
            ([], _) => {}
            ([key], [value]) => *value = reader.get(key)?,
            (keys, values) => reader.get_many_with(keys, values, |reader, keys, values| match &mut self.pool {
                Some(pool) => pool.get_many(reader, keys, values),
                None => reader.get_many(keys, values),
            })?,
        }
        for (place, value) in self.places.iter().zip(&self.found) {
            self.stored[*place] = *value;
        }
        Ok(&self.stored)
    }
}

/// Draws one key at random from each [`KEYS_A_SAMPLE`] that follow each other, unless the gets before took too long.
#[derive(Debug)]
struct Sample {
    seed: u64,
    /// Number of keys so far.
    seen: u64,
    /// Position of the key that is drawn among those of its draw.
    drawn: u64,
    /// No key is drawn before. It lies in the past by the time that is saved.
    rests_until: Instant,
}

impl Sample {
    /// Whether the next key is drawn.
    fn takes_next(&mut self) -> bool {
        let at = self.seen % KEYS_A_SAMPLE;
        if at == 0 {
            let random = BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, self.seen));
            self.drawn = random % KEYS_A_SAMPLE;
        }
        self.seen = self.seen.wrapping_add(1);
        at == self.drawn && self.rests_until <= Instant::now()
    }

    /// Takes in that a key was got alone in this time.
    fn rest_after(&mut self, spent: Duration) {
        self.rests_until = self.rests_until.max(before(Instant::now())) + spent.min(SPENT_MAX) * TIME_A_SAMPLE;
    }
}

/// Returns the earliest time from which time can be saved until `now`.
fn before(now: Instant) -> Instant {
    now.checked_sub(SAVED_TIME_MAX).unwrap_or(now)
}

/// Threads that look up keys, each a part of a call's.
struct Pool {
    engine: Arc<Measured>,
    threads: usize,
    workers: Vec<Worker>,
    /// Whether the newest call waited for the device so often that the next one uses the threads.
    cold: bool,
    /// Index in the call of each of its keys, in the order of the keys.
    order: Vec<usize>,
}

/// One of the threads. Both channels hold the one part that it works on.
#[derive(Debug)]
struct Worker {
    parts: SyncSender<Part>,
    done: Receiver<Part>,
    /// The part's memory between two calls.
    idle: Part,
    thread: JoinHandle<()>,
}

/// A part of a call: keys that follow each other in its order.
#[derive(Debug, Default)]
struct Part {
    keys: Vec<Key>,
    values: Vec<Option<Value>>,
    /// Number of times that the thread waited for the device.
    waits: u64,
    failed: Option<Error>,
}

impl Pool {
    fn new(engine: &Arc<Measured>, threads: usize) -> Self {
        Self { engine: Arc::clone(engine), threads, workers: Vec::new(), cold: false, order: Vec::new() }
    }

    /// Looks up every `keys[i]` into `values[i]`, with `reader` or, if the store is cold, with the threads.
    fn get_many(&mut self, reader: &mut dyn Reader, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        if self.cold {
            self.start();
        }
        let waits = if self.cold && !self.workers.is_empty() {
            self.get_apart(keys, values)?
        } else {
            let before = probe::thread_waits();
            reader.get_many(keys, values)?;
            probe::thread_waits().saturating_sub(before)
        };
        self.cold = waits * KEYS_A_WAIT >= keys.len() as u64;
        Ok(())
    }

    /// Looks up the keys with the threads. Returns how often they waited for the device.
    fn get_apart(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<u64> {
        self.order.clear();
        self.order.extend(0..keys.len());
        // Neighbours share blocks and the upper pages of a tree.
        self.order.sort_unstable_by_key(|&at| keys[at]);
        let each = keys.len().div_ceil(self.workers.len());
        for (places, worker) in self.order.chunks(each).zip(&mut self.workers) {
            let mut part = std::mem::take(&mut worker.idle);
            part.keys.clear();
            part.keys.extend(places.iter().map(|&at| keys[at]));
            worker.parts.send(part).map_err(|_| ended())?;
        }
        // Every part is waited for even if one has failed, because the next call must not find it.
        let (mut waits, mut failed) = (0, None);
        for (places, worker) in self.order.chunks(each).zip(&mut self.workers) {
            let mut part = worker.done.recv().map_err(|_| ended())?;
            for (place, value) in places.iter().zip(&part.values) {
                values[*place] = *value;
            }
            waits += part.waits;
            failed = failed.or(part.failed.take());
            worker.idle = part;
        }
        failed.map_or(Ok(waits), Err)
    }

    /// Starts the threads that do not run yet. ingest-apply reads alone if none can be started.
    fn start(&mut self) {
        while self.workers.len() < self.threads {
            let name = format!("ingest-read-{}", self.workers.len());
            match Worker::start(name, Arc::clone(&self.engine)) {
                Ok(worker) => self.workers.push(worker),
                Err(failed) => {
                    warn!(error = %failed, threads = self.workers.len(), "no more threads can read for the ingest");
                    self.threads = self.workers.len();
                }
            }
        }
    }
}

impl Drop for Pool {
    /// Waits for the threads to end, because each holds the engine, which has to be closed after them.
    fn drop(&mut self) {
        for Worker { parts, done, thread, .. } in self.workers.drain(..) {
            drop((parts, done));
            // The panic of a thread has been reported to its caller already.
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn start(name: String, engine: Arc<Measured>) -> std::io::Result<Self> {
        let (parts, given) = sync_channel::<Part>(1);
        let (finished, done) = sync_channel(1);
        let work = move || {
            while let Ok(mut part) = given.recv() {
                part.look_up(engine.inner());
                if finished.send(part).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(work)?;
        Ok(Self { parts, done, idle: Part::default(), thread })
    }
}

impl Part {
    fn look_up(&mut self, engine: &dyn Engine) {
        self.values.clear();
        self.values.resize(self.keys.len(), None);
        let before = probe::thread_waits();
        let found = engine.reader().and_then(|mut reader| reader.get_many(&self.keys, &mut self.values));
        self.waits = probe::thread_waits().saturating_sub(before);
        self.failed = found.err();
    }
}

/// The error of a thread that has ended by a panic, which it has printed.
fn ended() -> Error {
    Error::new(ErrorKind::Internal, "a thread that reads for the ingest has ended: see its panic in the log")
}

#[cfg(test)]
mod tests {
    use engine_api::{Durability, Engine};
    use engine_latency::{Latency, Op};
    use engines::{EngineOptions, OpenMode};
    use solana::ChainCheckpoint;

    use super::*;

    const PAIRS: u16 = 5000;

    fn key(number: u16) -> Key {
        let mut key = [7; 32];
        key[..2].copy_from_slice(&number.wrapping_mul(40_503).to_be_bytes());
        key
    }

    fn value(number: u16) -> Value {
        let mut value = [0; 32];
        value[..2].copy_from_slice(&number.to_be_bytes());
        value
    }

    fn events(numbers: impl IntoIterator<Item = u16>) -> Vec<Event> {
        numbers.into_iter().map(|number| Event { key: key(number), value: None, write_version: 0 }).collect()
    }

    /// Runs `check` on each engine with a store of the even numbers below [`PAIRS`].
    fn on_each_engine(check: impl Fn(Arc<Measured>)) {
        for kind in engines::compiled() {
            let dir = tempfile::tempdir().unwrap();
            let engine =
                engines::open(&dir.path().join("store"), &EngineOptions::new(*kind), OpenMode::Create).unwrap();
            let mut txn = engine.begin().unwrap();
            for number in (0..PAIRS).step_by(2) {
                txn.put(&key(number), &value(number)).unwrap();
            }
            txn.commit(&ChainCheckpoint::default().write(), Durability::Buffered).unwrap();
            check(Arc::new(Measured::new(engine, Latency::new(kind.as_str()), "ingest")));
        }
    }

    #[test]
    fn every_depth_finds_what_gets_find_and_says_how_it_has_read() {
        on_each_engine(|engine| {
            let events = events((0..PAIRS).rev());
            for depth in [1, 2, 64, 1000, 1 << 20] {
                let before = engine.latency().snapshot();
                let mut reads = Reads::new(&engine, depth, true, 7);
                let mut reader = engine.own_reader().unwrap();
                let mut rest = &events[..];
                let mut asked = 0;
                while let Some(first) = rest.first() {
                    // Every seventh key needs no lookup.
                    let is_known = |key: &Key| key[1].is_multiple_of(7);
                    let stored = reads.stored(&mut reader, rest, is_known).unwrap();
                    assert!(!stored.is_empty() && stored.len() <= rest.len(), "{first:?}");
                    let (now, later) = rest.split_at(stored.len());
                    for (event, stored) in now.iter().zip(stored) {
                        let expected = engine.inner().reader().unwrap().get(&event.key).unwrap();
                        let known = is_known(&event.key);
                        assert_eq!(*stored, expected.filter(|_| !known), "{} depth={depth}", engine.label());
                        asked += u64::from(!known);
                    }
                    rest = later;
                }
                let read = engine.latency().snapshot().since(&before);
                let count = |op| read.get("ingest", op).map_or(0, |series| series.len());
                let alone = count(Op::ReadPositive) + count(Op::ReadNegative);
                let batches = count(Op::GetMany);
                if depth == 1 {
                    assert_eq!((alone, batches), (asked, 0));
                } else {
                    // One key may be left for the last batch.
                    assert!(batches > 0 && alone <= asked.div_ceil(KEYS_A_SAMPLE) + 1, "alone={alone}");
                }
            }
        });
    }

    /// Looks up the keys of `events` with a depth of 1024. Returns the position of each key that was got alone.
    fn got_alone(engine: &Arc<Measured>, events: &[Event], in_turn: bool, seed: u64) -> Vec<usize> {
        let mut reads = Reads::new(engine, 1024, in_turn, seed);
        let mut reader = engine.own_reader().unwrap();
        let (mut done, mut drawn) = (0, Vec::new());
        while done < events.len() {
            let (before, rest) = (engine.latency().snapshot(), &events[done..]);
            // However long the machine took for the gets before.
            reads.sample.rests_until = Instant::now();
            let covered = reads.stored(&mut reader, rest, |_| false).unwrap().len();
            let read = engine.latency().snapshot().since(&before);
            let count = |op| read.get("ingest", op).map_or(0, |series| series.len());
            let label = engine.label();
            let present = reads.alone.iter().filter(|&&at| reads.stored[at].is_some()).count() as u64;
            let absent = reads.alone.len() as u64 - present;
            assert_eq!((count(Op::ReadPositive), count(Op::ReadNegative)), (present, absent), "{label}");
            assert_eq!((count(Op::GetMany), reads.alone.len() + reads.keys.len()), (1, covered), "{label}");
            assert!(reads.alone.iter().all(|&at| !reads.keys.contains(&rest[at].key)), "{label}: read twice");
            // Whatever is read after its batch comes from warm pages.
            let batch_ns = read.get("ingest", Op::GetMany).unwrap().max();
            assert!(batch_ns.abs_diff(reader.last_ns()) <= batch_ns / 500, "{label}: the batch was not read last");
            drawn.extend(reads.alone.iter().map(|at| done + at));
            done += covered;
        }
        drawn
    }

    #[test]
    fn one_key_in_512_is_got_alone_before_its_batch_and_left_out_of_it() {
        on_each_engine(|engine| {
            let events = events((0..4).flat_map(|_| 0..PAIRS));
            let draws = events.len().div_ceil(KEYS_A_SAMPLE as usize);
            for in_turn in [false, true] {
                let drawn = got_alone(&engine, &events, in_turn, 1);
                assert!((draws - 1..=draws).contains(&drawn.len()), "{drawn:?}");
                let mut places: Vec<_> = drawn.iter().map(|at| at % KEYS_A_SAMPLE as usize).collect();
                places.sort_unstable();
                places.dedup();
                assert!(places.len() > draws / 2, "not at random: {drawn:?}");
                assert_ne!(drawn, got_alone(&engine, &events, in_turn, 2));
            }
        });
    }

    #[test]
    fn gets_alone_stop_while_they_have_taken_more_than_a_hundredth_of_the_time() {
        let seen = |sample: &mut Sample| (0..2 * KEYS_A_SAMPLE).filter(|_| sample.takes_next()).count();
        let mut sample = Sample { seed: 1, seen: 0, drawn: 0, rests_until: Instant::now() };
        assert_eq!(seen(&mut sample), 2);
        // Its rest is longer than any test, and ends: a pause of the machine counts as a second.
        sample.rest_after(Duration::from_secs(1 << 40));
        sample.rest_after(Duration::MAX);
        let until = sample.rests_until;
        assert_eq!(seen(&mut sample), 0);
        assert!(until <= Instant::now() + SPENT_MAX * 2 * TIME_A_SAMPLE);
        // What is saved is bounded, and one slow get does not use it up.
        sample.rests_until = Instant::now().checked_sub(SAVED_TIME_MAX * 3).unwrap();
        sample.rest_after(SAVED_TIME_MAX / TIME_A_SAMPLE / 2);
        assert_eq!(seen(&mut sample), 2);
        sample.rest_after(SPENT_MAX);
        assert_eq!(seen(&mut sample), 0);
    }

    #[test]
    fn threads_find_what_one_reader_finds() {
        on_each_engine(|engine| {
            for (threads, count) in [(1, 3), (3, 2), (16, 1), (16, 17), (16, 1000), (5, PAIRS)] {
                let keys: Vec<Key> = (0..count).map(key).chain([key(2), key(2)]).collect();
                let (mut values, mut expected) = (vec![Some([9; 32]); keys.len()], vec![None; keys.len()]);
                let mut reader = engine.inner().reader().unwrap();
                reader.get_many(&keys, &mut expected).unwrap();
                let mut pool = Pool::new(&engine, threads);
                for _ in 0..3 {
                    pool.cold = true;
                    pool.get_many(&mut *reader, &keys, &mut values).unwrap();
                    assert_eq!(values, expected, "{} threads={threads} count={count}", engine.label());
                }
                assert_eq!(pool.workers.len(), threads);
                drop(pool);
            }
            assert_eq!(Arc::strong_count(&engine), 1, "a thread that holds the engine would keep it from being closed");
        });
    }

    #[test]
    fn a_store_in_memory_needs_no_threads() {
        on_each_engine(|engine| {
            let keys: Vec<Key> = (0..PAIRS).map(key).collect();
            let mut values = vec![None; keys.len()];
            let mut pool = Pool::new(&engine, 4);
            let mut reader = engine.inner().reader().unwrap();
            for _ in 0..3 {
                pool.get_many(&mut *reader, &keys, &mut values).unwrap();
            }
            assert!(!pool.cold, "{}", engine.label());
            assert!(pool.workers.len() < 5);
        });
    }
}
