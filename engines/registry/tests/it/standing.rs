//! A store whose files are gone, or older than its marker, is refused by every way of opening it and left unchanged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;

use ::conformance::files::{self, contents, copy_as_killed};
use engine_api::{Checkpoint, Durability, Engine, Error, ErrorKind};
use solkv_engine_registry::{
    self as engines, EngineKind, EngineOptions, Load, LoadState, LoadTerm, OpenMode, Terms, open_read_only,
};

const MEMORY: bytesize::ByteSize = bytesize::ByteSize::mib(64);
const PAIRS: u8 = 200;

fn options(kind: EngineKind) -> EngineOptions {
    EngineOptions { memory: Some(MEMORY), ..EngineOptions::new(kind) }
}

/// Commits `pairs` pairs with a seq of the same number.
fn fill(engine: &dyn Engine, pairs: u8) {
    let mut txn = engine.begin().unwrap();
    for key in 0..pairs {
        txn.put(&[key; 32], &[key; 32]).unwrap();
    }
    let checkpoint = Checkpoint { seq: u64::from(pairs), ..Checkpoint::default() };
    txn.commit(&checkpoint, Durability::Synced).unwrap();
}

fn closed(dir: &Path, kind: EngineKind) {
    let engine = engines::open(dir, &options(kind), OpenMode::Create).unwrap();
    fill(&*engine, PAIRS);
    engine.close().unwrap();
}

/// Makes a store that was loaded, and killed before it was closed.
fn loaded_and_killed(dir: &Path, kind: EngineKind) {
    let home = tempfile::tempdir().unwrap();
    let made = home.path().join("store");
    let terms = Terms { load: LoadTerm::Loading("1".to_owned()), ..Terms::default() };
    let engine = engines::open_on(&made, &options(kind), OpenMode::Create, &terms).unwrap();
    fill(&*engine, PAIRS);
    let load = Load::new(LoadState::Complete, "1");
    engines::mark_load(&made, load, u64::from(PAIRS)).unwrap();
    copy_as_killed(&made, dir);
}

/// Tries every way of opening and returns the refusals. None of them may create or remove a file.
#[track_caller]
fn refused(dir: &Path, kind: EngineKind) -> Vec<Error> {
    let (before, options, terms) = (contents(dir), options(kind), Terms::default());
    let mut errors = vec![open_read_only(dir, Some(MEMORY)).err().expect("refused for reading alone")];
    for mode in [OpenMode::Existing, OpenMode::CreateOrOpen, OpenMode::Create] {
        errors.push(engines::check(dir, &options, mode, &terms).expect_err("refused when checked"));
        errors.push(engines::open(dir, &options, mode).err().expect("refused when opened"));
    }
    assert_eq!(contents(dir), before, "{kind}: nothing is made or removed");
    errors
}

/// Removes the files in `data` for whose names `gone` is true, and returns their number.
fn remove(dir: &Path, gone: impl Fn(&str) -> bool) -> usize {
    let paths = fs::read_dir(dir.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = paths.filter(|path| gone(path.file_name().unwrap().to_str().unwrap())).collect();
    for path in &found {
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    found.len()
}

#[test]
fn a_store_whose_files_are_gone_is_refused_and_nothing_is_made() {
    type Make = fn(&Path, EngineKind);
    let makes: [Make; 2] = [closed, loaded_and_killed];
    for (&kind, make) in engines::compiled().iter().flat_map(|kind| makes.map(|make| (kind, make))) {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        make(&dir, kind);
        assert!(remove(&dir, |_| true) > 0);
        let unmounted = refused(&dir, kind);
        fs::remove_dir(dir.join("data")).unwrap();
        for error in unmounted.into_iter().chain(refused(&dir, kind)) {
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::FixInput, "{said}");
            for part in ["files are gone", "mount", "restore a snapshot", dir.to_str().unwrap()] {
                assert!(said.contains(part), "{kind}: {said}");
            }
        }
    }
}

#[test]
fn the_one_file_of_a_b_tree_is_missed_where_others_are_left() {
    for &kind in engines::compiled() {
        let main = kind.descriptor().main_file;
        if kind.descriptor().log_ending.is_some() {
            continue;
        }
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        closed(&dir, kind);
        fs::write(dir.join("data").join(main), b"").unwrap();
        refused(&dir, kind);
        assert_eq!(remove(&dir, |name| name == main), 1);
        assert!(refused(&dir, kind)[0].to_string().contains(main));
    }
}

#[test]
fn no_batch_begins_in_a_store_whose_files_are_no_longer_in_their_place() {
    for &kind in engines::compiled() {
        let home = tempfile::tempdir().unwrap();
        let (dir, other) = (home.path().join("store"), home.path().join("other"));
        closed(&dir, kind);
        closed(&other, kind);
        let engine = engines::open(&dir, &options(kind), OpenMode::Existing).unwrap();
        engine.settle().unwrap();
        let (data, away) = (dir.join("data"), home.path().join("away"));
        let descriptor = kind.descriptor();
        let main = data.join(descriptor.main_file);
        let has_one_file = descriptor.log_ending.is_none();
        let named = if has_one_file { &main } else { &data };
        let refused = |reason: &str| {
            let error = engine.begin().err().expect("a batch has begun");
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::FixInput, "{said}");
            assert!(said.contains(named.to_str().unwrap()) && said.contains(reason), "{kind}: {said}");
        };
        fs::rename(&data, &away).unwrap();
        refused("it is gone");
        fs::rename(other.join("data"), &data).unwrap();
        refused("another one is in its place");
        fs::rename(&data, other.join("data")).unwrap();
        fs::rename(&away, &data).unwrap();
        drop(engine.begin().unwrap());

        if has_one_file {
            fs::rename(&main, &away).unwrap();
            refused("it is gone");
            fs::copy(&away, &main).unwrap();
            refused("another one is in its place");
            fs::rename(&away, &main).unwrap();
            drop(engine.begin().unwrap());
        }
        engine.close().unwrap();
    }
}

#[test]
fn a_store_without_its_newest_batches_is_refused_and_nothing_is_made() {
    for &kind in engines::compiled() {
        let Some(ending) = kind.descriptor().log_ending else { continue };
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        loaded_and_killed(&dir, kind);
        assert!(remove(&dir, |name| name.ends_with(ending)) > 0);
        let options = options(kind);
        for error in [
            engines::check(&dir, &options, OpenMode::Existing, &Terms::default()).unwrap_err(),
            open_read_only(&dir, Some(MEMORY)).err().unwrap(),
            engines::open(&dir, &options, OpenMode::Existing).err().unwrap(),
        ] {
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::DataDamaged, "{said}");
            assert!(said.contains("seq=0 marker_seq=200") && said.contains("restore a snapshot"), "{said}");
        }
        assert_eq!(remove(&dir, |name| name.ends_with(ending)), 0, "no new one was begun");
    }
}

#[test]
fn older_files_than_the_marker_are_refused() {
    for &kind in engines::compiled() {
        let home = tempfile::tempdir().unwrap();
        let (dir, older) = (home.path().join("store"), home.path().join("older"));
        let engine = engines::open(&dir, &options(kind), OpenMode::Create).unwrap();
        fill(&*engine, 10);
        engine.close().unwrap();
        files::copy(&dir.join("data"), &older).unwrap();
        let engine = engines::open(&dir, &options(kind), OpenMode::Existing).unwrap();
        fill(&*engine, 20);
        engine.close().unwrap();
        fs::remove_dir_all(dir.join("data")).unwrap();
        files::copy(&older, &dir.join("data")).unwrap();
        for error in [
            open_read_only(&dir, Some(MEMORY)).err().unwrap(),
            engines::open(&dir, &options(kind), OpenMode::Existing).err().unwrap(),
        ] {
            let said = error.to_string();
            let both = said.contains("seq=10 marker_seq=20");
            assert!(both && error.kind() == ErrorKind::DataDamaged, "{kind}: {said}");
        }
    }
}

#[test]
fn a_marker_that_names_another_engine_than_the_files_are_of_is_refused() {
    for &kind in engines::compiled() {
        for &other in engines::compiled().iter().filter(|other| **other != kind) {
            let home = tempfile::tempdir().unwrap();
            let dir = home.path().join("store");
            closed(&dir, kind);
            let marker = crate::marker_text(&dir);
            let edited = marker.replace(&format!("engine = \"{kind}\""), &format!("engine = \"{other}\""));
            assert_ne!(edited, marker);
            fs::write(dir.join("SOLKV"), edited).unwrap();
            for error in refused(&dir, other) {
                let said = error.to_string();
                assert!(
                    said.contains(&format!("engine={other}")) && said.contains(&format!("engine={kind}")),
                    "{said}"
                );
            }
        }
    }
}

#[test]
fn a_copy_without_newest_batches_and_an_empty_store_are_opened() {
    for &kind in engines::compiled() {
        let home = tempfile::tempdir().unwrap();
        let (dir, copy, empty) = (home.path().join("store"), home.path().join("copy"), home.path().join("empty"));
        let engine = engines::open(&dir, &options(kind), OpenMode::Create).unwrap();
        fill(&*engine, PAIRS);
        engine.snapshot(&copy).unwrap();
        engine.close().unwrap();
        assert_eq!(engines::inspect(&copy).unwrap().unwrap().seq, Some(u64::from(PAIRS)));
        engines::open(&empty, &options(kind), OpenMode::Create).unwrap().close().unwrap();
        for (dir, seq) in [(&copy, u64::from(PAIRS)), (&empty, 0)] {
            for _ in 0..2 {
                let engine = engines::open(dir, &options(kind), OpenMode::Existing).unwrap();
                assert_eq!(engine.checkpoint().unwrap().seq, seq, "{kind}");
                engine.close().unwrap();
            }
        }
    }
}

#[cfg(feature = "strata")]
#[test]
fn repair_makes_no_empty_store_of_one_whose_files_are_gone() {
    let home = tempfile::tempdir().unwrap();
    let (emptied, cut) = (home.path().join("emptied"), home.path().join("cut"));
    closed(&emptied, EngineKind::Strata);
    assert!(remove(&emptied, |_| true) > 0);
    let before = contents(&emptied);
    assert_eq!(engines::repair(&emptied).unwrap_err().kind(), ErrorKind::FixInput);
    assert_eq!(contents(&emptied), before);
    loaded_and_killed(&cut, EngineKind::Strata);
    assert!(remove(&cut, |name| name.ends_with(".wal")) > 0);
    let error = engines::repair(&cut).unwrap_err();
    assert!(error.to_string().contains("seq=0 marker_seq=200"), "{error}");
    assert!(engines::open(&cut, &options(EngineKind::Strata), OpenMode::Existing).is_err());
}

/// Commits batches with seq 10, 20 and 30, all of them in the WAL, and returns the WAL.
#[cfg(feature = "strata")]
fn three_batches(dir: &Path) -> std::path::PathBuf {
    let engine = engines::open(dir, &options(EngineKind::Strata), OpenMode::Create).unwrap();
    [10, 20, 30].into_iter().for_each(|pairs| fill(&*engine, pairs));
    engine.close().unwrap();
    let paths = fs::read_dir(dir.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let is_wal = |path: &std::path::PathBuf| path.extension().is_some_and(|ending| ending == "wal");
    paths.filter(is_wal).max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

/// Cuts the last record, as no crash does after a close.
#[cfg(feature = "strata")]
fn cut(wal: &Path) {
    let file = fs::OpenOptions::new().write(true).open(wal).unwrap();
    file.set_len(file.metadata().unwrap().len() - 10).unwrap();
}

/// Damages the second record, while the third confirms that it was durable.
#[cfg(feature = "strata")]
fn flip(wal: &Path) {
    let mut bytes = fs::read(wal).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(wal, bytes).unwrap();
}

#[cfg(feature = "strata")]
#[test]
fn an_opening_that_the_marker_refuses_makes_and_removes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    cut(&three_batches(&dir));
    // A leftover of a crash, which an opening removes if it finds everything in order.
    fs::write(dir.join("data/000000000050.seg"), [7; 8192]).unwrap();
    let before = contents(&dir.join("data"));
    for _ in 0..2 {
        let refused = engines::open(&dir, &options(EngineKind::Strata), OpenMode::Existing).err().expect("refused");
        assert!(refused.to_string().contains("seq=20 marker_seq=30"), "{refused}");
        assert!(refused.to_string().contains("bootstrap repair"), "{refused}");
        assert!(contents(&dir.join("data")) == before, "made or removed");
    }
}

#[cfg(feature = "strata")]
#[test]
fn a_repair_takes_a_store_whose_newest_changes_are_gone_and_says_which_also_after_one_that_was_cut() {
    type Damage = fn(&Path);
    for (damage, left) in [(cut as Damage, 20), (flip, 10)] {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        damage(&three_batches(&dir));
        assert!(engines::open(&dir, &options(EngineKind::Strata), OpenMode::Existing).is_err());
        let marker = fs::read(dir.join("SOLKV")).unwrap();
        let changes = format!("the changes from seq={} to seq=30", left + 1);
        let repaired = engines::repair(&dir).unwrap();
        assert!(repaired.lost.contains(&changes) && !repaired.findings.is_empty(), "{repaired:?}");
        // The marker is put back as if the repair had been killed before it: another repair reports the same and
        // completes it.
        let remembered = fs::read_to_string(dir.join("data/LOST")).unwrap();
        assert!(remembered.lines().any(|line| line == changes), "{remembered}");
        fs::write(dir.join("SOLKV"), marker).unwrap();
        let repaired = engines::repair(&dir).unwrap();
        assert_eq!((repaired.lost, repaired.checkpoint.seq), (vec![changes], left));
        assert_eq!(fs::read_to_string(dir.join("data/LOST")).unwrap(), remembered);
        let known = engines::inspect(&dir).unwrap().unwrap();
        assert_eq!((known.seq, engines::lost(&dir).unwrap()), (Some(left), remembered.lines().count() as u64));
        assert!(engines::repair(&dir).unwrap().findings.is_empty());
        let engine = engines::open(&dir, &options(EngineKind::Strata), OpenMode::Existing).unwrap();
        assert_eq!(engine.checkpoint().unwrap().seq, left);
        engine.close().unwrap();
    }
}
