//! Decides whether a client polls for an answer or sleeps at once, whichever is quicker at present.
//!
//! Owns: the decision, made from the durations of both kinds of waits. Must not: read a clock, wait. Thread: the
//! session's.
//!
//! Polling saves the wake-up as long as there is a free core. If all cores are busy, polling keeps the service from the
//! core that it needs to answer. A client cannot see how many cores are free, but its waits show it: after polling, the
//! answer comes late.

use std::time::Duration;

/// A wait that polled and ended within this time was helped by polling, because waking up takes 5 to 20 us.
const HELPS_NS: u64 = 20_000;

/// Longer waits count as this long, so that a few waits for a device or a long batch do not dominate the mean.
const COUNTED_MAX_NS: u64 = 4 * HELPS_NS;

/// One wait in this many is of the other kind, while polling does not help or helps less than it might.
const PROBE_EVERY: u32 = 256;

/// Divisor of the running means: a new wait counts for 1/8. Three long waits end the polling, however many short ones
/// came before.
const WEIGHT: u64 = 8;

/// Durations of recent waits of one session, and the decision made from them; see the head of the file.
#[derive(Debug)]
pub(crate) struct Spin {
    /// The longest time to poll that the caller allows; zero turns polling off.
    most: Duration,
    waits: u32,
    /// Running mean of the waits that polled first, in ns.
    spun_ns: u64,
    /// Running mean of the waits that slept at once, in ns; `None` before the first.
    slept_ns: Option<u64>,
}

impl Spin {
    /// Returns a decision that begins with polling, for at most `most`.
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, waits: 0, spun_ns: 0, slept_ns: None }
    }

    /// Whether waits must be measured: they need not be where polling is turned off.
    pub(crate) fn is_on(&self) -> bool {
        !self.most.is_zero()
    }

    /// Returns how long to poll for the next answer; zero means to sleep at once.
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

    /// Records the duration of a wait that polled first.
    pub(crate) fn spun(&mut self, took: Duration) {
        let took_ns = counted(took);
        // One short wait brings polling back, however long the waits before it were.
        let back = self.spun_ns > HELPS_NS && took_ns <= HELPS_NS;
        self.spun_ns = if back { took_ns } else { mean(self.spun_ns, took_ns) };
    }

    /// Records the duration of a wait that slept at once.
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

    /// Returns how many of 1000 waits poll, if a wait that polls takes `spun_us` and one that sleeps `slept_us`.
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
        // If both kinds of waits are long, polling continues, as the caller wants.
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
