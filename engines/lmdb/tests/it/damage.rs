//! Files that are cut or damaged: refused by their length, or named when only a memory fault shows the damage.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::numbered::{all, at, commit, sorted};
use engine_api::{Durability, Engine, ErrorKind};
use solkv_engine_lmdb::{FILE_NAME, LmdbEngine, explain_faults};

use crate::{OPTIONS, open};

const PAGE_BYTES: u64 = 4096;

fn cut(file: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

#[test]
fn a_file_that_is_cut_is_refused_and_stays_as_it_is() {
    for in_order in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let engine = Box::new(open(home.path()));
        if in_order {
            engine.load_sorted(&sorted(0, 3000), &at(3000)).unwrap();
        } else {
            (0..6).for_each(|part| commit(&*engine, part * 500, (part + 1) * 500, Durability::Buffered));
        }
        engine.close().unwrap();
        let file = home.path().join(FILE_NAME);
        let sound = fs::read(&file).unwrap();
        let pages = sound.len() as u64 / PAGE_BYTES;
        assert!(pages > 60, "{pages}");
        for bytes in (3..pages).flat_map(|page| [page * PAGE_BYTES, page * PAGE_BYTES - 1, page * PAGE_BYTES + 77]) {
            cut(&file, bytes);
            for open in [LmdbEngine::open_read_only, LmdbEngine::open] {
                let error = open(home.path(), &OPTIONS)
                    .err()
                    .unwrap_or_else(|| panic!("unnoticed: {bytes} of {}", sound.len()));
                assert_eq!(error.kind(), ErrorKind::DataDamaged, "{bytes}: {error}");
                assert!(error.to_string().contains("data.mdb"), "{error}");
                assert_eq!(fs::metadata(&file).unwrap().len(), bytes);
            }
            fs::write(&file, &sound).unwrap();
        }
        assert_eq!(all(&open(home.path())).len(), 3000);
    }
}

/// LMDB does not write pages at the end that one transaction both allocates and frees. Here the meta pages are changed
/// to count such pages.
#[test]
fn a_sound_file_may_end_before_its_last_page() {
    const LAST_PAGE_AT: usize = 136;
    let home = tempfile::tempdir().unwrap();
    let engine = Box::new(open(home.path()));
    (0..6).for_each(|part| commit(&*engine, part * 500, (part + 1) * 500, Durability::Synced));
    engine.close().unwrap();
    let file = home.path().join(FILE_NAME);
    let mut bytes = fs::read(&file).unwrap();
    for meta_at in [0, PAGE_BYTES as usize] {
        let field = &mut bytes[meta_at + LAST_PAGE_AT..][..8];
        let last = u64::from_ne_bytes(field.try_into().unwrap());
        assert!((60..10_000).contains(&last), "not the number of the last page: {last}");
        field.copy_from_slice(&(last + 3).to_ne_bytes());
    }
    fs::write(&file, &bytes).unwrap();
    assert_eq!(all(&LmdbEngine::open_read_only(home.path(), &OPTIONS).unwrap()).len(), 3000);
    let engine = open(home.path());
    commit(&engine, 3000, 4000, Durability::Synced);
    drop(engine);
    assert_eq!(all(&open(home.path())).len(), 4000);
}

const DIR: &str = "SOLKV_TEST_FAULT_DIR";

/// Not a test of its own: the next test runs this function in a child process.
#[test]
fn child_that_meets_a_fault() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    explain_faults(std::env::var("SOLKV_TEST_FAULT_CODE").ok().map(|code| code.parse().unwrap()));
    let engine = LmdbEngine::open(Path::new(&dir), &OPTIONS).unwrap();
    // Cut while the store is open, so that no check at opening can see it.
    cut(&Path::new(&dir).join(FILE_NAME), 2 * PAGE_BYTES);
    all(&engine);
}

#[test]
fn a_memory_fault_names_the_file_and_ends_as_asked() {
    for code in [None, Some(3)] {
        let home = tempfile::tempdir().unwrap();
        let engine = Box::new(open(home.path()));
        engine.load_sorted(&sorted(0, 3000), &at(3000)).unwrap();
        engine.close().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "damage::child_that_meets_a_fault", "--nocapture"]).env(DIR, home.path());
        if let Some(code) = code {
            child.env("SOLKV_TEST_FAULT_CODE", code.to_string());
        }
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let file = home.path().join(FILE_NAME);
        let words = format!("solkv: memory fault SIGBUS with an LMDB store open: file={}: ", file.display());
        assert!(said.contains(&words) && said.contains("restore a snapshot"), "{said}");
        assert_eq!(output.status.code(), code, "{said}");
        assert_eq!(output.status.signal().is_none(), code.is_some());
    }
}

/// A service whose log collector has stalled still ends by the fault.
#[test]
fn a_memory_fault_ends_the_process_though_its_message_cannot_be_written() {
    let home = tempfile::tempdir().unwrap();
    let engine = Box::new(open(home.path()));
    engine.load_sorted(&sorted(0, 3000), &at(3000)).unwrap();
    engine.close().unwrap();
    let (_held, mut full) = std::io::pipe().unwrap();
    // SAFETY: the call has no pointer, and the descriptor is open.
    let bytes = unsafe { libc::fcntl(full.as_raw_fd(), libc::F_GETPIPE_SZ) };
    full.write_all(&vec![b'\n'; bytes.try_into().unwrap()]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "damage::child_that_meets_a_fault", "--nocapture"]).env(DIR, home.path());
    let mut child = child.stdout(Stdio::null()).stderr(full).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("the process waits for the reader of its message");
            }
            None => std::thread::sleep(Duration::from_millis(3)),
        }
    };
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}
