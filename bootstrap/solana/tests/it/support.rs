//! Archives for tests: agave's, and those of a small writer of its own, and the versions that a reader finds in them.
//!
//! Owns: the writer of tar files and records, which shares no code with the reader. Must not: check anything.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use solkv_solana::archive::{Archive, Error, HEAD_BYTES, Name, Summary, Version};

pub(crate) const FULL: &str = "snapshot-351000355-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar.zst";
pub(crate) const INCREMENTAL: &str =
    "incremental-snapshot-351000355-351000368-2NbmC84r6h4FyfFczn1S9j2MSXqpXtzJrfmmSyyg1evr.tar.zst";

/// A version of an account with its own bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Slot, file and offset: the greatest one counts.
    pub(crate) place: (u64, u64, u64),
    pub(crate) key: [u8; 32],
    pub(crate) lamports: u64,
    pub(crate) owner: [u8; 32],
    pub(crate) executable: bool,
    pub(crate) data_len: u64,
    pub(crate) data: Vec<u8>,
}

/// The version of each account that counts.
pub(crate) type Accounts = BTreeMap<[u8; 32], Row>;

impl From<&Version<'_>> for Row {
    fn from(version: &Version<'_>) -> Self {
        Self {
            place: (version.slot, version.file, version.offset),
            key: *version.key,
            lamports: version.lamports,
            owner: *version.owner,
            executable: version.executable,
            data_len: version.data_len,
            data: version.data.to_vec(),
        }
    }
}

/// Returns the path of one of agave's files.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Returns the unpacked bytes of one of agave's files.
pub(crate) fn unpacked(name: &str) -> Vec<u8> {
    zstd::decode_all(&std::fs::read(data(name)).unwrap()[..]).unwrap()
}

/// Returns every version of an archive, in its order.
pub(crate) fn rows(archive: Archive) -> Result<(Vec<Row>, Summary), Error> {
    let mut rows = Vec::new();
    let mut last = None;
    let summary = archive.read(
        &mut |progress| {
            last = Some(progress);
            Ok(())
        },
        &mut |version| {
            rows.push(Row::from(version));
            Ok(())
        },
    )?;
    let last = last.expect("told at the end");
    assert_eq!((last.versions, last.unpacked_bytes), (summary.versions, summary.unpacked_bytes));
    assert_eq!(summary.versions, rows.len() as u64);
    Ok((rows, summary))
}

/// Keeps the version of each account that counts, before anything is left out.
pub(crate) fn add(accounts: &mut Accounts, rows: Vec<Row>) {
    for row in rows {
        match accounts.get(&row.key) {
            Some(known) if known.place > row.place => (),
            _ => drop(accounts.insert(row.key, row)),
        }
    }
}

/// Reads an archive that lies in memory.
pub(crate) fn read(bytes: &[u8], name: Option<&str>) -> Result<(Vec<Row>, Summary), Error> {
    let name = name.map(|name| Name::parse(name).expect("an archive's name").expect("a good name"));
    rows(Archive::from_reader("memory", name, Cursor::new(bytes.to_vec())))
}

/// Returns an error with all of its causes.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// A tar file in the making.
#[derive(Clone, Default)]
pub(crate) struct Tar {
    pub(crate) bytes: Vec<u8>,
}

impl Tar {
    /// Begins a snapshot of `slot` with everything but accounts.
    pub(crate) fn snapshot(slot: u64) -> Self {
        Self::default()
            .file("version", b"1.2.0")
            .entry("snapshots/", b'5', b"")
            .file("snapshots/status_cache", &[7; 600])
            .entry(&format!("snapshots/{slot}"), b'5', b"")
            .file(&format!("snapshots/{slot}/{slot}"), &[9; 1024])
    }

    /// Adds a plain file of the kind `0`.
    pub(crate) fn file(self, name: &str, bytes: &[u8]) -> Self {
        self.entry(name, b'0', bytes)
    }

    /// Adds an accounts file as agave does: of the kind NUL.
    pub(crate) fn accounts(self, slot: u64, file: u64, bytes: &[u8]) -> Self {
        self.entry(&format!("accounts/{slot}.{file}"), 0, bytes)
    }

    /// Adds an entry of any kind.
    pub(crate) fn entry(mut self, name: &str, kind: u8, bytes: &[u8]) -> Self {
        let size = format!("{:011o}\0", bytes.len());
        self = self.header(name, kind, size.as_bytes());
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// Adds a header with any size.
    pub(crate) fn header(mut self, name: &str, kind: u8, size: &[u8]) -> Self {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..124 + size.len()].copy_from_slice(size);
        block[148..156].fill(b' ');
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar  \0");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(block);
        self
    }

    /// Ends the archive, and returns its bytes.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        self.bytes
    }
}

/// Returns a record of an accounts file without the padding after it. Every field tells the number.
pub(crate) fn record(number: u8, lamports: u64, data_len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((data_len as u64).to_le_bytes());
    bytes.extend([number; 32]);
    bytes.extend(lamports.to_le_bytes());
    bytes.extend(u64::MAX.to_le_bytes());
    bytes.extend([number ^ 0xff; 32]);
    bytes.push(number % 2);
    // These bytes hold remains of the validator's memory.
    bytes.extend([0xfe; 7]);
    bytes.extend([0; 32]);
    bytes.extend(vec![number; data_len]);
    bytes
}

/// Returns the version that the reader has to make of [`record`].
pub(crate) fn row(place: (u64, u64, u64), number: u8, lamports: u64, data_len: usize) -> Row {
    Row {
        place,
        key: [number; 32],
        lamports,
        owner: [number ^ 0xff; 32],
        executable: number % 2 == 1,
        data_len: data_len as u64,
        data: vec![number; data_len.min(HEAD_BYTES)],
    }
}

/// Returns an accounts file of several records, each at a multiple of 8.
pub(crate) fn accounts(records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        bytes.resize(usize::next_multiple_of(bytes.len(), 8), 0);
        bytes.extend(record);
    }
    bytes
}
