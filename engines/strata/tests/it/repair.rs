//! Repairs: readable records stay, losses are reported, and the store can be read and written again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use engine_api::{Durability, Engine, ErrorKind, Key, Repaired};
use solkv_engine_strata::storage::{DirStorage, Storage};
use solkv_engine_strata::{Sizes, StrataEngine};

use crate::faulty::{Fault, FaultyStorage};
use crate::support::{Map, Rng, SMALLER, all, assert_holds, key, open_on, stat, written};
use crate::{SMALL, commit, seq, wait_for};

/// Memtables and segments of few records, so that a small store has runs and a base of many segments.
const SIZES: Sizes = Sizes { mem_records: 1000, segment_records: 2000, wal_bytes: 1 << 20 };

fn open(dir: &Path) -> engine_api::Result<StrataEngine> {
    StrataEngine::open_sized(Arc::new(DirStorage::open(dir).unwrap()), &SMALL, SIZES)
}

/// Makes a store with everything in it: a base that was loaded and merged, deltas above it, and batches only in the
/// WAL.
fn store(dir: &Path) -> Map {
    let engine = open(dir).unwrap();
    let mut map: Map = (0..9000).map(|n| (key(n), [1; 32])).collect();
    let sorted: Vec<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
    engine.load_sorted(&sorted, &seq(1)).unwrap();
    let mut random = Rng::new(7);
    for at in 2..12 {
        let change = |random: &mut Rng| (key(random.below(10_000)), (random.below(3) > 0).then_some([at as u8; 32]));
        let changes: BTreeMap<Key, _> = (0..400).map(|_| change(&mut random)).collect();
        commit(&engine, &changes.into_iter().collect::<Vec<_>>(), at, &mut map);
        if at == 6 {
            engine.settle().unwrap();
        }
    }
    Box::new(engine).close().unwrap();
    map
}

fn content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn segments(dir: &Path) -> Vec<String> {
    content(dir).into_keys().filter(|name| name.ends_with(".seg")).collect()
}

/// Expects that the store opens, holds this map, and can be written, merged and read further.
#[track_caller]
fn assert_sound(dir: &Path, map: &Map, at: u64) {
    let engine = open(dir).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), seq(at));
    assert!(all(&engine).unwrap() == *map, "content differs");
    let mut map = map.clone();
    commit(&engine, &[(key(1), Some([77; 32])), (key(2), None), (key(50_000), Some([7; 32]))], at + 1, &mut map);
    engine.settle().unwrap();
    engine.scrub().unwrap();
    Box::new(engine).close().unwrap();
    let engine = open(dir).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), seq(at + 1));
    assert!(all(&engine).unwrap() == map, "content differs after writing");
}

/// Expects that some line contains all of these words.
#[track_caller]
fn assert_said(lines: &[String], words: &[&str]) {
    let said = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(said, "{words:?} not in {lines:#?}");
}

#[test]
fn a_store_in_order_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let map = store(dir.path());
    let before = content(dir.path());
    let Repaired { findings, lost, .. } = StrataEngine::repair(dir.path()).unwrap();
    assert!(findings.is_empty() && lost.is_empty(), "{findings:?} {lost:?}");
    assert!(content(dir.path()) == before);
    assert_sound(dir.path(), &map, 11);
}

#[test]
fn a_store_without_its_manifest_comes_back_from_its_footers_and_its_wal() {
    let damage: [fn(&Path); 3] = [
        |manifest| fs::remove_file(manifest).unwrap(),
        |manifest| fs::write(manifest, []).unwrap(),
        |manifest| fs::write(manifest, [0x5a; 700]).unwrap(),
    ];
    for damage in damage {
        let dir = tempfile::tempdir().unwrap();
        let map = store(dir.path());
        damage(&dir.path().join("MANIFEST"));
        assert_eq!(open(dir.path()).err().unwrap().kind(), ErrorKind::DataDamaged);
        let repaired = StrataEngine::repair(dir.path()).unwrap();
        assert_said(&repaired.findings, &["manifest", "made anew of"]);
        assert_said(&repaired.lost, &["only the lost manifest"]);
        assert_eq!(repaired.checkpoint, seq(11));
        assert_sound(dir.path(), &map, 11);
    }
}

#[test]
fn a_loaded_store_without_its_manifest_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    let map: Map = (0..9000).map(|n| (key(n), [1; 32])).collect();
    let sorted: Vec<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
    for (n, chunk) in sorted.chunks(2500).enumerate() {
        engine.load_sorted(chunk, &seq(n as u64 + 1)).unwrap();
    }
    Box::new(engine).close().unwrap();
    fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    StrataEngine::repair(dir.path()).unwrap();
    assert_sound(dir.path(), &map, 4);
}

#[test]
fn a_damaged_page_costs_its_keys_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let map = store(dir.path());
    // A page of a full segment of the base. Its loss covers the keys from the page before it to the page after it.
    let full = |name: &&String| fs::metadata(dir.path().join(name)).unwrap().len() > 100_000;
    let name = segments(dir.path()).into_iter().find(|name| full(&name)).unwrap();
    let path = dir.path().join(&name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[5 * 4096 + 700] ^= 1;
    fs::write(&path, &bytes).unwrap();
    // Before the repair, gets of its keys fail with the file's name, and others succeed.
    let engine = open(dir.path()).unwrap();
    let mut reader = engine.reader().unwrap();
    let failed: Vec<Key> = map.keys().filter(|key| reader.get(key).is_err()).copied().collect();
    assert!((1..80).contains(&failed.len()), "failed={}", failed.len());
    let error = reader.get(&failed[0]).unwrap_err();
    assert!(error.to_string().contains(&name) && error.to_string().contains("offset=20480"), "{error}");
    drop(reader);
    drop(engine);
    let repaired = StrataEngine::repair(dir.path()).unwrap();
    assert_said(&repaired.findings, &["segment is damaged", &name, "offset=20480"]);
    assert_said(&repaired.lost, &[&name, "offset=20480", "keys_from=", "keys_to=", "keys are missing"]);
    assert!(!path.exists() && path.with_file_name(format!("{name}.set-aside")).exists());
    // Keys of the page that a delta holds too are not missing.
    let engine = open(dir.path()).unwrap();
    assert_eq!(stat(&engine, "lost_by_repair"), repaired.lost.len() as u64);
    let found = all(&engine).unwrap();
    drop(engine);
    let gone: Map = failed.iter().filter(|key| !found.contains_key(*key)).map(|key| (*key, map[key])).collect();
    let mut expected = map.clone();
    expected.retain(|key, _| !gone.contains_key(key));
    assert!(!gone.is_empty());
    assert_sound(dir.path(), &expected, 11);
}

/// Damages a page of the first segment.
fn damage(dir: &Path, page: usize) {
    let path = dir.join(&segments(dir)[0]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[page * 4096 + 700] ^= 1;
    fs::write(&path, &bytes).unwrap();
}

#[test]
fn what_is_lost_is_remembered_by_the_store_and_its_copies_until_an_operator_removes_the_file() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path());
    let lost = || stat(&open(dir.path()).unwrap(), "lost_by_repair");
    let file = dir.path().join("LOST");
    assert_eq!((lost(), file.exists()), (0, false));
    let mut told = Vec::new();
    for page in [2, 4] {
        damage(dir.path(), page);
        told.extend(StrataEngine::repair(dir.path()).unwrap().lost);
        assert_eq!(fs::read_to_string(&file).unwrap().lines().collect::<Vec<_>>(), told);
        assert_eq!(lost(), told.len() as u64);
        // Repairs of a sound store, and merges, do not change the record.
        StrataEngine::repair(dir.path()).unwrap();
        open(dir.path()).unwrap().settle().unwrap();
        assert_eq!(lost(), told.len() as u64);
    }
    assert_eq!(told.len(), 2, "{told:?}");
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("copy");
    open(dir.path()).unwrap().snapshot(&copy).unwrap();
    assert_eq!(stat(&open(&copy).unwrap(), "lost_by_repair"), 2);
    assert_eq!(stat(&StrataEngine::open_read_only(&copy, &SMALL).unwrap(), "lost_by_repair"), 2);
    fs::remove_file(&file).unwrap();
    assert_eq!(lost(), 0);
}

#[test]
fn a_repair_that_is_cut_has_written_what_is_lost_before_the_store_opens_again() {
    let (written, _) = written(6, 6, 250, Durability::Synced);
    let whole = written.after_crash(0);
    whole.set(Fault::None);
    drop(open_on(&whole, SMALLER).unwrap());
    // One of the runs is lost with its file.
    let name = whole.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    whole.remove(&name).unwrap();
    whole.sync_dir().unwrap();
    let repair = |storage: &FaultyStorage| StrataEngine::repair_on(&(Arc::new(storage.clone()) as Arc<dyn Storage>));
    let (first, repaired) = (whole.copy(), whole.copy());
    repaired.set(Fault::None);
    let lost = repair(&repaired).unwrap().lost.len() as u64;
    let (changes, ..) = repaired.counts();
    assert!(lost > 0 && changes > 3, "lost={lost} changes={changes}");
    for crash_at in 1..=changes {
        let storage = first.copy();
        storage.set(Fault::CrashAt(crash_at));
        drop(repair(&storage));
        let left = storage.after_crash(crash_at);
        if open_on(&left, SMALLER).is_err() {
            repair(&left).unwrap_or_else(|error| panic!("crash_at={crash_at}: {error}"));
        }
        let engine = open_on(&left, SMALLER).unwrap_or_else(|error| panic!("crash_at={crash_at}: {error}"));
        assert_eq!(stat(&engine, "lost_by_repair"), lost, "crash_at={crash_at}");
    }
}

#[test]
fn a_segment_whose_index_is_damaged_loses_nothing_and_a_missing_one_its_range() {
    let dir = tempfile::tempdir().unwrap();
    let map = store(dir.path());
    let names = segments(dir.path());
    // The footer of one segment, and the directory or a filter of another.
    for (name, from_end) in [(&names[0], 50), (&names[1], 4096 + 4090)] {
        let path = dir.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - from_end;
        bytes[at..].iter_mut().take(40).for_each(|byte| *byte ^= 0xff);
        fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(open(dir.path()).err().unwrap().kind(), ErrorKind::DataDamaged);
    let repaired = StrataEngine::repair(dir.path()).unwrap();
    assert!(repaired.lost.is_empty(), "{:?}", repaired.lost);
    assert_said(&repaired.findings, &[&names[0]]);
    assert_sound(dir.path(), &map, 11);
    let missing = segments(dir.path()).pop().unwrap();
    fs::remove_file(dir.path().join(&missing)).unwrap();
    let repaired = StrataEngine::repair(dir.path()).unwrap();
    assert_said(&repaired.lost, &[&missing, "keys are missing"]);
    let engine = open(dir.path()).unwrap();
    let found = all(&engine).unwrap();
    assert!(!found.is_empty() && found.len() < map.len());
    assert_eq!(engine.checkpoint().unwrap(), seq(12));
}

#[test]
fn a_segment_that_is_cut_anywhere_loses_what_is_said_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let map = store(dir.path());
    let whole = content(dir.path());
    let name = segments(dir.path())[0].clone();
    let bytes = whole[&name].len();
    let pages = [0, 1, 5, 6, bytes / 4096 - 4, bytes / 4096 - 1, bytes / 4096];
    let mut said_of_a_part = 0;
    for cut in pages.into_iter().flat_map(|page| [page * 4096, page * 4096 + 1, page * 4096 + 4095]) {
        let place = tempfile::tempdir().unwrap();
        whole.iter().for_each(|(name, bytes)| fs::write(place.path().join(name), bytes).unwrap());
        fs::File::options().write(true).open(place.path().join(&name)).unwrap().set_len(cut as u64).unwrap();
        let Repaired { lost, .. } = StrataEngine::repair(place.path()).unwrap();
        let found = all(&open(place.path()).unwrap()).unwrap();
        let gone: Vec<&Key> =
            map.iter().filter(|(key, value)| found.get(*key) != Some(*value)).map(|(key, _)| key).collect();
        assert_eq!(gone.is_empty(), lost.is_empty(), "cut={cut} of {bytes} gone={} {lost:?}", gone.len());
        if let Some(line) = lost.first() {
            let key = |word: &str| line.split(word).nth(1).unwrap().split([' ', ':']).next().unwrap().to_owned();
            let (from, to) = (key("keys_from="), key("keys_to="));
            let hex = |key: &Key| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            assert!(gone.iter().all(|key| (&from..=&to).contains(&&hex(key))), "cut={cut} {line}");
            said_of_a_part += u32::from(line.contains(&name));
        }
    }
    assert!(said_of_a_part > 6, "{said_of_a_part}");
}

#[test]
fn a_segment_or_manifest_of_another_store_gives_it_none_of_its_pairs() {
    let loaded = |numbers: std::ops::Range<u64>, value: u8| {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path()).unwrap();
        let mut map: Map = numbers.map(|n| (key(n), [value; 32])).collect();
        let sorted: Vec<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
        engine.load_sorted(&sorted, &seq(1)).unwrap();
        commit(&engine, &[(key(5), Some([value; 32])), (key(20_005), Some([value; 32]))], 2, &mut map);
        Box::new(engine).close().unwrap();
        (dir, map)
    };
    let ((one, map), (other, _)) = (loaded(0..9000, 1), loaded(20_000..29_000, 3));
    let whole = content(one.path());
    // Every load begins with the same file number, and a page names only that number.
    let name = segments(other.path())[0].clone();
    assert!(whole.contains_key(&name), "{name}");
    fs::copy(other.path().join(&name), one.path().join(&name)).unwrap();
    let repaired = StrataEngine::repair(one.path()).unwrap();
    assert_said(&repaired.lost, &[&name, "keys_from=", "keys are missing"]);
    let found = all(&open(one.path()).unwrap()).unwrap();
    assert!(!found.is_empty() && found.iter().all(|(key, value)| map.get(key) == Some(value)));
    // The only segment is exchanged, while the WAL proves that the manifest is the store's own.
    let (lone, _) = loaded(0..1500, 1);
    let (stranger, _) = loaded(30_000..31_500, 4);
    let segment = segments(lone.path());
    assert_eq!(segment, segments(stranger.path()));
    fs::copy(stranger.path().join(&segment[0]), lone.path().join(&segment[0])).unwrap();
    let repaired = StrataEngine::repair(lone.path()).unwrap();
    assert_said(&repaired.lost, &[&segment[0], "keys are missing"]);
    assert!(all(&open(lone.path()).unwrap()).unwrap().values().all(|value| *value != [4; 32]));
    // The manifest is exchanged: the store's own segments show which store it is.
    for name in content(one.path()).into_keys() {
        fs::remove_file(one.path().join(name)).unwrap();
    }
    whole.iter().for_each(|(name, bytes)| fs::write(one.path().join(name), bytes).unwrap());
    fs::copy(other.path().join("MANIFEST"), one.path().join("MANIFEST")).unwrap();
    let repaired = StrataEngine::repair(one.path()).unwrap();
    assert_said(&repaired.findings, &["manifest is of another store", "made anew of"]);
    assert_sound(one.path(), &map, 2);
    // A store without any segment yet is recognised too.
    let (young, mut map) = (tempfile::tempdir().unwrap(), Map::new());
    let engine = open(young.path()).unwrap();
    commit(&engine, &[(key(5), Some([5; 32]))], 1, &mut map);
    Box::new(engine).close().unwrap();
    fs::copy(other.path().join(&name), young.path().join(&name)).unwrap();
    let repaired = StrataEngine::repair(young.path()).unwrap();
    assert_said(&repaired.findings, &[&name, "another store", "set aside"]);
    assert_sound(young.path(), &map, 1);
}

#[test]
fn a_damaged_wal_is_cut_where_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    let mut map = Map::new();
    let mut wanted = Map::new();
    for at in 1..10u64 {
        let mut txn = engine.begin().unwrap();
        (0..50).for_each(|n| txn.put(&key(at * 10 + n), &[at as u8; 32]).unwrap());
        txn.commit(&seq(at), Durability::Synced).unwrap();
        map.extend((0..50).map(|n| (key(at * 10 + n), [at as u8; 32])));
        if at == 4 {
            wanted = map.clone();
        }
    }
    Box::new(engine).close().unwrap();
    let path = dir.path().join("000000000001.wal");
    let mut bytes = fs::read(&path).unwrap();
    // In the fifth of nine records of equal length.
    let record = bytes.len() / 9;
    bytes[4 * record + 200] ^= 4;
    fs::write(&path, &bytes).unwrap();
    assert!(StrataEngine::open(dir.path(), &SMALL).err().unwrap().to_string().contains("WAL is damaged"));
    let repaired = StrataEngine::repair(dir.path()).unwrap();
    assert_said(&repaired.findings, &["WAL is damaged"]);
    assert_said(&repaired.lost, &["batches from 5 on"]);
    assert_sound(dir.path(), &wanted, 4);
    assert!(dir.path().join("000000000001.wal.set-aside").exists(), "the records after the damage can be looked at");
}

#[test]
fn files_of_another_store_are_set_aside_and_never_mixed_in() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let map = store(dir.path());
    store(other.path());
    let stray = segments(other.path()).remove(0);
    let place = dir.path().join("000000000700.seg");
    fs::copy(other.path().join(&stray), &place).unwrap();
    let repaired = StrataEngine::repair(dir.path()).unwrap();
    assert_said(&repaired.findings, &["another store", "000000000700.seg"]);
    assert!(!place.exists() && dir.path().join("000000000700.seg.set-aside").exists());
    assert_sound(dir.path(), &map, 11);
    // Without a manifest nobody knows which store the directory belongs to.
    fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    let both = segments(other.path()).into_iter().find(|name| !dir.path().join(name).exists());
    let both = both.expect("a number that this store has not got");
    fs::copy(other.path().join(&both), dir.path().join(&both)).unwrap();
    let before = content(dir.path());
    let error = StrataEngine::repair(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixInput);
    assert!(error.to_string().contains("several stores"), "{error}");
    assert!(content(dir.path()) == before);
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(StrataEngine::repair(empty.path()).unwrap_err().kind(), ErrorKind::FixInput);
}

#[test]
fn a_delta_beside_what_was_loaded_after_it_is_kept_without_a_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    let mut map = Map::new();
    let low = |n: u64, at: u64, map: &mut Map| {
        let mut key = key(n);
        key[0] = 1;
        commit(&engine, &[(key, Some([at as u8; 32]))], at, map);
    };
    (1..5).for_each(|at| low(at, at, &mut map));
    // The commits become a delta run before the load, and the load a base without any batch.
    let loaded: Map = (0..3000).map(|n| (key(n), [9; 32])).filter(|(key, _)| key[0] > 1).collect();
    engine.load_sorted(&loaded.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>(), &seq(5)).unwrap();
    map.extend(loaded);
    Box::new(engine).close().unwrap();
    fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    StrataEngine::repair(dir.path()).unwrap();
    assert_sound(dir.path(), &map, 5);
}

#[test]
fn what_an_opening_that_was_cut_short_has_written_does_not_pass_for_whole_batches() {
    let (written, map) = written(4, 6, 250, Durability::Synced);
    let whole = written.after_crash(0);
    whole.set(Fault::None);
    drop(open_on(&whole, SMALLER).unwrap());
    let (changes, ..) = whole.counts();
    for crash_at in 1..=changes {
        let storage = written.after_crash(0);
        storage.set(Fault::CrashAt(crash_at));
        drop(open_on(&storage, SMALLER));
        // Everything it has written is there, and the manifest is lost.
        storage.set(Fault::None);
        storage.remove("MANIFEST").unwrap();
        let as_storage: Arc<dyn Storage> = Arc::new(storage.clone());
        StrataEngine::repair_on(&as_storage).unwrap_or_else(|error| panic!("crash_at={crash_at}: {error}"));
        let engine = open_on(&storage, SMALLER).unwrap_or_else(|error| panic!("crash_at={crash_at}: {error}"));
        assert_holds(&engine, &map, 6, &format!("crash_at={crash_at}"));
    }
}

#[test]
fn a_damaged_wal_beside_what_a_crash_has_left_is_repaired_so_that_the_store_opens() {
    let (written, map) = written(4, 6, 250, Durability::Synced);
    let whole = written.after_crash(0);
    whole.set(Fault::None);
    drop(open_on(&whole, SMALLER).unwrap());
    let (changes, ..) = whole.counts();
    let mut kept = 0;
    for crash_at in 1..=changes {
        let left = written.after_crash(0);
        left.set(Fault::CrashAt(crash_at));
        drop(open_on(&left, SMALLER));
        left.set(Fault::None);
        for name in left.names().into_iter().filter(|name| name.ends_with(".wal")) {
            let storage = left.copy();
            let file = storage.open_write(&name).unwrap();
            let (mut byte, at) = ([0], file.len_bytes().unwrap() / 3);
            if file.read_at(&mut byte, at).is_err() {
                // No record was written to the file yet.
                continue;
            }
            file.write_at(&[byte[0] ^ 1], at).unwrap();
            let as_storage: Arc<dyn Storage> = Arc::new(storage.clone());
            let place = format!("crash_at={crash_at} damaged={name}");
            let repaired = StrataEngine::repair_on(&as_storage).unwrap_or_else(|error| panic!("{place}: {error}"));
            let engine = open_on(&storage, SMALLER).unwrap_or_else(|error| panic!("{place}: {error} {repaired:?}"));
            let found = all(&engine).unwrap();
            assert!(found == map || !repaired.lost.is_empty(), "{place} {repaired:?}");
            kept += u32::from(found == map && !repaired.findings.is_empty());
        }
    }
    assert!(kept > 0, "a run that was written of the WAL holds what the damaged file lacks");
}

#[test]
fn without_the_manifest_a_wal_that_begins_damaged_is_named_and_the_others_are_said_to_be_unchecked() {
    let dir = tempfile::tempdir().unwrap();
    let (older, newer) = (dir.path().join("000000000001.wal"), dir.path().join("000000000002.wal"));
    // The first file of a store that was opened twice holds the first batch, the second file the other one.
    for at in 1..3u64 {
        let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
        commit(&engine, &[(key(at), Some([at as u8; 32]))], at, &mut Map::new());
        Box::new(engine).close().unwrap();
    }
    assert!(older.exists() && newer.exists());
    fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    let mut bytes = fs::read(&newer).unwrap();
    bytes[60] ^= 1;
    fs::write(&newer, bytes).unwrap();
    let repaired = StrataEngine::repair(dir.path()).unwrap();
    assert_said(&repaired.lost, &["000000000002.wal", "first record is not whole"]);
    assert_said(&repaired.findings, &["000000000001.wal", "cannot be checked"]);
    assert!(!repaired.lost.iter().any(|line| line.contains("000000000001.wal")), "{:?}", repaired.lost);
}

#[test]
fn a_delta_that_has_lost_all_of_its_segments_is_no_run_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = Map::new();
    let engine = open(dir.path()).unwrap();
    for at in 1..=5 {
        let changes: Vec<_> = (at * 900..(at + 1) * 900).map(|n| (key(n), Some([1; 32]))).collect();
        commit(&engine, &changes, at, &mut map);
        wait_for("the flush", || stat(&engine, "flushes") == at - 1);
        if at == 1 {
            // The base.
            engine.settle().unwrap();
            wait_for("the merge", || stat(&engine, "base_records") == 900);
        }
    }
    Box::new(engine).close().unwrap();
    let segments = segments(dir.path());
    assert!(segments.len() >= 4, "{segments:?}");
    for lost in [&segments[1], &segments[3]] {
        fs::remove_file(dir.path().join(lost)).unwrap();
    }
    let told = StrataEngine::repair(dir.path()).unwrap();
    assert_eq!(told.lost.len(), 2, "{:?}", told.lost);
    let engine = open(dir.path()).unwrap();
    // The runs that are left, and that of the WAL.
    assert_eq!(stat(&engine, "delta_runs"), segments.len() as u64 - 1 - 2 + 1);
    engine.settle().unwrap();
    assert_eq!(stat(&engine, "base_records"), map.len() as u64 - 2 * 900);
}
