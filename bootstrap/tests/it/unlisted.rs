//! Archives as today's validators write them, whose manifest lists no files; servers that say nothing, and proxies.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::archive::{FULL, INCREMENTAL, listed, unpacked};
use crate::rewrite::{Named, firedancer, parts, without_list, zstd_frames};
use crate::{command, digest, engines, fails, ok, str};

/// Frames of the full archive and of the incremental one.
type Both = [Vec<Vec<u8>>; 2];

fn frames(pack: impl Fn(&[u8]) -> Vec<Vec<u8>>) -> Both {
    [FULL, INCREMENTAL].map(|name| pack(&unpacked(name)))
}

/// Writes an archive of these frames under its name.
fn write(dir: &Path, name: &str, frames: &[Vec<u8>]) -> std::path::PathBuf {
    let path = dir.join(format!("{name}.zst"));
    fs::write(&path, frames.concat()).unwrap();
    path
}

#[test]
fn archives_that_list_no_files_load_and_info_says_so() {
    let (engine, home) = (engines().next().unwrap(), tempfile::tempdir().unwrap());
    let as_firedancer = |named| frames(|tar| zstd_frames(&parts(&firedancer(tar, named))));
    // Without a list alone, the archive is one frame, as agave writes it.
    let agave = frames(|tar| vec![zstd::encode_all(&parts(&without_list(tar)).concat()[..], 1).unwrap()]);
    let shapes = [agave, as_firedancer(Named::SameSlot), as_firedancer(Named::CountingDown)];
    for (number, [full, incremental]) in shapes.into_iter().enumerate() {
        let (full, incremental) = (write(home.path(), FULL, &full), write(home.path(), INCREMENTAL, &incremental));
        for (slot, more) in [("351000355", vec![]), ("351000368", vec!["--incremental", str(&incremental)])] {
            let store = home.path().join(format!("{number}-{slot}"));
            let source = [&["--input", str(&full)][..], &more].concat();
            let load = ["--engine", engine, "--dir", str(&store), "--extract", "token-owner", "--sort-memory", "1MiB"];
            let report = home.path().join("report.json");
            let said = ok(&[&load[..], &["--report", str(&report)], &source].concat());
            assert!(said.contains("  manifest") && said.contains("lists no files: the archive's end alone"), "{said}");
            assert!(!said.contains("would not be noticed"), "{said}");
            assert!(fs::read_to_string(report).unwrap().contains("\"manifest_list\": \"none\""));
            let info = ok(&["info", "--dir", str(&store), "--digest"]);
            assert!(
                info.contains(&digest(&listed(&format!("expected-{slot}.csv"), "owner"))),
                "{number} {slot}: {info}"
            );
            assert!(info.contains("\nmanifest_list=none\n"), "{info}");
            let json = ok(&["info", "--dir", str(&store), "--json"]);
            assert!(json.contains("\"manifest_list\": \"none\""), "{json}");
            let verified = ok(&[&["verify", "--dir", str(&store)][..], &source].concat());
            assert!(verified.contains("equal: "), "{verified}");
        }
    }
    // Of a list that was compared there is nothing to say.
    let (store, full) =
        (home.path().join("listed"), write(home.path(), FULL, &[zstd::encode_all(&unpacked(FULL)[..], 1).unwrap()]));
    let said = ok(&["--engine", engine, "--dir", str(&store), "--extract", "token-owner", "--input", str(&full)]);
    assert!(!said.contains("  manifest"), "{said}");
    let info = ok(&["info", "--dir", str(&store)]);
    assert!(!info.contains("manifest_list"), "{info}");
}

/// The bytes that have come are whole frames, so nothing but the end of the tar is missing.
#[test]
fn a_download_that_was_cut_between_two_frames_makes_no_store() {
    let (engine, home) = (engines().next().unwrap(), tempfile::tempdir().unwrap());
    let store = home.path().join("store");
    let [full, incremental] = frames(|tar| zstd_frames(&parts(&firedancer(tar, Named::SameSlot))));
    for (cut_full, cut_incremental) in [(1, 0), (2, 0), (0, 1), (0, 4)] {
        let cut = |name, frames: &[Vec<u8>], by: usize| write(home.path(), name, &frames[..frames.len() - by]);
        let (full, incremental) = (cut(FULL, &full, cut_full), cut(INCREMENTAL, &incremental, cut_incremental));
        let of = if cut_full > 0 { &full } else { &incremental };
        let load = ["--engine", engine, "--dir", str(&store), "--extract", "token-owner"];
        let said = fails(1, &[&load[..], &["--input", str(&full), "--incremental", str(&incremental)]].concat());
        assert!(said.contains(str(of)) && said.contains("ends before its end marker: get the archive again"), "{said}");
        assert!(fails(1, &["info", "--dir", str(&store)]).contains("there is no store"));
    }
}

/// In a full archive each account is there once, but versions of slot 0 would lose against those of any full archive.
#[test]
fn an_incremental_archive_of_slot_zero_is_refused_and_a_full_one_loads() {
    let (engine, home) = (engines().next().unwrap(), tempfile::tempdir().unwrap());
    let [full, incremental] = frames(|tar| zstd_frames(&parts(&firedancer(tar, Named::SlotZero))));
    let (full, incremental) = (write(home.path(), FULL, &full), write(home.path(), INCREMENTAL, &incremental));
    let (store, other) = (home.path().join("store"), home.path().join("other"));
    let load = ["--engine", engine, "--extract", "token-owner", "--input", str(&full), "--dir"];
    ok(&[&load[..], &[str(&store)]].concat());
    let info = ok(&["info", "--dir", str(&store), "--digest"]);
    assert!(info.contains(&digest(&listed("expected-351000355.csv", "owner"))), "{info}");
    let said = fails(1, &[&load[..], &[str(&other), "--incremental", str(&incremental)]].concat());
    assert!(said.contains(str(&incremental)) && said.contains("as Firedancer named all of them at first"), "{said}");
}

/// The request would end by itself only with its time-out, after which the server would be asked again.
#[test]
fn a_signal_ends_the_wait_for_a_server_that_says_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (store, new) = (home.path().join("store"), home.path().join("new"));
    ok(&["--dir", str(&store), "--pairs", "1000"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{FULL}", listener.local_addr().unwrap());
    let source = ["--extract", "token-owner", "--input", &url];
    for (words, signal, code) in [
        (vec!["load", "--dir", str(&new)], Signal::INT, 130),
        (vec!["load", "--dir", str(&new)], Signal::TERM, 143),
        (vec!["verify", "--dir", str(&store)], Signal::TERM, 143),
    ] {
        let words = [&words[..], &source].concat();
        let mut child = command(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert!(BufReader::new(&stream).lines().map_while(Result::ok).any(|line| line.is_empty()));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{words:?}: {said}");
        assert!(said.contains("the same command begins again") && !said.contains("is asked again"), "{said}");
    }
    assert!(!new.exists());
}

#[test]
fn a_signal_ends_the_wait_for_the_writer_of_a_pipe() {
    let home = tempfile::tempdir().unwrap();
    let (store, pipe) = (home.path().join("store"), home.path().join(FULL));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let load = ["--dir", str(&store), "--extract", "token-owner", "--input", str(&pipe)];
    let mut child = command(&load).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !store.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143), "{said}");
    // With a writer the same pipe is an archive.
    let to = pipe.clone();
    let writer = std::thread::spawn(move || fs::write(to, unpacked(FULL)));
    let said = ok(&load);
    assert!(said.contains("slot=351000355"), "{said}");
    writer.join().unwrap().unwrap();
}

#[test]
fn a_failure_names_the_proxy_and_not_its_password() {
    let home = tempfile::tempdir().unwrap();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (proxy, server) = (free(), free());
    let url = format!("http://{server}/{FULL}");
    let load =
        ["--dir", str(&home.path().join("store")), "--extract", "token-owner", "--input", &url].map(str::to_owned);
    for (variable, scheme, no_proxy, expected) in [
        ("http_proxy", "http", "", Some("")),
        ("ALL_PROXY", "socks5", "", Some(", of which http alone is supported")),
        ("ALL_PROXY", "http", "127.0.0.1", None),
    ] {
        let mut command = command(&load.each_ref().map(String::as_str));
        for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        command.env(variable, format!("{scheme}://user:secret@{proxy}")).env("NO_PROXY", no_proxy);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("is asked again") {
            assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let named = expected.map(|hint| format!("proxy={proxy} from ALL_PROXY, HTTPS_PROXY or HTTP_PROXY{hint}"));
        assert_eq!(line.contains("proxy="), named.is_some(), "{variable}: {line}");
        assert!(named.is_none_or(|named| line.contains(&named)) && !line.contains("secret"), "{variable}: {line}");
        assert!(line.contains(&format!("archive=http://{server}/{FULL}")), "{line}");
    }
}

/// gzip itself ignores such padding, as tapes and block devices add it.
#[test]
fn zeros_after_a_packed_csv_are_padding() {
    let home = tempfile::tempdir().unwrap();
    let text = |byte: u8| bs58::encode([byte; 32]).into_string();
    let mut packer = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    (1..9).for_each(|byte| writeln!(packer, "{},{}", text(byte), text(byte)).unwrap());
    let (input, store) = (home.path().join("pairs.csv.gz"), home.path().join("store"));
    fs::write(&input, [packer.finish().unwrap(), vec![0; 512]].concat()).unwrap();
    ok(&["--dir", str(&store), "--input", str(&input), "--expect-pairs", "8"]);
}
