//! Reads a source into sorted runs. Runs that an earlier process has flushed are used again.
//!
//! Owns: the decision which runs may be used again. A spill belongs to one source. The spill of another source is
//! removed, and a line says so. If the source's file may have changed, it is compared with the spill while it is read.
//! Must not: write a run, which `runs` does. Threads: the caller's thread reads and collects; meanwhile `sort` and
//! `write` make runs of full buffers.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use anyhow::{Error, Result, anyhow, ensure};
use engine_api::{Code, ErrorKind};

use super::merge::combine;
use super::runs::{Batch, sort_batches, write_runs};
use super::sort::Sorted;
use super::work::{Manifest, Work};
use crate::identity::{Content, Stamp};
use crate::limits::{Buffers, COMBINED_PARTS, SORT_BUFFERS};
use crate::out::tell;
use crate::rank::{Order, Rank};
use crate::source::{Place, Record, Source, Told};

/// Number of records between two calls of [`Tell`].
const TELL_EVERY: u64 = 4096;

/// Called with the number of records read so far, while a source is read. An error stops the reading.
pub(crate) type Tell<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Outcome of reading a source to its end.
pub(super) struct Read {
    /// Digest of the source's records, duplicates included.
    pub(super) digest: u64,
    /// Number of records, duplicates included.
    pub(super) records: u64,
    /// Stamp of the source's file. `None` if it has none.
    pub(super) stamp: Option<Stamp>,
    /// Facts that the source has told at its end.
    pub(super) told: Told,
    pub(super) spilled: Spilled,
}

/// Where the source's records are.
pub(super) enum Spilled {
    /// All of them in order in one buffer. Nothing was written.
    Memory(Vec<Record>),
    /// In the runs of this manifest, no more of them than can be merged at once.
    Runs(Box<Manifest>),
}

/// Spills one source with one set of options.
pub(super) struct Spill<'a> {
    pub(super) source: &'a Source,
    pub(super) order: Order,
    pub(super) seed: u64,
    pub(super) buffers: &'a Buffers,
    /// Number of pairs from the first one of the order that the store holds.
    pub(super) stored: u64,
}

/// State of a spill when the reading begins.
struct Begun {
    manifest: Manifest,
    /// Whether the records in the runs must be read again from the source and compared.
    compare: bool,
}

/// The source's records differ from the records in the spill.
#[derive(Debug)]
struct Changed;

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the source is not the one that the spill was made from")
    }
}

impl std::error::Error for Changed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&Code::InputChanged)
    }
}

/// Place of the records that were read. `Some`: all of them are in this buffer, in order. `None`: they are in the
/// manifest's runs.
type Left = Option<(Content, Vec<Record>, Told)>;

impl Spill<'_> {
    /// Reads the source if the spill is not complete, and merges runs until the rest can be merged at once.
    pub(super) fn run(&self, work: &mut Work, tell: &mut Tell<'_>) -> Result<Read> {
        let stamp = Stamp::of(self.source)?;
        let (manifest, left) = match self.take_up(work, stamp)? {
            Some(Begun { manifest, compare: false }) if manifest.complete => (manifest, None),
            Some(begun) => match self.read(work, &begun, stamp, tell) {
                Err(error) if error.is::<Changed>() => self.start_over(work, stamp, tell, error)?,
                read => read?,
            },
            None => self.read(work, &self.nothing(), stamp, tell)?,
        };
        match left {
            Some((content, records, told)) => {
                let (digest, spilled) = (content.digest(), Spilled::Memory(records));
                Ok(Read { digest, records: content.records(), stamp, told, spilled })
            }
            None => self.end(work, manifest, tell),
        }
    }

    /// Returns the spill in `work` if it may belong to this source. Removes the spill of another source.
    fn take_up(&self, work: &Work, stamp: Option<Stamp>) -> Result<Option<Begun>> {
        let Some(mut manifest) = work.manifest()? else {
            work.keep(&[])?;
            return Ok(None);
        };
        let dir = work.dir().display();
        if let Some(difference) = self.difference(&manifest, stamp) {
            tell!("the spill is from another load and is made again: dir={dir} {difference}");
            work.keep(&[])?;
            return Ok(None);
        }
        let (given, stored) = (manifest.given_back.pairs, self.stored);
        if given > stored {
            tell!(
                "the source is read again from its start, because a part of its spill was given back to the file system and the \
                 store does not hold that part: dir={dir} given_back_pairs={given} stored_pairs={stored}"
            );
            work.keep(&[])?;
            return Ok(None);
        }
        work.keep(&manifest.runs)?;
        if manifest.asked != *work.asked() {
            manifest.asked = work.asked().clone();
            work.write(&manifest)?;
        }
        let synthetic = matches!(self.source, Source::Synthetic { .. });
        let trusted =
            synthetic || (stamp.is_some() && stamp == manifest.stamp && self.source.to_string() == manifest.source);
        let records = manifest.records;
        match (trusted, manifest.complete) {
            (true, true) if given > 0 => {
                tell!("the rest of the spill is used again: dir={dir} records={records} given_back_pairs={given}");
            }
            (true, true) => tell!("the spill is whole and is used again: dir={dir} records={records}"),
            (true, false) => tell!("continuing the spill: dir={dir} records={records}"),
            (false, _) => tell!(
                "the source is read again from its start, to compare it with the spill: dir={dir} records={records}"
            ),
        }
        Ok(Some(Begun { manifest, compare: !trusted }))
    }

    /// Describes why the spill cannot belong to this source; `None` if it may.
    fn difference(&self, known: &Manifest, stamp: Option<Stamp>) -> Option<String> {
        let words = self.source.to_string();
        // Another extraction from the same archive is another source.
        let by_words = matches!(self.source, Source::Synthetic { .. }) || self.source.has_versions();
        if (known.format.is_none() || by_words) && known.source != words {
            return Some(format!("was={:?} asked={words:?}", known.source));
        }
        if known.format != self.source.format() {
            return Some(format!("was={:?} asked={:?}", known.format, self.source.format()));
        }
        if known.order != self.order {
            return Some(format!("was={} asked={}", known.order.name(), self.order.name()));
        }
        if known.seed != self.seed() {
            return Some(format!("was_seed={} asked_seed={}", known.seed, self.seed()));
        }
        match (known.stamp, stamp) {
            (Some(known), Some(now)) if known.bytes != now.bytes => {
                Some(format!("source={words:?} was_bytes={} bytes={}", known.bytes, now.bytes))
            }
            _ => None,
        }
    }

    /// Reads a source from its start, after the records have turned out to differ from the spill. A source that cannot
    /// be read twice fails here.
    fn start_over(
        &self,
        work: &mut Work,
        stamp: Option<Stamp>,
        tell: &mut Tell<'_>,
        error: Error,
    ) -> Result<(Manifest, Left)> {
        let dir = work.dir().display().to_string();
        if stamp.is_none() {
            return Err(error.context(format!(
                "cannot continue from {}: give the same source and options as the first time, or remove dir={dir} and \
                 start again",
                self.source
            )));
        }
        tell!("the source has changed, and its spill is made again: dir={dir} {}", self.source);
        work.keep(&[])?;
        self.read(work, &self.nothing(), stamp, tell)
    }

    /// Reads the records that the spill does not have yet.
    fn read(
        &self,
        work: &mut Work,
        begun: &Begun,
        stamp: Option<Stamp>,
        tell: &mut Tell<'_>,
    ) -> Result<(Manifest, Left)> {
        let (mut manifest, content, told, left) = match self.collect(work, begun, stamp, tell) {
            Ok(read) => read,
            Err(error) if error.is::<Changed>() => return Err(error),
            Err(error) => {
                if let Err(second) = leave(work) {
                    tell!("{second:#}");
                }
                return Err(error);
            }
        };
        if let Some(records) = left {
            // The memory of the other buffers has room for this copy, because nothing was spilled.
            let mut ordered = Vec::with_capacity(records.len());
            Sorted::of(records, self.rank()).try_for_each(|record| {
                ordered.push(*record);
                Ok(())
            })?;
            return Ok((manifest, Some((content, ordered, told))));
        }
        manifest.complete = true;
        manifest.told = told;
        manifest.content = format!("{:016x}", content.digest());
        work.write(&manifest)?;
        Ok((manifest, None))
    }

    /// Reads the source to its end, while `sort` and `write` make runs of the full buffers. Returns the manifest with
    /// these runs, and the records if they have all fitted into one buffer.
    fn collect(
        &self,
        work: &mut Work,
        begun: &Begun,
        stamp: Option<Stamp>,
        tell: &mut Tell<'_>,
    ) -> Result<(Manifest, Content, Told, Option<Vec<Record>>)> {
        let (source, asked) = (self.source.to_string(), work.asked().clone());
        let manifest = Manifest { stamp, source, asked, ..begun.manifest.clone() };
        let rank = self.rank();
        std::thread::scope(|scope| {
            // There is a buffer for each of the three threads, and the channels hold none, so a thread that is ahead
            // waits.
            let (to_sort, unsorted) = sync_channel(0);
            let (to_write, sorted) = sync_channel(0);
            let (give_back, spare) = sync_channel(SORT_BUFFERS);
            let mut collector = Collector::new(self, begun, to_sort, spare)?;
            let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
            let sorter = named("sort").spawn_scoped(scope, move || sort_batches(rank, unsorted, to_write))?;
            let writer = named("write").spawn_scoped(scope, move || write_runs(work, manifest, sorted, give_back))?;
            let collected = collector.collect(stamp, tell);
            let (content, left) = (collector.content.clone(), collector.left());
            drop(collector);
            let written = writer.join().map_err(|_| anyhow!("the writing thread panicked"));
            // Check this before using the manifest: after a panic of the sorter it lacks batches.
            sorter.join().map_err(|_| anyhow!("the sorting thread panicked"))?;
            // Return the writing thread's error first, because it caused the collector's.
            let manifest = written??;
            collected.map(|told| (manifest, content, told, left))
        })
    }

    /// Merges runs until the rest can be merged at once.
    fn end(&self, work: &Work, mut manifest: Manifest, tell: &mut Tell<'_>) -> Result<Read> {
        let spill = manifest.spill()?;
        let most = self.buffers.runs_at_once();
        let rank = self.rank();
        while manifest.runs.len() > most {
            // Merge the smallest runs first, and no more of them than necessary. They stay until the new one is
            // durable, so merge only a part of all at a time, because the disk holds that part twice.
            manifest.runs.sort_by_key(|run| (run.left(), run.number));
            let part = (manifest.runs.len() / COMBINED_PARTS).max(2);
            let some = (manifest.runs.len() - most + 1).min(most).min(part);
            let number = manifest.runs.iter().map(|run| run.number).max().map_or(0, |number| number + 1);
            let records = manifest.records;
            let (runs, bytes) = (&manifest.runs[..some], self.buffers.heads_bytes);
            let run = combine(work.dir(), spill, runs, number, rank, bytes, &mut || tell(records))?;
            manifest.runs.drain(..some);
            manifest.runs.push(run);
            work.write(&manifest)?;
            work.keep(&manifest.runs)?;
        }
        let (digest, records, stamp) = (manifest.content()?, manifest.records, manifest.stamp);
        let told = manifest.told.clone();
        Ok(Read { digest, records, stamp, told, spilled: Spilled::Runs(Box::new(manifest)) })
    }

    /// Starts a spill without records.
    fn nothing(&self) -> Begun {
        let (now, words) = (SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()), self.source);
        // A number that no other spill has, neither one of another source nor an earlier one of this source.
        let spill = engines::source_id(format!("{words} {now} {}", std::process::id()).as_bytes());
        let manifest = Manifest::new(spill, words.to_string(), words.format(), self.order, self.seed());
        Begun { manifest, compare: false }
    }

    fn rank(&self) -> Rank {
        Rank::new(self.order, self.seed())
    }

    /// Returns the seed if the order depends on it, otherwise 0.
    fn seed(&self) -> u64 {
        if self.order == Order::Shuffled { self.seed } else { 0 }
    }
}

/// Cleans up after a reading that failed. Whole runs stay; without any of them the spill is removed.
fn leave(work: &mut Work) -> Result<()> {
    let Some(manifest) = work.manifest()? else { return work.remove() };
    work.keep(&manifest.runs)?;
    tell!(
        "the part of the source that was read and flushed is kept for the next start: dir={} records={}: if you do not need \
         it, remove the directory",
        work.dir().display(),
        manifest.records
    );
    Ok(())
}

/// Collects records into buffers, and hands full ones to the sorting thread.
struct Collector<'a> {
    source: &'a Source,
    from: Place,
    content: Content,
    /// Expected number and digest of the spill's records, while they are read again and compared.
    expected: Option<Expected>,
    capacity: usize,
    records: Vec<Record>,
    buffers_made: usize,
    begun_runs: usize,
    place: Place,
    to_sort: SyncSender<Batch<Vec<Record>>>,
    spare: Receiver<Vec<Record>>,
}

struct Expected {
    records: u64,
    content: u64,
    complete: bool,
}

impl<'a> Collector<'a> {
    fn new(
        spill: &Spill<'a>,
        begun: &Begun,
        to_sort: SyncSender<Batch<Vec<Record>>>,
        spare: Receiver<Vec<Record>>,
    ) -> Result<Self> {
        let (known, has_versions) = (&begun.manifest, spill.source.has_versions());
        let any = !known.runs.is_empty();
        let (mut from, mut content, mut expected) = (Place::default(), Content::new(has_versions), None);
        if any && begun.compare {
            expected = Some(Expected { records: known.records, content: known.content()?, complete: known.complete });
        } else if any {
            (from, content) = (known.place, Content::resume(known.content()?, known.records, has_versions));
        }
        Ok(Self {
            source: spill.source,
            from,
            content,
            expected,
            capacity: spill.buffers.run_records(),
            records: Vec::new(),
            buffers_made: 1,
            begun_runs: known.runs.len(),
            place: from,
            to_sort,
            spare,
        })
    }

    /// Reads to the end of the source. Records that do not fill a buffer stay in `records`, if no run was begun.
    /// Returns the facts that the source had at its end.
    fn collect(&mut self, stamp: Option<Stamp>, tell: &mut Tell<'_>) -> Result<Told> {
        let source = self.source;
        let told = source.for_each_from(self.from, &mut |record, after| {
            self.content.add(&record);
            if self.content.records().is_multiple_of(TELL_EVERY) {
                tell(self.content.records())?;
            }
            self.place = after;
            if self.expected.is_some() { self.compare() } else { self.take(record) }
        })?;
        if let Some(Expected { records, content, complete }) = self.expected.take() {
            let whole = complete && self.content.records() == records && self.content.digest() == content;
            ensure!(whole, Changed);
        }
        let now = Stamp::of(source)?;
        if now != stamp {
            let message =
                format!("the file was changed while it was read: {source}: start again once it stays as it is");
            // Not `FixInput`: the same start succeeds once the file stays as it is.
            let changed = engine_api::Error::new(ErrorKind::Retry, message).with_code(Code::InputChanged);
            return Err(changed.into());
        }
        if self.begun_runs > 0 && !self.records.is_empty() {
            self.send(Some(told.clone()))?;
        }
        Ok(told)
    }

    /// Returns all records, if the source has fitted into one buffer.
    fn left(&mut self) -> Option<Vec<Record>> {
        (self.begun_runs == 0).then(|| std::mem::take(&mut self.records))
    }

    /// Compares a record that the spill has already, through the digest.
    fn compare(&mut self) -> Result<()> {
        let Some(Expected { records, content, complete }) = self.expected else { return Ok(()) };
        if complete {
            ensure!(self.content.records() <= records, Changed);
        } else if self.content.records() == records {
            ensure!(self.content.chain() == content, Changed);
            self.expected = None;
        }
        Ok(())
    }

    fn take(&mut self, record: Record) -> Result<()> {
        if self.records.capacity() == 0 {
            self.records.reserve_exact(self.capacity);
        }
        self.records.push(record);
        if self.records.len() < self.capacity || !self.content.is_at_border() {
            return Ok(());
        }
        self.send(None)?;
        self.records = if self.buffers_made < SORT_BUFFERS {
            self.buffers_made += 1;
            Vec::new()
        } else {
            self.spare.recv().map_err(|_| anyhow!("the sorting thread has ended"))?
        };
        Ok(())
    }

    /// Sends the buffer to the sorting thread. `end`: these are the source's last records, and it has told these facts.
    fn send(&mut self, end: Option<Told>) -> Result<()> {
        let records = std::mem::take(&mut self.records);
        self.begun_runs += 1;
        let batch = Batch { records, place: self.place, content: self.content.clone(), end };
        self.to_sort.send(batch).map_err(|_| anyhow!("the sorting thread has ended"))
    }
}
