//! [`engine_api::Engine::snapshot`]: a copy of the newest commit that opens as a store.

use std::sync::atomic::{AtomicU64, Ordering};

use engine_api::Durability;

use crate::Store;
use crate::support::{Change, Map, apply, assert_holds, commit, key, mark, must, temp_dir, value};

/// The copy holds the state at the time of the copy, and afterwards neither store affects the other.
pub fn a_copy_opens_and_equals(store: &dyn Store) {
    let dir = temp_dir();
    let (live, copy) = (dir.path().join("live"), dir.path().join("copy"));
    let engine = must("create", store.open(&live));
    let changes: Vec<Change> = (0..3000).map(|i| (key(i), Some(value(i)))).collect();
    commit(&*engine, &changes, 1, Durability::Buffered);
    let mut map = Map::new();
    apply(&mut map, &changes);
    must("snapshot", engine.snapshot(&copy));
    assert!(engine.snapshot(&copy).is_err(), "a snapshot into an existing directory must be refused");
    let later = [(key(1), Some(value(77))), (key(2), None)];
    commit(&*engine, &later, 2, Durability::Buffered);

    let copied = must("open the copy", store.open(&copy));
    assert_holds(&*copied, &map, &mark(1));
    commit(&*copied, &[(key(9_999), Some(value(9)))], 5, Durability::Synced);
    let mut grown = map.clone();
    grown.insert(key(9_999), value(9));
    assert_holds(&*copied, &grown, &mark(5));
    apply(&mut map, &later);
    assert_holds(&*engine, &map, &mark(2));
}

/// Each copy that is made while the writer continues holds exactly the batches up to one commit.
pub fn a_copy_made_while_writing_is_one_commit(store: &dyn Store) {
    const COPIES: u64 = 3;
    const KEYS: u64 = 2000;
    let changes = |seq: u64| -> Vec<Change> {
        (0..50).map(|i| (key((seq * 37 + i) % KEYS), (i % 9 > 0).then(|| value(seq * 50 + i)))).collect()
    };
    let dir = temp_dir();
    let copy = |number: u64| dir.path().join(format!("copy-{number}"));
    let engine = must("create", store.open(&dir.path().join("live")));
    commit(&*engine, &changes(1), 1, Durability::Buffered);
    let copied = AtomicU64::new(0);
    let committed = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // ORDERING: Relaxed: only tells the writer that it may end.
            (2..)
                .take_while(|_| copied.load(Ordering::Relaxed) < COPIES)
                .inspect(|seq| commit(&*engine, &changes(*seq), *seq, Durability::Buffered))
                .last()
        });
        for number in 0..COPIES {
            must(format_args!("snapshot {number}"), engine.snapshot(&copy(number)));
            // ORDERING: Relaxed: as above.
            copied.store(number + 1, Ordering::Relaxed);
        }
        writer.join().expect("the writer panicked, and said why").unwrap_or(1)
    });
    let mut held = Map::new();
    let mut seq = 0;
    for number in 0..COPIES {
        let copied = must("open the copy", store.open(&copy(number)));
        let reached = must("the copy's checkpoint", copied.checkpoint()).seq;
        assert!((seq.max(1)..=committed).contains(&reached), "copy={number} reached={reached} before={seq}");
        (seq + 1..=reached).for_each(|seq| apply(&mut held, &changes(seq)));
        seq = reached;
        assert_holds(&*copied, &held, &mark(seq));
    }
}
