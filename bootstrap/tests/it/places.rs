//! Arguments that name the same file or directory: nothing that belongs to the operator is overwritten or removed.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::{command, digest, engines, fails, ok, raw_file, str, synthetic, text};

#[test]
fn a_report_is_not_written_over_the_source_or_another_report() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let file = raw_file(dir.path(), synthetic(100, 5));
    let bytes = fs::read(&file).unwrap();
    let (link, other) = (dir.path().join("link"), dir.path().join("./pairs.bin"));
    fs::hard_link(&file, &link).unwrap();
    let symlink = dir.path().join("symlink");
    std::os::unix::fs::symlink(&file, &symlink).unwrap();
    for option in ["--report", "--hlog"] {
        for path in [&file, &link, &other, &symlink] {
            let said = fails(2, &["--dir", str(&store), "--input", str(&file), option, str(path)]);
            assert!(said.contains(&format!("{option} and --input are the same file")), "{said}");
        }
        let inside = store.join("bootstrap.toml");
        let said = fails(2, &["--dir", str(&store), "--input", str(&file), option, str(&inside)]);
        assert!(said.contains(&format!("{option} is inside dir=")), "{said}");
        let redirected = ["--dir", str(&store), "--input", "-", option, str(&file)];
        let output = command(&redirected).stdin(fs::File::open(&file).unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    }
    let report = str(dir.path()).to_owned() + "/report";
    let both = ["--dir", str(&store), "--input", str(&file), "--report", &report, "--hlog", &report];
    assert!(fails(2, &both).contains("--hlog and --report are the same file"));
    assert_eq!(fs::read(&file).unwrap(), bytes);
    assert!(!store.exists() && !Path::new(&report).exists());
    let said = fails(1, &["--dir", str(&store), "--input", str(&file), "--hlog", "/dev/full"]);
    assert!(said.contains("cannot write file=/dev/full") && !store.exists(), "{said}");
}

#[test]
fn a_work_directory_of_somebodys_own_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mine) = (dir.path().join("store"), dir.path().join("mine"));
    let file = raw_file(dir.path(), synthetic(30_000, 5));
    for name in ["run-1", "run-20240101", "bucket-7", "run-00001"] {
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join(name), "mine").unwrap();
        for command in ["load", "verify"] {
            let work = ["--work-dir", str(&mine), "--seed", "3"];
            let args = [&[command, "--dir", str(&store), "--input", str(&file)][..], &work].concat();
            if command == "verify" {
                // Verify sorts the source only if the store differs from it.
                ok(&["--dir", str(&store), "--pairs", "10"]);
            }
            let said = fails(1, &args);
            assert!(said.contains(&format!("entry={name}")), "{command}: {said}");
            assert_eq!(fs::read(mine.join(name)).unwrap(), b"mine");
            assert_eq!(fs::read_dir(&mine).unwrap().count(), 1);
        }
        fs::remove_dir_all(&store).unwrap();
        fs::remove_dir_all(&mine).unwrap();
    }
    // An empty directory is used, and stays.
    fs::create_dir(&mine).unwrap();
    ok(&["--dir", str(&store), "--input", str(&file), "--work-dir", str(&mine), "--sort-memory", "1MiB"]);
    assert_eq!(fs::read_dir(&mine).unwrap().count(), 0);
    // The next command does not report it as a removed spill.
    let said = ok(&["--dir", str(&store), "--input", str(&file), "--work-dir", str(&mine), "--resume"]);
    assert!(!said.contains("was removed") && mine.exists(), "{said}");
}

#[test]
fn a_default_work_directory_that_a_killed_load_left_empty_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, work) = (dir.path().join("store"), dir.path().join("store.work"));
    let file = raw_file(dir.path(), synthetic(30_000, 5));
    let leave: [&dyn Fn(); 2] = [&|| (), &|| fs::write(work.join("LOCK"), "").unwrap()];
    for left in leave {
        for _ in 0..2 {
            fs::create_dir(&work).unwrap();
            left();
            ok(&["--dir", str(&store), "--input", str(&file), "--sort-memory", "1MiB", "--resume"]);
            assert!(!work.exists());
        }
        fs::remove_dir_all(&store).unwrap();
    }
}

#[test]
fn a_source_in_the_work_directory_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (store, work) = (dir.path().join("store"), dir.path().join("store.work"));
    fs::create_dir(&work).unwrap();
    let file = work.join("run-0");
    fs::rename(raw_file(dir.path(), synthetic(100, 5)), &file).unwrap();
    let said = fails(2, &["--dir", str(&store), "--input", str(&file)]);
    assert!(said.contains("the input is inside the directory of the spill") && file.exists(), "{said}");
}

#[test]
fn a_store_and_its_spill_need_directories_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let (here, inside) = (dir.path().join("here"), dir.path().join("here/work"));
    fs::create_dir(&here).unwrap();
    let file = raw_file(dir.path(), synthetic(30_000, 5));
    for work in [&here, &inside] {
        for command in ["load", "verify"] {
            let said = fails(2, &[command, "--dir", str(&here), "--input", str(&file), "--work-dir", str(work)]);
            assert!(said.contains("need directories of their own"), "{said}");
        }
    }
    // The spill is next to the store's directory, although that is given as `.`.
    let args = ["--dir", ".", "--input", str(&file), "--order", "sorted", "--sort-memory", "1MiB"];
    let output = command(&args).current_dir(&here).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(ok(&["info", "--dir", str(&here), "--digest"]).contains(&digest(&synthetic(30_000, 5))));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn the_second_load_of_a_directory_is_refused_before_it_reads_and_hurts_nobody() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let (store, work) = (dir.path().join("store"), dir.path().join("store.work"));
        let pairs = synthetic(60_000, 5);
        let bytes: Vec<u8> = pairs.iter().flat_map(|(key, value)| [*key, *value].concat()).collect();
        let args = ["--engine", engine, "--dir", str(&store), "--input", "-", "--sort-memory", "1MiB"];
        let mut first =
            command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = first.stdin.take().unwrap();
        stdin.write_all(&bytes[..bytes.len() / 64 / 2 * 64]).unwrap();
        while !work.join("manifest.toml").exists() {
            assert!(first.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(10));
        }
        // The progress is shown, and without advice to stop the load.
        let info = ok(&["info", "--dir", str(&store)]);
        assert!(info.contains("open_in=load") && info.contains("load=running: pid="), "{info}");
        assert!(info.contains("spilled_records=") && info.contains("its source is being read"), "{info}");
        for other in [&["--pairs", "50"][..], &["--pairs", "50", "--resume"], &["--pairs", "50", "--work-dir", "w"]] {
            let said = fails(1, &[&["--engine", engine, "--dir", str(&store)][..], other].concat());
            assert!(said.contains("a load of this store is running") && !said.contains("stop"), "{said}");
        }
        let said = fails(1, &["verify", "--dir", str(&store), "--pairs", "50"]);
        assert!(said.contains("a load of this store is running"), "{said}");
        // Here only the spill is in use, by the load of another store.
        let beside = dir.path().join("beside");
        let file = raw_file(dir.path(), synthetic(30_000, 1));
        let args = ["--engine", engine, "--dir", str(&beside), "--input", str(&file), "--work-dir", str(&work)];
        let said = fails(1, &[&args[..], &["--sort-memory", "1MiB"]].concat());
        assert!(said.contains("another process uses the work directory") && !beside.exists(), "{said}");
        stdin.write_all(&bytes[bytes.len() / 64 / 2 * 64..]).unwrap();
        drop(stdin);
        let output = first.wait_with_output().unwrap();
        assert!(output.status.success(), "{engine}: {}", text(&output));
        assert!(ok(&["info", "--dir", str(&store), "--digest"]).contains(&digest(&pairs)), "{engine}");
    }
}
