//! [`Contents`]: the entries that a snapshot may have and must have.
//!
//! Owns: the rules for names, sizes, duplicates and slots, and the comparison with the manifest's list of accounts files.
//! Must not: read an entry's bytes. Runs on the thread that reads the archive.

use std::collections::{HashMap, HashSet};

use super::Listing;
use super::error::Fault;
use super::manifest::Listed;
use super::name::{Name, number};
use super::tar::{Header, Kind};

/// Most accounts files of an archive: agave's own limit for its entries, `MAX_SNAPSHOT_ARCHIVE_UNPACKED_COUNT`. Mainnet
/// has one for nearly every slot of an epoch, 432,000. The table of them is the only memory that grows with an archive,
/// by at most 80 bytes for each.
pub(super) const ACCOUNTS_FILES_MAX: usize = 5_000_000;

/// Largest number of files next to the accounts, of which there are three.
const OTHER_FILES_MAX: usize = 100;

/// Largest accounts file: agave's `MAXIMUM_APPEND_VEC_FILE_SIZE`.
const ACCOUNTS_FILE_BYTES_MAX: u64 = 16 << 30;

/// Largest other file: agave's `MAX_SNAPSHOT_DATA_FILE_SIZE`.
const OTHER_FILE_BYTES_MAX: u64 = 32 << 30;

/// Largest version file: agave's `MAX_SNAPSHOT_VERSION_FILE_SIZE`.
pub(super) const VERSION_BYTES_MAX: u64 = 8;

/// The entries met so far.
pub(super) struct Contents {
    base: Option<u64>,
    /// Slot of the archive's name, or else of its manifest, as soon as it is known.
    slot: Option<u64>,
    manifest: Option<u64>,
    has_version: bool,
    /// Slot and number of each accounts file that was met or listed.
    accounts: HashMap<(u64, u64), Sizes>,
    files_max: usize,
    /// Number of accounts files that were met.
    files: u64,
    /// Whether the manifest lists a file, also one of the base.
    has_list: bool,
    listing: Listing,
    others: HashSet<String>,
    /// The latest slot of an accounts file.
    highest: u64,
}

/// Lengths of an accounts file in bytes, [`NO_FILE`] where there is none.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    found: u64,
    listed: u64,
}

/// Length of a file that was not met, or is not listed.
const NO_FILE: u64 = u64::MAX;

/// The role of an entry in its snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The version of the snapshot's format.
    Version,
    /// A file of accounts that were written in one slot.
    Accounts { slot: u64, file: u64 },
    /// The bank, with the list of all accounts files.
    Manifest { slot: u64 },
    /// Bytes that only validators read.
    Ignored,
}

impl Contents {
    /// Begins an archive of this name, which standard input does not have, with at most so many accounts files.
    pub(super) fn new(name: Option<&Name>, files_max: usize) -> Self {
        Self {
            base: name.and_then(|name| name.base),
            slot: name.map(|name| name.slot),
            manifest: None,
            has_version: false,
            accounts: HashMap::new(),
            files_max: files_max.min(ACCOUNTS_FILES_MAX),
            files: 0,
            has_list: false,
            listing: Listing::Unknown,
            others: HashSet::new(),
            highest: 0,
        }
    }

    /// Takes in the next entry, and returns its part in the snapshot.
    ///
    /// # Errors
    /// An entry that a snapshot does not have, has only once, or has only of other slots.
    pub(super) fn enter(&mut self, header: &Header) -> Result<Part, Fault> {
        let path = components(&header.path, header.kind)?;
        if header.kind == Kind::Directory {
            return directory(&path, header.size);
        }
        match path[..] {
            ["version"] => {
                limit(header.size, VERSION_BYTES_MAX)?;
                self.other("version")?;
                self.has_version = true;
                Ok(Part::Version)
            }
            ["accounts", name] => self.accounts(name, header.size),
            ["snapshots", ref rest @ ..] if !rest.is_empty() => {
                limit(header.size, OTHER_FILE_BYTES_MAX)?;
                if let [directory, file] = *rest
                    && let (Some(slot), Some(same)) = (number(directory), number(file))
                {
                    self.manifest(slot, same)?;
                    return Ok(Part::Manifest { slot });
                }
                self.other(&path.join("/"))?;
                Ok(Part::Ignored)
            }
            _ => Err(Fault::UnknownEntry),
        }
    }

    /// Ends the archive, and returns its slot and the number of its accounts files.
    ///
    /// # Errors
    /// Something that every snapshot has is missing, or the manifest came after accounts of later slots.
    pub(super) fn finish(&self) -> Result<(u64, u64), Fault> {
        let missing = |name| Fault::Missing(name);
        let slot = self.manifest.ok_or(missing("manifest (snapshots/SLOT/SLOT)"))?;
        if !self.has_version {
            return Err(missing("version"));
        }
        if self.files == 0 {
            return Err(missing("accounts files (accounts/SLOT.ID)"));
        }
        if self.highest > slot {
            return Err(Fault::SlotAbove { slot: self.highest, archive: slot });
        }
        if self.listing.is_compared() {
            self.compare_with_list()?;
        }
        Ok((slot, self.files))
    }

    /// Takes in an accounts file of the manifest's list. Returns whether there was room for it.
    pub(super) fn list(&mut self, file: Listed) -> bool {
        self.has_list = true;
        // An incremental archive has no files of its base.
        if self.base.is_some_and(|base| file.slot <= base) {
            return true;
        }
        let key = (file.slot, file.file);
        if self.accounts.len() == self.files_max && !self.accounts.contains_key(&key) {
            return false;
        }
        self.accounts.entry(key).or_insert(Sizes { found: NO_FILE, listed: NO_FILE }).listed = file.bytes;
        true
    }

    /// Ends the manifest's list, which counts only if `is_known`: it was read to its end.
    pub(super) fn end_list(&mut self, is_known: bool) {
        self.listing = match (is_known, self.has_list) {
            (true, true) => Listing::Compared,
            (true, false) => Listing::Empty,
            (false, _) => Listing::Unknown,
        };
        if !is_known {
            self.accounts.retain(|_, sizes| sizes.found != NO_FILE);
        }
    }

    /// Returns how the accounts files are listed, as far as the manifest was read.
    pub(super) fn listing(&self) -> Listing {
        self.listing
    }

    /// Checks that the archive has the files that its manifest lists, and no others. Old archives pad their files.
    fn compare_with_list(&self) -> Result<(), Fault> {
        let differs = |sizes: &Sizes| sizes.found == NO_FILE || sizes.listed == NO_FILE || sizes.found < sizes.listed;
        let first = self.accounts.iter().filter(|(_, sizes)| differs(sizes)).min_by_key(|(key, _)| **key);
        let Some((&(slot, file), &Sizes { found, listed })) = first else { return Ok(()) };
        Err(match (found, listed) {
            (NO_FILE, bytes) => Fault::FileMissing { slot, file, bytes },
            (_, NO_FILE) => Fault::FileUnlisted { slot, file },
            _ => Fault::FileShort { slot, file, found, listed },
        })
    }

    fn accounts(&mut self, name: &str, size: u64) -> Result<Part, Fault> {
        let numbers = |name: &str| name.split_once('.').and_then(|(slot, file)| Some((number(slot)?, number(file)?)));
        if name.strip_suffix(".data").and_then(numbers).is_some() {
            return Err(Fault::Split);
        }
        let (slot, file) = numbers(name).ok_or(Fault::UnknownEntry)?;
        limit(size, ACCOUNTS_FILE_BYTES_MAX)?;
        if let Some(archive) = self.slot.filter(|archive| slot > *archive) {
            return Err(Fault::SlotAbove { slot, archive });
        }
        if let Some(base) = self.base.filter(|base| slot <= *base) {
            return Err(if slot == 0 { Fault::SlotZero } else { Fault::SlotBelow { slot, base } });
        }
        if self.files == self.files_max as u64 {
            return Err(Fault::TooManyFiles(self.files_max));
        }
        let sizes = self.accounts.entry((slot, file)).or_insert(Sizes { found: NO_FILE, listed: NO_FILE });
        if std::mem::replace(&mut sizes.found, size) != NO_FILE {
            return Err(Fault::Duplicate);
        }
        self.files += 1;
        self.highest = self.highest.max(slot);
        Ok(Part::Accounts { slot, file })
    }

    fn manifest(&mut self, directory: u64, file: u64) -> Result<(), Fault> {
        for found in [directory, file] {
            let expected = *self.slot.get_or_insert(found);
            if found != expected {
                return Err(Fault::ManifestSlot { found, expected });
            }
        }
        if self.manifest.replace(file).is_some() {
            return Err(Fault::Duplicate);
        }
        Ok(())
    }

    fn other(&mut self, path: &str) -> Result<(), Fault> {
        if self.others.len() == OTHER_FILES_MAX {
            return Err(Fault::TooMany(OTHER_FILES_MAX));
        }
        if self.others.insert(path.to_owned()) { Ok(()) } else { Err(Fault::Duplicate) }
    }
}

fn limit(size: u64, limit: u64) -> Result<(), Fault> {
    if size <= limit { Ok(()) } else { Err(Fault::TooLarge { size, limit }) }
}

/// Returns the components of a path: without a leading `./`, and for a directory without the last `/`.
///
/// # Errors
/// A path that leads somewhere else, or names nothing.
fn components(path: &str, kind: Kind) -> Result<Vec<&str>, Fault> {
    let mut path = path;
    while let Some(rest) = path.strip_prefix("./") {
        path = rest;
    }
    if kind == Kind::Directory {
        path = path.strip_suffix('/').unwrap_or(path);
        if matches!(path, "" | ".") {
            return Ok(Vec::new());
        }
    }
    let components: Vec<&str> = path.split('/').collect();
    let is_bad = |component: &&str| matches!(*component, "" | "." | "..");
    if components.iter().any(is_bad) {
        return Err(Fault::Path);
    }
    if components.iter().any(|component| component.starts_with("._")) {
        return Err(Fault::AppleDouble);
    }
    Ok(components)
}

/// Directories say nothing, and may be left out or repeated; only those that snapshots have are let through.
fn directory(path: &[&str], size: u64) -> Result<Part, Fault> {
    match path {
        _ if size > 0 => Err(Fault::DirectoryData(size)),
        [] | ["accounts"] | ["snapshots", ..] => Ok(Part::Ignored),
        _ => Err(Fault::UnknownEntry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64) -> Header {
        Header { path: path.to_owned(), kind: Kind::File, size }
    }

    fn name(base: Option<u64>, slot: u64) -> Name {
        let hash = "1".repeat(32);
        Name { base, slot, hash, packing: super::super::Packing::None }
    }

    #[test]
    fn a_snapshot_needs_all_its_parts() {
        let all = ["version", "snapshots/9/9", "accounts/9.1"];
        for left_out in [None, Some(0), Some(1), Some(2)] {
            let mut contents = Contents::new(None, ACCOUNTS_FILES_MAX);
            for (_, path) in all.iter().enumerate().filter(|(at, _)| Some(*at) != left_out) {
                contents.enter(&file(path, 5)).unwrap();
            }
            match left_out {
                None => assert_eq!(contents.finish(), Ok((9, 1))),
                Some(_) => assert!(matches!(contents.finish(), Err(Fault::Missing(_)))),
            }
        }
    }

    #[test]
    fn slots_are_bounded_by_name_and_by_manifest() {
        let mut named = Contents::new(Some(&name(Some(5), 9)), ACCOUNTS_FILES_MAX);
        assert_eq!(named.enter(&file("accounts/10.1", 0)), Err(Fault::SlotAbove { slot: 10, archive: 9 }));
        assert_eq!(named.enter(&file("accounts/5.1", 0)), Err(Fault::SlotBelow { slot: 5, base: 5 }));
        assert_eq!(named.enter(&file("accounts/0.1", 0)), Err(Fault::SlotZero));
        assert_eq!(named.enter(&file("accounts/6.1", 0)), Ok(Part::Accounts { slot: 6, file: 1 }));
        assert_eq!(named.enter(&file("snapshots/8/8", 0)), Err(Fault::ManifestSlot { found: 8, expected: 9 }));
        // Without a name only the manifest tells, which may come last.
        let mut unnamed = Contents::new(None, ACCOUNTS_FILES_MAX);
        unnamed.enter(&file("accounts/10.1", 0)).unwrap();
        unnamed.enter(&file("version", 5)).unwrap();
        unnamed.enter(&file("snapshots/9/9", 0)).unwrap();
        assert_eq!(unnamed.finish(), Err(Fault::SlotAbove { slot: 10, archive: 9 }));
        assert_eq!(unnamed.enter(&file("snapshots/8/8", 0)), Err(Fault::ManifestSlot { found: 8, expected: 9 }));
        let mut two = Contents::new(None, ACCOUNTS_FILES_MAX);
        assert_eq!(two.enter(&file("snapshots/8/9", 0)), Err(Fault::ManifestSlot { found: 9, expected: 8 }));
    }

    #[test]
    fn the_files_are_those_that_the_manifest_lists() {
        let of = |found: &[(&str, u64)], listed: &[(u64, u64, u64)], base| {
            let mut contents = Contents::new(Some(&name(base, 9)), ACCOUNTS_FILES_MAX);
            for (path, size) in [("version", 5), ("snapshots/9/9", 5)].iter().chain(found) {
                contents.enter(&file(path, *size)).unwrap();
            }
            assert!(listed.iter().all(|&(slot, file, bytes)| contents.list(Listed { slot, file, bytes })));
            contents.end_list(true);
            contents.finish()
        };
        let both = [("accounts/8.1", 500), ("accounts/9.2", 512)];
        assert_eq!(of(&both, &[(8, 1, 500), (9, 2, 500)], None), Ok((9, 2)), "padded, or of exact length");
        assert_eq!(of(&both, &[(9, 2, 512), (8, 1, 500), (4, 7, 1)], Some(4)), Ok((9, 2)), "the base's are elsewhere");
        let missing = Fault::FileMissing { slot: 4, file: 7, bytes: 1 };
        assert_eq!(of(&both, &[(9, 2, 512), (8, 1, 500), (4, 7, 1)], None), Err(missing));
        let short = Fault::FileShort { slot: 8, file: 1, found: 500, listed: 501 };
        assert_eq!(of(&both, &[(9, 2, 512), (8, 1, 501)], None), Err(short));
        assert_eq!(of(&both, &[(9, 2, 512)], None), Err(Fault::FileUnlisted { slot: 8, file: 1 }));
        // A list of the base's files alone is a list, and an empty one is none.
        assert_eq!(of(&both, &[(4, 7, 1)], Some(4)), Err(Fault::FileUnlisted { slot: 8, file: 1 }));
        for base in [None, Some(4)] {
            assert_eq!(of(&both, &[], base), Ok((9, 2)));
        }
        // A list that was not read to its end counts for nothing.
        let mut unknown = Contents::new(None, ACCOUNTS_FILES_MAX);
        [("version", 5), ("snapshots/9/9", 5), both[0]].iter().for_each(|(path, size)| {
            unknown.enter(&file(path, *size)).unwrap();
        });
        assert!(unknown.list(Listed { slot: 9, file: 3, bytes: 1 }));
        unknown.end_list(false);
        assert_eq!((unknown.finish(), unknown.listing()), (Ok((9, 1)), Listing::Unknown));
    }

    #[test]
    fn nothing_comes_twice() {
        let mut contents = Contents::new(None, ACCOUNTS_FILES_MAX);
        let paths = ["version", "snapshots/status_cache", "snapshots/9/9", "accounts/9.1", "./accounts/009.1"];
        for path in paths {
            let first = contents.enter(&file(path, 0));
            assert_eq!(first.is_ok(), path != "./accounts/009.1", "{path}: {first:?}");
            assert_eq!(contents.enter(&file(path, 0)), Err(Fault::Duplicate), "{path}");
        }
    }

    #[test]
    fn paths_stay_inside() {
        let bad = ["/version", "../version", "accounts/../version", "accounts//1.1", "./", ".", "accounts/1.1/", ".."];
        for path in bad {
            assert_eq!(Contents::new(None, ACCOUNTS_FILES_MAX).enter(&file(path, 0)), Err(Fault::Path), "{path}");
        }
        let unknown = [
            "other",
            "accounts",
            "snapshots",
            "accounts/1",
            "accounts/1.x",
            "accounts/.1",
            "accounts/1.2.3",
            "accounts/1.data",
            "version/1",
            "accounts/1.2/3",
            "accounts/-1.2",
            "accounts/1.99999999999999999999",
        ];
        for path in unknown {
            assert_eq!(
                Contents::new(None, ACCOUNTS_FILES_MAX).enter(&file(path, 0)),
                Err(Fault::UnknownEntry),
                "{path}"
            );
        }
        for path in ["._version", "accounts/._1.2", "snapshots/9/._9", "./._accounts", "accounts/._1.2.data"] {
            assert_eq!(
                Contents::new(None, ACCOUNTS_FILES_MAX).enter(&file(path, 0)),
                Err(Fault::AppleDouble),
                "{path}"
            );
        }
        let split = Contents::new(None, ACCOUNTS_FILES_MAX).enter(&file("accounts/1.2.data", 0));
        assert_eq!(split, Err(Fault::Split));
        for path in ["./", ".", "snapshots/", "./snapshots", "snapshots/9/", "accounts", "././accounts/"] {
            let header = Header { path: path.to_owned(), kind: Kind::Directory, size: 0 };
            assert_eq!(Contents::new(None, ACCOUNTS_FILES_MAX).enter(&header), Ok(Part::Ignored), "{path}");
        }
        let header = Header { path: "etc".to_owned(), kind: Kind::Directory, size: 0 };
        assert_eq!(Contents::new(None, ACCOUNTS_FILES_MAX).enter(&header), Err(Fault::UnknownEntry));
        let header = Header { path: "accounts".to_owned(), kind: Kind::Directory, size: 1 };
        assert_eq!(Contents::new(None, ACCOUNTS_FILES_MAX).enter(&header), Err(Fault::DirectoryData(1)));
    }

    #[test]
    fn sizes_and_numbers_of_entries_are_bounded() {
        let mut contents = Contents::new(None, ACCOUNTS_FILES_MAX);
        for (path, limit) in [("version", 8), ("accounts/1.1", 16 << 30), ("snapshots/1/1", 32 << 30)] {
            let refused = contents.enter(&file(path, limit + 1));
            assert_eq!(refused, Err(Fault::TooLarge { size: limit + 1, limit }), "{path}");
            assert!(contents.enter(&file(path, limit)).is_ok(), "{path}");
        }
        let more = (0..=OTHER_FILES_MAX).map(|number| contents.enter(&file(&format!("snapshots/x{number}"), 0)));
        assert_eq!(more.last(), Some(Err(Fault::TooMany(OTHER_FILES_MAX))));
        let mut few = Contents::new(None, 2);
        assert!(few.enter(&file("accounts/1.1", 0)).is_ok() && few.list(Listed { slot: 1, file: 2, bytes: 0 }));
        assert!(!few.list(Listed { slot: 1, file: 3, bytes: 0 }), "the table is full");
        few.end_list(false);
        assert!(few.enter(&file("accounts/1.2", 0)).is_ok());
        assert_eq!(few.enter(&file("accounts/1.3", 0)), Err(Fault::TooManyFiles(2)));
    }
}
