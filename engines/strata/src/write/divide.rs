//! Division of a store's memory between filter planes, pages of segments, and records that were read recently.
//!
//! Owns: how much each of them gets. Must not: take or give memory; `write/memory.rs` does. Computed on the threads
//! that open, load, flush and merge.

use crate::format::filter::PLANES;
use crate::read::segment::Needs;

/// Smallest record cache that is worth having, in bytes.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// A division of the memory: the share of each holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Division {
    /// Number of planes to hold in memory, by segment.
    pub(crate) planes: Vec<usize>,
    /// Whether the pages stay in memory, by segment.
    pub(crate) pages: Vec<bool>,
    /// Size of the record cache in bytes.
    pub(crate) cache_bytes: u64,
    /// Whether any pages are kept in memory. Otherwise the memory goes to the record cache.
    pub(crate) keeps_pages: bool,
}

/// Divides `room` bytes. The first plane of every segment comes first, because without it each absent key costs a read.
/// Then come `least_cache` bytes of records, the other planes, and pages or records with the rest.
pub(crate) fn divide(room: u64, least_cache: u64, needs: &[Needs]) -> Division {
    let mut left = room;
    let mut planes = vec![0; needs.len()];
    for plane in 0..PLANES {
        let leave = if plane == 0 { 0 } else { least_cache };
        for (loaded, need) in planes.iter_mut().zip(needs) {
            if *loaded == plane && left >= need.planes[plane].saturating_add(leave) {
                left -= need.planes[plane];
                *loaded += 1;
            }
        }
    }
    let all: u64 = needs.iter().map(|need| need.pages).sum();
    // Pages are worth keeping if at least half of them have room. Otherwise most gets would miss them, and it is better
    // to keep popular records one by one. Pages that are in memory already stay while three eighths of all have
    // room.
    let some = needs.iter().any(|need| need.filled.is_some());
    let keeps_pages = left >= if some { all / 8 * 3 } else { all / 2 };
    let mut pages = vec![false; needs.len()];
    if keeps_pages {
        let mut for_pages = if left >= all { left } else { left / 4 * 3 };
        for at in warmest_first(needs) {
            if for_pages >= needs[at].pages {
                for_pages -= needs[at].pages;
                left -= needs[at].pages;
                pages[at] = true;
            }
        }
    }
    let fits = pages.iter().all(|kept| *kept);
    let cache_bytes = if fits || left < CACHE_BYTES_MIN { 0 } else { left };
    Division { planes, pages, cache_bytes, keeps_pages }
}

/// Orders segments by the part of their pages that was asked for, those with pages in memory first, the others newest
/// first.
fn warmest_first(needs: &[Needs]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|at| {
        let Needs { pages, filled, .. } = needs[*at];
        std::cmp::Reverse(filled.map(|filled| filled.saturating_mul(1000) / pages.max(1)))
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns a segment of a million records.
    fn needs_of_one() -> Needs {
        Needs { planes: [MIB, MIB / 2, MIB / 2], pages: 64 * MIB, filled: None }
    }

    #[test]
    fn every_first_plane_comes_before_any_second_and_records_before_that() {
        let needs = [needs_of_one(); 4];
        assert_eq!(divide(4 * MIB, 2 * MIB, &needs).planes, [1; 4]);
        let some = divide(6 * MIB, 2 * MIB, &needs);
        assert_eq!((some.planes, some.cache_bytes, some.keeps_pages), (vec![1; 4], 2 * MIB, false));
        let more = divide(8 * MIB, 2 * MIB, &needs);
        assert_eq!((more.planes, more.cache_bytes), (vec![2; 4], 2 * MIB));
        assert_eq!(divide(3 * MIB, 2 * MIB, &needs).planes, [1, 1, 1, 0], "the newest");
    }

    #[test]
    fn pages_are_kept_where_half_of_them_have_room_and_the_warmest_stay() {
        let planes = 8 * MIB;
        let all = divide(planes + 256 * MIB, MIB, &[needs_of_one(); 4]);
        assert_eq!((all.pages, all.cache_bytes, all.keeps_pages), (vec![true; 4], 0, true));
        let some = divide(planes + 180 * MIB, MIB, &[needs_of_one(); 4]);
        assert_eq!((some.pages, some.cache_bytes), (vec![true, true, false, false], 52 * MIB));
        let none = divide(planes + 120 * MIB, MIB, &[needs_of_one(); 4]);
        assert_eq!((none.pages, none.cache_bytes, none.keeps_pages), (vec![false; 4], 120 * MIB, false));
        let mut needs = [needs_of_one(); 4];
        needs[1].filled = Some(10 * MIB);
        needs[3].filled = Some(60 * MIB);
        assert_eq!(divide(planes + 100 * MIB, MIB, &needs).pages, [false, false, false, true]);
        assert_eq!(divide(planes + 180 * MIB, MIB, &needs).pages, [false, true, false, true]);
    }
}
