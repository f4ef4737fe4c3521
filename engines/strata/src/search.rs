//! Searches in sorted lists whose items are not plain numbers, or whose place is likely known.
//!
//! Owns: bisection, with and without a guess. Must not: know the items. Any thread.

use std::ops::Range;

/// Doublings of the distance from a guess after which the rest is bisected, so that a wrong guess costs little.
const DOUBLINGS: u32 = 6;

/// Returns the first of these numbers that is not before the place looked for. Those that are come first.
pub(crate) fn bisect(Range { mut start, mut end }: Range<usize>, is_before: impl Fn(usize) -> bool) -> usize {
    while start < end {
        let middle = start.midpoint(end);
        if is_before(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}

/// As [`bisect`], for a place that is likely near `guess`, one of these numbers or their end.
pub(crate) fn near(Range { start, end }: Range<usize>, guess: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (start, end);
    if guess < end && is_before(guess) {
        low = guess + 1;
        for step in (0..DOUBLINGS).map(|doublings| 1 << doublings) {
            let next = low + step;
            if next >= end || !is_before(next) {
                high = end.min(next);
                break;
            }
            low = next + 1;
        }
    } else {
        high = guess;
        for step in (0..DOUBLINGS).map(|doublings| 1 << doublings) {
            let Some(before) = high.checked_sub(step).filter(|before| *before >= start) else { break };
            if is_before(before) {
                low = before + 1;
                break;
            }
            high = before;
        }
    }
    bisect(low..high, is_before)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_guess_never_changes_what_is_found(
            mut items in proptest::collection::vec(0u16..300, 0..400), guess in 0usize..400, start in 0usize..400,
            wanted in 0u16..302,
        ) {
            items.sort_unstable();
            let start = start.min(items.len());
            let is_before = |at: usize| items[at] < wanted;
            let expected = start + items[start..].partition_point(|item| *item < wanted);
            prop_assert_eq!(bisect(start..items.len(), is_before), expected);
            prop_assert_eq!(near(start..items.len(), guess.clamp(start, items.len()), is_before), expected);
        }
    }

    #[test]
    fn a_wrong_guess_costs_little_more_than_bisection_and_a_right_one_less() {
        let looks = |guess: usize, place: usize| {
            let count = std::cell::Cell::new(0);
            let found = near(0..1 << 16, guess, |at| {
                count.set(count.get() + 1);
                at < place
            });
            assert_eq!(found, place);
            count.get()
        };
        assert!(looks(30_000, 30_001) <= 4 && looks(30_001, 30_000) <= 4);
        for (guess, place) in [(0, 65_000), (65_535, 3), (30_000, 60_000), (65_536, 0), (0, 65_536)] {
            assert!(looks(guess, place) <= 16 + DOUBLINGS + 2, "guess={guess} place={place}");
        }
    }
}
