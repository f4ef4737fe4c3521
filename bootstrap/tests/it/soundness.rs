//! Stores that are damaged, cut, or have lost data: no tool calls them sound or complete, and none dies without a
//! message.

use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use crate::{command, engines, fails, ok, str, text};

/// Loads this many pairs in order into a new store.
fn loaded(dir: &Path, engine: &str, pairs: u64) -> PathBuf {
    let store = dir.join("store");
    ok(&["--engine", engine, "--dir", str(&store), "--order", "sorted", "--pairs", &pairs.to_string()]);
    store
}

fn has(engine: &str) -> bool {
    engines().any(|known| known == engine)
}

fn figure(said: &str, name: &str) -> u64 {
    said.split(name).nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Command lines of every tool that reads a store.
fn tools(store: &Path) -> Vec<Vec<String>> {
    let (dir, other) = (str(store).to_owned(), store.with_extension("other"));
    let tools: [&[&str]; 5] = [
        &["scrub", "--dir", &dir],
        &["count", "--dir", &dir],
        &["info", "--digest", "--dir", &dir],
        &["verify", "--dir", &dir, "--pairs", "20000"],
        &["--from-store", &dir, "--engine", "lmdb", "--dir", str(&other)],
    ];
    tools.iter().map(|args| args.iter().map(|arg| (*arg).to_owned()).collect()).collect()
}

/// Offset of a byte that lies in a pair's value, after a sorted load.
const IN_A_VALUE: usize = 20 * 4096 + 2000;

#[test]
fn no_tool_dies_unheard_of_a_damaged_lmdb_file() {
    if !has("lmdb") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = loaded(home.path(), "lmdb", 20_000);
    let file = store.join("data/data.mdb");
    let sound = fs::read(&file).unwrap();
    let mut faults = 0;
    // The heads of pages, which list their nodes, and one place within the values.
    for place in (2..sound.len() / 4096).step_by(37).map(|page| page * 4096).chain([IN_A_VALUE]) {
        let mut damaged = sound.clone();
        damaged[place..place + 64].iter_mut().for_each(|byte| *byte = !*byte);
        fs::write(&file, &damaged).unwrap();
        for args in tools(&store) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let output = command(&args).output().unwrap();
            let said = text(&output);
            assert_eq!(output.status.signal(), None, "{args:?} at {place}: {said}");
            if output.status.code() == Some(3) {
                faults += 1;
                assert!(said.contains("memory fault") && said.contains("data.mdb"), "{said}");
            }
            // Damage to a free page changes nothing, so scrub may succeed.
            let is_sound = args[0] == "scrub" && output.status.success();
            assert!(!is_sound || said.contains("its digest is that of the load"), "unnoticed at {place}: {said}");
            assert!(!is_sound || place != IN_A_VALUE, "unnoticed at {place}: {said}");
        }
        fs::remove_dir_all(store.with_extension("other")).ok();
    }
    assert!(faults > 0, "no place was a memory fault: this test shows nothing");
    fs::write(&file, &sound).unwrap();
    OpenOptions::new().write(true).open(&file).unwrap().set_len(sound.len() as u64 - 4096).unwrap();
    for args in tools(&store) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = fails(1, &args);
        assert!(said.contains("the LMDB file is cut or damaged: file="), "{args:?}: {said}");
    }
}

#[test]
fn a_scrub_says_what_it_could_not_check() {
    for engine in engines() {
        let home = tempfile::tempdir().unwrap();
        let store = loaded(home.path(), engine, 1000);
        let said = ok(&["scrub", "--dir", str(&store)]);
        assert!(said.starts_with("sound: engine="), "{said}");
        assert_eq!(
            said.contains("not checked: engine=lmdb keeps no checksums; its digest is"),
            engine == "lmdb",
            "{said}"
        );
        let opened = engines::open_existing(&store, None).unwrap();
        let checkpoint = opened.checkpoint().unwrap();
        // A commit that the load does not know of, and that keeps its checkpoint.
        let mut txn = opened.begin().unwrap();
        txn.put(&[3; 32], &[3; 32]).unwrap();
        txn.commit(&checkpoint, engine_api::Durability::Synced).unwrap();
        opened.close().unwrap();
        let said = fails(1, &["scrub", "--dir", str(&store)]);
        assert!(said.contains("damaged: ") && said.contains("pairs=1001 loaded_pairs=1000"), "{engine}: {said}");
        assert_eq!(said.contains("`bootstrap repair --dir"), engine == "strata", "{engine}: {said}");
    }
}

#[test]
fn a_sound_store_whose_pairs_are_in_its_log_is_in_order() {
    if !has("strata") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = home.path().join("store");
    ok(&["--engine", "strata", "--dir", str(&store), "--pairs", "1000"]);
    let said = ok(&["repair", "--dir", str(&store)]);
    assert!(said.contains("in order: nothing was changed"), "{said}");
    assert_eq!(ok(&["count", "--dir", str(&store)]), "1000\n");
}

#[test]
fn a_store_that_lost_pairs_to_a_repair_is_not_called_complete() {
    if !has("strata") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = loaded(home.path(), "strata", 20_000);
    let segment = fs::read_dir(store.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "seg")).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[10 * 4096 + 1000] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    assert!(fails(1, &["repair", "--dir", str(&store)]).contains("lost: "));
    let info = ok(&["info", "--dir", str(&store)]);
    assert!(info.contains("load=damaged: a repair has lost a part of it") && info.contains("\nlost=1\n"), "{info}");
    let said = ok(&["scrub", "--dir", str(&store)]);
    assert!(said.contains("not whole: a repair has lost a part of this store: lost=1"), "{said}");
    let said = fails(1, &["--dir", str(&store), "--order", "sorted", "--pairs", "20000", "--resume"]);
    assert!(said.contains("a repair of this store has lost a part of its load"), "{said}");
    let notes = engines::notes(&store, &engines::EngineOptions::new(engines::EngineKind::Strata)).unwrap();
    assert!(notes.iter().any(|note| note.is_warning && note.text.contains("lost=1")), "{notes:?}");
    let said = fails(1, &["repair", "--dir", str(&store)]);
    assert!(said.contains("an earlier repair has lost a part: dir=") && said.contains("lost=1"), "{said}");
    // A store that is copied from it would not know of the loss.
    let moved = home.path().join("moved");
    let said = fails(1, &["--from-store", str(&store), "--dir", str(&moved), "--engine", "strata"]);
    assert!(said.contains("has lost a part of it") && said.contains("data/LOST") && !moved.exists(), "{said}");
    fs::write(store.join("data/LOST"), "").unwrap();
    assert!(ok(&["info", "--dir", str(&store)]).contains("\nlost=1\n"));
    // Removing this one file is how the operator says that the pairs are back.
    fs::remove_file(store.join("data/LOST")).unwrap();
    assert!(!ok(&["info", "--dir", str(&store)]).contains("lost="));
}

#[test]
fn a_loaded_store_that_lacks_its_last_commit_is_not_called_complete() {
    if !has("strata") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (store, moved) = (home.path().join("store"), home.path().join("moved"));
    let load = ["--engine", "strata", "--dir", str(&store), "--order", "sorted", "--pairs", "3000", "--slot", "5"];
    ok(&load);
    let files = fs::read_dir(store.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let logs: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "wal")).collect();
    assert!(!logs.is_empty());
    logs.iter().for_each(|log| fs::remove_file(log).unwrap());
    let said = fails(1, &["--from-store", str(&store), "--dir", str(&moved), "--engine", "strata"]);
    assert!(said.contains("its last commit is gone: dir=") && !moved.exists(), "{said}");
    let said = fails(1, &["scrub", "--dir", str(&store)]);
    assert!(said.contains("damaged: ") && said.contains("its last commit is gone: dir="), "{said}");
    assert!(said.contains("--resume") && !said.contains("load the store again"), "{said}");
    let said = fails(1, &["repair", "--dir", str(&store)]);
    assert!(said.contains("its last commit is gone: dir=") && !said.contains("in order"), "{said}");
    // Its own source brings the last commit back, and another one does not.
    let other = ["--engine", "strata", "--dir", str(&store), "--order", "sorted", "--pairs", "3000", "--seed", "9"];
    let said = fails(1, &[&other[..], &["--slot", "5", "--resume"]].concat());
    assert!(said.contains("another source"), "{said}");
    let said = ok(&[&load[..], &["--resume"]].concat());
    assert!(said.contains("3,000 (sorted)"), "{said}");
    ok(&["scrub", "--dir", str(&store)]);
    assert!(ok(&["info", "--dir", str(&store)]).contains("slot=5"));
}

#[test]
fn a_complete_load_is_settled_when_it_is_asked_for_again() {
    if !has("strata") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = home.path().join("store");
    let load = ["--engine", "strata", "--dir", str(&store), "--order", "shuffled", "--pairs", "30000"];
    let is_merged = || ok(&["info", "--dir", str(&store)]).lines().any(|line| line == "base_records=30000");
    ok(&load);
    assert!(!is_merged());
    ok(&[&load[..], &["--resume", "--settle"]].concat());
    assert!(is_merged());
    ok(&["verify", "--dir", str(&store), "--pairs", "30000"]);
}

#[test]
fn a_store_that_does_not_hold_what_was_loaded_is_not_migrated_as_equal() {
    for engine in engines() {
        let home = tempfile::tempdir().unwrap();
        let (store, other, moved) = (home.path().join("store"), home.path().join("other"), home.path().join("moved"));
        for (dir, seed) in [(&store, "1"), (&other, "2")] {
            ok(&["--engine", engine, "--dir", str(dir), "--order", "sorted", "--pairs", "3000", "--seed", seed]);
        }
        // As if two directories had been exchanged: the files are sound, but belong to another load.
        fs::remove_dir_all(store.join("data")).unwrap();
        fs::rename(other.join("data"), store.join("data")).unwrap();
        let said = fails(1, &["--from-store", str(&store), "--dir", str(&moved), "--engine", engine]);
        assert!(
            said.contains("the store to read does not hold the pairs that were loaded")
                && said.contains("loaded_digest="),
            "{engine}: {said}"
        );
        let said = fails(1, &["scrub", "--dir", str(&store)]);
        assert!(
            said.contains("does not hold the pairs that were loaded") && said.contains("loaded_digest="),
            "{engine}: {said}"
        );
    }
}

#[test]
fn a_complete_load_whose_store_does_not_open_is_no_success() {
    for engine in engines() {
        let home = tempfile::tempdir().unwrap();
        let store = loaded(home.path(), engine, 20_000);
        let again = ["--dir", str(&store), "--order", "sorted", "--pairs", "20000", "--resume"];
        ok(&again);
        for entry in fs::read_dir(store.join("data")).unwrap() {
            let path = entry.unwrap().path();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
        fails(1, &again);
    }
}

#[test]
fn the_size_that_a_load_says_is_that_of_the_store_afterwards() {
    for engine in engines() {
        for order in ["sorted", "shuffled"] {
            let home = tempfile::tempdir().unwrap();
            let (store, moved, report) =
                (home.path().join("store"), home.path().join("moved"), home.path().join("report"));
            let pairs = "30000";
            let mut args = vec!["--engine", engine, "--dir", str(&store), "--order", order, "--pairs", pairs];
            args.extend(["--report", str(&report)]);
            ok(&args);
            let disk = |store: &Path| figure(&ok(&["info", "--dir", str(store)]), "disk_bytes=");
            let close = |said: u64, found: u64| said.abs_diff(found) * 10 <= found;
            let json: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
            let said = json["disk_bytes"].as_u64().unwrap();
            assert!(close(said, disk(&store)), "{engine} {order}: said={said} found={}", disk(&store));
            let said =
                figure(&ok(&["--from-store", str(&store), "--engine", engine, "--dir", str(&moved)]), "disk_bytes=");
            assert!(close(said, disk(&moved)), "{engine} {order}: said={said} found={}", disk(&moved));
        }
    }
}

#[test]
fn the_disk_check_includes_the_engines_reserve() {
    for engine in engines() {
        let home = tempfile::tempdir().unwrap();
        let store = home.path().join("store");
        let needed = |pairs: &str| {
            let args = ["--engine", engine, "--dir", str(&store), "--order", "sorted", "--pairs", pairs];
            figure(&fails(1, &args), "needed_bytes=")
        };
        // The part of the needed bytes that does not grow with the number of pairs.
        let fixed = 2 * needed("1000000000000") - needed("2000000000000");
        let kind = engines::EngineKind::ALL.into_iter().find(|kind| kind.as_str() == engine).unwrap();
        let options = engines::EngineOptions::new(kind);
        assert!(options.disk_reserve_bytes() >= 32 << 20);
        assert_eq!(fixed, options.disk_reserve_bytes(), "{engine}");
    }
}

#[test]
fn a_damaged_source_is_not_migrated_and_is_named() {
    if !has("redb") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = loaded(home.path(), "redb", 5000);
    let moved = home.path().join("moved");
    let file = store.join("data/pairs.redb");
    let mut bytes = fs::read(&file).unwrap();
    // One bit of a value, which no read notices.
    let value = crate::synthetic(5000, 1).into_values().nth(2500).unwrap();
    let at = bytes.windows(32).position(|window| window == value).unwrap();
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let said = fails(1, &["--from-store", str(&store), "--engine", "redb", "--dir", str(&moved)]);
    assert!(said.contains("the store to read is damaged: dir=") && said.contains("scrub --dir"), "{said}");
    assert!(!moved.exists());
}

#[test]
fn pairs_that_no_checkpoint_counts_are_gone_before_a_load_begins() {
    for (engine, order) in engines().flat_map(|engine| [(engine, "sorted"), (engine, "shuffled")]) {
        let home = tempfile::tempdir().unwrap();
        let store = home.path().join("store");
        // The state in which RocksDB is left when a sorted load is killed before its first checkpoint.
        let kind = ::engines::EngineKind::ALL.into_iter().find(|kind| kind.as_str() == engine).unwrap();
        let options = ::engines::EngineOptions::new(kind);
        let terms = ::engines::Terms { load: ::engines::LoadTerm::Loading("1".to_owned()), ..Default::default() };
        let open = ::engines::open_on(&store, &options, ::engines::OpenMode::Create, &terms).unwrap();
        let mut batch = open.begin().unwrap();
        for number in 0..25_000u32 {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
            batch.put(&key, &[7; 32]).unwrap();
        }
        batch.commit(&engine_api::Checkpoint::default(), engine_api::Durability::Synced).unwrap();
        open.close().unwrap();
        let dir = str(&store);
        ok(&["--engine", engine, "--dir", dir, "--pairs", "3000", "--order", order, "--resume"]);
        ok(&["verify", "--dir", dir, "--pairs", "3000"]);
    }
}
