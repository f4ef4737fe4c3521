//! The order of a memtable's entries: sorted lists that are merged as they grow.
//!
//! Owns: when lists are merged, and the records of a memtable in order. Must not: write entries. `strata-flush` extends
//! the order as entries are committed, and a reader extends it by those that its snapshot has in addition; a reader takes
//! an order and keeps it.
//!
//! Each extension adds a list of the new entries, and merges it with the short lists before it. Long lists are merged by
//! `strata-flush`, so a reader copies few places besides those of the entries that it adds. A list is merged with those
//! after it once they have a quarter of its entries. So each entry is copied a few times for each fourfold growth, and a
//! reader has one or two lists for each fourfold growth of the memtable.
//!
//! The lists hold entries that are newer than a reader's snapshot. The reader passes over them: over eight for each of its
//! own, or over as many as a memtable has for each [`SHORT_ENTRIES`].

use std::ops::{Deref, Range};
use std::sync::Arc;

use engine_api::{Key, Result, Value};

use crate::format::page::prefix;
use crate::huge;
use crate::mapped::Mapped;
use crate::memtable::Mem;
use crate::search::near;

/// Readers merge only lists with fewer entries, so that a merge copies about twice as many at most.
const SHORT_ENTRIES: usize = 4096;
/// A list is merged with those after it once they have 1/GROWTH of its entries.
const GROWTH: usize = 4;

/// A reader with fewer than [`SHORT_ENTRIES`] entries sorts them for itself once the order has so many times as many:
/// otherwise it would pass over all others.
const STALE: usize = 8;

/// The place of an entry in the order: the first four bytes of its key as a number in the upper half, its index in the
/// lower one.
type Place = u64;

/// A sorted list: by key, and of equal keys the newest entry first.
enum List {
    Short(Vec<Place>),
    Long(Mapped<Place>),
}

impl List {
    /// Collects so many places into a short or a long list.
    fn of(count: usize, places: impl Iterator<Item = Place>) -> Result<Self> {
        if count < SHORT_ENTRIES {
            return Ok(Self::Short(places.collect()));
        }
        Mapped::of(count, places).map(Self::Long)
    }

    fn places_mut(&mut self) -> &mut [Place] {
        match self {
            Self::Short(places) => places,
            Self::Long(places) => places,
        }
    }

    /// Prefetches the memory that [`List::from`] reads first.
    fn prefetch(&self, first: &Key) {
        huge::prefetch(self.as_ptr().wrapping_add(self.guess(0, word(first).into())).cast());
    }

    /// Returns the index of the first place whose key is at least `first`.
    fn from(&self, mem: &Mem, first: &Key) -> usize {
        let wanted = u64::from(word(first));
        // With uniform keys the place at the first guess tells how far away the wanted one is.
        let guess = self.guess(0, wanted);
        let guess = match self.get(guess).map(|place| place >> 32) {
            Some(before) if before <= wanted => guess + self.guess(before, wanted),
            Some(behind) => guess.saturating_sub(self.guess(wanted, behind)),
            None => guess,
        };
        let at = near(0..self.len(), guess.min(self.len()), |at| self[at] < wanted << 32);
        let alike = self[at..].partition_point(|place| *place >> 32 == wanted);
        at + self[at..at + alike].partition_point(|place| mem.key(*place) < *first)
    }

    /// Estimates the number of places from one word to another, as if the keys were uniform.
    fn guess(&self, from: u64, to: u64) -> usize {
        (((to - from) * self.len() as u64) >> 32) as usize
    }
}

impl Deref for List {
    type Target = [Place];

    fn deref(&self) -> &[Place] {
        match self {
            Self::Short(places) => places,
            Self::Long(places) => places,
        }
    }
}

/// The lists of a memtable, oldest entries first. Together they hold the first `covered` entries.
#[derive(Clone, Default)]
pub(super) struct Order {
    lists: Vec<Arc<List>>,
    covered: usize,
}

impl Order {
    /// Number of leading lists that `strata-flush` alone merges: those up to the last long one.
    fn settled(&self) -> usize {
        self.lists.iter().rposition(|list| list.len() >= SHORT_ENTRIES).map_or(0, |last| last + 1)
    }

    /// Returns the first of these lists that is due to be merged with those after it.
    fn due(&self, lists: Range<usize>) -> Option<usize> {
        let (mut behind, mut due) = (0, None);
        for at in lists.rev() {
            let entries = self.lists[at].len();
            if behind * GROWTH >= entries {
                due = Some(at);
            }
            behind += entries;
        }
        due
    }
}

impl Mem {
    /// Takes the first `length` entries into the order, as far as they are not. `length` must have been acquired with a
    /// snapshot.
    ///
    /// # Errors
    /// `Retry`: there is no memory.
    fn arrange(&self, length: usize) -> Result<()> {
        let _one = self.ordering.lock();
        let now = self.order.load();
        if now.covered >= length {
            return Ok(());
        }
        let mut next = Order::clone(&now);
        next.lists.push(Arc::new(self.sorted(now.covered, length)?));
        next.covered = length;
        if let Some(first) = next.due(next.settled()..next.lists.len()) {
            let merged = self.merged(&next.lists[first..])?;
            next.lists.truncate(first);
            next.lists.push(Arc::new(merged));
        }
        self.order.store(Arc::new(next));
        Ok(())
    }

    /// Takes the first `length` entries into the order and merges the long lists that are due. Runs on `strata-flush`
    /// alone. `length` must have been acquired with a snapshot.
    ///
    /// # Errors
    /// `Retry`: there is no memory. Nothing is lost; a reader or the next call does the rest.
    pub(crate) fn arrange_and_merge(&self, length: usize) -> Result<()> {
        self.arrange(length)?;
        let now = self.order.load_full();
        let end = now.settled();
        let Some(first) = now.due(0..end) else { return Ok(()) };
        let merged = Arc::new(self.merged(&now.lists[first..end])?);
        // Readers have changed nothing but the lists after these.
        let _one = self.ordering.lock();
        let mut next = Order::clone(&self.order.load());
        next.lists.splice(first..end, [merged]);
        self.order.store(Arc::new(next));
        Ok(())
    }

    /// Returns the entries from `first` to `end` as a list.
    fn sorted(&self, first: usize, end: usize) -> Result<List> {
        let place = |index: usize| u64::from(word(&self.key(index as u64))) << 32 | index as u64;
        let mut list = List::of(end - first, (first..end).map(place))?;
        let places = list.places_mut();
        places.sort_unstable();
        // Entries with the same four bytes are in order of their indexes now.
        let alike = places.chunk_by_mut(|a, b| a >> 32 == b >> 32).filter(|alike| alike.len() > 1);
        alike.for_each(|alike| alike.sort_unstable_by(|a, b| self.key(*a).cmp(&self.key(*b)).then(b.cmp(a))));
        Ok(list)
    }

    /// Merges lists, which are given oldest first.
    fn merged(&self, lists: &[Arc<List>]) -> Result<List> {
        let (older, newer) = lists.split_at(lists.len() / 2);
        let half = |lists: &[Arc<List>]| match lists {
            [list] => Ok(Arc::clone(list)),
            lists => self.merged(lists).map(Arc::new),
        };
        let (older, newer) = (half(older)?, half(newer)?);
        let (mut a, mut b) = (0, 0);
        let next = std::iter::from_fn(|| {
            let (old, new) = (older.get(a).copied(), newer.get(b).copied());
            let takes_new = match (old, new) {
                (Some(old), Some(new)) if old >> 32 != new >> 32 => new < old,
                (Some(old), Some(new)) => self.key(new) <= self.key(old),
                (old, _) => old.is_none(),
            };
            (a, b) = (a + usize::from(!takes_new), b + usize::from(takes_new));
            if takes_new { new } else { old }
        });
        List::of(older.len() + newer.len(), next.take(older.len() + newer.len()))
    }

    /// Returns the key of the entry at this place, which must be one of a list, or one below an acquired length.
    fn key(&self, place: Place) -> Key {
        // SAFETY: whoever made a list had acquired its entries with a snapshot, and released the list after that.
        unsafe { self.entry(place as u32 as usize) }.key
    }

    /// Yields the records of the first `length` entries in order of their keys, from key `first` on. `length` must have
    /// been acquired with a snapshot.
    ///
    /// # Errors
    /// `Retry`: there is no memory.
    pub(crate) fn ascending(self: &Arc<Self>, length: usize, first: &Key) -> Result<Ascending> {
        if self.order.load().covered < length {
            self.arrange(length)?;
        }
        let mut order = self.order.load_full();
        if length < SHORT_ENTRIES && order.covered > STALE * length {
            let lists = vec![Arc::new(self.sorted(0, length)?)];
            order = Arc::new(Order { lists, covered: length });
        }
        let mut ascending = Ascending { mem: Arc::clone(self), order, length: length as u32, heap: Vec::new() };
        ascending.order.lists.iter().for_each(|list| list.prefetch(first));
        for list in 0..ascending.order.lists.len() {
            let at = ascending.order.lists[list].from(self, first);
            ascending.heap.extend(ascending.head(list as u32, at));
        }
        (0..ascending.heap.len() / 2).rev().for_each(|at| ascending.sink(at));
        Ok(ascending)
    }
}

/// Iterates over a memtable's records in order of their keys, the newest of each key.
pub(crate) struct Ascending {
    mem: Arc<Mem>,
    order: Arc<Order>,
    /// Number of entries that the reader's snapshot has.
    length: u32,
    /// The next place of each list as a binary heap: neither of the items at 2n + 1 and 2n + 2 comes before the one at n.
    heap: Vec<Head>,
}

/// The next place of a list.
#[derive(Clone, Copy)]
struct Head {
    place: Place,
    list: u32,
    /// Index of the place in its list.
    at: u32,
}

impl Ascending {
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns the first place of a list from `at` on that the snapshot has.
    fn head(&self, list: u32, at: usize) -> Option<Head> {
        let mut places = self.order.lists[list as usize][at..].iter().zip(at as u32..);
        let (place, at) = places.find(|(place, _)| (**place as u32) < self.length)?;
        Some(Head { place: *place, list, at })
    }

    /// Advances the list of the first head.
    fn advance(&mut self) {
        let Head { list, at, .. } = self.heap[0];
        match self.head(list, at as usize + 1) {
            Some(next) => self.heap[0] = next,
            None => drop(self.heap.swap_remove(0)),
        }
        self.sink(0);
    }

    /// Moves the head at `at` down until neither of the two below comes before it.
    fn sink(&mut self, mut at: usize) {
        loop {
            let mut first = at;
            for below in [2 * at + 1, 2 * at + 2] {
                if below < self.heap.len() && self.is_before(self.heap[below].place, self.heap[first].place) {
                    first = below;
                }
            }
            if first == at {
                return;
            }
            self.heap.swap(first, at);
            at = first;
        }
    }

    #[inline]
    fn is_before(&self, a: Place, b: Place) -> bool {
        if a >> 32 != b >> 32 {
            return a < b;
        }
        self.mem.key(a).cmp(&self.mem.key(b)).then(b.cmp(&a)).is_lt()
    }
}

impl Iterator for Ascending {
    /// A key with its value, or with `None` for a deletion.
    type Item = (Key, Option<Value>);

    fn next(&mut self) -> Option<Self::Item> {
        let place = self.heap.first()?.place;
        // SAFETY: the index is below a length that came with a snapshot.
        let (key, value) = unsafe {
            let entry = self.mem.entry(place as u32 as usize);
            (entry.key, entry.value)
        };
        // The newest entry of the key wins. Pass over the older ones, which come next.
        loop {
            self.advance();
            let is_older = |next: &Head| next.place >> 32 == place >> 32 && self.mem.key(next.place) == key;
            if !self.heap.first().is_some_and(is_older) {
                return Some((key, value));
            }
        }
    }
}

/// First four bytes of a key as a number.
fn word(key: &Key) -> u32 {
    (prefix(key) >> 32) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::format::secret::Seed;

    /// A key of one of a few shapes: uniform, equal in its first four bytes, equal in all but its last byte.
    fn key(n: u16) -> Key {
        let mut key = [n as u8 % 3; 32];
        match n % 3 {
            0 => key[..4].copy_from_slice(&u32::from(n).wrapping_mul(0x9e37_79b1).to_be_bytes()),
            1 => key[4..6].copy_from_slice(&n.to_be_bytes()),
            _ => key[31] = n as u8,
        }
        key
    }

    fn append(mem: &Mem, index: usize, n: u16, value: Option<u8>) {
        mem.append(index, Seed::fixed().hash(&key(n)), &key(n), value.map(|value| [value; 32]));
    }

    proptest! {
        #[test]
        fn any_snapshot_is_in_order_from_any_key_whoever_extends_the_order(
            writes in proptest::collection::vec((any::<u16>(), proptest::option::of(any::<u8>())), 1..400),
            steps in proptest::collection::vec((0usize..400, 0u8..3, any::<u16>()), 0..30),
        ) {
            let mem = Arc::new(Mem::new(writes.len()).expect("memory"));
            writes.iter().enumerate().for_each(|(index, (n, value))| append(&mem, index, *n, *value));
            for (length, what, first) in steps {
                let (length, first) = (length.min(writes.len()), key(first));
                match what {
                    0 => mem.arrange_and_merge(length).expect("memory"),
                    1 => mem.arrange(length).expect("memory"),
                    _ => {}
                }
                let newest: BTreeMap<Key, Option<Value>> =
                    writes[..length].iter().map(|(n, value)| (key(*n), value.map(|value| [value; 32]))).collect();
                let expected: Vec<_> = newest.range(first..).map(|(key, value)| (*key, *value)).collect();
                prop_assert_eq!(mem.ascending(length, &first).expect("memory").collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn however_the_entries_come_a_scan_merges_few_lists_and_each_entry_is_copied_few_times() {
        const COUNT: usize = 300_000;
        for batch in [1, 10, 333, 5000, 70_000] {
            let mem = Arc::new(Mem::new(COUNT).expect("memory"));
            let (mut copied, mut lists) = (0, Vec::<usize>::new());
            for index in 0..COUNT {
                append(&mem, index, (index.wrapping_mul(0x9e37) >> 3) as u16, Some(1));
                if (index + 1) % batch == 0 {
                    mem.arrange(index + 1).expect("memory");
                    for _ in 0..2 {
                        let now: Vec<usize> = mem.order.load().lists.iter().map(|list| list.len()).collect();
                        let kept = now.iter().zip(&lists).take_while(|(now, before)| now == before).count();
                        copied += now[kept..].iter().sum::<usize>();
                        assert!(now.len() <= 13, "batch={batch} lists={now:?}");
                        lists = now;
                        mem.arrange_and_merge(index + 1).expect("memory");
                    }
                }
            }
            // A factor of four, for each fourfold growth from a batch on.
            let growths = (COUNT as f64 / batch as f64).log(4.0) + 1.0;
            assert!(copied as f64 <= 4.0 * growths * COUNT as f64, "batch={batch} copied={copied}");
        }
    }
}
