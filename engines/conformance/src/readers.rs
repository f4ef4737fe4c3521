//! The view of a reader while others write.

use std::sync::atomic::{AtomicBool, Ordering};

use engine_api::{Durability, Engine, ErrorKind, Key};

use crate::Store;
use crate::support::{Change, assert_holds, commit, get, key, mark, must, must_fail, reader, scan, temp_dir, value};

/// A reader's gets, scans and checkpoint are of the commit that was the newest when it was opened or refreshed.
pub fn a_snapshot_stays_until_refresh(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    commit(&*engine, &[(key(1), Some(value(1))), (key(2), Some(value(2)))], 1, Durability::Buffered);
    let mut old = reader(&*engine);
    let before = scan(&mut *old);
    commit(&*engine, &[(key(1), Some(value(9))), (key(2), None), (key(3), Some(value(3)))], 2, Durability::Buffered);
    assert_eq!(must("get", old.get(&key(1))), Some(value(1)));
    assert_eq!(must("get", old.get(&key(2))), Some(value(2)));
    assert_eq!(must("get", old.get(&key(3))), None);
    let mut values = [None; 3];
    must("get_many", old.get_many(&[key(1), key(2), key(3)], &mut values));
    assert_eq!(values, [Some(value(1)), Some(value(2)), None]);
    assert_eq!(must("checkpoint", old.checkpoint()), mark(1));
    assert!(scan(&mut *old) == before);
    must("refresh", old.refresh());
    assert_eq!(must("checkpoint", old.checkpoint()), mark(2));
    assert_eq!(must("get", old.get(&key(1))), Some(value(9)));
    assert_eq!(must("get", old.get(&key(2))), None);
    assert_eq!(must("get", old.get(&key(3))), Some(value(3)));
    must("refresh", old.refresh());
    assert_eq!(scan(&mut *old).len(), 2);
}

/// Each batch gives all keys one value. No reader on any thread ever sees two values, or one that differs from its
/// checkpoint's.
pub fn readers_see_whole_batches(store: &dyn Store) {
    const KEYS: u64 = 64;
    const BATCHES: u64 = 300;
    const READERS: usize = 2;
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let engine = &*engine;
    let batch = |seq: u64| -> Vec<Change> { (0..KEYS).map(|i| (key(i), Some(value(seq)))).collect() };
    commit(engine, &batch(1), 1, Durability::Buffered);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS).map(|_| scope.spawn(|| watch(engine, KEYS, &done))).collect();
        for seq in 2..=BATCHES {
            commit(engine, &batch(seq), seq, Durability::Buffered);
        }
        // ORDERING: relaxed; the flag only ends the readers' loops, the engine itself carries the data.
        done.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("a reader says itself what went wrong");
        }
    });
    assert_holds(engine, &(0..KEYS).map(|i| (key(i), value(BATCHES))).collect(), &mark(BATCHES));
}

/// `get_many` equals `get` for present, absent and repeated keys and for no keys, and refuses a wrong number of slots.
pub fn get_many_equals_get(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let changes: Vec<Change> = (0..2000).map(|i| (key(i * 2), Some(value(i)))).collect();
    commit(&*engine, &changes, 1, Durability::Buffered);
    let mut reader = reader(&*engine);
    for count in [0u64, 1, 2, 63, 1000] {
        let mut keys: Vec<Key> = (0..count).map(|i| key(i * 31 % 4001)).collect();
        keys.extend(keys.first().copied());
        // The slots contain a value before, so that a slot left unchanged shows.
        let mut values = vec![Some([7; 32]); keys.len()];
        must("get_many", reader.get_many(&keys, &mut values));
        for (key, value) in keys.iter().zip(&values) {
            assert_eq!(get(&mut *reader, key), *value);
        }
    }
    let mut two = [None; 2];
    must_fail("get_many with too few slots", ErrorKind::FixInput, reader.get_many(&[key(1); 3], &mut two));
    must_fail("get_many with too many slots", ErrorKind::FixInput, reader.get_many(&[key(1)], &mut two));
    assert_eq!(must("get after a refused get_many", reader.get(&key(2))), Some(value(1)));
}

fn watch(engine: &dyn Engine, keys: u64, done: &AtomicBool) {
    let all: Vec<Key> = (0..keys).map(key).collect();
    let mut values = vec![None; all.len()];
    let mut reader = reader(engine);
    let mut last = 0;
    loop {
        // ORDERING: relaxed, as the store; one more round after the flag is welcome.
        let ending = done.load(Ordering::Relaxed);
        must("refresh", reader.refresh());
        let seq = must("checkpoint", reader.checkpoint()).seq;
        assert!(seq >= last, "a refresh went back: last={last} now={seq}");
        last = seq;
        let expected = Some(value(seq));
        for key in all.iter().step_by(7) {
            assert_eq!(get(&mut *reader, key), expected, "get differs from the checkpoint seq={seq}");
        }
        must("get_many", reader.get_many(&all, &mut values));
        assert!(values.iter().all(|value| *value == expected), "get_many is not of one batch seq={seq}");
        assert!(scan(&mut *reader).values().all(|v| Some(*v) == expected), "a scan is not of one batch seq={seq}");
        if ending {
            return;
        }
    }
}
