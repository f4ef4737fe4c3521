//! Writing of a segment: pages as they fill, then the filter planes, the directory and the footer.
//!
//! Owns: the order of a segment's parts. Must not: read. Runs on the thread that flushes, merges, loads, recovers or
//! repairs.

use std::sync::Arc;

use engine_api::{Error, ErrorKind, Key, Result, Value};

use crate::budget::{Budget, Share};
use crate::file::{io_error, shown};
use crate::format::filter::{PLANES, insert, plane_bytes};
use crate::format::footer::{Footer, Origin, Section, SegmentInfo};
use crate::format::page::{PAGE_BYTES, PageBuilder, prefix};
use crate::mapped::Mapped;
use crate::read::segment::{Kept, name};
use crate::storage::{Storage, StorageFile};

/// Bytes collected before a write: 1/WRITE_SHARE of the memory, within [`WRITE_BYTES`].
const WRITE_SHARE: u64 = 256;
/// Fewest and most bytes collected before a write. Larger writes gain nothing.
const WRITE_BYTES: (u64, u64) = (64 << 10, 1 << 20);
/// Bytes held for each record while a segment is written: its hash, and the largest plane.
const RECORD_WORK: u64 = 10;

/// Writes a segment from ascending records. Removes the file if it is dropped unfinished.
pub(crate) struct SegmentWriter {
    storage: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    id: u64,
    origin: Origin,
    page: PageBuilder,
    pending: Vec<u8>,
    written_bytes: u64,
    directory: Vec<u64>,
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
    /// Memory for every page, if the pages are to stay in memory.
    kept: Option<Kept>,
    _work: Share,
}

impl Room {
    /// Makes room for a writer without a store's budget, which takes the memory that it needs.
    pub(crate) fn alone() -> Self {
        Self::of(0, &Budget::new(0), None)
    }

    /// Makes room for at most this many records, whose pages stay in `kept` if given.
    pub(crate) fn of(records: u64, budget: &Arc<Budget>, kept: Option<Kept>) -> Self {
        let write = write_bytes(budget.all_bytes());
        let work = budget.take_for_work(records * RECORD_WORK + write + PAGE_BYTES as u64);
        Self { records: records as usize, write: write as usize, kept, _work: work }
    }
}

/// A segment that was written and flushed.
pub(crate) struct Written {
    pub(crate) info: SegmentInfo,
    pub(crate) file_bytes: u64,
    /// Size of its directory and all planes in bytes.
    pub(crate) index_bytes: u64,
    /// Its pages, if they were to stay in memory.
    pub(crate) kept: Option<Kept>,
}

/// Number of bytes that a writer collects before a write, in a store with this much memory.
pub(crate) fn write_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / WRITE_SHARE).clamp(WRITE_BYTES.0, WRITE_BYTES.1)
}

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
            directory: Vec::new(),
            hashes: Mapped::with_room(room.records)?,
            info: None,
            room,
            finished: false,
        })
    }

    pub(crate) fn records(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Adds a record. Keys must ascend strictly.
    pub(crate) fn push(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        if !self.page.fits(key) {
            self.seal_page()?;
        }
        if self.page.is_empty() {
            self.directory.push(prefix(key));
        }
        self.page.push(key, value);
        self.hashes.push(self.origin.seed.hash(key))?;
        let new = SegmentInfo { id: self.id, records: 0, tombstones: 0, first: *key, last: *key };
        let info = self.info.get_or_insert(new);
        info.records += 1;
        info.tombstones += u64::from(value.is_none());
        info.last = *key;
        Ok(())
    }

    /// Completes the file and makes its content durable. Its name is not durable until the directory is flushed.
    pub(crate) fn finish(mut self) -> Result<Written> {
        if !self.page.is_empty() {
            self.seal_page()?;
        }
        let Some(info) = self.info else {
            return Err(Error::new(ErrorKind::Internal, "a segment without records was finished"));
        };
        let mut planes = [Section { offset: 0, bytes: 0, crc: 0 }; PLANES];
        for (plane, section) in planes.iter_mut().enumerate() {
            let mut bytes = Mapped::zeros(plane_bytes(plane, info.records))?;
            self.hashes.iter().for_each(|hash| insert(&mut bytes, plane, *hash));
            *section = self.section(&bytes)?;
        }
        let directory: Vec<u8> = self.directory.iter().flat_map(|prefix| prefix.to_le_bytes()).collect();
        let directory = self.section(&directory)?;
        let index_bytes = directory.bytes + planes.iter().map(|plane| plane.bytes).sum::<u64>();
        let pages = u32::try_from(self.directory.len())
            .map_err(|e| Error::with_source(ErrorKind::Internal, "a segment has too many pages", e))?;
        let origin = std::mem::take(&mut self.origin);
        let footer = Footer { info, pages, planes, directory, origin };
        self.pending.extend_from_slice(&footer.encode()?);
        self.flush(0)?;
        self.file.sync_data().map_err(|e| Error::io(cannot_write(&*self.storage, self.id, &e), e))?;
        self.file.forget_pages();
        self.finished = true;
        Ok(Written { info, file_bytes: self.written_bytes, index_bytes, kept: self.room.kept.take() })
    }

    fn seal_page(&mut self) -> Result<()> {
        let number = self.directory.len() as u32 - 1;
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
            let written = self.file.write_at(&self.pending, self.written_bytes);
            written.map_err(|e| io_error(cannot_write(&*self.storage, self.id, &e), e))?;
            self.file.start_writeback(self.written_bytes, self.pending.len() as u64);
            self.written_bytes += self.pending.len() as u64;
            self.pending.clear();
        }
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
