//! Arguments and files with usual mistakes: the error message must name the way out.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use crate::{command, engines, fails, ok, raw_file, str, synthetic, text};

#[test]
fn a_source_without_pairs_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for name in ["empty.csv", "empty.bin"] {
        let file = dir.path().join(name);
        fs::write(&file, "").unwrap();
        let said = fails(1, &["--dir", str(&store), "--input", str(&file)]);
        assert!(said.contains(&format!("there are no pairs: file={}", file.display())), "{said}");
    }
    assert!(fails(2, &["--dir", str(&store), "--pairs", "0"]).contains("pairs=0"));
    let said = fails(1, &["--dir", str(&store), "--input", str(dir.path())]);
    assert!(said.contains("the input is a directory"), "{said}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn packed_files_and_marked_ones_load_as_what_is_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = raw_file(dir.path(), synthetic(2000, 5));
    let packed = dir.path().join("pairs.bin.zst");
    fs::write(&packed, zstd::encode_all(&fs::read(&file).unwrap()[..], 1).unwrap()).unwrap();
    let csv: String = synthetic(2000, 5)
        .iter()
        .map(|(key, value)| format!("{},{}\n", bs58::encode(key).into_string(), bs58::encode(value).into_string()))
        .collect();
    let marked = dir.path().join("pairs.csv");
    fs::write(&marked, format!("\u{feff}{csv}\n")).unwrap();
    let gzip = dir.path().join("pairs.csv.gz");
    let mut packer = flate2::write::GzEncoder::new(fs::File::create(&gzip).unwrap(), flate2::Compression::fast());
    packer.write_all(csv.as_bytes()).unwrap();
    packer.finish().unwrap();
    for (number, input) in [&packed, &marked, &gzip].into_iter().enumerate() {
        let store = dir.path().join(number.to_string());
        ok(&["--dir", str(&store), "--input", str(input)]);
        let said = ok(&["verify", "--dir", str(&store), "--input", str(&file)]);
        assert_eq!(said, "equal: records=2000 stored_pairs=2000\n", "{}", input.display());
        ok(&["verify", "--dir", str(&store), "--input", str(input)]);
    }
}

#[test]
fn numbers_and_sizes_are_read_as_people_write_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    ok(&["--dir", str(&store), "--pairs", "2k", "--memory", "64MiB"]);
    assert_eq!(ok(&["count", "--dir", str(&store)]), "2000\n");
    ok(&["verify", "--dir", str(&store), "--pairs", "2_000"]);
    let other = dir.path().join("other");
    let said = |args: &[&str]| fails(2, &[&["--dir", str(&other)], args].concat());
    assert!(said(&["--pairs", "-5"]).contains("not a number: \"-5\": such as 5000000, 5_000_000 or 5M"));
    let memory = said(&["--pairs", "5", "--memory", "lots"]);
    assert!(memory.contains("not a size: \"lots\": such as 512MB or 4GiB"), "{memory}");
    let none = said(&[]);
    assert!(none.contains("--pairs <N>|--input <FILE>"), "{none}");
    assert!(said(&["--pairs", "5", "--input", "x"]).contains("cannot be used with"));
    assert!(!other.exists());
}

#[test]
fn a_report_that_cannot_be_written_is_found_before_the_load() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for option in ["--report", "--hlog"] {
        let missing = dir.path().join("missing/report");
        let said = fails(1, &["--dir", str(&store), "--pairs", "100", option, str(&missing)]);
        assert!(said.contains("cannot write file=") && !store.exists(), "{said}");
    }
    // A refused load leaves an earlier report as it is, and creates none.
    let report = dir.path().join("report.json");
    fails(2, &["--dir", str(&store), "--pairs", "0", "--report", str(&report)]);
    assert!(!report.exists());
    fs::write(&report, "earlier").unwrap();
    fails(2, &["--dir", str(&store), "--pairs", "0", "--report", str(&report)]);
    assert_eq!(fs::read_to_string(&report).unwrap(), "earlier");
}

#[test]
fn a_reason_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for command in ["info", "count", "scrub"] {
        let said = fails(1, &[command, "--dir", str(&file)]);
        assert!(said.contains("this is a file, not a directory: dir="), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let engine = engines().next().unwrap();
    let store = dir.path().join("store");
    ok(&["--engine", engine, "--dir", str(&store), "--pairs", "10"]);
    // A directory in place of the marker cannot be read as a file, not even by root.
    fs::remove_file(store.join("SOLKV")).unwrap();
    fs::create_dir(store.join("SOLKV")).unwrap();
    let said = fails(1, &["count", "--dir", str(&store)]);
    assert_eq!(said.matches("not a regular file").count(), 1, "{said}");
}

/// As in `bootstrap ... | head -1`, where the reader closes its end after the first line.
#[test]
fn a_reader_that_goes_does_not_end_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let file = raw_file(dir.path(), synthetic(1000, 5));
    let mut load = command(&["--dir", str(&store), "--input", str(&file)]);
    let mut child = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(!dir.path().join("store.work").exists());
    // Any other failure to write to standard output is reported.
    let mut info = command(&["info", "--dir", str(&store)]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = info.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("cannot write to standard output"), "{}", text(&output));
}

#[test]
fn options_that_no_engine_takes_end_with_2_and_make_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let to = ["--dir", str(&store)];
    let load = ["--pairs", "100"];
    let from = ["migrate", "--from-store", "elsewhere"];
    for wrong in [
        &["--engine", "redb", "--bloom", "10"][..],
        &["--engine", "redb", "--profile", "tuned"],
        &["--engine", "redb", "--lmdb-map-size", "1GiB"],
        &["--engine", "rocksdb", "--bloom", "99"],
        &["--memory", "1"],
        &["--engine", "nothing"],
    ] {
        fails(2, &[wrong, &to, &load].concat());
        fails(2, &[&from[..], &to, wrong].concat());
        assert!(!store.exists(), "{wrong:?}");
    }
    fails(2, &["compare", "--dir", str(dir.path()), "--with", str(dir.path())]);
}

#[test]
fn a_sorted_load_refuses_options_of_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for engine in engines() {
        let load = ["--engine", engine, "--dir", str(&store), "--pairs", "100", "--order"];
        for unused in [&["--batch", "7"][..], &["--synced"]] {
            let said = fails(2, &[&load[..], &["sorted"], unused].concat());
            assert!(said.contains(unused[0]) && said.contains("is for order=shuffled"), "{said}");
        }
        assert!(!store.exists());
        ok(&[&load[..], &["shuffled", "--batch", "7", "--synced"]].concat());
        fs::remove_dir_all(&store).unwrap();
    }
}
