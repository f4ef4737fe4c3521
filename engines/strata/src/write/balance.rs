//! The memory while the store is open: who has too much gives, who has too little gets.
//!
//! Owns: bringing filters, pages and the record cache to what `write/divide.rs` says. Must not: be called under the install
//! lock, which it takes. Runs on the threads that open, load and merge, one at a time.
//!
//! What a reader holds cannot be taken from it: a segment that gives memory away is replaced by one that shares the rest
//! with it, in a new version. The memory comes back once no reader holds the old one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::Shared;
use crate::format::filter::PLANES;
use crate::read::segment::Segment;
use crate::read::version::Version;
use crate::write::divide::{Division, Part, divide};

/// The record cache is made larger by this part of it at least, one in so many: what is left changes all the time.
const CACHE_STEP: u64 = 8;

impl Shared {
    /// What is to be left for flushes, merges and scans, less what they have already, in bytes.
    pub(crate) fn work_left_bytes(&self) -> u64 {
        self.work_bytes.saturating_sub(self.budget.work_bytes())
    }

    /// Makes room for `bytes` that the caller takes next.
    pub(crate) fn make_room(&self, bytes: u64) {
        if self.budget.left_bytes() < bytes {
            self.balance(bytes);
        }
    }

    /// Divides the memory anew, with `needed_bytes` for what the caller takes next. A filter plane that cannot be read is
    /// left out and counted as a failure: gets read more, and nothing else depends on it.
    pub(crate) fn balance(&self, needed_bytes: u64) {
        let _one = self.balancing.lock();
        self.garbage.sweep();
        let version = Arc::clone(&self.visible.load().version);
        let division = self.divide_now(&version, needed_bytes);
        // ORDERING: Relaxed: a hint for the segments that are written next.
        self.keeps_pages.store(division.keeps_pages, Ordering::Relaxed);
        let segments = version.segments().zip(&division.planes);
        let missing: u64 = segments.map(|(one, planes)| one.missing_bytes(*planes)).sum();
        let short = (needed_bytes + self.work_left_bytes() + missing) as i64 - self.budget.left();
        if short > 0 {
            self.take_back(version, &division, short as u64);
        }
        self.give(&division, needed_bytes);
    }

    /// Who is to have what, now that the store is this.
    fn divide_now(&self, version: &Version, needed_bytes: u64) -> Division {
        let parts: Vec<Part> = version.segments().map(|one| one.memory_part()).collect();
        let held: u64 = version.segments().map(|one| one.given_bytes()).sum();
        let fixed = needed_bytes + self.work_left_bytes();
        let room = self.budget.left() + (held + self.reads.cache.bytes()) as i64 - fixed as i64;
        divide(room.max(0) as u64, self.least_cache_bytes, &parts)
    }

    /// Takes `short` bytes or some more from those that have more than their part, if there are as many.
    fn take_back(&self, version: Arc<Version>, division: &Division, short: u64) {
        let cache = &self.reads.cache;
        let mut freed = cache.shrink(cache.bytes().saturating_sub(division.cache_bytes).min(short));
        let mut lighter = BTreeMap::new();
        // Pages go before planes: without a plane absent keys are read for.
        for planes_too in [false, true] {
            for (at, one) in version.segments().enumerate() {
                let planes = if planes_too { division.planes[at] } else { PLANES };
                let less = one.given_bytes() - one.given_bytes_with(planes, division.pages[at]);
                if freed < short && less > 0 {
                    freed += less;
                    lighter.insert(one.info.id, one.lighter(planes, division.pages[at]));
                }
            }
        }
        drop(version);
        if !lighter.is_empty() {
            self.replace(&lighter);
            self.garbage.sweep();
        }
    }

    /// Puts these segments, by number, in the place of those that they share with.
    fn replace(&self, lighter: &BTreeMap<u64, Arc<Segment>>) {
        let _install = self.install.lock();
        let before = Arc::clone(&self.visible.load().version);
        let version = Arc::new(before.with(lighter));
        self.publish(|visible| visible.version = version);
        self.garbage.hold(before as _, None);
    }

    /// Gives what is left, as far as it is back already, in the order of its use.
    fn give(&self, division: &Division, needed_bytes: u64) {
        let version = Arc::clone(&self.visible.load().version);
        // A load may have brought segments in meanwhile, which come last: they get theirs the next time.
        let segments: Vec<_> = version.segments().zip(division.planes.iter().zip(&division.pages)).collect();
        if version.segments().count() != division.planes.len() {
            return;
        }
        for plane in 0..PLANES {
            // The first plane is worth more than what work has in reserve.
            let leave = needed_bytes + if plane == 0 { 0 } else { self.work_left_bytes() };
            for (segment, _) in segments.iter().filter(|(_, (planes, _))| plane < **planes) {
                if segment.load_plane(plane, &self.budget, leave).is_err() {
                    self.counters.merge_failed();
                }
            }
        }
        let leave = needed_bytes + self.work_left_bytes();
        for (segment, _) in segments.iter().filter(|(_, (_, pages))| **pages) {
            segment.make_resident(&self.budget, leave);
        }
        let cache = &self.reads.cache;
        let room = self.budget.left_bytes().saturating_sub(leave);
        let more = division.cache_bytes.saturating_sub(cache.bytes()).min(room);
        if more > cache.bytes() / CACHE_STEP {
            cache.grow(more, &self.budget);
        }
    }
}
