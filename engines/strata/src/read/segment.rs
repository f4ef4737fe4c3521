//! A segment: one immutable file of pages, filter planes and a directory.
//!
//! Owns: how it is opened and asked, and how much of it is in memory. Must not: know runs or versions. Readers use a
//! segment on any thread at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use engine_api::{Error, ErrorKind, Key, Result};
use memmap2::MmapMut;

use crate::budget::{Budget, Share};
use crate::file::{PageBuffer, ReadFile};
use crate::format::filter::PLANES;
use crate::format::footer::{Footer, Origin, SegmentInfo, VERSION, Wrong};
use crate::format::page::{PAGE_BYTES, Page, PageBytes, prefix};
use crate::memory::{HugeBytes, release_tail};
use crate::read::cache::{Closed, RecordCache};
use crate::read::guide::{Directory, guide_bytes};
use crate::read::lookup::Reads;
use crate::read::resident::Resident;
use crate::read::sections::{check_directory, check_sections, damaged, read_footer, read_section};
use crate::read::set::Source;
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
    directory: Directory,
    planes: [OnceLock<(HugeBytes, Arc<Share>)>; PLANES],
    resident: OnceLock<Arc<Resident>>,
    directory_share: Arc<Share>,
    reads: Arc<Reads>,
    /// A merge could not read some of it.
    unreadable: AtomicBool,
    /// Whether the record cache takes in what is read from it.
    closed: Arc<Closed>,
    end: Arc<Retire>,
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
        let share = budget.take_always(footer.directory.bytes + guide_bytes(footer.directory.bytes));
        let mut directory = read_section(&file, footer.directory, &reads.pool)?;
        // In the file the least byte comes first.
        let (words, _) = directory.whole_pages_mut().as_chunks_mut();
        words.iter_mut().for_each(|word| *word = u64::from_le_bytes(*word).to_ne_bytes());
        check_directory(directory.words(), &info).map_err(|why| damaged(&file, footer.directory.offset, why))?;
        let directory = Directory::new(directory, prefix(&info.last));
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
            closed: Arc::default(),
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

    /// Bytes of its directory and of the guide to it, which are in memory.
    pub(crate) fn directory_bytes(&self) -> u64 {
        self.directory.bytes()
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
            closed: Arc::clone(&self.closed),
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

    /// Its directory.
    #[inline]
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A filter plane, if it is in memory.
    #[inline]
    pub(super) fn plane(&self, plane: usize) -> Option<&[u8]> {
        self.planes[plane].get().map(|(plane, _)| plane.bytes())
    }

    /// The records that were read lately, of all segments.
    #[inline]
    pub(super) fn cache(&self) -> &RecordCache {
        &self.reads.cache
    }

    /// What the record cache knows it by.
    #[inline]
    pub(super) fn source(&self) -> Source {
        Source { segment: self.info.id, base: self.footer.origin.base }
    }

    /// Whether the record cache takes in what is read from it.
    pub(super) fn closed(&self) -> &Closed {
        &self.closed
    }

    /// A filter let a key through that is not here.
    pub(super) fn count_filter_error(&self) {
        self.reads.count_filter_error();
    }

    /// The first eight bytes of the page's first key, as a number.
    pub(crate) fn page_prefix(&self, number: u32) -> u64 {
        self.directory.words()[number as usize]
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

    /// Reads a page as it is on disk, for a get.
    pub(super) fn read_page(&self, number: u32, bytes: &mut [u8]) -> Result<()> {
        self.reads.count_get_read();
        self.file.read(bytes, u64::from(number) * PAGE_BYTES as u64)
    }

    pub(crate) fn verify<'a>(&self, bytes: &'a PageBytes, number: u32) -> Result<Page<'a>> {
        Page::verify(bytes, self.info.id, number)
            .map_err(|why| damaged(&self.file, u64::from(number) * PAGE_BYTES as u64, &why))
    }

    /// The first page that may hold keys from `key` on.
    pub(crate) fn first_page_from(&self, key: &Key) -> u32 {
        self.directory.below(prefix(key)).saturating_sub(1) as u32
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
