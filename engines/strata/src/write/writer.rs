//! Writing a segment: pages as they fill, then the filter planes, the directory and the footer.
//!
//! Owns: the order of a segment's parts. Must not: read. Runs on the thread that merges or loads.

use std::sync::Arc;

use engine_api::{Error, ErrorKind, Key, Result, Value};
use memmap2::MmapMut;

use crate::file::{io_error, shown};
use crate::format::filter::{PLANES, insert, plane_bytes};
use crate::format::footer::{Footer, Origin, Section, SegmentInfo};
use crate::format::page::{PAGE_BYTES, PageBuilder, prefix};
use crate::read::segment::name;
use crate::storage::{Storage, StorageFile};

/// Bytes collected before a write.
const WRITE_BYTES: usize = 1 << 20;

/// Writes a segment from ascending records.
pub(crate) struct SegmentWriter {
    storage: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    id: u64,
    origin: Origin,
    page: PageBuilder,
    pending: Vec<u8>,
    written_bytes: u64,
    directory: Vec<u64>,
    hashes: Vec<u64>,
    info: Option<SegmentInfo>,
    /// Room for every page, where they are to stay in memory.
    kept: Option<MmapMut>,
    finished: bool,
}

/// A segment that was written.
pub(crate) struct Written {
    pub(crate) info: SegmentInfo,
    pub(crate) file_bytes: u64,
    /// Its pages, where they were to stay in memory.
    pub(crate) kept: Option<MmapMut>,
}

impl SegmentWriter {
    /// A new file. In `kept` there is room for every page that will be written, or they are not kept.
    pub(crate) fn create(storage: &Arc<dyn Storage>, id: u64, origin: &Origin, kept: Option<MmapMut>) -> Result<Self> {
        let file = storage.create(&name(id)).map_err(|e| io_error(cannot_write(&**storage, id, &e), e))?;
        Ok(Self {
            storage: Arc::clone(storage),
            file,
            id,
            origin: origin.clone(),
            page: PageBuilder::new(),
            pending: Vec::with_capacity(WRITE_BYTES + PAGE_BYTES),
            written_bytes: 0,
            directory: Vec::new(),
            hashes: Vec::new(),
            info: None,
            kept,
            finished: false,
        })
    }

    pub(crate) fn records(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Adds a record. Keys ascend strictly.
    pub(crate) fn push(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        if !self.page.fits(key) {
            self.seal_page()?;
        }
        if self.page.is_empty() {
            self.directory.push(prefix(key));
        }
        self.page.push(key, value);
        self.hashes.push(self.origin.seed.hash(key));
        let new = SegmentInfo { id: self.id, records: 0, tombstones: 0, first: *key, last: *key };
        let info = self.info.get_or_insert(new);
        info.records += 1;
        info.tombstones += u64::from(value.is_none());
        info.last = *key;
        Ok(())
    }

    /// Completes the file and makes it durable; its name is not yet.
    pub(crate) fn finish(mut self) -> Result<Written> {
        if !self.page.is_empty() {
            self.seal_page()?;
        }
        let Some(info) = self.info else {
            return Err(Error::new(ErrorKind::Internal, "a segment without records was finished"));
        };
        let mut planes = [Section { offset: 0, bytes: 0, crc: 0 }; PLANES];
        for (plane, section) in planes.iter_mut().enumerate() {
            let mut bytes = vec![0; plane_bytes(plane, info.records)];
            self.hashes.iter().for_each(|hash| insert(&mut bytes, plane, *hash));
            *section = self.section(&bytes)?;
        }
        let directory: Vec<u8> = self.directory.iter().flat_map(|prefix| prefix.to_le_bytes()).collect();
        let directory = self.section(&directory)?;
        let pages = u32::try_from(self.directory.len())
            .map_err(|e| Error::with_source(ErrorKind::Internal, "a segment has too many pages", e))?;
        let origin = std::mem::take(&mut self.origin);
        let footer = Footer { info, pages, planes, directory, origin };
        self.pending.extend_from_slice(&footer.encode()?);
        self.flush(0)?;
        self.file.sync_data().map_err(|e| Error::io(cannot_write(&*self.storage, self.id, &e), e))?;
        self.file.forget_pages();
        self.finished = true;
        Ok(Written { info, file_bytes: self.written_bytes, kept: self.kept.take() })
    }

    fn seal_page(&mut self) -> Result<()> {
        let number = self.directory.len() as u32 - 1;
        let (pending, kept) = (&mut self.pending, &mut self.kept);
        self.page.seal(self.id, number, |bytes| {
            pending.extend_from_slice(bytes);
            if let Some(kept) = kept {
                let at = number as usize * PAGE_BYTES;
                kept[at..at + PAGE_BYTES].copy_from_slice(bytes);
            }
        });
        self.flush(WRITE_BYTES)
    }

    /// Appends a section, padded to whole pages.
    fn section(&mut self, bytes: &[u8]) -> Result<Section> {
        let offset = self.written_bytes + self.pending.len() as u64;
        self.pending.extend_from_slice(bytes);
        let padding = bytes.len().next_multiple_of(PAGE_BYTES) - bytes.len();
        self.pending.resize(self.pending.len() + padding, 0);
        self.flush(WRITE_BYTES)?;
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
            // Named by no manifest; opening would remove it as well.
            self.storage.remove(&name(self.id)).ok();
        }
    }
}

fn cannot_write(storage: &dyn Storage, id: u64, e: &std::io::Error) -> String {
    format!("cannot write file={} reason={e}", shown(storage, &name(id)))
}
