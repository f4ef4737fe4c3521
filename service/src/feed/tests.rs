//! The log against a model: published changes are read back, each one once, whatever happened in between.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use engine_api::Durability;
use proptest::prelude::*;

use super::*;

const KEEP_ALL: u64 = 1 << 30;

fn change(n: u64) -> Change {
    let word = |n: u64| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    let side = |on: bool, n: u64| on.then(|| word(n));
    let (fifth, seventh) = (n.is_multiple_of(5), n.is_multiple_of(7));
    Change { slot: n / 3, key: word(n % 97), old: side(!fifth, n), new: side(fifth || !seventh, n + 1) }
}

/// Returns the slot ends among the changes from `first` to `last`: each third change is the last of its slot.
fn ends(first: u64, last: u64) -> Vec<SlotEnd> {
    let end = |seq: u64| SlotEnd {
        seq,
        slot: seq / 3,
        blockhash: [seq as u8; 32],
        parent_slot: seq / 3 - 1,
        is_healed: false,
    };
    (first..=last).filter(|seq| seq % 3 == 2 && *seq > 3).map(end).collect()
}

pub(super) fn at(seq: u64) -> ChainCheckpoint {
    ChainCheckpoint { seq, slot: Some(seq), ..ChainCheckpoint::default() }
}

/// A feed of a store that stands at `seq`.
pub(super) struct Rig {
    dir: PathBuf,
    pub(super) seq: u64,
    pub(super) durability: Durability,
    pub(super) retention_bytes: u64,
    pub(super) writer: FeedWriter,
    feed: Arc<Feed>,
}

impl Rig {
    pub(super) fn open(dir: &Path, seq: u64, durability: Durability, retention_bytes: u64) -> Self {
        let (writer, feed) = FeedWriter::open(dir, &at(seq), durability, retention_bytes).unwrap();
        Self { dir: dir.to_owned(), seq, durability, retention_bytes, writer, feed }
    }

    pub(super) fn synced(dir: &Path, seq: u64) -> Self {
        Self::open(dir, seq, Durability::Synced, KEEP_ALL)
    }

    pub(super) fn append(&mut self, changes: u64) {
        let next = self.seq + 1;
        let last = next + changes - 1;
        self.writer.append(next, (next..next + changes).map(change).collect(), ends(next, last)).unwrap();
    }

    pub(super) fn commit(&mut self, changes: u64) {
        self.append(changes);
        self.seq += changes;
        self.writer.publish(&at(self.seq));
    }

    pub(super) fn reopen(self) -> Self {
        let Self { dir, seq, durability, retention_bytes, writer, feed } = self;
        drop((writer, feed));
        Self::open(&dir, seq, durability, retention_bytes)
    }

    /// Checks every change from `seq` on, read from disk alone and again as a subscriber reads it.
    fn check(&self, seq: u64) {
        let expected: Vec<Change> = (seq..=self.seq).map(change).collect();
        let mut cursor = Cursor::new(seq);
        let (mut next_seq, mut read, mut ended) = (seq, Vec::new(), Vec::<SlotEnd>::new());
        loop {
            let frames = self.feed.read(&mut cursor).unwrap();
            if frames.is_empty() {
                break;
            }
            for frame in frames {
                assert!(frame.first_seq <= next_seq && next_seq <= frame.last_seq());
                read.extend_from_slice(&frame.changes[(next_seq - frame.first_seq) as usize..]);
                ended.extend(frame.ends.iter().filter(|end| end.seq >= next_seq));
                next_seq = frame.last_seq() + 1;
            }
        }
        assert!(ended == ends(seq, self.seq), "where slots end, from disk: seq={seq}");
        assert!(read == expected, "from disk: seq={seq} read={} expected={}", read.len(), expected.len());
        if let Some(frames) = self.feed.recent(seq)
            && let Some(first) = frames.first()
        {
            let skip = (seq - first.first_seq) as usize;
            let recent: Vec<Change> = frames.iter().flat_map(|frame| &frame.changes).skip(skip).copied().collect();
            assert!(!recent.is_empty() && expected.starts_with(&recent), "from memory: seq={seq}");
        }
    }

    fn last_segment(&self) -> PathBuf {
        lock(&self.feed.kept).segments.back().unwrap().path.clone()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Commit(u64),
    /// An append of that many changes, after which the engine has no space for their commit.
    Abort(u64),
    Reopen,
    /// An append, then a crash before the engine's commit; this share of the frame reached the disk.
    Crash(u64, f64),
}

fn step() -> impl Strategy<Value = Step> {
    let changes = || prop_oneof![3 => 0..40u64, 1 => 1000..6000u64];
    prop_oneof![
        5 => changes().prop_map(Step::Commit),
        1 => changes().prop_map(Step::Abort),
        1 => Just(Step::Reopen),
        2 => (changes(), 0.0..=1.0).prop_map(|(changes, share)| Step::Crash(changes, share)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_was_published_is_read_back_in_one_feed(
        steps in prop::collection::vec(step(), 1..40), from in 0.0..1.0,
    ) {
        let temp = tempfile::tempdir().unwrap();
        let start = 100;
        // The segments of this log have one megabyte.
                let mut rig = Rig::open(temp.path(), start, Durability::Synced, 1 << 20);
        rig.retention_bytes = KEEP_ALL;
        rig.writer.keep(KEEP_ALL);
        let id = rig.feed.id();
        for step in steps {
            match step {
                Step::Commit(changes) => rig.commit(changes),
                Step::Abort(changes) => {
                    rig.append(changes);
                    rig.writer.abort().unwrap();
                }
                Step::Reopen => rig = rig.reopen(),
                Step::Crash(changes, share) => {
                    rig.append(changes);
                    tear(&rig, changes, share);
                    rig = rig.reopen();
                }
            }
            prop_assert_eq!(rig.feed.id(), id);
        }
        prop_assert_eq!(rig.feed.oldest_seq(), start + 1);
        rig.check(start + 1);
        rig.check(start + 1 + (from * (rig.seq - start) as f64) as u64);
        rig.reopen().check(start + 1);
    }
}

/// Leaves on disk the part of the appended frame that a power loss leaves: its first bytes, then zeros.
fn tear(rig: &Rig, changes: u64, share: f64) {
    if changes == 0 {
        return;
    }
    let bytes = rig.writer.pending_bytes();
    let kept = (bytes as f64 * share) as usize;
    let file = OpenOptions::new().write(true).open(rig.last_segment()).unwrap();
    file.write_all_at(&vec![0; bytes - kept], rig.writer.end() + kept as u64).unwrap();
}

#[test]
fn a_store_that_went_another_way_begins_a_new_feed() {
    let temp = tempfile::tempdir().unwrap();
    let mut rig = Rig::synced(temp.path(), 0);
    (0..10).for_each(|_| rig.commit(10));
    let id = rig.feed.id();
    for (seq, why) in [(150, "loaded behind the feed's back"), (80, "restored from a copy"), (95, "within a batch")] {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(temp.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let mut other = Rig::synced(copy.path(), seq);
        assert_ne!(other.feed.id(), id, "{why}");
        assert_eq!(other.feed.oldest_seq(), seq + 1);
        assert!(
            matches!(other.feed.read(&mut Cursor::new(70)), Err(FeedError::Gone { oldest_seq }) if oldest_seq == seq + 1)
        );
        other.commit(3);
        other.check(seq + 1);
    }
    let rig = rig.reopen();
    assert_eq!(rig.feed.id(), id);
    rig.check(1);
}

/// Returns the log lines that `of` writes.
fn said(of: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let written = Arc::new(file.reopen().unwrap());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(written).finish();
    tracing::subscriber::with_default(subscriber, of);
    fs::read_to_string(file.path()).unwrap()
}

#[test]
fn a_log_that_is_changed_while_it_is_written_is_told_once() {
    type Change<'a> = &'a dyn Fn(&Path, &Path);
    let changes: [(&str, Change<'_>); 4] = [
        ("it is gone", &|_, segment| fs::remove_file(segment).unwrap()),
        ("it is gone", &|dir, _| fs::rename(dir, dir.with_extension("moved")).unwrap()),
        ("it was cut", &|_, segment| OpenOptions::new().write(true).open(segment).unwrap().set_len(100).unwrap()),
        ("another file is in its place", &|_, segment| {
            fs::rename(segment, segment.with_extension("moved")).unwrap();
            fs::write(segment, vec![0; 1 << 20]).unwrap();
        }),
    ];
    for (why, change) in changes {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("feed");
        let mut rig = Rig::synced(&dir, 0);
        rig.commit(10);
        let quiet = said(|| rig.writer.expire());
        assert!(!quiet.contains("ERROR"), "{quiet}");
        change(&dir, &rig.last_segment());
        let told = said(|| (0..3).for_each(|_| rig.writer.expire()));
        assert_eq!(told.matches("ERROR").count(), 1, "{told}");
        assert!(told.contains(why) && told.contains(rig.last_segment().to_str().unwrap()), "{told}");
    }
}

#[test]
fn without_flushes_a_crash_that_may_have_lost_something_begins_a_new_feed() {
    let temp = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(temp.path(), 0, Durability::Buffered, KEEP_ALL);
    let id = rig.feed.id();
    rig.commit(5);
    rig = rig.reopen();
    assert_eq!(rig.feed.id(), id, "a killed process loses nothing");
    rig.append(5);
    rig = rig.reopen();
    assert_ne!(rig.feed.id(), id, "the engine may have had it, shown it and lost it");
    // From here on frames are flushed, in a segment of its own.
    let id = rig.feed.id();
    rig.commit(5);
    rig.durability = Durability::Synced;
    rig = rig.reopen();
    rig.commit(5);
    rig.append(5);
    rig = rig.reopen();
    assert_eq!(rig.feed.id(), id);
    rig.check(6);
}

#[test]
fn changes_that_are_left_out_are_gone_once_they_are_published() {
    let temp = tempfile::tempdir().unwrap();
    let mut rig = Rig::synced(temp.path(), 0);
    (0..3).for_each(|_| rig.commit(10));
    let id = rig.feed.id();
    let mut reading = Cursor::new(1);
    assert_eq!(rig.feed.read(&mut reading).unwrap().len(), 3);
    rig.writer.leave_out(25, 70);
    rig.commit(10);
    assert_eq!((rig.feed.head().borrow().seq, rig.feed.oldest_seq()), (30, 1), "nothing is published in part");
    assert!(rig.feed.read(&mut reading).unwrap().is_empty() && rig.feed.recent(31).unwrap().is_empty());
    rig.commit(15);
    assert_eq!((rig.feed.head().borrow().seq, rig.feed.oldest_seq()), (55, 56));
    let is_gone = |cursor: &mut Cursor| matches!(rig.feed.read(cursor), Err(FeedError::Gone { oldest_seq: 56 }));
    assert!(is_gone(&mut reading), "also for a reader that has the file open");
    assert!([5, 31, 55].into_iter().all(|seq| rig.feed.recent(seq).is_none() && is_gone(&mut Cursor::new(seq))));
    assert!(rig.feed.recent(56).unwrap().is_empty());
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "only the segment after them is left");
    for _ in 0..2 {
        rig.commit(7);
        rig.check(56);
        rig = rig.reopen();
        assert_eq!((rig.feed.id(), rig.feed.oldest_seq()), (id, 56));
    }
}

#[test]
fn a_crash_among_changes_that_are_left_out_begins_a_new_feed() {
    for committed in [0, 1, 9, 10] {
        let temp = tempfile::tempdir().unwrap();
        let mut rig = Rig::synced(temp.path(), 0);
        rig.commit(5);
        let id = rig.feed.id();
        rig.writer.leave_out(10, 70);
        rig.append(10);
        rig.seq += committed;
        rig = rig.reopen();
        let (is_same, oldest_seq) = if committed == 0 { (true, 1) } else { (false, rig.seq + 1) };
        assert_eq!((rig.feed.id() == id, rig.feed.oldest_seq()), (is_same, oldest_seq), "committed={committed}");
        rig.commit(3);
        rig.check(oldest_seq);
    }
}

#[test]
fn beyond_the_retention_the_oldest_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(temp.path(), 0, Durability::Synced, 3 << 20);
    let mut behind = Cursor::new(1);
    rig.commit(1000);
    rig.feed.read(&mut behind).unwrap();
    (0..60).for_each(|_| rig.commit(1000));
    let oldest_seq = rig.feed.oldest_seq();
    assert!(oldest_seq > 20_000 && rig.feed.log_bytes() <= 4 << 20, "{oldest_seq}");
    rig.check(oldest_seq);
    let gone = |cursor: &mut Cursor| match rig.feed.read(cursor) {
        Err(FeedError::Gone { oldest_seq }) => oldest_seq,
        other => panic!("{other:?}"),
    };
    assert_eq!(gone(&mut Cursor::new(oldest_seq - 1)), oldest_seq);
    // A reader that has the removed segment open finishes it, and gets the error then.
    while let Ok(frames) = rig.feed.read(&mut behind) {
        assert!(!frames.is_empty());
    }
    assert_eq!(gone(&mut behind), oldest_seq);
    rig.feed.expire(0);
    assert_eq!(lock(&rig.feed.kept).segments.len(), 2);
    rig.reopen().check(oldest_seq.max(55_000));
}

#[test]
fn a_damaged_log_is_reported_and_never_read() {
    let temp = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(temp.path(), 0, Durability::Synced, 1 << 20);
    rig.writer.keep(KEEP_ALL);
    (0..30).for_each(|_| rig.commit(1000));
    let id = rig.feed.id();
    let flip = |path: &Path, at: u64| {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    };
    let first = Segment::path(temp.path(), 1);
    flip(&first, 64 + 500);
    let rig = rig.reopen();
    assert_eq!(rig.feed.id(), id, "found when it is read");
    let damaged = rig.feed.read(&mut Cursor::new(1));
    assert!(matches!(&damaged, Err(FeedError::Log(error)) if error.to_string().contains(first.to_str().unwrap())));
    flip(&rig.last_segment(), 64 + 500);
    let rig = rig.reopen();
    assert_ne!(rig.feed.id(), id, "what was published is not all there");
    assert_eq!(rig.feed.oldest_seq(), rig.seq + 1);
}

#[test]
fn who_reads_the_ring_cannot_write_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::synced(dir.path(), 0);
    rig.commit(10);
    let (ring, memfd) = Ring::create(&rig.feed).unwrap();
    let file = fs::File::from(memfd);
    assert!(
        memmap2::MmapRaw::map_raw(&file).is_err() && file.write_all_at(&[1], 0).is_err() && file.set_len(0).is_err()
    );
    let memory = memmap2::MmapOptions::new().map_raw_read_only(&file).unwrap();
    let base = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: a mapping of the whole ring, kept alive as long as the reader.
    let reader = unsafe { shm_layout::ring::RingReader::new(base) }.unwrap();
    assert_eq!((reader.feed_id(), reader.head().seq, reader.oldest_seq(10)), (rig.feed.id(), 10, 1));
    rig.writer.share(ring);
    rig.commit(5);
    for seq in 1..=15 {
        let shm_layout::ring::Found::Record(record) = reader.read(seq) else { panic!("seq={seq}") };
        let Change { slot, key, old, new } = change(seq);
        assert_eq!((record.slot, record.key, record.old, record.new), (slot, key, old, new));
        let end = record.slot_end.map(|end| SlotEnd {
            seq,
            slot,
            blockhash: end.blockhash,
            parent_slot: end.parent_slot,
            is_healed: false,
        });
        assert_eq!(end, ends(seq, seq).pop());
        assert_eq!(record.published_ns > 0, seq > 10, "seq={seq}");
    }
    let before = reader.head();
    assert_eq!((before.seq, before.slot, before.closed), (15, Some(15), false));
    drop(rig);
    assert!(reader.head().closed);
}

#[test]
fn a_tail_gives_what_passes_in_pieces_from_disk_and_from_memory() {
    let temp = tempfile::tempdir().unwrap();
    let mut rig = Rig::synced(temp.path(), 0);
    (0..10).for_each(|_| rig.commit(4000));
    let key = change(40).key;
    let values = (1..9000).map(|n| bytes::Bytes::copy_from_slice(&change(n * 5).new.unwrap()));
    let filter = proto::v1::Filter { values: values.collect(), ..Default::default() };
    let filter = Arc::new(Filter::new(&filter).unwrap());
    for reopened in [false, true] {
        for (from, last_seq, last_key) in [(1, 40_000, None), (3700, 31_000, Some(key)), (39_000, u64::MAX, None)] {
            let scope = Scope { last_seq, last_key, most: 100 };
            let mut tail = Tail::new(Arc::clone(&rig.feed), Arc::clone(&filter), from);
            assert!(tail.at_hand(&scope).is_none(), "hundreds of changes are ahead");
            let passes = |change: &Change| filter.passes(change) && last_key.is_none_or(|last| change.key <= last);
            let range = from..=last_seq.min(40_000);
            let expected: Vec<_> = range.clone().map(|n| (n, change(n))).filter(|(_, change)| passes(change)).collect();
            let (mut found, mut ended, mut more) = (Vec::new(), Vec::new(), true);
            while more {
                let piece = tail.piece(&scope).unwrap();
                assert!(piece.slot_end.is_none_or(|end| end.seq + 1 == tail.next_seq()));
                ended.extend(piece.slot_end);
                assert!(piece.changes.len() <= 100);
                found.extend(piece.changes);
                more = piece.more;
            }
            assert!(!expected.is_empty() && found == expected, "found={} of={}", found.len(), expected.len());
            assert_eq!(tail.next_seq(), range.end() + 1);
            let whole = last_key.is_none().then(|| ends(from, *range.end()));
            assert!(ended == whole.unwrap_or_default(), "where slots end");
            // Skipped changes are not checked.
            if last_seq < 40_000 {
                tail.skip_to(39_990);
                let rest = Scope { last_seq: u64::MAX, last_key: None, most: 100 };
                assert!(reopened || tail.at_hand(&rest).is_some_and(|at_hand| at_hand.last_seq == 40_000));
                let mut more = true;
                while more {
                    let piece = tail.piece(&rest).unwrap();
                    assert!(piece.changes.iter().all(|(seq, _)| *seq >= 39_990));
                    more = piece.more;
                }
                assert_eq!(tail.next_seq(), 40_001);
            }
        }
        if !reopened {
            rig = rig.reopen();
        }
    }
}

#[test]
fn changes_that_a_derived_store_lacks_stay_beyond_the_retention_but_not_for_ever() {
    let temp = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(temp.path(), 0, Durability::Buffered, 0);
    rig.commit(10);
    let hold = rig.feed.follow(10);
    (0..10).for_each(|_| rig.commit(20_000));
    rig.writer.expire();
    assert_eq!((rig.feed.oldest_seq(), rig.feed.lag_of_followers()), (11, 200_000));
    // What it has may go, and what another one lacks stays.
    let other = rig.feed.follow(100_010);
    hold.reach(150_010);
    rig.writer.expire();
    let oldest = rig.feed.oldest_seq();
    assert!((80_000..=100_011).contains(&oldest), "oldest={oldest}");
    other.reach(200_010);
    assert_eq!(rig.feed.lag_of_followers(), 50_000);
    while rig.feed.oldest_seq() < 150_011 {
        rig.commit(20_000);
        rig.writer.expire();
        assert!(rig.feed.log_bytes() <= FOLLOWERS_BYTES_MAX + (8 << 20), "bytes={}", rig.feed.log_bytes());
    }
    assert!(rig.feed.log_bytes() > FOLLOWERS_BYTES_MAX - (8 << 20), "it was given up too early");
    // One that ends holds nothing.
    drop((hold, other));
    rig.writer.expire();
    assert!(rig.feed.log_bytes() < 16 << 20 && rig.feed.lag_of_followers() == 0);
}
