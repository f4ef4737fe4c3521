//! Puts, gets, deletes, batches, checkpoints, reopening and scans, one at a time on one thread.

use std::ops::ControlFlow;

use engine_api::{Checkpoint, Durability, ErrorKind, Key, Reader, Value};

use crate::Store;
use crate::support::{
    Change, Map, apply, assert_holds, commit, key, mark, mark_of, must, must_fail, reader, scan, temp_dir, value,
};

/// A new store has no pairs and no checkpoint, and every kind of read shows that.
pub fn empty_store(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    assert_holds(&*engine, &Map::new(), &Checkpoint::default());
    assert_eq!(must("get", reader(&*engine).get(&key(1))), None);
    assert_eq!(must("stats", engine.stats()).pairs_estimate, 0);
    must("close", engine.close());
    let engine = must("reopen", store.open(dir.path()));
    assert_holds(&*engine, &Map::new(), &Checkpoint::default());
}

/// Each operation changes one key, and deleting an absent key is not an error.
pub fn put_get_overwrite_delete(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let mut map = Map::new();
    let steps: [&[Change]; 5] = [
        &[(key(1), Some(value(1))), (key(2), Some(value(2)))],
        &[(key(1), Some(value(3)))],
        &[(key(2), None), (key(9), None)],
        &[(key(2), Some(value(4)))],
        &[(key(1), None), (key(2), None)],
    ];
    for (seq, changes) in (1..).zip(steps) {
        commit(&*engine, changes, seq, Durability::Synced);
        apply(&mut map, changes);
        assert_holds(&*engine, &map, &mark(seq));
    }
}

/// A transaction dropped without a commit changes nothing, also several of them in a row.
pub fn dropped_batch_leaves_no_trace(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let kept = [(key(1), Some(value(1))), (key(2), Some(value(2)))];
    commit(&*engine, &kept, 1, Durability::Synced);
    let map = Map::from([(key(1), value(1)), (key(2), value(2))]);
    for _ in 0..3 {
        let mut txn = must("begin", engine.begin());
        must("put", txn.put(&key(1), &value(8)));
        must("put", txn.put(&key(3), &value(8)));
        must("delete", txn.delete(&key(2)));
        drop(txn);
        assert_holds(&*engine, &map, &mark(1));
    }
    must("close", engine.close());
    assert_holds(&*must("reopen", store.open(dir.path())), &map, &mark(1));
}

/// Of several puts and deletes of one key in a batch, the last one counts.
pub fn last_write_wins_in_a_batch(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let changes = [
        (key(1), Some(value(1))),
        (key(2), Some(value(1))),
        (key(1), Some(value(2))),
        (key(2), None),
        (key(3), None),
        (key(3), Some(value(3))),
        (key(1), None),
        (key(1), Some(value(4))),
    ];
    commit(&*engine, &changes, 1, Durability::Synced);
    assert_holds(&*engine, &Map::from([(key(1), value(4)), (key(3), value(3))]), &mark(1));
}

/// A transaction sees its own puts and deletes in addition to the committed pairs. Readers outside do not see them.
pub fn own_writes_are_visible(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    commit(&*engine, &[(key(1), Some(value(1))), (key(2), Some(value(2)))], 1, Durability::Synced);
    let mut txn = must("begin", engine.begin());
    assert_eq!(must("get", txn.get(&key(1))), Some(value(1)));
    assert_eq!(must("get", txn.get(&key(3))), None);
    must("put", txn.put(&key(1), &value(5)));
    must("put", txn.put(&key(3), &value(6)));
    must("delete", txn.delete(&key(2)));
    assert_eq!(must("get", txn.get(&key(1))), Some(value(5)));
    assert_eq!(must("get", txn.get(&key(2))), None);
    assert_eq!(must("get", txn.get(&key(3))), Some(value(6)));
    must("delete", txn.delete(&key(3)));
    assert_eq!(must("get", txn.get(&key(3))), None);
    let mut outside = reader(&*engine);
    assert_eq!(must("get", outside.get(&key(1))), Some(value(1)));
    drop(outside);
    must("commit", txn.commit(&mark(2), Durability::Synced));
    assert_holds(&*engine, &Map::from([(key(1), value(5))]), &mark(2));
}

/// Keys and values of all zeros and all 0xff are ordinary, and distinct from absence.
pub fn extreme_keys_and_values(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let (low, high) = ([0x00; 32], [0xff; 32]);
    let mut almost_high = high;
    almost_high[31] = 0xfe;
    let changes = [(low, Some(low)), (high, Some(high)), (almost_high, Some(low)), (key(1), Some(high))];
    commit(&*engine, &changes, 1, Durability::Synced);
    let mut map = Map::new();
    apply(&mut map, &changes);
    assert_holds(&*engine, &map, &mark(1));
    let swapped = [(low, Some(high)), (high, Some(low))];
    commit(&*engine, &swapped, 2, Durability::Synced);
    apply(&mut map, &swapped);
    must("close", engine.close());
    let engine = must("reopen", store.open(dir.path()));
    assert_holds(&*engine, &map, &mark(2));
    commit(&*engine, &[(low, None), (high, None)], 3, Durability::Synced);
    apply(&mut map, &[(low, None), (high, None)]);
    assert_holds(&*engine, &map, &mark(3));
}

/// A checkpoint changes only with its batch, is kept to the last byte, and may be committed without changes.
pub fn checkpoint_is_part_of_the_batch(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let map = Map::from([(key(1), value(1))]);
    commit(&*engine, &[(key(1), Some(value(1)))], 1, Durability::Buffered);
    assert_holds(&*engine, &map, &mark(1));
    drop(must("begin", engine.begin()));
    assert_holds(&*engine, &map, &mark(1));
    commit(&*engine, &[], 2, Durability::Buffered);
    assert_holds(&*engine, &map, &mark(2));
    let extreme = Checkpoint::new(u64::MAX, &[0xff; Checkpoint::BYTES_MAX]);
    must("commit", must("begin", engine.begin()).commit(&extreme, Durability::Synced));
    assert_holds(&*engine, &map, &extreme);
    must("close", engine.close());
    assert_holds(&*must("reopen", store.open(dir.path())), &map, &extreme);
}

/// Bytes of every length up to the limit are kept, while they grow and shrink, with and without pairs. They are the
/// same after each commit, in a copy, and after closing or dropping the store. A reader keeps the bytes of its own
/// commit.
pub fn checkpoint_bytes_of_any_length_are_kept(store: &dyn Store) {
    const LENGTHS: [usize; 9] = [Checkpoint::BYTES_MAX, 0, 1, 64, 16, 1000, 0, Checkpoint::BYTES_MAX, 5];
    let dir = temp_dir();
    let live = dir.path().join("live");
    let mut map = Map::new();
    for (seq, length) in (1..).zip(LENGTHS) {
        let engine = must("open", store.open(&live));
        let before = must("checkpoint", engine.checkpoint());
        let mut view = reader(&*engine);
        let checkpoint = mark_of(seq, length);
        let mut txn = must("begin", engine.begin());
        if seq % 3 != 0 {
            must("put", txn.put(&key(seq), &value(seq)));
            map.insert(key(seq), value(seq));
        }
        must("commit", txn.commit(&checkpoint, Durability::Synced));
        assert_eq!(must("checkpoint", view.checkpoint()), before, "a view stays where it is: length={length}");
        drop(view);
        assert_holds(&*engine, &map, &checkpoint);
        let copy = dir.path().join(format!("copy-{seq}"));
        must("snapshot", engine.snapshot(&copy));
        assert_holds(&*must("open the copy", store.open(&copy)), &map, &checkpoint);
        if seq % 2 == 0 {
            drop(engine);
        } else {
            must("close", engine.close());
        }
        assert_holds(&*must("reopen", store.open(&live)), &map, &checkpoint);
    }
}

/// A checkpoint that is too long makes the whole commit or load refused. The store then continues as before.
pub fn a_checkpoint_too_long_is_refused(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    commit(&*engine, &[(key(1), Some(value(1)))], 1, Durability::Synced);
    let map = Map::from([(key(1), value(1))]);
    for length in [Checkpoint::BYTES_MAX + 1, 1 << 16, (1 << 16) + 5] {
        let long = mark_of(2, length);
        for durability in [Durability::Buffered, Durability::Synced] {
            let mut txn = must("begin", engine.begin());
            must("put", txn.put(&key(2), &value(2)));
            let refused = must_fail("commit", ErrorKind::FixInput, txn.commit(&long, durability));
            assert!(refused.to_string().contains(&format!("bytes={length} most=1024")), "{refused}");
            assert_holds(&*engine, &map, &mark(1));
        }
        let pairs = [([0xff; 32], value(3))];
        must_fail("load_sorted", ErrorKind::FixInput, engine.load_sorted(&pairs, &long));
        must_fail("load_sorted of nothing", ErrorKind::FixInput, engine.load_sorted(&[], &long));
        assert_holds(&*engine, &map, &mark(1));
    }
    commit(&*engine, &[(key(2), Some(value(2)))], 2, Durability::Synced);
    must("close", engine.close());
    let map = Map::from([(key(1), value(1)), (key(2), value(2))]);
    assert_holds(&*must("reopen", store.open(dir.path())), &map, &mark(2));
}

/// Committed pairs of either durability are there again after the store was closed, or only dropped.
pub fn reopen_keeps_everything(store: &dyn Store) {
    let dir = temp_dir();
    let mut map = Map::new();
    for seq in 1..=6u64 {
        let engine = must("open", store.open(dir.path()));
        let changes: Vec<Change> =
            (0..500).map(|i| (key(seq * 300 + i), (i % 9 != 0).then(|| value(seq * 1000 + i)))).collect();
        let durability = if seq % 2 == 0 { Durability::Buffered } else { Durability::Synced };
        commit(&*engine, &changes, seq, durability);
        apply(&mut map, &changes);
        assert_holds(&*engine, &map, &mark(seq));
        if seq % 3 == 0 {
            drop(engine);
        } else {
            must("close", engine.close());
        }
    }
    assert_holds(&*must("reopen", store.open(dir.path())), &map, &mark(6));
}

/// A scan visits every pair once, in ascending order, also after overwrites and deletes. `Break` ends it, and it can be
/// repeated.
pub fn scan_is_ordered_and_complete(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let mut map = Map::new();
    for seq in 1..=10u64 {
        let changes: Vec<Change> =
            (0..1000).map(|i| (key((seq * 137 + i * 7) % 4000), (i % 5 != 0).then(|| value(seq + i)))).collect();
        commit(&*engine, &changes, seq, Durability::Buffered);
        apply(&mut map, &changes);
    }
    let mut reader = reader(&*engine);
    assert!(scan(&mut *reader) == map && scan(&mut *reader) == map);
    for stop_after in [1usize, 2, 100] {
        let mut seen = Vec::new();
        let outcome = reader.scan(&mut |key, _| {
            seen.push(*key);
            if seen.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        must("scan with a break", outcome);
        assert!(seen.iter().eq(map.keys().take(stop_after)), "stop_after={stop_after} seen={}", seen.len());
    }
    must("settle", engine.settle());
    drop(reader);
    assert_holds(&*engine, &map, &mark(10));
}

/// A scan from a key returns the same pairs as a whole scan from there on. The key may be zero, present, removed,
/// between others or beyond all. Checked after each commit, in an old reader while others write, after settling and
/// after opening.
pub fn scan_from_begins_at_its_key(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    assert_scans_from(&mut *reader(&*engine), &Map::new());
    let mut map = Map::new();
    let mut views = Vec::new();
    for seq in 1..=12u64 {
        // Neighbours that share their first eight bytes, and their first 31. Some are put, some removed, some put
        // again.
        let number = |i: u64| (seq * 137 + i * 7) % 1500;
        let changes: Vec<Change> = (0..500)
            .map(|i| (neighbour(number(i)), ((seq + i) % 4 != 0).then(|| value(seq + i))))
            .chain([([0; 32], (seq % 2 == 0).then(|| value(1))), ([0xff; 32], (seq % 3 == 0).then(|| value(2)))])
            .collect();
        commit(&*engine, &changes, seq, Durability::Buffered);
        apply(&mut map, &changes);
        assert_scans_from(&mut *reader(&*engine), &map);
        if seq % 5 == 0 {
            must("settle", engine.settle());
        }
        if seq % 4 == 0 {
            views.push((reader(&*engine), map.clone()));
        }
    }
    // Uncommitted changes are in no reader.
    let mut open = must("begin", engine.begin());
    must("put", open.put(&neighbour(2000), &value(9)));
    assert_scans_from(&mut *reader(&*engine), &map);
    drop(open);
    for (mut view, then) in views {
        assert_scans_from(&mut *view, &then);
    }
    must("settle", engine.settle());
    assert_scans_from(&mut *reader(&*engine), &map);
    must("close", engine.close());
    assert_scans_from(&mut *reader(&*must("reopen", store.open(dir.path()))), &map);
}

/// Returns keys in groups: most neighbours share all but the last byte, and eight numbers share the first eight bytes.
fn neighbour(number: u64) -> Key {
    let mut out = key(number / 8);
    out[8..30].fill((number / 4 % 2) as u8);
    out[31] = (number % 4) as u8;
    out
}

/// A scan within a prefix visits the keys that begin with it, from its first key on, and no others: before and after a
/// flush, for prefixes with and without keys, and for those that no greater one follows.
pub fn scan_prefix_stays_within_its_prefix(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    // Every eighth group has no key yet, and the last groups begin with 16 bytes of ones.
    let grouped = |group: u8, n: u8| -> Key {
        let head = if group >= 40 { 0xff } else { group };
        std::array::from_fn(|at| {
            if at < 16 {
                head
            } else if at == 16 {
                group
            } else {
                n
            }
        })
    };
    let mut map = Map::new();
    for seq in 1..=4u8 {
        let groups = (0..44).filter(|group| group % 8 != 7);
        let keys = groups.flat_map(|group| (0..seq * 20).step_by(usize::from(seq)).map(move |n| grouped(group, n)));
        let changes: Vec<Change> = keys.map(|key| (key, (key[31] % 7 != seq).then(|| value(u64::from(seq))))).collect();
        commit(&*engine, &changes, seq.into(), Durability::Buffered);
        apply(&mut map, &changes);
        if seq == 3 {
            must("settle", engine.settle());
        }
        let mut reader = reader(&*engine);
        for (group, n, prefix_bytes) in
            (0..44).flat_map(|group| [(group, 0, 16), (group, 9, 17), (group, 3, 1), (group, 5, 32)])
        {
            let first = grouped(group, n);
            let mut seen = Map::new();
            let visited = reader.scan_prefix(&first, prefix_bytes, &mut |key, value| {
                assert!(seen.last_key_value().is_none_or(|(before, _)| before < key), "in ascending order");
                seen.insert(*key, *value);
                ControlFlow::Continue(())
            });
            must("scan_prefix", visited);
            let within = map.range(first..).filter(|(key, _)| key[..prefix_bytes] == first[..prefix_bytes]);
            assert_eq!(seen, within.map(|(key, value)| (*key, *value)).collect(), "group={group} bytes={prefix_bytes}");
        }
    }
    let mut count = 0;
    let few = &mut |_: &Key, _: &Value| {
        count += 1;
        if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    must("scan_prefix", reader(&*engine).scan_prefix(&[1; 32], 0, few));
    assert_eq!(count, 3);
}

/// Checks scans from every fifth key of `expected`, the keys next to it on both sides, and both ends, some of them with
/// a break.
#[track_caller]
fn assert_scans_from(reader: &mut dyn Reader, expected: &Map) {
    let next_to = |key: &Key| {
        let (mut below, mut above) = (*key, *key);
        (below[31], above[31]) = (key[31].wrapping_sub(1), key[31].wrapping_add(1));
        [*key, below, above]
    };
    let ends = [[0; 32], [0xff; 32], [0x80; 32]];
    let picked = expected.keys().step_by(5).flat_map(next_to).take(120);
    for (count, first) in ends.into_iter().chain(picked).enumerate() {
        // Most scans are short, because errors show at a scan's start.
        let most = if count < 6 { usize::MAX } else { count % 7 * 40 + 1 };
        let mut found = Vec::new();
        let outcome = reader.scan_from(&first, &mut |key, value| {
            found.push((*key, *value));
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        must("scan_from", outcome);
        let wanted = expected.range(first..).take(most).map(|(key, value)| (*key, *value));
        assert!(found.iter().copied().eq(wanted), "first={first:x?} most={most} found={}", found.len());
    }
}

/// A second `begin` on another thread waits for the first transaction to end, and sees its committed changes.
pub fn a_second_writer_waits(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let engine = &*engine;
    let mut first = must("begin", engine.begin());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut txn = must("begin", engine.begin());
            assert_eq!(must("get", txn.get(&key(1))), Some(value(1)), "the first transaction's commit comes before");
            must("put", txn.put(&key(2), &value(2)));
            must("commit", txn.commit(&mark(2), Durability::Synced));
        });
        must("put", first.put(&key(1), &value(1)));
        must("commit", first.commit(&mark(1), Durability::Synced));
        second.join().expect("the second writer says itself what went wrong");
    });
    assert_holds(engine, &Map::from([(key(1), value(1)), (key(2), value(2))]), &mark(2));
}
