//! Work on several threads for the time of a call: reads of many segments, and the two halves of a loaded one.
//!
//! Owns: the threads `strata-open` and `strata-load`, and the number of reads at once. Must not: decide on the work; the
//! callers do. Runs on the thread that opens the store, and on those that divide the memory or load.
//!
//! A device that waits for one read before it gets the next delivers a part of its rate. The sections are read past the
//! page cache, so the kernel reads nothing ahead.

use std::panic::resume_unwind;
use std::thread;

use parking_lot::Mutex;

/// Number of reads at once. Each takes the memory that its section has in any case.
const READS_AT_ONCE: usize = 8;

/// Does `read` for every item, several at once, and returns the results in the order of the items.
pub(crate) fn at_once<T: Send, R: Send>(items: Vec<T>, read: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = items.len();
    let next = Mutex::new(items.into_iter().enumerate());
    let run = || {
        let mut done = Vec::new();
        loop {
            // Locked for this line alone, so that the others can take theirs.
            let taken = next.lock().next();
            let Some((at, item)) = taken else { return done };
            done.push((at, read(item)));
        }
    };
    let mut done = thread::scope(|scope| {
        // Without a thread, this one reads more.
        let start = |_| thread::Builder::new().name("strata-open".to_owned()).spawn_scoped(scope, run).ok();
        let others: Vec<_> = (1..READS_AT_ONCE.min(count)).filter_map(start).collect();
        let mut done = run();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Calls both functions, `there` on a second thread if `two` is set and the system has one.
pub(crate) fn both<A, B: Send>(two: bool, here: impl FnOnce() -> A, mut there: impl FnMut() -> B + Send) -> (A, B) {
    let mut outcome = None;
    let first = thread::scope(|scope| {
        if two {
            let run = || outcome = Some(there());
            // If the thread cannot be started, `there` is called below.
            thread::Builder::new().name("strata-load".to_owned()).spawn_scoped(scope, run).ok();
        }
        here()
    });
    (first, outcome.unwrap_or_else(there))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items_and_reads_take_place_at_once() {
        let items: Vec<usize> = (0..READS_AT_ONCE * 3).collect();
        let expected: Vec<usize> = items.iter().map(|item| item * 2).collect();
        // Each read waits for as many others as may be under way: with fewer at once this would never end.
        let others = Barrier::new(READS_AT_ONCE);
        let doubled = at_once(items, |item| {
            others.wait();
            item * 2
        });
        assert_eq!(doubled, expected);
        assert_eq!(at_once(Vec::<usize>::new(), |item| item), []);
    }
}
