//! The limit on repeated lines of the log.
//!
//! Owns: the number of lines that each place in the code has logged in this interval. Must not: look at the text of a
//! line. Threads: all that log; the thread `log` ends an interval.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Maximum number of lines of one place in the code in one interval. More would say nothing new, and others could fill
/// the disk with them.
const LINES_MAX: u64 = 50;

/// Time between two calls of [`Limiter::tell_left_out`].
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);

/// The limiter of this process's log.
pub(crate) static LIMITER: Limiter = Limiter { places: Mutex::new(Vec::new()) };

/// Counts the lines of each place in the code.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The places that have logged in this interval, of which there are dozens at most, and their lines.
    places: Mutex<Vec<(&'static Metadata<'static>, u64)>>,
}

impl Limiter {
    /// Counts a line of `place`, and returns whether it may be logged.
    fn lets_through(&self, place: &'static Metadata<'static>) -> bool {
        let mut places = self.lock();
        let at = places.iter().position(|(known, _)| known.callsite() == place.callsite());
        let at = at.unwrap_or_else(|| {
            places.push((place, 0));
            places.len() - 1
        });
        places[at].1 += 1;
        places[at].1 <= LINES_MAX
    }

    /// Logs how many lines of each place were left out in this interval, and begins the next one.
    pub(crate) fn tell_left_out(&self) {
        let places = std::mem::take(&mut *self.lock());
        for (place, lines) in places.into_iter().filter(|(_, lines)| *lines > LINES_MAX) {
            let (part, line) = (place.target(), place.line());
            tracing::warn!(part, line, left_out = lines - LINES_MAX, "repeated lines were left out of this log");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(&'static Metadata<'static>, u64)>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves lines of the levels INFO, WARN and ERROR out. Whoever turns on the others wants all of them.
impl<S: Subscriber> Layer<S> for &'static Limiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        *event.metadata().level() > Level::INFO || self.lets_through(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    static TRIED: Limiter = Limiter { places: Mutex::new(Vec::new()) };

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_place_has_so_many_lines_an_interval_and_the_others_are_counted() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log =
            tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false).with_writer(move || writer.clone());
        let count = |words: &str| {
            let text = kept.0.lock().unwrap();
            String::from_utf8_lossy(&text).lines().filter(|line| line.contains(words)).count() as u64
        };
        tracing::subscriber::with_default(log.finish().with(&TRIED), || {
            let repeat = || (0..LINES_MAX + 9).for_each(|n| tracing::error!("of the loop n={n}"));
            repeat();
            (0..LINES_MAX + 9).for_each(|n| tracing::debug!("asked for n={n}"));
            tracing::error!("of another place");
            assert_eq!((count("of the loop"), count("asked for")), (LINES_MAX, LINES_MAX + 9));
            assert_eq!(count("of another place"), 1, "a place takes nothing from another");
            TRIED.tell_left_out();
            assert_eq!((count("left_out=9"), count("left_out=")), (1, 1));
            repeat();
            assert_eq!(count("of the loop"), 2 * LINES_MAX, "an interval later");
        });
    }
}
