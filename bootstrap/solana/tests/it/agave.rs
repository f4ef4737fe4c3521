//! Archives that agave wrote: every account is as the bank had it, from every packing and every place.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::thread;

use solkv_solana::archive::{Archive, Listing, Name, Packing, Summary};
use solkv_solana::extract::Extract;

use crate::support::{Accounts, FULL, INCREMENTAL, Row, add, chain, data, read, rows, unpacked};

/// One line of a table of accounts: its columns by their names.
type Line = BTreeMap<String, String>;

fn table(name: &str) -> Vec<Line> {
    let text = String::from_utf8(unpacked(name)).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let names: Vec<String> = lines.next().unwrap().collect();
    lines.map(|columns| names.iter().cloned().zip(columns).collect()).collect()
}

fn address(text: &str) -> [u8; 32] {
    bs58::decode(text).into_vec().unwrap().try_into().unwrap()
}

/// Returns the map of one extraction as the bank's tables have it.
fn expected(slot: u64, extract: Extract) -> BTreeMap<[u8; 32], [u8; 32]> {
    let (file, column) = match extract {
        Extract::AccountOwner => ("all-accounts", "program"),
        Extract::TokenOwner => ("expected", "owner"),
        Extract::TokenMint => ("expected", "mint"),
    };
    let lines = table(&format!("{file}-{slot}.csv.zst"));
    lines.iter().map(|line| (address(&line["pubkey"]), address(&line[column]))).collect()
}

fn check(accounts: &Accounts, slot: u64) {
    for extract in Extract::ALL {
        let value = |row: &Row| extract.value(row.lamports, &row.owner, row.data_len, &row.data);
        let found: BTreeMap<_, _> = accounts.values().filter_map(|row| Some((row.key, value(row)?))).collect();
        let expected = expected(slot, extract);
        assert!(expected.len() > 2000);
        let wrong = found.iter().filter(|(key, value)| expected.get(*key) != Some(value)).count();
        let missing = expected.keys().filter(|key| !found.contains_key(*key)).count();
        assert_eq!((wrong, missing), (0, 0), "{extract} slot={slot}");
    }
    // Every other field, too.
    for line in table(&format!("all-accounts-{slot}.csv.zst")) {
        let row = &accounts[&address(&line["pubkey"])];
        let fields = [
            ("lamports", row.lamports),
            ("data_len", row.data_len),
            ("executable", row.executable.into()),
            ("slot", row.place.0),
        ];
        for (column, found) in fields {
            assert_eq!(line[column].parse(), Ok(found), "{column} {}", line["pubkey"]);
        }
    }
}

fn open(path: &Path) -> Archive {
    Archive::open(path.to_str().unwrap()).unwrap()
}

#[test]
fn the_accounts_are_those_of_the_bank() {
    let mut accounts = Accounts::new();
    let full = open(&data(FULL));
    let name = full.name().unwrap();
    assert_eq!((name.base, name.slot, name.packing), (None, 351_000_355, Packing::Zstd));
    assert_eq!(full.packed_bytes(), Some(460_636));
    let (versions, summary) = rows(full).unwrap();
    assert_eq!((summary.slot, summary.files, summary.versions), (351_000_355, 28, 3738));
    assert_eq!(summary.unpacked_bytes, unpacked(FULL).len() as u64);
    add(&mut accounts, versions);
    check(&accounts, 351_000_355);

    let incremental = open(&data(INCREMENTAL));
    assert_eq!(incremental.name().unwrap().base, Some(351_000_355));
    let (versions, summary) = rows(incremental).unwrap();
    assert_eq!((summary.slot, summary.files, summary.versions), (351_000_368, 10, 428));
    add(&mut accounts, versions);
    check(&accounts, 351_000_368);
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut packed = lz4_flex::frame::FrameEncoder::new(Vec::new());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// Unpacks a tar file of agave's by hand.
fn untar(tar: &[u8], dir: &Path) {
    let mut at = 0;
    while tar[at] != 0 {
        let field = |from: usize, to: usize| {
            let text = tar[at + from..at + to].split(|byte| *byte == 0).next().unwrap();
            String::from_utf8(text.to_vec()).unwrap()
        };
        let path = dir.join(field(0, 100));
        let size = usize::from_str_radix(&field(124, 136), 8).unwrap();
        at += 512;
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match tar[at - 512 + 156] {
            b'5' => fs::create_dir_all(path).unwrap(),
            _ => fs::write(path, &tar[at..at + size]).unwrap(),
        }
        at += size.next_multiple_of(512);
    }
}

#[test]
fn every_packing_gives_the_same_versions() {
    let dir = tempfile::tempdir().unwrap();
    for name in [FULL, INCREMENTAL] {
        let expected = rows(open(&data(name))).unwrap();
        let tar = unpacked(name);
        let stem = name.strip_suffix(".zst").unwrap();
        let (first, second) = tar.split_at(tar.len() / 2);
        let several = [zstd::encode_all(first, 3).unwrap(), zstd::encode_all(second, 3).unwrap()].concat();
        for (ending, bytes) in [("", tar.clone()), (".lz4", lz4(&tar)), (".gz", gzip(&tar)), (".zst", several)] {
            let path = dir.path().join(format!("{stem}{ending}"));
            fs::write(&path, &bytes).unwrap();
            assert!(rows(open(&path)).unwrap() == expected, "{ending}");
            // Under another name the first bytes tell the packing.
            let renamed = dir.path().join("archive");
            fs::rename(&path, &renamed).unwrap();
            let archive = open(&renamed);
            assert_eq!(archive.name(), None);
            assert!(rows(archive).unwrap() == expected, "{ending} renamed");
        }
    }
    for name in [FULL, INCREMENTAL] {
        let by_lz4 = format!("{}.lz4", name.strip_suffix(".zst").unwrap());
        assert!(rows(open(&data(&by_lz4))).unwrap() == rows(open(&data(name))).unwrap(), "as agave itself packs");
    }
}

#[test]
fn the_manifest_names_the_blockhash_of_its_slot() {
    for (name, blockhash) in [
        (FULL, "DwoLY1vBXCYkiP3skMdvmSPgNobUGMKCMdnh4J8rc9dH"),
        (INCREMENTAL, "12NbbUmhgyUKBbVjXJzYJoY4JWeoXi84XwPbsbLU6BWo"),
    ] {
        let (_, summary) = rows(open(&data(name))).unwrap();
        assert_eq!(bs58::encode(summary.blockhash).into_string(), blockhash);
    }
}

#[test]
fn an_unpacked_archive_is_read_from_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    for name in [FULL, INCREMENTAL] {
        let (mut expected, summary) = rows(open(&data(name))).unwrap();
        let stem = name.strip_suffix(".tar.zst").unwrap();
        for inner in [stem, "ledger"] {
            let path = dir.path().join(inner);
            untar(&unpacked(name), &path);
            let archive = open(&path);
            assert_eq!(archive.name().map(|name| name.slot), (inner == stem).then_some(summary.slot));
            let (found, of_directory) = rows(archive).unwrap();
            assert_eq!(Summary { unpacked_bytes: 0, ..of_directory }, Summary { unpacked_bytes: 0, ..summary });
            // The directory's order is that of the numbers.
            expected.sort_by_key(|row| row.place);
            assert!(found == expected, "{inner}");
            fs::remove_dir_all(path).unwrap();
        }
    }
}

#[test]
fn a_named_pipe_in_an_unpacked_archive_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger");
    untar(&unpacked(FULL), &path);
    let pipe = path.join("accounts/999.99");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let said = chain(&rows(open(&path)).unwrap_err());
    assert!(said.contains("999.99") && said.contains("it is not a regular file"), "{said}");
}

#[test]
fn a_pipe_is_read_as_it_comes() {
    let expected = rows(open(&data(FULL))).unwrap();
    let packed = fs::read(data(FULL)).unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    let bytes = packed.clone();
    let writing = thread::spawn(move || writer.write_all(&bytes));
    let archive = Archive::from_reader("a pipe", None, reader);
    assert!(rows(archive).unwrap() == expected);
    writing.join().unwrap().unwrap();

    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join(FULL);
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let path = fifo.clone();
    let writing = thread::spawn(move || fs::write(path, packed));
    let archive = open(&fifo);
    assert_eq!(archive.packed_bytes(), None);
    assert_eq!(archive.name().cloned(), Name::parse(FULL).map(Result::unwrap));
    assert!(rows(archive).unwrap() == expected);
    writing.join().unwrap().unwrap();
}

#[test]
fn a_file_that_is_missing_is_found_by_the_manifest() {
    for (archive, base) in [(FULL, ""), (INCREMENTAL, "incremental ")] {
        let bytes = unpacked(archive);
        let (_, summary) = read(&bytes, None).unwrap();
        assert_eq!(summary.listing, Listing::Compared, "{base}{summary:?}");
        let files = accounts_files(&bytes);
        assert!(files.len() > 5);
        for (name, entry) in files {
            let without = [&bytes[..entry.start], &bytes[entry.end..]].concat();
            let said = chain(&read(&without, None).unwrap_err());
            assert!(said.contains(&format!("entry={name} is missing")), "{said}");
        }
    }
}

/// Returns the entries of the accounts files in a tar archive: their names, and the places of header and bytes.
fn accounts_files(tar: &[u8]) -> Vec<(String, Range<usize>)> {
    let (mut files, mut at) = (Vec::new(), 0);
    while tar[at] != 0 {
        let text = |field: Range<usize>| {
            let field = &tar[at..][field];
            String::from_utf8(field.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap()
        };
        let size = usize::from_str_radix(text(124..135).trim(), 8).unwrap_or(0);
        let end = at + 512 + size.next_multiple_of(512);
        if text(0..100).starts_with("accounts/") && size > 0 {
            files.push((text(0..100), at..end));
        }
        at = end;
    }
    files
}
