//! [`engine_api::Engine::load_sorted`]: sorted chunks through the engine's fastest path.

use engine_api::{Checkpoint, Durability, ErrorKind, Key, Value};

use crate::Store;
use crate::support::{Map, apply, ascending_key, assert_holds, commit, mark, must, must_fail, temp_dir, value};

const CHUNK: u64 = 2000;

/// Loading chunk after chunk equals putting the same pairs. The store is an ordinary one afterwards.
pub fn loaded_chunks_equal_puts(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let mut map = Map::new();
    for seq in 1..=4 {
        let pairs = chunk(seq);
        must("load_sorted", engine.load_sorted(&pairs, &mark(seq)));
        map.extend(pairs);
        assert_holds(&*engine, &map, &mark(seq));
    }
    must("load_sorted of nothing", engine.load_sorted(&[], &mark(5)));
    assert_holds(&*engine, &map, &mark(5));
    let changes = [(ascending_key(3), Some(value(1))), (ascending_key(CHUNK), None), ([0xff; 32], Some([0; 32]))];
    commit(&*engine, &changes, 6, Durability::Synced);
    apply(&mut map, &changes);
    must("settle", engine.settle());
    assert_holds(&*engine, &map, &mark(6));
    must("close", engine.close());
    assert_holds(&*must("reopen", store.open(dir.path())), &map, &mark(6));
}

/// A chunk with a descending or repeated key anywhere is refused as a whole, in a new store and in one that has pairs.
pub fn unsorted_input_is_refused(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let (mut map, mut checkpoint) = (Map::new(), Checkpoint::default());
    for number in 1..=2 {
        let mut descending = chunk(number);
        descending.swap(1000, 1001);
        let mut repeated = chunk(number);
        repeated[CHUNK as usize - 1].0 = repeated[CHUNK as usize - 2].0;
        for pairs in [descending, repeated] {
            must_fail("load_sorted of unsorted pairs", ErrorKind::FixInput, engine.load_sorted(&pairs, &mark(number)));
            assert_holds(&*engine, &map, &checkpoint);
        }
        must("load_sorted after a refusal", engine.load_sorted(&chunk(number), &mark(number)));
        map.extend(chunk(number));
        checkpoint = mark(number);
        assert_holds(&*engine, &map, &checkpoint);
    }
}

/// A resumed load may load a chunk that is there already. The second time is accepted or refused as input, and changes
/// nothing either way.
pub fn loading_a_chunk_again_converges(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    must("load_sorted", engine.load_sorted(&chunk(1), &mark(1)));
    must("load_sorted", engine.load_sorted(&chunk(2), &mark(2)));
    let map: Map = chunk(1).into_iter().chain(chunk(2)).collect();
    if let Err(error) = engine.load_sorted(&chunk(2), &mark(2)) {
        assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
    }
    assert_holds(&*engine, &map, &mark(2));
    must("load_sorted", engine.load_sorted(&chunk(3), &mark(3)));
    must("close", engine.close());
    let map = map.into_iter().chain(chunk(3)).collect();
    assert_holds(&*must("reopen", store.open(dir.path())), &map, &mark(3));
}

/// Returns chunk `number` (from 1) of the ascending pairs.
fn chunk(number: u64) -> Vec<(Key, Value)> {
    (number * CHUNK..(number + 1) * CHUNK).map(|i| (ascending_key(i), value(i))).collect()
}
