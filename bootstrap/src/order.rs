//! Puts a source in order without holding it in memory: shuffled (partition into buckets by a seeded hash, shuffle
//! each) or sorted (external merge sort). Duplicate keys are found here, where all copies of a key meet.
//!
//! Owns: the work directory. Its manifest is written last and synced: a spill that was cut short is made anew.
//! The order is a function of the source's content and the seed, which is what makes a load resumable.

mod merge;
mod shuffle;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result, anyhow, bail, ensure};
use engine_api::{Key, Value};
use serde::{Deserialize, Serialize};
use workload::source_id;
use xxhash_rust::xxh3::Xxh3;

use crate::limits::{CHUNK_PAIRS, CHUNKS_AHEAD};
use crate::source::{Record, Source};
use crate::state::write_atomically;

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

/// A source in its final order, to be read from any position.
pub(crate) struct Ordered {
    /// Identifies source, order and seed: positions of one mean nothing in another.
    pub(crate) source_id: u64,
    /// Records, duplicates included: at least the number of pairs.
    pub(crate) records: u64,
    kind: Kind,
}

enum Kind {
    /// Synthetic pairs come in random key order by themselves.
    Synthetic {
        source: Source,
    },
    Shuffled {
        dir: PathBuf,
        seed: u64,
    },
    Sorted {
        dir: PathBuf,
        runs: usize,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    source: String,
    order: Order,
    seed: u64,
    records: u64,
    /// xxh3 of all records in source order, as hex: TOML's integers are signed.
    content: String,
    runs: usize,
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
    /// Reads the source once and spills it into `work`, or takes up a finished spill of the same source there.
    /// `progress` is told the number of records read.
    pub(crate) fn prepare(
        source: &Source,
        order: Order,
        seed: u64,
        work: &Path,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        if let (Source::Synthetic { pairs, count, .. }, Order::Shuffled) = (source, order) {
            let kind = Kind::Synthetic { source: source.clone() };
            return Ok(Self { source_id: pairs.source_id(*count), records: *count, kind });
        }
        let path = work.join("manifest.toml");
        let manifest = match fs::read_to_string(&path) {
            Ok(text) => {
                let known: Manifest =
                    toml::from_str(&text).with_context(|| format!("cannot read file={}", path.display()))?;
                ensure!(
                    (known.source.as_str(), known.order, known.seed) == (&source.to_string(), order, seed),
                    "work directory is of another load: dir={} source={:?} order={} seed={}; remove it or name \
                     another with --work-dir",
                    work.display(),
                    known.source,
                    known.order.name(),
                    known.seed
                );
                known
            }
            Err(_) => spill(source, order, seed, work, progress)?,
        };
        let identity = format!("content={} order={order:?} seed={seed}", manifest.content);
        let dir = work.to_owned();
        let kind = match order {
            Order::Shuffled => Kind::Shuffled { dir, seed },
            Order::Sorted => Kind::Sorted { dir, runs: manifest.runs },
        };
        Ok(Self { source_id: source_id(identity.as_bytes()), records: manifest.records, kind })
    }

    /// Hands on the pairs from position `skip`, in chunks, until `take` says stop. Chunks are made on a thread of their
    /// own, `order`, a few ahead of what is taken.
    pub(crate) fn for_each(&self, skip: u64, on_duplicate: OnDuplicate, take: &mut Take<'_>) -> Result<Tally> {
        std::thread::scope(|scope| {
            let (sender, chunks) = sync_channel(CHUNKS_AHEAD);
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
        match &self.kind {
            Kind::Synthetic { source: Source::Synthetic { pairs, count, .. } } => {
                chunker.tally.pairs = skip.min(*count);
                chunker.skip = 0;
                for index in skip..*count {
                    if !chunker.push(pairs.key(index), pairs.value(index, 0))? {
                        break;
                    }
                }
            }
            Kind::Synthetic { .. } => bail!("only synthetic pairs are in order by themselves"),
            Kind::Shuffled { dir, seed } => shuffle::for_each(dir, *seed, on_duplicate, &mut chunker)?,
            Kind::Sorted { dir, runs } => merge::for_each(dir, *runs, on_duplicate, &mut chunker)?,
        }
        chunker.finish()
    }
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

fn spill(
    source: &Source,
    order: Order,
    seed: u64,
    work: &Path,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Manifest> {
    // Whatever is there has no manifest: a spill that was cut short.
    if work.exists() {
        fs::remove_dir_all(work).with_context(|| format!("cannot clear dir={}", work.display()))?;
    }
    fs::create_dir_all(work).with_context(|| format!("cannot create dir={}", work.display()))?;
    let mut hash = Xxh3::new();
    let mut records = 0u64;
    let mut each = |sink: &mut dyn FnMut(Record) -> Result<()>| {
        source.for_each(&mut |record| {
            hash.update(&record.1);
            hash.update(&record.2);
            records += 1;
            if records.is_multiple_of(1 << 16) {
                progress(records)?;
            }
            sink(record)
        })
    };
    let runs = match order {
        Order::Shuffled => shuffle::spill(work, seed, &mut each).map(|()| 0),
        Order::Sorted => merge::spill(work, &mut each),
    }?;
    let content = format!("{:016x}", hash.digest());
    let manifest = Manifest { source: source.to_string(), order, seed, records, content, runs };
    write_atomically(&work.join("manifest.toml"), toml::to_string(&manifest)?.as_bytes())?;
    Ok(manifest)
}

/// Drives a sink with every record of the source.
pub(crate) type Each<'a> = dyn FnMut(&mut dyn FnMut(Record) -> Result<()>) -> Result<()> + 'a;

/// A record in a spill file.
pub(crate) fn encode(record: &Record) -> [u8; crate::limits::RECORD_BYTES] {
    let mut out = [0u8; crate::limits::RECORD_BYTES];
    out[..8].copy_from_slice(&record.0.to_le_bytes());
    out[8..40].copy_from_slice(&record.1);
    out[40..].copy_from_slice(&record.2);
    out
}

pub(crate) fn decode(bytes: &[u8; crate::limits::RECORD_BYTES]) -> Record {
    let position = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    (position, std::array::from_fn(|i| bytes[8 + i]), std::array::from_fn(|i| bytes[40 + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Format;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn load(records: &[(u8, u8)], order: Order, rule: OnDuplicate, skip: u64) -> Result<(Vec<(Key, Value)>, Tally)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pairs");
        let bytes: Vec<u8> = records.iter().flat_map(|(k, v)| [[*k; 32], [*v; 32]].concat()).collect();
        fs::write(&path, bytes).unwrap();
        let source = Source::File { path, format: Format::Raw };
        let mut out = Vec::new();
        let ordered = Ordered::prepare(&source, order, 9, &dir.path().join("work"), &mut |_| Ok(()))?;
        let tally = ordered.for_each(skip, rule, &mut |chunk| {
            out.extend_from_slice(chunk);
            Ok(true)
        })?;
        Ok((out, tally))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn every_pair_once_and_the_same_from_any_position(records in prop::collection::vec(any::<(u8, u8)>(), 0..120), skip in 0u64..40) {
            let last: BTreeMap<Key, Value> = records.iter().map(|(k, v)| ([*k; 32], [*v; 32])).collect();
            for order in [Order::Shuffled, Order::Sorted] {
                let (pairs, tally) = load(&records, order, OnDuplicate::Last, 0).unwrap();
                prop_assert_eq!(pairs.iter().copied().collect::<BTreeMap<_, _>>(), last.clone());
                prop_assert_eq!((pairs.len(), tally.pairs), (last.len(), last.len() as u64));
                prop_assert_eq!(tally.duplicates as usize, records.len() - last.len());
                if order == Order::Sorted {
                    prop_assert!(pairs.is_sorted());
                }
                let (rest, _) = load(&records, order, OnDuplicate::Last, skip).unwrap();
                prop_assert_eq!(&rest[..], &pairs[(skip as usize).min(pairs.len())..]);
            }
        }
    }

    #[test]
    fn different_values_are_refused_equal_ones_are_not() {
        for order in [Order::Shuffled, Order::Sorted] {
            let error = load(&[(1, 1), (2, 2), (1, 3)], order, OnDuplicate::Error, 0).unwrap_err();
            assert!(error.to_string().contains("records=1 and 3"), "{error:#}");
            let (pairs, tally) = load(&[(1, 1), (2, 2), (1, 1)], order, OnDuplicate::Error, 0).unwrap();
            assert_eq!((pairs.len(), tally.duplicates), (2, 1));
        }
    }
}
