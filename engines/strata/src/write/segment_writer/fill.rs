//! Fills a segment whose pairs are all known at the start, as those of a sorted load are, on two threads.
//!
//! Owns: the division of the pages between the threads. Must not: finish the segment. Runs on the thread that loads
//! and, while a segment is filled, on `strata-load`.
//!
//! The first page decides where the second one begins, and so on, so one thread finds the length of each page first. It
//! reads only a few keys for that. Pages do not depend on each other otherwise: each thread takes a block of pages at a
//! time, encodes them, and writes them at their offset in the file.

use engine_api::{Key, Result, Value};
use parking_lot::Mutex;

use crate::format::footer::SegmentInfo;
use crate::format::page::{page_length, seal_pairs};
use crate::mapped::Mapped;
use crate::storage::PAGE_BYTES;
use crate::write::at_once::both;
use crate::write::segment_writer::SegmentWriter;

/// The pages of a segment that no thread has taken yet.
struct Blocks<'a> {
    pairs: &'a [(Key, Value)],
    /// Number of pairs in each of these pages.
    lengths: &'a [u8],
    hashes: &'a mut [u64],
    /// Number of the first of these pages.
    number: u32,
    /// Number of pages in a block.
    pages: usize,
}

/// Consecutive pages that one thread fills.
struct Block<'a> {
    pairs: &'a [(Key, Value)],
    lengths: &'a [u8],
    hashes: &'a mut [u64],
    number: u32,
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        let pages = self.pages.min(self.lengths.len());
        let (lengths, later_lengths) = self.lengths.split_at_checked(pages).filter(|_| pages > 0)?;
        let records = lengths.iter().map(|length| usize::from(*length)).sum();
        let (pairs, later_pairs) = self.pairs.split_at(records);
        let (hashes, later_hashes) = std::mem::take(&mut self.hashes).split_at_mut(records);
        let number = self.number;
        (self.pairs, self.lengths, self.hashes) = (later_pairs, later_lengths, later_hashes);
        self.number += pages as u32;
        Some(Block { pairs, lengths, hashes, number })
    }
}

impl SegmentWriter {
    /// Adds all pairs of a segment that has no record yet. Keys must ascend strictly.
    pub(crate) fn fill(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        let Some(((first, _), (last, _))) = pairs.first().zip(pairs.last()) else { return Ok(()) };
        let (id, records) = (self.id, pairs.len() as u64);
        self.info = Some(SegmentInfo { id, records, tombstones: 0, first: *first, last: *last });
        let (mut lengths, mut rest) = (Vec::new(), pairs);
        let mut before = None;
        while let Some((key, _)) = rest.first() {
            let length = page_length(rest);
            lengths.push(length as u8);
            self.directory.push(key, before);
            before = Some(&rest[length - 1].0);
            rest = &rest[length..];
        }
        let mut hashes = Mapped::zeros(pairs.len())?;
        let pages = (self.room.write / PAGE_BYTES).max(1);
        let blocks = Mutex::new(Blocks { pairs, lengths: &lengths, hashes: &mut hashes, number: 0, pages });
        let writer = &*self;
        let two = self.room.threads > 1 && lengths.len() > pages;
        let (here, there) = both(two, || writer.fill_blocks(&blocks), || writer.fill_blocks(&blocks));
        here.and(there)?;
        self.written_bytes = (lengths.len() * PAGE_BYTES) as u64;
        self.hashes = hashes;
        Ok(())
    }

    /// Fills and writes blocks until none is left or a write fails.
    fn fill_blocks(&self, blocks: &Mutex<Blocks<'_>>) -> Result<()> {
        let mut buffer = Vec::new();
        loop {
            let Some(block) = blocks.lock().next() else { return Ok(()) };
            buffer.resize(block.lengths.len() * PAGE_BYTES, 0);
            let (pages, _) = buffer.as_chunks_mut();
            let mut from = 0;
            for ((page, length), number) in pages.iter_mut().zip(block.lengths).zip(block.number..) {
                let to = from + usize::from(*length);
                let pairs = &block.pairs[from..to];
                seal_pairs(page, self.id, number, pairs);
                let hashes = block.hashes[from..to].iter_mut();
                hashes.zip(pairs).for_each(|(hash, (key, _))| *hash = self.origin.seed.filter_hash(key));
                from = to;
            }
            if let Err(failed) = self.write(&buffer, u64::from(block.number) * PAGE_BYTES as u64) {
                // The segment has failed, so the other thread need not fill the rest.
                blocks.lock().lengths = &[];
                return Err(failed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine_api::Checkpoint;

    use super::*;
    use crate::budget::Budget;
    use crate::format::footer::Origin;
    use crate::format::secret::Seed;
    use crate::storage::{DirStorage, Storage};
    use crate::write::segment_writer::Room;

    /// Returns the bytes of a segment's file as `write` makes it.
    fn written(room: Room, write: impl FnOnce(&mut SegmentWriter) -> Result<()>) -> Vec<u8> {
        let dir = tempfile::tempdir().expect("a directory");
        let storage: Arc<dyn Storage> = Arc::new(DirStorage::open(dir.path()).expect("a directory"));
        let checkpoint = Checkpoint::new(3, &[4; 7]);
        let origin = Origin { seed: Seed::fixed(), base: true, checkpoint, ..Origin::default() };
        let mut writer = SegmentWriter::create(&storage, 5, &origin, room).expect("a new file");
        write(&mut writer).and_then(|()| writer.finish_alone()).expect("written");
        std::fs::read(dir.path().join(crate::read::segment::name(5))).expect("it is there")
    }

    #[test]
    fn a_segment_is_the_same_whoever_fills_its_pages() {
        for (count, differ) in [(1u32, 0), (63, 0), (64, 20), (1009, 0), (1100, 3), (9000, 1), (9000, 28)] {
            let pair = |n: u32| {
                let mut key = [0x5c; 32];
                key[differ..differ + 4].copy_from_slice(&n.wrapping_mul(400_000).to_be_bytes());
                (key, [n as u8; 32])
            };
            let mut pairs: Vec<(Key, Value)> = (0..count).map(pair).collect();
            pairs.sort_unstable();
            let one_by_one =
                written(Room::alone(), |to| pairs.iter().try_for_each(|(key, value)| to.push(key, Some(value))));
            for threads in [1, 2] {
                // With so little memory a block is sixteen pages.
                let room = Room::of(threads, u64::from(count), &Budget::new(1 << 20), None);
                assert!(written(room, |to| to.fill(&pairs)) == one_by_one, "{count} keys, {threads} threads");
            }
        }
    }
}
