//! A segment: one immutable file of pages, filter planes, a directory and ties.
//!
//! Owns: opening and reading the file, and the parts of it in memory. Must not: know runs or versions. Readers use a
//! segment on any thread at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use engine_api::{Error, ErrorKind, Key, Result};
use memmap2::MmapMut;

use crate::budget::{Budget, Share};
use crate::file::{PageBuffer, ReadFile};
use crate::format::filter::PLANES;
use crate::format::footer::{Footer, Origin, SegmentInfo, Wrong};
use crate::format::manifest::OTHER_VERSION;
use crate::format::page::{Page, VERSION, prefix};
use crate::format::ties::{DirectoryBuilder, Ties};
use crate::huge::{HugeBytes, release_tail};
use crate::read::cache::{Closed, RecordCache};
use crate::read::guide::{Directory, guide_bytes};
use crate::read::lookup::Reads;
use crate::read::resident::Resident;
use crate::read::sections::{check_against_pages, check_directory, check_sections, damaged, read_footer, read_section};
use crate::read::set::Source;
use crate::retire::Retire;
use crate::storage::{PAGE_BYTES, PageBytes, Storage};

/// Returns the name of segment `id`'s file.
pub(crate) fn name(id: u64) -> String {
    format!("{id:012}.seg")
}

/// Memory with the pages of a segment, filled while the segment was written.
pub(crate) struct Kept {
    pub(crate) map: MmapMut,
    pub(crate) share: Share,
}

/// The parts of a segment that stay in memory after it was written, so that they need not be read back.
pub(crate) struct Index {
    /// Filter planes with their memory. `None`: the budget had no room for the plane.
    pub(crate) planes: [Option<(HugeBytes, Share)>; PLANES],
    /// Directory, as numbers in this machine's byte order.
    pub(crate) directory: HugeBytes,
    pub(crate) ties: HugeBytes,
}

/// Memory needs of a segment, apart from its directory and ties, which are always in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Size of each filter plane in bytes.
    pub(crate) planes: [u64; PLANES],
    /// Size of all its pages in bytes.
    pub(crate) pages: u64,
    /// Bytes of the pages that were brought into memory; `None` if the segment has no room for pages.
    pub(crate) filled: Option<u64>,
}

/// A segment that is open for reading. A clone shares the file and all memory.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) info: SegmentInfo,
    file: Arc<ReadFile>,
    footer: Arc<Footer>,
    directory: Directory,
    planes: [OnceLock<(HugeBytes, Arc<Share>)>; PLANES],
    resident: OnceLock<Arc<Resident>>,
    /// Memory of the directory, held as long as a clone lives.
    _directory_share: Arc<Share>,
    reads: Arc<Reads>,
    /// Whether it is in the base run. A repair may put a segment that was written for the base into a delta run.
    in_base: bool,
    /// Whether a merge could not read some part of the segment.
    unreadable: Arc<AtomicBool>,
    /// Whether pairs read from the segment may no longer go into the record cache.
    closed: Arc<Closed>,
    end: Arc<Retire>,
}

impl Segment {
    /// Opens a segment of the base run or of a delta run, and reads its footer, its directory and its ties.
    ///
    /// # Errors
    /// `DataDamaged` naming file and offset; `FixInput` for another version; `Retry`: there is no memory; I/O errors.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        info: SegmentInfo,
        in_base: bool,
        budget: &Arc<Budget>,
        reads: &Arc<Reads>,
    ) -> Result<Arc<Self>> {
        let file = ReadFile::open(&**storage, &name(info.id))?;
        let (footer, at) = read_footer(&file)?.map_err(|wrong| match wrong {
            Wrong::Damaged(why) => damaged(&file, file.len().unwrap_or(0).saturating_sub(PAGE_BYTES as u64), &why),
            Wrong::OtherVersion(version) => Error::new(
                ErrorKind::FixInput,
                format!("written by another strata: file={} version={version} known={VERSION}", file.shown()),
            )
            .with_way_out(OTHER_VERSION),
        })?;
        if footer.info != info {
            return Err(damaged(&file, at, "the footer is not what the manifest says"));
        }
        if footer.origin.seed != reads.seed {
            return Err(damaged(&file, at, "it is a segment of another store"));
        }
        let share = directory_share(&footer, budget);
        let mut directory = read_section(&file, footer.directory, &reads.pool)?;
        // The file is little-endian; convert to this machine's byte order.
        directory.make_native();
        check_directory(directory.words(), &info).map_err(|why| damaged(&file, footer.directory.offset, why))?;
        let ties = Ties::new(read_section(&file, footer.ties, &reads.pool)?);
        ties.check(directory.words()).map_err(|why| damaged(&file, footer.ties.offset, why))?;
        let directory = Directory::new(directory, ties, prefix(&info.last));
        Ok(Arc::new(Self { in_base, ..Self::of(storage, (file, footer), (directory, share), reads) }))
    }

    /// Opens a segment that was just written, and takes its directory and planes from memory. Nothing of the file is
    /// read or checked; the next opening of the store checks the directory.
    ///
    /// # Errors
    /// I/O errors of opening the file, which name it.
    pub(crate) fn written(
        storage: &Arc<dyn Storage>,
        footer: Footer,
        index: Index,
        reads: &Arc<Reads>,
    ) -> Result<Arc<Self>> {
        let file = ReadFile::open(&**storage, &name(footer.info.id))?;
        let share = directory_share(&footer, &reads.budget);
        let directory = Directory::new(index.directory, Ties::new(index.ties), prefix(&footer.info.last));
        let segment = Arc::new(Self::of(storage, (file, footer), (directory, share), reads));
        for (plane, made) in segment.planes.iter().zip(index.planes) {
            if let Some((bytes, share)) = made {
                let _ = plane.set((bytes, Arc::new(share)));
            }
        }
        Ok(segment)
    }

    /// Makes a segment without planes.
    fn of(
        storage: &Arc<dyn Storage>,
        (file, footer): (ReadFile, Footer),
        (directory, share): (Directory, Share),
        reads: &Arc<Reads>,
    ) -> Self {
        let (info, removed_from) = (footer.info, Arc::clone(storage));
        Self {
            info,
            file: Arc::new(file),
            in_base: footer.origin.base,
            footer: Arc::new(footer),
            directory,
            planes: [const { OnceLock::new() }; PLANES],
            resident: OnceLock::new(),
            _directory_share: Arc::new(share),
            reads: Arc::clone(reads),
            unreadable: Arc::default(),
            closed: Arc::default(),
            // The next opening removes the file if this removal fails.
            end: Arc::new(Retire::new(move || drop(removed_from.remove(&name(info.id))))),
        }
    }

    /// Takes the bytes of a filter plane that is not in memory from the budget, if at least `leave_bytes` are left
    /// afterwards.
    pub(crate) fn claim_plane(&self, plane: usize, budget: &Arc<Budget>, leave_bytes: u64) -> Option<Share> {
        let is_missing = self.planes[plane].get().is_none();
        is_missing.then(|| budget.take(self.footer.planes[plane].bytes, leave_bytes)).flatten()
    }

    /// Reads a filter plane into memory, for which [`Segment::claim_plane`] has taken `share`.
    ///
    /// # Errors
    /// As [`read_section`].
    pub(crate) fn read_plane(&self, plane: usize, share: Share) -> Result<()> {
        let bytes = read_section(&self.file, self.footer.planes[plane], &self.reads.pool)?;
        // If another thread has set the plane meanwhile, that one stays.
        let _ = self.planes[plane].set((bytes, Arc::new(share)));
        Ok(())
    }

    /// Number of filter planes in memory.
    pub(crate) fn planes_loaded(&self) -> usize {
        self.planes.iter().filter(|plane| plane.get().is_some()).count()
    }

    /// Size of the pages in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        u64::from(self.footer.pages) * PAGE_BYTES as u64
    }

    /// Size of the file in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.page_bytes() + self.index_bytes() + PAGE_BYTES as u64
    }

    /// Marks the segment as unreadable for merges, which then leave it out until the store is opened again.
    pub(crate) fn mark_unreadable(&self) {
        // ORDERING: Relaxed, here and below: read by the thread that sets it, and as a statistic.
        self.unreadable.store(true, Ordering::Relaxed);
    }

    /// Whether a merge could not read some part of the segment.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Memory of the directory, of the guide to it and of its ties, in bytes.
    pub(crate) fn directory_bytes(&self) -> u64 {
        directory_bytes(&self.footer)
    }

    /// Size of the planes in memory, in bytes.
    pub(crate) fn filter_bytes(&self) -> u64 {
        self.given_bytes_with(PLANES, false)
    }

    /// Returns the origin of the records: store, newest batch and checkpoint.
    pub(crate) fn origin(&self) -> &Origin {
        &self.footer.origin
    }

    /// Size of the directory, its ties and all planes in bytes.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.footer.sections().into_iter().map(|section| section.bytes).sum()
    }

    /// Makes room for the pages in memory, if that leaves at least `leave_bytes` of the budget.
    pub(crate) fn make_resident(&self, budget: &Arc<Budget>, leave_bytes: u64) {
        if self.resident.get().is_none()
            && let Some(share) = budget.take(self.page_bytes(), leave_bytes)
            && let Ok(map) = MmapMut::map_anon(self.page_bytes() as usize)
        {
            let _ = self.resident.set(Arc::new(Resident::new(map, self.footer.pages, share)));
        }
    }

    /// Takes over the pages that were kept in memory while the segment was written.
    pub(crate) fn adopt_pages(&self, Kept { mut map, mut share }: Kept) {
        share.keep(self.page_bytes());
        release_tail(&mut map, self.page_bytes() as usize);
        let _ = self.resident.set(Arc::new(Resident::filled(map, self.footer.pages, share)));
    }

    /// Returns the same segment with less in memory: at most this many planes, and its pages or none. Both share the
    /// file and everything that both hold.
    pub(crate) fn lighter(&self, planes: usize, pages: bool) -> Arc<Self> {
        let mut lighter = self.clone();
        lighter.planes.iter_mut().skip(planes).for_each(|plane| drop(plane.take()));
        if !pages {
            lighter.resident.take();
        }
        Arc::new(lighter)
    }

    /// Describes the segment's memory for the division of the memory.
    pub(crate) fn memory_needs(&self) -> Needs {
        let filled = self.resident.get().map(|resident| resident.filled_bytes());
        Needs { planes: self.footer.planes.map(|plane| plane.bytes), pages: self.page_bytes(), filled }
    }

    /// Size of the memory that can be taken away, planes and pages, in bytes.
    pub(crate) fn given_bytes(&self) -> u64 {
        self.given_bytes_with(PLANES, true)
    }

    /// As [`Segment::given_bytes`], counting at most this many planes, and the pages or none.
    pub(crate) fn given_bytes_with(&self, planes: usize, pages: bool) -> u64 {
        let planes = self.planes.iter().zip(&self.footer.planes).take(planes);
        let loaded = planes.filter(|(plane, _)| plane.get().is_some()).map(|(_, section)| section.bytes);
        loaded.sum::<u64>() + if pages { self.resident_bytes() } else { 0 }
    }

    /// Size of those of the first `planes` planes that are not in memory, in bytes.
    pub(crate) fn missing_bytes(&self, planes: usize) -> u64 {
        let planes = self.planes.iter().zip(&self.footer.planes).take(planes);
        planes.filter(|(plane, _)| plane.get().is_none()).map(|(_, section)| section.bytes).sum()
    }

    /// Returns the pages in memory, if the segment has room for them.
    pub(crate) fn resident(&self) -> Option<&Resident> {
        self.resident.get().map(|resident| &**resident)
    }

    /// Size of the memory that the pages have room in, in bytes; 0 without room.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident.get().map_or(0, |_| self.page_bytes())
    }

    /// Lets the file be removed once nobody reads it any more.
    pub(crate) fn retire(&self) {
        self.end.retire();
    }

    pub(crate) fn pages(&self) -> u32 {
        self.footer.pages
    }

    pub(crate) fn file(&self) -> &ReadFile {
        &self.file
    }

    /// Returns the directory, which is always in memory.
    #[inline]
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns a filter plane if it is in memory.
    #[inline]
    pub(super) fn plane(&self, plane: usize) -> Option<&[u8]> {
        self.planes[plane].get().map(|(plane, _)| plane.bytes())
    }

    /// Returns the record cache, which all segments share.
    #[inline]
    pub(super) fn cache(&self) -> &RecordCache {
        &self.reads.cache
    }

    /// Identity of the segment in the record cache. Pairs of the base stay valid while merges replace its segments,
    /// which only a merge into the base knows how to keep true. So a segment in a delta run is never one of the base
    /// here.
    #[inline]
    pub(super) fn source(&self) -> Source {
        Source { segment: self.info.id, base: self.in_base }
    }

    /// Returns the flag that keeps pairs of this segment out of the record cache.
    pub(super) fn closed(&self) -> &Closed {
        &self.closed
    }

    /// First eight bytes of a page's first key, as a number.
    pub(crate) fn page_prefix(&self, number: u32) -> u64 {
        self.directory.words()[number as usize]
    }

    /// Returns page `number` if it is in memory.
    pub(crate) fn ready(&self, number: u32) -> Option<Page<'_>> {
        self.resident.get()?.ready(number)
    }

    /// Keeps a verified page in memory, if this segment has room for its pages.
    pub(crate) fn keep(&self, number: u32, bytes: &PageBytes) {
        if let Some(resident) = self.resident.get() {
            resident.keep(number, bytes);
        }
    }

    /// Counts a page that is read for a get.
    pub(super) fn count_read(&self) {
        self.reads.sums.get_reads.add(1);
    }

    pub(crate) fn verify<'a>(&self, bytes: &'a PageBytes, number: u32) -> Result<Page<'a>> {
        Page::verify(bytes, self.info.id, number)
            .map_err(|why| damaged(&self.file, u64::from(number) * PAGE_BYTES as u64, &why))
    }

    /// Returns the first page that may hold keys from `key` on, and the estimated position of `key` in it, 0 to 1.
    pub(crate) fn first_page_from(&self, key: &Key) -> (u32, f64) {
        let (page, part) = self.directory.page_of(key).unwrap_or((0, 0.0));
        (page as u32, part)
    }
}

/// Takes the memory of a segment's directory, its guide and its ties, which are always in memory.
fn directory_share(footer: &Footer, budget: &Arc<Budget>) -> Share {
    budget.take_always(directory_bytes(footer))
}

/// Memory of a segment's directory, its guide and its ties, in bytes.
fn directory_bytes(footer: &Footer) -> u64 {
    footer.directory.bytes + guide_bytes(footer.directory.bytes) + footer.ties.bytes
}

/// Number of pages that a scrub reads at once, 256 KiB: a device gives a single page at a tenth of its rate.
const SCRUB_PAGES: u32 = 64;

/// Checks every page and section of a segment on disk.
pub(crate) fn scrub(segment: &Segment) -> Result<()> {
    let mut buffer = PageBuffer::new(SCRUB_PAGES as usize);
    let (mut pages, mut before) = (DirectoryBuilder::default(), None);
    for first in (0..segment.pages()).step_by(SCRUB_PAGES as usize) {
        let count = SCRUB_PAGES.min(segment.pages() - first);
        let bytes = &mut buffer.bytes_mut()[..count as usize * PAGE_BYTES];
        segment.file.read(bytes, u64::from(first) * PAGE_BYTES as u64)?;
        for at in 0..count {
            let page = segment.verify(buffer.page(at as usize), first + at)?;
            pages.push(&page.key(0), before.as_ref());
            before = Some(page.key(page.len() - 1));
        }
    }
    check_sections(&segment.file, &segment.footer)?;
    check_against_pages(&segment.file, &segment.footer, &pages)
}
