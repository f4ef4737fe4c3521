//! A batch of gets: what memory knows is answered at once, and the pages that are missing are read together.
//!
//! Owns: the order of a batch's reads. Runs on the reader's thread.

use engine_api::{Error, ErrorKind, Key, Result, Value};

use crate::format::page::PAGE_BYTES;
use crate::read::lookup::Lookup;
use crate::read::segment::{Looked, Segment};
use crate::read::uring::Pipeline;
use crate::read::version::Known;
use crate::read::visible::Visible;

/// Reads that the device is given at once: where a flash drive's queue stops making it faster.
pub(crate) const DEPTH: usize = 64;

/// Gets that are under way.
pub(crate) struct Batch<'a> {
    visible: &'a Visible,
    keys: &'a [Key],
    values: &'a mut [Option<Value>],
    lookup: &'a mut Lookup,
    pipeline: &'a mut Pipeline,
    /// By slot of the pipeline.
    waiting: Vec<Option<Waiting<'a>>>,
    free: Vec<usize>,
}

/// A get that waits for its page.
struct Waiting<'a> {
    /// Its place in the batch.
    index: usize,
    hash: u64,
    run: usize,
    segment: &'a Segment,
    page: u32,
    part: f64,
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

    /// Does all of it. After an error the pipeline may not be used for another batch.
    pub(crate) fn run(mut self) -> Result<()> {
        for index in 0..self.keys.len() {
            let Some(read) = self.begin(index)? else { continue };
            let slot = match self.free.pop() {
                Some(slot) => slot,
                None => self.finish_one()?,
            };
            let offset = u64::from(read.page) * PAGE_BYTES as u64;
            self.lookup.count_read();
            self.pipeline.ask(slot, read.segment.file(), offset, PAGE_BYTES)?;
            self.waiting[slot] = Some(read);
        }
        while self.free.len() < self.waiting.len() {
            let slot = self.finish_one()?;
            self.free.push(slot);
        }
        Ok(())
    }

    /// Answers a get, or says which page it needs.
    fn begin(&mut self, index: usize) -> Result<Option<Waiting<'a>>> {
        let (key, visible) = (&self.keys[index], self.visible);
        let hash = self.lookup.hash(key);
        self.lookup.count_get();
        if let Some(found) = visible.in_memtables(key, hash) {
            self.values[index] = found;
            return Ok(None);
        }
        match visible.version.probe(key, hash, self.lookup) {
            Known::Value(found) => self.values[index] = found,
            Known::Search { run } => self.values[index] = visible.version.get_from(run, key, hash, self.lookup)?,
            Known::Read { run, segment, page, part } => {
                return Ok(Some(Waiting { index, hash, run, segment, page, part }));
            }
        }
        Ok(None)
    }

    /// Waits for a read and ends its get; the slot that is free then.
    fn finish_one(&mut self) -> Result<usize> {
        let ended =
            self.pipeline.wait().map_err(|e| Error::with_source(ErrorKind::Retry, "cannot wait for reads", e))?;
        let (slot, outcome) = ended.ok_or_else(lost)?;
        let read = self.waiting[slot].take().ok_or_else(lost)?;
        let offset = u64::from(read.page) * PAGE_BYTES as u64;
        outcome.map_err(|e| read.segment.file().failed(e, offset, PAGE_BYTES))?;
        let key = &self.keys[read.index];
        let found = match read.segment.finish(key, read.hash, read.page, read.part, self.pipeline.page(slot, 0))? {
            Looked::Absent => None,
            Looked::Found(value) => Some(value),
            // Many keys share its first eight bytes: one read after the other.
            Looked::Elsewhere(pages) => read.segment.search(key, read.hash, pages, self.lookup)?,
        };
        self.values[read.index] = match found {
            Some(value) => value,
            // A filter's error: older runs are asked, one read after the other.
            None => self.visible.version.get_from(read.run + 1, key, read.hash, self.lookup)?,
        };
        Ok(slot)
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Internal, "a read that was asked for never ended")
}
