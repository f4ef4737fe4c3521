//! A snapshot archive read in the simplest way: all of it in memory, entry after entry and record after record.
//!
//! Owns: a second opinion of the format, which shares nothing with the writer. Must not: skip anything that it does not
//! know; it fails instead.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use engines::Digest;
use solkv_loadgen::stream::account::{Extract, TOKEN_2022_PROGRAM, TOKEN_PROGRAM};

/// Offset of a token account's state.
const STATE: usize = 108;

/// One version of an account, with its place.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) slot: u64,
    pub(crate) file: u64,
    pub(crate) offset: usize,
    /// Index among all versions of the archive, in the order in which they come.
    pub(crate) place: usize,
    pub(crate) key: [u8; 32],
    pub(crate) lamports: u64,
    pub(crate) owner: [u8; 32],
    pub(crate) executable: bool,
    pub(crate) garbage: [u8; 7],
    pub(crate) data: Vec<u8>,
}

/// The contents of an archive.
pub(crate) struct Snapshot {
    /// Names of the entries, in their order.
    pub(crate) names: Vec<String>,
    pub(crate) versions: Vec<Version>,
    /// Zeros at the end of each file of accounts, by slot and id.
    pub(crate) padding: BTreeMap<(u64, u64), usize>,
}

/// Returns the bytes of the tar in an archive.
pub(crate) fn unpacked(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).unwrap();
    let mut out = Vec::new();
    match path.extension().unwrap().to_str().unwrap() {
        "zst" => return zstd::decode_all(&packed[..]).unwrap(),
        "lz4" => lz4_flex::frame::FrameDecoder::new(&packed[..]).read_to_end(&mut out).unwrap(),
        "gz" => flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut out).unwrap(),
        _ => return packed,
    };
    out
}

impl Snapshot {
    pub(crate) fn read(path: &Path) -> Self {
        let tar = unpacked(path);
        let mut snapshot = Self { names: Vec::new(), versions: Vec::new(), padding: BTreeMap::new() };
        let mut at = 0;
        while tar[at..at + 512].iter().any(|byte| *byte != 0) {
            let header = &tar[at..at + 512];
            let name = text(&header[..100]);
            let size = octal(&header[124..136]) as usize;
            let mut summed = header.to_vec();
            summed[148..156].fill(b' ');
            assert_eq!(summed.iter().map(|byte| u64::from(*byte)).sum::<u64>(), octal(&header[148..156]), "{name}");
            let contents = &tar[at + 512..at + 512 + size];
            at += 512 + size.next_multiple_of(512);
            snapshot.entry(&name, header[156], contents);
            snapshot.names.push(name);
        }
        assert_eq!(tar[at..], [0; 1024], "two blocks of zeros end the tar");
        snapshot
    }

    fn entry(&mut self, name: &str, letter: u8, contents: &[u8]) {
        let Some(file) = name.strip_prefix("accounts/") else {
            assert_eq!(letter, if contents.is_empty() { b'5' } else { b'0' }, "{name}");
            assert!(name == "version" || name.starts_with("snapshots/"), "{name}");
            return assert!(name != "version" || contents == b"1.2.0");
        };
        assert_eq!(letter, 0, "{name}");
        let (slot, id) = file.split_once('.').unwrap();
        let place = (slot.parse().unwrap(), id.parse().unwrap());
        let end = self.records(place, contents);
        assert!(contents[end..].iter().all(|byte| *byte == 0), "{name}");
        assert!(end > 0 && self.padding.insert(place, contents.len() - end).is_none(), "{name}");
    }

    /// Reads the records of a file and returns the end of the last one.
    fn records(&mut self, (slot, file): (u64, u64), contents: &[u8]) -> usize {
        let (mut at, mut end) = (0, 0);
        while contents.get(at..at + 136).is_some_and(|header| header.iter().any(|byte| *byte != 0)) {
            let field = |offset: usize| &contents[at + offset..];
            let number = |offset: usize| u64::from_le_bytes(field(offset)[..8].try_into().unwrap());
            let address = |offset: usize| <[u8; 32]>::try_from(&field(offset)[..32]).unwrap();
            assert_eq!((number(0), address(0x68)), (0, [0; 32]), "{slot}.{file} at {at}");
            assert!(field(0x60)[0] <= 1, "{slot}.{file} at {at}");
            let data = field(136)[..number(8) as usize].to_vec();
            end = at + 136 + data.len();
            self.versions.push(Version {
                slot,
                file,
                offset: at,
                place: self.versions.len(),
                key: address(0x10),
                lamports: number(0x30),
                owner: address(0x40),
                executable: field(0x60)[0] == 1,
                garbage: field(0x61)[..7].try_into().unwrap(),
                data,
            });
            at = end.next_multiple_of(8);
        }
        end
    }
}

/// Groups the versions by account, the newest last: by slot, then by file id, then by offset.
pub(crate) fn by_account<'a>(versions: impl IntoIterator<Item = &'a Version>) -> BTreeMap<[u8; 32], Vec<&'a Version>> {
    let mut accounts = BTreeMap::<_, Vec<&Version>>::new();
    versions.into_iter().for_each(|version| accounts.entry(version.key).or_default().push(version));
    accounts.values_mut().for_each(|account| account.sort_by_key(|one| (one.slot, one.file, one.offset)));
    accounts
}

/// Returns the map that an extraction finds in these versions. Only the newest version of an account is looked at.
pub(crate) fn map<'a>(
    extract: Extract,
    versions: impl IntoIterator<Item = &'a Version>,
) -> BTreeMap<[u8; 32], [u8; 32]> {
    let newest = by_account(versions).into_iter().map(|(key, account)| (key, *account.last().unwrap()));
    newest.filter_map(|(key, version)| Some((key, value(extract, version)?))).collect()
}

pub(crate) fn digest(map: &BTreeMap<[u8; 32], [u8; 32]>) -> String {
    let mut digest = Digest::default();
    map.iter().for_each(|(key, value)| digest.add(key, value));
    digest.to_string()
}

fn value(extract: Extract, version: &Version) -> Option<[u8; 32]> {
    let bytes = |at: usize| <[u8; 32]>::try_from(&version.data[at..at + 32]).unwrap();
    match extract {
        _ if version.lamports == 0 => None,
        Extract::AccountOwner => Some(version.owner),
        Extract::TokenMint => is_token_account(version).then(|| bytes(0)),
        Extract::TokenOwner => is_token_account(version).then(|| bytes(32)),
    }
}

/// Whether a version is that of a token account, by agave's rule for both programs.
pub(crate) fn is_token_account(version: &Version) -> bool {
    let data = &version.data;
    let short = data.len() == 165;
    let long = data.len() > 165 && data.len() != 355 && data[165] == 2;
    let shape = (version.owner == TOKEN_PROGRAM && short) || (version.owner == TOKEN_2022_PROGRAM && (short || long));
    shape && data[STATE] != 0
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap();
    assert!(field[end..].iter().all(|byte| *byte == 0));
    String::from_utf8(field[..end].to_vec()).unwrap()
}

fn octal(field: &[u8]) -> u64 {
    u64::from_str_radix(&text(field), 8).unwrap()
}
