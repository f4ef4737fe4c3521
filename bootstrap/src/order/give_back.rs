//! Gives the spill back to the file system while the store takes its pairs, so that the disk never holds both whole.
//!
//! Owns: the order of the two steps. First the manifest says durably how many records of each run are not needed any
//! more, then their blocks go. A load that is killed in between still has these blocks and does not read them. Must
//! not: decide which pairs the store holds durably, because only the caller knows. Runs on the main thread; the checks
//! run on `order`.

use anyhow::{Result, ensure};

use super::chunk::{Mark, Tally};
use super::run::Run;
use super::work::Manifest;
use super::{Kind, OnDuplicate, Ordered};
use crate::limits::GIVEN_BACK_PARTS;

impl Ordered {
    /// Whether there is a spill.
    pub(crate) fn is_spilled(&self) -> bool {
        matches!(self.kind, Kind::Runs(_))
    }

    /// Whether the chunks have marks, so that the spill is given back part by part.
    pub(crate) fn gives_back(&self) -> bool {
        self.mark_every.is_some()
    }

    /// Asks for marks in the chunks, and for chunks that are small enough, if there is a spill and its file system can
    /// make holes in files.
    ///
    /// # Errors
    /// I/O errors of trying that in the work directory, naming the file.
    pub(crate) fn begin_giving_back(&mut self) -> Result<()> {
        if self.is_spilled() && self.work.can_give_back()? {
            self.mark_every = Some(self.records / GIVEN_BACK_PARTS);
            self.chunks = self.chunks.for_giving_back(self.records);
        }
        Ok(())
    }

    /// Gives all blocks before `mark` back to the file system. The store must hold the pairs before it durably. Chunks
    /// can be made from a later position alone afterwards.
    ///
    /// # Errors
    /// I/O errors of writing the manifest or of giving blocks back, naming the file.
    pub(crate) fn give_back(&self, mark: &Mark) -> Result<()> {
        let Kind::Runs(manifest) = &self.kind else { return Ok(()) };
        let manifest = self.note(manifest, mark)?;
        manifest.runs.iter().try_for_each(|run| run.give_back(self.work.dir()))
    }

    /// Writes durably that the records before `mark` are not needed any more.
    fn note(&self, manifest: &Manifest, mark: &Mark) -> Result<Manifest> {
        let runs = manifest.runs.iter().zip(&mark.taken).map(|(run, taken)| Run { taken: *taken, ..*run });
        let manifest = Manifest { given_back: mark.tally, runs: runs.collect(), ..manifest.clone() };
        self.work.write(&manifest)?;
        Ok(manifest)
    }

    /// Refuses to continue where the records that were given back are needed: for pairs after `skip`, or because two
    /// values of one key are an error.
    pub(super) fn check_given_back(&self, given: Tally, skip: u64, on_duplicate: OnDuplicate) -> Result<()> {
        let (dir, Tally { pairs, replaced, .. }) = (self.work.dir().display(), given);
        ensure!(
            pairs <= skip,
            "another process has changed the store while this one began: work_dir={dir} given_back_pairs={pairs} \
             stored_pairs={skip}: start again, a load of bootstrap with --resume"
        );
        ensure!(
            replaced == 0 || on_duplicate == OnDuplicate::Last,
            "a key is given twice with different values, and an earlier run took the later one with --on-duplicate last: \
             keys={replaced} of the first pairs={pairs} work_dir={dir}: add --on-duplicate last, or remove the store and \
             that directory and start again"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::BLOCK_BYTES;
    use crate::limits::{Buffers, CHUNK_PAIRS, SORT_RECORD_BYTES};
    use crate::order::WorkDir;
    use crate::rank::Order;
    use crate::source::{Format, Source};
    use engine_api::{Key, Value};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    type Pairs = Vec<(Key, Value)>;

    /// Returns buffers for runs of `records` records, of which `runs` are merged at once.
    fn buffers(records: usize, runs: usize) -> Buffers {
        Buffers { sort_bytes: records * SORT_RECORD_BYTES, heads_bytes: runs * BLOCK_BYTES, ..Buffers::default() }
    }

    fn raw_file(dir: &Path, records: &[(Key, Value)]) -> Source {
        let path = dir.join("pairs");
        fs::write(&path, records.iter().flat_map(|(k, v)| [*k, *v].concat()).collect::<Vec<u8>>()).unwrap();
        Source::File { path, format: Format::Raw }
    }

    fn synthetic(count: u64) -> Source {
        Source::Synthetic { pairs: workload::Pairs::new(3), count }
    }

    fn prepare(source: &Source, order: Order, work: &WorkDir, buffers: &Buffers, stored: u64) -> Ordered {
        let mut ordered = Ordered::prepare(source, order, 9, work, buffers, stored, &mut |_| Ok(())).unwrap();
        ordered.begin_giving_back().unwrap();
        assert_eq!(ordered.gives_back(), ordered.is_spilled(), "the tests need a file system with holes");
        ordered
    }

    /// Takes all pairs after `skip`.
    fn rest(ordered: &Ordered, skip: u64) -> Result<(Pairs, Tally)> {
        let mut out = Vec::new();
        let tally = ordered.for_each(skip, OnDuplicate::Last, &mut |chunk| {
            out.extend_from_slice(&chunk.pairs);
            Ok(true)
        })?;
        Ok((out, tally))
    }

    /// The end of a load that is killed: after this many chunks with a mark, and with this much of the newest mark
    /// given back.
    #[derive(Clone, Copy, Debug)]
    struct Cut {
        marks: usize,
        /// Whether the manifest was written. Without it nothing was given back.
        is_noted: bool,
        /// Number of runs whose blocks were given back before the kill.
        runs: usize,
        /// Whether the store holds pairs after the mark too.
        is_ahead: bool,
    }

    fn cut() -> impl Strategy<Value = Cut> {
        (1usize..3, prop::bool::weighted(0.8), 0usize..9, any::<bool>())
            .prop_map(|(marks, is_noted, runs, is_ahead)| Cut { marks, is_noted, runs, is_ahead })
    }

    /// Runs a load up to a cut and adds its pairs to `stored`. Returns the counts if the load has come to its end.
    fn run_to(cut: Cut, ordered: &Ordered, stored: &mut Pairs) -> Option<Tally> {
        let (mut marks, mut is_cut, skip) = (0, false, stored.len() as u64);
        let tally = ordered.for_each(skip, OnDuplicate::Last, &mut |chunk| {
            stored.extend_from_slice(&chunk.pairs);
            let Some(mark) = &chunk.mark else { return Ok(!is_cut) };
            assert_eq!(mark.pairs(), stored.len() as u64);
            marks += 1;
            if is_cut || marks < cut.marks {
                return Ok(!is_cut);
            }
            if let (Kind::Runs(manifest), true) = (&ordered.kind, cut.is_noted) {
                let noted = ordered.note(manifest, mark)?;
                noted.runs.iter().take(cut.runs).try_for_each(|run| run.give_back(ordered.work.dir()))?;
            }
            is_cut = true;
            // A store that is ahead takes one more chunk.
            Ok(cut.is_ahead)
        });
        (!is_cut).then_some(tally.unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// The load is killed again and again, and continues each time with other buffers.
        #[test]
        fn pairs_and_counts_are_the_same_from_every_cut(
            records in prop::collection::vec((0u16..24_000, any::<bool>()), 2 * CHUNK_PAIRS..36_000),
            cuts in prop::collection::vec((cut(), 1usize..7, 2usize..40), 12)
        ) {
            let record = |(key, value): &(u16, bool)| {
                let mut bytes = [0; 32];
                bytes[..2].copy_from_slice(&key.to_be_bytes());
                (bytes, [u8::from(*value); 32])
            };
            let records: Pairs = records.iter().map(record).collect();
            let last: BTreeMap<Key, Value> = records.iter().copied().collect();
            let dir = tempfile::tempdir().unwrap();
            let source = raw_file(dir.path(), &records);
            for order in [Order::Sorted, Order::Shuffled] {
                let whole = prepare(&source, order, &WorkDir::named(dir.path().join("whole")), &buffers(1 << 20, 2), 0);
                let (expected, tally) = rest(&whole, 0).unwrap();
                prop_assert_eq!(expected.iter().copied().collect::<BTreeMap<_, _>>(), last.clone());
                let work = WorkDir::named(dir.path().join(order.name()));
                let mut stored = Vec::new();
                let mut end = None;
                for (cut, thousands, runs) in &cuts {
                    let ordered = prepare(&source, order, &work, &buffers(thousands * 1024, *runs), stored.len() as u64);
                    end = run_to(*cut, &ordered, &mut stored);
                    if end.is_some() {
                        break;
                    }
                }
                if end.is_none() {
                    let ordered = prepare(&source, order, &work, &buffers(1024, 2), stored.len() as u64);
                    let (pairs, tally) = rest(&ordered, stored.len() as u64).unwrap();
                    stored.extend(pairs);
                    end = Some(tally);
                }
                prop_assert_eq!(end, Some(tally));
                prop_assert!(stored == expected, "{:?}: other pairs", order);
            }
        }
    }

    #[test]
    fn store_and_spill_together_take_little_more_than_the_spill_alone() {
        const RECORDS: u64 = 100_000;
        let dir = tempfile::tempdir().unwrap();
        let work = WorkDir::named(dir.path().join("work"));
        let ordered = prepare(&synthetic(RECORDS), Order::Sorted, &work, &buffers(6144, 40), 0);
        let spill_bytes = probe::disk_bytes(&work.path);
        assert!(spill_bytes >= RECORDS * 72, "{spill_bytes}");
        let (mut stored_bytes, mut peak_bytes) = (0, 0);
        ordered
            .for_each(0, OnDuplicate::Error, &mut |chunk| {
                stored_bytes += chunk.pairs.len() as u64 * 64;
                peak_bytes = peak_bytes.max(stored_bytes + probe::disk_bytes(&work.path));
                chunk.mark.as_ref().map_or(Ok(true), |mark| ordered.give_back(mark).map(|()| true))
            })
            .unwrap();
        assert_eq!(stored_bytes, RECORDS * 64);
        // One chunk is 4% of the pairs here.
        assert!(peak_bytes * 100 <= spill_bytes * 112, "spill={spill_bytes} peak={peak_bytes}");
        assert!(probe::disk_bytes(&work.path) * 5 < spill_bytes, "the last mark is close to the end");
    }

    /// Buffers for two runs of 20,000 records, so that the first mark is after whole blocks of each.
    fn two_runs() -> Buffers {
        buffers(10_240, 40)
    }

    /// Gives the first part of a spill back, as a load does. Returns the pairs before the mark.
    fn give_back_first(ordered: &Ordered) -> u64 {
        let mut given = 0;
        ordered
            .for_each(0, OnDuplicate::Last, &mut |chunk| {
                let mark = chunk.mark.as_ref().unwrap();
                given = mark.pairs();
                ordered.give_back(mark).map(|()| false)
            })
            .unwrap();
        given
    }

    #[test]
    fn a_spill_is_made_anew_for_a_store_that_lacks_the_given_part() {
        let dir = tempfile::tempdir().unwrap();
        let work = WorkDir::named(dir.path().join("work"));
        let source = synthetic(20_000);
        let whole = prepare(&source, Order::Sorted, &work, &two_runs(), 0);
        let (expected, _) = rest(&whole, 0).unwrap();
        let given = give_back_first(&whole);
        drop(whole);
        // The rest is used without reading the source again.
        let unread = &mut |_| anyhow::bail!("read again");
        let again = Ordered::prepare(&source, Order::Sorted, 9, &work, &two_runs(), given, unread).unwrap();
        assert!(rest(&again, given).unwrap().0 == expected[given as usize..]);
        let error = rest(&again, given - 1).unwrap_err().to_string();
        assert!(error.contains("given_back_pairs=") && error.contains("start again"), "{error}");
        drop(again);
        let anew = prepare(&source, Order::Sorted, &work, &two_runs(), given - 1);
        assert!(rest(&anew, 0).unwrap().0 == expected);
    }

    #[test]
    fn two_values_of_a_key_are_an_error_also_where_they_were_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut records: Pairs =
            (0..20_000u32).map(|n| ([n.to_be_bytes(); 8].concat().try_into().unwrap(), [1; 32])).collect();
        records.push((records[5].0, [2; 32]));
        let source = raw_file(dir.path(), &records);
        let work = WorkDir::named(dir.path().join("work"));
        let given = give_back_first(&prepare(&source, Order::Sorted, &work, &two_runs(), 0));
        let ordered = prepare(&source, Order::Sorted, &work, &two_runs(), given);
        let error = ordered.for_each(given, OnDuplicate::Error, &mut |_| Ok(true)).unwrap_err().to_string();
        assert!(error.contains("keys=1 ") && error.contains("add --on-duplicate last"), "{error}");
        assert_eq!(rest(&ordered, given).unwrap().1, Tally { pairs: 20_000, duplicates: 1, replaced: 1, absent: 0 });
    }

    #[test]
    fn no_block_goes_unless_the_manifest_has_said_so() {
        let dir = tempfile::tempdir().unwrap();
        let work = WorkDir::named(dir.path().join("work"));
        let source = synthetic(20_000);
        let ordered = prepare(&source, Order::Sorted, &work, &two_runs(), 0);
        let (expected, _) = rest(&ordered, 0).unwrap();
        // A directory of that name keeps the manifest from being replaced.
        fs::create_dir(work.path.join("manifest.tmp")).unwrap();
        let failed = ordered.for_each(0, OnDuplicate::Last, &mut |chunk| {
            chunk.mark.as_ref().map_or(Ok(true), |mark| ordered.give_back(mark).map(|()| true))
        });
        assert!(failed.unwrap_err().to_string().contains("manifest"));
        fs::remove_dir(work.path.join("manifest.tmp")).unwrap();
        drop(ordered);
        let ordered = prepare(&source, Order::Sorted, &work, &two_runs(), 0);
        assert!(rest(&ordered, 0).unwrap().0 == expected);
    }
}
