//! `bootstrap repair` on a real store whose files are missing or damaged: its messages and its results.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{cut_short, digest, engines, fails, ok, str, synthetic};

/// Loads 20,000 pairs in order into a strata store; `None` if strata is not in this build.
fn loaded(dir: &Path) -> Option<PathBuf> {
    let store = dir.join("store");
    let strata = engines().any(|engine| engine == "strata");
    strata.then(|| ok(&["--engine", "strata", "--dir", str(&store), "--order", "sorted", "--pairs", "20000"]));
    strata.then_some(store)
}

/// Lists the segment files of the store.
fn segments(store: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(store.join("data")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|kind| kind == "seg")).collect()
}

#[test]
fn a_store_without_its_manifest_is_refused_and_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let Some(store) = loaded(dir.path()) else { return };
    assert!(ok(&["repair", "--dir", str(&store)]).contains("in order: nothing was changed"));
    fs::remove_file(store.join("data/MANIFEST")).unwrap();
    let before = segments(&store);
    // Once, looking at such a store was enough to lose it.
    for command in ["info", "count", "scrub"] {
        let said = fails(1, &[command, "--dir", str(&store)]);
        assert!(said.contains("manifest is missing") && said.contains("bootstrap repair"), "{command}: {said}");
        assert_eq!(segments(&store), before, "{command}");
    }
    // The exit code is 1, because nobody knows whether other files are missing too.
    let said = fails(1, &["repair", "--dir", str(&store)]);
    assert!(said.contains("made anew of 1 segments") && said.contains("seq=20000"), "{said}");
    let info = ok(&["info", "--dir", str(&store), "--digest"]);
    assert!(info.contains(&digest(&synthetic(20_000, 1))), "{info}");
    let said = fails(1, &["repair", "--dir", str(&store)]);
    assert!(said.contains("nothing was changed, and an earlier repair has lost a part"), "{said}");
    // Removing the file is how the operator says that the store was compared.
    fs::remove_file(store.join("data/LOST")).unwrap();
    assert!(ok(&["repair", "--dir", str(&store)]).contains("in order"));
}

#[test]
fn a_damaged_page_is_left_out_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let Some(store) = loaded(dir.path()) else { return };
    let path = segments(&store).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[10 * 4096 + 1000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let damaged = fails(1, &["scrub", "--dir", str(&store)]);
    assert!(damaged.contains("damaged: ") && damaged.contains("repair --dir"), "{damaged}");
    let said = fails(1, &["repair", "--dir", str(&store)]);
    for words in ["lost: file=", "offset=40960", "keys_from=", "keys are missing", "repaired: "] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let sound = ok(&["scrub", "--dir", str(&store)]);
    let pairs: u64 = sound.split("pairs=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((20_000 - 80..20_000).contains(&pairs), "{sound}");
}

#[test]
fn a_store_of_another_engine_or_none_is_not_repaired() {
    let dir = tempfile::tempdir().unwrap();
    assert!(fails(1, &["repair", "--dir", str(dir.path())]).contains("there is no store"));
    for engine in engines().filter(|engine| *engine != "strata") {
        let store = dir.path().join(engine);
        ok(&["--engine", engine, "--dir", str(&store), "--pairs", "100"]);
        let said = fails(1, &["repair", "--dir", str(&store)]);
        assert!(said.contains("cannot be repaired") && said.contains(engine), "{said}");
    }
}

#[test]
fn a_repair_after_one_that_has_lost_a_part_says_so_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(store) = loaded(dir.path()) else { return };
    let flip = |path: &Path, from_the_end: bool, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        let at = if from_the_end { bytes.len() - at } else { at };
        bytes[at] ^= 1;
        fs::write(path, &bytes).unwrap();
    };
    flip(&segments(&store).remove(0), false, 10 * 4096 + 1000);
    assert!(fails(1, &["repair", "--dir", str(&store)]).contains("lost: file="));
    // Nothing more is lost with the directory, which lies before the footer.
    flip(&segments(&store).remove(0), true, 4096 + 4090);
    let said = fails(1, &["repair", "--dir", str(&store)]);
    assert!(said.contains("found: ") && !said.contains("lost: file="), "{said}");
    assert!(said.contains("an earlier repair has lost a part"), "{said}");
}

#[test]
fn a_load_that_was_interrupted_does_not_go_on_after_a_repair_has_lost_a_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(store) = loaded(dir.path()) else { return };
    cut_short(&store);
    let path = segments(&store).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[10 * 4096 + 1000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    fails(1, &["repair", "--dir", str(&store)]);
    let again = ["--engine", "strata", "--dir", str(&store), "--order", "sorted", "--pairs", "20000", "--resume"];
    let said = fails(1, &again);
    assert!(said.contains("has lost a part of its load") && said.contains("load again"), "{said}");
}
