//! Puts a source in order without holding it in memory, by an external merge sort. The order is that of the keys, or of
//! a seeded hash of them (shuffled). Duplicate keys are found here, where all copies of a key meet.
//!
//! Owns: the work directory. The order depends on the source's content and the seed alone. It depends neither on the
//! memory nor on how often the reading was interrupted, and that makes a load resumable. A damaged file of the spill is
//! refused by name, and so is a spill that gives other records than were read. Threads: `sort` sorts runs and `write`
//! writes them while the caller reads the source; `order` merges them a few chunks ahead of the caller.
//!
//! TRIED.md in the crate's folder has the figures of loads, and of `verify`.

mod asked;
mod chunk;
mod give_back;
mod heads;
mod merge;
mod run;
mod runs;
mod sort;
mod spill;
mod work;

use std::fs;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use anyhow::{Result, anyhow, ensure};
use engines::source_id;
use solana::archive::Listing;

use crate::identity::Stamp;
use crate::limits::{Buffers, Chunks};
use crate::rank::{Order, Rank};
use crate::source::{Files, Place, Record, Source, Told};
use chunk::{Chunker, Outlet};
use merge::{Merge, Rule};
use spill::{Spill, Spilled};
use work::{Manifest, Work};

pub(crate) use asked::Asked;
pub(crate) use chunk::{Chunk, Mark, Tally};
pub(crate) use spill::Tell;
pub(crate) use work::WorkDir;

/// How a key is treated that comes twice with different values. The same pair twice is harmless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnDuplicate {
    /// Stop with an error that names both places.
    #[default]
    Error,
    /// The last one in the source wins.
    Last,
}

/// A source in its final order, which can be read from any position.
pub(crate) struct Ordered {
    /// Identifies source, order and seed. A position is meaningful only within one such combination.
    pub(crate) source_id: u64,
    /// Digest of the source's records, duplicates included. `None` for a source that [`comes_in`] this order, because it
    /// is not read here.
    pub(crate) content: Option<u64>,
    /// Number of records, duplicates included: at least the number of pairs. Of a store it is an estimate.
    pub(crate) records: u64,
    /// Stamp of the source's file. `None` if it has none.
    pub(crate) stamp: Option<Stamp>,
    /// Blockhash of the source's slot; all zeros if it is unknown.
    pub(crate) blockhash: [u8; 32],
    /// List of files in the manifest of the source's archives; that of another source says nothing.
    pub(crate) listing: Listing,
    /// Of archives, whose records are versions: files that count in another order than that of the numbers.
    versions: Option<Files>,
    kind: Kind,
    rank: Rank,
    work: Work,
    chunks: Chunks,
    /// Bytes for the pieces of the runs being merged.
    heads_bytes: usize,
    /// Number of records between two marks. `None`: the spill stays whole.
    mark_every: Option<u64>,
}

enum Kind {
    /// Pairs of a source that [`comes_in`] this order.
    AsTheyCome(Source),
    /// All records in order, in one buffer.
    Memory(Vec<Record>),
    /// The rest of a spill that may have been given back in part.
    Runs(Manifest),
}

/// Takes a chunk of pairs in order; returns `false` to stop.
pub(crate) type Take<'a> = dyn FnMut(&Chunk) -> Result<bool> + 'a;

impl Ordered {
    /// Reads the source, and spills the records into `work` if they do not fit into one buffer. If an earlier process
    /// has left a spill of the same source there, continues with it. `stored` is the number of pairs at the beginning
    /// of the order that the caller does not want, because its store holds them. If more than these were given back
    /// from a spill, the spill is made again. `tell` is called with the number of records read, and may stop the
    /// reading.
    ///
    /// # Errors
    /// Errors of reading the source, naming the place; I/O errors or damage of the spill, naming the file; errors of
    /// `tell`.
    pub(crate) fn prepare(
        source: &Source,
        order: Order,
        seed: u64,
        work: &WorkDir,
        buffers: &Buffers,
        stored: u64,
        tell: &mut Tell<'_>,
    ) -> Result<Self> {
        let mut work = Work::open(work)?;
        let of = |source_id, records, kind, work| Self {
            source_id,
            content: None,
            records,
            stamp: None,
            blockhash: [0; 32],
            listing: Listing::Compared,
            versions: None,
            kind,
            rank: Rank::new(order, seed),
            work,
            chunks: buffers.chunks(order),
            heads_bytes: buffers.heads_bytes,
            mark_every: None,
        };
        if comes_in(source, order) {
            let records = source.count_hint()?.unwrap_or_default();
            return Ok(of(source_id(source.to_string().as_bytes()), records, Kind::AsTheyCome(source.clone()), work));
        }
        let read = Spill { source, order, seed, buffers, stored }.run(&mut work, tell)?;
        let kind = match read.spilled {
            Spilled::Memory(records) => Kind::Memory(records),
            Spilled::Runs(manifest) => Kind::Runs(*manifest),
        };
        let Told { files, blockhash, listing } = read.told;
        Ok(Self {
            content: Some(read.digest),
            stamp: read.stamp,
            blockhash,
            listing,
            versions: source.has_versions().then_some(files),
            ..of(file_id(read.digest, order, seed), read.records, kind, work)
        })
    }

    /// Removes the spill, once the load no longer needs it.
    ///
    /// # Errors
    /// I/O errors of removing a file, naming it.
    pub(crate) fn discard(mut self) -> Result<()> {
        self.work.remove()
    }

    /// Passes the pairs from position `skip` on to `take` in chunks, until `take` returns `false`. The thread `order`
    /// makes the chunks ahead of `take`, and fills those again that were taken.
    pub(crate) fn for_each(&self, skip: u64, on_duplicate: OnDuplicate, take: &mut Take<'_>) -> Result<Tally> {
        self.pass(skip, on_duplicate, false, take)
    }

    /// Passes the newest version of each key of archives to `take` in chunks, also those without a value, until `take`
    /// returns `false`.
    pub(crate) fn for_each_version(&self, take: &mut Take<'_>) -> Result<Tally> {
        self.pass(0, OnDuplicate::Last, true, take)
    }

    fn pass(&self, skip: u64, on_duplicate: OnDuplicate, with_absent: bool, take: &mut Take<'_>) -> Result<Tally> {
        std::thread::scope(|scope| {
            let (sender, chunks) = sync_channel(self.chunks.ahead);
            // It has room for all chunks that there are, so returning one never waits.
            let (return_to, spare) = sync_channel(self.chunks.count());
            let (pairs, mark_every) = (self.chunks.pairs, self.mark_every);
            let to = Outlet { pairs, with_absent, mark_every, chunks: sender, spare };
            let maker = std::thread::Builder::new()
                .name("order".to_owned())
                .spawn_scoped(scope, move || self.make(skip, on_duplicate, to))?;
            let mut taken = Ok(true);
            for chunk in &chunks {
                taken = take(&chunk);
                if !matches!(taken, Ok(true)) {
                    break;
                }
                // A chunk without pairs has no memory to fill again.
                if chunk.pairs.capacity() > 0 {
                    return_to.try_send(chunk.pairs).ok();
                }
            }
            drop(chunks);
            let tally = maker.join().map_err(|_| anyhow!("the ordering thread panicked"))?;
            taken.and(tally)
        })
    }

    fn make(&self, skip: u64, on_duplicate: OnDuplicate, to: Outlet) -> Result<Tally> {
        let rule = self.versions.as_ref().map_or(Rule::OnDuplicate(on_duplicate), Rule::Newest);
        let (whole, tally) = match &self.kind {
            Kind::AsTheyCome(source) => {
                // A store is read from its start, for the digest of all its pairs.
                let number = if let Source::Synthetic { count, .. } = source { skip.min(*count) } else { 0 };
                let mut chunker = Chunker::new(Tally { pairs: number, ..Tally::default() }, vec![0], skip, to);
                let mut wanted = true;
                let read = source.for_each_from(Place { bytes: 0, number }, &mut |record, _| {
                    wanted = chunker.push(&record, 0)?;
                    ensure!(wanted, "no more pairs are wanted");
                    Ok(())
                });
                if wanted {
                    read?;
                }
                return Ok(chunker.finish());
            }
            Kind::Memory(records) => {
                let mut chunker = Chunker::new(Tally::default(), vec![0], skip, to);
                let mut records = records.iter();
                // The records count as one run.
                let next = |into: &mut Record| {
                    Ok(records.next().map(|record| {
                        *into = *record;
                        0
                    }))
                };
                (merge::unique(next, rule, &mut chunker)?, chunker.finish())
            }
            Kind::Runs(manifest) => {
                self.check_given_back(manifest.given_back, skip, on_duplicate)?;
                let taken = manifest.runs.iter().map(|run| run.taken).collect();
                let mut chunker = Chunker::new(manifest.given_back, taken, skip, to);
                let (dir, spill) = (self.work.dir(), manifest.spill()?);
                let mut merge = Merge::open(dir, spill, &manifest.runs, self.rank, self.heads_bytes)?;
                (merge::unique(|into| merge.next(into), rule, &mut chunker)?, chunker.finish())
            }
        };
        // Checksums cannot find a missing run, so count too: every record that was read must come out again.
        let (Tally { pairs, duplicates, .. }, records) = (tally, self.records);
        ensure!(
            !whole || tally.records() == records,
            "the spill gives other records than were read: records={records} pairs={pairs} duplicates={duplicates}: \
             remove dir={} and start again, a load of bootstrap with --resume",
            self.work.dir().display()
        );
        Ok(tally)
    }
}

/// Whether the pairs of a source come in this order by themselves, so that no spill puts them in order.
pub(crate) fn comes_in(source: &Source, order: Order) -> bool {
    match source {
        Source::Synthetic { .. } => order == Order::Shuffled,
        Source::File { .. } | Source::Archives(_) => false,
        Source::Store(stored) => order == Order::Sorted && !stored.is_derived(),
    }
}

/// Removes the spill in `dir` if a load of `source` has left it, or if it has no readable manifest. A spill that a
/// process uses stays. Returns the number of its runs, or `None` if nothing was removed.
///
/// # Errors
/// I/O errors of listing the directory or removing a file, naming it.
pub(crate) fn remove_spill(dir: &WorkDir, source: Option<&str>) -> Result<Option<usize>> {
    if !dir.path.exists() || (!dir.is_default && is_empty(&dir.path)) {
        return Ok(None);
    }
    // A directory that is in use, or holds files of others, stays.
    let Ok(mut work) = Work::open(dir) else { return Ok(None) };
    let manifest = work.manifest();
    let files = match &manifest {
        Ok(Some(manifest)) if Some(manifest.source.as_str()) == source => manifest.runs.len(),
        Ok(Some(_)) => return Ok(None),
        // A spill without a readable manifest is of no use.
        Ok(None) | Err(_) => 0,
    };
    work.remove()?;
    Ok(Some(files))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns the number of records that a load has spilled into `dir` so far; `None` if there is no spill. Takes no lock,
/// because a running load holds it.
pub(crate) fn spilled_records(dir: &Path) -> Option<u64> {
    work::read_manifest(dir).ok().flatten().map(|manifest| manifest.records)
}

/// Returns the source, as messages name it, that a load has spilled into `dir` so far, and the load's options; `None`
/// if there is no spill. Takes no lock.
pub(crate) fn spilled_source(dir: &Path) -> Option<(String, Asked)> {
    work::read_manifest(dir).ok().flatten().map(|manifest| (manifest.source, manifest.asked))
}

/// Whether a load has read all of its source and spilled it into `dir`. Takes no lock.
pub(crate) fn is_spilled(dir: &Path) -> bool {
    work::read_manifest(dir).ok().flatten().is_some_and(|manifest| manifest.complete)
}

/// Whether a part of the spill in `dir` was given back to the file system. Takes no lock.
pub(crate) fn is_given_back(dir: &Path) -> bool {
    work::read_manifest(dir).ok().flatten().is_some_and(|manifest| manifest.given_back.records() > 0)
}

/// Computes the id of a source with this content and order.
pub(crate) fn file_id(content: u64, order: Order, seed: u64) -> u64 {
    let identity = match order {
        // "by hash" because an earlier version shuffled in another way.
        Order::Shuffled => format!("content={content:016x} order=shuffled by hash seed={seed}"),
        Order::Sorted => format!("content={content:016x} order=sorted"),
    };
    source_id(identity.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::Seen;
    use crate::source::{Archives, Format};
    use anyhow::bail;
    use engine_api::{Key, Value};
    use proptest::prelude::*;
    use solana::Extract;
    use std::collections::BTreeMap;
    use std::fs;

    /// Buffers so small that a few thousand records take several runs.
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
        let work = WorkDir::named(dir.path().join("work"));
        let ordered = Ordered::prepare(&source, order, 9, &work, buffers, skip, &mut |_| Ok(()))?;
        let out = all(&ordered, rule, skip)?;
        ordered.discard()?;
        assert!(!dir.path().join("work").exists());
        Ok(out)
    }

    fn all(ordered: &Ordered, rule: OnDuplicate, skip: u64) -> Result<(Vec<(Key, Value)>, Tally)> {
        let mut out = Vec::new();
        let tally = ordered.for_each(skip, rule, &mut |chunk| {
            out.extend_from_slice(&chunk.pairs);
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
                // The order must be the same for any memory.
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
            let error = engine_api::words(error.as_ref());
            assert!(error.starts_with("E-INPUT: ") && error.contains("records=1 and 3"), "{error}");
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
            let prepare = |tell: &mut Tell<'_>| Ordered::prepare(&source, Order::Sorted, 1, &work, &small(), 0, tell);
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
            // A complete spill is used without reading the source again.
            prepare(&mut |_| bail!("read again")).unwrap().discard().unwrap();
        }
        // A file with new times is compared with its spill and accepted. A changed one is spilled again.
        let prepare = || Ordered::prepare(&file, Order::Sorted, 1, &work, &small(), 0, &mut |_| Ok(())).unwrap();
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

    /// A spill that is whole is not read again from its archive, which alone knows the blockhash.
    #[test]
    fn a_spill_of_an_archive_keeps_the_blockhash() {
        let name = "snapshot-351000355-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar.zst";
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("solana/tests/data").join(name);
        let source =
            Source::Archives(Archives::new(&archive, None, Some(Extract::TokenOwner), &Seen::default()).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let work = WorkDir::named(dir.path().join("work"));
        for _ in 0..2 {
            let ordered = Ordered::prepare(&source, Order::Sorted, 1, &work, &small(), 0, &mut |_| Ok(())).unwrap();
            assert!(ordered.is_spilled());
            let blockhash = bs58::encode(ordered.blockhash).into_string();
            assert_eq!(blockhash, "DwoLY1vBXCYkiP3skMdvmSPgNobUGMKCMdnh4J8rc9dH");
        }
        assert!(is_spilled(&work.path));
    }

    /// Removes a run from a spill. The checksums of the others are right, so only the number of records tells.
    #[test]
    fn a_spill_with_fewer_records_than_were_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let work = WorkDir::named(dir.path().join("work"));
        let mut ordered =
            Ordered::prepare(&synthetic(5000), Order::Sorted, 1, &work, &small(), 0, &mut |_| Ok(())).unwrap();
        let Kind::Runs(manifest) = &mut ordered.kind else { panic!("5000 records are several runs") };
        manifest.runs.pop();
        let error = all(&ordered, OnDuplicate::Error, 0).unwrap_err().to_string();
        assert!(error.contains("records=5000 pairs=") && error.contains(&work.path.display().to_string()), "{error}");
    }
}
