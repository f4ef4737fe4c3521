//! [`engine_api::Engine::snapshot`]: a copy of the newest commit that opens as a store.

use engine_api::Durability;

use crate::Store;
use crate::support::{Change, Map, apply, assert_holds, commit, key, mark, must, temp_dir, value};

/// The copy holds what was committed when it was taken, and the two go separate ways from there.
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
