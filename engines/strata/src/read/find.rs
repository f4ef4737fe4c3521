//! Lookup of a key in a segment: filter planes, the directory, and then the page.
//!
//! Owns: the order of these steps, and the prefetches that overlap their cache misses. Must not: know runs or versions.
//! Runs on the readers' threads.
//!
//! Each step of a get of a present key misses every cache: plane 0, the directory, the page's header and its record.
//! All places but the page's depend on the key alone, and the directory names the page. So the directory is prefetched
//! together with plane 0, and plane 1 together with the page.

use std::ops::Range;

use engine_api::{Key, Result, Value};

use crate::format::Record;
use crate::format::filter::{PLANES, Spot, plane_kind};
use crate::format::page::{Page, prefix};
use crate::read::cache::Cached;
use crate::read::lookup::{Hashes, Lookup};
use crate::read::segment::Segment;
use crate::storage::{PAGE_BYTES, PageBytes};

/// The page to look at for a key.
pub(crate) struct Aim {
    pub(crate) page: u32,
    /// Estimated position of the key in the page, 0 to 1.
    part: f64,
}

/// The device would have to be read.
#[derive(Debug)]
pub(crate) struct WouldRead;

/// Answer of a segment about a key, as far as the pages looked at so far can give it.
pub(crate) enum Answer {
    /// The segment does not hold the key.
    Absent,
    /// Value of the key, or `None` for a tombstone.
    Found(Option<Value>),
    /// The key may be in this page, which has to be read.
    Page(Aim),
}

impl Segment {
    /// Prefetches the memory that [`Segment::may_hold`] reads.
    #[inline]
    pub(crate) fn fetch_filter(&self, spot: Spot) {
        if let Some(plane) = self.plane(0) {
            spot.prefetch(plane);
        }
    }

    /// Prefetches the memory that [`Segment::aim`] reads.
    #[inline]
    pub(crate) fn fetch_directory(&self, key: &Key) {
        self.directory().prefetch(prefix(key));
    }

    /// Prefetches plane 1 and, unless pages are kept in memory, the set of the record cache, which [`Segment::ask`]
    /// reads.
    #[inline]
    pub(crate) fn fetch_rest(&self, hash: Hashes) {
        if let Some(plane) = self.plane(1) {
            Spot::of(1, hash.filter).prefetch(plane);
        }
        if self.resident().is_none() {
            self.cache().prefetch(hash.key);
        }
    }

    /// Whether the segment may hold a key according to plane 0; true if the plane is not in memory. `spot` is the key's
    /// place in that plane.
    #[inline]
    pub(crate) fn may_hold(&self, spot: Spot) -> bool {
        self.plane(0).is_none_or(|plane| spot.is_set(plane))
    }

    /// Returns the page to look at for a key, and prefetches it if it is in memory. `None` if every page begins with a
    /// greater key.
    #[inline]
    pub(crate) fn aim(&self, key: &Key) -> Option<Aim> {
        let (page, part) = self.directory().page_of(key)?;
        let aim = Aim { page: page as u32, part };
        if let Some(resident) = self.resident() {
            resident.prefetch(aim.page, aim.part);
        }
        Some(aim)
    }

    /// Answers for `key`, which plane 0 has let through, without reading the device.
    pub(crate) fn ask(&self, key: &Key, hash: Hashes, aim: Aim, lookup: &mut Lookup) -> Answer {
        if !self.pass_planes(1..2, hash.filter) {
            return Answer::Absent;
        }
        if let Some(page) = self.ready(aim.page) {
            return look(key, &aim, page).map_or(Answer::Absent, |Record(value)| Answer::Found(value));
        }
        // Ask the third plane only now, before a device read. For a page in memory, searching the page is cheaper than
        // one more cache miss in a plane.
        if !self.pass_planes(2..PLANES, hash.filter) {
            return Answer::Absent;
        }
        if self.resident().is_none() {
            match self.cache().get(key, hash.key, self.source()) {
                Cached::Value(value) => {
                    lookup.counts.cached(true);
                    return Answer::Found(Some(value));
                }
                Cached::Missing => lookup.counts.cached(false),
                Cached::NoMemory => {}
            }
        }
        Answer::Page(aim)
    }

    /// Returns the record of `key`, which plane 0 has let through.
    pub(crate) fn get(&self, key: &Key, hash: Hashes, lookup: &mut Lookup) -> Result<Option<Record>> {
        match self.look_up(key, hash, lookup) {
            Answer::Absent => Ok(None),
            Answer::Found(value) => Ok(Some(Record(value))),
            Answer::Page(aim) => self.read(key, hash, aim, lookup),
        }
    }

    /// Returns the record of `key`, which plane 0 has let through, unless the device would have to be read.
    pub(crate) fn get_resident(
        &self,
        key: &Key,
        hash: Hashes,
        lookup: &mut Lookup,
    ) -> Result<Option<Record>, WouldRead> {
        match self.look_up(key, hash, lookup) {
            Answer::Absent => Ok(None),
            Answer::Found(value) => Ok(Some(Record(value))),
            Answer::Page(_) => Err(WouldRead),
        }
    }

    /// Answers for `key`, which plane 0 has let through, without reading the device.
    #[inline]
    fn look_up(&self, key: &Key, hash: Hashes, lookup: &mut Lookup) -> Answer {
        self.fetch_rest(hash);
        self.aim(key).map_or(Answer::Absent, |aim| self.ask(key, hash, aim, lookup))
    }

    #[cold]
    fn read(&self, key: &Key, hash: Hashes, aim: Aim, lookup: &mut Lookup) -> Result<Option<Record>> {
        // Another thread may have brought the page in meanwhile.
        if let Some(page) = self.ready(aim.page) {
            return Ok(look(key, &aim, page));
        }
        self.count_read();
        let buffer = lookup.buffer();
        self.file().read(buffer.bytes_mut(), u64::from(aim.page) * PAGE_BYTES as u64)?;
        self.finish(key, hash, &aim, buffer.page(0))
    }

    /// Handles a page that was read: verifies it, finds the record, and caches the page or, in a segment that keeps no
    /// pages, the record.
    pub(crate) fn finish(&self, key: &Key, hash: Hashes, aim: &Aim, bytes: &PageBytes) -> Result<Option<Record>> {
        let page = self.verify(bytes, aim.page)?;
        self.keep(aim.page, bytes);
        let found = look(key, aim, page);
        if let Some(Record(Some(value))) = &found
            && self.resident().is_none()
        {
            self.cache().put(key, hash.key, self.source(), value, self.closed());
        }
        Ok(found)
    }

    /// Whether the segment may hold a key with this hash according to all planes in memory.
    pub(crate) fn pass(&self, filter_hash: u64) -> bool {
        self.pass_planes(0..PLANES, filter_hash)
    }

    /// Whether the segment may hold a key according to these planes, as far as they are in memory.
    #[inline]
    fn pass_planes(&self, mut planes: Range<usize>, filter_hash: u64) -> bool {
        planes.all(|n| {
            let Some(plane) = self.plane(n) else { return true };
            Spot::of(plane_kind(n, || self.origin().base), filter_hash).is_set(plane)
        })
    }
}

/// Searches the page that may hold a key.
#[inline]
fn look(key: &Key, aim: &Aim, page: Page<'_>) -> Option<Record> {
    page.find(key, aim.part).map(|index| Record(page.value(index)))
}
