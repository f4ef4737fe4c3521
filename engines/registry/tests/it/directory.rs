//! The store's directory: what each mode accepts, what the marker remembers, what an interrupted creation leaves.

use std::fs;
use std::path::Path;

use engine_api::{Error, ErrorKind};
use engines::{EngineKind, EngineOptions, OpenMode, inspect};

fn options() -> EngineOptions {
    EngineOptions { memory: Some(bytesize::ByteSize::mib(64)), ..EngineOptions::new(engines::compiled()[0]) }
}

/// Opens and closes; the label, or the refusal.
fn open(dir: &Path, options: &EngineOptions, mode: OpenMode) -> Result<&'static str, Error> {
    let engine = engines::open(dir, options, mode)?;
    let label = engine.label();
    engine.close()?;
    Ok(label)
}

fn refused(dir: &Path, options: &EngineOptions, mode: OpenMode) -> String {
    match open(dir, options, mode) {
        Ok(label) => panic!("{label} was opened"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
            error.to_string()
        }
    }
}

#[test]
fn modes_accept_what_they_say() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("a/b");
    assert!(refused(&dir, &options(), OpenMode::Existing).contains("bootstrap"));
    assert!(!dir.exists(), "a refusal creates nothing");
    open(&dir, &options(), OpenMode::Create).unwrap();
    assert!(refused(&dir, &options(), OpenMode::Create).contains(&*dir.to_string_lossy()));
    open(&dir, &options(), OpenMode::Existing).unwrap();
    open(&dir, &options(), OpenMode::CreateOrOpen).unwrap();

    let foreign = home.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("photo.jpg"), b"").unwrap();
    for mode in [OpenMode::Create, OpenMode::Existing, OpenMode::CreateOrOpen] {
        refused(&foreign, &options(), mode);
    }
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1, "a refusal leaves the directory as it was");
    let file = home.path().join("file");
    fs::write(&file, b"").unwrap();
    refused(&file, &options(), OpenMode::CreateOrOpen);
}

#[test]
fn an_interrupted_creation_is_taken_up() {
    let marker_only = |dir: &Path| {
        open(dir, &options(), OpenMode::Create).unwrap();
        fs::remove_dir_all(dir.join("data")).unwrap();
    };
    let before_marker = |dir: &Path| {
        fs::write(dir.join("LOCK"), b"1\n").unwrap();
        fs::write(dir.join("SOLKV.tmp"), b"form").unwrap();
    };
    for mode in [OpenMode::Create, OpenMode::CreateOrOpen] {
        for leave in [&marker_only as &dyn Fn(&Path), &before_marker] {
            let dir = tempfile::tempdir().unwrap();
            leave(dir.path());
            assert!(refused(dir.path(), &options(), OpenMode::Existing).contains("bootstrap"));
            open(dir.path(), &options(), mode).unwrap();
            assert_eq!(inspect(dir.path()).unwrap().unwrap().engine, options().engine);
        }
    }
}

#[test]
fn a_damaged_marker_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(inspect(dir.path()).unwrap(), None);
    open(dir.path(), &options(), OpenMode::Create).unwrap();
    for damaged in [&b"\xff\xfe"[..], b"", b"format = 1\nengine = \"unheard-of\"\n"] {
        fs::write(dir.path().join("SOLKV"), damaged).unwrap();
        assert_eq!(inspect(dir.path()).unwrap_err().kind(), ErrorKind::DataDamaged);
        let error = open(dir.path(), &options(), OpenMode::CreateOrOpen).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}");
        assert_eq!(fs::read(dir.path().join("SOLKV")).unwrap(), damaged);
    }
}

#[test]
fn engines_that_are_not_compiled_in_are_named() {
    for kind in EngineKind::ALL.into_iter().filter(|kind| !engines::compiled().contains(kind)) {
        let dir = tempfile::tempdir().unwrap();
        let message = refused(dir.path(), &EngineOptions::new(kind), OpenMode::Create);
        assert!(message.contains(&format!("cargo feature {kind}")), "{message}");
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn the_filter_is_remembered_until_another_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let bloom = |bloom| EngineOptions { engine: EngineKind::Rocksdb, bloom, ..options() };
    let steps = [
        (Some(14), "rocksdb_bloom", 14),
        (None, "rocksdb_bloom", 14),
        (Some(10), "rocksdb_bloom", 10),
        (Some(0), "rocksdb", 0),
        (None, "rocksdb", 0),
    ];
    for (given, label, stored) in steps {
        assert_eq!(open(dir.path(), &bloom(given), OpenMode::CreateOrOpen).unwrap(), label);
        assert_eq!(inspect(dir.path()).unwrap().unwrap().bloom, stored);
    }
}

#[test]
fn a_copy_that_was_cut_short_is_no_store() {
    let home = tempfile::tempdir().unwrap();
    let (dir, copy) = (home.path().join("store"), home.path().join("copy"));
    let engine = engines::open(&dir, &options(), OpenMode::Create).unwrap();
    engine.snapshot(&copy).unwrap();
    assert_eq!(engine.snapshot(&copy).unwrap_err().kind(), ErrorKind::FixInput);
    open(&copy, &options(), OpenMode::Existing).unwrap();
    fs::remove_file(copy.join("SOLKV")).unwrap();
    refused(&copy, &options(), OpenMode::Existing);
    refused(&copy, &options(), OpenMode::CreateOrOpen);
}

#[test]
fn a_copy_takes_a_free_place_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let engine = engines::open(&home.path().join("store"), &options(), OpenMode::Create).unwrap();
    let refusal = |to: &Path| engine.snapshot(to).unwrap_err();
    let (empty, full) = (home.path().join("empty"), home.path().join("full"));
    fs::create_dir(&empty).unwrap();
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), b"1").unwrap();
    engine.snapshot(&empty).unwrap();
    open(&empty, &options(), OpenMode::Existing).unwrap();
    let error = refusal(&full);
    assert!(error.kind() == ErrorKind::FixInput && error.to_string().contains("it holds mine"), "{error}");
    assert!(refusal(&full.join("mine")).to_string().contains("it is a file"));
    assert_eq!(refusal(Path::new("/")).kind(), ErrorKind::FixInput);

    // What a crash leaves is neither taken for a copy nor written over.
    let cut = home.path().join("cut.partial");
    fs::create_dir(&cut).unwrap();
    let error = refusal(&home.path().join("cut"));
    assert!(error.kind() == ErrorKind::FixInput && error.to_string().contains("cut.partial"), "{error}");
    assert!(cut.exists() && !home.path().join("cut").exists());

    // A failure leaves nothing.
    assert!(engine.snapshot(&home.path().join("missing").join("copy")).is_err());
    let mut left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["cut.partial", "empty", "full", "store"]);
}
