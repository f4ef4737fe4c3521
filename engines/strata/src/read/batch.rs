//! A batch of gets: keys that memory can answer are answered at once, and missing pages are read together.
//!
//! Owns: the order of a batch's steps and reads. Runs on the reader's thread.
//!
//! A batch takes its keys in groups and does each step for a whole group before the next step: hashes, the cache lines
//! of the memtables' tables, and then, run by run from the newest, the cache lines of filter, directory and pages. Each
//! step prefetches the memory that the next one reads, so the cache misses of many keys overlap. A key is done with a
//! run before the next run is asked, so the newest record is found, as by a single get.

use engine_api::{Error, ErrorKind, Key, Result, Value};

use crate::format::Record;
use crate::format::filter::Spot;
use crate::read::find::{Aim, Answer};
use crate::read::lookup::{Hashes, Lookup};
use crate::read::segment::Segment;
use crate::read::uring::{Pipeline, cannot_wait};
use crate::read::version::Run;
use crate::read::visible::Visible;
use crate::storage::PAGE_BYTES;

/// Number of reads given to the device at once: beyond it a flash drive's queue gains no more speed.
pub(crate) const DEPTH: usize = 64;
/// Number of keys in a group. The prefetched lines of so many keys fit into the processor's first-level cache.
const TOGETHER: usize = 64;

/// A batch of gets in progress.
pub(crate) struct Batch<'a> {
    visible: &'a Visible,
    keys: &'a [Key],
    values: &'a mut [Option<Value>],
    lookup: &'a mut Lookup,
    pipeline: &'a mut Pipeline,
    /// Gets that wait for a read, by slot of the pipeline.
    waiting: Vec<Option<Waiting<'a>>>,
    free: Vec<usize>,
}

/// A key without an answer yet.
#[derive(Clone, Copy)]
struct Asked {
    /// Index of the key in the batch.
    index: usize,
    hash: Hashes,
    spot: Spot,
}

/// A get that waits for its page.
struct Waiting<'a> {
    /// Index of the key in the batch.
    index: usize,
    hash: Hashes,
    run: usize,
    segment: &'a Segment,
    aim: Aim,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        visible: &'a Visible,
        keys: &'a [Key],
        values: &'a mut [Option<Value>],
        lookup: &'a mut Lookup,
        pipeline: &'a mut Pipeline,
    ) -> Self {
        let slots = pipeline.slots();
        let waiting = (0..slots).map(|_| None).collect();
        Self { visible, keys, values, lookup, pipeline, waiting, free: (0..slots).collect() }
    }

    /// Answers all keys. After an error the pipeline must not be used for another batch.
    pub(crate) fn run(mut self) -> Result<()> {
        let visible = self.visible;
        let mut open = Vec::with_capacity(TOGETHER);
        let mut passed = Vec::with_capacity(TOGETHER);
        for first in (0..self.keys.len()).step_by(TOGETHER) {
            self.begin(first, &mut open);
            for (at, run) in visible.version.runs().enumerate() {
                if open.is_empty() {
                    break;
                }
                self.filter(run, &mut open, &mut passed);
                if !passed.is_empty() {
                    self.look_up(at, &mut open, &mut passed)?;
                }
            }
            open.drain(..).for_each(|asked: Asked| self.values[asked.index] = None);
        }
        while self.free.len() < self.waiting.len() {
            self.finish_one()?;
        }
        Ok(())
    }

    /// Begins the group of keys from index `first` on, and answers the keys that memtables hold.
    fn begin(&mut self, first: usize, open: &mut Vec<Asked>) {
        let visible = self.visible;
        let end = self.keys.len().min(first + TOGETHER);
        for (index, key) in self.keys[..end].iter().enumerate().skip(first) {
            let hash = self.lookup.hash(key);
            self.lookup.count_get();
            visible.fetch_memtables(hash.key);
            open.push(Asked { index, hash, spot: Spot::of(0, hash.filter) });
        }
        if !visible.memtables_are_empty() {
            open.retain(|asked| match visible.in_memtables(&self.keys[asked.index], asked.hash.key) {
                Some(Record(found)) => {
                    self.values[asked.index] = found;
                    false
                }
                None => true,
            });
        }
    }

    /// Moves the keys that a run may hold, according to the first plane of its filters, from `open` to `passed`.
    fn filter(&self, run: &'a Run, open: &mut Vec<Asked>, passed: &mut Vec<(Asked, &'a Segment)>) {
        let mut holders: [Option<&'a Segment>; TOGETHER] = [None; TOGETHER];
        for (asked, holder) in open.iter().zip(&mut holders) {
            *holder = run.holder(&self.keys[asked.index]).map(|segment| &**segment);
            if let Some(segment) = holder {
                segment.fetch_filter(asked.spot);
            }
        }
        let mut holders = holders.into_iter();
        open.retain(|asked| {
            let holder = holders.next().flatten().filter(|segment| segment.may_hold(asked.spot));
            if let Some(segment) = holder {
                segment.fetch_directory(&self.keys[asked.index]);
                passed.push((*asked, segment));
            }
            holder.is_none()
        });
    }

    /// Answers the keys in `passed` or asks for their pages. Keys that the run does not hold after all go back to
    /// `open`.
    fn look_up(&mut self, run: usize, open: &mut Vec<Asked>, passed: &mut Vec<(Asked, &'a Segment)>) -> Result<()> {
        let mut aims: [Option<Aim>; TOGETHER] = [const { None }; TOGETHER];
        for ((asked, segment), aim) in passed.iter().zip(&mut aims) {
            segment.fetch_rest(asked.hash);
            *aim = segment.aim(&self.keys[asked.index]);
        }
        for ((asked, segment), aim) in passed.drain(..).zip(aims) {
            let Asked { index, hash, .. } = asked;
            match aim.map(|aim| segment.ask(&self.keys[index], hash, aim, self.lookup)) {
                None | Some(Answer::Absent) => open.push(asked),
                Some(Answer::Found(found)) => self.values[index] = found,
                Some(Answer::Page(aim)) => self.read(Waiting { index, hash, run, segment, aim })?,
            }
        }
        Ok(())
    }

    /// Starts the read of a get's page, waiting for a free slot if necessary.
    fn read(&mut self, waiting: Waiting<'a>) -> Result<()> {
        loop {
            if let Some(slot) = self.free.pop() {
                self.read_into(slot, waiting);
                return Ok(());
            }
            self.finish_one()?;
        }
    }

    fn read_into(&mut self, slot: usize, waiting: Waiting<'a>) {
        let offset = u64::from(waiting.aim.page) * PAGE_BYTES as u64;
        waiting.segment.count_read();
        self.pipeline.ask(slot, waiting.segment.file(), offset, PAGE_BYTES);
        self.waiting[slot] = Some(waiting);
    }

    /// Waits for a read. Then completes its get, or starts the read of an older run's page.
    fn finish_one(&mut self) -> Result<()> {
        let ended = self.pipeline.wait().map_err(cannot_wait)?;
        let (slot, outcome) = ended.ok_or_else(lost)?;
        let Waiting { index, hash, run, segment, aim } = self.waiting[slot].take().ok_or_else(lost)?;
        let offset = u64::from(aim.page) * PAGE_BYTES as u64;
        outcome.map_err(|e| segment.file().failed(e, offset, PAGE_BYTES))?;
        let key = &self.keys[index];
        let next = match segment.finish(key, hash, &aim, self.pipeline.page(slot, 0))? {
            Some(Record(value)) => {
                self.values[index] = value;
                None
            }
            // The filter was wrong, so ask older runs.
            None => self.ask_from(run + 1, index, hash),
        };
        match next {
            Some(waiting) => self.read_into(slot, waiting),
            None => self.free.push(slot),
        }
        Ok(())
    }

    /// Asks the runs from `first` on for the key with this index, without reading the device. Returns the read that it
    /// needs; without one the key is answered.
    fn ask_from(&mut self, first: usize, index: usize, hash: Hashes) -> Option<Waiting<'a>> {
        let (visible, key, spot) = (self.visible, &self.keys[index], Spot::of(0, hash.filter));
        self.values[index] = None;
        for (run, holder) in visible.version.runs().enumerate().skip(first) {
            let segment = match holder.holder(key) {
                Some(segment) if segment.may_hold(spot) => &**segment,
                _ => continue,
            };
            match segment.aim(key).map(|aim| segment.ask(key, hash, aim, self.lookup)) {
                None | Some(Answer::Absent) => {}
                Some(Answer::Found(found)) => {
                    self.values[index] = found;
                    break;
                }
                Some(Answer::Page(aim)) => return Some(Waiting { index, hash, run, segment, aim }),
            }
        }
        None
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Internal, "a read that was asked for never ended")
}
