//! Memory: loads in a real cgroup. Disk: what a store of each engine takes a pair.

use std::path::Path;
use std::sync::Mutex;

use probe::Cap;

use crate::{digest, engines, ok, str, synthetic, text};

/// A cgroup is named by the process, so that there is one at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Runs the program under a cap; `None` where this machine gives no process one.
pub(crate) fn capped(bytes: u64, args: &[&str]) -> Option<(Option<i32>, String)> {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let cap = Cap::create(bytes);
    if let Cap::None(why) = &cap {
        eprintln!("not run: {why}");
        return None;
    }
    let output = cap.command(Path::new(env!("CARGO_BIN_EXE_bootstrap"))).unwrap().args(args).output().unwrap();
    Some((output.status.code(), text(&output)))
}

/// On the first engine more records than the cap has bytes for, so that buffers which ignore it are its end.
#[test]
fn a_load_stays_within_a_small_cap() {
    for (engine, count) in engines().zip([2_600_000, 300_000, 300_000, 300_000]) {
        // On a disk: the files of a tmpfs are memory.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let store = dir.path().join("store");
        let pairs = count.to_string();
        let args = ["--engine", engine, "--dir", str(&store), "--pairs", &pairs, "--order", "sorted"];
        let Some((code, said)) = capped(176 << 20, &args) else { return };
        assert_eq!(code, Some(0), "{engine}: {said}");
        let info = ok(&["info", "--dir", str(&store), "--digest"]);
        assert!(info.contains(&digest(&synthetic(count, 1))), "{engine}: {info}");
    }
}

#[test]
fn a_cap_that_is_too_small_is_said_at_once_and_not_worth_another_start() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let args = ["--engine", engine, "--dir", str(&store), "--pairs", "1000"];
        let Some((code, said)) = capped(56 << 20, &args) else { return };
        assert_eq!(code, Some(2), "{engine}: {said}");
        assert!(said.contains("the memory limit is too small for this load") && said.contains("MemoryMax="), "{said}");
        assert!(!store.exists());
    }
}

#[test]
fn b_trees_are_loaded_sorted_unless_told_otherwise() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let load = |name: &str, more: &[&str]| {
            let store = dir.path().join(name);
            ok(&[&["--engine", engine, "--dir", str(&store), "--pairs", "3000"], more].concat())
        };
        let b_tree = ["lmdb", "redb"].contains(&engine);
        let said = load("default", &[]);
        assert!(said.contains(if b_tree { "(sorted)" } else { "(shuffled)" }), "{engine}: {said}");
        assert_eq!(said.contains("order=sorted, because engine="), b_tree, "{engine}: {said}");
        let said = load("shuffled", &["--order", "shuffled"]);
        assert!(said.contains("(shuffled)") && !said.contains("order="), "{engine}: {said}");
    }
}
