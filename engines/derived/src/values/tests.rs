//! A model of `values`: changes are applied in batches, some of them twice, and the keys of each value are read in pages.

use std::collections::{BTreeMap, BTreeSet};

use engine_api::Checkpoint;
use engines::{EngineKind, EngineOptions, OpenMode};
use proptest::prelude::*;

use super::*;
use crate::{Origin, terms};

fn key(n: u8) -> Key {
    [n; 32]
}

/// The values of keys that differ from those of the store.
type Differs = BTreeMap<Key, Option<Value>>;

/// Reads all keys of a value, in pages of `limit`.
fn keys_of(reader: &mut dyn Reader, secret: &Secret, value: &Value, limit: usize, differs: &Differs) -> Vec<Key> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let mut others = differs.iter().filter(|(_, of)| of.as_ref() == Some(value)).map(|(key, _)| *key);
        let differences = Differences { is_changed: &|key| differs.contains_key(key), keys: &mut others };
        let page = page(reader, secret, value, after.as_ref(), limit, Some(differences)).unwrap();
        assert!(page.keys.len() <= limit && (page.more.is_none() || page.keys.len() == limit));
        keys.extend(page.keys);
        after = page.more;
        if after.is_none() {
            return keys;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_keys_of_each_value_are_those_of_the_map(
        batches in prop::collection::vec(
            (prop::collection::vec((0u8..40, prop::option::of(0u8..6)), 1..30), any::<bool>()), 1..12),
        limit in 1usize..9,
        differs in prop::collection::btree_map((0u8..50).prop_map(key), prop::option::of((0u8..6).prop_map(key)), 0..30),
    ) {
        let home = tempfile::tempdir().unwrap();
        let options = EngineOptions::new(EngineKind::Strata);
        let store = engines::open_on(&home.path().join("store"), &options, OpenMode::Create, &terms(NAME)).unwrap();
        let mut position = Position::new(Checkpoint::default(), None).unwrap();
        let (mut map, mut seq) = (BTreeMap::<Key, Value>::new(), 0);
        for (changes, is_repeated) in batches {
            let changes: Vec<Change> = changes
                .into_iter()
                .map(|(n, new)| {
                    let (key, new) = (key(n), new.map(key));
                    let old = match new {
                        Some(new) => map.insert(key, new),
                        None => map.remove(&key),
                    };
                    (key, old, new)
                })
                .collect();
            (seq, position.origin, position.slot) = (seq + changes.len() as u64, Origin::Feed(3), Some(seq));
            for _ in 0..=usize::from(is_repeated) {
                apply(&*store, &mut changes.iter().copied(), seq, &position).unwrap();
            }
        }
        let mut reader = store.reader().unwrap();
        prop_assert_eq!(Position::read(&reader.checkpoint().unwrap()).unwrap(), position.clone());
        let mut entries = 0;
        let mut other = map.clone();
        for (key, value) in &differs {
            match value {
                Some(value) => other.insert(*key, *value),
                None => other.remove(key),
            };
        }
        for value in (0..7).map(key) {
            let keys = keys_of(&mut *reader, &position.secret, &value, limit, &differs);
            let expected: BTreeSet<Key> = other.iter().filter(|(_, of)| **of == value).map(|(key, _)| *key).collect();
            prop_assert_eq!(keys.len(), expected.len());
            prop_assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected);
            let keys = keys_of(&mut *reader, &position.secret, &value, limit, &Differs::new());
            entries += keys.len();
            let expected: BTreeSet<Key> = map.iter().filter(|(_, of)| **of == value).map(|(key, _)| *key).collect();
            prop_assert_eq!(keys.len(), expected.len());
            prop_assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected);
        }
        prop_assert_eq!(entries, map.len());
        let mut all = 0;
        reader.scan(&mut |_, _| {
            all += 1;
            ControlFlow::Continue(())
        }).unwrap();
        prop_assert_eq!(all, map.len(), "no entry is left of a former value");
    }
}

#[test]
fn a_map_and_a_derived_store_are_not_opened_for_each_other() {
    let home = tempfile::tempdir().unwrap();
    let options = EngineOptions::new(EngineKind::Strata);
    let (map, derived) = (home.path().join("map"), home.path().join("derived"));
    let of_map = engines::Terms {
        holds: engines::Holds { extract: Some("token-owner".to_owned()), ..Default::default() },
        ..Default::default()
    };
    engines::open_on(&map, &options, OpenMode::Create, &of_map).unwrap().close().unwrap();
    engines::open_on(&derived, &options, OpenMode::Create, &terms(NAME)).unwrap().close().unwrap();
    let refused = |dir: &std::path::Path, terms: &engines::Terms| {
        engines::open_on(dir, &options, OpenMode::Existing, terms).err().expect("it is refused").to_string()
    };
    assert!(refused(&map, &terms(NAME)).contains("the directory has a map, asked for derived store values"));
    assert!(refused(&derived, &of_map).contains("the directory has derived store values, asked for a map"));
    engines::open_on(&derived, &options, OpenMode::Existing, &terms(NAME)).unwrap().close().unwrap();
    engines::open_on(&derived, &options, OpenMode::Existing, &Default::default()).unwrap().close().unwrap();
}
