//! Commands that look at a store change nothing in its directory, describe it, and tell how it differs from a source.

use std::fs;
use std::path::Path;

use conformance::files::{contents, copy_as_killed};
use engine_api::Durability;
use solana::ChainCheckpoint;

use crate::{command, cut_short, engines, fails, ok, raw_file, str, synthetic, text};

/// Changes the store as a stream would: a key goes, one changes, two come, and the checkpoint moves on.
fn follow(store: &Path) {
    let engine = engines::open_existing(store, None).unwrap();
    let keys: Vec<[u8; 32]> = synthetic(1000, 5).into_keys().take(2).collect();
    let mut txn = engine.begin().unwrap();
    txn.delete(&keys[0]).unwrap();
    txn.put(&keys[1], &[9; 32]).unwrap();
    txn.put(&[0xfe; 32], &[1; 32]).unwrap();
    txn.put(&[0xff; 32], &[2; 32]).unwrap();
    let begun = ChainCheckpoint::read(&engine.checkpoint().unwrap()).unwrap();
    let checkpoint = ChainCheckpoint { seq: begun.seq + 4, slot: Some(78), ..begun };
    txn.commit(&checkpoint.write(), Durability::Buffered).unwrap();
    // The copy has the files of an open store, which a kill would leave.
    copy_as_killed(store, &store.with_extension("killed"));
    engine.close().unwrap();
}

#[test]
fn no_look_changes_a_store_not_even_one_whose_writer_was_killed() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let input = raw_file(dir.path(), synthetic(1000, 5));
        ok(&["--engine", engine, "--dir", str(&store), "--input", str(&input), "--slot", "77"]);
        follow(&store);
        for store in [&store, &store.with_extension("killed")] {
            let before = contents(store);
            let unchanged = |what: &str| assert_eq!(contents(store), before, "{engine}: {what}");
            let said = fails(1, &["verify", "--dir", str(store), "--input", str(&input)]);
            assert!(said.contains("not equal: "), "{engine}: {said}");
            unchanged("verify");
            ok(&["info", "--dir", str(store), "--digest"]);
            unchanged("info");
            assert_eq!(ok(&["count", "--dir", str(store)]), "1001\n");
            unchanged("count");
            let said = ok(&["scrub", "--dir", str(store)]);
            assert!(said.contains("pairs=1001 seq=1004 slot=78"), "{engine}: {said}");
            unchanged("scrub");
            let keys: Vec<[u8; 32]> = synthetic(1000, 5).into_keys().take(2).collect();
            let text = |key: &[u8; 32]| bs58::encode(key).into_string();
            let (gone, changed) = (text(&keys[0]), text(&keys[1]));
            let line = format!("{changed} {}\n", text(&[9; 32]));
            assert_eq!(ok(&["get", "--dir", str(store), &changed]), line, "{engine}");
            let said = fails(1, &["get", "--dir", str(store), &changed, &gone, &changed]);
            assert!(said.contains(&format!("{line}{gone} -\n{line}")), "{engine}: {said}");
            assert!(said.contains("absent=1 asked=3"), "{engine}: {said}");
            unchanged("get");
            let moved = store.with_extension("moved");
            ok(&["--from-store", str(store), "--engine", engine, "--dir", str(&moved)]);
            unchanged("migrate");
            ok(&["compare", "--dir", str(store), "--with", str(&moved)]);
            unchanged("compare");
            fs::remove_dir_all(&moved).unwrap();
        }
    }
}

#[test]
fn a_wrong_value_of_an_engines_setting_leaves_nothing_behind() {
    let wrong = [("lmdb", "readahead=maybe"), ("redb", "quick_repair_every=-1"), ("rocksdb", "max_open_files=abc")];
    for (engine, setting) in wrong.into_iter().filter(|(engine, _)| engines().any(|built| built == *engine)) {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let said = fails(2, &["--engine", engine, "--dir", str(&store), "--pairs", "10k", "--set", setting]);
        assert!(said.contains(setting), "{said}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{engine}");
        ok(&["--engine", engine, "--dir", str(&store), "--pairs", "10k"]);
    }
}

#[test]
fn verify_says_what_has_happened_to_a_store_that_was_followed() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let input = raw_file(dir.path(), synthetic(1000, 5));
        ok(&["--engine", engine, "--dir", str(&store), "--input", str(&input), "--slot", "77"]);
        let equal = "equal: records=1000 stored_pairs=1000\n";
        assert_eq!(ok(&["verify", "--dir", str(&store), "--input", str(&input)]), equal);
        follow(&store);
        let said = fails(1, &["verify", "--dir", str(&store), "--input", str(&input)]);
        for part in [
            "not equal: records=1000 expected_pairs=1000 stored_pairs=1001 different=1 missing=1 only_in_store=2\n",
            "has followed a stream since its load: loaded_pairs=1000 seq=1004 slot=78 blockhash=",
            ". Against this source 1 keys changed, 2 were added and 1 were removed. Only a source of that slot can be equal.",
        ] {
            assert!(said.contains(part), "{engine}: {part}: {said}");
        }
        let nothing = "missing: key=";
        assert_eq!((said.matches(nothing).count(), said.matches("only in store: key=").count()), (1, 2), "{said}");
        assert!(!dir.path().join("store.verify").exists());
    }
}

#[test]
fn a_source_that_can_be_read_only_once_is_verified_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let input = raw_file(dir.path(), synthetic(1000, 5));
    ok(&["--dir", str(&store), "--input", str(&input)]);
    let twice = [fs::read(&input).unwrap(), fs::read(&input).unwrap()].concat();
    let doubled = dir.path().join("twice.bin");
    fs::write(&doubled, &twice).unwrap();
    for (input, records) in [(&input, 1000), (&doubled, 2000)] {
        let mut verify = command(&["verify", "--dir", str(&store), "--input", "-"]);
        let output = verify.stdin(fs::File::open(input).unwrap()).output().unwrap();
        assert_eq!(text(&output), format!("equal: records={records} stored_pairs=1000\n"));
    }
}

#[test]
fn two_verifications_do_not_sort_in_the_same_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    ok(&["--dir", str(&store), "--pairs", "1000"]);
    let work = dir.path().join("store.verify");
    fs::create_dir(&work).unwrap();
    let held = fs::File::create(work.join("LOCK")).unwrap();
    held.lock().unwrap();
    let other = ["verify", "--dir", str(&store), "--pairs", "1000", "--seed", "9"];
    let said = fails(1, &other);
    assert!(said.contains("uses the work directory") && said.contains("--work-dir"), "{said}");
    let elsewhere = dir.path().join("elsewhere");
    let said = fails(1, &[&other[..], &["--work-dir", str(&elsewhere)]].concat());
    assert!(said.contains("missing=1000 only_in_store=1000") && !elsewhere.exists(), "{said}");
    drop(held);
    assert!(fails(1, &other).contains("missing=1000"));
    // The user has not named the directory, so it is removed with the spill.
    assert!(!work.exists());
}

#[test]
fn a_half_loaded_store_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    ok(&["--dir", str(&store), "--pairs", "1000"]);
    cut_short(&store);
    let before = contents(&store);
    assert!(ok(&["info", "--dir", str(&store)]).contains("load=interrupted"));
    assert_eq!(contents(&store), before);
}

#[test]
fn a_load_of_a_service_that_was_cut_short_is_described_before_there_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let info = ["info", "--dir", str(&store)];
    assert!(fails(1, &info).contains("there is no store"));
    fs::create_dir_all(store.join("spool")).unwrap();
    let said = ok(&info);
    let load =
        format!("load=interrupted before the store was created: spilled_records=none spool={}/spool: ", str(&store));
    assert!(said.contains("engine=none\nopen_in=none\n") && said.contains(&load), "{said}");
    assert!(said.contains("the next start of the service with create continues"), "{said}");
    fails(1, &[&info[..], &["--digest"]].concat());
    // Whether a load is under way cannot be seen.
    fs::create_dir(store.join("LOCK")).unwrap();
    let said = fails(1, &info);
    assert!(said.contains("cannot look at file=") && said.contains("/store/LOCK"), "{said}");
}

#[test]
fn a_key_that_is_none_is_a_wrong_argument() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let short = bs58::encode([1; 31]).into_string();
    let long = bs58::encode([1; 33]).into_string();
    for (key, why) in [
        ("0OIl", "not a pubkey in base58, nor 64 hex digits"),
        (short.as_str(), "bytes=31"),
        (long.as_str(), "bytes=33 or more"),
    ] {
        let said = fails(2, &["get", "--dir", str(&store), key]);
        assert!(said.contains(why), "{said}");
    }
    fails(2, &["get", "--dir", str(&store)]);
    let said = fails(1, &["get", "--dir", str(&store), &bs58::encode([1; 32]).into_string()]);
    assert!(said.contains("there is no store"), "{said}");
}
