//! Writing of a segment: pages as they fill, then the filter planes, the directory, the ties and the footer.
//!
//! Owns: the order of a segment's parts, and which of them stay in memory. Must not: read. Runs on the thread that
//! flushes, merges, loads, recovers or repairs; `segment_writer/fill.rs` adds a second thread for loads.

mod fill;

use std::sync::Arc;

use engine_api::{Error, ErrorKind, Key, Result, Value};

use crate::budget::{Budget, Share};
use crate::file::{io_error, shown};
use crate::format::filter::{PLANES, insert_all, plane_bytes, plane_kind};
use crate::format::footer::{Footer, MergedRange, Origin, Section, SegmentInfo};
use crate::format::page::PageBuilder;
use crate::format::ties::DirectoryBuilder;
use crate::huge::{HugeBytes, Pool};
use crate::mapped::Mapped;
use crate::read::lookup::Reads;
use crate::read::segment::{Index, Kept, name};
use crate::sizes::write_bytes;
use crate::storage::{PAGE_BYTES, Storage, StorageFile};
use crate::write::at_once::both;

/// Number of threads that fill a segment of a sorted load. Two of them write more than most devices take, and the
/// thread that orders the pairs needs a processor too.
pub(crate) const LOAD_THREADS: usize = 2;
/// Bytes held for each record while a segment is written: eight of its hash, and up to two and a half in the planes.
const RECORD_WORK: u64 = 11;

/// Writes a segment from ascending records. Removes the file if it is dropped unfinished.
pub(crate) struct SegmentWriter {
    storage: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    id: u64,
    origin: Origin,
    page: PageBuilder,
    pending: Vec<u8>,
    written_bytes: u64,
    directory: DirectoryBuilder,
    hashes: Mapped<u64>,
    info: Option<SegmentInfo>,
    room: Room,
    finished: bool,
}

/// Memory of a segment writer.
pub(crate) struct Room {
    /// Largest number of records that it has memory for.
    records: usize,
    /// Number of bytes collected before a write.
    write: usize,
    /// Number of threads that fill pages and planes.
    threads: usize,
    /// Memory for every page, if the pages are to stay in memory.
    kept: Option<Kept>,
    _work: Share,
}

impl Room {
    /// Makes room for a writer without a store's budget, which takes the memory that it needs.
    pub(crate) fn alone() -> Self {
        Self::of(1, 0, &Budget::new(0), None)
    }

    /// Makes room for at most this many records, which this number of threads write. Their pages stay in `kept` if given.
    pub(crate) fn of(threads: usize, records: u64, budget: &Arc<Budget>, kept: Option<Kept>) -> Self {
        let write = write_bytes(budget.all_bytes());
        // Each thread collects bytes of its own.
        let work = budget.take_for_work(records * RECORD_WORK + threads as u64 * (write + PAGE_BYTES as u64));
        Self { records: records as usize, write: write as usize, threads, kept, _work: work }
    }
}

/// A segment that was written and flushed.
pub(crate) struct Written {
    pub(crate) footer: Footer,
    pub(crate) index: Index,
    /// Its pages, if they were to stay in memory.
    pub(crate) kept: Option<Kept>,
}

/// Memory of a filter plane, with its share of the budget if the plane stays in memory.
type Plane = (HugeBytes, Option<Share>);

impl SegmentWriter {
    /// Creates the file of segment `id`.
    pub(crate) fn create(storage: &Arc<dyn Storage>, id: u64, origin: &Origin, room: Room) -> Result<Self> {
        let file = storage.create(&name(id)).map_err(|e| io_error(cannot_write(&**storage, id, &e), e))?;
        Ok(Self {
            storage: Arc::clone(storage),
            file,
            id,
            origin: origin.clone(),
            page: PageBuilder::new(),
            pending: Vec::with_capacity(room.write + PAGE_BYTES),
            written_bytes: 0,
            directory: DirectoryBuilder::default(),
            hashes: Mapped::with_room(room.records)?,
            info: None,
            room,
            finished: false,
        })
    }

    pub(crate) fn records(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Sets the range of keys that a merge into the base has written as this segment.
    pub(crate) fn set_merged(&mut self, merged: MergedRange) {
        self.origin.merged = Some(merged);
    }

    /// Sets whether the flush or the load writes other segments after this one: see [`Origin`].
    pub(crate) fn set_part(&mut self, part: bool) {
        self.origin.part = part;
    }

    /// Adds a record. Keys must ascend strictly.
    ///
    /// # Errors
    /// `DataDamaged` if they do not: a page with a right checksum has keys out of order. I/O errors of writing.
    pub(crate) fn push(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        if self.info.as_ref().is_some_and(|info| info.last >= *key) {
            let file = shown(&*self.storage, &name(self.id));
            return Err(Error::new(ErrorKind::DataDamaged, format!("keys out of order: cannot write file={file}")));
        }
        if !self.page.fits(key) {
            self.seal_page()?;
        }
        if self.page.is_empty() {
            self.directory.push(key, self.info.as_ref().map(|info| &info.last));
        }
        self.page.push(key, value);
        self.hashes.push(self.origin.seed.filter_hash(key))?;
        let new = SegmentInfo { id: self.id, records: 0, tombstones: 0, first: *key, last: *key };
        let info = self.info.get_or_insert(new);
        info.records += 1;
        info.tombstones += u64::from(value.is_none());
        info.last = *key;
        Ok(())
    }

    /// Size that the directory, its ties and all planes will have, in bytes.
    pub(crate) fn index_bytes(&self) -> u64 {
        let bytes = |plane| plane_bytes(plane_kind(plane, || self.origin.base), self.records());
        let planes: usize = (0..PLANES).map(bytes).sum();
        (planes + self.directory.bytes().iter().sum::<usize>()) as u64
    }

    /// Completes the file and makes its content durable. Its name is not durable until the directory is flushed. Planes
    /// stay in memory as far as the budget of `reads` has room.
    pub(crate) fn finish(self, reads: &Reads) -> Result<Written> {
        self.finish_with(&reads.pool, Some(&reads.budget))
    }

    /// As [`SegmentWriter::finish`], for a segment of which nothing stays in memory.
    pub(crate) fn finish_alone(self) -> Result<SegmentInfo> {
        self.finish_with(&Pool::default(), None).map(|written| written.footer.info)
    }

    fn finish_with(mut self, pool: &Pool, budget: Option<&Arc<Budget>>) -> Result<Written> {
        if !self.page.is_empty() {
            self.seal_page()?;
        }
        let Some(info) = self.info else {
            return Err(Error::new(ErrorKind::Internal, "a segment without records was finished"));
        };
        let (planes, sections) = self.planes(pool, budget)?;
        let [directory_bytes, ties_bytes] = self.directory.bytes();
        let mut directory = self.take(pool, directory_bytes)?;
        self.directory.encode_directory(&mut directory.whole_pages_mut()[..directory_bytes]);
        let directory_section = self.section(directory.bytes())?;
        let mut ties = self.take(pool, ties_bytes)?;
        self.directory.encode_ties(&mut ties.whole_pages_mut()[..ties_bytes]);
        let ties_section = self.section(ties.bytes())?;
        let pages = u32::try_from(self.directory.pages())
            .map_err(|e| Error::with_source(ErrorKind::Internal, "a segment has too many pages", e))?;
        let origin = std::mem::take(&mut self.origin);
        let footer = Footer { info, pages, planes: sections, directory: directory_section, ties: ties_section, origin };
        self.pending.extend_from_slice(&footer.encode()?);
        self.flush(0)?;
        self.file.sync_data().map_err(|e| Error::io(cannot_write(&*self.storage, self.id, &e), e))?;
        self.file.forget_pages();
        self.finished = true;
        directory.make_native();
        let planes = planes.map(|(plane, share)| share.map(|share| (plane, share)));
        Ok(Written { footer, index: Index { planes, directory, ties }, kept: self.room.kept.take() })
    }

    /// Makes the planes and appends them to the file.
    fn planes(&mut self, pool: &Pool, budget: Option<&Arc<Budget>>) -> Result<([Plane; PLANES], [Section; PLANES])> {
        let base = self.origin.base;
        let plane = |plane: usize| -> Result<Plane> {
            let bytes = plane_bytes(plane_kind(plane, || base), self.records());
            // A plane that does not fit now is considered again at the next division of the memory.
            Ok((self.take(pool, bytes)?, budget.and_then(|budget| budget.take(bytes as u64, 0))))
        };
        let mut planes = [plane(0)?, plane(1)?, plane(2)?];
        let hashes = &self.hashes;
        let fill = |number: usize, (plane, _): &mut Plane| {
            let length = plane.bytes().len();
            insert_all(&mut plane.whole_pages_mut()[..length], plane_kind(number, || base), hashes);
        };
        let [first, second, third] = &mut planes;
        // The first plane has as many bits as the others together, in the base.
        let others = || {
            fill(1, second);
            fill(2, third);
        };
        both(self.room.threads > 1, || fill(0, first), others);
        let mut sections = [Section { offset: 0, bytes: 0, crc: 0 }; PLANES];
        for (section, (plane, _)) in sections.iter_mut().zip(&planes) {
            *section = self.section(plane.bytes())?;
        }
        Ok((planes, sections))
    }

    /// Takes zeroed memory from `pool`.
    fn take(&self, pool: &Pool, bytes: usize) -> Result<HugeBytes> {
        let file = || shown(&*self.storage, &name(self.id));
        pool.take(bytes).map_err(|e| io_error(format!("no memory: file={} bytes={bytes}", file()), e))
    }

    fn seal_page(&mut self) -> Result<()> {
        let number = self.directory.pages() as u32 - 1;
        let (pending, kept) = (&mut self.pending, &mut self.room.kept);
        self.page.seal(self.id, number, |bytes| {
            pending.extend_from_slice(bytes);
            if let Some(kept) = kept {
                let at = number as usize * PAGE_BYTES;
                kept.map[at..at + PAGE_BYTES].copy_from_slice(bytes);
            }
        });
        self.flush(self.room.write)
    }

    /// Appends a section, padded to whole pages.
    fn section(&mut self, bytes: &[u8]) -> Result<Section> {
        let offset = self.written_bytes + self.pending.len() as u64;
        for part in bytes.chunks(PAGE_BYTES) {
            self.pending.extend_from_slice(part);
            self.flush(self.room.write)?;
        }
        let padding = bytes.len().next_multiple_of(PAGE_BYTES) - bytes.len();
        self.pending.resize(self.pending.len() + padding, 0);
        self.flush(self.room.write)?;
        Ok(Section { offset, bytes: bytes.len() as u64, crc: crc32c::crc32c(bytes) })
    }

    fn flush(&mut self, above: usize) -> Result<()> {
        if self.pending.len() > above {
            self.write(&self.pending, self.written_bytes)?;
            self.written_bytes += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }

    /// Writes bytes of the file at `offset`, and advises the device to begin with them.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.file.write_at(bytes, offset);
        written.map_err(|e| io_error(cannot_write(&*self.storage, self.id, &e), e))?;
        self.file.start_writeback(offset, bytes.len() as u64);
        Ok(())
    }
}

impl Drop for SegmentWriter {
    fn drop(&mut self) {
        if !self.finished {
            // No manifest names the file; the next opening would remove it too.
            self.storage.remove(&name(self.id)).ok();
        }
    }
}

fn cannot_write(storage: &dyn Storage, id: u64, e: &std::io::Error) -> String {
    format!("cannot write file={} reason={e}", shown(storage, &name(id)))
}
