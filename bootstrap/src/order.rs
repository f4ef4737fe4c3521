//! Puts a source in order without holding it in memory: an external merge sort, by the key or by a seeded hash of it
//! (shuffled). Duplicate keys are found here, where all copies of a key meet.
//!
//! Owns: the work directory. The order is a function of the source's content and the seed, and of nothing else: neither
//! of the memory nor of how often the reading was interrupted. That is what makes a load resumable. A spill that is
//! not what was written is refused by name, and so is one that has other records than were read.
//! Threads: `sort` writes runs while the caller reads the source; `order` merges them a few chunks ahead of the caller.

mod merge;
mod run;
mod spill;
mod work;

use std::cmp::Ordering;
use std::fs;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use anyhow::{Result, anyhow, bail, ensure};
use engine_api::{Key, Value};
use serde::{Deserialize, Serialize};
use workload::source_id;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::identity::Stamp;
use crate::limits::{Buffers, CHUNK_PAIRS};
use crate::paths::WorkDir;
use crate::source::{Record, Source};
use merge::Merge;
use run::Run;
use spill::{Spill, Spilled};
use work::Work;

pub(crate) use spill::Tell;

/// The order in which pairs reach the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Random: the worst case for a B+tree, and what a live stream will look like.
    Shuffled,
    /// Ascending by key, through the engine's bulk path.
    Sorted,
}

impl Order {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shuffled => "shuffled",
            Self::Sorted => "sorted",
        }
    }
}

/// What to do with a key that comes twice with different values. The same pair twice is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnDuplicate {
    /// Stop, naming both places.
    Error,
    /// The last one in the source wins.
    Last,
}

/// Where a record stands in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// By the key: its first eight bytes, which nearly always decide.
    Key,
    /// By a seeded hash of the key, which is a random order.
    Hash(u64),
}

impl Rank {
    fn new(order: Order, seed: u64) -> Self {
        match order {
            Order::Shuffled => Self::Hash(seed),
            Order::Sorted => Self::Key,
        }
    }

    fn of(self, record: Record) -> Ranked {
        let rank = match self {
            Self::Key => u64::from_be_bytes(std::array::from_fn(|i| record.1[i])),
            Self::Hash(seed) => xxh3_64_with_seed(&record.1, seed),
        };
        Ranked { rank, record }
    }
}

/// A record that knows its place. Equal keys follow each other in the order of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ranked {
    rank: u64,
    record: Record,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = || self.record.1.cmp(&other.record.1);
        self.rank.cmp(&other.rank).then_with(by_key).then_with(|| self.record.0.cmp(&other.record.0))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A source in its final order, to be read from any position.
pub(crate) struct Ordered {
    /// Identifies source, order and seed: positions of one mean nothing in another.
    pub(crate) source_id: u64,
    /// The digest of the source's records, duplicates included; `None` for synthetic pairs that are not sorted.
    pub(crate) content: Option<u64>,
    /// Records, duplicates included: at least the number of pairs.
    pub(crate) records: u64,
    /// What the file system said of the source's file.
    pub(crate) stamp: Option<Stamp>,
    kind: Kind,
    rank: Rank,
    work: Work,
    chunks_ahead: usize,
}

enum Kind {
    /// Synthetic pairs come in random key order by themselves.
    Synthetic(Source),
    /// All of them, in order.
    Memory(Vec<Ranked>),
    Runs {
        spill: u64,
        runs: Vec<Run>,
    },
}

/// What became of the pairs handed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Distinct pairs, skipped ones included.
    pub(crate) pairs: u64,
    /// Records dropped because their key came again.
    pub(crate) duplicates: u64,
}

/// Takes pairs in order; `false` stops.
pub(crate) type Take<'a> = dyn FnMut(&[(Key, Value)]) -> Result<bool> + 'a;
/// Hands a chunk to another thread; `false` when no more are wanted.
type Send<'a> = Box<dyn FnMut(Vec<(Key, Value)>) -> bool + 'a>;

impl Ordered {
    /// Reads the source, and spills what does not fit into a buffer into `work`; or takes up what an earlier process
    /// has spilled of the same source there. `tell` is told the number of records read, and may stop it.
    ///
    /// # Errors
    /// Of the source, naming the place; of the spill, naming the file; of `tell`.
    pub(crate) fn prepare(
        source: &Source,
        order: Order,
        seed: u64,
        work: &WorkDir,
        buffers: &Buffers,
        tell: &mut Tell<'_>,
    ) -> Result<Self> {
        let mut work = Work::open(work)?;
        let (rank, chunks_ahead) = (Rank::new(order, seed), buffers.chunks_ahead);
        if let (Source::Synthetic { pairs, count }, Order::Shuffled) = (source, order) {
            let (source_id, kind) = (pairs.source_id(*count), Kind::Synthetic(source.clone()));
            return Ok(Self { source_id, content: None, records: *count, stamp: None, kind, rank, work, chunks_ahead });
        }
        let read = Spill { source, order, seed, buffers }.run(&mut work, tell)?;
        let kind = match read.spilled {
            Spilled::Memory(records) => Kind::Memory(records),
            Spilled::Runs { spill, runs } => Kind::Runs { spill, runs },
        };
        let source_id = file_id(read.digest, order, seed);
        let (content, stamp) = (Some(read.digest), read.stamp);
        Ok(Self { source_id, content, records: read.records, stamp, kind, rank, work, chunks_ahead })
    }

    /// Removes the spill, which is not needed any more.
    ///
    /// # Errors
    /// The file system's, naming the file.
    pub(crate) fn discard(mut self) -> Result<()> {
        self.work.remove()
    }

    /// Hands on the pairs from position `skip`, in chunks, until `take` says stop. Chunks are made on a thread of their
    /// own, `order`, a few ahead of what is taken.
    pub(crate) fn for_each(&self, skip: u64, on_duplicate: OnDuplicate, take: &mut Take<'_>) -> Result<Tally> {
        std::thread::scope(|scope| {
            let (sender, chunks) = sync_channel(self.chunks_ahead);
            // Whoever takes them may have gone: then no more are wanted.
            let send = move |chunk: Vec<(Key, Value)>| sender.send(chunk).is_ok();
            let maker = std::thread::Builder::new()
                .name("order".to_owned())
                .spawn_scoped(scope, move || self.make(skip, on_duplicate, Box::new(send)))?;
            let mut taken = Ok(true);
            for chunk in &chunks {
                taken = take(&chunk);
                if !matches!(taken, Ok(true)) {
                    break;
                }
            }
            drop(chunks);
            let tally = maker.join().map_err(|_| anyhow!("the ordering thread panicked"))?;
            taken.and(tally)
        })
    }

    fn make(&self, skip: u64, on_duplicate: OnDuplicate, send: Send<'_>) -> Result<Tally> {
        let mut chunker = Chunker { skip, chunk: Vec::with_capacity(CHUNK_PAIRS), tally: Tally::default(), send };
        let whole = match &self.kind {
            Kind::Synthetic(Source::Synthetic { pairs, count }) => {
                chunker.tally.pairs = skip.min(*count);
                chunker.skip = 0;
                let mut wanted = true;
                for index in skip..*count {
                    wanted = chunker.push(pairs.key(index), pairs.value(index, 0))?;
                    if !wanted {
                        break;
                    }
                }
                wanted
            }
            Kind::Synthetic(_) => bail!("only synthetic pairs are in order by themselves"),
            Kind::Memory(records) => {
                let mut records = records.iter();
                merge::unique(&mut || Ok(records.next().map(|ranked| ranked.record)), on_duplicate, &mut chunker)?
            }
            Kind::Runs { spill, runs } => {
                let mut merge = Merge::open(self.work.dir(), *spill, runs, self.rank)?;
                merge::unique(&mut || merge.next(), on_duplicate, &mut chunker)?
            }
        };
        let tally = chunker.finish()?;
        // Whatever the checksums say: what was read has to come out again.
        let (Tally { pairs, duplicates }, records) = (tally, self.records);
        ensure!(
            !whole || pairs + duplicates == records,
            "the spill gives other records than were read: records={records} pairs={pairs} duplicates={duplicates}: \
             remove dir={} and start again with --resume",
            self.work.dir().display()
        );
        Ok(tally)
    }
}

/// Removes the spill in `dir` that a load of `source` has left, if one is there and no process uses it. Gives how many
/// files it had.
///
/// # Errors
/// The file system's, naming the file.
pub(crate) fn remove_spill(dir: &WorkDir, source: Option<&str>) -> Result<Option<usize>> {
    if !dir.path.exists() || (!dir.is_default && is_empty(&dir.path)) {
        return Ok(None);
    }
    // What is somebody else's, or in use, stays.
    let Ok(mut work) = Work::open(dir) else { return Ok(None) };
    let manifest = work.manifest();
    let files = match &manifest {
        Ok(Some(manifest)) if Some(manifest.source.as_str()) == source => manifest.runs.len(),
        Ok(Some(_)) => return Ok(None),
        // One that was cut short, or cannot be read, is nobody's.
        Ok(None) | Err(_) => 0,
    };
    work.remove()?;
    Ok(Some(files))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// The records that a load has spilled into `dir` so far; `None` where there is no spill. Takes no lock: a load that is
/// under way has it.
pub(crate) fn spilled_records(dir: &Path) -> Option<u64> {
    work::read_manifest(dir).ok().flatten().map(|manifest| manifest.records)
}

/// The number of a source that was read, in this order.
pub(crate) fn file_id(content: u64, order: Order, seed: u64) -> u64 {
    let identity = match order {
        // "by hash" because an earlier version shuffled in another way.
        Order::Shuffled => format!("content={content:016x} order=shuffled by hash seed={seed}"),
        Order::Sorted => format!("content={content:016x} order=sorted"),
    };
    source_id(identity.as_bytes())
}

/// Collects pairs into chunks, leaving out those before the resume position.
pub(crate) struct Chunker<'a> {
    skip: u64,
    chunk: Vec<(Key, Value)>,
    tally: Tally,
    send: Send<'a>,
}

impl Chunker<'_> {
    /// Adds a pair; `false` when no more are wanted.
    pub(crate) fn push(&mut self, key: Key, value: Value) -> Result<bool> {
        self.tally.pairs += 1;
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(true);
        }
        self.chunk.push((key, value));
        if self.chunk.len() < CHUNK_PAIRS {
            return Ok(true);
        }
        Ok((self.send)(std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_PAIRS))))
    }

    /// Decides between two records of one key, `earlier` before `later` in the source.
    pub(crate) fn duplicate(&mut self, earlier: &Record, later: &Record, on_duplicate: OnDuplicate) -> Result<()> {
        if earlier.2 != later.2 && on_duplicate == OnDuplicate::Error {
            bail!(
                "a key is given twice with different values: key={} records={} and {} (counted from 1); \
                 --on-duplicate last takes the later one",
                bs58::encode(earlier.1).into_string(),
                earlier.0 + 1,
                later.0 + 1
            );
        }
        self.tally.duplicates += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<Tally> {
        if !self.chunk.is_empty() {
            (self.send)(self.chunk);
        }
        Ok(self.tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Format;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs;

    /// Small enough that a few thousand records take several runs.
    fn small() -> Buffers {
        Buffers { sort_bytes: 1, heads_bytes: 1, ..Buffers::default() }
    }

    fn load(
        records: &[(Key, Value)],
        order: Order,
        rule: OnDuplicate,
        skip: u64,
        buffers: &Buffers,
    ) -> Result<(Vec<(Key, Value)>, Tally)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pairs");
        let bytes: Vec<u8> = records.iter().flat_map(|(k, v)| [*k, *v].concat()).collect();
        fs::write(&path, bytes).unwrap();
        let source = Source::File { path, format: Format::Raw };
        let ordered =
            Ordered::prepare(&source, order, 9, &WorkDir::named(dir.path().join("work")), buffers, &mut |_| Ok(()))?;
        let out = all(&ordered, rule, skip)?;
        ordered.discard()?;
        assert!(!dir.path().join("work").exists());
        Ok(out)
    }

    fn all(ordered: &Ordered, rule: OnDuplicate, skip: u64) -> Result<(Vec<(Key, Value)>, Tally)> {
        let mut out = Vec::new();
        let tally = ordered.for_each(skip, rule, &mut |chunk| {
            out.extend_from_slice(chunk);
            Ok(true)
        })?;
        Ok((out, tally))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn every_pair_once_and_the_same_from_any_position(
            records in prop::collection::vec((0u16..900, any::<u8>()), 1..5000), skip in 0u64..40
        ) {
            let record = |(key, value): &(u16, u8)| {
                let mut bytes = [0; 32];
                bytes[..2].copy_from_slice(&key.to_be_bytes());
                (bytes, [*value; 32])
            };
            let records: Vec<(Key, Value)> = records.iter().map(record).collect();
            let last: BTreeMap<Key, Value> = records.iter().copied().collect();
            for order in [Order::Shuffled, Order::Sorted] {
                let (pairs, tally) = load(&records, order, OnDuplicate::Last, 0, &small()).unwrap();
                prop_assert_eq!(pairs.iter().copied().collect::<BTreeMap<_, _>>(), last.clone());
                prop_assert_eq!((pairs.len(), tally.pairs), (last.len(), last.len() as u64));
                prop_assert_eq!(tally.duplicates as usize, records.len() - last.len());
                if order == Order::Sorted {
                    prop_assert!(pairs.is_sorted());
                }
                // The order is the same whatever the memory.
                let (rest, _) = load(&records, order, OnDuplicate::Last, skip, &Buffers::default()).unwrap();
                prop_assert_eq!(&rest[..], &pairs[(skip as usize).min(pairs.len())..]);
            }
        }
    }

    #[test]
    fn different_values_are_refused_equal_ones_are_not() {
        let load = |records: &[(u8, u8)], order| {
            let records: Vec<(Key, Value)> = records.iter().map(|(k, v)| ([*k; 32], [*v; 32])).collect();
            load(&records, order, OnDuplicate::Error, 0, &small())
        };
        for order in [Order::Shuffled, Order::Sorted] {
            let error = load(&[(1, 1), (2, 2), (1, 3)], order).unwrap_err();
            assert!(error.to_string().contains("records=1 and 3"), "{error:#}");
            let (pairs, tally) = load(&[(1, 1), (2, 2), (1, 1)], order).unwrap();
            assert_eq!((pairs.len(), tally.duplicates), (2, 1));
        }
    }

    fn synthetic(count: u64) -> Source {
        Source::Synthetic { pairs: workload::Pairs::new(3), count }
    }

    #[test]
    fn a_spill_that_was_cut_off_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let (work, path) = (WorkDir::named(dir.path().join("work")), dir.path().join("pairs"));
        let mut bytes = Vec::new();
        let add = &mut |record: Record| {
            bytes.extend([record.1, record.2].concat());
            Ok(())
        };
        synthetic(9000).for_each(add).unwrap();
        fs::write(&path, &bytes).unwrap();
        let file = Source::File { path: path.clone(), format: Format::Raw };
        for source in [file.clone(), synthetic(9000)] {
            let prepare = |tell: &mut Tell<'_>| Ordered::prepare(&source, Order::Sorted, 1, &work, &small(), tell);
            let cut = |records| if records == 8192 { bail!("cut off") } else { Ok(()) };
            let error = prepare(&mut { cut }).err().unwrap();
            assert!(format!("{error:#}").contains("cut off"), "{error:#}");
            let before = Work::open(&work).unwrap().manifest().unwrap().unwrap();
            assert_eq!((before.records, before.complete, before.runs.len()), (7168, false, 7));
            let ordered = prepare(&mut |records| if records > 7168 { Ok(()) } else { bail!("read again") }).unwrap();
            let after = ordered.work.manifest().unwrap().unwrap();
            assert_eq!((&after.spill, after.records, after.complete), (&before.spill, 9000, true));
            let (pairs, _) = all(&ordered, OnDuplicate::Error, 0).unwrap();
            assert!(pairs.is_sorted() && pairs.len() == 9000);
            drop(ordered);
            // Whole, it is used without reading anything.
            prepare(&mut |_| bail!("read again")).unwrap().discard().unwrap();
        }
        // Touched, it is compared and taken; changed, it is made anew.
        let prepare = || Ordered::prepare(&file, Order::Sorted, 1, &work, &small(), &mut |_| Ok(())).unwrap();
        let spill = |ordered: &Ordered| ordered.work.manifest().unwrap().unwrap().spill;
        let first = spill(&prepare());
        fs::write(&path, &bytes).unwrap();
        assert_eq!(spill(&prepare()), first);
        bytes[64 * 8999 + 40] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let changed = prepare();
        assert_ne!(spill(&changed), first);
        let (pairs, _) = all(&changed, OnDuplicate::Error, 0).unwrap();
        let expected: BTreeMap<Key, Value> = bytes
            .as_chunks::<64>()
            .0
            .iter()
            .map(|pair| (pair[..32].try_into().unwrap(), pair[32..].try_into().unwrap()))
            .collect();
        assert_eq!(pairs.into_iter().collect::<BTreeMap<_, _>>(), expected);
    }

    /// The checksums of two spills of one source are right, so only the numbers tell.
    #[test]
    fn a_spill_with_fewer_records_than_were_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let work = WorkDir::named(dir.path().join("work"));
        let mut ordered =
            Ordered::prepare(&synthetic(5000), Order::Sorted, 1, &work, &small(), &mut |_| Ok(())).unwrap();
        let Kind::Runs { runs, .. } = &mut ordered.kind else { panic!("5000 records are several runs") };
        runs.pop();
        let error = all(&ordered, OnDuplicate::Error, 0).unwrap_err().to_string();
        assert!(error.contains("records=5000 pairs=") && error.contains(&work.path.display().to_string()), "{error}");
    }
}
