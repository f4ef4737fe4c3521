//! The memory of an open store, and its division: holders with too much give, holders with too little get.
//!
//! Owns: bringing filters, pages and the record cache to the shares that `write/divide.rs` computes, and the lock
//! `balancing`, the second in the order of `write/shared.rs`. It is held during a division, one at a time. Must not: be
//! called under the install lock, which a division takes. Runs on the threads that open, load, flush and merge.
//!
//! Memory that a reader holds cannot be taken from it. A segment that gives memory away is therefore replaced, in a new
//! version, by one that shares the rest with it. The memory comes back once no reader holds the old segment.
//!
//! The record cache gives first, by whole chunks with an equal part of the hashes each, then pages, then the third and
//! the second planes. Memory that cannot wait, such as a directory or a merge's buffer, is taken in any case. The
//! statistic `memory_owed_bytes` is the excess over the budget until other parts have given memory back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::StrataOptions;
use crate::format::filter::PLANES;
use crate::format::page::PAGE_RECORDS_MIN;
use crate::huge::map_huge;
use crate::read::lookup::Reads;
use crate::read::segment::{Kept, Needs, Segment};
use crate::read::version::Version;
use crate::sizes::{least_cache_bytes, merge_read_bytes, work_bytes};
use crate::storage::PAGE_BYTES;
use crate::write::at_once::at_once;
use crate::write::common::Common;
use crate::write::divide::{Division, divide};
use crate::write::runs::Runs;

/// The record cache grows only by at least 1/CACHE_STEP of its size, because the amount of memory left changes all the
/// time.
const CACHE_STEP: u64 = 8;

/// The memory of a store, apart from its memtables.
pub(crate) struct Memory {
    common: Arc<Common>,
    runs: Arc<Runs>,
    /// The budget, the record cache, and the memory of filters.
    pub(crate) reads: Arc<Reads>,
    /// Memory left free for flushes, merges and scans, in bytes.
    work_bytes: u64,
    /// Memory that the record cache gets before the second filter plane does, in bytes.
    least_cache_bytes: u64,
    /// Memory of all buffers of a merge together, in bytes.
    pub(crate) merge_read_bytes: u64,
    /// Whether pages stay in memory, according to the newest division of the memory.
    keeps_pages: AtomicBool,
    balancing: Mutex<()>,
}

impl Memory {
    pub(crate) fn new(common: &Arc<Common>, runs: &Arc<Runs>, reads: Arc<Reads>, options: &StrataOptions) -> Self {
        Self {
            common: Arc::clone(common),
            runs: Arc::clone(runs),
            reads,
            work_bytes: work_bytes(options, common.sizes),
            least_cache_bytes: least_cache_bytes(options),
            merge_read_bytes: merge_read_bytes(options),
            keeps_pages: AtomicBool::new(true),
            balancing: Mutex::new(()),
        }
    }

    /// Bytes to leave free for flushes, merges and scans, in addition to those they hold already.
    fn work_left_bytes(&self) -> u64 {
        self.work_bytes.saturating_sub(self.reads.budget.work_bytes())
    }

    /// Makes room for `bytes` that the caller takes next.
    pub(crate) fn make_room(&self, bytes: u64) {
        if self.reads.budget.left_bytes() < bytes {
            self.balance(bytes);
        }
    }

    /// Returns room for the pages of a segment of `records`, if memory is available to keep them. Readers then need not
    /// fetch the pages that a merge has rewritten.
    pub(crate) fn room_for_pages(&self, records: u64) -> Option<Kept> {
        // ORDERING: Relaxed: see `balance`.
        if !self.keeps_pages.load(Ordering::Relaxed) {
            return None;
        }
        let bytes = records.div_ceil(PAGE_RECORDS_MIN as u64) * PAGE_BYTES as u64;
        let share = self.reads.budget.take(bytes, self.work_left_bytes())?;
        // If mapping fails, pages are read when they are asked for.
        map_huge(bytes as usize).ok().map(|map| Kept { map, share })
    }

    /// Divides the memory again, unless another thread does at this moment.
    pub(crate) fn balance_soon(&self) {
        if let Some(one) = self.balancing.try_lock() {
            self.balance_with(&one, 0);
        }
    }

    /// Divides the memory again, keeping `needed_bytes` free for the caller. A filter plane that cannot be read is left
    /// out and counted as a failure: gets then read more, and nothing else depends on it.
    pub(crate) fn balance(&self, needed_bytes: u64) {
        self.balance_with(&self.balancing.lock(), needed_bytes);
    }

    fn balance_with(&self, _one: &MutexGuard<'_, ()>, needed_bytes: u64) {
        self.runs.garbage.sweep();
        let version = Arc::clone(&self.common.newest.load().version);
        let division = self.divide_now(&version, needed_bytes);
        // ORDERING: Relaxed: a hint for the segments that are written next.
        self.keeps_pages.store(division.keeps_pages, Ordering::Relaxed);
        let segments = version.segments().zip(&division.planes);
        let missing: u64 = segments.map(|(one, planes)| one.missing_bytes(*planes)).sum();
        let short = (needed_bytes + self.work_left_bytes() + missing) as i64 - self.reads.budget.left();
        if short > 0 {
            self.take_back(version, &division, short as u64);
        }
        self.give(&division, needed_bytes);
    }

    /// Computes the shares of all holders for the present version. Segments of versions that readers still hold keep
    /// their memory, because nothing would come back if they gave it away.
    fn divide_now(&self, version: &Version, needed_bytes: u64) -> Division {
        let pinned = self.pinned();
        // One without memory, as after an opening, has nothing to keep.
        let is_pinned = |one: &Segment| pinned.contains(&one.info.id) && one.given_bytes() > 0;
        let needs_of = |one: &Arc<Segment>| if is_pinned(one) { Needs::default() } else { one.memory_needs() };
        let needs: Vec<Needs> = version.segments().map(needs_of).collect();
        let held: u64 = version.segments().filter(|one| !is_pinned(one)).map(|one| one.given_bytes()).sum();
        let fixed = needed_bytes + self.work_left_bytes();
        let room = self.reads.budget.left() + (held + self.reads.cache.bytes()) as i64 - fixed as i64;
        let mut division = divide(room.max(0) as u64, self.least_cache_bytes, &needs);
        for (at, one) in version.segments().enumerate().filter(|(_, one)| is_pinned(one)) {
            (division.planes[at], division.pages[at]) = (one.planes_loaded(), one.resident().is_some());
        }
        division
    }

    /// Returns the numbers of the segments in replaced versions that readers still hold.
    fn pinned(&self) -> BTreeSet<u64> {
        let mut pinned = BTreeSet::new();
        self.runs.garbage.each(|held| {
            if let Some(version) = held.downcast_ref::<Version>() {
                pinned.extend(version.segments().map(|one| one.info.id));
            }
        });
        pinned
    }

    /// Takes at least `short` bytes, if possible, from holders that have more than their share.
    fn take_back(&self, version: Arc<Version>, division: &Division, short: u64) {
        let cache = &self.reads.cache;
        let mut freed = cache.shrink(cache.bytes().saturating_sub(division.cache_bytes).min(short));
        let (mut lighter, mut taken) = (BTreeMap::new(), BTreeMap::new());
        // Take pages before planes, because without a plane every absent key costs reads.
        for planes_too in [false, true] {
            for (at, one) in version.segments().enumerate() {
                let planes = if planes_too { division.planes[at] } else { PLANES };
                let less = one.given_bytes() - one.given_bytes_with(planes, division.pages[at]);
                let pages = taken.get(&one.info.id).copied().unwrap_or(0);
                if freed < short && less > pages {
                    freed += less - pages;
                    taken.insert(one.info.id, less);
                    lighter.insert(one.info.id, one.lighter(planes, division.pages[at]));
                }
            }
        }
        drop(version);
        if !lighter.is_empty() {
            self.runs.replace_segments(&lighter);
            self.runs.garbage.sweep();
        }
    }

    /// Gives out the memory that is left and has come back already, in order of usefulness.
    fn give(&self, division: &Division, needed_bytes: u64) {
        let version = Arc::clone(&self.common.newest.load().version);
        // A load may have added segments meanwhile, so the division no longer fits. The next balancing gives them their
        // shares.
        let segments: Vec<_> = version.segments().zip(division.planes.iter().zip(&division.pages)).collect();
        if version.segments().count() != division.planes.len() {
            return;
        }
        let mut claims = Vec::new();
        for plane in 0..PLANES {
            // The first plane is worth more than the reserve for work.
            let leave = needed_bytes + if plane == 0 { 0 } else { self.work_left_bytes() };
            for (segment, _) in segments.iter().filter(|(_, (planes, _))| plane < **planes) {
                claims
                    .extend(segment.claim_plane(plane, &self.reads.budget, leave).map(|share| (segment, plane, share)));
            }
        }
        let read = at_once(claims, |(segment, plane, share)| segment.read_plane(plane, share));
        read.iter().filter(|read| read.is_err()).for_each(|_| self.common.counters.failures.add(1));
        let leave = needed_bytes + self.work_left_bytes();
        for (segment, _) in segments.iter().filter(|(_, (_, pages))| **pages) {
            segment.make_resident(&self.reads.budget, leave);
        }
        let cache = &self.reads.cache;
        let room = self.reads.budget.left_bytes().saturating_sub(leave);
        let more = division.cache_bytes.saturating_sub(cache.bytes()).min(room);
        if more > cache.bytes() / CACHE_STEP {
            cache.grow(more, &self.reads.budget);
        }
    }
}
