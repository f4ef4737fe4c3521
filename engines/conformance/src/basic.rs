//! Puts, gets, deletes, batches, checkpoints, reopening and scans, one at a time on one thread.

use std::ops::ControlFlow;

use engine_api::{Checkpoint, Durability};

use crate::Store;
use crate::support::{Change, Map, apply, assert_holds, commit, key, mark, must, reader, scan, temp_dir, value};

/// Nothing in it, no checkpoint, and every kind of read says so.
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

/// Each operation over one key, and deleting what is not there.
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

/// A transaction dropped without a commit, and one after another.
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

/// Put, delete and put again of one key within a batch.
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

/// Inside a transaction: its own puts and deletes over what is committed, invisible outside.
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

/// All-zero and all-0xff keys and values are ordinary, and distinct from absence.
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

/// A checkpoint moves only with its batch, is kept in every field, and may come alone.
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
    let extreme = Checkpoint { seq: u64::MAX, slot: None, blockhash: [0xff; 32], source: u64::MAX };
    must("commit", must("begin", engine.begin()).commit(&extreme, Durability::Synced));
    assert_holds(&*engine, &map, &extreme);
    must("close", engine.close());
    assert_holds(&*must("reopen", store.open(dir.path())), &map, &extreme);
}

/// Closed properly, or only dropped: what was committed is there, at either durability.
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

/// Every pair once, in ascending order, also after overwrites and deletes; `Break` ends it; it can be repeated.
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

/// A second `begin` on another thread waits for the first transaction, and sees what it committed.
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
