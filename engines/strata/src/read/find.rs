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
use crate::format::filter::{PLANES, Spot};
use crate::format::page::{Page, prefix};
use crate::read::among::Among;
use crate::read::cache::Cached;
use crate::read::lookup::Lookup;
use crate::read::segment::Segment;
use crate::storage::{PAGE_BYTES, PageBytes};

/// The page to look at for a key.
pub(crate) struct Aim {
    pub(crate) page: u32,
    /// Estimated position of the key in the page, 0 to 1.
    part: f64,
    /// The pages that may hold the key, if several begin with its first eight bytes.
    among: Option<Box<Among>>,
}

/// Answer of a segment about a key, as far as the pages looked at so far can give it.
pub(crate) enum Answer {
    /// The segment does not hold the key.
    Absent,
    /// Value of the key, or `None` for a tombstone.
    Found(Option<Value>),
    /// The key may be in this page: the first one, or another one that holds keys with the same first eight bytes.
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
    pub(crate) fn fetch_rest(&self, hash: u64) {
        if let Some(plane) = self.plane(1) {
            Spot::of(1, hash).prefetch(plane);
        }
        if self.resident().is_none() {
            self.cache().prefetch(hash);
        }
    }

    /// Whether the segment may hold a key according to plane 0; true if the plane is not in memory. `spot` is the key's
    /// place in that plane.
    #[inline]
    pub(crate) fn may_hold(&self, spot: Spot) -> bool {
        self.plane(0).is_none_or(|plane| spot.is_set(plane))
    }

    /// Returns the first page to look at for a key, and prefetches it if it is in memory. `None` if every page begins
    /// with a greater key.
    #[inline]
    pub(crate) fn aim(&self, key: &Key) -> Option<Aim> {
        let wanted = prefix(key);
        let last = self.directory().up_to(wanted).checked_sub(1)?;
        // A key whose eight bytes begin a page is usually the first key of that page.
        let among = if self.directory().words()[last] == wanted { self.among(key, last) } else { None };
        let at = among.as_ref().map_or(last, |among| among.guess(key) as usize);
        let aim = Aim { page: at as u32, part: self.directory().part(at, wanted), among };
        if let Some(resident) = self.resident() {
            resident.prefetch(aim.page, aim.part);
        }
        Some(aim)
    }

    /// Returns the search among the pages up to `last` that may hold a key, if more than one page before `last` may
    /// hold it.
    #[cold]
    fn among(&self, key: &Key, last: usize) -> Option<Box<Among>> {
        let first = self.directory().below(prefix(key)).saturating_sub(1);
        (last - first > 1).then(|| Box::new(Among::new(key, first as u32..last as u32 + 1, &self.info)))
    }

    /// Answers for `key`, which plane 0 has let through, without reading the device.
    pub(crate) fn ask(&self, key: &Key, hash: u64, mut aim: Aim, lookup: &mut Lookup) -> Answer {
        if !self.pass(1..2, hash) {
            return Answer::Absent;
        }
        while let Some(page) = self.ready(aim.page) {
            match self.look(key, aim, page) {
                Answer::Page(other) => aim = other,
                answer => return answer,
            }
        }
        // Ask the third plane only now, before a device read. For a page in memory, searching the page is cheaper than
        // one more cache miss in a plane.
        if !self.pass(2..PLANES, hash) {
            return Answer::Absent;
        }
        if self.resident().is_none() {
            match self.cache().get(key, hash, self.source()) {
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
    pub(crate) fn get(&self, key: &Key, hash: u64, lookup: &mut Lookup) -> Result<Option<Record>> {
        self.fetch_rest(hash);
        let Some(aim) = self.aim(key) else { return Ok(None) };
        match self.ask(key, hash, aim, lookup) {
            Answer::Absent => Ok(None),
            Answer::Found(value) => Ok(Some(Record(value))),
            Answer::Page(aim) => self.read(key, hash, aim, lookup),
        }
    }

    #[cold]
    fn read(&self, key: &Key, hash: u64, mut aim: Aim, lookup: &mut Lookup) -> Result<Option<Record>> {
        loop {
            // Another thread may have brought the page in meanwhile.
            let looked = match self.ready(aim.page) {
                Some(page) => self.look(key, aim, page),
                None => {
                    self.count_read();
                    self.file().read(lookup.buffer.bytes_mut(), u64::from(aim.page) * PAGE_BYTES as u64)?;
                    self.finish(key, hash, aim, lookup.buffer.page(0))?
                }
            };
            match looked {
                Answer::Absent => return Ok(None),
                Answer::Found(value) => return Ok(Some(Record(value))),
                Answer::Page(other) => aim = other,
            }
        }
    }

    /// Handles a page that was read: verifies it, finds the record, and caches the page or, in a segment that keeps no
    /// pages, the record.
    pub(crate) fn finish(&self, key: &Key, hash: u64, aim: Aim, bytes: &PageBytes) -> Result<Answer> {
        let number = aim.page;
        let page = self.verify(bytes, number)?;
        self.keep(number, bytes);
        let looked = self.look(key, aim, page);
        if let Answer::Found(Some(value)) = &looked
            && self.resident().is_none()
        {
            self.cache().put(key, hash, self.source(), value, self.closed());
        }
        Ok(looked)
    }

    /// Searches a page for a key that must be in it or in another page with the same first eight bytes.
    #[inline]
    fn look(&self, key: &Key, aim: Aim, page: Page<'_>) -> Answer {
        if let Some(index) = page.find(key, aim.part) {
            return Answer::Found(page.value(index));
        }
        self.elsewhere(key, aim, page)
    }

    #[cold]
    fn elsewhere(&self, key: &Key, aim: Aim, page: Page<'_>) -> Answer {
        let (first, last) = (page.key(0), page.key(page.len() - 1));
        if first <= *key && *key <= last {
            return Answer::Absent;
        }
        let mut among = aim.among.unwrap_or_else(|| Box::new(Among::new(key, self.alike(key), &self.info)));
        among.narrow(key, aim.page, &first, &last);
        if among.is_empty() {
            return Answer::Absent;
        }
        let at = among.guess(key);
        let part = self.directory().part(at as usize, prefix(key));
        Answer::Page(Aim { page: at, part, among: Some(among) })
    }

    /// Returns the pages that may hold keys with the first eight bytes of this one: those that begin with these bytes,
    /// and the page before them.
    fn alike(&self, key: &Key) -> Range<u32> {
        let wanted = prefix(key);
        let first = self.directory().below(wanted).saturating_sub(1);
        first as u32..self.directory().up_to(wanted) as u32
    }

    /// Whether the segment may hold a key according to these planes, as far as they are in memory.
    #[inline]
    fn pass(&self, mut planes: Range<usize>, hash: u64) -> bool {
        planes.all(|n| self.plane(n).is_none_or(|plane| Spot::of(n, hash).is_set(plane)))
    }
}
