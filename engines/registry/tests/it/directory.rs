//! The store's directory: the state that each mode accepts, the facts in the marker, and an interrupted creation.

use std::fs;
use std::path::Path;

use std::os::unix::fs::PermissionsExt as _;

use crate::marker_text;
use engine_api::{Error, ErrorKind};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use solkv_engine_registry::{
    self as engines, EngineArgs, EngineKind, EngineOptions, Holds, Load, LoadState, LoadTerm, OpenMode, Terms, inspect,
};

fn options() -> EngineOptions {
    EngineOptions { memory: Some(bytesize::ByteSize::mib(64)), ..EngineOptions::new(engines::compiled()[0]) }
}

/// Opens and closes a store. Returns its label, or the refusal.
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
        // The marker has a seq once the engine has made its files.
        let marker = marker_text(dir);
        fs::write(dir.join("SOLKV"), marker.replace("seq = 0\n", "")).unwrap();
    };
    let emptied = |dir: &Path| {
        marker_only(dir);
        fs::create_dir(dir.join("data")).unwrap();
    };
    let before_marker = |dir: &Path| {
        fs::write(dir.join("LOCK"), b"1\n").unwrap();
        fs::write(dir.join("SOLKV.tmp"), b"form").unwrap();
    };
    // After a power loss the lock file has its size on the device, but not the pid in it.
    let power_lost = |dir: &Path| fs::write(dir.join("LOCK"), [0; 5]).unwrap();
    for mode in [OpenMode::Create, OpenMode::CreateOrOpen] {
        for leave in [&marker_only as &dyn Fn(&Path), &emptied, &before_marker, &power_lost] {
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
    for damaged in [&b"\xff\xfe"[..], b"", b"format = 3\n", b"format = 3\nengine = \"strata\"\n"] {
        fs::write(dir.path().join("SOLKV"), damaged).unwrap();
        assert_eq!(inspect(dir.path()).unwrap_err().kind(), ErrorKind::DataDamaged);
        let error = open(dir.path(), &options(), OpenMode::CreateOrOpen).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}");
        assert_eq!(fs::read(dir.path().join("SOLKV")).unwrap(), damaged);
    }
}

#[test]
fn a_marker_that_was_cut_or_changed_anywhere_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let meaning = Holds { extract: Some("token-owner".to_owned()), ..Holds::default() };
    let terms = Terms { holds: meaning, load: LoadTerm::Loading("5".to_owned()) };
    engines::open_on(dir.path(), &options(), OpenMode::Create, &terms).unwrap().close().unwrap();
    let marker = dir.path().join("SOLKV");
    let whole = fs::read(&marker).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        for changed in [&whole[..at], &flipped] {
            fs::write(&marker, changed).unwrap();
            let error = inspect(dir.path()).expect_err("a damaged marker");
            assert_eq!(error.kind(), ErrorKind::DataDamaged, "at={at} {error}");
            assert!(error.to_string().contains("SOLKV"), "{error}");
        }
    }
    fs::write(&marker, &whole).unwrap();
    open(dir.path(), &options(), OpenMode::Existing).unwrap();
    // If the marker is gone and the files are there, the directory is not taken for one without a store.
    fs::remove_file(&marker).unwrap();
    let said = refused(dir.path(), &options(), OpenMode::Existing);
    assert!(said.contains("marker is missing: file=") && said.contains("put it back"), "{said}");
}

#[test]
fn a_store_that_does_not_open_learns_nothing() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), &options(), OpenMode::Create).unwrap();
    let main = ["CURRENT", "data.mdb", "pairs.redb", "MANIFEST"].map(|name| dir.path().join("data").join(name));
    let main = main.iter().find(|path| path.exists()).expect("an engine's main file");
    fs::write(main, [0x5a; 40]).unwrap();
    let marker = fs::read(dir.path().join("SOLKV")).unwrap();
    let holds = Holds { extract: Some("token-owner".to_owned()), ..Holds::default() };
    let terms = Terms { holds, load: LoadTerm::Any };
    assert!(engines::open_on(dir.path(), &options(), OpenMode::Existing, &terms).is_err());
    assert_eq!(fs::read(dir.path().join("SOLKV")).unwrap(), marker);
}

#[test]
fn a_pipe_or_a_device_in_the_place_of_any_file_is_named_and_not_waited_for() {
    for name in ["SOLKV", "SOLKV.tmp", "LOCK", "data/IDENTITY", "data/SOLKV-MANIFEST", "data/LOST", "data/pairs.redb"] {
        for kind in [FileType::Fifo, FileType::CharacterDevice] {
            let dir = tempfile::tempdir().unwrap();
            open(dir.path(), &options(), OpenMode::Create).unwrap();
            let file = dir.path().join(name);
            fs::remove_file(&file).ok();
            // The second kind has the device number of /dev/zero.
            if mknodat(CWD, &file, kind, Mode::RWXU, makedev(1, 5)).is_err() {
                println!("no device can be made here: {}", file.display());
                continue;
            }
            for error in [
                open(dir.path(), &options(), OpenMode::Existing).unwrap_err(),
                engines::open_read_only(dir.path(), None).err().unwrap(),
            ] {
                assert!(error.to_string().contains(name), "{name}: {error}");
            }
            engines::holder(dir.path()).ok();
            engines::lost(dir.path()).ok();
        }
    }
}

#[test]
fn engines_that_are_not_compiled_in_are_named() {
    for kind in EngineKind::ALL.into_iter().filter(|kind| !engines::compiled().contains(kind)) {
        let dir = tempfile::tempdir().unwrap();
        let message = refused(dir.path(), &EngineOptions::new(kind), OpenMode::Create);
        assert!(message.contains(&format!("cargo feature engines/{kind}")), "{message}");
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn the_filter_is_remembered_until_another_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let bloom = |bits: Option<u32>| {
        let options = EngineOptions { engine: EngineKind::Rocksdb, ..options() };
        bits.map_or(options.clone(), |bits| options.with("bloom", bits))
    };
    let steps = [
        (Some(14), "rocksdb_bloom", "14"),
        (None, "rocksdb_bloom", "14"),
        (Some(10), "rocksdb_bloom", "10"),
        (Some(0), "rocksdb", "0"),
        (None, "rocksdb", "0"),
    ];
    for (given, label, stored) in steps {
        assert_eq!(open(dir.path(), &bloom(given), OpenMode::CreateOrOpen).unwrap(), label);
        assert_eq!(inspect(dir.path()).unwrap().unwrap().options["bloom"], stored);
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

    // The directory around it is made too.
    let below = home.path().join("new").join("copy");
    engine.snapshot(&below).unwrap();
    open(&below, &options(), OpenMode::Existing).unwrap();
    // A failure leaves nothing.
    assert!(engine.snapshot(&full.join("mine").join("copy")).is_err());
    let mut left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["empty", "full", "new", "store"]);
}

#[test]
fn what_a_killed_copy_has_left_is_begun_anew_and_nothing_else_is_touched() {
    let home = tempfile::tempdir().unwrap();
    let engine = engines::open(&home.path().join("store"), &options(), OpenMode::Create).unwrap();
    let (copy, partial) = (home.path().join("copy"), home.path().join("copy.partial"));
    let refusal = |kind| {
        let error = engine.snapshot(&copy).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains("copy.partial"), "{error}");
        assert!(partial.exists() && !copy.exists());
        error.to_string()
    };
    // A copy under way has a lock on its directory, whatever is in it yet.
    fs::create_dir_all(partial.join("data")).unwrap();
    let other = fs::File::open(&partial).unwrap();
    other.try_lock().unwrap();
    assert!(refusal(ErrorKind::Retry).contains("is under way"));
    other.unlock().unwrap();
    // A directory without a copy's lock, which may be anybody's.
    assert!(refusal(ErrorKind::FixInput).contains("entry=data"));
    assert_eq!(fs::read_dir(&partial).unwrap().count(), 1, "nothing is made there");
    fs::write(partial.join("LOCK"), "mine").unwrap();
    refusal(ErrorKind::FixInput);
    // A whole store, and files that no copy makes.
    fs::write(partial.join("LOCK"), "1\n").unwrap();
    for name in ["SOLKV", "mine"] {
        fs::write(partial.join(name), "").unwrap();
        assert!(refusal(ErrorKind::FixInput).contains(&format!("entry={name}")));
        assert_eq!(fs::read_dir(&partial).unwrap().count(), 3, "nothing is made there");
        fs::remove_file(partial.join(name)).unwrap();
    }
    // A copy that was killed, at any time before it had its marker.
    for left in [&["LOCK"][..], &["data", "LOCK"], &["data", "LOCK", "contradiction.toml", "SOLKV.tmp"], &[]] {
        fs::remove_dir_all(&partial).ok();
        fs::create_dir(&partial).unwrap();
        for name in left {
            match *name {
                "data" => fs::create_dir(partial.join(name)).unwrap(),
                _ => fs::write(partial.join(name), "1\n").unwrap(),
            }
        }
        engine.snapshot(&copy).unwrap();
        assert!(!partial.exists());
        open(&copy, &options(), OpenMode::Existing).unwrap();
        fs::remove_dir_all(&copy).unwrap();
    }
}

#[test]
fn a_lock_file_that_is_moved_away_lets_nobody_in() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let engine = engines::open(&dir, &options(), OpenMode::Create).unwrap();
    fs::rename(dir.join("LOCK"), home.path().join("moved")).unwrap();
    for is_replaced in [false, true] {
        if is_replaced {
            fs::write(dir.join("LOCK"), "").unwrap();
        }
        let second = engines::open(&dir, &options(), OpenMode::Existing).err().unwrap();
        let reader = engines::open_read_only(&dir, None).err().unwrap();
        for error in [second, reader] {
            assert!(error.kind() == ErrorKind::Retry && error.to_string().contains("another process"), "{error}");
        }
        assert_eq!(engines::holder(&dir).unwrap().as_deref(), Some("unknown"));
    }
    engine.close().unwrap();
    assert_eq!(engines::holder(&dir).unwrap(), None);
    let reader = engines::open_read_only(&dir, None).unwrap();
    fs::remove_file(dir.join("LOCK")).unwrap();
    let writer = engines::open(&dir, &options(), OpenMode::Existing).err().unwrap();
    assert_eq!(writer.kind(), ErrorKind::Retry, "a reader keeps writers out as well: {writer}");
    reader.close().unwrap();
    open(&dir, &options(), OpenMode::Existing).unwrap();
}

#[test]
fn a_reader_of_a_copy_that_nobody_has_written_to_keeps_writers_out() {
    let home = tempfile::tempdir().unwrap();
    let engine = engines::open(&home.path().join("store"), &options(), OpenMode::Create).unwrap();
    let copy = home.path().join("copy");
    engine.snapshot(&copy).unwrap();
    let reader = engines::open_read_only(&copy, None).unwrap();
    let refused = engines::open(&copy, &options(), OpenMode::Existing).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    reader.close().unwrap();
    engines::open(&copy, &options(), OpenMode::Existing).unwrap().close().unwrap();
}

fn holds(extract: Option<&str>, cluster: Option<&str>) -> Terms {
    let (extract, cluster) = (extract.map(str::to_owned), cluster.map(str::to_owned));
    Terms { holds: Holds { extract, cluster, ..Holds::default() }, ..Terms::default() }
}

#[test]
fn a_store_keeps_what_it_is_told_to_hold_and_refuses_another() {
    let home = tempfile::tempdir().unwrap();
    let (dir, copy) = (home.path().join("store"), home.path().join("copy"));
    let on = |dir: &Path, terms: &Terms| {
        engines::open_on(dir, &options(), OpenMode::CreateOrOpen, terms).map(|engine| engine.close().unwrap())
    };
    on(&dir, &Terms::default()).unwrap();
    assert!(inspect(&dir).unwrap().unwrap().holds.is_unknown());
    on(&dir, &holds(Some("a"), None)).unwrap();
    on(&dir, &holds(None, Some("c"))).unwrap();
    on(&dir, &Terms::default()).unwrap();
    assert_eq!(inspect(&dir).unwrap().unwrap().holds, holds(Some("a"), Some("c")).holds);
    let programs =
        Terms { holds: Holds { programs: Some(vec!["p".to_owned()]), ..Holds::default() }, ..Terms::default() };
    on(&dir, &programs).unwrap();
    let engine = engines::open(&dir, &options(), OpenMode::Existing).unwrap();
    engine.snapshot(&copy).unwrap();
    engine.close().unwrap();
    let other = Terms { holds: Holds { programs: Some(vec!["q".to_owned()]), ..Holds::default() }, ..Terms::default() };
    for dir in [&dir, &copy] {
        let before = fs::read(dir.join("SOLKV")).unwrap();
        for (terms, says) in [
            (&holds(Some("b"), None), "holds extract=a, asked for extract=b"),
            (&holds(Some("a"), Some("d")), "holds cluster=c, asked for cluster=d"),
            (&other, "holds programs=p, asked for programs=q"),
        ] {
            let checked = engines::check(dir, &options(), OpenMode::Existing, terms).unwrap_err();
            let opened = on(dir, terms).unwrap_err();
            assert!(opened.kind() == ErrorKind::FixInput && opened.to_string().contains(says), "{opened}");
            assert_eq!(checked.to_string(), opened.to_string());
        }
        assert_eq!(fs::read(dir.join("SOLKV")).unwrap(), before);
    }
}

#[test]
fn a_load_is_unfinished_until_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let on = |term: LoadTerm, mode| {
        let terms = Terms { load: term, ..Terms::default() };
        engines::open_on(dir.path(), &options(), mode, &terms).map(|engine| engine.close().unwrap())
    };
    let load = |state, source: &str| Load::new(state, source);
    on(LoadTerm::Loading("1".to_owned()), OpenMode::Create).unwrap();
    let error = on(LoadTerm::Finished, OpenMode::Existing).unwrap_err();
    assert!(error.kind() == ErrorKind::FixInput && error.to_string().contains("--resume"), "{error}");
    // A program that continues with the load, and tools that read the store.
    on(LoadTerm::Loading("2".to_owned()), OpenMode::CreateOrOpen).unwrap();
    on(LoadTerm::Any, OpenMode::Existing).unwrap();
    assert_eq!(inspect(dir.path()).unwrap().unwrap().load, Some(load(LoadState::Loading, "1")));
    engines::mark_load(dir.path(), load(LoadState::Complete, "1"), 0).unwrap();
    on(LoadTerm::Finished, OpenMode::Existing).unwrap();
}

#[test]
fn a_marker_of_an_older_format_is_refused_by_name_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), &options(), OpenMode::Create).unwrap();
    let marker = dir.path().join("SOLKV");
    let text = marker_text(dir.path());
    assert!(text.contains("format = 3\n"), "{text}");
    for older in ["1", "2"] {
        let older_text = text.replace("format = 3", &format!("format = {older}"));
        fs::write(&marker, &older_text).unwrap();
        for refused in [
            inspect(dir.path()).unwrap_err(),
            open(dir.path(), &options(), OpenMode::Existing).unwrap_err(),
            open(dir.path(), &options(), OpenMode::CreateOrOpen).unwrap_err(),
            engines::open_read_only(dir.path(), None).err().unwrap(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::FixInput);
            let message = refused.to_string();
            assert!(message.contains(&format!("an older solkv: file={}", marker.display())), "{message}");
            assert!(message.contains(&format!("format={older} known=3: load it again")), "{message}");
        }
        assert_eq!(fs::read_to_string(&marker).unwrap(), older_text);
    }
}

#[test]
fn an_engine_that_is_not_named_is_the_directorys_or_the_default() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let args = EngineArgs::default();
    assert_eq!(engines::options_for(&dir, &args).unwrap().engine, engines::default_engine());
    for &engine in engines::compiled() {
        let dir = home.path().join(engine.as_str());
        open(&dir, &EngineOptions { engine, ..options() }, OpenMode::Create).unwrap();
        assert_eq!(engines::options_for(&dir, &args).unwrap().engine, engine);
        let named = EngineArgs { engine: Some(engines::default_engine()), ..args.clone() };
        assert_eq!(engines::options_for(&dir, &named).unwrap().engine, engines::default_engine());
    }
}

#[test]
fn others_can_neither_enter_a_store_nor_hold_its_lock() {
    let home = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (dir, copy) = (home.path().join("above/store"), home.path().join("copy"));
    let engine = engines::open(&dir, &options(), OpenMode::Create).unwrap();
    engine.snapshot(&copy).unwrap();
    engine.close().unwrap();
    assert_eq!((mode(&dir), mode(&dir.join("LOCK")), mode(&copy)), (0o700, 0o600, 0o700));
    assert_ne!(mode(&home.path().join("above")), 0o700, "only the store's own directory");
    // The modes are those of an earlier version. The directory's belongs to the operator, the lock's is ours.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(dir.join("LOCK"), fs::Permissions::from_mode(0o644)).unwrap();
    open(&dir, &options(), OpenMode::Existing).unwrap();
    assert_eq!((mode(&dir), mode(&dir.join("LOCK"))), (0o755, 0o600));
}

#[test]
fn a_copy_inside_its_store_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let engine = engines::open(&dir, &options(), OpenMode::Create).unwrap();
    let link = home.path().join("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    for inside in [dir.join("copy"), dir.join("data/copy"), link.join("a/b"), dir.clone(), home.path().to_owned()] {
        let error = engine.snapshot(&inside).unwrap_err();
        let refused = error.kind() == ErrorKind::FixInput && error.to_string().contains("directories of their own");
        assert!(refused, "{}: {error}", inside.display());
    }
    engine.snapshot(&home.path().join("store-copy")).unwrap();
}

#[test]
fn a_cluster_that_cannot_be_read_back_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    for name in ["", " mainnet", "main\nnet", "\u{1b}[31mmainnet", "main\u{7f}net", &"x".repeat(65)] {
        let terms = holds(None, Some(name));
        let error = engines::check(&dir, &options(), OpenMode::CreateOrOpen, &terms).unwrap_err();
        let said = error.to_string();
        assert!(error.kind() == ErrorKind::FixInput && said.contains("cluster="), "{said}");
        assert!(!said.chars().any(char::is_control), "{said:?}");
        assert!(engines::open_on(&dir, &options(), OpenMode::CreateOrOpen, &terms).is_err() && !dir.exists());
    }
    engines::check(&dir, &options(), OpenMode::CreateOrOpen, &holds(None, Some("mainnet beta"))).unwrap();
}

#[test]
fn a_lock_that_cannot_be_opened_is_found_before_anything_is_touched() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    engines::check_lock(&dir).unwrap();
    open(&dir, &options(), OpenMode::Create).unwrap();
    engines::check_lock(&dir).unwrap();
    fs::remove_file(dir.join("LOCK")).unwrap();
    engines::check_lock(&dir).unwrap();
    fs::create_dir(dir.join("LOCK")).unwrap();
    for error in [engines::check_lock(&dir).unwrap_err(), open(&dir, &options(), OpenMode::Existing).unwrap_err()] {
        let said = error.to_string();
        assert!(error.kind() == ErrorKind::FixInput && said.contains(dir.join("LOCK").to_str().unwrap()), "{said}");
    }
}
