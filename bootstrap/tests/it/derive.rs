//! The derived store: built, asked, compared, replaced and removed, on every engine; and the refusals.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engine_api::Durability;
use solana::ChainCheckpoint;

use crate::{Map, engines, fails, ok, raw_file, str, synthetic};

/// A map of 3000 pairs with 30 values.
fn map() -> Map {
    synthetic(3000, 5).into_keys().enumerate().map(|(n, key)| (key, [(n % 30) as u8; 32])).collect()
}

/// Loads the map, and builds its derived store. Returns the store and the file that was loaded.
fn built(engine: &str, dir: &Path) -> (PathBuf, PathBuf) {
    let (store, input) = (dir.join("store"), raw_file(dir, map()));
    ok(&["--engine", engine, "--dir", str(&store), "--input", str(&input), "--slot", "77"]);
    ok(&["derive", "--dir", str(&store)]);
    (store, input)
}

/// Removes a key of the map as a stream would.
fn change(store: &Path, key: &[u8; 32]) {
    let engine = engines::open_existing(store, None).unwrap();
    let mut txn = engine.begin().unwrap();
    txn.delete(key).unwrap();
    let begun = ChainCheckpoint::read(&engine.checkpoint().unwrap()).unwrap();
    txn.commit(&ChainCheckpoint { seq: begun.seq + 1, ..begun }.write(), Durability::Synced).unwrap();
    engine.close().unwrap();
}

#[test]
fn the_keys_of_a_value_are_all_found_until_the_map_changes() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let (map, input) = (map(), raw_file(dir.path(), map()));
        ok(&["--engine", engine, "--dir", str(&store), "--input", str(&input), "--slot", "77"]);
        let said = fails(1, &["keys-of", "--dir", str(&store), &bs58::encode([7; 32]).into_string()]);
        assert!(said.contains("E-DERIVED: there is no derived store") && said.contains("derive --dir"), "{said}");
        // One that was cut short is in the way of nobody.
        fs::create_dir_all(store.join("derived/values.partial")).unwrap();
        let said = ok(&["derive", "--dir", str(&store)]);
        assert!(said.contains(&format!("derived: engine={engine}")) && said.contains("pairs=3000"), "{said}");
        assert_eq!(fs::read_dir(store.join("derived")).unwrap().count(), 1, "{engine}: nothing else is left");
        for n in [0, 7, 29] {
            let value = bs58::encode([n; 32]).into_string();
            let said = ok(&["keys-of", "--dir", str(&store), &value]);
            let found: BTreeSet<&str> = said.lines().filter(|line| !line.contains('=')).collect();
            let of: Vec<String> = map
                .iter()
                .filter(|(_, value)| **value == [n; 32])
                .map(|(key, _)| bs58::encode(key).into_string())
                .collect();
            assert_eq!(found, of.iter().map(String::as_str).collect(), "{engine}");
            assert!(said.contains("keys=100 slot=77"), "{engine}: {said}");
        }
        let value = bs58::encode([7; 32]).into_string();
        let said = ok(&["keys-of", "--dir", str(&store), &value, "--limit", "3"]);
        assert!(said.lines().count() == 4 && said.contains("keys=3 slot=77, and there are more"), "{said}");
        assert!(fails(1, &["keys-of", "--dir", str(&store), &bs58::encode([99; 32]).into_string()]).contains("keys=0"));
        assert_eq!(ok(&["derive", "--dir", str(&store), "--check"]), "equal: pairs=3000 entries=3000\n");
        // The map goes on without it.
        change(&store, map.keys().next().unwrap());
        for args in [&["derive", "--check"][..], &["keys-of", &value]] {
            let said = fails(1, &[args, &["--dir", str(&store)]].concat());
            assert!(said.contains("elsewhere than the map") && said.contains("map_seq=3001"), "{engine}: {said}");
        }
        ok(&["derive", "--dir", str(&store)]);
        assert_eq!(ok(&["derive", "--dir", str(&store), "--check"]), "equal: pairs=2999 entries=2999\n");
        ok(&["scrub", "--dir", str(&store.join("derived/values"))]);
        ok(&["derive", "--dir", str(&store), "--drop"]);
        assert!(fails(1, &["derive", "--dir", str(&store), "--drop"]).contains("there is no derived store"));
    }
}

#[test]
fn a_derived_store_is_no_map_and_its_entries_are_compared() {
    let Some(engine) = engines().next() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, input) = built(engine, dir.path());
    let derived = store.join("derived/values");
    let said = fails(1, &["derive", "--dir", str(&derived)]);
    assert!(said.contains("name the map's directory"), "{said}");
    let said = fails(1, &["--engine", engine, "--dir", str(&derived), "--input", str(&input), "--resume"]);
    assert!(said.contains("the store holds a load of another source"), "{said}");
    // An entry is lost.
    let engine = engines::open_existing(&derived, None).unwrap();
    let checkpoint = engine.checkpoint().unwrap();
    let mut first = None;
    let mut reader = engine.reader().unwrap();
    reader
        .scan(&mut |key, _| {
            first = Some(*key);
            std::ops::ControlFlow::Break(())
        })
        .unwrap();
    drop(reader);
    let mut txn = engine.begin().unwrap();
    txn.delete(&first.unwrap()).unwrap();
    txn.commit(&checkpoint, Durability::Synced).unwrap();
    engine.close().unwrap();
    let said = fails(1, &["derive", "--dir", str(&store), "--check"]);
    assert!(said.contains("not equal: pairs=3000 entries=2999"), "{said}");
    // Without its map's state it is of no use.
    let missing = fails(1, &["derive", "--dir", str(&dir.path().join("nowhere"))]);
    assert!(missing.contains("there is no store"), "{missing}");
}

/// Changes a byte of a store's largest file.
fn damage(store: &Path) {
    let files = fs::read_dir(store.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let segment = files.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[4096 + 2000] ^= 1;
    fs::write(&segment, bytes).unwrap();
}

#[test]
fn a_damaged_derived_store_is_found_and_built_again_but_never_repaired() {
    // Strata alone has checksums of pages that a test can damage, and a repair.
    let Some(engine) = engines().find(|engine| *engine == "strata") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = built(engine, dir.path());
    let said = ok(&["scrub", "--dir", str(&store)]);
    assert_eq!(said.matches("sound: engine=strata pairs=3000").count(), 2, "{said}");
    let derived = store.join("derived/values");
    damage(&derived);
    let said = fails(1, &["scrub", "--dir", str(&store)]);
    assert!(said.contains("sound: ") && said.contains("damaged: ") && said.contains("builds it again"), "{said}");
    // With the entries that are left it would answer, and leave keys out.
    let said = fails(1, &["repair", "--dir", str(&derived)]);
    assert!(said.contains("E-DERIVED: a derived store is not repaired") && said.contains("derive --dir DIR"), "{said}");
    assert!(ok(&["repair", "--dir", str(&store)]).contains("in order"));
    ok(&["derive", "--dir", str(&store)]);
    ok(&["scrub", "--dir", str(&store)]);
    // A map that has lost pairs takes its index with it.
    damage(&store);
    let said = fails(1, &["repair", "--dir", str(&store)]);
    assert!(
        said.contains("lost: ") && said.contains("removed the derived store values") && !derived.exists(),
        "{said}"
    );
}

#[test]
fn a_derived_store_is_not_taken_for_a_map_and_absurd_choices_are_refused() {
    let Some(engine) = engines().next() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = built(engine, dir.path());
    let (derived, to, key) = (store.join("derived/values"), dir.path().join("pairs.raw"), "ab".repeat(32));
    for args in [&["get", &key][..], &["export", "--to", str(&to)]] {
        let said = fails(1, &[args, &["--dir", str(&derived)]].concat());
        assert!(said.contains("name the map's directory") && !to.exists(), "{said}");
    }
    fails(2, &["derive", "--dir", str(&store), "--check", "--history"]);
    // The rest of a past whose removal was cut short is no past, and goes.
    let gone = store.join("derived/history.gone");
    fs::create_dir_all(gone.join("100")).unwrap();
    assert!(ok(&["derive", "--dir", str(&store), "--history", "--drop"]).contains("removed") && !gone.exists());
    let said = fails(1, &["derive", "--dir", str(&store), "--history", "--drop"]);
    assert!(said.contains("no past is kept"), "{said}");
    fails(2, &["keys-of", "--dir", str(&store), &key, "--limit", "0"]);
    // The file's ending names its form.
    ok(&["export", "--dir", str(&store), "--to", str(&to)]);
    assert_eq!(fs::read(&to).unwrap().len(), 3000 * 64);
}
