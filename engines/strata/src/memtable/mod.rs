//! The memtable: pairs in the order they were committed, found through a hash table of chains, and in order of their
//! keys through `memtable/order.rs`.
//!
//! Owns: memory that one writer appends to and any number of readers read, without a lock for gets. Must not: do I/O.
//! Threads: one writer at a time (the engine's writer lock), readers on any thread.
//!
//! A reader's snapshot is a length: the reader ignores entries from that index on. An entry is written once, before the
//! chain that leads to it, and never changed. The newest entry of a key comes first in its chain.

mod order;

use std::mem::MaybeUninit;

use arc_swap::ArcSwap;
use engine_api::{Key, Result, Value};
use parking_lot::Mutex;

pub(crate) use self::order::Ascending;
use self::order::Order;

use crate::format::Record;
use crate::huge;
use crate::mapped::Mapped;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};

/// Memory of an entry in bytes, its share of the table and of the order included.
pub(crate) const ENTRY_BYTES: u64 = (size_of::<Entry>() + 2 * size_of::<AtomicU32>()) as u64 + ORDER_BYTES;

/// Memory of an entry's place in the order, in bytes. While lists of the order are merged, as much is needed once more.
pub(crate) const ORDER_BYTES: u64 = size_of::<u64>() as u64;

/// Marks the end of a chain: indexes in chains are counted from 1.
const NONE: u32 = 0;

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    value: Option<Value>,
    /// Index of the older entry in the same chain, counted from 1.
    previous: u32,
}

/// A memtable with a fixed capacity.
pub(crate) struct Mem {
    entries: Mapped<UnsafeCell<MaybeUninit<Entry>>>,
    heads: Mapped<AtomicU32>,
    /// The entries in order of their keys.
    order: ArcSwap<Order>,
    /// Held while `order` is replaced.
    ordering: Mutex<()>,
}

// SAFETY: an entry is written once, by the only writer, before its index is released through a head (or through the
// snapshot that carries the length). Readers only reach entries that they have acquired that way, and never write.
unsafe impl Sync for Mem {}
// SAFETY: owned memory without ties to a thread.
unsafe impl Send for Mem {}

impl Mem {
    /// Makes an empty memtable.
    ///
    /// # Errors
    /// `Retry`: there is no memory.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        let buckets = (capacity * 2).next_power_of_two();
        // Nothing is written to the entries here, so they take memory only as they are filled.
        let entries = Mapped::of(capacity, (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())))?;
        let mut heads = Mapped::with_room(buckets)?;
        // They are read at random, and all of them are written here.
        heads.make_huge();
        (0..buckets).try_for_each(|_| heads.push(AtomicU32::new(NONE)))?;
        Ok(Self { entries, heads, order: ArcSwap::default(), ordering: Mutex::new(()) })
    }

    /// Memory that the memtable takes with `length` entries, in bytes.
    pub(crate) fn bytes(&self, length: usize) -> u64 {
        length as u64 * (size_of::<Entry>() as u64 + ORDER_BYTES) + (self.heads.len() * size_of::<AtomicU32>()) as u64
    }

    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Writes entry `index`, which must be the number of entries so far. Only one thread at a time may call it.
    pub(crate) fn append(&self, index: usize, hash: u64, key: &Key, value: Option<Value>) {
        let head = self.head(hash);
        // ORDERING: Relaxed: only this writer changes heads.
        let entry = Entry { key: *key, value, previous: head.load(Ordering::Relaxed) };
        // SAFETY: nobody reaches entries from `index` on: no head names them, and no reader's length includes them. The
        // engine's writer lock keeps other writers out.
        self.entries[index].with_mut(|slot| unsafe { (*slot).write(entry) });
        // ORDERING: Release pairs with the Acquire in `get`: whoever sees the index sees the entry.
        head.store(index as u32 + 1, Ordering::Release);
    }

    /// Prefetches the memory that [`Mem::get`] reads first.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        huge::prefetch(std::ptr::from_ref(self.head(hash)).cast());
    }

    /// Returns the newest record of `key` among the first `length` entries.
    pub(crate) fn get(&self, length: usize, hash: u64, key: &Key) -> Option<Record> {
        // ORDERING: Acquire: see `append`.
        let mut at = self.head(hash).load(Ordering::Acquire);
        while at != NONE {
            let index = at as usize - 1;
            // SAFETY: the index was acquired from a head, or from an entry written before that one.
            let entry = unsafe { self.entry(index) };
            if index < length && entry.key == *key {
                return Some(Record(entry.value));
            }
            at = entry.previous;
        }
        None
    }

    /// Returns entry `index`.
    ///
    /// # Safety
    /// Entry `index` must have been written, and that write must have happened before this call.
    unsafe fn entry(&self, index: usize) -> &Entry {
        // SAFETY: it was written before, as the caller guarantees, and is never written again.
        self.entries[index].with(|slot| unsafe { (*slot).assume_init_ref() })
    }

    fn head(&self, hash: u64) -> &AtomicU32 {
        // Use the low bits, because filters use the high ones.
        &self.heads[hash as usize & (self.heads.len() - 1)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::format::secret::Seed;

    fn hash(key: &Key) -> u64 {
        Seed::fixed().hash(key)
    }

    #[test]
    fn a_snapshot_sees_what_was_there_at_its_length() {
        let mem = Arc::new(Mem::new(8).expect("memory"));
        let (a, b) = ([1; 32], [2; 32]);
        let set = |index, key: &Key, value| mem.append(index, hash(key), key, value);
        set(0, &a, Some([10; 32]));
        set(1, &b, Some([20; 32]));
        set(2, &a, None);
        set(3, &a, Some([11; 32]));
        let get = |length, key: &Key| mem.get(length, hash(key), key);
        assert_eq!((get(0, &a), get(1, &a), get(1, &b)), (None, Some(Record(Some([10; 32]))), None));
        assert_eq!((get(3, &a), get(4, &a)), (Some(Record(None)), Some(Record(Some([11; 32])))));
        assert!(mem.ascending(3, &[0; 32]).expect("memory").eq([(a, None), (b, Some([20; 32]))]));
        assert!(mem.ascending(4, &[0; 32]).expect("memory").eq([(a, Some([11; 32])), (b, Some([20; 32]))]));
    }

    #[test]
    fn readers_on_other_threads_see_whole_batches_while_the_writer_goes_on() {
        const BATCH: usize = 2;
        let (mem, visible) = (Arc::new(Mem::new(20).expect("memory")), AtomicUsize::new(0));
        let read = || {
            // ORDERING: Acquire pairs with the Release below, as loading `visible` does in the engine.
            let length = visible.load(Ordering::Acquire);
            let newest = |key: u8| mem.get(length, hash(&[key; 32]), &[key; 32]).and_then(|record| record.0);
            // Each batch sets both keys to its number.
            let expected = (length / BATCH).checked_sub(1).map(|batch| [batch as u8; 32]);
            assert_eq!((newest(0), newest(1)), (expected, expected), "length={length}");
            assert_eq!(mem.ascending(length, &[0; 32]).expect("memory").count(), length.min(BATCH));
            length
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| while read() < mem.capacity() {});
            }
            for index in 0..mem.capacity() {
                let key = [(index % BATCH) as u8; 32];
                mem.append(index, hash(&key), &key, Some([(index / BATCH) as u8; 32]));
                if index % BATCH == BATCH - 1 {
                    // ORDERING: Release, as the swap of `visible` in the engine.
                    visible.store(index + 1, Ordering::Release);
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    const A: Key = [1; 32];
    const B: Key = [2; 32];

    /// The entries that the writer commits one by one. All keys are in one chain.
    fn entries() -> [(Key, Option<Value>); 4] {
        [(A, Some([10; 32])), (B, Some([20; 32])), (A, None), (A, Some([11; 32]))]
    }

    /// The answer that a reader of `length` entries must get.
    fn expected(length: usize, key: &Key) -> Option<Record> {
        entries()[..length].iter().rev().find(|(of, _)| of == key).map(|(_, value)| Record(*value))
    }

    fn assert_snapshot(mem: &Mem, length: usize) {
        for key in [A, B] {
            assert_eq!(mem.get(length, 0, &key), expected(length, &key), "length={length}");
        }
    }

    fn sorted(length: usize) -> Vec<(Key, Option<Value>)> {
        [A, B].iter().filter_map(|key| Some((*key, expected(length, key)?.0))).collect()
    }

    /// Commits the entries from `first` on in batches of `batch`, each followed by its length.
    fn write(mem: &Mem, visible: &AtomicUsize, first: usize, batch: usize) {
        for (index, (key, value)) in entries().iter().enumerate().skip(first) {
            mem.append(index, 0, key, *value);
            if (index + 1 - first).is_multiple_of(batch) {
                // ORDERING: Release, as the swap of `visible` in the engine.
                visible.store(index + 1, Ordering::Release);
            }
        }
    }

    /// One reader suffices, because readers write nothing that another reader could see. Two of them make the model a
    /// thousand times as large.
    #[test]
    fn a_reader_finds_the_newest_within_its_length() {
        loom::model(|| {
            let (mem, visible) = (Arc::new(Mem::new(4).expect("memory")), Arc::new(AtomicUsize::new(0)));
            let (reading, length) = (Arc::clone(&mem), Arc::clone(&visible));
            // ORDERING: Acquire, as loading `visible` in the engine.
            let reader = thread::spawn(move || assert_snapshot(&reading, length.load(Ordering::Acquire)));
            write(&mem, &visible, 0, 2);
            reader.join().expect("no thread panics");
            assert_snapshot(&mem, 4);
        });
    }

    #[test]
    fn a_snapshot_stays_while_its_chains_grow() {
        loom::model(|| {
            let (mem, visible) = (Arc::new(Mem::new(4).expect("memory")), AtomicUsize::new(0));
            let (key, value) = entries()[0];
            mem.append(0, 0, &key, value);
            let reading = Arc::clone(&mem);
            let reader = thread::spawn(move || {
                assert_snapshot(&reading, 1);
                assert_snapshot(&reading, 1);
            });
            write(&mem, &visible, 1, 1);
            reader.join().expect("no thread panics");
        });
    }

    #[test]
    fn a_flush_reads_what_its_length_covers_without_the_table() {
        loom::model(|| {
            let (mem, visible) = (std::sync::Arc::new(Mem::new(4).expect("memory")), Arc::new(AtomicUsize::new(0)));
            let (flushed, frozen) = (std::sync::Arc::clone(&mem), Arc::clone(&visible));
            let flush = thread::spawn(move || {
                // ORDERING: Acquire, as loading `visible` in the engine.
                let length = frozen.load(Ordering::Acquire);
                assert!(flushed.ascending(length, &[0; 32]).expect("memory").eq(sorted(length)));
            });
            write(&mem, &visible, 0, 1);
            flush.join().expect("no thread panics");
        });
    }
}
