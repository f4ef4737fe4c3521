//! Whether looking for an answer helps, or sleeping until it comes is quicker.
//!
//! Owns: the decision, from how long waits of both kinds took. Must not: read a clock, wait. Thread: the session's.
//!
//! Looking saves the wake-up, as long as there is a core for it: with all cores busy it keeps the service from the core
//! that it needs to answer. A client cannot see that, but its waits tell: one that looked is answered late.

use std::time::Duration;

/// A wait that is over within this has helped: waking up takes 5 to 20 us.
const HELPS_NS: u64 = 20_000;

/// A longer wait counts as this, so that a few that waited for a device or a long batch do not decide over all.
const COUNTED_MAX_NS: u64 = 4 * HELPS_NS;

/// Where looking does not help, or helps less than it might, one wait in so many is of the other kind.
const PROBE_EVERY: u32 = 256;

/// A new wait counts for so much of a mean: three that took long end the looking, after any number that did not.
const WEIGHT: u64 = 8;

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Spin {
    /// What the caller allows.
    most: Duration,
    waits: u32,
    /// The mean of waits that looked first.
    spun_ns: u64,
    /// The mean of those that slept at once; `None` before the first.
    slept_ns: Option<u64>,
}

impl Spin {
    /// One that looks for an answer for at most `most`.
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, waits: 0, spun_ns: 0, slept_ns: None }
    }

    /// Whether waits are measured: not where none may look.
    pub(crate) fn is_on(&self) -> bool {
        !self.most.is_zero()
    }

    /// How long to look for the next answer; zero says sleep at once.
    pub(crate) fn next(&mut self) -> Duration {
        if self.spun_ns <= HELPS_NS {
            return self.most;
        }
        self.waits = self.waits.wrapping_add(1);
        let looks = self.slept_ns.is_some_and(|slept_ns| self.spun_ns <= slept_ns);
        match (looks, self.waits.is_multiple_of(PROBE_EVERY)) {
            (true, false) => self.most,
            (false, true) => self.most.min(Duration::from_nanos(COUNTED_MAX_NS)),
            (true, true) | (false, false) => Duration::ZERO,
        }
    }

    /// A wait that looked first took so long.
    pub(crate) fn spun(&mut self, took: Duration) {
        let took_ns = counted(took);
        // One that helps brings the looking back, whatever there was before it.
        let back = self.spun_ns > HELPS_NS && took_ns <= HELPS_NS;
        self.spun_ns = if back { took_ns } else { mean(self.spun_ns, took_ns) };
    }

    /// A wait that slept at once took so long.
    pub(crate) fn slept(&mut self, took: Duration) {
        let took_ns = counted(took);
        self.slept_ns = Some(self.slept_ns.map_or(took_ns, |slept_ns| mean(slept_ns, took_ns)));
    }
}

fn counted(took: Duration) -> u64 {
    (took.as_nanos() as u64).min(COUNTED_MAX_NS)
}

fn mean(of: u64, new: u64) -> u64 {
    (of * (WEIGHT - 1) + new) / WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(1);

    /// Waits that look of 1000, where one that looks takes `spun_us` and one that sleeps `slept_us`.
    fn looks(spin: &mut Spin, spun_us: u64, slept_us: u64) -> usize {
        let wait = |_: &usize| {
            let looks = !spin.next().is_zero();
            match looks {
                true => spin.spun(Duration::from_micros(spun_us)),
                false => spin.slept(Duration::from_micros(slept_us)),
            }
            looks
        };
        (0..1000).filter(wait).count()
    }

    #[test]
    fn looking_ends_where_it_does_not_help_and_comes_back_where_it_does() {
        let mut spin = Spin::new(MOST);
        assert_eq!(looks(&mut spin, 1, 5), 1000);
        let busy = looks(&mut spin, 58, 9);
        assert!(busy < 20, "with all cores busy few waits look: looks={busy}");
        let idle = looks(&mut spin, 1, 5);
        assert!(idle > 1000 - PROBE_EVERY as usize - 1, "looks={idle}");
        // What takes long either way is looked for, as the caller wants.
        let slow = looks(&mut spin, 400, 410);
        assert!(slow > 900, "looks={slow}");
    }

    #[test]
    fn a_single_long_wait_changes_nothing_and_without_looking_nothing_is_tried() {
        let mut spin = Spin::new(MOST);
        spin.spun(Duration::from_secs(1));
        assert_eq!(spin.next(), MOST);
        let mut spin = Spin::new(Duration::ZERO);
        assert!(!spin.is_on() && spin.next().is_zero());
    }

    #[test]
    fn a_probe_is_short() {
        let mut spin = Spin::new(MOST);
        (0..10).for_each(|_| spin.spun(MOST));
        spin.slept(Duration::from_micros(9));
        let longest = (0..PROBE_EVERY).map(|_| spin.next()).max();
        assert_eq!(longest, Some(Duration::from_nanos(COUNTED_MAX_NS)));
    }
}
