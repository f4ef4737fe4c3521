//! Snapshot archives as a source: those of agave against the bank's own list of accounts, and made ones with every
//! version of an account anywhere.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use workload::Rng;

use crate::{Map, command, digest, engines, fails, ok, str, text};

pub(crate) const FULL: &str = "snapshot-351000355-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar";
pub(crate) const INCREMENTAL: &str =
    "incremental-snapshot-351000355-351000368-2NbmC84r6h4FyfFczn1S9j2MSXqpXtzJrfmmSyyg1evr.tar";
/// Address of the SPL Token program in base58.
const TOKEN: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("solana/tests/data").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn unpacked(name: &str) -> Vec<u8> {
    zstd::decode_all(&data(&format!("{name}.zst"))[..]).unwrap()
}

/// The map of one column of a list that the bank has made.
pub(crate) fn listed(name: &str, column: &str) -> Map {
    let text = String::from_utf8(unpacked(name)).unwrap();
    let key = |text: &str| <[u8; 32]>::try_from(bs58::decode(text).into_vec().unwrap()).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let at = lines.next().unwrap().split(',').position(|name| name == column).unwrap();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        (key(fields[0]), key(fields[at]))
    };
    lines.map(row).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn archives_of_agave_hold_what_the_bank_lists() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: String, bytes: Vec<u8>| {
        let path = home.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let (full, incremental) = (unpacked(FULL), unpacked(INCREMENTAL));
    let as_written = |packing: &str| {
        [FULL, INCREMENTAL].map(|name| file(format!("{name}{packing}"), data(&format!("{name}{packing}"))))
    };
    let packings = [
        as_written(".zst"),
        as_written(".lz4"),
        [file(format!("{FULL}.gz"), gzip(&full)), file(format!("{INCREMENTAL}.gz"), gzip(&incremental))],
        [file(FULL.to_owned(), full), file(INCREMENTAL.to_owned(), incremental)],
    ];
    let slots = |with: bool| if with { "351000368" } else { "351000355" };
    let blockhash = |with: bool| match with {
        true => "12NbbUmhgyUKBbVjXJzYJoY4JWeoXi84XwPbsbLU6BWo",
        false => "DwoLY1vBXCYkiP3skMdvmSPgNobUGMKCMdnh4J8rc9dH",
    };
    for (number, engine) in engines().enumerate() {
        // Every engine takes every packing.
        let mut packings = packings.iter().cycle().skip(number);
        for (with, order) in [(false, "sorted"), (true, "sorted"), (true, "shuffled")] {
            for (extract, list, column) in [
                ("token-owner", "expected", "owner"),
                ("token-mint", "expected", "mint"),
                ("account-owner", "all-accounts", "program"),
            ] {
                let [full, incremental] = packings.next().unwrap();
                let store = home.path().join(format!("{engine}-{with}-{order}-{extract}"));
                let mut source = vec!["--input", str(full)];
                source.extend(with.then_some(["--incremental", str(incremental)]).into_iter().flatten());
                let load = ["--engine", engine, "--dir", str(&store), "--order", order, "--extract", extract];
                let said = ok(&[&load[..], &source].concat());
                assert!(said.contains(&format!("slot={}", slots(with))), "{said}");
                let expected = listed(&format!("{list}-{}.csv", slots(with)), column);
                let info = ok(&["info", "--dir", str(&store), "--digest"]);
                assert!(info.contains(&digest(&expected)), "{engine} {with} {order} {extract}: {info}");
                assert!(info.contains(&format!("blockhash={} phase=", blockhash(with))), "{info}");
                // The meaning is in the store.
                let verified = ok(&[&["verify", "--dir", str(&store)][..], &source].concat());
                assert!(verified.contains(&format!("stored_pairs={}", expected.len())), "{verified}");
            }
        }
    }
}

/// A comparison with another slot or another chain names that before anybody looks for lost keys.
#[test]
fn a_source_of_another_slot_or_chain_is_called_that() {
    let engine = engines().next().unwrap();
    let home = tempfile::tempdir().unwrap();
    let (full, incremental) = (home.path().join(format!("{FULL}.zst")), home.path().join(format!("{INCREMENTAL}.zst")));
    fs::write(&full, data(&format!("{FULL}.zst"))).unwrap();
    fs::write(&incremental, data(&format!("{INCREMENTAL}.zst"))).unwrap();
    let store = home.path().join("store");
    let load = ["--engine", engine, "--dir", str(&store), "--extract", "token-owner", "--input", str(&full)];
    ok(&[&load[..], &["--incremental", str(&incremental)]].concat());
    let said = fails(1, &["verify", "--dir", str(&store), "--input", str(&full)]);
    let warned = "the store is at slot=351000368, the source at slot=351000355";
    assert!(said.contains(warned) && said.contains("with --incremental?"), "{said}");
    assert!(!said.contains("no key in common"), "{said}");
    let made = Made::open(9, [7; 32], [8; 32]);
    let other = write_archive(home.path(), 351_000_368, &[made]);
    let said = fails(1, &["verify", "--dir", str(&store), "--input", str(&other)]);
    assert!(said.contains("no key in common: the source is probably of another chain"), "{said}");
    assert!(!said.contains("the source at slot="), "{said}");
}

/// One version of an account.
pub(crate) struct Made {
    slot: u64,
    file: u64,
    key: [u8; 32],
    /// `None`: the account is closed, or belongs to another program.
    value: Option<[u8; 32]>,
    closed: bool,
}

impl Made {
    /// Makes the version of an account that has this value.
    pub(crate) fn open(slot: u64, key: [u8; 32], value: [u8; 32]) -> Self {
        Self { slot, file: 0, key, value: Some(value), closed: false }
    }
}

/// Returns the name of a full archive that was not packed.
pub(crate) fn full_name(slot: u64) -> String {
    format!("snapshot-{slot}-{}.tar", bs58::encode([slot as u8; 32]).into_string())
}

/// Returns a tar entry: its header, `bytes`, and the padding.
pub(crate) fn entry(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
    block[148..156].fill(b' ');
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar  \0");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.extend(bytes);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

/// Returns the record of a version in an accounts file.
fn record(made: &Made) -> Vec<u8> {
    let mut token = [0; 165];
    token[32..64].copy_from_slice(&made.value.unwrap_or([3; 32]));
    token[108] = 1;
    let owner = match made.value {
        Some(_) => <[u8; 32]>::try_from(bs58::decode(TOKEN).into_vec().unwrap()).unwrap(),
        None => [u8::from(!made.closed); 32],
    };
    let data = if made.closed { &[][..] } else { &token };
    let number = |number: u64| number.to_le_bytes();
    let parts = [&number(0)[..], &number(data.len() as u64), &made.key, &number(u64::from(!made.closed)), &number(0)];
    let mut bytes = parts.concat();
    bytes.extend([&owner[..], &[0; 40], data].concat());
    bytes
}

/// Writes an archive of these versions, file after file in the order in which they come here.
pub(crate) fn write_archive(dir: &Path, slot: u64, made: &[Made]) -> PathBuf {
    let mut tar = entry("version", b'0', b"1.2.0");
    tar.extend(entry(&format!("snapshots/{slot}/{slot}"), b'0', &[9; 100]));
    for file in made.chunk_by(|a, b| (a.slot, a.file) == (b.slot, b.file)) {
        let mut bytes = Vec::new();
        for made in file {
            bytes.resize(usize::next_multiple_of(bytes.len(), 8), 0);
            bytes.extend(record(made));
        }
        tar.extend(entry(&format!("accounts/{}.{}", file[0].slot, file[0].file), 0, &bytes));
    }
    tar.extend([0; 1024]);
    let path = dir.join(full_name(slot));
    fs::write(&path, tar).unwrap();
    path
}

/// Makes versions of few accounts in files of several slots, some slots with several files, in any order.
pub(crate) fn versions(seed: u64) -> Vec<Made> {
    let mut rng = Rng::new(seed);
    let mut files: Vec<(u64, u64)> = (0..12).map(|file| (100 + file % 5, file)).collect();
    let mut made = Vec::new();
    while !files.is_empty() {
        let (slot, file) = files.swap_remove(rng.below(files.len() as u64) as usize);
        for _ in 0..3000 {
            // An account of zeros that is closed looks like padding.
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(rng.below(9000) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            let mut value = [0; 32];
            value[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
            let (value, closed) = match rng.below(4) {
                0 => (None, true),
                1 => (None, false),
                // A value of zeros is one.
                _ if rng.below(10) == 0 => (Some([0; 32]), false),
                _ => (Some(value), false),
            };
            made.push(Made { slot, file, key, value, closed });
        }
    }
    made
}

/// The map of the newest versions, by slot, file and place in the file.
pub(crate) fn newest(made: &[Made]) -> Map {
    let mut order: Vec<(usize, &Made)> = made.iter().enumerate().collect();
    order.sort_by_key(|(at, made)| (made.slot, made.file, *at));
    let mut map = Map::new();
    for (_, made) in order {
        match made.value {
            Some(value) => map.insert(made.key, value),
            None => map.remove(&made.key),
        };
    }
    map
}

#[test]
fn the_newest_version_counts_wherever_it_lies() {
    for (seed, engine) in engines().enumerate() {
        let home = tempfile::tempdir().unwrap();
        let made = versions(seed as u64);
        let archive = write_archive(home.path(), 200, &made);
        let expected = newest(&made);
        for (order, memory) in [("sorted", "1MiB"), ("shuffled", "1MiB"), ("sorted", "64MiB")] {
            let store = home.path().join(format!("{order}-{memory}"));
            let load = ["--engine", engine, "--dir", str(&store), "--order", order, "--sort-memory", memory];
            let said = ok(&[&load[..], &["--extract", "token-owner", "--input", str(&archive)]].concat());
            let info = ok(&["info", "--dir", str(&store), "--digest"]);
            assert!(info.contains(&digest(&expected)), "{engine} {order} {memory}: {said} {info}");
            let info = ok(&["verify", "--dir", str(&store), "--input", str(&archive)]);
            assert!(info.contains(&format!("equal: records={} stored_pairs={}", made.len(), expected.len())), "{info}");
        }
    }
}

#[test]
fn a_load_of_an_archive_that_was_killed_goes_on() {
    let engine = engines().next().unwrap();
    let home = tempfile::tempdir().unwrap();
    let made = versions(77);
    let (archive, store) = (write_archive(home.path(), 200, &made), home.path().join("store"));
    let load = ["--engine", engine, "--dir", str(&store), "--sort-memory", "1MiB", "--resume"];
    let load = [&load[..], &["--extract", "token-owner", "--input", str(&archive)]].concat();
    let mut rng = Rng::new(5);
    for _ in 0..10 {
        let mut child = command(&load).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(rng.below(400)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // On a fast machine the last kills find a complete load, which says no counts any more.
    let before = text(&command(&["info", "--dir", str(&store)]).output().unwrap());
    let is_complete = before.contains("load=complete");
    let said = ok(&load);
    assert_eq!(said.contains("there is nothing to resume"), is_complete, "{before}{said}");
    assert_eq!(said.contains("older versions"), !is_complete, "{before}{said}");
    let info = ok(&["info", "--dir", str(&store), "--digest"]);
    assert!(info.contains(&digest(&newest(&made))) && info.contains("slot=200"), "{info}");
    // The store keeps the extraction.
    assert!(ok(&[&load[..7], &["--input", str(&archive)]].concat()).contains("there is nothing to resume"));
    // Another extraction from the same archive is refused before its source is compared.
    let other = [&load[..7], &["--extract", "token-mint", "--input", str(&archive)]].concat();
    let said = fails(1, &other);
    assert!(said.contains("the store holds extract=token-owner, asked for extract=token-mint"), "{said}");
}

/// Ctrl-C while a resumed load passes over the part of an archive that its spill holds. That part is long here, because of
/// an entry that is no accounts file, and the archive is damaged where it ends: only a load that looks at the signal
/// before that place is stopped.
#[test]
fn ctrl_c_stops_a_resumed_load_while_it_passes_over_what_it_has_read() {
    const LONG_BYTES: u64 = 4 << 30;
    let home = tempfile::tempdir().unwrap();
    let made: Vec<Made> = versions(3).into_iter().take(9000).collect();
    let plain = fs::read(write_archive(home.path(), 200, &made)).unwrap();
    let plain = &plain[..plain.len() - 1024];
    // The damage is at the end of the last accounts file.
    let long = entry("snapshots/status_cache", b'0', &[]);
    let mut long: [u8; 512] = long.try_into().unwrap();
    long[124..136].copy_from_slice(format!("{LONG_BYTES:011o}\0").as_bytes());
    long[148..156].fill(b' ');
    let sum: u32 = long.iter().map(|byte| u32::from(*byte)).sum();
    long[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let path = home.path().join(format!("{}.zst", full_name(200)));
    let mut packed = zstd::Encoder::new(fs::File::create(&path).unwrap(), 1).unwrap();
    packed.write_all(&long).unwrap();
    std::io::copy(&mut std::io::repeat(0).take(LONG_BYTES), &mut packed).unwrap();
    packed.write_all(plain).unwrap();
    packed.write_all(&[0xff; 1024]).unwrap();
    packed.finish().unwrap();
    let (engine, store) = (engines().next().unwrap(), home.path().join("store"));
    let load = ["--engine", engine, "--dir", str(&store), "--sort-memory", "1MiB", "--resume"];
    let load = [&load[..], &["--extract", "token-owner", "--input", str(&path)]].concat();
    let said = fails(1, &load);
    assert!(said.contains("bad snapshot archive"), "{said}");
    let mut child = command(&load).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("continuing the spill") {
        assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    said.read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{line}");
}

/// A server that is down is asked again for minutes.
#[test]
fn a_signal_while_a_server_is_asked_again_ends_any_command_with_its_own_code() {
    let home = tempfile::tempdir().unwrap();
    let (store, free) = (home.path().join("store"), TcpListener::bind("127.0.0.1:0").unwrap());
    let url = format!("http://{}/{FULL}", free.local_addr().unwrap());
    drop(free);
    ok(&["--dir", str(&store), "--pairs", "1000"]);
    let new = home.path().join("new");
    let source = ["--extract", "token-owner", "--input", &url];
    for words in [vec!["load", "--dir", str(&new)], vec!["verify", "--dir", str(&store)]] {
        let words = [&words[..], &source].concat();
        let mut child = command(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("is asked again") {
            assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        said.read_to_string(&mut line).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{words:?}: {line}");
        assert!(line.contains("the same command"), "{words:?}: {line}");
    }
    assert!(!new.exists());
}

#[test]
fn archives_that_do_not_fit_together_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let (dir, store) = (home.path(), home.path().join("store"));
    let made = versions(1);
    let full = write_archive(dir, 200, &made);
    let hash = bs58::encode([5; 32]).into_string();
    let incremental = dir.join(format!("incremental-snapshot-199-205-{hash}.tar"));
    fs::write(&incremental, b"not read before its name is").unwrap();
    let load = |more: &[&str]| {
        let said = fails(2, &[&["--dir", str(&store)][..], more].concat());
        assert!(!store.exists(), "nothing is made before the archives are known to fit: {said}");
        said
    };
    assert!(load(&["--input", str(&full)]).contains("--extract token-owner"));
    let extract = ["--extract", "token-owner"];
    let both = load(&[&extract[..], &["--input", str(&full), "--incremental", str(&incremental)]].concat());
    assert!(both.contains("base_slot=199 full_slot=200"), "{both}");
    let alone = load(&[&extract[..], &["--input", str(&incremental)]].concat());
    assert!(alone.contains("give the full archive of slot=199"), "{alone}");
    let twice = load(&[&extract[..], &["--input", str(&full), "--incremental", str(&full)]].concat());
    assert!(twice.contains("not an incremental archive by its name"), "{twice}");
    let slot = load(&[&extract[..], &["--input", str(&full), "--slot", "201"]].concat());
    assert!(slot.contains("slot=200 asked_slot=201"), "{slot}");
    let none = load(&["--pairs", "5", "--incremental", str(&incremental)]);
    assert!(none.contains("--input"), "{none}");
    // Under another name an archive is no file of pairs, and its manifest knows its slot.
    let unnamed = dir.join("latest.tar");
    fs::copy(&full, &unnamed).unwrap();
    let load_unnamed = |more: &[&str]| {
        let store = dir.join(format!("unnamed-{}", more.len()));
        fails(1, &[&["--dir", str(&store), "--input", str(&unnamed)][..], more].concat())
    };
    let pairs = load_unnamed(&[]);
    assert!(
        pairs.contains("a tar archive, not pairs") && pairs.contains("--format archive, to which a load adds --slot"),
        "{pairs}"
    );
    let archive = ["--format", "archive", "--extract", "token-owner", "--slot", "7"];
    assert!(load_unnamed(&archive).contains("slot=200 expected_slot=7"));
    // An unpacked archive that was renamed, and the directory that it lies in.
    let unpacked = dir.join("latest");
    assert!(Command::new("mkdir").arg(&unpacked).status().unwrap().success());
    assert!(Command::new("tar").args(["-xf", str(&full), "-C", str(&unpacked)]).status().unwrap().success());
    let renamed = load(&[&extract[..], &["--input", str(&unpacked)]].concat());
    assert!(renamed.contains("snapshot-SLOT-HASH") && renamed.contains(str(&unpacked)), "{renamed}");
    assert!(renamed.contains("--slot 200"), "{renamed}");
    let as_named = dir.join("snapshot-200");
    fs::rename(&unpacked, &as_named).unwrap();
    let other = load(&[&extract[..], &["--input", str(&as_named), "--slot", "201"]].concat());
    assert!(other.contains("slot=200 asked_slot=201"), "{other}");
    let from_directory = dir.join("from-directory");
    let said = ok(&[&["--dir", str(&from_directory), "--input", str(&as_named)][..], &extract].concat());
    assert!(said.contains("slot=200"), "{said}");
    let said = fails(1, &["--dir", str(&store), "--input", str(dir)]);
    assert!(said.contains("or an archive in it") && !store.exists(), "{said}");
    // An error page under an archive's name.
    let page = dir.join(format!("{}.zst", full_name(200)));
    fs::write(&page, "<html><body>no such file</body></html>").unwrap();
    let said = fails(1, &[&["--dir", str(&store)][..], &extract, &["--input", str(&page)]].concat());
    assert!(said.contains("not packed by zstd, although its name says so"), "{said}");
    let said = load(&[&extract[..], &["--input", "ftp://host/snapshot"]].concat());
    assert!(said.contains("scheme=ftp"), "{said}");
    // An archive that was cut leaves no store that looks whole.
    let bytes = fs::read(&full).unwrap();
    fs::write(&full, &bytes[..bytes.len() - 1024]).unwrap();
    let said = fails(1, &[&["--dir", str(&store)][..], &extract, &["--input", str(&full)]].concat());
    assert!(said.contains(str(&full)), "{said}");
    assert!(fails(1, &["info", "--dir", str(&store)]).contains("there is no store"));
}

/// A load that was interrupted while it read an archive: `info` says so, `--resume` takes the extraction from the spill, and
/// the number of older versions is called that. A cut archive is named by `verify`, and no key is called missing.
#[test]
fn a_reading_that_was_interrupted_is_described_and_gone_on_with() {
    let engine = engines().next().unwrap();
    let home = tempfile::tempdir().unwrap();
    let made = versions(9);
    let (archive, store) = (write_archive(home.path(), 200, &made), home.path().join("store"));
    let whole = fs::read(&archive).unwrap();
    let cut = &whole[..whole.len() - 2000];
    fs::write(&archive, [cut, &[0xff; 2000]].concat()).unwrap();
    let load = ["--engine", engine, "--dir", str(&store), "--sort-memory", "1MiB", "--input", str(&archive)];
    let said = fails(1, &[&load[..], &["--extract", "token-owner"]].concat());
    assert!(said.contains("is kept for the next start") && said.contains("with --resume continues"), "{said}");
    let info = ok(&["info", "--dir", str(&store)]);
    assert!(info.contains("engine=none\nopen_in=none\nload=interrupted before the store was created: "), "{info}");
    assert!(info.contains("extract=token-owner") && info.contains("with --resume continues"), "{info}");
    fails(1, &["info", "--dir", str(&store), "--digest"]);
    fs::write(&archive, &whole).unwrap();
    let said = ok(&[&load[..], &["--resume"]].concat());
    assert!(said.contains("  older versions") && !said.contains("duplicates"), "{said}");
    let info = ok(&["info", "--dir", str(&store), "--digest"]);
    assert!(info.contains(&digest(&newest(&made))) && info.contains("extract=token-owner"), "{info}");
    fs::write(&archive, cut).unwrap();
    let said = fails(1, &["verify", "--dir", str(&store), "--input", str(&archive)]);
    assert!(said.contains("the archive is cut short") && !said.contains("missing"), "{said}");
}
