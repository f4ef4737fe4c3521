//! Keys and values by number, batches, and the comparison of a store with a map.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::faulty::FaultyStorage;
use engine_api::{Checkpoint, Durability, Engine, Key, Result, Value};
pub(crate) use engine_kit::Rng;
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

pub(crate) type Map = BTreeMap<Key, Value>;

pub(crate) const OPTIONS: StrataOptions =
    StrataOptions { memory_bytes: 8 << 20, disk_reserve_bytes: 0, prefix_bytes: 32 };

pub(crate) fn key(i: u64) -> Key {
    let mut rng = Rng::new(i);
    let mut key = [0; 32];
    key.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_be_bytes()));
    key
}

pub(crate) fn value(i: u64) -> Value {
    key(!i)
}

pub(crate) fn at(seq: u64) -> Checkpoint {
    if seq == 0 {
        return Checkpoint::default();
    }
    Checkpoint::new(seq, &[seq as u8; 40])
}

/// Returns batch `seq` of a sequence in which batches overwrite and delete pairs of earlier ones.
pub(crate) fn batch(seed: u64, seq: u64, changes: u64) -> Vec<(Key, Option<Value>)> {
    let mut rng = Rng::new(seed ^ seq.wrapping_mul(0x2545_f491_4f6c_dd1d));
    (0..changes).map(|_| (key(rng.below(4000)), (rng.below(5) != 0).then(|| value(rng.next())))).collect()
}

pub(crate) fn apply(map: &mut Map, changes: &[(Key, Option<Value>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(*key, *value),
            None => map.remove(key),
        };
    }
}

pub(crate) fn try_commit(
    engine: &dyn Engine,
    changes: &[(Key, Option<Value>)],
    seq: u64,
    durability: Durability,
) -> Result<()> {
    let mut txn = engine.begin()?;
    for (key, value) in changes {
        match value {
            Some(value) => txn.put(key, value)?,
            None => txn.delete(key)?,
        }
    }
    txn.commit(&at(seq), durability)
}

/// Sizes so small that an opening with them cannot keep the records of [`written`] in memtables, and writes runs.
pub(crate) const SMALLER: Sizes = Sizes { mem_records: 100, segment_records: 5000, wal_bytes: 1 << 20 };

pub(crate) fn open_on(storage: &FaultyStorage, sizes: Sizes) -> Result<StrataEngine> {
    StrataEngine::open_sized(Arc::new(storage.clone()), &OPTIONS, sizes)
}

/// Makes a store as a killed process leaves it. It has `batches` batches of `changes` changes each, and all of them are
/// only in the WAL.
pub(crate) fn written(seed: u64, batches: u64, changes: u64, durability: Durability) -> (FaultyStorage, Map) {
    let storage = FaultyStorage::default();
    let engine = open_on(&storage, Sizes { mem_records: 4000, ..SMALLER }).unwrap();
    let mut map = Map::new();
    for seq in 1..=batches {
        let changes = batch(seed, seq, changes);
        try_commit(&engine, &changes, seq, durability).unwrap();
        apply(&mut map, &changes);
    }
    (storage, map)
}

pub(crate) fn all(engine: &dyn Engine) -> Result<Map> {
    let mut map = Map::new();
    engine.reader()?.scan(&mut |key, value| {
        assert!(map.insert(*key, *value).is_none(), "a scan gives a key once");
        ControlFlow::Continue(())
    })?;
    Ok(map)
}

/// Compares the content by a scan and by gets, including absent keys.
pub(crate) fn assert_holds(engine: &dyn Engine, map: &Map, seq: u64, place: &str) {
    assert_eq!(engine.checkpoint().unwrap(), at(seq), "{place}");
    assert!(all(engine).unwrap() == *map, "content differs: {place}");
    let mut reader = engine.reader().unwrap();
    for i in 0..4200 {
        assert_eq!(reader.get(&key(i)).unwrap(), map.get(&key(i)).copied(), "key={i} {place}");
    }
}

/// Returns one of the engine's statistics.
pub(crate) fn stat(engine: &dyn Engine, name: &str) -> u64 {
    let stats = engine.stats().unwrap();
    stats.details.iter().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("no figure {name}")).1
}
