//! Loads that continue with other input or options than they began with: an archive that was changed under its name,
//! another archive, another extraction, another engine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::archive::{Made, newest, versions, write_archive};
use crate::{Map, digest, engines, fails, ok, str};

const SLOT: u64 = 200;

/// A load of an archive whose end is damaged: a part of it is in the spill.
struct Interrupted {
    store: PathBuf,
    archive: PathBuf,
    whole: Vec<u8>,
}

impl Interrupted {
    fn new(home: &Path, engine: &str, made: &[Made]) -> Self {
        Self::with(home, made, &["--engine", engine])
    }

    fn with(home: &Path, made: &[Made], options: &[&str]) -> Self {
        fs::create_dir(home).unwrap();
        let (archive, store) = (write_archive(home, SLOT, made), home.join("store"));
        let whole = fs::read(&archive).unwrap();
        let cut = &whole[..whole.len() - 2000];
        fs::write(&archive, [cut, &[0xff; 2000]].concat()).unwrap();
        let load = ["--dir", str(&store), "--sort-memory", "1MiB", "--input", str(&archive)];
        let said = fails(1, &[&load[..], &["--extract", "token-owner"], options].concat());
        assert!(said.contains("is kept for the next start"), "{said}");
        Self { store, archive, whole }
    }

    fn resume<'a>(&'a self, archive: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
        let load = ["--dir", str(&self.store), "--sort-memory", "1MiB", "--resume", "--input", str(archive)];
        [&load[..], more].concat()
    }

    #[track_caller]
    fn holds(&self, expected: &Map) {
        let info = ok(&["info", "--dir", str(&self.store), "--digest"]);
        assert!(info.contains(&digest(expected)) && info.contains("load=complete"), "{info}");
    }
}

/// Returns the bytes with another value of the first account of the archive that counts and has one.
fn with_another_value(whole: &[u8], made: &[Made]) -> (Vec<u8>, Map) {
    let map = newest(made);
    for value in map.values().filter(|value| **value != [0; 32]) {
        let mut at = whole.windows(32).enumerate().filter(|(_, bytes)| bytes == value).map(|(at, _)| at);
        if let (Some(at), None) = (at.next(), at.next()) {
            let mut changed = whole.to_vec();
            changed[at] ^= 1;
            let mut expected = map.clone();
            expected.values_mut().filter(|one| *one == value).for_each(|one| one[0] ^= 1);
            return (changed, expected);
        }
    }
    unreachable!("values are random")
}

#[test]
fn an_archive_that_was_changed_under_its_name_is_never_mixed_with_its_spill() {
    for (seed, engine) in engines().enumerate() {
        let home = tempfile::tempdir().unwrap();
        let (made, others) = (versions(20 + seed as u64), versions(40 + seed as u64));
        // One bit differs, in the part that is spilled.
        let load = Interrupted::new(&home.path().join("bit"), engine, &made);
        let (changed, expected) = with_another_value(&load.whole, &made);
        fs::write(&load.archive, &changed).unwrap();
        let said = ok(&load.resume(&load.archive, &["--engine", engine]));
        assert!(said.contains("the source has changed, and its spill is made again"), "{said}");
        load.holds(&expected);
        // The complete load of the archive as it was before the bit.
        fs::write(&load.archive, &load.whole).unwrap();
        let said = fails(1, &load.resume(&load.archive, &[]));
        assert!(said.contains("the store holds a load of another source"), "{said}");
        // Another archive at another place replaces the spill.
        let load = Interrupted::new(&home.path().join("other"), engine, &made);
        let dir = home.path().join("archives");
        fs::create_dir(&dir).unwrap();
        let other = write_archive(&dir, SLOT, &others);
        let said = ok(&load.resume(&other, &["--engine", engine]));
        assert!(said.contains("the spill is from another load and is made again"), "{said}");
        load.holds(&newest(&others));
        let said = fails(1, &load.resume(&load.archive, &[]));
        assert!(said.contains("the store holds a load of another source"), "{said}");
    }
}

#[test]
fn a_spill_serves_any_engine_and_no_other_extraction() {
    let home = tempfile::tempdir().unwrap();
    let made = versions(60);
    let (first, last) = (engines().next().unwrap(), engines().last().unwrap());
    let load = Interrupted::new(&home.path().join("engine"), first, &made);
    fs::write(&load.archive, &load.whole).unwrap();
    let said = ok(&load.resume(&load.archive, &["--engine", last]));
    assert!(said.contains(&format!("engine={last}")), "{said}");
    load.holds(&newest(&made));
    if first != last {
        let said = fails(1, &load.resume(&load.archive, &["--engine", first]));
        assert!(said.contains(&format!("directory holds {last}, asked for {first}")), "{said}");
    }
    // Mints are all the same in these archives, and no owners.
    let load = Interrupted::new(&home.path().join("extract"), first, &made);
    fs::write(&load.archive, &load.whole).unwrap();
    let said = ok(&load.resume(&load.archive, &["--engine", first, "--extract", "token-mint"]));
    assert!(said.contains("the spill is from another load and is made again"), "{said}");
    load.holds(&newest(&made).into_keys().map(|key| (key, [0; 32])).collect());
    let said = fails(1, &load.resume(&load.archive, &["--extract", "token-owner"]));
    assert!(said.contains("the store holds extract=token-mint, asked for extract=token-owner"), "{said}");
}

/// A load that was interrupted before there was a store: the options that were given at first hold without being given
/// again, and those given otherwise are named.
#[test]
fn a_spill_keeps_the_options_of_its_load() {
    let home = tempfile::tempdir().unwrap();
    let made = versions(62);
    for engine in engines() {
        let of_engine: &[&str] = if engine == "rocksdb" { &["--bloom", "20", "--profile", "tuned"] } else { &[] };
        let options = [&["--engine", engine, "--cluster", "mainnet", "--order", "shuffled"], of_engine].concat();
        let load = Interrupted::with(&home.path().join(engine), &made, &options);
        fs::write(&load.archive, &load.whole).unwrap();
        let said = ok(&load.resume(&load.archive, &[]));
        let first = if engine == "rocksdb" { "--engine rocksdb --bloom 20 --profile tuned" } else { "--engine " };
        assert!(said.contains("options taken from the load that was begun: dir=") && said.contains(first), "{said}");
        assert!(!said.contains("is made again"), "{said}");
        let info = ok(&["info", "--dir", str(&load.store)]);
        for kept in [format!("engine={engine}"), "cluster=mainnet".to_owned(), "slot=200".to_owned()] {
            assert!(info.contains(&kept), "{kept}: {info}");
        }
        assert_eq!(info.contains("bloom=20") && info.contains("profile=tuned"), engine == "rocksdb", "{info}");
        load.holds(&newest(&made));
    }
    let (first, last) = (engines().next().unwrap(), engines().last().unwrap());
    let options = ["--engine", first, "--cluster", "mainnet"];
    let load = Interrupted::with(&home.path().join("otherwise"), &made, &options);
    // The part after the spill is damaged still, so the second start is interrupted too.
    let said = fails(1, &load.resume(&load.archive, &["--engine", last, "--cluster", "testnet"]));
    let otherwise = format!("--engine {last} instead of {first}, --cluster testnet instead of mainnet");
    assert!(said.contains(&otherwise) || first == last && said.contains("--cluster testnet in place"), "{said}");
    fs::write(&load.archive, &load.whole).unwrap();
    ok(&load.resume(&load.archive, &[]));
    let info = ok(&["info", "--dir", str(&load.store)]);
    assert!(info.contains(&format!("engine={last}")) && info.contains("cluster=testnet"), "{info}");
}

/// The slot of a file is in no name, so the spill has to keep it.
#[test]
fn a_spill_keeps_the_slot_of_a_file() {
    let home = tempfile::tempdir().unwrap();
    let (file, store) = (home.path().join("pairs.csv"), home.path().join("store"));
    let lines: Vec<String> = (0..20_000u32)
        .map(|number| {
            let mut key = [7; 32];
            key[..4].copy_from_slice(&number.to_be_bytes());
            format!("{},{}\n", bs58::encode(key).into_string(), bs58::encode([9; 32]).into_string())
        })
        .collect();
    fs::write(&file, format!("{}not a pair\n", lines.concat())).unwrap();
    let load = ["--dir", str(&store), "--sort-memory", "1MiB", "--input", str(&file), "--on-duplicate", "last"];
    let said = fails(1, &[&load[..], &["--slot", "77"]].concat());
    assert!(said.contains("is kept for the next start"), "{said}");
    fs::write(&file, lines.concat()).unwrap();
    ok(&[&load[..], &["--resume"]].concat());
    assert!(ok(&["info", "--dir", str(&store)]).contains("slot=77"));
}

#[test]
fn an_incremental_archive_is_not_left_out_of_a_load_that_was_begun_with_it() {
    let home = tempfile::tempdir().unwrap();
    let (whole, store) = (write_archive(home.path(), SLOT, &versions(63)), home.path().join("store"));
    let named =
        |name: &str| home.path().join(whole.file_name().unwrap().to_str().unwrap().replace("snapshot-200-", name));
    let (archive, incremental) = (named("snapshot-50-"), named("incremental-snapshot-50-200-"));
    // The incremental one is read first.
    fs::rename(&whole, &incremental).unwrap();
    fs::write(&archive, [0xff; 4096]).unwrap();
    let load = ["--dir", str(&store), "--sort-memory", "1MiB", "--input", str(&archive)];
    let both = [&load[..], &["--incremental", str(&incremental)]].concat();
    let said = fails(1, &[&both[..], &["--extract", "token-owner"]].concat());
    assert!(said.contains("is kept for the next start"), "{said}");
    let said = fails(2, &[&load[..], &["--resume"]].concat());
    let shown = format!("the load was begun with an incremental archive: incremental={}", incremental.display());
    assert!(said.contains(&shown) && said.contains("store.work"), "{said}");
    // The spill is still there.
    let said = fails(1, &[&both[..], &["--resume"]].concat());
    assert!(said.contains("continuing the spill"), "{said}");
}

/// A source that is damaged is an error with its place, and never a verdict.
#[test]
fn a_damaged_archive_is_never_called_equal() {
    let home = tempfile::tempdir().unwrap();
    let (made, engine) = (versions(70), engines().next().unwrap());
    let (archive, store) = (write_archive(home.path(), SLOT, &made), home.path().join("store"));
    ok(&["--engine", engine, "--dir", str(&store), "--extract", "token-owner", "--input", str(&archive)]);
    let whole = fs::read(&archive).unwrap();
    let verify = ["verify", "--dir", str(&store), "--input", str(&archive)];
    let place = format!("archive={} entry=accounts/", archive.display());
    for cut in [whole.len() / 3, whole.len() / 2, whole.len() - 2000] {
        fs::write(&archive, &whole[..cut]).unwrap();
        let said = fails(1, &verify);
        assert!(said.contains(&place) && said.contains(" offset="), "cut={cut}: {said}");
        assert!(!said.contains("equal"), "cut={cut}: {said}");
    }
    // The length of the data of the first account of the third file.
    let header = whole.windows(9).enumerate().filter(|(_, bytes)| bytes == b"accounts/").nth(2).unwrap().0;
    let mut flipped = whole.clone();
    flipped[header + 512 + 15] ^= 0x80;
    fs::write(&archive, &flipped).unwrap();
    let said = fails(1, &verify);
    assert!(said.contains(&place) && said.contains(" offset=") && !said.contains("equal"), "{said}");
    // A value is no structure: it is a key that differs, and is named.
    let (changed, expected) = with_another_value(&whole, &made);
    fs::write(&archive, changed).unwrap();
    let (key, _) = expected.iter().find(|(key, value)| newest(&made)[*key] != **value).unwrap();
    let said = fails(1, &verify);
    assert!(said.contains(&format!("different: key={}", bs58::encode(key).into_string())), "{said}");
    assert!(said.contains("different=1 missing=0 only_in_store=0"), "{said}");
    fs::write(&archive, &whole).unwrap();
    assert!(ok(&verify).contains("equal: "));
}
