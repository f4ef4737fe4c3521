//! The timed loops: readers, a writer, or a mix of both, and their figures.
//!
//! Owns: the times at which operations are due and from which their latency counts. Must not: know which engine it
//! drives. Threads: `read-N`, `sample`, and the main thread as the writer.
//!
//! Closed loop: the next operation starts when the last one has ended, and its latency is its own duration. Open loop:
//! an operation is due at its time whether or not the last one has ended, and its latency runs from its due time. So a
//! stall counts for every operation that it delays (coordinated omission).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use engine_api::{Checkpoint, Durability, Engine, Key, Reader, Value};
use engine_latency::{Measured, Op, Recorder, Snapshot};
use probe::Floor;
use workload::{Pairs, Picker, Rng};

use super::pace::{Pace, sample};
use super::run::Keys;
use super::scan::ShortScan;
use super::versions::Versions;
use crate::result::Series;

/// Source label of everything recorded here.
pub(crate) const SOURCE: &str = "bench";

/// Work of the reading threads.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    pub(crate) pairs: Pairs,
    /// Versions of the values before the run.
    pub(crate) versions: Versions,
    pub(crate) count: u64,
    pub(crate) seed: u64,
    pub(crate) keys: Keys,
    pub(crate) what: What,
    pub(crate) threads: u32,
    /// Operations a second of each thread. `None`: closed loop.
    pub(crate) rate: Option<f64>,
    /// Whether values must be those before the run. Otherwise a concurrent writer may have changed them.
    pub(crate) unchanged: bool,
}

/// Kind of the reads. A run never mixes two kinds.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Negative,
    Positive,
    /// So many keys at once, which are present or absent.
    Many {
        keys: usize,
        present: bool,
    },
    /// Scans from a key that is present.
    Scan(ShortScan),
}

impl What {
    fn is_present(&self) -> bool {
        matches!(self, Self::Positive | Self::Scan(_) | Self::Many { present: true, .. })
    }
}

/// Figures of one timed loop.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) ops: u64,
    /// Operations of an open loop that were due and not begun at the end.
    pub(crate) overdue: u64,
    /// Puts of a writer at a rate that were due and not begun at the end.
    pub(crate) overdue_puts: u64,
    pub(crate) elapsed: Duration,
    pub(crate) total: Snapshot,
    /// The figures of each second.
    pub(crate) series: Vec<Series>,
}

/// Outcome of the work that runs while the readers read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) ops: u64,
    /// Operations that were due and not begun at the end.
    pub(crate) overdue: u64,
}

/// Reads for `time` on `reads.threads` threads. Meanwhile runs `beside` on this thread and passes it the flag that ends
/// it. The first reader makes an access of `floor` after each read, whose time is none of the reads'.
pub(crate) fn read(
    engine: &Measured,
    reads: &Reads,
    time: Duration,
    mut floor: Option<&mut Floor>,
    beside: impl FnOnce(&AtomicBool) -> Result<Done>,
) -> Result<Driven> {
    let latency = engine.latency();
    let (before, started) = (latency.snapshot(), Instant::now());
    let stop = AtomicBool::new(false);
    let (ops, overdue) = (AtomicU64::new(0), AtomicU64::new(0));
    // Time at which the last work was done, because the sampling continues to the end of its second.
    let elapsed_ns = AtomicU64::new(0);
    let mut series = Vec::new();
    let overdue_puts = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for n in 0..reads.threads {
            let (stop, ops, overdue) = (&stop, &ops, &overdue);
            let (elapsed_ns, mut recorder) = (&elapsed_ns, latency.recorder(SOURCE));
            let floor = floor.take();
            let run = move || {
                let mut reader = engine.inner().reader()?;
                let (read, pace) = reads.on(&mut *reader, &mut recorder, n, stop, floor)?;
                let end = Instant::now();
                // ORDERING: Relaxed: read after the threads have ended.
                ops.fetch_add(read, Ordering::Relaxed);
                elapsed_ns.fetch_max((end - started).as_nanos() as u64, Ordering::Relaxed);
                for due in pace.overdue(end) {
                    recorder.record(reads.op(), (end - due).as_nanos() as u64);
                    overdue.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            };
            threads.push(std::thread::Builder::new().name(format!("read-{n}")).spawn_scoped(scope, run)?);
        }
        let (stop, series) = (&stop, &mut series);
        let sampler = std::thread::Builder::new().name("sample".to_owned()).spawn_scoped(scope, move || {
            *series = sample(latency, started, time, stop);
            // ORDERING: Relaxed: the flag carries no other data.
            stop.store(true, Ordering::Relaxed);
        })?;
        let written = beside(stop);
        // ORDERING: Relaxed: read after the threads have ended.
        elapsed_ns.fetch_max(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        sampler.join().map_err(|_| anyhow!("the sampling thread panicked"))?;
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a reading thread panicked"))??;
        }
        // ORDERING: Relaxed: read after the threads have ended.
        let written = written?;
        ops.fetch_add(written.ops, Ordering::Relaxed);
        anyhow::Ok(written.overdue)
    })?;
    let total = latency.snapshot().since(&before);
    let elapsed = Duration::from_nanos(elapsed_ns.into_inner());
    let (ops, overdue) = (ops.into_inner(), overdue.into_inner());
    Ok(Driven { ops, overdue, overdue_puts, elapsed, total, series })
}

impl Reads {
    /// Returns the operation under which the latencies are recorded.
    fn op(&self) -> Op {
        match self.what {
            What::Negative => Op::ReadNegative,
            What::Positive => Op::ReadPositive,
            What::Many { .. } => Op::GetMany,
            What::Scan(_) => Op::Scan,
        }
    }

    /// Runs the loop of one thread. Returns the number of operations, and the pace with the time at which the next one
    /// would have been due.
    fn on(
        &self,
        reader: &mut dyn Reader,
        recorder: &mut Recorder,
        n: u32,
        stop: &AtomicBool,
        mut floor: Option<&mut Floor>,
    ) -> Result<(u64, Pace)> {
        let mut rng = Rng::new(self.seed ^ (u64::from(n) << 40));
        let mut next = Next::new(self.keys, self.count, u64::from(n));
        let mut pace = Pace::new(self.rate);
        let many = if let What::Many { keys, .. } = self.what { keys } else { 1 };
        let (mut keys, mut values): (Vec<Key>, Vec<Option<Value>>) = (vec![[0; 32]; many], vec![None; many]);
        let (mut indexes, mut seen) = (vec![0; many], Vec::new());
        let (op, mut ops) = (self.op(), 0);
        // ORDERING: Relaxed: the flag carries no other data.
        while !stop.load(Ordering::Relaxed) {
            for (index, key) in indexes.iter_mut().zip(&mut keys) {
                *index = next.index(&mut rng);
                *key = if self.what.is_present() {
                    self.pairs.key(*index)
                } else {
                    // Absent keys have no ranks, so no skew applies: each random one comes once, as on the chain.
                    self.pairs.absent_key(rng.below(self.pairs.absent_count(self.count)))
                };
            }
            let due = pace.next();
            match &self.what {
                What::Many { .. } => reader.get_many(&keys, &mut values)?,
                What::Negative | What::Positive => values[0] = reader.get(&keys[0])?,
                What::Scan(scan) => scan.scan(reader, &keys[0], &mut seen)?,
            }
            recorder.record(op, due.elapsed().as_nanos() as u64);
            ops += many as u64;
            if let What::Scan(scan) = &self.what {
                values[0] = scan.check(&keys[0], &seen)?;
            }
            for (index, value) in indexes.iter().zip(&values) {
                self.check(*index, value.as_ref())?;
            }
            if !self.unchanged {
                reader.refresh()?;
            }
            if let Some(floor) = floor.as_deref_mut() {
                floor.access()?;
            }
        }
        Ok((ops, pace))
    }

    /// Fails on a wrong value, because a fast wrong answer is worth nothing.
    fn check(&self, index: u64, value: Option<&Value>) -> Result<()> {
        match (self.what.is_present(), value) {
            (false, None) => Ok(()),
            (false, Some(_)) => Err(anyhow!("a key that was never loaded has a value: the store is damaged")),
            (_, Some(value)) => {
                let expected = || self.pairs.value(index, self.versions.of(index));
                ensure!(!self.unchanged || *value == expected(), "wrong value: index={index}");
                Ok(())
            }
            (_, None) => Err(anyhow!("a loaded key is missing: index={index}")),
        }
    }
}

/// Produces the sequence of picked indexes.
pub(crate) struct Next {
    picker: Option<Picker>,
    count: u64,
    at: u64,
}

impl Next {
    pub(crate) fn new(keys: Keys, count: u64, start: u64) -> Self {
        let picker = match keys {
            Keys::Sequential => None,
            Keys::Skewed(skew) => Some(Picker::new(count, skew)),
        };
        Self { picker, count, at: start * (count / 7) }
    }

    pub(crate) fn index(&mut self, rng: &mut Rng) -> u64 {
        match &self.picker {
            Some(picker) => picker.pick(rng),
            None => {
                self.at = (self.at + 1) % self.count;
                self.at
            }
        }
    }
}

/// Work of the writing thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writes {
    pub(crate) pairs: Pairs,
    pub(crate) count: u64,
    pub(crate) seed: u64,
    pub(crate) keys: Keys,
    /// Smallest and largest number of writes in a commit.
    pub(crate) batch: (u32, u32),
    /// Writes a second. `None`: each commit follows the last one at once.
    pub(crate) rate: Option<f64>,
    pub(crate) durability: Durability,
    /// Share of operations that are writes. The others are positive reads on the newest commit.
    pub(crate) write_share: f64,
    /// Share of the writes that are deletes.
    pub(crate) delete_share: f64,
    /// Whether each pair is also written with key and value exchanged.
    pub(crate) double_index: bool,
    /// Number of operations after which the writer ends, if not stopped before.
    pub(crate) most: u64,
}

impl Writes {
    /// Reads and writes until stopped or at the end. Returns the number of operations. Every batch is committed before
    /// it is counted.
    pub(crate) fn run(&self, engine: &Measured, stop: &AtomicBool) -> Result<Done> {
        let (mut rng, mut sizes) = (Rng::new(self.seed ^ 0x77), Rng::new(self.seed ^ 0x7369_7a65));
        let mut pace = Pace::new(self.rate);
        let mut next = Next::new(self.keys, self.count, 0);
        let mut reader = if self.write_share < 1.0 { Some(engine.reader_for(SOURCE)?) } else { None };
        let (mut ops, mut version) = (0, 0);
        // ORDERING: Relaxed, here and below: the flag carries no other data.
        while !stop.load(Ordering::Relaxed) && ops < self.most {
            version += 1;
            let batch = self.batch_size(&mut sizes);
            pace.next_of(batch);
            // The stop flag may have been set while this commit was not due yet.
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut txn = engine.begin()?;
            let mut written = 0;
            while written < batch {
                let index = next.index(&mut rng);
                if rng.chance(self.write_share) {
                    let key = self.write_key(index);
                    if rng.chance(self.delete_share) {
                        txn.delete(&key)?;
                    } else {
                        let value = self.pairs.value(index, version);
                        txn.put(&key, &value)?;
                        if self.double_index {
                            txn.put(&value, &key)?;
                        }
                    }
                    written += 1;
                } else if let Some(reader) = &mut reader {
                    let found = reader.get(&self.pairs.key(index))?;
                    ensure!(found.is_some() || self.delete_share > 0.0, "a loaded key is missing: index={index}");
                }
                ops += 1;
            }
            let checkpoint = engine.checkpoint()?;
            txn.commit(&Checkpoint { seq: checkpoint.seq + u64::from(written), ..checkpoint }, self.durability)?;
            if let Some(reader) = &mut reader {
                reader.refresh()?;
            }
        }
        Ok(Done { ops, overdue: pace.overdue(Instant::now()).count() as u64 })
    }

    /// Picks the number of writes for the next commit. It is log-uniform, so that each order of magnitude gets as many
    /// commits.
    fn batch_size(&self, sizes: &mut Rng) -> u32 {
        let (fewest, most) = self.batch;
        if fewest == most {
            return most;
        }
        let times = f64::from(most + 1) / f64::from(fewest);
        let size = f64::from(fewest) * times.powf(sizes.unit());
        (size as u32).clamp(fewest, most)
    }

    /// Returns the key to write. In sequential order keys ascend, which suits a B+tree; otherwise they are the loaded
    /// keys.
    fn write_key(&self, index: u64) -> Key {
        let mut key = self.pairs.key(index);
        if self.keys == Keys::Sequential {
            key[..8].copy_from_slice(&index.to_be_bytes());
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::path::Path;

    use engine_api::{Stats, Visitor, WriteTxn};
    use engine_latency::Latency;
    use workload::Skew;

    use super::*;

    /// An engine that answers at once, except for one stall of the given length.
    struct Stalled {
        stall: Duration,
        stalled: AtomicBool,
    }

    struct StalledReader<'e>(&'e Stalled, Instant);

    impl Engine for Stalled {
        fn label(&self) -> &'static str {
            "stalled"
        }
        fn reader(&self) -> engine_api::Result<Box<dyn Reader + '_>> {
            Ok(Box::new(StalledReader(self, Instant::now())))
        }
        fn begin(&self) -> engine_api::Result<Box<dyn WriteTxn + '_>> {
            unreachable!("only reads here")
        }
        fn checkpoint(&self) -> engine_api::Result<Checkpoint> {
            Ok(Checkpoint::default())
        }
        fn stats(&self) -> engine_api::Result<Stats> {
            Ok(Stats::default())
        }
        fn snapshot(&self, _: &Path) -> engine_api::Result<()> {
            Ok(())
        }
        fn load_sorted(&self, _: &[(Key, Value)], _: &Checkpoint) -> engine_api::Result<()> {
            unreachable!("only reads here")
        }
        fn close(self: Box<Self>) -> engine_api::Result<()> {
            Ok(())
        }
    }

    impl Reader for StalledReader<'_> {
        fn get(&mut self, _: &Key) -> engine_api::Result<Option<Value>> {
            let late = self.1.elapsed() > Duration::from_millis(200);
            // ORDERING: Relaxed: there is only one thread.
            if late && !self.0.stalled.swap(true, Ordering::Relaxed) {
                std::thread::sleep(self.0.stall);
            }
            Ok(None)
        }
        fn get_many(&mut self, _: &[Key], _: &mut [Option<Value>]) -> engine_api::Result<()> {
            Ok(())
        }
        fn scan_from(&mut self, _: &Key, visit: &mut Visitor<'_>) -> engine_api::Result<()> {
            let _: ControlFlow<()> = visit(&[0; 32], &[0; 32]);
            Ok(())
        }
        fn checkpoint(&mut self) -> engine_api::Result<Checkpoint> {
            Ok(Checkpoint::default())
        }
        fn refresh(&mut self) -> engine_api::Result<()> {
            Ok(())
        }
    }

    /// Runs negative reads for a second.
    fn negative_reads(stalled: Stalled, rate: Option<f64>) -> Driven {
        let engine = Measured::new(Box::new(stalled), Latency::new("stalled"), SOURCE);
        let keys = Keys::Skewed(Skew::Uniform);
        let reads = Reads {
            pairs: Pairs::new(1),
            versions: Versions::new(10, 0),
            count: 10,
            seed: 1,
            keys,
            what: What::Negative,
            threads: 1,
            rate,
            unchanged: true,
        };
        read(&engine, &reads, Duration::from_secs(1), None, |_| Ok(Done::default())).unwrap()
    }

    /// Returns the p99 of negative reads in a second with a stall of 300 ms.
    fn p99(rate: Option<f64>) -> Duration {
        let driven =
            negative_reads(Stalled { stall: Duration::from_millis(300), stalled: AtomicBool::new(false) }, rate);
        let histogram = driven.total.get(SOURCE, Op::ReadNegative).unwrap().clone();
        assert_eq!(histogram.len(), driven.ops + driven.overdue);
        assert!(histogram.max() >= 299_000_000, "the stall itself is seen either way");
        Duration::from_nanos(histogram.value_at_quantile(0.99))
    }

    #[test]
    fn operations_that_were_due_and_never_begun_count() {
        // The engine stalls at 200 ms until after the end.
        let stalled = Stalled { stall: Duration::from_secs(1), stalled: AtomicBool::new(false) };
        let driven = negative_reads(stalled, Some(1000.0));
        let histogram = driven.total.get(SOURCE, Op::ReadNegative).unwrap();
        assert!(driven.overdue >= 700, "{driven:?}");
        assert_eq!(histogram.len(), driven.ops + driven.overdue);
        assert!(histogram.value_at_quantile(0.5) > 100_000_000, "most of them were late");
    }

    #[test]
    fn sizes_of_commits_are_log_uniform() {
        let writes = Writes {
            pairs: Pairs::new(1),
            count: 10,
            seed: 1,
            keys: Keys::Sequential,
            batch: (1, 5000),
            rate: None,
            durability: Durability::Buffered,
            write_share: 1.0,
            delete_share: 0.0,
            double_index: false,
            most: u64::MAX,
        };
        let mut sizes = Rng::new(1);
        let sizes: Vec<u32> = (0..10_000).map(|_| writes.batch_size(&mut sizes)).collect();
        assert_eq!((sizes.iter().min(), sizes.iter().max().map(|most| *most > 4900)), (Some(&1), Some(true)));
        // A share of ln 10 / ln 5001 of them is below ten, and the same share from 100 to 999.
        for (from, to) in [(1, 10), (100, 1000)] {
            let share = sizes.iter().filter(|size| (from..to).contains(*size)).count() as f64 / 1e4;
            assert!((share - 0.27).abs() < 0.02, "{from} to {to}: {share}");
        }
        let fixed = Writes { batch: (7, 7), ..writes };
        assert_eq!(fixed.batch_size(&mut Rng::new(1)), 7);
    }

    #[test]
    fn a_stall_shows_in_the_open_loop_percentiles_and_not_in_the_closed_loop() {
        // 300 of 1000 operations were due during the stall.
        assert!(p99(Some(1000.0)) > Duration::from_millis(200));
        assert!(p99(None) < Duration::from_millis(200), "one of many thousands");
    }
}
