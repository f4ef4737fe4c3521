//! How far above its parent a block may be, by the clock.
//!
//! Owns: that bound. Must not: know a provider, read a clock, or refuse a block. Any thread.
//!
//! A message may name any slot, and a slot that was applied cannot be taken back. The slots between a block and its parent
//! were skipped, and a chain skips no more slots than pass. So the time since the parent bounds them. The bound is
//! generous where the time is unknown or drifts. It is narrow compared with a wrong number of 64 bits.

use std::time::Duration;

/// Shortest time from one slot to the next. Slots take 400 ms by design.
const SLOT_TIME: Duration = Duration::from_millis(300);

/// Slots that may be skipped whatever the clock says: half an hour of them.
pub(crate) const SLACK_SLOTS: u64 = 5_000;

/// Longest time that counts. No cluster was ever stopped for a day, and a provider may name any time for a block.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the largest number of slots from a block to its child, where so much time has passed since that block. `None`
/// if that time is unknown.
pub(crate) fn reach(passed: Option<Duration>) -> u64 {
    let passed = passed.unwrap_or_default().min(TIME_MAX);
    SLACK_SLOTS + (passed.as_millis() / SLOT_TIME.as_millis()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_bounds_the_skipped_slots_and_a_false_time_gives_no_more_than_a_day() {
        assert_eq!((reach(None), reach(Some(Duration::ZERO))), (5_000, 5_000));
        assert_eq!(reach(Some(Duration::from_secs(60))), 5_200);
        assert_eq!(reach(Some(Duration::MAX)), 5_000 + 288_000);
    }
}
