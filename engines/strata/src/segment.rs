//! A segment: one immutable file of pages, filter planes and a directory.
//!
//! Owns: its bytes (FORMAT.md, "Segment"), how it is written, opened and asked, and how much of it is in memory. Must
//! not: know runs or versions. Readers use a segment on any thread at once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_api::{Error, ErrorKind, Key, Result, Value};
use memmap2::MmapMut;

use crate::budget::{Budget, Share};
use crate::cache::RecordCache;
use crate::file::{PageBuffer, ReadFile, shown};
use crate::filter::{PLANES, insert, may_contain, plane_bytes};
use crate::page::{PAGE_BYTES, PAGE_RECORDS, Page, PageBuilder, PageBytes, prefix};
use crate::resident::Resident;
use crate::retire::Retire;
use crate::storage::{Storage, StorageFile};

/// The format written, and the newest read.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"stratasg";
/// Most records of a segment: 65,536 pages, 256 MiB. A merge needs the space of one group of segments on top.
pub(crate) const SEGMENT_RECORDS: u64 = 63 << 16;
/// Bytes collected before a write.
const WRITE_BYTES: usize = 1 << 20;

/// What a manifest says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    pub(crate) id: u64,
    /// Records, tombstones included.
    pub(crate) records: u64,
    pub(crate) tombstones: u64,
    pub(crate) first: Key,
    pub(crate) last: Key,
}

/// The name of a segment's file.
pub(crate) fn name(id: u64) -> String {
    format!("{id:012}.seg")
}

/// Writes a segment from ascending records.
pub(crate) struct SegmentWriter {
    storage: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    id: u64,
    page: PageBuilder,
    pending: Vec<u8>,
    written_bytes: u64,
    directory: Vec<u64>,
    hashes: Vec<u64>,
    info: Option<SegmentInfo>,
    finished: bool,
}

impl SegmentWriter {
    pub(crate) fn create(storage: &Arc<dyn Storage>, id: u64) -> Result<Self> {
        let file = storage.create(&name(id)).map_err(|e| cannot_write(&**storage, id, e))?;
        Ok(Self {
            storage: Arc::clone(storage),
            file,
            id,
            page: PageBuilder::new(),
            pending: Vec::with_capacity(WRITE_BYTES + PAGE_BYTES),
            written_bytes: 0,
            directory: Vec::new(),
            hashes: Vec::new(),
            info: None,
            finished: false,
        })
    }

    pub(crate) fn records(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Adds a record. Keys ascend strictly.
    pub(crate) fn push(&mut self, key: &Key, hash: u64, value: Option<&Value>) -> Result<()> {
        if self.page.is_full() {
            self.seal_page()?;
        }
        if self.page.is_empty() {
            self.directory.push(prefix(key));
        }
        self.page.push(key, value);
        self.hashes.push(hash);
        let new = SegmentInfo { id: self.id, records: 0, tombstones: 0, first: *key, last: *key };
        let info = self.info.get_or_insert(new);
        info.records += 1;
        info.tombstones += u64::from(value.is_none());
        info.last = *key;
        Ok(())
    }

    /// Completes the file and makes it durable; its name is not yet.
    pub(crate) fn finish(mut self) -> Result<SegmentInfo> {
        self.seal_page()?;
        let Some(info) = self.info else {
            return Err(Error::new(ErrorKind::Internal, "a segment without records was finished"));
        };
        let pages = self.directory.len() as u32;
        let mut sections = Vec::new();
        for plane in 0..PLANES {
            let mut bytes = vec![0; plane_bytes(info.records)];
            self.hashes.iter().for_each(|hash| insert(&mut bytes, plane, *hash));
            sections.push(self.section(&bytes)?);
        }
        let directory: Vec<u8> = self.directory.iter().flat_map(|prefix| prefix.to_le_bytes()).collect();
        sections.push(self.section(&directory)?);
        let footer = encode_footer(&info, pages, &sections);
        self.pending.extend_from_slice(&footer);
        self.flush(0)?;
        self.file.sync_data().map_err(|e| cannot_write(&*self.storage, self.id, e))?;
        self.file.forget_pages();
        self.finished = true;
        Ok(info)
    }

    fn seal_page(&mut self) -> Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        let number = self.directory.len() as u32 - 1;
        let pending = &mut self.pending;
        self.page.seal(self.id, number, |bytes| pending.extend_from_slice(bytes));
        self.flush(WRITE_BYTES)
    }

    /// Appends a section, padded to whole pages; its offset, length and checksum.
    fn section(&mut self, bytes: &[u8]) -> Result<(u64, u64, u32)> {
        let offset = self.written_bytes + self.pending.len() as u64;
        self.pending.extend_from_slice(bytes);
        let padding = bytes.len().next_multiple_of(PAGE_BYTES) - bytes.len();
        self.pending.resize(self.pending.len() + padding, 0);
        self.flush(WRITE_BYTES)?;
        Ok((offset, bytes.len() as u64, crc32c::crc32c(bytes)))
    }

    fn flush(&mut self, above: usize) -> Result<()> {
        if self.pending.len() > above {
            let written = self.file.write_at(&self.pending, self.written_bytes);
            written.map_err(|e| cannot_write(&*self.storage, self.id, e))?;
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

fn cannot_write(storage: &dyn Storage, id: u64, e: std::io::Error) -> Error {
    Error::io(format!("cannot write file={} reason={e}", shown(storage, &name(id))), e)
}

/// A segment that is open for reading.
pub(crate) struct Segment {
    pub(crate) info: SegmentInfo,
    file: ReadFile,
    pages: u32,
    directory: Vec<u64>,
    planes: [OnceLock<(Vec<u8>, Share)>; PLANES],
    sections: [(u64, u64, u32); PLANES],
    resident: OnceLock<Resident>,
    _directory_share: Share,
    pub(crate) reads: Arc<Reads>,
    end: Retire,
}

/// What the segments of a store share: what gets have cost, and the records that were read lately.
#[derive(Default)]
pub(crate) struct Reads {
    /// Set once the store is open and its memory divided; none where all pages have room.
    pub(crate) cache: OnceLock<RecordCache>,
    pub(crate) page_reads: AtomicU64,
    pub(crate) filter_errors: AtomicU64,
}

impl Segment {
    /// Opens a segment and reads its directory and first plane.
    ///
    /// # Errors
    /// `DataDamaged` naming file and offset; `FixInput` for a newer version.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        info: SegmentInfo,
        budget: &Arc<Budget>,
        reads: &Arc<Reads>,
    ) -> Result<Arc<Self>> {
        let file = ReadFile::open(&**storage, &name(info.id))?;
        let length = file.len()?;
        if length < PAGE_BYTES as u64 || !length.is_multiple_of(PAGE_BYTES as u64) {
            return Err(damaged(&file, 0, &format!("length_bytes={length} is not whole pages")));
        }
        let mut buffer = PageBuffer::new(1);
        let at = length - PAGE_BYTES as u64;
        file.read(buffer.bytes_mut(), at)?;
        let (found, pages, sections) = decode_footer(buffer.page(0)).map_err(|wrong| match wrong {
            Footer::Damaged(why) => damaged(&file, at, &why),
            Footer::Newer(version) => Error::new(
                ErrorKind::FixInput,
                format!("written by a newer strata: file={} version={version} known={VERSION}", file.shown()),
            ),
        })?;
        if found != info {
            return Err(damaged(&file, at, "the footer is not what the manifest says"));
        }
        let [planes @ .., (offset, bytes, crc)] = sections;
        let share = budget.take_always(bytes);
        let directory = read_section(&file, (offset, bytes, crc))?;
        let directory =
            directory.chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|i| word[i]))).collect();
        let removed_from = Arc::clone(storage);
        let segment = Self {
            info,
            file,
            pages,
            directory,
            planes: [const { OnceLock::new() }; PLANES],
            sections: planes,
            resident: OnceLock::new(),
            _directory_share: share,
            reads: Arc::clone(reads),
            // Left behind it would be removed by the next opening.
            end: Retire::new(move || drop(removed_from.remove(&name(info.id)))),
        };
        segment.load_plane(0, budget)?;
        Ok(Arc::new(segment))
    }

    /// Brings a filter plane into memory, if there is memory for it.
    pub(crate) fn load_plane(&self, plane: usize, budget: &Arc<Budget>) -> Result<()> {
        let (_, bytes, _) = self.sections[plane];
        if self.planes[plane].get().is_none()
            && let Some(share) = budget.take(bytes)
        {
            let bytes = read_section(&self.file, self.sections[plane])?;
            // Set by one thread only: the one that installs the segment.
            let _ = self.planes[plane].set((bytes, share));
        }
        Ok(())
    }

    /// Bytes of its pages.
    pub(crate) fn page_bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64
    }

    /// Bytes of its directory and all its planes.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.directory.len() as u64 * 8 + self.sections.iter().map(|(_, bytes, _)| bytes).sum::<u64>()
    }

    /// Makes room for its pages in memory, if there is any.
    pub(crate) fn make_resident(&self, budget: &Arc<Budget>) {
        let bytes = self.page_bytes();
        if self.resident.get().is_some() {
            return;
        }
        if let Some(share) = budget.take(bytes)
            && let Ok(map) = MmapMut::map_anon(bytes as usize)
        {
            let _ = self.resident.set(Resident::new(map, self.pages, share));
        }
    }

    /// Its file is removed once nobody reads it any more.
    pub(crate) fn retire(&self) {
        self.end.retire();
    }

    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// The record of `key`: `Some(None)` is a tombstone.
    pub(crate) fn get(&self, key: &Key, hash: u64, buffer: &mut PageBuffer) -> Result<Option<Option<Value>>> {
        let filtered = self.planes.iter().enumerate().filter_map(|(n, plane)| Some((n, plane.get()?)));
        for (n, (bytes, _)) in filtered {
            if !may_contain(bytes, n, hash) {
                return Ok(None);
            }
        }
        let cache = if self.resident.get().is_some() { None } else { self.reads.cache.get() };
        if let Some(value) = cache.and_then(|cache| cache.get(key, hash, self.info.id)) {
            return Ok(Some(Some(value)));
        }
        let found = self.find(key, buffer)?;
        match (&found, cache) {
            (Some(Some(value)), Some(cache)) => cache.put(key, hash, self.info.id, value),
            (None, _) => {
                // ORDERING: Relaxed: a statistic. Only errors are counted: a shared counter in every get would cost.
                self.reads.filter_errors.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        Ok(found)
    }

    /// The record of `key` by directory and pages.
    fn find(&self, key: &Key, buffer: &mut PageBuffer) -> Result<Option<Option<Value>>> {
        let wanted = prefix(key);
        let above = self.upper_bound(wanted);
        let Some(last) = above.checked_sub(1) else { return Ok(None) };
        // Pages that begin with the very same eight bytes: the key may be in any of them, or in the one before.
        let mut first = if self.directory[last] == wanted {
            self.directory.partition_point(|prefix| *prefix < wanted).saturating_sub(1)
        } else {
            last
        };
        let mut end = last;
        loop {
            let at = first + (end - first) / 2;
            let page = self.page(at as u32, buffer)?;
            if first < end && page.key(0) > key {
                end = at.max(first + 1) - 1;
                continue;
            }
            if first < end && page.key(page.len() - 1) < key {
                first = at + 1;
                continue;
            }
            return Ok(page.find(key, self.directory.get(at + 1).copied()).map(|index| page.value(index)));
        }
    }

    /// Verified page `number`, from memory or into `buffer`.
    pub(crate) fn page<'a>(&'a self, number: u32, buffer: &'a mut PageBuffer) -> Result<Page<'a>> {
        if let Some(resident) = self.resident.get() {
            if let Some(page) = resident.ready(number) {
                return Ok(page);
            }
            self.read_pages(number, &mut buffer.bytes_mut()[..PAGE_BYTES])?;
            let page = self.verify(buffer.page(0), number)?;
            resident.keep(number, buffer.page(0));
            return Ok(page);
        }
        self.read_pages(number, &mut buffer.bytes_mut()[..PAGE_BYTES])?;
        self.verify(buffer.page(0), number)
    }

    /// Reads whole pages as they are on disk.
    pub(crate) fn read_pages(&self, first: u32, bytes: &mut [u8]) -> Result<()> {
        // ORDERING: Relaxed: a statistic.
        self.reads.page_reads.fetch_add(1, Ordering::Relaxed);
        self.file.read(bytes, u64::from(first) * PAGE_BYTES as u64)
    }

    pub(crate) fn verify<'a>(&self, bytes: &'a PageBytes, number: u32) -> Result<Page<'a>> {
        Page::verify(bytes, self.info.id, number)
            .map_err(|why| damaged(&self.file, u64::from(number) * PAGE_BYTES as u64, &why))
    }

    /// The first page that may hold keys from `key` on.
    pub(crate) fn first_page_from(&self, key: &Key) -> u32 {
        self.directory.partition_point(|at| *at < prefix(key)).saturating_sub(1) as u32
    }

    /// The number of directory entries up to `wanted`. Keys are mostly uniform: the search starts where the entry
    /// should be and doubles its range until it is enclosed.
    fn upper_bound(&self, wanted: u64) -> usize {
        let directory = &self.directory[..];
        let (low, high) = (directory[0], prefix(&self.info.last));
        if wanted < low {
            return 0;
        }
        let width = u128::from((high - low).max(1));
        let guess = (u128::from(wanted.min(high) - low) * directory.len() as u128 / width) as usize;
        let guess = guess.min(directory.len() - 1);
        let (mut from, mut to, mut step) = (guess, guess + 1, 16);
        while from > 0 && directory[from] > wanted {
            from = from.saturating_sub(step);
            step *= 2;
        }
        step = 16;
        while to < directory.len() && directory[to] <= wanted {
            to = (to + step).min(directory.len());
            step *= 2;
        }
        from + directory[from..to].partition_point(|prefix| *prefix <= wanted)
    }
}

fn read_section(file: &ReadFile, (offset, bytes, crc): (u64, u64, u32)) -> Result<Vec<u8>> {
    let pages = (bytes as usize).div_ceil(PAGE_BYTES);
    let mut buffer = PageBuffer::new(pages);
    file.read(buffer.bytes_mut(), offset)?;
    let read = &buffer.bytes_mut()[..bytes as usize];
    let computed = crc32c::crc32c(read);
    if computed != crc {
        return Err(damaged(file, offset, &format!("checksum stored={crc:08x} computed={computed:08x}")));
    }
    Ok(read.to_vec())
}

fn damaged(file: &ReadFile, offset: u64, why: &str) -> Error {
    Error::new(ErrorKind::DataDamaged, format!("segment is damaged: file={} offset={offset} {why}", file.shown()))
}

/// What is wrong with a footer.
pub(crate) enum Footer {
    Damaged(String),
    Newer(u32),
}

pub(crate) fn encode_footer(info: &SegmentInfo, pages: u32, sections: &[(u64, u64, u32)]) -> PageBytes {
    let mut out = [0; PAGE_BYTES];
    out[4..8].copy_from_slice(&VERSION.to_le_bytes());
    out[8..16].copy_from_slice(&MAGIC);
    out[16..24].copy_from_slice(&info.id.to_le_bytes());
    out[24..32].copy_from_slice(&info.records.to_le_bytes());
    out[32..40].copy_from_slice(&info.tombstones.to_le_bytes());
    out[40..44].copy_from_slice(&pages.to_le_bytes());
    out[48..80].copy_from_slice(&info.first);
    out[80..112].copy_from_slice(&info.last);
    for (n, (offset, bytes, crc)) in sections.iter().enumerate() {
        let at = 128 + n * 24;
        out[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        out[at + 8..at + 16].copy_from_slice(&bytes.to_le_bytes());
        out[at + 16..at + 20].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c::crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

type Sections = [(u64, u64, u32); PLANES + 1];

/// Decodes any page: a footer, or what is wrong with it.
pub(crate) fn decode_footer(bytes: &PageBytes) -> Result<(SegmentInfo, u32, Sections), Footer> {
    let word32 = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let word64 = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let damaged = |why: String| Footer::Damaged(why);
    let (stored, computed) = (word32(0), crc32c::crc32c(&bytes[4..]));
    if stored != computed {
        return Err(damaged(format!("footer checksum stored={stored:08x} computed={computed:08x}")));
    }
    if bytes[8..16] != MAGIC {
        return Err(damaged("not a segment's footer".to_owned()));
    }
    if word32(4) > VERSION {
        return Err(Footer::Newer(word32(4)));
    }
    let info = SegmentInfo {
        id: word64(16),
        records: word64(24),
        tombstones: word64(32),
        first: std::array::from_fn(|i| bytes[48 + i]),
        last: std::array::from_fn(|i| bytes[80 + i]),
    };
    let pages = word32(40);
    let sections: Sections =
        std::array::from_fn(|n| (word64(128 + n * 24), word64(136 + n * 24), word32(144 + n * 24)));
    if info.records == 0 || info.records.div_ceil(PAGE_RECORDS as u64) != u64::from(pages) {
        return Err(damaged(format!("records={} pages={pages}", info.records)));
    }
    let expected = [plane_bytes(info.records) as u64, plane_bytes(info.records) as u64, u64::from(pages) * 8];
    for ((offset, bytes, _), expected) in sections.iter().zip(expected) {
        if !offset.is_multiple_of(PAGE_BYTES as u64) || *bytes != expected {
            return Err(damaged(format!("section offset={offset} bytes={bytes} expected_bytes={expected}")));
        }
    }
    Ok((info, pages, sections))
}

/// Checks a whole segment as it is on disk.
pub(crate) fn scrub(segment: &Segment) -> Result<()> {
    let mut buffer = PageBuffer::new(1);
    for number in 0..segment.pages {
        segment.read_pages(number, buffer.bytes_mut())?;
        segment.verify(buffer.page(0), number)?;
    }
    segment.sections.iter().try_for_each(|section| read_section(&segment.file, *section).map(|_| ()))
}
