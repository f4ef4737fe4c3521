//! One set of the record cache: seven pairs that any number of threads read while one writes.
//!
//! Owns: the pairs and the order in which their words are written. Must not: know how a set is found. Used on any
//! thread.
//!
//! A reader takes no lock and waits for nobody. It reads the version, the pair, and the version again, and treats the
//! pair as absent if a writer came between (Boehm, "Can seqlocks get along with programming language memory models?").
//! A writer locks the set by making its version odd.

use engine_api::{Key, Value};

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Whether loom runs the threads. Then a set is reduced to one pair of two words, looked at once, to keep the model
/// small.
const IS_MODEL: bool = cfg!(all(test, loom));
/// Number of pairs in a set, which then fills eight cache lines.
const WAYS: usize = if IS_MODEL { 1 } else { 7 };
/// Number of words in a key, and in a value.
const WORDS: usize = if IS_MODEL { 1 } else { 4 };
/// Number of attempts of a reader while writers interfere.
const LOOKS: usize = if IS_MODEL { 1 } else { 4 };
/// Number of tag bits below the segment's number: a part of the key's hash, and [`OF_BASE`].
const TAG_BITS: u32 = 17;
/// Number of bits of a mark, and of the hand. A pair that is asked for gets the greatest mark, and the hand takes one
/// from it each time it passes. So a pair that was asked for once stays for fifteen rounds of the hand, while pairs
/// that nobody asks for a second time come and go. With zipfian keys (0.99 of 50M) and room for 140,000 and for a
/// million pairs, 0.378 and 0.263 of the gets read the device. With marks of one bit 0.422 and 0.296 do, and with the
/// most popular pairs, chosen in advance, 0.341 and 0.229 would (simulated, after 30M gets).
const MARK_BITS: usize = 4;
/// The mark of a pair that was asked for since the hand last passed it.
const MARK_MAX: u32 = (1 << MARK_BITS) - 1;
/// A mark of 1 for each pair.
const MARKS_OF_ONE: u32 = 0x1111_1111 & ((1 << (MARK_BITS * WAYS)) - 1);
/// Bit of a tag that is set for a segment of the base.
const OF_BASE: u64 = 1 << 16;

/// The segment that a pair was read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Number of the segment, which is not 0.
    pub(crate) segment: u64,
    /// Whether it is a segment of the base.
    pub(crate) base: bool,
}

/// A set of pairs, aligned to cache lines.
#[repr(C, align(64))]
pub(super) struct Set {
    /// Version of the set, odd while a thread writes.
    version: AtomicU32,
    /// The mark of each pair, and behind them the hand: the place that is looked at first when room is needed.
    marks: AtomicU32,
    /// Segment and part of the hash, by pair; 0 for an empty place.
    tags: [AtomicU64; WAYS],
    pairs: [Pair; WAYS],
}

struct Pair {
    key: [AtomicU64; WORDS],
    value: [AtomicU64; WORDS],
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Set>() == 512);

impl Source {
    /// Returns the tag of a key with this hash; `None` if the segment's number does not fit.
    fn tag(self, hash: u64) -> Option<u64> {
        let of = if self.base { OF_BASE } else { 0 };
        (self.segment >> (64 - TAG_BITS) == 0).then(|| self.segment << TAG_BITS | of | part_of(hash))
    }

    /// Whether a pair with this tag is valid for this segment, given the key's hash.
    ///
    /// A pair of a segment of the base is also valid in every later segment that covers its key, because a merge
    /// forgets the keys that it changes (see `read/cache.rs`).
    #[inline]
    fn has(self, tag: u64, hash: u64) -> bool {
        let segment = tag >> TAG_BITS;
        if tag & (OF_BASE - 1) != part_of(hash) || segment == 0 {
            return false;
        }
        if self.base {
            tag & OF_BASE != 0 && segment <= self.segment
        } else {
            tag & OF_BASE == 0 && segment == self.segment
        }
    }
}

/// Returns the part of a hash that a tag holds. Other bits of the hash choose the set.
#[inline]
fn part_of(hash: u64) -> u64 {
    hash >> 20 & (OF_BASE - 1)
}

/// Returns the place of a pair's mark, in bits. The hand's is that of the pair after the last.
#[inline]
fn shift_of(way: usize) -> usize {
    MARK_BITS * way
}

#[inline]
fn words(bytes: &[u8; 32]) -> [u64; WORDS] {
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * word + i])))
}

#[inline]
fn bytes(words: [u64; WORDS]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    bytes
}

impl Pair {
    fn empty() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { key: zeros(), value: zeros() }
    }

    // ORDERING: Relaxed, here and in `write`: the set's version says whether the words belong together.
    #[inline]
    fn has(&self, key: &[u64; WORDS]) -> bool {
        self.key.iter().zip(key).all(|(word, wanted)| word.load(Ordering::Relaxed) == *wanted)
    }

    #[inline]
    fn value(&self) -> [u64; WORDS] {
        std::array::from_fn(|word| self.value[word].load(Ordering::Relaxed))
    }

    fn key(&self) -> [u64; WORDS] {
        std::array::from_fn(|word| self.key[word].load(Ordering::Relaxed))
    }

    fn write(&self, key: &[u64; WORDS], value: &[u64; WORDS]) {
        let to = self.key.iter().chain(&self.value);
        to.zip(key.iter().chain(value)).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
    }
}

/// The right to write to a set, released when it is dropped.
struct Writing<'a> {
    set: &'a Set,
    version: u32,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // ORDERING: Release pairs with the Acquire in `get` and in `try_write`: whoever sees this version sees
        // everything written before it.
        self.set.version.store(self.version.wrapping_add(2), Ordering::Release);
    }
}

impl Set {
    pub(super) fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            marks: AtomicU32::new(0),
            tags: std::array::from_fn(|_| AtomicU64::new(0)),
            pairs: std::array::from_fn(|_| Pair::empty()),
        }
    }

    /// Returns the value of `key` in that segment, if the set has it and no writer interferes.
    #[inline]
    pub(super) fn get(&self, key: &Key, hash: u64, source: Source) -> Option<Value> {
        let key = words(key);
        for _ in 0..LOOKS {
            // ORDERING: Acquire: see `Writing::drop`.
            let before = self.version.load(Ordering::Acquire);
            let way = (0..WAYS).find(|way| self.is_at(*way, &key, |tag| source.has(tag, hash)))?;
            let value = self.pairs[way].value();
            // ORDERING: this fence pairs with the one in `try_write`: if any word above is a writer's, the version
            // below is too.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                self.mark(way);
                return Some(bytes(value));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Adds a pair in place of one that was not asked for recently. Does nothing while another thread writes, or once
    /// `closed` says that the segment is being replaced.
    pub(super) fn put(&self, key: &Key, hash: u64, source: Source, value: &Value, closed: impl FnOnce() -> bool) {
        let (Some(tag), Some(_writing)) = (source.tag(hash), self.try_write()) else { return };
        // Ask only now, while holding the set: whoever closes the segment forgets keys afterwards, and so finds this
        // pair.
        if closed() {
            return;
        }
        let key = words(key);
        // Another thread may have added the pair meanwhile; then reuse its place.
        let there = (0..WAYS).find(|way| self.is_at(*way, &key, |tag| source.has(tag, hash)));
        let free = || (0..WAYS).find(|way| self.tags[*way].load(Ordering::Relaxed) == 0);
        let way = there.or_else(free).unwrap_or_else(|| self.turn());
        self.pairs[way].write(&key, &words(value));
        // ORDERING: Relaxed, here and in the other writers: see `Writing::drop`.
        self.tags[way].store(tag, Ordering::Relaxed);
        self.marks.fetch_and(!(MARK_MAX << shift_of(way)), Ordering::Relaxed);
    }

    /// Forgets the pairs of `key` that were read from segments of the base. Waits for another writer.
    pub(super) fn forget(&self, key: &Key, hash: u64) {
        let key = words(key);
        let _writing = self.write();
        let of_base = |tag: u64| tag & (OF_BASE | (OF_BASE - 1)) == OF_BASE | part_of(hash);
        for way in (0..WAYS).filter(|way| self.is_at(*way, &key, of_base)) {
            self.tags[way].store(0, Ordering::Relaxed);
        }
    }

    /// Forgets the pairs whose keys `keep` rejects. Waits for another writer.
    pub(super) fn retain(&self, keep: impl Fn(&Key) -> bool) {
        let there = |way: &usize| self.tags[*way].load(Ordering::Relaxed) != 0;
        let _writing = self.write();
        for way in (0..WAYS).filter(there).filter(|way| !keep(&bytes(self.pairs[*way].key()))) {
            self.tags[way].store(0, Ordering::Relaxed);
        }
    }

    /// Whether a pair has this key and a tag that `wanted` accepts.
    #[inline]
    fn is_at(&self, way: usize, key: &[u64; WORDS], wanted: impl Fn(u64) -> bool) -> bool {
        // ORDERING: Relaxed: see `Pair::has`.
        wanted(self.tags[way].load(Ordering::Relaxed)) && self.pairs[way].has(key)
    }

    /// Marks a pair as asked for. Writes only if the mark changes, so that the cache line stays shared by all readers.
    #[inline]
    fn mark(&self, way: usize) {
        let mark = MARK_MAX << shift_of(way);
        // ORDERING: Relaxed: a hint.
        if self.marks.load(Ordering::Relaxed) & mark != mark {
            self.marks.fetch_or(mark, Ordering::Relaxed);
        }
    }

    /// Returns the pair that makes room: the hand goes round and takes one from each mark until it finds a pair without
    /// a mark, and then stands behind that pair.
    fn turn(&self) -> usize {
        // ORDERING: Relaxed: only the writer moves the hand and lowers marks, which are hints. Readers meanwhile only
        // raise marks, so no mark is less than it is here, and no subtraction borrows from the next mark.
        let marks = self.marks.load(Ordering::Relaxed);
        let mark = |way: usize| marks >> shift_of(way) & MARK_MAX;
        // As many whole rounds as no pair without a mark can end.
        let rounds = (0..WAYS).map(mark).min().unwrap_or(0);
        let hand = (marks >> shift_of(WAYS)) as usize;
        let passed = (0..WAYS).take_while(|step| mark((hand + step) % WAYS) > rounds).count();
        let taken = (0..passed).map(|step| 1 << shift_of((hand + step) % WAYS)).sum::<u32>();
        self.marks.fetch_sub(rounds * MARKS_OF_ONE + taken, Ordering::Relaxed);
        let way = (hand + passed) % WAYS;
        self.marks.fetch_xor(((hand ^ ((way + 1) % WAYS)) as u32) << shift_of(WAYS), Ordering::Relaxed);
        way
    }

    fn try_write(&self) -> Option<Writing<'_>> {
        // ORDERING: Relaxed: the exchange below decides.
        let version = self.version.load(Ordering::Relaxed);
        if !version.is_multiple_of(2) {
            return None;
        }
        // ORDERING: Acquire: see `Writing::drop`.
        let taken =
            self.version.compare_exchange(version, version.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed);
        taken.ok()?;
        // ORDERING: this fence pairs with the one in `get`.
        fence(Ordering::Release);
        Some(Writing { set: self, version })
    }

    fn write(&self) -> Writing<'_> {
        loop {
            match self.try_write() {
                Some(writing) => return writing,
                // The writer needs only a few more instructions, or was descheduled within them.
                #[cfg(not(all(test, loom)))]
                None => std::thread::yield_now(),
                #[cfg(all(test, loom))]
                None => loom::thread::yield_now(),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BASE: Source = Source { segment: 5, base: true };
    const DELTA: Source = Source { segment: 6, base: false };

    fn open() -> bool {
        false
    }

    #[test]
    fn what_is_asked_for_stays() {
        let set = Set::new();
        let put = |n: u8| set.put(&[n; 32], 0, DELTA, &[n; 32], open);
        let get = |n: u8| set.get(&[n; 32], 0, DELTA);
        (0..7).for_each(put);
        assert!((0..7).all(|n| get(n) == Some([n; 32])));
        // All were asked for, so the hand removes all marks and then the first pair.
        put(7);
        assert_eq!((get(0), get(7)), (None, Some([7; 32])));
        assert_eq!(get(1), Some([1; 32]));
        put(8);
        assert_eq!((get(1), get(2)), (Some([1; 32]), None), "1 and 7 were asked for since");
        put(1);
        assert_eq!((0..9).filter(|n| get(*n).is_some()).count(), 7, "the same pair again takes no other's place");
    }

    #[test]
    fn a_pair_that_was_asked_for_once_stays_while_eighty_come_that_are_not_and_no_longer_than_a_hundred() {
        let set = Set::new();
        let put = |n: u8| set.put(&[n; 32], 0, DELTA, &[n; 32], open);
        let is_there = |n: u8| set.tags.iter().zip(&set.pairs).any(|(_, pair)| pair.has(&words(&[n; 32])));
        put(200);
        assert_eq!(set.get(&[200; 32], 0, DELTA), Some([200; 32]));
        (0..80).for_each(put);
        assert!(is_there(200));
        (80..100).for_each(put);
        assert!(!is_there(200), "the hand passed it fifteen times");
    }

    #[test]
    fn a_later_segment_of_the_base_takes_over_what_an_earlier_one_said_and_nothing_else_does() {
        let set = Set::new();
        let (key, other) = ([1; 32], [2; 32]);
        let later = Source { segment: 9, ..BASE };
        set.put(&key, 7, later, &[9; 32], open);
        assert_eq!((set.get(&key, 7, BASE), set.get(&key, 7, later)), (None, Some([9; 32])), "an older snapshot");
        set.put(&other, 7, BASE, &[5; 32], open);
        assert_eq!((set.get(&other, 7, BASE), set.get(&other, 7, later)), (Some([5; 32]), Some([5; 32])));
        assert_eq!(set.get(&other, 7, Source { base: false, ..BASE }), None, "no delta has it");
        set.put(&other, 7, DELTA, &[6; 32], open);
        assert_eq!(set.get(&other, 7, DELTA), Some([6; 32]));
        assert_eq!(set.get(&other, 7, Source { segment: 7, base: false }), None, "another delta");
        assert_eq!(set.get(&other, 7, Source { segment: 7, base: true }), Some([5; 32]), "the base has another value");
        set.forget(&other, 7);
        assert_eq!((set.get(&other, 7, later), set.get(&other, 7, DELTA)), (None, Some([6; 32])));
        assert_eq!(set.get(&key, 7, later), Some([9; 32]));
        set.put(&other, 7, BASE, &[5; 32], || true);
        assert_eq!(set.get(&other, 7, later), None, "its segment is being replaced");
        set.retain(|found| *found != key);
        assert_eq!((set.get(&key, 7, later), set.get(&other, 7, DELTA)), (None, Some([6; 32])));
    }

    #[test]
    fn a_reader_sees_whole_pairs_while_others_write() {
        let set = Set::new();
        let key = |n: u64| [(n % 5) as u8; 32];
        std::thread::scope(|scope| {
            for from in [0, 1] {
                let set = &set;
                let write = move || {
                    for n in from..20_000 {
                        // Half of a value names its key.
                        let mut value = [n as u8; 32];
                        value[16..].fill((n % 5) as u8);
                        set.put(&key(n), n % 5, DELTA, &value, open);
                        if n % 7 == 0 {
                            set.retain(|found| *found != key(n));
                        }
                    }
                };
                scope.spawn(write);
            }
            for n in 0..40_000 {
                if let Some(value) = set.get(&key(n), n % 5, DELTA) {
                    let (head, tail) = value.split_at(16);
                    assert!(head.iter().all(|byte| *byte == head[0]) && *tail == key(n)[..16], "{value:x?}");
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    const SOURCE: Source = Source { segment: 5, base: true };

    /// Returns the first word of the value that is found.
    fn found(set: &Set, key: u8) -> Option<[u8; 8]> {
        set.get(&[key; 32], 0, SOURCE).map(|value| std::array::from_fn(|at| value[at]))
    }

    #[test]
    fn a_reader_sees_a_pair_whole_or_not_at_all() {
        loom::model(|| {
            let set = Arc::new(Set::new());
            set.put(&[1; 32], 0, SOURCE, &[1; 32], || false);
            let writing = Arc::clone(&set);
            // The new pair takes the place of the first: the key's word and the value's are both replaced.
            let writer = thread::spawn(move || writing.put(&[2; 32], 0, SOURCE, &[2; 32], || false));
            assert!(found(&set, 1).is_none_or(|value| value == [1; 8]));
            assert!(found(&set, 2).is_none_or(|value| value == [2; 8]));
            writer.join().expect("no thread panics");
            assert_eq!((found(&set, 1), found(&set, 2)), (None, Some([2; 8])));
        });
    }

    #[test]
    fn nothing_of_a_segment_comes_in_after_it_was_closed_and_its_keys_forgotten() {
        loom::model(|| {
            let (set, closed) = (Arc::new(Set::new()), Arc::new(AtomicBool::new(false)));
            let (reading, asked) = (Arc::clone(&set), Arc::clone(&closed));
            let reader = thread::spawn(move || {
                // ORDERING: Relaxed, as a segment asks.
                reading.put(&[1; 32], 0, SOURCE, &[1; 32], || asked.load(Ordering::Relaxed));
            });
            closed.store(true, Ordering::Relaxed);
            set.forget(&[1; 32], 0);
            reader.join().expect("no thread panics");
            assert_eq!(found(&set, 1), None);
        });
    }
}
