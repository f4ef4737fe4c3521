//! A segment: one immutable file of pages, filter planes and a directory.
//!
//! Owns: how it is opened and asked, and how much of it is in memory. Must not: know runs or versions. Readers use a
//! segment on any thread at once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use engine_api::{Error, ErrorKind, Key, Result, Value};
use memmap2::MmapMut;

use crate::budget::{Budget, Share};
use crate::file::{PageBuffer, ReadFile};
use crate::format::filter::{PLANES, may_contain, prefetch};
use crate::format::footer::{Footer, Origin, SegmentInfo, VERSION, Wrong};
use crate::format::page::{PAGE_BYTES, Page, PageBytes, prefix};
use crate::memory::{HugeBytes, release_tail};
use crate::read::lookup::{Lookup, Reads};
use crate::read::resident::Resident;
use crate::read::sections::{check_directory, check_sections, damaged, read_footer, read_section};
use crate::storage::Storage;
use crate::write::divide::Part;
use crate::write::retire::Retire;

/// The name of a segment's file.
pub(crate) fn name(id: u64) -> String {
    format!("{id:012}.seg")
}

/// Pages that were kept in memory while they were written.
pub(crate) struct Kept {
    pub(crate) map: MmapMut,
    pub(crate) share: Share,
}

/// A segment that is open for reading.
pub(crate) struct Segment {
    pub(crate) info: SegmentInfo,
    file: Arc<ReadFile>,
    footer: Arc<Footer>,
    directory: HugeBytes,
    planes: [OnceLock<(HugeBytes, Arc<Share>)>; PLANES],
    resident: OnceLock<Arc<Resident>>,
    directory_share: Arc<Share>,
    reads: Arc<Reads>,
    /// A merge could not read some of it.
    unreadable: AtomicBool,
    end: Arc<Retire>,
}

/// What a segment knows of a key without reading the device.
pub(crate) enum Probe {
    /// It is not here.
    Absent,
    /// Its value, or `None` for a tombstone.
    Found(Option<Value>),
    /// It may be in this page, about this part of the way through it.
    Read(u32, f64),
    /// It may be in any of these pages.
    Search(Range<u32>),
}

/// What one page says of a key.
pub(crate) enum Looked {
    /// It is not in the segment.
    Absent,
    /// Its value, or `None` for a tombstone.
    Found(Option<Value>),
    /// It may be in any of these other pages: they hold keys with the same first eight bytes.
    Elsewhere(Range<u32>),
}

impl Segment {
    /// Opens a segment and reads its directory.
    ///
    /// # Errors
    /// `DataDamaged` naming file and offset; `FixInput` for another version.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        info: SegmentInfo,
        budget: &Arc<Budget>,
        reads: &Arc<Reads>,
    ) -> Result<Arc<Self>> {
        let file = ReadFile::open(&**storage, &name(info.id))?;
        let (footer, at) = read_footer(&file)?.map_err(|wrong| match wrong {
            Wrong::Damaged(why) => damaged(&file, file.len().unwrap_or(0).saturating_sub(PAGE_BYTES as u64), &why),
            Wrong::OtherVersion(version) => Error::new(
                ErrorKind::FixInput,
                format!("written by another strata: file={} version={version} known={VERSION}", file.shown()),
            ),
        })?;
        if footer.info != info {
            return Err(damaged(&file, at, "the footer is not what the manifest says"));
        }
        if footer.origin.seed != reads.seed {
            return Err(damaged(&file, at, "it is a segment of another store"));
        }
        let share = budget.take_always(footer.directory.bytes);
        let mut directory = read_section(&file, footer.directory, &reads.pool)?;
        // In the file the least byte comes first.
        let (words, _) = directory.whole_pages_mut().as_chunks_mut();
        words.iter_mut().for_each(|word| *word = u64::from_le_bytes(*word).to_ne_bytes());
        check_directory(directory.words(), &info).map_err(|why| damaged(&file, footer.directory.offset, why))?;
        let removed_from = Arc::clone(storage);
        let segment = Self {
            info,
            file: Arc::new(file),
            footer: Arc::new(footer),
            directory,
            planes: [const { OnceLock::new() }; PLANES],
            resident: OnceLock::new(),
            directory_share: Arc::new(share),
            reads: Arc::clone(reads),
            unreadable: AtomicBool::new(false),
            // Left behind it would be removed by the next opening.
            end: Arc::new(Retire::new(move || drop(removed_from.remove(&name(info.id))))),
        };
        Ok(Arc::new(segment))
    }

    /// Brings a filter plane into memory, if that leaves this much of it.
    pub(crate) fn load_plane(&self, plane: usize, budget: &Arc<Budget>, leave_bytes: u64) -> Result<()> {
        let section = self.footer.planes[plane];
        if self.planes[plane].get().is_none()
            && let Some(share) = budget.take(section.bytes, leave_bytes)
        {
            let bytes = read_section(&self.file, section, &self.reads.pool)?;
            // One that another thread has set meanwhile stays.
            let _ = self.planes[plane].set((bytes, Arc::new(share)));
        }
        Ok(())
    }

    /// Planes that are in memory.
    pub(crate) fn planes_loaded(&self) -> usize {
        self.planes.iter().filter(|plane| plane.get().is_some()).count()
    }

    /// Bytes of its pages.
    pub(crate) fn page_bytes(&self) -> u64 {
        u64::from(self.footer.pages) * PAGE_BYTES as u64
    }

    /// Bytes of its file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.page_bytes() + self.index_bytes() + PAGE_BYTES as u64
    }

    /// A merge could not read some of it: merges leave it alone until the store is opened again.
    pub(crate) fn mark_unreadable(&self) {
        // ORDERING: Relaxed, here and below: looked at by the thread that sets it, and as a statistic.
        self.unreadable.store(true, Ordering::Relaxed);
    }

    /// Whether a merge could not read some of it.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Bytes of its directory, which is in memory.
    pub(crate) fn directory_bytes(&self) -> u64 {
        self.footer.directory.bytes
    }

    /// Bytes of its planes that are in memory.
    pub(crate) fn filter_bytes(&self) -> u64 {
        self.given_bytes_with(PLANES, false)
    }

    /// Where its records come from.
    pub(crate) fn origin(&self) -> &Origin {
        &self.footer.origin
    }

    /// Bytes are read for a scan or a merge.
    pub(crate) fn count_run_read(&self, bytes: usize) {
        self.reads.count_run_read(bytes);
    }

    /// Bytes of its directory and all its planes.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.footer.directory.bytes + self.footer.planes.iter().map(|plane| plane.bytes).sum::<u64>()
    }

    /// Makes room for its pages in memory, if that leaves this much of it.
    pub(crate) fn make_resident(&self, budget: &Arc<Budget>, leave_bytes: u64) {
        if self.resident.get().is_none()
            && let Some(share) = budget.take(self.page_bytes(), leave_bytes)
            && let Ok(map) = MmapMut::map_anon(self.page_bytes() as usize)
        {
            let _ = self.resident.set(Arc::new(Resident::new(map, self.footer.pages, share)));
        }
    }

    /// Takes over pages that were kept while they were written.
    pub(crate) fn adopt_pages(&self, Kept { mut map, mut share }: Kept) {
        share.keep(self.page_bytes());
        release_tail(&mut map, self.page_bytes() as usize);
        let _ = self.resident.set(Arc::new(Resident::filled(map, self.footer.pages, share)));
    }

    /// The same segment with less in memory: this many planes at most, and its pages or none. The two share all that both
    /// have, the file too.
    pub(crate) fn lighter(&self, planes: usize, pages: bool) -> Arc<Self> {
        let mut kept = [const { OnceLock::new() }; PLANES];
        for (kept, plane) in kept.iter_mut().zip(&self.planes).take(planes) {
            kept.clone_from(plane);
        }
        Arc::new(Self {
            info: self.info,
            file: Arc::clone(&self.file),
            footer: Arc::clone(&self.footer),
            directory: self.directory.clone(),
            planes: kept,
            resident: if pages { self.resident.clone() } else { OnceLock::new() },
            directory_share: Arc::clone(&self.directory_share),
            reads: Arc::clone(&self.reads),
            unreadable: AtomicBool::new(self.is_unreadable()),
            end: Arc::clone(&self.end),
        })
    }

    /// What the division of the memory looks at.
    pub(crate) fn memory_part(&self) -> Part {
        let filled = self.resident.get().map(|resident| resident.filled_bytes());
        Part { planes: self.footer.planes.map(|plane| plane.bytes), pages: self.page_bytes(), filled }
    }

    /// Bytes that it has of what can be taken away: planes and pages.
    pub(crate) fn given_bytes(&self) -> u64 {
        self.given_bytes_with(PLANES, true)
    }

    /// The same once it has only this many planes, and its pages or none.
    pub(crate) fn given_bytes_with(&self, planes: usize, pages: bool) -> u64 {
        let planes = self.planes.iter().zip(&self.footer.planes).take(planes);
        let loaded = planes.filter(|(plane, _)| plane.get().is_some()).map(|(_, section)| section.bytes);
        loaded.sum::<u64>() + if pages { self.resident_bytes() } else { 0 }
    }

    /// Bytes of the first planes that are not in memory.
    pub(crate) fn missing_bytes(&self, planes: usize) -> u64 {
        let planes = self.planes.iter().zip(&self.footer.planes).take(planes);
        planes.filter(|(plane, _)| plane.get().is_none()).map(|(_, section)| section.bytes).sum()
    }

    /// Its pages in memory, if there is room for them.
    pub(crate) fn resident(&self) -> Option<&Resident> {
        self.resident.get().map(|resident| &**resident)
    }

    /// Bytes of memory its pages have room in.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident.get().map_or(0, |_| self.page_bytes())
    }

    /// Its file is removed once nobody reads it any more.
    pub(crate) fn retire(&self) {
        self.end.retire();
    }

    pub(crate) fn pages(&self) -> u32 {
        self.footer.pages
    }

    pub(crate) fn file(&self) -> &ReadFile {
        &self.file
    }

    /// The first eight bytes of the page's first key, as a number.
    pub(crate) fn page_prefix(&self, number: u32) -> u64 {
        self.directory.words()[number as usize]
    }

    /// The record of `key`: `Some(None)` is a tombstone.
    pub(crate) fn get(&self, key: &Key, hash: u64, lookup: &mut Lookup) -> Result<Option<Option<Value>>> {
        match self.probe(key, hash, lookup) {
            Probe::Absent => Ok(None),
            Probe::Found(value) => Ok(Some(value)),
            Probe::Read(number, part) => {
                self.read_pages(number, lookup.page_mut())?;
                match self.finish(key, hash, number, part, lookup.buffer.page(0))? {
                    Looked::Absent => Ok(None),
                    Looked::Found(value) => Ok(Some(value)),
                    Looked::Elsewhere(pages) => self.search(key, hash, pages, lookup),
                }
            }
            Probe::Search(pages) => self.search(key, hash, pages, lookup),
        }
    }

    /// What is known of `key` without a read.
    pub(crate) fn probe(&self, key: &Key, hash: u64, lookup: &mut Lookup) -> Probe {
        // The second plane is fetched while the first is looked at.
        if let Some((second, _)) = self.planes[1].get() {
            prefetch(second.bytes(), 1, hash);
        }
        if !self.pass(0..2, hash) {
            return Probe::Absent;
        }
        let wanted = prefix(key);
        let Some(last) = self.upper_bound(wanted).checked_sub(1) else { return Probe::Absent };
        let at = self.first_look(last, wanted);
        let (number, part) = (at as u32, self.part(at, wanted));
        if let Some(resident) = self.resident.get() {
            resident.prefetch(number, part);
            if let Some(page) = resident.ready(number) {
                return match self.look(key, number, part, page) {
                    Looked::Absent => Probe::Absent,
                    Looked::Found(value) => Probe::Found(value),
                    Looked::Elsewhere(pages) => Probe::Search(pages),
                };
            }
        }
        // What the other planes would end costs less in memory than they do, and much more on the device.
        if !self.pass(2..PLANES, hash) {
            return Probe::Absent;
        }
        if self.resident.get().is_none()
            && let Some(found) = self.reads.cache.get(key, hash, self.info.id)
        {
            lookup.counts.cached(found.is_some());
            if let Some(value) = found {
                return Probe::Found(Some(value));
            }
        }
        Probe::Read(number, part)
    }

    /// Whether a key may be here, as these planes say, if they are in memory.
    fn pass(&self, planes: Range<usize>, hash: u64) -> bool {
        planes.into_iter().all(|n| self.planes[n].get().is_none_or(|(plane, _)| may_contain(plane.bytes(), n, hash)))
    }

    /// Ends a get that has read its page: verifies it, keeps what is worth it, and finds the record.
    pub(crate) fn finish(&self, key: &Key, hash: u64, number: u32, part: f64, bytes: &PageBytes) -> Result<Looked> {
        let page = self.verify(bytes, number)?;
        self.keep(number, bytes);
        let looked = self.look(key, number, part, page);
        match &looked {
            Looked::Absent => self.reads.count_filter_error(),
            Looked::Found(value) => self.remember(key, hash, value.as_ref()),
            Looked::Elsewhere(_) => {}
        }
        Ok(looked)
    }

    /// The record of a key that may be in any of these pages, which hold keys with the same first eight bytes.
    pub(crate) fn search(
        &self,
        key: &Key,
        hash: u64,
        pages: Range<u32>,
        lookup: &mut Lookup,
    ) -> Result<Option<Option<Value>>> {
        let (mut first, mut end) = (pages.start, pages.end);
        while first < end {
            let at = first + (end - first) / 2;
            let page = self.page(at, lookup)?;
            if page.key(0) > *key {
                end = at;
            } else if page.key(page.len() - 1) < *key {
                first = at + 1;
            } else if let Some(index) = page.find(key, self.part(at as usize, prefix(key))) {
                let value = page.value(index);
                self.remember(key, hash, value.as_ref());
                return Ok(Some(value));
            } else {
                break;
            }
        }
        self.reads.count_filter_error();
        Ok(None)
    }

    /// The page to look at first for a key, the first eight bytes of which are `wanted`; `last` is the last page that
    /// begins with them or with less. A key that begins a page is mostly the first with its eight bytes: then it is in
    /// that page, and only with many alike is the middle of them a better guess.
    fn first_look(&self, last: usize, wanted: u64) -> usize {
        if self.directory.words()[last] != wanted {
            return last;
        }
        let first = self.first_alike(wanted);
        if last - first <= 1 { last } else { first + (last - first) / 2 }
    }

    /// The first page that may hold keys with these first eight bytes: the one before the first that begins with them.
    fn first_alike(&self, wanted: u64) -> usize {
        self.directory.words().partition_point(|prefix| *prefix < wanted).saturating_sub(1)
    }

    /// What page `number` says of a key that it, or one with the same first eight bytes, must hold.
    fn look(&self, key: &Key, number: u32, part: f64, page: Page<'_>) -> Looked {
        if let Some(index) = page.find(key, part) {
            return Looked::Found(page.value(index));
        }
        let wanted = prefix(key);
        let pages = if page.key(0) > *key {
            self.first_alike(wanted) as u32..number
        } else if page.key(page.len() - 1) < *key {
            number + 1..self.upper_bound(wanted) as u32
        } else {
            return Looked::Absent;
        };
        if pages.is_empty() { Looked::Absent } else { Looked::Elsewhere(pages) }
    }

    /// Keeps a record that was read from the device, where pages are not kept.
    fn remember(&self, key: &Key, hash: u64, value: Option<&Value>) {
        if self.resident.get().is_none()
            && let Some(value) = value
        {
            self.reads.cache.put(key, hash, self.info.id, value);
        }
    }

    /// Verified page `number`, from memory or into the buffer.
    fn page<'a>(&'a self, number: u32, lookup: &'a mut Lookup) -> Result<Page<'a>> {
        if let Some(page) = self.ready(number) {
            return Ok(page);
        }
        self.read_pages(number, lookup.page_mut())?;
        let page = self.verify(lookup.buffer.page(0), number)?;
        self.keep(number, lookup.buffer.page(0));
        Ok(page)
    }

    /// Page `number`, if it is in memory.
    pub(crate) fn ready(&self, number: u32) -> Option<Page<'_>> {
        self.resident.get()?.ready(number)
    }

    /// Keeps a verified page, if there is room for this segment's.
    pub(crate) fn keep(&self, number: u32, bytes: &PageBytes) {
        if let Some(resident) = self.resident.get() {
            resident.keep(number, bytes);
        }
    }

    /// Reads whole pages as they are on disk, for a get.
    fn read_pages(&self, first: u32, bytes: &mut [u8]) -> Result<()> {
        self.reads.count_get_read();
        self.file.read(bytes, u64::from(first) * PAGE_BYTES as u64)
    }

    pub(crate) fn verify<'a>(&self, bytes: &'a PageBytes, number: u32) -> Result<Page<'a>> {
        Page::verify(bytes, self.info.id, number)
            .map_err(|why| damaged(&self.file, u64::from(number) * PAGE_BYTES as u64, &why))
    }

    /// The first page that may hold keys from `key` on.
    pub(crate) fn first_page_from(&self, key: &Key) -> u32 {
        self.directory.words().partition_point(|at| *at < prefix(key)).saturating_sub(1) as u32
    }

    /// How far `wanted` lies between the first key of page `at` and that of the next, 0 to 1.
    fn part(&self, at: usize, wanted: u64) -> f64 {
        let directory = self.directory.words();
        let low = directory[at];
        let high = directory.get(at + 1).copied().unwrap_or_else(|| prefix(&self.info.last));
        (wanted.saturating_sub(low) as f64 / high.saturating_sub(low).max(1) as f64).min(1.0)
    }

    /// The number of directory entries up to `wanted`. Keys are mostly uniform: the search starts where the entry
    /// should be and doubles its range until it is enclosed.
    fn upper_bound(&self, wanted: u64) -> usize {
        let directory = self.directory.words();
        let (low, high) = (directory[0], prefix(&self.info.last));
        if wanted < low {
            return 0;
        }
        let part = (wanted.min(high) - low) as f64 / (high - low).max(1) as f64;
        let guess = ((part * directory.len() as f64) as usize).min(directory.len() - 1);
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

/// Checks a whole segment as it is on disk.
pub(crate) fn scrub(segment: &Segment) -> Result<()> {
    let mut buffer = PageBuffer::new(1);
    for number in 0..segment.pages() {
        segment.file.read(buffer.bytes_mut(), u64::from(number) * PAGE_BYTES as u64)?;
        segment.verify(buffer.page(0), number)?;
    }
    check_sections(&segment.file, &segment.footer)
}
