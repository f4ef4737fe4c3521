//! Messages about a load that is complete, interrupted, or known only from its marker: no option is ignored in silence.

use std::fs;

use crate::{cut_short, engines, fails, ok, raw_file, str, synthetic};

#[test]
fn options_that_a_complete_load_does_nothing_for_are_named() {
    let engine = engines().last().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (store, report) = (dir.path().join("store"), dir.path().join("report.json"));
    let load = ["--engine", engine, "--dir", str(&store), "--pairs", "100", "--order", "sorted", "--resume"];
    ok(&load);
    assert!(!ok(&load).contains("options without effect"));
    for (more, named) in [
        (&["--report", str(&report)][..], "without effect, because the load is complete: --report"),
        (&["--settle"], "settled: dir="),
        (&["--extract", "token-mint"], "--extract token-mint (the store does not record it"),
        (&["--cluster", "devnet"], "--cluster devnet"),
    ] {
        let said = ok(&[&load[..], more].concat());
        assert!(said.contains("there is nothing to resume") && said.contains(named), "{said}");
    }
    let other = ["--engine", engine, "--dir", str(&store), "--pairs", "100", "--order", "shuffled", "--resume"];
    assert!(ok(&other).contains("--order shuffled (it was loaded sorted)"));
    assert!(!report.exists());
}

#[test]
fn a_load_whose_own_file_is_gone_is_told_from_others_by_its_number() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let (store, state) = (dir.path().join("store"), dir.path().join("store/bootstrap.toml"));
        let file = raw_file(dir.path(), synthetic(300, 1));
        let other = dir.path().join("other.bin");
        fs::write(&other, &fs::read(&file).unwrap()[64..]).unwrap();
        for order in ["sorted", "shuffled"] {
            let load = ["--engine", engine, "--dir", str(&store), "--resume"];
            ok(&[&load[..], &["--order", order, "--input", str(&file)]].concat());
            let text = fs::read_to_string(&state).unwrap();
            // Damaged in one way that still parses as a state file, and in two that do not.
            for (written, damaged) in [("pairs = 300", "pairs = 301"), ("records", "rec@rds"), ("checksum", "checkzum")]
            {
                fs::write(&state, text.replacen(written, damaged, 1)).unwrap();
                let said = fails(1, &[&load[..], &["--input", str(&file)]].concat());
                assert!(said.contains("file is damaged: file=") && said.contains("or remove it"), "{said}");
            }
            // A command that only looks at the store reports the damage, and works anyway.
            let info = ok(&["info", "--dir", str(&store)]);
            assert!(info.contains("load=complete") && info.contains("file is damaged"), "{info}");
            ok(&["verify", "--dir", str(&store), "--input", str(&file)]);
            fs::remove_file(&state).unwrap();
            let said = fails(1, &[&load[..], &["--input", str(&other), "--slot", "9"]].concat());
            assert!(said.contains("the store holds a load of another source"), "{said}");
            let said = ok(&[&load[..], &["--input", str(&file)]].concat());
            assert!(said.contains("the load's own file is gone: the source is the same"), "{said}");
            fs::remove_dir_all(&store).unwrap();
        }
        ok(&["--engine", engine, "--dir", str(&store), "--pairs", "300", "--order", "shuffled"]);
        fs::remove_file(&state).unwrap();
        let load = ["--engine", engine, "--dir", str(&store), "--resume"];
        ok(&[&load[..], &["--pairs", "300"]].concat());
        fails(1, &[&load[..], &["--pairs", "301"]].concat());
    }
}

#[test]
fn a_complete_load_that_cannot_be_written_to_ends_well() {
    let engine = engines().last().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let file = raw_file(dir.path(), synthetic(300, 1));
    let load = ["--engine", engine, "--dir", str(&store), "--input", str(&file), "--resume"];
    ok(&load);
    // The same bytes with a new time, where the state file cannot be replaced, as on a read-only file system.
    fs::write(&file, fs::read(&file).unwrap()).unwrap();
    fs::create_dir(store.join("bootstrap.tmp")).unwrap();
    let said = ok(&load);
    assert!(said.contains("there is nothing to resume") && said.contains("cannot be remembered"), "{said}");
}

#[test]
fn a_part_of_a_load_is_said_wherever_it_is_looked_at() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let (store, copy) = (dir.path().join("store"), dir.path().join("copy"));
        let file = raw_file(dir.path(), synthetic(900, 1));
        let load = ["--engine", engine, "--dir", str(&store), "--input", str(&file), "--order", "shuffled"];
        ok(&load);
        cut_short(&store);
        let said = "the load of this store was interrupted";
        let verified = ok(&["verify", "--dir", str(&store), "--input", str(&file)]);
        assert!(verified.contains(said) && verified.contains("equal"), "{verified}");
        assert!(ok(&["scrub", "--dir", str(&store)]).contains(said));
        assert!(ok(&["info", "--dir", str(&store)]).contains(" phase=loading\n"));
        // A copy contains the store but not the state file.
        engines::open_existing(&store, None).unwrap().snapshot(&copy).unwrap();
        let compared = ok(&["compare", "--dir", str(&store), "--with", str(&copy)]);
        assert_eq!(compared.matches(said).count(), 2, "{compared}");
        let resumed = ["--engine", engine, "--dir", str(&copy), "--input", str(&file), "--resume"];
        let said = fails(1, &[&resumed[..], &["--order", "sorted"]].concat());
        assert!(said.contains("begun in another order") && said.contains("add --order shuffled"), "{said}");
        ok(&[&resumed[..], &["--order", "shuffled"]].concat());
        assert!(ok(&["info", "--dir", str(&copy)]).contains("load=complete"));
    }
}
