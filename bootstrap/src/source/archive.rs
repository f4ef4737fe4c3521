//! Solana snapshot archives as a source: a full archive, and an incremental one on top of it.
//!
//! Owns: the number that orders the versions of an account, by slot and by place within the slot. Must not: choose
//! between two versions, because those of one account lie anywhere in the archives; `order` chooses, where they meet.
//! Runs on the thread that reads the source.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use engine_api::Code;
use serde::{Deserialize, Serialize};
use solana::Extract;
use solana::archive::append_vec::HEADER_BYTES;
use solana::archive::{Archive, Listing, Name, Packing, Version, is_url};

use super::numbers::{Files, Numbers};
use super::open::{Failing, open};
use super::{Place, TakePlaced};
use crate::out::tell;
use crate::seen::Seen;
use crate::signal::Stopped;
use crate::wrong::Wrong;

/// Bytes of a packed archive for each version of an account, at least. Address, owner and balance of an account are
/// nearly random, so they take about as much packed as unpacked.
const PACKED_VERSION_BYTES: u64 = 64;
/// Bytes of an archive that is not packed for each version of an account, at least: the record of an account without
/// data.
const UNPACKED_VERSION_BYTES: u64 = HEADER_BYTES as u64;

/// Archives that make one map together.
#[derive(Clone, Debug)]
pub(crate) struct Archives {
    /// Location of the full archive, then that of the incremental one if there is one.
    locations: Vec<String>,
    /// The same for messages, without the secrets of a URL.
    shown: Vec<String>,
    /// Slot of each, as far as the names tell.
    slots: Vec<Option<u64>>,
    extract: Extract,
    packed_bytes: Option<u64>,
    /// Largest number of versions that archives of this length and packing can be expected to have.
    versions_max: Option<u64>,
    /// Blockhash that the stream names for the newest archive's slot, if it is known.
    stream_blockhash: Option<[u8; 32]>,
    /// Packed bytes that the present pass has read.
    read_bytes: Arc<AtomicU64>,
    /// Told while a server fails.
    seen: Seen,
}

impl Archives {
    /// Whether the location is one of an archive: a URL, a file with the name of an archive, or a directory that one was
    /// unpacked into.
    pub(super) fn are_at(location: &Path) -> bool {
        let is_named = |name: &OsStr| name.to_str().and_then(Name::parse).is_some();
        is_url(&location.to_string_lossy())
            || location.file_name().is_some_and(is_named)
            || (location.join("accounts").is_dir() && location.join("version").is_file())
    }

    /// Checks that the archives are there, and by their names that they belong together. `seen` is told while a server
    /// fails, now and at each reading.
    ///
    /// # Errors
    /// [`Wrong`] for archives that do not belong together, or without an extraction; an archive that cannot be opened.
    pub(crate) fn new(full: &Path, incremental: Option<&Path>, extract: Option<Extract>, seen: &Seen) -> Result<Self> {
        let Some(extract) = extract else {
            return Err(Wrong::error(
                Code::Extract,
                "an archive holds accounts, and several values can be taken from each: name one with --extract, such as \
                 --extract token-owner",
            ));
        };
        let mut all = Self::none(extract, seen);
        for path in [Some(full), incremental].into_iter().flatten() {
            let full_slot = all.slots.first().copied();
            all.push(path, |name, shown| check(full_slot, name, shown))?;
        }
        Ok(all)
    }

    fn none(extract: Extract, seen: &Seen) -> Self {
        let (locations, shown, slots, stream_blockhash, read_bytes) = Default::default();
        let (packed_bytes, versions_max, seen) = (Some(0), Some(0), seen.clone());
        Self { locations, shown, slots, extract, packed_bytes, versions_max, stream_blockhash, read_bytes, seen }
    }

    /// Adds the archive at `path` if `check`, which gets its name and its location for messages, takes it.
    fn push(&mut self, path: &Path, check: impl FnOnce(Option<&Name>, &str) -> Result<()>) -> Result<()> {
        let Some(location) = path.to_str().map(str::to_owned) else {
            return Err(Wrong::error(
                Code::ArchiveKind,
                format!("the archive's path is not UTF-8: archive={}: rename it, or give a link to it", path.display()),
            ));
        };
        let archive = open(&location, &self.seen)?;
        check(archive.name(), archive.shown())?;
        self.shown.push(archive.shown().to_owned());
        self.slots.push(archive.name().map(|name| name.slot).or_else(|| slot_of_both(path)));
        self.packed_bytes = self.packed_bytes.zip(archive.packed_bytes()).map(|(sum, bytes)| sum + bytes);
        self.versions_max = self.versions_max.zip(versions_max(&archive)).map(|(sum, versions)| sum + versions);
        self.locations.push(location);
        Ok(())
    }

    /// Opens an incremental archive without the full one that it adds to: it holds the newest version of each account
    /// that was written after its base.
    ///
    /// # Errors
    /// [`Wrong`] for another archive; an archive that cannot be opened.
    pub(crate) fn incremental(location: &Path, extract: Extract, seen: &Seen) -> Result<Self> {
        let mut all = Self::none(extract, seen);
        all.push(location, |name, shown| match name.and_then(|name| name.base) {
            Some(_) => Ok(()),
            None => Err(not_incremental(shown)),
        })?;
        Ok(all)
    }

    /// Returns the extraction that stands in the words of a source; `None` if the source is not an archive.
    pub(crate) fn extract_of(words: &str) -> Option<Extract> {
        let (_, name) = words.strip_prefix("archive=")?.rsplit_once(" extract=")?;
        name.parse().ok()
    }

    /// Returns the incremental archive in the words of a source that is otherwise the same as this one, which has none.
    pub(crate) fn incremental_left_out<'a>(&self, words: &'a str) -> Option<&'a str> {
        let (full, rest) = words.split_once(" incremental=")?;
        let (shown, extract) = rest.rsplit_once(" extract=")?;
        (self.to_string() == format!("{full} extract={extract}")).then_some(shown)
    }

    /// Returns the slot of the map: that of the newest archive, or `asked` where no name tells.
    ///
    /// # Errors
    /// [`Wrong`] if the archive is of another slot than the one asked for, or if neither is known.
    fn slot(&self, asked: Option<u64>) -> Result<u64> {
        match (self.named_slot(), asked) {
            (Some(slot), Some(asked)) if slot != asked => Err(Wrong::error(
                Code::ArchiveKind,
                format!("the archive is of another slot: slot={slot} asked_slot={asked}: leave --slot out"),
            )),
            (Some(slot), _) | (None, Some(slot)) => Ok(slot),
            (None, None) => Err(Wrong::error(Code::ArchiveKind, self.unnamed())),
        }
    }

    /// Describes an archive whose name does not tell its slot, with the ways out.
    fn unnamed(&self) -> String {
        let (shown, location) = match (self.shown.last(), self.locations.last()) {
            (Some(shown), Some(location)) => (shown.as_str(), Path::new(location)),
            _ => ("", Path::new("")),
        };
        let kind = if location.is_dir() { "snapshot-SLOT-HASH" } else { "snapshot-SLOT-HASH.tar.zst" };
        let found = match slot_inside(location) {
            Some(slot) => format!("--slot {slot}, which its files name, unless it is incremental"),
            None => "--slot SLOT".to_owned(),
        };
        format!(
            "the slot is not known, because the archive has another name than {kind}: archive={shown}: rename it, or give {found}"
        )
    }

    /// Returns the slot of the map. Reading refuses an archive of another slot from now on, even if its name does not
    /// tell.
    ///
    /// # Errors
    /// The same as [`Self::slot`].
    pub(crate) fn fix_slot(&mut self, asked: Option<u64>) -> Result<u64> {
        let slot = self.slot(asked)?;
        if let (Some(known @ None), Some(shown)) = (self.slots.last_mut(), self.shown.last_mut()) {
            *known = Some(slot);
            // A spill of this archive that was made for another slot is not used.
            *shown = format!("{shown} slot={slot}");
        }
        Ok(slot)
    }

    /// Reading refuses an archive whose manifest names another blockhash for the map's slot.
    pub(crate) fn fix_blockhash(&mut self, stream: [u8; 32]) {
        self.stream_blockhash = Some(stream);
    }

    /// Returns the slot of the newest archive, if its name tells it.
    pub(super) fn named_slot(&self) -> Option<u64> {
        self.slots.last().copied().flatten()
    }

    /// Whether the archives can be read only once.
    pub(super) fn is_read_once(&self) -> bool {
        self.locations.iter().any(|location| location == "-")
    }

    /// Returns the length of the archives in bytes, and how many of these the present pass has read.
    pub(crate) fn progress_bytes(&self) -> (Option<u64>, u64) {
        // ORDERING: Relaxed: the value is only shown.
        (self.packed_bytes, self.read_bytes.load(Ordering::Relaxed))
    }

    /// Returns the largest number of versions that archives of this length can be expected to have.
    pub(super) fn count_hint(&self) -> Option<u64> {
        self.versions_max
    }

    /// Returns the paths of the archives, if all of them are plain files.
    pub(crate) fn files(&self) -> Option<Vec<PathBuf>> {
        let file = |location: &String| Some(PathBuf::from(location)).filter(|path| path.is_file());
        self.locations.iter().map(file).collect()
    }

    /// Passes every version of every account on to `take`, from the one with this number on. A version's number in its
    /// record is that of [`Numbers`], which no order of reading changes, because no slot is in both archives. The archives
    /// are read from their start in any case, the incremental one first: a validator removes it within minutes, and the
    /// full one takes longer than that.
    ///
    /// # Errors
    /// Everything that makes an archive unreadable or dubious, naming archive, entry and offset; errors of `take`.
    pub(super) fn for_each_from(&self, from: Place, take: &mut TakePlaced<'_>) -> Result<Told> {
        let (mut numbers, mut number, mut read_before) = (Numbers::default(), 0u64, 0);
        let (mut newest_blockhash, mut listing) = (None, Listing::Compared);
        for ((location, slot), shown) in self.locations.iter().zip(&self.slots).zip(&self.shown).rev() {
            let (mut failed, mut other) = (None, None);
            // The newest archive comes first.
            let stream = self.stream_blockhash.filter(|_| newest_blockhash.is_none());
            let mut taken = |version: &Version<'_>| {
                let place = numbers.of(version)?;
                number += 1;
                if number <= from.number {
                    return Ok(());
                }
                let Version { lamports, owner, data_len, data, .. } = *version;
                let value = self.extract.value(lamports, owner, data_len, data);
                let record = (place | u64::from(value.is_none()), *version.key, value.unwrap_or_default());
                take(record, Place { bytes: 0, number })
            };
            let mut one = |version: &Version<'_>| {
                taken(version).map_err(|error| {
                    let shown = error.to_string();
                    failed = Some(error);
                    shown.into()
                })
            };
            let mut failing = Failing::new(shown, &self.seen);
            let mut tell = |now: solana::archive::Progress| {
                // ORDERING: Relaxed, see `progress_bytes`.
                self.read_bytes.store(read_before + now.packed_bytes, Ordering::Relaxed);
                if let Some((archive, stream)) = now.blockhash.zip(stream).filter(|(archive, stream)| archive != stream)
                {
                    let slot = slot.unwrap_or_default();
                    return Err(other.insert(OtherChain { slot, archive, stream }).clone().into());
                }
                // Here too, because `take` is not called while versions before `from` are skipped.
                failing.tell(now)
            };
            let read = open(location, &self.seen)?.read(&mut tell, &mut one);
            // The errors themselves, because callers look for their types.
            if let Some(error) = failed.or_else(|| other.map(anyhow::Error::from)) {
                return Err(error);
            }
            let summary = match read {
                Err(solana::archive::Error::Stopped(stop)) if stop.is::<Stopped>() => return Err(Stopped.into()),
                Err(error) => return Err(with_code(error, location)),
                Ok(summary) => summary,
            };
            let expected = slot.unwrap_or(summary.slot);
            ensure!(summary.slot == expected, "the archive is of slot={} expected_slot={expected}", summary.slot);
            listing = listing.max(summary.listing);
            if summary.listing == Listing::Unknown {
                tell!(
                    "the layout of the archive's manifest is unknown, so that a file that is missing from the archive would not \
                     be noticed: archive={shown}"
                );
            }
            newest_blockhash.get_or_insert(summary.blockhash);
            read_before = self.read_bytes.load(Ordering::Relaxed);
        }
        Ok(Told { files: numbers.files(), blockhash: newest_blockhash.unwrap_or_default(), listing })
    }
}

/// An archive names another blockhash for its slot than the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherChain {
    pub slot: u64,
    pub archive: [u8; 32],
    pub stream: [u8; 32],
}

impl std::error::Error for OtherChain {}

impl fmt::Display for OtherChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [archive, stream] = [self.archive, self.stream].map(|blockhash| bs58::encode(blockhash).into_string());
        write!(
            f,
            "the archive is of another chain than the stream: slot={} archive_blockhash={archive} stream_blockhash={stream}",
            self.slot
        )
    }
}

/// Refuses a full archive in the place of an incremental one, and the other way round. `full_slot` is the slot of the full
/// archive before this one, as far as its name tells.
fn check(full_slot: Option<Option<u64>>, name: Option<&Name>, shown: &str) -> Result<()> {
    let base = name.and_then(|name| name.base);
    let wrong = match (full_slot, base) {
        (None, Some(base)) => format!(
            "an incremental archive holds changes only: archive={shown}: give the full archive of slot={base} first, and \
             this one as --incremental"
        ),
        (Some(Some(slot)), Some(base)) if slot != base => format!(
            "the incremental archive adds to another full archive: archive={shown} base_slot={base} full_slot={slot}: give \
             the full archive of slot={base}"
        ),
        (Some(_), None) => return Err(not_incremental(shown)),
        _ => return Ok(()),
    };
    Err(Wrong::error(Code::ArchiveBase, wrong))
}

/// Adds the code to an error of an archive that was read. Callers still find the error by its type.
fn with_code(error: solana::archive::Error, location: &str) -> anyhow::Error {
    use solana::archive::Error;
    let code = match &error {
        Error::Name(_) => Some(Code::ArchiveKind),
        Error::Open { .. } | Error::Io { .. } => is_url(location).then_some(Code::Fetch),
        Error::Unpack { .. } | Error::Archive { .. } | Error::Entry { .. } => Some(Code::Archive),
        _ => None,
    };
    let error = anyhow::Error::from(error);
    match code {
        Some(code) => error.context(code),
        None => error,
    }
}

fn not_incremental(shown: &str) -> anyhow::Error {
    Wrong::error(
        Code::ArchiveKind,
        format!(
            "not an incremental archive by its name: archive={shown}: such a file is called \
         incremental-snapshot-BASE-SLOT-HASH.tar.zst"
        ),
    )
}

/// Returns the slot that the files of an unpacked archive name, in `snapshots/SLOT`; `None` if they name none or several.
fn slot_inside(directory: &Path) -> Option<u64> {
    let names = std::fs::read_dir(directory.join("snapshots")).ok()?.flatten().map(|entry| entry.file_name());
    let mut slots = names.filter_map(|name| name.to_str()?.parse::<u64>().ok());
    slots.next().filter(|_| slots.next().is_none())
}

/// Returns the slot of a directory that is called `snapshot-SLOT`, if its files name the same slot. Any other name may be
/// that of an incremental archive, which would be a part of a map only.
fn slot_of_both(directory: &Path) -> Option<u64> {
    let named = directory.file_name()?.to_str()?.strip_prefix("snapshot-")?;
    slot_inside(directory).filter(|slot| named == slot.to_string())
}

/// Returns the largest number of versions that the archive can be expected to have. Without a name the packing is not
/// known before the archive is read. The archive then counts as packed, because a packed one has more versions in the
/// same number of bytes.
fn versions_max(archive: &Archive) -> Option<u64> {
    let is_unpacked = archive.is_directory() || archive.name().is_some_and(|name| name.packing == Packing::None);
    let version_bytes = if is_unpacked { UNPACKED_VERSION_BYTES } else { PACKED_VERSION_BYTES };
    archive.packed_bytes().map(|bytes| bytes / version_bytes)
}

/// Writes the text by which the spill and the store's own file are recognized.
impl fmt::Display for Archives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, shown) in ["archive", "incremental"].into_iter().zip(&self.shown) {
            write!(f, "{name}={shown} ")?;
        }
        write!(f, "extract={}", self.extract.name())
    }
}

/// Facts that archives tell only once they were read to their end. Other sources tell none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Told {
    /// Files whose versions count in another order than that of their numbers.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub(crate) files: Files,
    /// Blockhash of the newest archive's slot; all zeros if it is unknown.
    pub(crate) blockhash: [u8; 32],
    /// List of files in the manifest that proves least; that of a source without archives says nothing.
    #[serde(default, skip_serializing_if = "Listing::is_compared")]
    pub(crate) listing: Listing,
}

impl Told {
    /// Whether the source has given no facts.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_estimated_by_the_packing() {
        const BYTES: usize = 13_600;
        let dir = tempfile::tempdir().unwrap();
        let hint =
            |path: &Path| Archives::new(path, None, Some(Extract::ALL[0]), &Seen::default()).unwrap().count_hint();
        let name = format!("snapshot-9-{}", bs58::encode([5; 32]).into_string());
        for (ending, versions) in [(".tar", 100), (".tar.zst", 212), (".tar.gz", 212), (".tar.lz4", 212)] {
            let path = dir.path().join(format!("{name}{ending}"));
            std::fs::write(&path, [0; BYTES]).unwrap();
            assert_eq!(hint(&path), Some(versions), "{ending}");
        }
        let accounts = dir.path().join("unpacked/accounts");
        std::fs::create_dir_all(&accounts).unwrap();
        std::fs::write(accounts.join("9.1"), [0; BYTES]).unwrap();
        assert_eq!(hint(&dir.path().join("unpacked")), Some(100));
    }
}
