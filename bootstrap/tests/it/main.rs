//! The real program on real stores: both orders, files, refusals, kills and resumes, on every engine compiled in.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "helpers say what they skip or have measured")]

mod input;
mod looking;
mod migrate;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use engines::Digest;
use rustix::process::{Pid, Signal, kill_process};
use workload::{Pairs, Rng};

mod archive;
mod changed;
mod derive;
mod export;
mod limits;
mod places;
mod repair;
#[path = "../../solana/tests/it/rewrite.rs"]
mod rewrite;
mod served;
mod soundness;
mod sources;
mod spill;
mod swarm;
mod unlisted;
mod window;
mod words;

type Map = BTreeMap<[u8; 32], [u8; 32]>;

fn engines() -> impl Iterator<Item = &'static str> {
    engines::compiled().iter().map(|engine| engine.as_str())
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bootstrap"));
    command.args(args).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    let output = command(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

#[track_caller]
fn fails(code: i32, args: &[&str]) -> String {
    let output = command(args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
    text(&output)
}

fn digest(map: &Map) -> String {
    let mut digest = Digest::default();
    map.iter().for_each(|(key, value)| digest.add(key, value));
    format!("digest={digest}")
}

fn synthetic(count: u64, seed: u64) -> Map {
    let pairs = Pairs::new(seed);
    (0..count).map(|i| (pairs.key(i), pairs.value(i, 0))).collect()
}

fn raw_file(dir: &Path, pairs: impl IntoIterator<Item = ([u8; 32], [u8; 32])>) -> PathBuf {
    let path = dir.join("pairs.bin");
    let bytes: Vec<u8> = pairs.into_iter().flat_map(|(key, value)| [key, value].concat()).collect();
    fs::write(&path, bytes).unwrap();
    path
}

fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Checks that the samples of a report contain its slowest read.
fn assert_samples(report: &serde_json::Value) {
    let reads = |value: &serde_json::Value| value["read_negative"]["max_ns"].as_u64();
    let slowest = report["samples"].as_array().unwrap().iter().filter_map(reads).max();
    let all = report["latencies"]["series"].as_array().unwrap().iter();
    let whole =
        all.filter(|series| series["op"] == "read_negative").filter_map(|series| series["max_ns"].as_u64()).max();
    assert!(slowest.is_some() && slowest == whole, "{slowest:?} {whole:?}");
}

#[test]
fn both_orders_of_both_sources_hold_every_pair() {
    for engine in engines() {
        for order in ["shuffled", "sorted"] {
            let dir = tempfile::tempdir().unwrap();
            let store = dir.path().join("store");
            let report = dir.path().join("report.json");
            let load = ["--engine", engine, "--dir", str(&store), "--order", order];
            let source = ["--pairs", "30000", "--seed", "5"];
            let table = ok(&[&load[..], &source, &["--report", str(&report), "--slot", "77"]].concat());
            assert!(table.contains("30,000") && !table.contains("Table"), "{table}");
            let end = format!("the store: dir={} engine={engine} seq=30000 slot=77\nnext: service ", store.display());
            assert!(table.contains(&end) && table.contains("from slot 77"), "{table}");
            let json: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
            assert_eq!(json["pairs"], 30000);
            assert_samples(&json);
            ok(&[&["verify", "--engine", engine, "--dir", str(&store)][..], &source].concat());
            let info = ok(&["info", "--dir", str(&store), "--digest"]);
            assert!(info.contains(&digest(&synthetic(30000, 5))), "{info}");
            assert!(info.contains("seq=30000 slot=77") && info.contains("load=complete"), "{info}");
            assert!(info.contains(" phase=ready\n"), "{info}");
            assert!(ok(&["count", "--dir", str(&store)]).contains("30000"));
            let other = fails(1, &["verify", "--engine", engine, "--dir", str(&store), "--pairs", "30000"]);
            assert!(other.contains("different=0 missing=30000 only_in_store=30000"), "{other}");

            let from_file = dir.path().join("from-file");
            let file = raw_file(dir.path(), synthetic(30000, 5));
            ok(&["--engine", engine, "--dir", str(&from_file), "--order", order, "--input", str(&file)]);
            ok(&["verify", "--engine", engine, "--dir", str(&from_file), "--input", str(&file)]);
            assert!(!dir.path().join("from-file.work").exists(), "the spill is removed after a load");
        }
    }
}

#[test]
fn mainnet_pairs_load_as_csv() {
    let csv = "tests/data/market-to-mint.csv";
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        ok(&["--engine", engine, "--dir", str(&store), "--input", csv]);
        let verified = ok(&["verify", "--engine", engine, "--dir", str(&store), "--input", csv]);
        assert!(verified.contains("equal: records=365 stored_pairs=365"), "{verified}");
    }
}

#[test]
fn stores_are_compared_pair_by_pair_whatever_their_engines() {
    let dir = tempfile::tempdir().unwrap();
    let file = raw_file(dir.path(), synthetic(9000, 3));
    let mut other = synthetic(9000, 3);
    let keys: Vec<[u8; 32]> = other.keys().copied().collect();
    for key in &keys[..3] {
        other.remove(key);
    }
    other.insert([0xff; 32], [1; 32]);
    other.insert(keys[5000], [2; 32]);
    for engine in engines() {
        let (store, same, changed) =
            (dir.path().join(engine), dir.path().join(format!("{engine}-same")), dir.path().join("changed"));
        fs::remove_dir_all(&changed).ok();
        ok(&["--engine", engine, "--dir", str(&store), "--input", str(&file), "--slot", "9"]);
        let first = engines().next().unwrap();
        ok(&["--engine", first, "--dir", str(&same), "--order", "sorted", "--pairs", "9000", "--seed", "3"]);
        let compared = ok(&["compare", "--dir", str(&store), "--with", str(&same)]);
        assert!(compared.contains("equal: pairs=9000") && compared.contains("slot=9"), "{compared}");
        let file = dir.path().join("changed.bin");
        fs::write(&file, other.iter().flat_map(|(key, value)| [*key, *value].concat()).collect::<Vec<u8>>()).unwrap();
        ok(&["--engine", first, "--dir", str(&changed), "--input", str(&file)]);
        let compared = fails(1, &["compare", "--dir", str(&store), "--with", str(&changed), "--show", "4"]);
        let counts = "not equal: pairs=9000 with_pairs=8998 only_in_dir=3 only_in_with=1 different=1";
        assert!(compared.contains(counts), "{compared}");
        assert_eq!(compared.matches("key=").count(), 4, "{compared}");
        assert!(compared.contains(&bs58::encode(keys[5000]).into_string()), "{compared}");
        let back = fails(1, &["compare", "--dir", str(&changed), "--with", str(&store)]);
        assert!(back.contains("only_in_dir=1 only_in_with=3 different=1"), "{back}");
        fails(2, &["compare", "--dir", str(&store), "--with", str(&store)]);
    }
}

#[test]
fn a_scrub_counts_the_pairs_and_finds_a_damaged_file() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        ok(&["--engine", engine, "--dir", str(&store), "--order", "sorted", "--pairs", "20000", "--slot", "5"]);
        let sound = ok(&["scrub", "--dir", str(&store)]);
        assert!(sound.contains("sound: engine=") && sound.contains("pairs=20000 seq=20000 slot=5"), "{sound}");
        if engine == "lmdb" {
            continue;
        }
        // Every stored value is found somewhere in one of the engine's files.
        let value = Pairs::new(1).value(7000, 0);
        let mut places = 0;
        for entry in fs::read_dir(store.join("data")).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            if let Some(at) = bytes.windows(32).position(|found| found == value) {
                bytes[at] ^= 1;
                fs::write(&path, bytes).unwrap();
                places += 1;
            }
        }
        assert!(places > 0, "{engine}");
        let damaged = fails(1, &["scrub", "--dir", str(&store)]);
        assert!(damaged.contains("damaged: "), "{engine}: {damaged}");
    }
}

#[test]
fn bad_input_is_refused_by_place() {
    let engine = engines().next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let load = |file: &Path, extra: &[&str]| {
        let args = [&["--engine", engine, "--dir", str(&store), "--input", str(file)][..], extra].concat();
        fails(1, &args)
    };
    let odd = dir.path().join("odd.bin");
    fs::write(&odd, [0u8; 100]).unwrap();
    assert!(load(&odd, &[]).contains("left_over_bytes=36"));
    let csv = dir.path().join("bad.csv");
    let good = bs58::encode([9u8; 32]).into_string();
    fs::write(&csv, format!("{good},{good}\nnot-base58,{good}\n")).unwrap();
    assert!(load(&csv, &[]).contains("line=2 column=key"));
    assert!(load(Path::new("/nonexistent"), &[]).contains("file=/nonexistent"));
    let twice = raw_file(dir.path(), [([1; 32], [1; 32]), ([2; 32], [2; 32]), ([1; 32], [3; 32])]);
    assert!(load(&twice, &[]).contains("records=1 and 3"));
    fs::remove_dir_all(&store).ok();
    fs::remove_dir_all(dir.path().join("store.work")).ok();
    ok(&["--engine", engine, "--dir", str(&store), "--input", str(&twice), "--on-duplicate", "last"]);
    ok(&["verify", "--engine", engine, "--dir", str(&store), "--input", str(&twice)]);
    assert!(load(&twice, &[]).contains("store"), "a directory that holds a store is refused");
    fails(2, &["--engine", engine, "--dir", str(&store)]);
}

/// Sends SIGKILL at random moments, then runs with --resume, until the load is complete.
#[test]
fn killed_loads_resume_to_the_same_map() {
    const PAIRS: &str = "300000";
    let mut rng = Rng::new(std::process::id().into());
    for engine in engines() {
        for order in ["shuffled", "sorted"] {
            let dir = tempfile::tempdir().unwrap();
            let store = dir.path().join("store");
            let mut args = vec!["--engine", engine, "--dir", str(&store), "--order", order, "--pairs", PAIRS];
            if order == "shuffled" {
                args.extend(["--batch", "1000"]);
            }
            let mut kills = 0;
            loop {
                let mut load = command(&args);
                if kills > 0 {
                    load.arg("--resume");
                }
                let mut child = load.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(30 + rng.below(250)));
                let done = kills >= 6 || child.try_wait().unwrap().is_some();
                if !done {
                    child.kill().unwrap();
                }
                let output = child.wait_with_output().unwrap();
                if done {
                    // The load may have completed just before the last kill.
                    let complete = kills > 0 && text(&output).contains("the load is complete");
                    assert!(complete || output.status.success(), "{engine} {order}: {}", text(&output));
                    break;
                }
                kills += 1;
            }
            let info = ok(&["info", "--dir", str(&store), "--digest"]);
            assert!(info.contains(&digest(&synthetic(300_000, 1))), "{engine} {order} kills={kills}: {info}");
        }
    }
}

#[test]
fn ctrl_c_stops_between_batches_and_says_how_to_go_on() {
    let engine = engines().last().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let args = [
        "--engine",
        engine,
        "--dir",
        str(&store),
        "--pairs",
        "50M",
        "--order",
        "shuffled",
        "--batch",
        "1000",
        "--skip-disk-check",
    ];
    let child = command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !store.join("bootstrap.toml").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(text(&output).contains("--resume continues"), "{}", text(&output));
    assert!(fails(1, &args).contains("--resume"), "an interrupted load is not started over by accident");
    let info = ok(&["info", "--dir", str(&store)]);
    assert!(info.contains("load=interrupted"), "{info}");
    // The phase is not stored if nothing was committed yet.
    assert!(info.contains(" phase=loading\n") || info.contains("checkpoint seq=0 "), "{info}");
    // The service finds out from the marker.
    assert!(engines::inspect(&store).unwrap().unwrap().is_loading());
}

#[test]
fn a_load_without_an_engine_says_which_was_taken_and_the_directory_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let default = engines::default_engine().as_str();
    let said = ok(&["--dir", str(&store), "--pairs", "1000", "--slot", "5"]);
    let last = said.lines().last().unwrap();
    assert!(last.starts_with(&format!("no --engine was given: engine={default} ")), "{last}");
    assert!(engines().all(|engine| last.contains(engine)), "{last}");
    // For any engine, later commands need not name it.
    for engine in engines() {
        let store = dir.path().join(engine);
        let named = ok(&["--engine", engine, "--dir", str(&store), "--pairs", "1000"]);
        assert!(!named.contains("no --engine was given"), "{named}");
        ok(&["verify", "--dir", str(&store), "--pairs", "1000"]);
        cut_short(&store);
        let resumed = ok(&["--resume", "--dir", str(&store), "--pairs", "1000"]);
        assert!(!resumed.contains("no --engine was given"), "{resumed}");
        if let Some(other) = engines().find(|other| *other != engine) {
            let refused = fails(1, &["verify", "--engine", other, "--dir", str(&store), "--pairs", "1000"]);
            assert!(refused.contains(&format!("directory holds {engine}, asked for {other}")), "{refused}");
        }
    }
}

#[test]
fn what_the_pairs_mean_is_kept_and_goes_along() {
    let dir = tempfile::tempdir().unwrap();
    let (store, moved) = (dir.path().join("store"), dir.path().join("moved"));
    let load = ["--dir", str(&store), "--pairs", "1000"];
    ok(&[&load[..], &["--extract", "token-owner", "--cluster", "mainnet"]].concat());
    ok(&["--from-store", str(&store), "--dir", str(&moved)]);
    for store in [&store, &moved] {
        let known = engines::inspect(store).unwrap().unwrap();
        assert_eq!(known.load.as_ref().map(|load| load.state), Some(engines::LoadState::Complete));
        assert_eq!(
            (known.holds.extract.as_deref(), known.holds.cluster.as_deref()),
            (Some("token-owner"), Some("mainnet"))
        );
        let info = ok(&["info", "--dir", str(store)]);
        assert!(info.contains("holds extract=token-owner cluster=mainnet"), "{info}");
    }
    cut_short(&store);
    let other = fails(1, &[&load[..], &["--resume", "--extract", "token-mint"]].concat());
    assert!(other.contains("holds extract=token-owner, asked for extract=token-mint"), "{other}");
    ok(&[&load[..], &["--resume"]].concat());
    assert!(fails(2, &[&load[..], &["--extract", "owner"]].concat()).contains("token-owner"));
}

#[test]
fn verify_takes_the_number_of_pairs_from_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let pairs =
        |keys: &[u8]| -> Vec<([u8; 32], [u8; 32])> { keys.iter().map(|key| ([*key; 32], [*key; 32])).collect() };
    let file = |name: &str, keys: &[u8]| {
        let place = dir.path().join(name);
        fs::create_dir(&place).unwrap();
        raw_file(&place, pairs(keys))
    };
    ok(&["--dir", str(&store), "--input", str(&file("loaded", &[1, 2, 3]))]);
    // Changes the store as a stream would: a key goes, two come.
    let engine = engines::open_existing(&store, None).unwrap();
    let mut txn = engine.begin().unwrap();
    txn.delete(&[3; 32]).unwrap();
    for (key, value) in pairs(&[4, 5]) {
        txn.put(&key, &value).unwrap();
    }
    txn.commit(&engine.checkpoint().unwrap(), engine_api::Durability::Synced).unwrap();
    engine.close().unwrap();
    let verify = |name: &str, keys: &[u8]| {
        let input = file(name, keys);
        let args = ["verify", "--dir", str(&store), "--input", str(&input)];
        let output = command(&args).output().unwrap();
        (output.status.code(), text(&output))
    };
    let equal = |records: u64| (Some(0), format!("equal: records={records} stored_pairs=4\n"));
    assert_eq!(verify("now", &[1, 2, 4, 5]), equal(4));
    assert_eq!(verify("twice", &[1, 2, 4, 5, 1]), equal(5));
    let (code, said) = verify("then", &[1, 2, 3]);
    assert!(code == Some(1) && said.contains("different=0 missing=1 only_in_store=2"), "{said}");
    let (code, said) = verify("fewer", &[1, 2, 4]);
    assert!(
        code == Some(1) && said.contains("expected_pairs=3 stored_pairs=4 different=0 missing=0 only_in_store=1"),
        "{said}"
    );
    // As many records as the store has pairs, but other pairs.
    let (code, said) = verify("fewer-twice", &[1, 2, 4, 4]);
    assert!(
        code == Some(1) && said.contains("expected_pairs=3 stored_pairs=4 different=0 missing=0 only_in_store=1"),
        "{said}"
    );
    assert!(!dir.path().join("store.verify").exists());
}

#[test]
fn a_number_of_pairs_beyond_any_disk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let args = ["--dir", str(&store), "--pairs", "18446744073709551615"];
    for order in ["shuffled", "sorted"] {
        let said = fails(1, &[&args[..], &["--order", order]].concat());
        assert!(said.contains("not enough disk"), "{said}");
    }
}

/// Makes a complete store look as if its load had been killed just before its end.
fn cut_short(store: &Path) {
    let load = engines::inspect(store).unwrap().unwrap().load.unwrap();
    engines::mark_load(store, engines::Load { state: engines::LoadState::Loading, ..load }, 0).unwrap();
    let state = store.join("bootstrap.toml");
    let text = fs::read_to_string(&state).unwrap();
    // A file without a checksum is taken for one of an earlier version, so its checksum line goes too.
    let left_out = |line: &&str| line.starts_with("pairs") || line.starts_with("checksum");
    let cut: String = text.lines().filter(|line| !left_out(line)).flat_map(|line| [line, "\n"]).collect();
    fs::write(&state, cut).unwrap();
}
