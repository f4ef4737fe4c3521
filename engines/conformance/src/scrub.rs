//! [`engine_api::Engine::scrub`]: a sound store passes, and a store with a bit that flipped on disk does not.

use std::fs;
use std::path::Path;

use engine_api::{Durability, ErrorKind, Value};

use crate::Store;
use crate::support::{Change, Map, apply, assert_holds, commit, key, mark, must, temp_dir, value};

const PAIRS: u64 = 3000;

/// A new, a changed, a settled and a reopened store pass a scrub, and the scrub counts every pair.
pub fn a_sound_store_passes_a_scrub(store: &dyn Store) {
    let dir = temp_dir();
    let mut engine = must("create", store.open(dir.path()));
    assert_eq!(must("scrub an empty store", engine.scrub()), 0);
    let changes: Vec<Change> = (0..PAIRS).map(|i| (key(i), Some(value(i)))).collect();
    let later: Vec<Change> = (0..PAIRS / 3).map(|i| (key(i), (i % 2 == 0).then(|| value(i + 1)))).collect();
    let mut map = Map::new();
    for (seq, batch) in [(1, &changes), (2, &later)] {
        commit(&*engine, batch, seq, Durability::Synced);
        apply(&mut map, batch);
        assert_eq!(must("scrub", engine.scrub()), map.len() as u64);
    }
    must("settle", engine.settle());
    assert_eq!(must("scrub a settled store", engine.scrub()), map.len() as u64);
    assert_holds(&*engine, &map, &mark(2));
    must("close", engine.close());
    let mut engine = must("reopen", store.open(dir.path()));
    assert_eq!(must("scrub a store that was opened again", engine.scrub()), map.len() as u64);
    commit(&*engine, &[(key(PAIRS), Some(value(0)))], 3, Durability::Synced);
}

/// After one bit of a stored value was flipped in every place on disk, opening the store or scrubbing it reports the
/// damage.
pub fn a_flipped_bit_is_found(store: &dyn Store) {
    if !store.has_checksums() {
        return;
    }
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    let changes: Vec<Change> = (0..PAIRS).map(|i| (key(i), Some(value(i)))).collect();
    commit(&*engine, &changes, 1, Durability::Synced);
    // This moves the pairs out of the logs and into files that a scrub checks.
    must("settle", engine.settle());
    must("close", engine.close());
    assert!(flip(dir.path(), &value(PAIRS / 2)) > 0, "the value is nowhere on disk");
    let error = match store.open(dir.path()) {
        Err(error) => error,
        Ok(mut engine) => engine.scrub().expect_err("a flipped bit went unnoticed"),
    };
    assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}");
}

/// Flips a bit of `value` in every place in the files below `dir`, and returns the number of places.
fn flip(dir: &Path, value: &Value) -> usize {
    let mut places = 0;
    for entry in fs::read_dir(dir).expect("the store's directory can be listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            places += flip(&path, value);
            continue;
        }
        let mut bytes = fs::read(&path).expect("a file of the store can be read");
        let found: Vec<usize> =
            bytes.windows(value.len()).enumerate().filter(|(_, at)| at == value).map(|(at, _)| at).collect();
        for at in &found {
            bytes[at + 5] ^= 0x10;
        }
        if !found.is_empty() {
            fs::write(&path, bytes).expect("a file of the store can be written");
        }
        places += found.len();
    }
    places
}
