//! Memory: loads in a real cgroup. Disk: the bytes a pair that the store of each engine takes.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use conformance::{Ability, able};
use probe::Cap;

use crate::{digest, engines, ok, raw_file, str, synthetic, text};

/// Held while a cgroup exists, because its name comes from the process and so there can be only one at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Runs the program under a memory cap. `None` if this machine does not let the process create a cgroup.
pub(crate) fn capped(bytes: u64, args: &[&str]) -> Option<(Option<i32>, String)> {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let cap = match Cap::create(bytes) {
        Cap::None(ref why) => Err(why.clone()),
        cap => Ok(cap),
    };
    let cap = able(Ability::Cgroup, cap)?;
    let output = cap.command(Path::new(env!("CARGO_BIN_EXE_bootstrap"))).unwrap().args(args).output().unwrap();
    Some((output.status.code(), text(&output)))
}

/// The first engine gets more records than fit into the cap, so buffers that ignored the cap would end the load.
#[test]
fn a_load_stays_within_a_small_cap() {
    for (place, engine) in engines().enumerate() {
        let count = if place == 0 { 2_600_000 } else { 300_000 };
        // On a real disk, because the files of a tmpfs count as memory.
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
fn all_but_rocksdb_are_loaded_sorted_unless_told_otherwise() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let load = |name: &str, more: &[&str]| {
            let store = dir.path().join(name);
            ok(&[&["--engine", engine, "--dir", str(&store), "--pairs", "3000"], more].concat())
        };
        let is_sorted = engine != "rocksdb";
        let said = load("default", &[]);
        assert!(said.contains(if is_sorted { "(sorted)" } else { "(shuffled)" }), "{engine}: {said}");
        assert_eq!(said.contains("order=sorted engine="), is_sorted, "{engine}: {said}");
        let said = load("shuffled", &["--order", "shuffled"]);
        assert!(said.contains("(shuffled)") && !said.contains("order="), "{engine}: {said}");
    }
}

/// Runs the program once on a disk of this size, a tmpfs. `None` if this process may not mount anything.
fn on_a_disk_of(mib: u64, dir: &Path, args: &[&str], input: Option<&Path>) -> Option<(Option<i32>, String)> {
    mounted(&["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"], dir, args, input)
}

/// Runs the program once with a file system mounted at `dir`, and lists that directory afterwards.
fn mounted(mount: &[&str], dir: &Path, args: &[&str], input: Option<&Path>) -> Option<(Option<i32>, String)> {
    const RUN: &str = "mount $1 \"$2\" || exit 77; shift 2; \"$@\"; code=$?; ls \"$0\"; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", RUN, str(dir), &mount.join(" "), str(dir), env!("CARGO_BIN_EXE_bootstrap")]);
    let input = input.map_or_else(Stdio::null, |path| Stdio::from(File::open(path).unwrap()));
    let output = command.args(args).stdin(input).output().unwrap();
    let said = text(&output);
    let is_mounted = output.status.code() != Some(77) && !said.contains("unshare: unshare failed");
    let said = able(Ability::Root, if is_mounted { Ok(said) } else { Err(said) })?;
    Some((output.status.code(), said))
}

/// The number of such pairs is known only after reading: the check must come then, and before a store is created.
#[test]
fn pairs_that_nobody_can_count_before_must_fit_on_the_disk_as_well() {
    let dir = tempfile::tempdir().unwrap();
    // Half of each pair packs to almost nothing, so the packed file's length says little about the number of pairs.
    let pairs = synthetic(120_000, 3).into_keys().map(|key| (key, [7; 32]));
    let raw = raw_file(dir.path(), pairs);
    let packed = dir.path().join("pairs.bin.zst");
    fs::write(&packed, zstd::encode_all(&fs::read(&raw).unwrap()[..], 1).unwrap()).unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let store = disk.join("store");
    for engine in engines() {
        // Room for the engine's reserve, and for fewer bytes than the pairs take.
        let kind = engines::EngineKind::ALL.into_iter().find(|kind| kind.as_str() == engine).unwrap();
        let mib = 8 + engines::EngineOptions::new(kind).disk_reserve_bytes().div_ceil(1 << 20);
        for (input, stdin) in [(str(&packed), None), ("-", Some(raw.as_path()))] {
            let args = ["--engine", engine, "--dir", str(&store), "--input", input];
            let Some((code, said)) = on_a_disk_of(mib, &disk, &args, stdin) else { return };
            assert_eq!(code, Some(1), "{engine} {input}: {said}");
            assert!(said.contains("not enough disk") && said.contains("--resume"), "{engine} {input}: {said}");
            assert!(!said.lines().any(|line| line == "store"), "{engine} {input}: {said}");
        }
        // A pipe that fills the disk with its spill is stopped before a write fails.
        let args = ["--engine", engine, "--dir", str(&store), "--input", "-", "--sort-memory", "1MiB"];
        let (code, said) = on_a_disk_of(4, &disk, &args, Some(&raw)).unwrap();
        assert!(code == Some(1) && said.contains("not enough disk for the next part of the spill"), "{engine}: {said}");
        let packed_more = dir.path().join("more.bin.zst");
        fs::write(&packed_more, vec![0; 64 << 20]).unwrap();
        let args = ["--engine", engine, "--dir", str(&store), "--input", str(&packed_more)];
        let (code, said) = on_a_disk_of(mib, &disk, &args, None).unwrap();
        assert!(code == Some(1) && said.contains("not enough disk") && !said.contains("has been read"), "{said}");
    }
}

/// A ramfs has no holes. The load needs more room there, and is the same otherwise.
#[test]
fn a_spill_stays_whole_where_files_cannot_have_holes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    for engine in engines() {
        let (store, work) = (dir.path().join(engine), disk.join("work"));
        let args = ["--engine", engine, "--dir", str(&store), "--pairs", "30000", "--order", "sorted"];
        let args = [&args[..], &["--sort-memory", "1MiB", "--work-dir", str(&work), "--skip-disk-check"]].concat();
        let Some((code, said)) = mounted(&["-t", "ramfs", "ramfs"], &disk, &args, None) else { return };
        assert_eq!(code, Some(0), "{engine}: {said}");
        assert!(said.contains("the spill stays whole until the load is complete"), "{engine}: {said}");
        let info = ok(&["info", "--dir", str(&store), "--digest"]);
        assert!(info.contains(&digest(&synthetic(30_000, 1))), "{engine}: {info}");
    }
}

/// A disk that has room for the larger of store and spill and a little more, not for both.
#[test]
fn store_and_spill_need_not_fit_on_the_disk_together() {
    const PAIRS: u64 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let (store, pairs) = (disk.join("store"), PAIRS.to_string());
    for engine in engines().filter(|engine| *engine == "strata") {
        let kind = engines::EngineKind::ALL.into_iter().find(|kind| kind.as_str() == engine).unwrap();
        let reserve_bytes = engines::EngineOptions::new(kind).disk_reserve_bytes();
        let args = ["--engine", engine, "--dir", str(&store), "--pairs", &pairs, "--order", "sorted"];
        let args = [&args[..], &["--sort-memory", "16MiB"]].concat();
        let room = |bytes: u64| (bytes + reserve_bytes).div_ceil(1 << 20);
        let Some((code, said)) = on_a_disk_of(room(PAIRS * 84), &disk, &args, None) else { return };
        assert!(code == Some(0) && said.contains("1,000,000 (sorted)"), "{engine}: {said}");
        let (code, said) = on_a_disk_of(room(PAIRS * 70), &disk, &args, None).unwrap();
        assert!(code == Some(1) && said.contains("not enough disk"), "{engine}: {said}");
    }
}
