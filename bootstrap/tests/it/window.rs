//! Archives that were packed with a large window: the memory that a load of one takes, against the stated sum.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::archive::{Made, entry, full_name, newest, versions, write_archive};
use crate::limits::capped;
use crate::{command, digest, engines, ok, str};

const SLOT: u64 = 200;

/// Memory of a load while it reads an archive, without the window and the memory for sorting, as RUNBOOK.md states it:
/// the program and the unpacking.
const STATED_BYTES: u64 = (48 + 24) << 20;

/// Packs `bytes` into one frame with a window of `1 << window_log` bytes.
fn packed(bytes: &[u8], window_log: u32) -> Vec<u8> {
    let mut packer = zstd::Encoder::new(Vec::new(), 1).unwrap();
    packer.window_log(window_log).unwrap();
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

/// Returns the beginning of an archive: an entry that no load needs, larger than a window of `1 << window_log` bytes.
fn unneeded(window_log: u32) -> Vec<u8> {
    packed(&entry("snapshots/status_cache", b'0', &vec![0; (1 << window_log) + (32 << 20)]), window_log)
}

fn peak_bytes(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

fn tar(dir: &Path, made: &[Made]) -> Vec<u8> {
    fs::read(write_archive(dir, SLOT, made)).unwrap()
}

#[test]
fn the_largest_window_is_within_the_stated_memory() {
    const WINDOW_LOG: u32 = 27;
    const SORT_BYTES: u64 = 1 << 20;
    let home = tempfile::tempdir().unwrap();
    let (made, store) = (versions(5), home.path().join("store"));
    let load = ["--engine", engines().next().unwrap(), "--dir", str(&store), "--extract", "token-owner"];
    let source = ["--input", "-", "--format", "archive", "--slot", "200", "--sort-memory", "1MiB"];
    let mut child = command(&[&load[..], &source].concat());
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&unneeded(WINDOW_LOG)).unwrap();
    // A frame that is skipped, and larger than the pipe and the reader's buffer together: once it is written, the frame
    // before it was unpacked.
    let skipped_bytes = 1u32 << 20;
    input.write_all(&[0x50, 0x2a, 0x4d, 0x18]).unwrap();
    input.write_all(&skipped_bytes.to_le_bytes()).unwrap();
    input.write_all(&vec![0; skipped_bytes as usize]).unwrap();
    let peak = peak_bytes(&child);
    input.write_all(&packed(&tar(home.path(), &made), 19)).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    let (window, stated) = (1 << WINDOW_LOG, (1 << WINDOW_LOG) + SORT_BYTES + STATED_BYTES);
    assert!(peak > window && peak <= stated, "peak={peak} window={window} stated={stated}");
    assert!(ok(&["info", "--dir", str(&store), "--digest"]).contains(&digest(&newest(&made))));
}

#[test]
fn a_window_that_the_memory_has_no_room_for_is_refused_with_the_way_out() {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (made, engine) = (versions(6), engines().next().unwrap());
    let (tar, archive) = (tar(home.path(), &made), home.path().join(format!("{}.zst", full_name(SLOT))));
    for (window_log, code) in [(26, 1), (24, 0)] {
        fs::write(&archive, [unneeded(window_log), packed(&tar, 19)].concat()).unwrap();
        let store = home.path().join(window_log.to_string());
        let load = ["--engine", engine, "--dir", str(&store), "--extract", "token-owner", "--input", str(&archive)];
        // RocksDB needs more memory for any other order.
        let load = [&load[..], &["--order", "sorted"]].concat();
        let Some((found, said)) = capped(176 << 20, &load) else { return };
        assert_eq!(found, Some(code), "{said}");
        if code == 0 {
            assert!(ok(&["info", "--dir", str(&store), "--digest"]).contains(&digest(&newest(&made))));
        } else {
            assert!(said.contains("window_bytes=67108864 limit_bytes=23068672"), "{said}");
            assert!(said.contains("zstd -d --long=31") && said.contains(str(&archive)), "{said}");
        }
    }
}

#[test]
fn a_packed_file_of_pairs_with_a_larger_window_than_its_memory_allows_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (file, store) = (home.path().join("pairs.bin.zst"), home.path().join("store"));
    fs::write(&file, packed(&[[1; 64], [2; 64]].concat(), 27)).unwrap();
    let load = ["--engine", engines().next().unwrap(), "--dir", str(&store), "--input", str(&file)];
    let Some((code, said)) = capped(256 << 20, &load) else { return };
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("window_max_bytes=33554432") && said.contains("raise the memory limit"), "{said}");
}
