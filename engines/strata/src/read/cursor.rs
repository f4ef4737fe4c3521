//! Cursors: records in order, of one run, of a sorted list, and of several sources merged so that the newest record
//! wins.
//!
//! Owns: the read-ahead of scans and merges. Each cursor belongs to one thread.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use engine_api::{Error, ErrorKind, Key, Result, Value, Visitor};

use crate::format::page::{Page, prefix};
use crate::memtable::Ascending;
use crate::read::lookup::Reads;
use crate::read::segment::Segment;
use crate::read::uring::{Pipeline, cannot_wait};
use crate::read::version::Run;
use crate::storage::{PAGE_BYTES, PageBytes};

/// Largest number of pages in one read, large enough to keep any device busy.
const READ_PAGES: usize = 64;
/// Smallest number of pages in one read, however many runs are read together. The device's own time still dominates a
/// read of this size.
const READ_PAGES_MIN: usize = 4;
/// Size of all buffers of a scan together, in bytes, as long as that leaves each run [`READ_PAGES_MIN`] pages.
const SCAN_BYTES: u64 = 2 << 20;
/// Number of pages in the first read. Each later read is twice as long, so that a short range costs few pages.
const FIRST_PAGES: u32 = 4;
/// Number of buffers: one chunk of pages is consumed while the next is being read.
const SLOTS: usize = 2;

/// A key with its value, or with `None` for a tombstone.
pub(crate) type Record = (Key, Option<Value>);

/// A source of records in ascending order of their keys.
pub(crate) enum Cursor {
    Run(Box<RunCursor>),
    Mem(Ascending),
}

/// Use of pages after a cursor has read them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The pages stay in memory if there is room for them.
    InMemory,
    /// The pages are dropped, because a merge replaces them.
    Nothing,
}

/// How several runs are read together.
#[derive(Clone)]
pub(crate) struct Window {
    reads: Arc<Reads>,
    /// Number of pages in one read of each run.
    pages: usize,
    keep: Keep,
}

impl Window {
    /// Returns the window of a scan over this many runs.
    pub(crate) fn scan(reads: &Arc<Reads>, runs: usize) -> Self {
        Self::of(reads, runs, SCAN_BYTES, Keep::InMemory)
    }

    /// Returns the window of a merge of this many runs, whose buffers take `bytes` together.
    pub(crate) fn merge(reads: &Arc<Reads>, runs: usize, bytes: u64) -> Self {
        Self::of(reads, runs, bytes, Keep::Nothing)
    }

    fn of(reads: &Arc<Reads>, runs: usize, bytes: u64, keep: Keep) -> Self {
        let pages = bytes as usize / (SLOTS * PAGE_BYTES * runs.max(1));
        Self { reads: Arc::clone(reads), pages: pages.clamp(READ_PAGES_MIN, READ_PAGES), keep }
    }

    /// Handles a failed read. If a merge cannot read a segment and the error is not temporary, the segment is marked:
    /// nothing was changed, and the next merge leaves it out.
    fn failed(&self, segment: &Segment, error: Error) -> Error {
        if self.keep == Keep::InMemory || error.kind() == ErrorKind::Retry {
            return error;
        }
        segment.mark_unreadable();
        Error::with_source(ErrorKind::DataDamaged, format!("a merge leaves a segment out: {error}"), error)
    }
}

/// A cursor over a range of a run.
pub(crate) struct RunCursor {
    run: Arc<Run>,
    /// Segment and page to ask for next.
    ask: (usize, u32),
    /// Largest number of pages to ask for next.
    window: u32,
    /// Pages that are being consumed.
    now: Option<Chunk>,
    /// Pages after those of `now`, which the device may still be reading.
    ahead: Option<Chunk>,
    /// Number of the next record's page.
    page: u32,
    /// Index of the next record in its page.
    record: usize,
    /// Estimated position of the first key in its page, 0 to 1, until the cursor is there.
    seeks: Option<f64>,
    /// The first page, if a scan has read it together with those of other runs.
    first: Option<Box<PageBytes>>,
    /// Made by the first read, because a run in memory needs none.
    pipeline: Option<Pipeline>,
    how: Window,
    from: Key,
    /// First key that is no longer wanted; `None` for all keys to the end.
    to: Option<Key>,
}

/// Consecutive pages of a segment.
struct Chunk {
    segment: usize,
    pages: Range<u32>,
    /// Slot of the pipeline that they are read into; `None` for pages in memory.
    slot: Option<usize>,
}

/// Merges several cursors. Of records with equal keys only that of the first cursor is returned.
///
/// The next records of the cursors play a tournament, whose matches remember the losers. When the winner's cursor
/// advances, its new record plays only against those on its way up. A record costs the logarithm of the number of
/// cursors.
pub(crate) struct Merged {
    /// The cursors to merge, newest first.
    cursors: Vec<Cursor>,
    /// Next record of each cursor, and the first eight bytes of its key as a number.
    heads: Vec<Option<(u64, Record)>>,
    /// Losers of the matches. Match n is between the winners of 2n and 2n + 1, where numbers from the count of cursors
    /// on are the cursors themselves. Index 0 holds the winner of all.
    losers: Vec<usize>,
    /// Whether only the last cursor, the oldest, had the key of the record that was returned last.
    oldest: bool,
}

impl RunCursor {
    /// Makes a cursor over the records with `from <= key < to`.
    pub(crate) fn new(run: &Arc<Run>, from: &Key, to: Option<Key>, how: &Window) -> Box<Self> {
        let segment = run.segment_for(from).unwrap_or(0);
        let (page, part) = run.segments().get(segment).map_or((0, 0.0), |segment| segment.first_page_from(from));
        Box::new(Self {
            run: Arc::clone(run),
            ask: (segment, page),
            window: FIRST_PAGES,
            now: None,
            ahead: None,
            page: 0,
            record: 0,
            seeks: Some(part),
            first: None,
            pipeline: None,
            how: how.clone(),
            from: *from,
            to,
        })
    }

    /// Passes the pairs of the range to `visit`.
    pub(crate) fn visit(mut self, visit: &mut Visitor<'_>) -> Result<()> {
        while self.now.is_some() || self.advance()? {
            let Some(page) = self.current() else { break };
            for index in self.record..page.len() {
                let key = page.key(index);
                if self.to.is_some_and(|to| key >= to) {
                    return Ok(());
                }
                if let Some(value) = page.value(index)
                    && visit(&key, &value) == ControlFlow::Break(())
                {
                    return Ok(());
                }
            }
            self.turn_page();
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Record>> {
        loop {
            if self.now.is_none() && !self.advance()? {
                return Ok(None);
            }
            let Some(page) = self.current() else { return Ok(None) };
            if self.record == page.len() {
                self.turn_page();
                continue;
            }
            let (key, value) = (page.key(self.record), page.value(self.record));
            self.record += 1;
            if self.to.is_some_and(|to| key >= to) {
                return Ok(None);
            }
            return Ok(Some((key, value)));
        }
    }

    /// Returns the page that is being consumed.
    fn current(&self) -> Option<Page<'_>> {
        let chunk = self.now.as_ref()?;
        if let Some(first) = &self.first {
            return Some(Page::verified(first));
        }
        match chunk.slot {
            Some(slot) => {
                let pipeline = self.pipeline.as_ref()?;
                Some(Page::verified(pipeline.page(slot, (self.page - chunk.pages.start) as usize)))
            }
            // The page was in memory when the chunk was asked for, and pages in memory stay there.
            None => self.run.segments()[chunk.segment].ready(self.page),
        }
    }

    fn turn_page(&mut self) {
        self.page += 1;
        self.first = None;
        if self.now.as_ref().is_some_and(|chunk| chunk.pages.end == self.page) {
            self.now = None;
        }
        self.seek();
    }

    /// Goes to the first wanted record of the present page.
    fn seek(&mut self) {
        let sought = self.seeks.take().zip(self.current());
        self.record = sought.map_or(0, |(part, page)| page.rank(&self.from, part).unwrap_or_else(|at| at));
    }

    /// Whether the first page has to be read from the device.
    pub(crate) fn lacks_first(&self) -> bool {
        let (at, page) = self.ask;
        self.run.segments().get(at).is_some_and(|segment| segment.ready(page).is_none())
    }

    /// Asks for the first page in this slot of a pipeline.
    pub(crate) fn ask_first(&self, slot: usize, pipeline: &mut Pipeline) {
        let (at, page) = self.ask;
        pipeline.ask(slot, self.run.segments()[at].file(), u64::from(page) * PAGE_BYTES as u64, PAGE_BYTES);
        self.how.reads.sums.run_read_bytes.add(PAGE_BYTES as u64);
    }

    /// Takes the page that was asked for by [`RunCursor::ask_first`], with the result of its read.
    pub(crate) fn take_first(&mut self, read: io::Result<()>, bytes: &PageBytes) -> Result<()> {
        let (at, number) = self.ask;
        let segment = &self.run.segments()[at];
        read.map_err(|e| segment.file().failed(e, u64::from(number) * PAGE_BYTES as u64, PAGE_BYTES))?;
        segment.verify(bytes, number)?;
        segment.keep(number, bytes);
        self.first = Some(Box::new(*bytes));
        self.ask = (at, number + 1);
        self.page = number;
        self.now = Some(Chunk { segment: at, pages: number..number + 1, slot: None });
        self.seek();
        Ok(())
    }

    /// Advances to the next chunk and starts the read of the one after it. Returns false at the end.
    fn advance(&mut self) -> Result<bool> {
        if self.ahead.is_none() {
            self.ahead = self.ask(0);
        }
        let Some(chunk) = self.ahead.take() else { return Ok(false) };
        let run = Arc::clone(&self.run);
        let segment = &run.segments()[chunk.segment];
        if let Some(slot) = chunk.slot {
            self.wait(slot, segment, &chunk.pages).map_err(|e| self.how.failed(segment, e))?;
        }
        if self.window > 2 * FIRST_PAGES {
            // Not after the first chunk, because a short range ends there.
            self.ahead = self.ask(chunk.slot.map_or(0, |slot| (slot + 1) % SLOTS));
        }
        if let Some((slot, pipeline)) = chunk.slot.zip(self.pipeline.as_ref()) {
            for number in chunk.pages.clone() {
                let bytes = pipeline.page(slot, (number - chunk.pages.start) as usize);
                segment.verify(bytes, number).map_err(|e| self.how.failed(segment, e))?;
                if self.how.keep == Keep::InMemory {
                    segment.keep(number, bytes);
                }
            }
        }
        self.page = chunk.pages.start;
        self.now = Some(chunk);
        self.seek();
        Ok(true)
    }

    /// Asks for the next consecutive pages, and reads them into this slot unless they are in memory.
    fn ask(&mut self, slot: usize) -> Option<Chunk> {
        loop {
            let (at, first) = self.ask;
            let segment = self.run.segments().get(at)?;
            if first == segment.pages() {
                self.ask = (at + 1, 0);
                continue;
            }
            if self.to.is_some_and(|to| segment.page_prefix(first) > prefix(&to)) {
                return None;
            }
            let end = segment.pages().min(first + self.window);
            let ready = segment.ready(first).is_some();
            // The first page is checked only once, because another thread may bring it in at any moment.
            let alike = (first + 1..end).take_while(|page| segment.ready(*page).is_some() == ready).count() as u32 + 1;
            let pages = first..first + alike;
            if !ready {
                let bytes = alike as usize * PAGE_BYTES;
                // Slots are no larger than the largest segment, so that the run of a small memtable gets a small
                // buffer.
                let largest = || self.run.segments().iter().map(|one| one.pages() as usize).max().unwrap_or(1);
                let Window { reads, pages: most, .. } = &self.how;
                let pipeline = self.pipeline.get_or_insert_with(|| Pipeline::new(SLOTS, largest().min(*most), reads));
                pipeline.ask(slot, segment.file(), u64::from(first) * PAGE_BYTES as u64, bytes);
                pipeline.start();
                reads.sums.run_read_bytes.add(bytes as u64);
            }
            self.ask = (at, pages.end);
            self.window = (self.window * 2).min(self.how.pages as u32);
            return Some(Chunk { segment: at, pages, slot: (!ready).then_some(slot) });
        }
    }

    fn wait(&mut self, slot: usize, segment: &Segment, pages: &Range<u32>) -> Result<()> {
        let lost = || Error::new(ErrorKind::Internal, "a read that was asked for never ended");
        let pipeline = self.pipeline.as_mut().ok_or_else(lost)?;
        let ended = pipeline.wait().map_err(cannot_wait)?;
        let (found, outcome) = ended.ok_or_else(lost)?;
        if found != slot {
            return Err(lost());
        }
        let bytes = pages.len() * PAGE_BYTES;
        outcome.map_err(|e| segment.file().failed(e, u64::from(pages.start) * PAGE_BYTES as u64, bytes))
    }
}

impl Cursor {
    fn next(&mut self) -> Result<Option<(u64, Record)>> {
        let record = match self {
            Self::Run(cursor) => cursor.next()?,
            Self::Mem(records) => records.next(),
        };
        Ok(record.map(|record| (prefix(&record.0), record)))
    }
}

impl Merged {
    /// Merges `cursors`, which are given newest first.
    pub(crate) fn new(mut cursors: Vec<Cursor>) -> Result<Self> {
        let heads: Vec<_> = cursors.iter_mut().map(Cursor::next).collect::<Result<_>>()?;
        let mut merged = Self { losers: vec![0; cursors.len()], cursors, heads, oldest: false };
        if !merged.cursors.is_empty() {
            merged.losers[0] = merged.play(1);
        }
        Ok(merged)
    }

    /// Plays match `at` and all matches below it. Returns the winner.
    fn play(&mut self, at: usize) -> usize {
        if at >= self.cursors.len() {
            return at - self.cursors.len();
        }
        let (left, right) = (self.play(2 * at), self.play(2 * at + 1));
        let (winner, loser) = if self.is_before(left, right) { (left, right) } else { (right, left) };
        self.losers[at] = loser;
        winner
    }

    /// Whether the next record of cursor `a` comes before that of `b`. Of equal keys the newer record comes first.
    #[inline(always)]
    fn is_before(&self, a: usize, b: usize) -> bool {
        match (&self.heads[a], &self.heads[b]) {
            (Some((first, (key, _))), Some((other_first, (other, _)))) => {
                (first.cmp(other_first).then_with(|| key.cmp(other)).then(a.cmp(&b))).is_lt()
            }
            (head, _) => head.is_some(),
        }
    }

    /// Advances the winner's cursor and plays its new record on the way up.
    fn advance(&mut self) -> Result<()> {
        let mut winner = self.losers[0];
        self.heads[winner] = self.cursors[winner].next()?;
        let mut at = (winner + self.cursors.len()) / 2;
        while at > 0 {
            if self.is_before(self.losers[at], winner) {
                std::mem::swap(&mut self.losers[at], &mut winner);
            }
            at /= 2;
        }
        self.losers[0] = winner;
        Ok(())
    }

    /// Returns the next key with its newest record.
    pub(crate) fn next(&mut self) -> Result<Option<Record>> {
        let head = |merged: &Self| merged.losers.first().and_then(|winner| merged.heads[*winner]);
        let Some((first, newest)) = head(self) else { return Ok(None) };
        self.oldest = self.losers[0] + 1 == self.cursors.len();
        // The newest record of the key wins. Skip the older ones, which come next.
        while head(self).is_some_and(|(at, record)| at == first && record.0 == newest.0) {
            self.advance()?;
        }
        Ok(Some(newest))
    }

    /// Whether the record that was returned last came from the oldest cursor, and no other cursor had its key.
    pub(crate) fn is_of_oldest(&self) -> bool {
        self.oldest
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::secret::Seed;
    use crate::memtable::Mem;

    proptest! {
        #[test]
        fn several_lists_are_merged_in_order_with_the_newest_of_each_key(
            lists in proptest::collection::vec(proptest::collection::btree_map(0u8..40, proptest::option::of(any::<u8>()), 0..30), 0..12),
        ) {
            let mut expected = std::collections::BTreeMap::new();
            let mut cursors = Vec::new();
            for list in &lists {
                let mem = Arc::new(Mem::new(list.len().max(1)).expect("memory"));
                for (index, (key, value)) in list.iter().enumerate() {
                    // Half of the keys differ only after the first eight bytes.
                    let mut wide = [key / 2; 32];
                    wide[31] = *key;
                    mem.append(index, Seed::fixed().hash(&wide), &wide, value.map(|value| [value; 32]));
                    expected.entry(wide).or_insert(value.map(|value| [value; 32]));
                }
                cursors.push(Cursor::Mem(mem.ascending(list.len(), &[0; 32]).expect("memory")));
            }
            let mut merged = Merged::new(cursors).expect("lists are read");
            let mut found = Vec::new();
            while let Some(record) = merged.next().expect("lists are read") {
                found.push(record);
            }
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
