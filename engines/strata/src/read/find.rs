//! How a segment finds a key: filter planes, the directory, and then the page.
//!
//! Owns: the order of these, and what is fetched into the processor's caches while another of them is waited for. Must
//! not: know runs or versions. Runs on the readers' threads.
//!
//! Each step of a get of a present key is a miss of every cache: plane 0, the directory, the page's header and its
//! record. Where they are depends on the key alone, but for the page, which the directory names. So the directory is
//! fetched together with plane 0, and plane 1 together with the page.

use std::ops::Range;

use engine_api::{Key, Result, Value};

use crate::format::filter::{PLANES, Spot};
use crate::format::page::{Page, PageBytes, prefix};
use crate::read::among::Among;
use crate::read::lookup::Lookup;
use crate::read::segment::Segment;

/// The page that is looked at for a key.
pub(crate) struct Aim {
    pub(crate) page: u32,
    /// About how far through the page the key is, 0 to 1.
    part: f64,
    /// Where pages begin with the key's first eight bytes: those that may hold it.
    among: Option<Box<Among>>,
}

/// What a segment knows of a key without reading the device.
pub(crate) enum Probe {
    /// It is not here.
    Absent,
    /// Its value, or `None` for a tombstone.
    Found(Option<Value>),
    /// It may be in this page.
    Read(Aim),
}

/// What one page says of a key.
pub(crate) enum Looked {
    /// It is not in the segment.
    Absent,
    /// Its value, or `None` for a tombstone.
    Found(Option<Value>),
    /// It may be in this other page: several hold keys with the same first eight bytes.
    Elsewhere(Aim),
}

impl Segment {
    /// Fetches what [`Segment::may_hold`] reads.
    #[inline]
    pub(crate) fn fetch_filter(&self, spot: Spot) {
        if let Some(plane) = self.plane(0) {
            spot.prefetch(plane);
        }
    }

    /// Fetches what [`Segment::aim`] reads.
    #[inline]
    pub(crate) fn fetch_directory(&self, key: &Key) {
        self.directory().prefetch(prefix(key));
    }

    /// Fetches what [`Segment::ask`] reads beside the page.
    #[inline]
    pub(crate) fn fetch_rest(&self, hash: u64) {
        if let Some(plane) = self.plane(1) {
            Spot::of(1, hash).prefetch(plane);
        }
        if self.resident().is_none() {
            self.cache().prefetch(hash);
        }
    }

    /// Whether a key may be here, as plane 0 says, if it is in memory; `spot` is the key's in that plane.
    #[inline]
    pub(crate) fn may_hold(&self, spot: Spot) -> bool {
        self.plane(0).is_none_or(|plane| spot.is_set(plane))
    }

    /// The page to look at first for a key, which is fetched as far as it is in memory; `None` where no page begins with
    /// the key or with less.
    #[inline]
    pub(crate) fn aim(&self, key: &Key) -> Option<Aim> {
        let wanted = prefix(key);
        let last = self.directory().up_to(wanted).checked_sub(1)?;
        // A key that begins a page is mostly the first with its eight bytes: then it is in that page.
        let among = if self.directory().words()[last] == wanted { self.among(key, last) } else { None };
        let at = among.as_ref().map_or(last, |among| among.guess(key) as usize);
        let aim = Aim { page: at as u32, part: self.directory().part(at, wanted), among };
        if let Some(resident) = self.resident() {
            resident.prefetch(aim.page, aim.part);
        }
        Some(aim)
    }

    /// The pages that may hold a key, where `last` and more than one page before it may.
    #[cold]
    fn among(&self, key: &Key, last: usize) -> Option<Box<Among>> {
        let first = self.directory().below(prefix(key)).saturating_sub(1);
        (last - first > 1).then(|| Box::new(Among::new(key, first as u32..last as u32 + 1, &self.info)))
    }

    /// What is known of `key`, which plane 0 has let through, without a read.
    pub(crate) fn ask(&self, key: &Key, hash: u64, mut aim: Aim, lookup: &mut Lookup) -> Probe {
        if !self.pass(1..2, hash) {
            return Probe::Absent;
        }
        while let Some(page) = self.ready(aim.page) {
            match self.look(key, aim, page) {
                Looked::Absent => return Probe::Absent,
                Looked::Found(value) => return Probe::Found(value),
                Looked::Elsewhere(other) => aim = other,
            }
        }
        // What the last plane would end costs less in memory than it does, and much more on the device.
        if !self.pass(2..PLANES, hash) {
            return Probe::Absent;
        }
        if self.resident().is_none()
            && let Some(found) = self.cache().get(key, hash, self.source())
        {
            lookup.counts.cached(found.is_some());
            if let Some(value) = found {
                return Probe::Found(Some(value));
            }
        }
        Probe::Read(aim)
    }

    /// The record of `key`, which plane 0 has let through: `Some(None)` is a tombstone.
    pub(crate) fn get(&self, key: &Key, hash: u64, lookup: &mut Lookup) -> Result<Option<Option<Value>>> {
        self.fetch_rest(hash);
        let Some(aim) = self.aim(key) else { return Ok(None) };
        match self.ask(key, hash, aim, lookup) {
            Probe::Absent => Ok(None),
            Probe::Found(value) => Ok(Some(value)),
            Probe::Read(aim) => self.read(key, hash, aim, lookup),
        }
    }

    #[cold]
    fn read(&self, key: &Key, hash: u64, mut aim: Aim, lookup: &mut Lookup) -> Result<Option<Option<Value>>> {
        loop {
            // Another thread may have brought it in meanwhile.
            let looked = match self.ready(aim.page) {
                Some(page) => self.look(key, aim, page),
                None => {
                    self.read_page(aim.page, lookup.page_mut())?;
                    self.finish(key, hash, aim, lookup.buffer.page(0))?
                }
            };
            match looked {
                Looked::Absent => return Ok(None),
                Looked::Found(value) => return Ok(Some(value)),
                Looked::Elsewhere(other) => aim = other,
            }
        }
    }

    /// Looks at a page that was read: verifies it, keeps what is worth it, and finds the record.
    pub(crate) fn finish(&self, key: &Key, hash: u64, aim: Aim, bytes: &PageBytes) -> Result<Looked> {
        let number = aim.page;
        let page = self.verify(bytes, number)?;
        self.keep(number, bytes);
        let looked = self.look(key, aim, page);
        match &looked {
            Looked::Absent => self.count_filter_error(),
            Looked::Found(value) => self.remember(key, hash, value.as_ref()),
            Looked::Elsewhere(_) => {}
        }
        Ok(looked)
    }

    /// What a page says of a key that it, or one with the same first eight bytes, must hold.
    #[inline]
    fn look(&self, key: &Key, aim: Aim, page: Page<'_>) -> Looked {
        if let Some(index) = page.find(key, aim.part) {
            return Looked::Found(page.value(index));
        }
        self.elsewhere(key, aim, page)
    }

    #[cold]
    fn elsewhere(&self, key: &Key, aim: Aim, page: Page<'_>) -> Looked {
        let (first, last) = (page.key(0), page.key(page.len() - 1));
        if first <= *key && *key <= last {
            return Looked::Absent;
        }
        let mut among = aim.among.unwrap_or_else(|| Box::new(Among::new(key, self.alike(key), &self.info)));
        among.narrow(key, aim.page, &first, &last);
        if among.is_empty() {
            return Looked::Absent;
        }
        let at = among.guess(key);
        let part = self.directory().part(at as usize, prefix(key));
        Looked::Elsewhere(Aim { page: at, part, among: Some(among) })
    }

    /// The pages that may hold keys with the first eight bytes of this one: those that begin with them, and the one
    /// before.
    fn alike(&self, key: &Key) -> Range<u32> {
        let wanted = prefix(key);
        let first = self.directory().below(wanted).saturating_sub(1);
        first as u32..self.directory().up_to(wanted) as u32
    }

    /// Whether a key may be here, as these planes say, if they are in memory.
    #[inline]
    fn pass(&self, mut planes: Range<usize>, hash: u64) -> bool {
        planes.all(|n| self.plane(n).is_none_or(|plane| Spot::of(n, hash).is_set(plane)))
    }

    /// Keeps a record that was read from the device, where pages are not kept.
    fn remember(&self, key: &Key, hash: u64, value: Option<&Value>) {
        if self.resident().is_none()
            && let Some(value) = value
        {
            self.cache().put(key, hash, self.source(), value, self.closed());
        }
    }
}
