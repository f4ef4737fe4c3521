//! Sources of a load: pipes, files that were cut, and bytes that do not match the file's name.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use workload::{Pairs, Values};

use crate::{Map, command, digest, engines, fails, ok, raw_file, str, synthetic, text};

fn pipe(dir: &Path) -> PathBuf {
    let path = dir.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Runs the program with these bytes as its standard input.
fn piped(args: &[&str], bytes: &[u8]) -> Output {
    let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The program may refuse the input before it has read all of it.
    child.stdin.take().unwrap().write_all(bytes).ok();
    child.wait_with_output().unwrap()
}

/// A load that was stopped before it spilled anything keeps nothing. It says so, and so does a start with --resume.
#[test]
fn a_load_that_was_stopped_before_it_kept_anything_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let args = ["--dir", str(&store), "--input", "-"];
    let mut child = command(&args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The pipe stays open and empty, so that the load waits for its first pair. The directory comes after the handlers.
    let _input = child.stdin.take().unwrap();
    while !store.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    let said = text(&output);
    assert!(
        said.contains("nothing of it is kept; the same command begins again") && !said.contains("--resume"),
        "{said}"
    );
    let archive = dir.path().join("snapshot-7-11111111111111111111111111111111.tar");
    fs::write(&archive, b"not read before the options are").unwrap();
    let said = fails(2, &["--dir", str(&store), "--input", str(&archive), "--resume"]);
    assert!(said.contains("there is nothing to resume") && said.contains("leave --resume out"), "{said}");
    assert!(piped(&args, &[1; 64]).status.success(), "the same command begins again");
}

fn csv(count: u64) -> String {
    let line = |(key, value): (&[u8; 32], &[u8; 32])| {
        format!("{},{}\n", bs58::encode(key).into_string(), bs58::encode(value).into_string())
    };
    synthetic(count, 5).iter().map(line).collect()
}

#[test]
fn a_pipe_with_a_name_is_opened_once_and_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, file) = (pipe(dir.path()), raw_file(dir.path(), synthetic(60_000, 5)));
    let written = |args: &[&str]| {
        let child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Opening the pipe for writing waits for a reader, as it does in a shell.
        fs::write(&pipe, fs::read(&file).unwrap()).unwrap();
        child.wait_with_output().unwrap()
    };
    for engine in engines() {
        let store = dir.path().join(engine);
        let output = written(&["--engine", engine, "--dir", str(&store), "--input", str(&pipe)]);
        assert!(output.status.success(), "{engine}: {}", text(&output));
        let info = ok(&["info", "--dir", str(&store), "--digest"]);
        assert!(info.contains(&digest(&synthetic(60_000, 5))), "{engine}: {info}");
        let output = written(&["verify", "--dir", str(&store), "--input", str(&pipe)]);
        assert!(text(&output).contains("equal: records=60000 stored_pairs=60000"), "{engine}: {}", text(&output));
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, store) = (pipe(dir.path()), dir.path().join("store"));
    for input in [str(&pipe), "-"] {
        let args = ["--dir", str(&store), "--input", input];
        let child = command(&args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The waiting load holds the directory's lock.
        while !store.join("LOCK").exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        // Standard input stays open until the program has ended.
        let mut child = child;
        let stdin = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(143), "{input}: {}", text(&output));
        assert!(!store.exists() && !dir.path().join("store.work").exists(), "{input}");
    }
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("store"), dir.path().join("pairs.csv"));
    let whole = csv(100);
    for cut in [1, 2] {
        fs::write(&file, &whole[..whole.len() - cut]).unwrap();
        let said = fails(1, &["--dir", str(&store), "--input", str(&file)]);
        assert!(
            said.contains("has no line end") && said.contains("line=100") && said.contains("echo >> FILE"),
            "{said}"
        );
    }
    let unwritten = dir.path().join("unwritten.bin");
    fs::write(&unwritten, [fs::read(raw_file(dir.path(), synthetic(90, 5))).unwrap(), vec![0; 6400]].concat()).unwrap();
    let said = fails(1, &["--dir", str(&store), "--input", str(&unwritten)]);
    assert!(said.contains("ends in records of zeros"), "{said}");
    let packed = dir.path().join("pairs.csv.zst");
    let bytes = zstd::encode_all(csv(5000).as_bytes(), 1).unwrap();
    fs::write(&packed, &bytes[..bytes.len() - 9]).unwrap();
    let said = fails(1, &["--dir", str(&store), "--input", str(&packed)]);
    assert!(said.contains("ends too early, as if it had been cut"), "{said}");
    // A cut between two lines can only be found by the number of records.
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    fs::write(&file, lines[..90].concat()).unwrap();
    let raw = raw_file(dir.path(), synthetic(90, 5));
    for input in [&file, &raw] {
        let args = ["--dir", str(&store), "--input", str(input), "--expect-pairs", "100"];
        let said = fails(1, &args);
        assert!(said.contains("records=90 expected_pairs=100") && !store.exists(), "{said}");
    }
    let args = ["--dir", str(&store), "--input", str(&file), "--expect-pairs", "90"];
    ok(&args);
    ok(&[&["verify"], &args[..]].concat());
    let more = ["--dir", str(&store), "--input", str(&file), "--expect-pairs", "91"];
    for command in [&["verify"][..], &["load", "--resume"]] {
        let said = fails(1, &[command, &more].concat());
        assert!(said.contains("records=90 expected_pairs=91"), "{said}");
    }
}

#[test]
fn bytes_that_are_something_else_are_refused_wherever_they_come_from() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let raw = fs::read(raw_file(dir.path(), synthetic(5000, 5))).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&raw).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&raw[..], 1).unwrap();
    // Padded to a whole number of records, as one file in 64 is by chance.
    let padded = |bytes: &[u8]| [bytes, &vec![0; bytes.len().next_multiple_of(64) - bytes.len()]].concat();
    let text_of = csv(128 * 64 / 2);
    let text_of = &text_of.as_bytes()[..text_of.len() / 64 * 64];
    for (bytes, said) in [
        (padded(&gzip), "packed by gzip: unpack pairs on the way"),
        (gzip, "packed by gzip: unpack pairs on the way"),
        (padded(&zstd), "packed by zstd: unpack pairs on the way"),
        (zstd.clone(), "a snapshot archive is read with --format archive"),
        (text_of.to_vec(), "text, not raw records of 64 bytes: for two base58 columns use --format csv"),
    ] {
        let output = piped(&["--dir", str(&store), "--input", "-"], &bytes);
        assert!(output.status.code() == Some(1) && text(&output).contains(said), "{said}: {}", text(&output));
        assert!(!store.exists(), "{said}");
        let file = dir.path().join("other.txt");
        fs::write(&file, &bytes).unwrap();
        let reason = if said.starts_with("a snap") { "packed by zstd" } else { said.split(':').next().unwrap() };
        assert!(fails(1, &["--dir", str(&store), "--input", str(&file)]).contains(reason));
    }
    let output = piped(&["--dir", str(&store), "--input", "-"], &raw);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(ok(&["count", "--dir", str(&store)]), "5000\n");
}

#[test]
fn numbers_beyond_any_machine_are_refused_and_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let (store, new) = (dir.path().join("store"), dir.path().join("new"));
    for memory in ["1TiB", "100TiB", "16EiB"] {
        let said = fails(2, &["--dir", str(&store), "--pairs", "1000", "--sort-memory", memory]);
        assert!(said.contains("--sort-memory is more than this process may use"), "{said}");
    }
    let said = fails(2, &["--dir", str(&store), "--pairs", "1000", "--sort-memory", "lots"]);
    assert!(said.contains("not a size: \"lots\""), "{said}");
    assert!(!store.exists());
    ok(&["--dir", str(&store), "--pairs", "1000"]);
    let most = ["verify", "--dir", str(&store), "--pairs", "18446744073709551615"];
    let mut child = command(&most).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!text(&output).contains("panicked"), "{}", text(&output));
    let said = fails(2, &["--from-store", str(&store), "--dir", str(&new), "--from-memory", "16EiB"]);
    assert!(said.contains("the memory limit is too small") && !said.contains("panicked"), "{said}");
}

#[test]
fn values_that_repeat_are_another_source_than_values_that_do_not() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let load = ["--engine", engine, "--dir", str(&store), "--pairs", "5000"];
        let verify = ["verify", "--dir", str(&store), "--pairs", "5000"];
        let owners = ["--values", "zipfian:0.99:500"];
        ok(&[&load[..], &owners].concat());
        ok(&[&verify[..], &owners].concat());
        let pairs = Pairs::with_values(1, Values::Zipfian { exponent: 0.99, owners: 500 });
        let map: Map = (0..5000).map(|i| (pairs.key(i), pairs.value(i, 0))).collect();
        assert!(ok(&["info", "--dir", str(&store), "--digest"]).contains(&digest(&map)));
        assert!(map.values().collect::<HashSet<_>>().len() <= 500);

        let others = fails(1, &verify);
        assert!(others.contains("different=5000 missing=0 only_in_store=0"), "{others}");
        for other in [&[][..], &["--values", "zipfian:0.99:501"]] {
            let refused = fails(1, &[&load[..], &["--resume"], other].concat());
            assert!(refused.contains("of another source"), "{refused}");
        }
        ok(&[&load[..], &["--resume"], &owners].concat());
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let file = fails(2, &["--dir", str(&store), "--input", "some.csv", "--values", "unique"]);
    assert!(file.contains("cannot be used with"), "{file}");
    let wrong = fails(2, &["--dir", str(&store), "--pairs", "5", "--values", "normal"]);
    assert!(wrong.contains("zipfian:EXPONENT:OWNERS"), "{wrong}");
}

#[test]
fn keys_that_share_bytes_are_another_source_than_random_ones() {
    for (engine, shape) in
        engines().flat_map(|engine| ["alike", "some-alike", "counting", "grouped"].map(|shape| (engine, shape)))
    {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let load = ["--engine", engine, "--dir", str(&store), "--pairs", "5000", "--key-shape", shape];
        ok(&load);
        ok(&["verify", "--dir", str(&store), "--pairs", "5000", "--key-shape", shape]);
        let pairs = Pairs::new(1).with_shape(shape.parse().unwrap());
        let map: Map = (0..5000).map(|i| (pairs.key(i), pairs.value(i, 0))).collect();
        assert!(
            map.len() == 5000 && ok(&["info", "--dir", str(&store), "--digest"]).contains(&digest(&map)),
            "{shape}"
        );
        let refused = fails(1, &[&load[..6], &["--resume"]].concat());
        assert!(refused.contains("of another source"), "{refused}");
    }
}
