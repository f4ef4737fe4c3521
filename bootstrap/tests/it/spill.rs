//! Spills that were damaged, sources that have changed, and the remains of a load.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::{Map, command, digest, engines, fails, ok, raw_file, str, synthetic};

const RECORDS: u64 = 30_000;

/// A directory with a source, and with the store and spill of a load that has failed.
struct Scene {
    home: tempfile::TempDir,
    engine: &'static str,
    order: &'static str,
    map: Map,
}

impl Scene {
    /// Runs a load that reads and spills its source, and then fails at a key with two values.
    fn spilled(engine: &'static str, order: &'static str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let map = synthetic(RECORDS, 4);
        let (key, _) = map.iter().nth(9).unwrap();
        let last = ([*key, [1; 32]], [*key, map[key]]);
        let pairs = map.iter().map(|(key, value)| [*key, *value]).chain([last.0, last.1]).map(|[k, v]| (k, v));
        raw_file(home.path(), pairs);
        let scene = Self { home, engine, order, map };
        assert!(scene.fails(&[]).contains("a key is given twice"));
        scene
    }

    fn store(&self) -> PathBuf {
        self.home.path().join("store")
    }

    fn work(&self) -> PathBuf {
        self.home.path().join("store.work")
    }

    fn file(&self) -> PathBuf {
        self.home.path().join("pairs.bin")
    }

    fn args<'a>(&'a self, more: &[&'a str], dir: &'a Path, file: &'a Path) -> Vec<String> {
        let args = ["--engine", self.engine, "--dir", str(dir), "--order", self.order, "--input", str(file)];
        let args = [&args[..], &["--sort-memory", "1MiB", "--resume"], more].concat();
        args.into_iter().map(str::to_owned).collect()
    }

    #[track_caller]
    fn fails(&self, more: &[&str]) -> String {
        let args = self.args(more, &self.store(), &self.file());
        fails(1, &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    fn ok(&self, more: &[&str]) -> String {
        let args = self.args(more, &self.store(), &self.file());
        ok(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    fn holds(&self, map: &Map) {
        let info = ok(&["info", "--dir", str(&self.store()), "--digest"]);
        assert!(info.contains(&digest(map)) && info.contains("load=complete"), "{info}");
        assert!(!self.work().exists());
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(self.work()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.file_name().is_some_and(|name| name != "LOCK"));
        files.sort();
        files
    }
}

#[test]
fn a_damaged_spill_is_refused_by_name_and_made_again() {
    for (engine, order) in engines().flat_map(|engine| [(engine, "sorted"), (engine, "shuffled")]) {
        let scene = Scene::spilled(engine, order);
        let kept: Vec<(PathBuf, Vec<u8>)> =
            scene.files().into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect();
        assert_eq!(kept.len(), 9, "a manifest and runs of 4096 records: {kept:?}", kept = scene.files());
        // Layout of a run: a header of 40 bytes, then blocks of 512 records of 72 bytes with a checksum of 8 bytes
        // each.
        let run = &kept[3];
        let cut = |at: usize| Some(run.1[..at].to_vec());
        let flipped = |at: usize| {
            let mut bytes = run.1.clone();
            bytes[at] ^= 0x10;
            Some(bytes)
        };
        let block = 512 * 72 + 8;
        let damages = [
            ("emptied", cut(0)),
            ("cut anywhere", cut(run.1.len() / 2)),
            ("cut after a block", cut(40 + block)),
            ("cut after a record", cut(run.1.len() - 72)),
            // In the last block, because the failed load may have given the first ones back.
            ("a bit", flipped(run.1.len() - block + 100)),
            ("a bit of the last checksum", flipped(run.1.len() - 1)),
            ("a bit of the header", flipped(13)),
            ("longer", Some([&run.1[..], &run.1[40..40 + block]].concat())),
            ("another run", Some(kept[4].1.clone())),
            ("removed", None),
        ];
        for (what, bytes) in damages {
            match bytes {
                Some(bytes) => fs::write(&run.0, bytes).unwrap(),
                None => fs::remove_file(&run.0).unwrap(),
            }
            let said = scene.fails(&["--on-duplicate", "last"]);
            let named = format!("a file of the spill is damaged: file={}", run.0.display());
            assert!(said.contains(&named) && said.contains("--resume"), "{engine} {order} {what}: {said}");
            // The load may have given a part of the spill back before it came to the damage.
            kept.iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
        }
        let manifest = kept.iter().find(|(file, _)| file.ends_with("manifest.toml")).unwrap();
        let text = String::from_utf8(manifest.1.clone()).unwrap();
        fs::write(&manifest.0, text.replacen("records = 30", "records = 20", 1)).unwrap();
        let said = scene.fails(&["--on-duplicate", "last"]);
        assert!(said.contains(str(&manifest.0)), "{said}");
        // The way out that the message names must work.
        fs::remove_dir_all(scene.work()).unwrap();
        scene.ok(&["--on-duplicate", "last"]);
        scene.holds(&scene.map);
    }
}

#[test]
fn a_corrected_file_is_read_again_and_said_so() {
    for (engine, with_store) in engines().flat_map(|engine| [(engine, true), (engine, false)]) {
        let scene = Scene::spilled(engine, "sorted");
        if !with_store {
            fs::remove_dir_all(scene.store()).unwrap();
        }
        // The corrected file has its old length: the wrong line now has a key of its own.
        let mut corrected = scene.map.clone();
        corrected.insert([0xee; 32], [2; 32]);
        let first = corrected.iter().next().map(|(key, value)| (*key, *value));
        raw_file(scene.home.path(), corrected.iter().map(|(key, value)| (*key, *value)).chain(first));
        let said = scene.ok(&[]);
        assert!(said.contains("the source has changed, and its spill is made again"), "{said}");
        scene.holds(&corrected);
    }
}

#[test]
fn a_spill_is_used_again_for_its_own_source_alone() {
    let engine = engines().last().unwrap();
    let scene = Scene::spilled(engine, "sorted");
    // First the same file, then its own bytes copied over it.
    assert!(scene.fails(&[]).contains("the spill is whole and is used again"));
    let bytes = fs::read(scene.file()).unwrap();
    fs::write(scene.file(), &bytes).unwrap();
    assert!(scene.fails(&[]).contains("the source is read again from its start, to compare it"));
    assert!(scene.fails(&[]).contains("the spill is whole and is used again"));
    // A file that has grown is another source.
    fs::write(scene.file(), [&bytes[..], &[7; 64]].concat()).unwrap();
    let said = scene.fails(&[]);
    assert!(said.contains("the spill is from another load and is made again") && said.contains("was_bytes="), "{said}");
    // A work directory with a foreign file is left alone.
    let own = scene.home.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("letter.txt"), "x").unwrap();
    let said = scene.fails(&["--work-dir", str(&own)]);
    assert!(said.contains("entry=letter.txt") && own.join("letter.txt").exists(), "{said}");
}

#[test]
fn a_load_goes_on_with_what_was_read_before_it_was_killed() {
    for (engine, order) in engines().flat_map(|engine| [(engine, "sorted"), (engine, "shuffled")]) {
        let home = tempfile::tempdir().unwrap();
        let (store, manifest) = (home.path().join("store"), home.path().join("store.work/manifest.toml"));
        let file = raw_file(home.path(), synthetic(150_000, 8));
        let args = ["--engine", engine, "--dir", str(&store), "--order", order, "--sort-memory", "1MiB", "--resume"];
        let args = [&args[..], &["--input", str(&file)]].concat();
        let mut child = command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !manifest.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let said = ok(&args);
        // The load may have read the whole source before the kill.
        let went_on = said.contains("continuing the spill: dir=") || said.contains("is used again: dir=");
        assert!(went_on, "{engine} {order}: {said}");
        let info = ok(&["info", "--dir", str(&store), "--digest"]);
        assert!(info.contains(&digest(&synthetic(150_000, 8))), "{engine} {order}: {info}");
    }
}

/// Runs a load and kills it once a part of its spill was given back to the file system.
fn kill_with_a_part_given_back(args: &[&str], work: &Path) {
    let manifest = work.join("manifest.toml");
    let is_given = || {
        let text = fs::read_to_string(&manifest).unwrap_or_default();
        text.split("[given_back]\n").nth(1).is_some_and(|rest| !rest.starts_with("pairs = 0\n"))
    };
    let mut child = command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !is_given() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9), "{args:?}: the load was over before its spill was given back");
    assert!(is_given());
}

#[test]
fn a_load_goes_on_with_the_rest_of_its_spill_or_makes_it_anew() {
    const PAIRS: u64 = 400_000;
    let expected = digest(&synthetic(PAIRS, 8));
    for (engine, order) in engines().flat_map(|engine| [(engine, "sorted"), (engine, "shuffled")]) {
        let home = tempfile::tempdir().unwrap();
        let (store, work) = (home.path().join("store"), home.path().join("store.work"));
        let file = raw_file(home.path(), synthetic(PAIRS, 8));
        let args = ["--engine", engine, "--dir", str(&store), "--order", order, "--resume", "--input", str(&file)];
        let holds = |said: &str| {
            let info = ok(&["info", "--dir", str(&store), "--digest"]);
            assert!(
                info.contains(&expected) && info.contains("load=complete"),
                "{engine} {order}: {info} after {said}"
            );
            assert!(!work.exists(), "{engine} {order}");
        };
        let small = [&args[..], &["--sort-memory", "1MiB"]].concat();
        kill_with_a_part_given_back(&small, &work);
        let said = ok(&args);
        assert!(said.contains("the rest of the spill is used again: dir="), "{engine} {order}: {said}");
        holds(&said);
        fs::remove_dir_all(&store).unwrap();
        // Without the store, the rest is of no use.
        kill_with_a_part_given_back(&small, &work);
        fs::remove_dir_all(&store).unwrap();
        let said = ok(&small);
        let anew = "the source is read again from its start, because a part of its spill was given back";
        assert!(said.contains(anew) && said.contains(" stored_pairs=0"), "{engine} {order}: {said}");
        holds(&said);
    }
}

#[test]
fn a_complete_load_of_another_source_is_told_from_its_own() {
    let engine = engines().last().unwrap();
    let home = tempfile::tempdir().unwrap();
    let store = home.path().join("store");
    let file = raw_file(home.path(), synthetic(300, 1));
    let base = ["--engine", engine, "--dir", str(&store), "--resume"];
    let from_file = [&base[..], &["--input", str(&file)]].concat();
    let nothing = |args: &[&str]| {
        let said = ok(args);
        assert!(
            said.contains("the load is complete, there is nothing to resume") && said.contains("pairs=300"),
            "{said}"
        );
        said
    };
    let refused = |args: &[&str], how: &str| {
        let said = fails(1, args);
        assert!(said.contains("the store holds a load ") && said.contains(how), "{how}: {said}");
    };
    ok(&[&from_file[..], &["--slot", "5"]].concat());
    nothing(&from_file);
    nothing(&[&from_file[..], &["--slot", "5"]].concat());
    refused(&[&from_file[..], &["--slot", "6"]].concat(), "as of another slot: dir=");
    refused(&[&from_file[..], &["--slot", "6"]].concat(), "loaded_slot=5 asked_slot=6");
    // The slot in the store takes precedence over the state file, whether that was edited by hand or is gone.
    let own = store.join("bootstrap.toml");
    let text = fs::read_to_string(&own).unwrap();
    let edited = text.lines().filter(|line| !line.starts_with("checksum")).collect::<Vec<_>>().join("\n");
    assert!(edited.contains("slot = 5"));
    for changed in [Some(edited.replace("slot = 5", "slot = 6")), None] {
        match changed {
            Some(changed) => fs::write(&own, changed).unwrap(),
            None => fs::remove_file(&own).unwrap(),
        }
        refused(&[&from_file[..], &["--slot", "6"]].concat(), "loaded_slot=5 asked_slot=6");
        ok(&[&from_file[..], &["--slot", "5"]].concat());
    }
    fs::write(&own, text).unwrap();
    let again = fails(1, &["--engine", engine, "--dir", str(&store), "--input", str(&file)]);
    assert!(again.contains("already holds a complete load") && again.contains("--resume"), "{again}");
    refused(&[&base[..], &["--pairs", "300"]].concat(), "asked=\"synthetic pairs=300 seed=1\"");
    // First a new time of modification, then a change that neither size nor time of modification shows.
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes).unwrap();
    assert!(nothing(&from_file).contains("the source is read, to compare it"));
    assert!(!nothing(&from_file).contains("the source is read"));
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    let mut changed = bytes.clone();
    changed[40] ^= 1;
    fs::write(&file, &changed).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
    refused(&from_file, "loaded_content=");
    fs::write(&file, [&bytes[..], &[7; 64]].concat()).unwrap();
    refused(&from_file, "loaded_bytes=19200 bytes=19264");
    let moved = home.path().join("moved.bin");
    fs::write(&moved, &bytes).unwrap();
    nothing(&[&base[..], &["--input", str(&moved)]].concat());
    fs::remove_file(&moved).unwrap();
    assert!(nothing(&[&base[..], &["--input", str(&moved)]].concat()).contains("its source is gone"));
    if let Some(other) = engines().find(|other| *other != engine) {
        let said = fails(1, &["--engine", other, "--dir", str(&store), "--resume", "--input", str(&file)]);
        assert!(said.contains(&format!("directory holds {engine}, asked for {other}")), "{said}");
    }
    // The same for a synthetic source.
    let store = home.path().join("synthetic");
    let args = ["--engine", engine, "--dir", str(&store), "--resume", "--pairs", "300"];
    ok(&args);
    nothing(&args);
    refused(&[&args[..], &["--seed", "2"]].concat(), "seed=2");
}

#[test]
fn a_part_of_another_source_is_refused_before_the_source_is_read() {
    for engine in engines() {
        let home = tempfile::tempdir().unwrap();
        let store = home.path().join("store");
        let args = ["--engine", engine, "--dir", str(&store), "--order", "shuffled", "--pairs", "9000"];
        ok(&args);
        crate::cut_short(&store);
        let resumed = ["--engine", engine, "--dir", str(&store), "--resume", "--pairs", "9000"];
        for (more, how) in [
            (&["--seed", "2"][..], "asked=\"synthetic pairs=9000 seed=2\""),
            (&["--order", "sorted"], "loaded_order=shuffled asked_order=sorted"),
        ] {
            let said = fails(1, &[&resumed[..], more].concat());
            assert!(said.contains("the store holds a load ") && said.contains(how), "{said}");
        }
        // The order of the first run is kept, whatever the engine's default is.
        ok(&resumed);
    }
}

#[test]
fn a_spill_of_a_complete_load_is_removed() {
    for engine in engines() {
        let scene = Scene::spilled(engine, "sorted");
        // The state that a process leaves when it is killed after its last message.
        let elsewhere = scene.home.path().join("elsewhere");
        scene.ok(&["--on-duplicate", "last", "--work-dir", str(&elsewhere)]);
        assert!(scene.work().join("manifest.toml").exists());
        let said = scene.ok(&[]);
        assert!(said.contains("the load is complete, and its spill was removed"), "{said}");
        scene.holds(&scene.map);
    }
}

#[test]
fn a_small_load_that_fails_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (store, csv) = (home.path().join("store"), home.path().join("pairs.csv"));
    let line = |byte: u8| format!("{0},{0}\n", bs58::encode([byte; 32]).into_string());
    let good: String = (1..100).map(line).collect();
    for (text, reason) in [(good.clone() + "x,y\n", "line=100"), (good.repeat(2), "")] {
        fs::write(&csv, text).unwrap();
        let args = ["--dir", str(&store), "--order", "shuffled", "--input", str(&csv)];
        let output = command(&args).output().unwrap();
        let said = crate::text(&output);
        assert_eq!(output.status.success(), reason.is_empty(), "{said}");
        assert!(said.contains(reason), "{said}");
        assert!(!home.path().join("store.work").exists(), "{said}");
    }
}

#[test]
fn standard_input_is_given_again_and_compared() {
    let engine = engines().last().unwrap();
    let scene = Scene::spilled(engine, "sorted");
    fs::remove_dir_all(scene.work()).unwrap();
    fs::remove_dir_all(scene.store()).unwrap();
    let store = scene.store();
    let load = |file: &Path, more: &[&str]| {
        let args = scene.args(more, &store, Path::new("-"));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = command(&args).stdin(fs::File::open(file).unwrap()).output().unwrap();
        (output.status.code(), crate::text(&output))
    };
    let (code, said) = load(&scene.file(), &[]);
    assert!(code == Some(1) && said.contains("a key is given twice"), "{said}");
    let other = scene.home.path().join("other.bin");
    fs::write(&other, &fs::read(scene.file()).unwrap()[64..]).unwrap();
    let (code, said) = load(&other, &["--on-duplicate", "last"]);
    assert!(
        code == Some(1) && said.contains("give the same source and options as the first time, or remove dir="),
        "{said}"
    );
    let (code, said) = load(&scene.file(), &["--on-duplicate", "last"]);
    assert_eq!(code, Some(0), "{said}");
    scene.holds(&scene.map);
}

#[test]
fn a_load_on_other_terms_is_refused_whether_it_has_finished_or_not() {
    let engine = engines().last().unwrap();
    let home = tempfile::tempdir().unwrap();
    let store = home.path().join("store");
    let load = ["--engine", engine, "--dir", str(&store), "--resume", "--pairs", "900"];
    let terms = ["--extract", "account-owner", "--cluster", "a", "--slot", "5"];
    ok(&[&load[..], &terms].concat());
    for finished in [true, false] {
        for (at, other, how) in [
            (1, "token-mint", "holds extract=account-owner, asked for extract=token-mint"),
            (3, "b", "holds cluster=a, asked for cluster=b"),
            (5, "6", "loaded_slot=5 asked_slot=6"),
        ] {
            let mut asked = terms;
            asked[at] = other;
            let said = fails(1, &[&load[..], &asked].concat());
            assert!(said.contains(how), "finished={finished}: {said}");
        }
        if finished {
            crate::cut_short(&store);
        }
    }
    // The directory keeps all three, so that they need not be given again.
    ok(&load);
    assert!(ok(&[&load[..], &terms].concat()).contains("there is nothing to resume"));
    assert!(ok(&["info", "--dir", str(&store)]).contains("checkpoint seq=900 slot=5"));
}

#[test]
fn a_store_whose_files_are_gone_is_not_moved_nor_loaded_nor_looked_at() {
    for engine in engines() {
        let home = tempfile::tempdir().unwrap();
        let (store, new) = (home.path().join("store"), home.path().join("new"));
        let load = ["--engine", engine, "--dir", str(&store), "--pairs", "900"];
        ok(&load);
        fs::remove_dir_all(store.join("data")).unwrap();
        fs::create_dir(store.join("data")).unwrap();
        for args in [
            &["info", "--dir", str(&store)][..],
            &["count", "--dir", str(&store)],
            &["verify", "--dir", str(&store), "--pairs", "900"],
            &["--from-store", str(&store), "--dir", str(&new)],
            &[&load[..], &["--resume"]].concat(),
            &load,
        ] {
            let said = fails(1, args);
            assert!(said.contains("files are gone") && said.contains("restore a snapshot"), "{args:?}: {said}");
        }
        assert!(!new.exists() && fs::read_dir(store.join("data")).unwrap().count() == 0);
    }
}
