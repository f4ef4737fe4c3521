//! The change feed in shared memory: the newest changes in one ring that the service writes and every client reads.
//!
//! Owns: the layout of the ring; with [`RingWriter`] and [`RingReader`], the one place that touches those bytes. Must
//! not: map memory, wait, or decide where a reader continues. Threads: one writer; any number of readers, in any
//! process.
//!
//! # The ring
//! The ring is a sealed memfd of [`RING_BYTES`], the greeting's third descriptor where the service has a feed. Readers
//! map it read-only, so nothing they do affects the service or other readers. The change with number `seq` is in record
//! `seq % RING_RECORDS`, until change `seq + RING_RECORDS` overwrites it. A reader that is slower than that finds
//! [`Found::Overwritten`].
//!
//! ```text
//! offset  bytes  contents
//!      0     64  version u32, records u32, feed_id u64, first_seq u64: written before the memory is shared, and
//!                first_seq once more each time that changes are left out
//!     64     64  head_seq u64, slot u64, beat_unix_ms u64, wakes u32, flags u32
//!   4096    192  record 0: stamp u64, key, old value, new value, slot u64, published_ns u64, flags u64;
//!                where the flags say that the slot ends with it: blockhash, parent_slot u64
//!   4288    192  record 1 ...
//! ```
//!
//! A record's stamp is its seq, or 0 while the record is being written. `wakes` is a futex word, raised after
//! everything else.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::VERSION;

/// Number of changes that the ring holds: 12 MiB. A reader may be away for as long as they last: more than a second at
/// fifty thousand changes a second.
pub const RING_RECORDS: usize = 1 << 16;

/// One change of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The 32-byte key that changed.
    pub key: [u8; 32],
    /// Value of the key before the change; `None` if it was not in the map.
    pub old: Option<[u8; 32]>,
    /// Value of the key after the change; `None` if it was removed.
    pub new: Option<[u8; 32]>,
    /// Slot whose block made the change.
    pub slot: u64,
    /// Time at which the service published the change, in ns of the machine's CLOCK_MONOTONIC; 0 for changes from
    /// before the service's start.
    pub published_ns: u64,
    /// Set if the slot ends with this change.
    pub slot_end: Option<SlotEnd>,
}

/// The end of a slot that changed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotEnd {
    /// Hash of the slot's block.
    pub blockhash: [u8; 32],
    /// Slot of the block's parent.
    pub parent_slot: u64,
}

/// The writer's position in the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingHead {
    /// Seq of the newest change; before the first change, one less than the first seq.
    pub seq: u64,
    /// The last slot applied completely; `None` before the first.
    pub slot: Option<u64>,
    /// Time of the writer's last publish or beat, in ms since the Unix epoch.
    pub beat_unix_ms: u64,
    /// True once the service has stopped, so that nothing more will come in this ring.
    pub closed: bool,
}

/// Outcome of reading one change, as [`RingReader::read`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The change, complete and consistent.
    Record(Record),
    /// A newer change has taken its place, or is taking it.
    Overwritten,
}

#[repr(C, align(64))]
struct Identity {
    version: AtomicU32,
    records: AtomicU32,
    feed_id: AtomicU64,
    first_seq: AtomicU64,
}

#[repr(C, align(64))]
struct Head {
    seq: AtomicU64,
    slot: AtomicU64,
    beat_unix_ms: AtomicU64,
    wakes: AtomicU32,
    flags: AtomicU32,
}

/// Bit of `Head::flags`: `slot` is valid.
const HAS_SLOT: u32 = 1;
/// Bit of `Head::flags`: see [`RingHead::closed`].
const CLOSED: u32 = 2;

/// Number of words after a record's stamp: three entries of four words each, slot, publishing time, flags.
const WORDS: usize = 15;

const HAS_OLD: u64 = 1;
const HAS_NEW: u64 = 2;
const ENDS_SLOT: u64 = 4;

/// Number of words of a slot's end: four of the blockhash, one of the parent's slot.
const END_WORDS: usize = 5;

#[repr(C, align(64))]
struct Place {
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
    /// A cache line of its own, read and written only if the flags have [`ENDS_SLOT`].
    end: [AtomicU64; END_WORDS],
}

#[repr(C, align(4096))]
struct Layout {
    identity: Identity,
    head: Head,
    _pad: [u8; 4096 - 128],
    places: [Place; RING_RECORDS],
}

/// Size of the ring in bytes: one page of header, then the records.
pub const RING_BYTES: usize = size_of::<Layout>();

const _: () = {
    assert!(size_of::<Place>() == 192 && RING_BYTES == 4096 + 192 * RING_RECORDS);
    assert!(std::mem::offset_of!(Layout, head) == 64 && std::mem::offset_of!(Layout, places) == 4096);
    assert!(std::mem::offset_of!(Head, wakes) == 24);
};

/// The service's side of the ring, which writes it.
#[derive(Debug)]
pub struct RingWriter {
    layout: NonNull<Layout>,
    /// Seq of the change that [`RingWriter::push`] writes next.
    next_seq: u64,
    /// Keeps `RingWriter` from being `Sync`, because the ring has one writer.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: plain memory without thread affinity, touched through atomics alone; `!Sync` keeps the writer with one
// thread.
unsafe impl Send for RingWriter {}

impl RingWriter {
    /// Takes over fresh memory for the feed `feed_id`, whose next change is `first_seq`.
    ///
    /// # Safety
    /// `base` is the start of a mapping of at least [`RING_BYTES`]: readable and writable, page aligned and zero. The
    /// mapping outlives the writer and cannot shrink, and nobody else writes there.
    pub unsafe fn new(base: NonNull<u8>, feed_id: u64, first_seq: u64) -> Self {
        let writer = Self { layout: base.cast(), next_seq: first_seq, _not_sync: PhantomData };
        let Identity { version, records, feed_id: id, first_seq: first } = &writer.layout().identity;
        // ORDERING: Relaxed: the memory is handed over later, by a system call.
        version.store(VERSION, Ordering::Relaxed);
        records.store(RING_RECORDS as u32, Ordering::Relaxed);
        id.store(feed_id, Ordering::Relaxed);
        first.store(first_seq, Ordering::Relaxed);
        writer.layout().head.seq.store(first_seq.saturating_sub(1), Ordering::Relaxed);
        writer
    }

    fn layout(&self) -> &Layout {
        // SAFETY: `new` demands such a mapping; a Layout is atomics and padding, which others may read at the same
        // time.
        unsafe { self.layout.as_ref() }
    }

    /// Writes the next change. Readers see it only after [`RingWriter::publish`].
    pub fn push(&mut self, record: &Record) {
        let place = &self.layout().places[(self.next_seq % RING_RECORDS as u64) as usize];
        place.stamp.store(0, Ordering::Relaxed);
        // ORDERING: Release fence pairs with the Acquire fence in `RingReader::read`: a reader that sees one of the
        // words below also sees that the stamp is 0.
        fence(Ordering::Release);
        for (word, value) in place.words.iter().zip(words(record)) {
            word.store(value, Ordering::Relaxed);
        }
        if let Some(end) = &record.slot_end {
            for (word, value) in place.end.iter().zip(end_words(end)) {
                word.store(value, Ordering::Relaxed);
            }
        }
        // ORDERING: Release pairs with the Acquire in `RingReader::read`: a reader that sees the stamp sees the words.
        place.stamp.store(self.next_seq, Ordering::Release);
        self.next_seq += 1;
    }

    /// Leaves out the next `count` changes: a reader that asks for one of them, or for one before, finds it overwritten.
    pub fn skip(&mut self, count: u64) {
        self.next_seq += count;
        // ORDERING: Relaxed: the Release of the next `publish` covers it.
        self.layout().identity.first_seq.store(self.next_seq, Ordering::Relaxed);
    }

    /// Shows readers all changes pushed so far. The caller then wakes the sleepers at [`RingWriter::futex`].
    pub fn publish(&self, slot: Option<u64>, beat_unix_ms: u64) {
        let head = &self.layout().head;
        // ORDERING: Relaxed: each value is complete in itself; the Release of the seq covers them.
        head.slot.store(slot.unwrap_or_default(), Ordering::Relaxed);
        head.beat_unix_ms.store(beat_unix_ms, Ordering::Relaxed);
        if slot.is_some() {
            head.flags.fetch_or(HAS_SLOT, Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire in `RingReader::head`: a reader that sees the seq sees the records
        // up to it.
        head.seq.store(self.next_seq.saturating_sub(1), Ordering::Release);
        self.wake_word();
    }

    /// Records that the writer is alive although nothing changes.
    pub fn beat(&self, beat_unix_ms: u64) {
        // ORDERING: Relaxed: nothing depends on it.
        self.layout().head.beat_unix_ms.store(beat_unix_ms, Ordering::Relaxed);
    }

    /// Tells readers that nothing more will come. The caller then wakes the sleepers at [`RingWriter::futex`].
    pub fn close(&self) {
        // ORDERING: Release pairs with the Acquire in `RingReader::head`: a reader that sees the end has seen
        // everything before it.
        self.layout().head.flags.fetch_or(CLOSED, Ordering::Release);
        self.wake_word();
    }

    fn wake_word(&self) {
        // ORDERING: Release pairs with the Acquire in `RingReader::wakes`. A reader that has not seen this does not
        // fall asleep, because the kernel compares the word again.
        self.futex().fetch_add(1, Ordering::Release);
    }

    /// Returns the futex word at which readers sleep.
    pub fn futex(&self) -> &AtomicU32 {
        &self.layout().head.wakes
    }
}

/// A reader's side of the ring.
#[derive(Debug)]
pub struct RingReader {
    layout: NonNull<Layout>,
}

// SAFETY: plain memory without thread affinity, read through atomics alone.
unsafe impl Send for RingReader {}

impl RingReader {
    /// Wraps a mapped ring. Returns `None` if its layout is not of this version.
    ///
    /// # Safety
    /// `base` is the start of a mapping of at least [`RING_BYTES`]: readable and page aligned. The mapping outlives the
    /// reader and cannot shrink.
    pub unsafe fn new(base: NonNull<u8>) -> Option<Self> {
        let reader = Self { layout: base.cast() };
        let Identity { version, records, .. } = &reader.layout().identity;
        let known = version.load(Ordering::Relaxed) == VERSION;
        (known && records.load(Ordering::Relaxed) == RING_RECORDS as u32).then_some(reader)
    }

    fn layout(&self) -> &Layout {
        // SAFETY: `new` demands such a mapping; only loads are made through it.
        unsafe { self.layout.as_ref() }
    }

    /// Returns the identifier of the feed in which the seqs count.
    pub fn feed_id(&self) -> u64 {
        self.layout().identity.feed_id.load(Ordering::Relaxed)
    }

    /// Returns the writer's position, with the flags and times published with it.
    pub fn head(&self) -> RingHead {
        let head = &self.layout().head;
        // ORDERING: Acquire pairs with the Release of `close`. The flags are read before the seq, so that a reader that
        // sees the end also sees every change before it.
        let flags = head.flags.load(Ordering::Acquire);
        // ORDERING: Acquire pairs with the Release of `publish`.
        let seq = head.seq.load(Ordering::Acquire);
        RingHead {
            seq,
            slot: (flags & HAS_SLOT != 0).then(|| head.slot.load(Ordering::Relaxed)),
            beat_unix_ms: head.beat_unix_ms.load(Ordering::Relaxed),
            closed: flags & CLOSED != 0,
        }
    }

    /// Returns the seq of the oldest change still in the ring when the newest is `head_seq`.
    pub fn oldest_seq(&self, head_seq: u64) -> u64 {
        let first_seq = self.layout().identity.first_seq.load(Ordering::Relaxed);
        first_seq.max((head_seq + 1).saturating_sub(RING_RECORDS as u64))
    }

    /// Reads change `seq`, which must be between [`RingReader::oldest_seq`] and the head.
    pub fn read(&self, seq: u64) -> Found {
        let place = &self.layout().places[(seq % RING_RECORDS as u64) as usize];
        // ORDERING: Acquire pairs with the Release of `push`.
        if place.stamp.load(Ordering::Acquire) != seq {
            return Found::Overwritten;
        }
        let words: [u64; WORDS] = std::array::from_fn(|index| place.words[index].load(Ordering::Relaxed));
        let end = (words[WORDS - 1] & ENDS_SLOT != 0)
            .then(|| std::array::from_fn(|index| place.end[index].load(Ordering::Relaxed)));
        // ORDERING: Acquire fence pairs with the Release fence in `push`: if any of the words was newer, the stamp is
        // too.
        fence(Ordering::Acquire);
        if place.stamp.load(Ordering::Relaxed) != seq {
            return Found::Overwritten;
        }
        Found::Record(Record { slot_end: end.map(|words| slot_end(&words)), ..record(&words) })
    }

    /// Returns the value of the futex word. If nothing new has come after this call, the caller may sleep at
    /// [`RingReader::futex`] for as long as the word has this value.
    pub fn wakes(&self) -> u32 {
        // ORDERING: Acquire pairs with the Release of `wake_word`: reads after this call see the changes that the wake
        // was for.
        self.futex().load(Ordering::Acquire)
    }

    /// Returns the futex word at which this reader sleeps.
    pub fn futex(&self) -> &AtomicU32 {
        &self.layout().head.wakes
    }
}

fn words(record: &Record) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let entries = [record.key, record.old.unwrap_or_default(), record.new.unwrap_or_default()];
    for (word, bytes) in words.iter_mut().zip(entries.as_flattened().as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let flag = |on: bool, flag| if on { flag } else { 0 };
    let flags = flag(record.old.is_some(), HAS_OLD)
        | flag(record.new.is_some(), HAS_NEW)
        | flag(record.slot_end.is_some(), ENDS_SLOT);
    words[12..].copy_from_slice(&[record.slot, record.published_ns, flags]);
    words
}

fn end_words(end: &SlotEnd) -> [u64; END_WORDS] {
    let mut words = [0; END_WORDS];
    for (word, bytes) in words.iter_mut().zip(end.blockhash.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words[END_WORDS - 1] = end.parent_slot;
    words
}

fn slot_end(words: &[u64; END_WORDS]) -> SlotEnd {
    SlotEnd { blockhash: entry(words), parent_slot: words[END_WORDS - 1] }
}

/// Returns the bytes of the first four words.
fn entry(words: &[u64]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    bytes
}

/// Decodes a record, except for its slot's end.
fn record(words: &[u64; WORDS]) -> Record {
    let entry = |index: usize| entry(&words[4 * index..]);
    let [slot, published_ns, flags] = [words[12], words[13], words[14]];
    let side = |flag: u64, index: usize| (flags & flag != 0).then(|| entry(index));
    Record { key: entry(0), old: side(HAS_OLD, 1), new: side(HAS_NEW, 2), slot, published_ns, slot_end: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heap memory in place of a mapping.
    struct Memory(Box<std::cell::UnsafeCell<Layout>>);

    impl Memory {
        fn new() -> Self {
            // SAFETY: all-zero bytes are a Layout.
            Self(unsafe { Box::<std::cell::UnsafeCell<Layout>>::new_zeroed().assume_init() })
        }

        fn base(&self) -> NonNull<u8> {
            NonNull::new(self.0.get().cast()).expect("a box is not null")
        }

        fn pair(&self, first_seq: u64) -> (RingWriter, RingReader) {
            // SAFETY: the memory is fresh, outlives the views of these tests and is never moved.
            unsafe { (RingWriter::new(self.base(), 7, first_seq), RingReader::new(self.base()).unwrap()) }
        }
    }

    /// Returns a record in which every word depends on its seq.
    fn of(seq: u64) -> Record {
        let entry = |salt: u64| {
            let mut bytes = [0; 32];
            for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = seq.wrapping_mul(salt + index as u64).to_ne_bytes();
            }
            bytes
        };
        let side = |on: bool, salt| on.then(|| entry(salt));
        let (old, new) = (side(!seq.is_multiple_of(3), 11), side(!seq.is_multiple_of(5), 23));
        let slot_end = (!seq.is_multiple_of(2)).then(|| SlotEnd { blockhash: entry(31), parent_slot: seq * 41 });
        Record { key: entry(3), old, new, slot: seq / 2, published_ns: seq * 9, slot_end }
    }

    #[test]
    fn what_is_read_is_what_was_published() {
        let memory = Memory::new();
        let (mut writer, reader) = memory.pair(5);
        let empty = RingHead { seq: 4, slot: None, beat_unix_ms: 0, closed: false };
        assert_eq!((reader.feed_id(), reader.head(), reader.oldest_seq(4)), (7, empty, 5));
        (5..15).for_each(|seq| writer.push(&of(seq)));
        assert_eq!(reader.head(), empty, "nothing is shown before it is published");
        let wakes = reader.wakes();
        writer.publish(Some(3), 100);
        assert_ne!(reader.wakes(), wakes);
        assert_eq!(reader.head(), RingHead { seq: 14, slot: Some(3), beat_unix_ms: 100, closed: false });
        assert!((5..15).all(|seq| reader.read(seq) == Found::Record(of(seq))));
        writer.beat(200);
        writer.close();
        assert_eq!(reader.head(), RingHead { seq: 14, slot: Some(3), beat_unix_ms: 200, closed: true });
    }

    #[test]
    fn the_oldest_give_way_and_say_so() {
        let memory = Memory::new();
        let (mut writer, reader) = memory.pair(1);
        let last = RING_RECORDS as u64 + 10;
        (1..=last).for_each(|seq| writer.push(&of(seq)));
        writer.publish(None, 0);
        assert_eq!(reader.oldest_seq(reader.head().seq), 11);
        assert!((1..11).all(|seq| reader.read(seq) == Found::Overwritten));
        assert!((11..=last).all(|seq| reader.read(seq) == Found::Record(of(seq))));
    }

    #[test]
    fn changes_that_are_left_out_are_found_overwritten() {
        let memory = Memory::new();
        let (mut writer, reader) = memory.pair(1);
        (1..=4).for_each(|seq| writer.push(&of(seq)));
        writer.skip(3);
        writer.push(&of(8));
        writer.publish(None, 0);
        assert_eq!((reader.head().seq, reader.read(8)), (8, Found::Record(of(8))));
        assert_eq!(reader.oldest_seq(8), 8, "where a reader that comes late is sent to");
        assert!((5..8).all(|seq| reader.read(seq) == Found::Overwritten));
    }

    #[test]
    fn memory_of_another_layout_is_not_read() {
        let memory = Memory::new();
        // SAFETY: as in `pair`.
        let reader = unsafe { RingReader::new(memory.base()) };
        assert!(reader.is_none());
    }

    #[test]
    fn a_reader_beside_the_writer_never_sees_half_a_change() {
        const LAST: u64 = 200 * RING_RECORDS as u64;
        let memory = Memory::new();
        let (mut writer, reader) = memory.pair(1);
        let check = |seq| match reader.read(seq) {
            Found::Record(record) => assert_eq!(record, of(seq), "seq={seq}"),
            Found::Overwritten => {}
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for seq in 1..=LAST {
                    writer.push(&of(seq));
                    if seq.is_multiple_of(100) {
                        writer.publish(None, seq);
                    }
                }
                writer.close();
            });
            while !reader.head().closed {
                // Read where the writer is overwriting the oldest changes: it pushes up to a hundred changes before it
                // publishes them.
                let oldest_seq = reader.oldest_seq(reader.head().seq);
                (oldest_seq..oldest_seq + 100).for_each(check);
            }
        });
        assert_eq!(reader.head().seq, LAST);
        assert!((reader.oldest_seq(LAST)..=LAST).all(|seq| reader.read(seq) == Found::Record(of(seq))));
    }
}
