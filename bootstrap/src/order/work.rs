//! The work directory of a load: its lock, its manifest, and the removal of its files.
//!
//! Owns: the decision which files may be removed, and the manifest's checksum. Must not: touch a file that no spill has
//! made, because an operator may name any directory. Must not: touch anything without the lock, because another load
//! may be writing its spill there. A file's name does not make it a spill's: the lock file marks the directory, and
//! each run has a mark of its own. Used on the main thread; the manifest is also written by `sort`.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind as Io, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use engines::checked::{self, Found};
use serde::{Deserialize, Serialize};

use super::Asked;
use super::chunk::Tally;
use super::run::{Run, damaged, has_no_holes, is_run, punch};
use crate::identity::Stamp;
use crate::rank::Order;
use crate::source::{Format, Place, Told};

const MANIFEST: &str = "manifest.toml";
const MANIFEST_TEMPORARY: &str = "manifest.tmp";
/// Limit of the manifest's length: some five million runs of fifty bytes, more than 170 billion records have with the
/// least memory.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
const LOCK: &str = "LOCK";
/// Contents of the lock file: in a directory that a load has made, and in one that it has found empty.
const MADE: &str = "the spill of a load, in a directory that was made for it\n";
const FOUND: &str = "the spill of a load\n";
/// Version of the manifest and the runs.
const FORMAT: u32 = 3;
/// Bytes that any file system can make a hole of, as long as its blocks are not larger than a page.
const PAGE_BYTES: usize = 4096;

/// Directory for a load's spill.
#[derive(Clone, Debug)]
pub(crate) struct WorkDir {
    pub(crate) path: PathBuf,
    /// Whether the user has named no directory. A default directory is removed with the spill even if the load has
    /// found it empty, because then a load that was killed at its beginning has left it.
    pub(crate) is_default: bool,
    /// Options of the load, which a spill there keeps.
    pub(crate) asked: Asked,
}

impl WorkDir {
    /// A directory that the user has named.
    pub(crate) fn named(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_default: false, asked: Asked::default() }
    }
}

/// A spill's source, its progress, and its files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    /// The spill's own number in hex. Every run's header and every block's checksum contain it.
    pub(crate) spill: String,
    /// The source as messages name it, such as `file=PATH`.
    pub(crate) source: String,
    /// Format of the source's file. `None` for synthetic pairs.
    pub(crate) format: Option<Format>,
    pub(crate) order: Order,
    /// Seed of a shuffled order; 0 for a sorted one.
    pub(crate) seed: u64,
    /// Options of the load that has made the spill, or has taken it up last.
    #[serde(default, skip_serializing_if = "Asked::is_nothing")]
    pub(crate) asked: Asked,
    /// Number of records in the runs.
    pub(crate) records: u64,
    /// Digest of these records in hex: of all records once `complete`, until then up to the last border.
    pub(crate) content: String,
    pub(crate) complete: bool,
    /// Position in the source from which reading continues.
    pub(crate) place: Place,
    /// Stamp of the source's file. `None` if it has none.
    pub(crate) stamp: Option<Stamp>,
    /// Counts of the records that the runs list as taken: the store holds their pairs, and the file system may have
    /// their blocks back. All 0 while the spill is whole.
    #[serde(default)]
    pub(crate) given_back: Tally,
    /// Facts that the source has told at its end.
    #[serde(default, skip_serializing_if = "Told::is_nothing")]
    pub(crate) told: Told,
    pub(crate) runs: Vec<Run>,
}

impl Manifest {
    /// Creates the manifest of a spill without records.
    pub(crate) fn new(spill: u64, source: String, format: Option<Format>, order: Order, seed: u64) -> Self {
        Self { version: FORMAT, spill: format!("{spill:016x}"), source, format, order, seed, ..Self::default() }
    }

    /// Parses the spill's number from its hex.
    pub(crate) fn spill(&self) -> Result<u64> {
        number(&self.spill)
    }

    /// Parses the digest of the spill's records.
    pub(crate) fn content(&self) -> Result<u64> {
        number(&self.content)
    }
}

fn number(hex: &str) -> Result<u64> {
    u64::from_str_radix(hex, 16).with_context(|| format!("not a number in hex: text={hex:?}"))
}

/// A work directory, locked while it exists.
pub(crate) struct Work {
    dir: PathBuf,
    /// `None`: the directory does not exist yet.
    lock: Option<File>,
    /// Whether the directory was made for spills, so that it is removed with this one.
    made: bool,
    is_default: bool,
    asked: Asked,
}

impl Work {
    /// Locks `dir` if it exists.
    ///
    /// # Errors
    /// A file in it that no spill has made; another process that uses it; I/O errors.
    pub(crate) fn open(dir: &WorkDir) -> Result<Self> {
        let (path, is_default, asked) = (dir.path.clone(), dir.is_default, dir.asked.clone());
        let mut work = Self { dir: path, lock: None, made: false, is_default, asked };
        // Check before a lock file is created in it.
        work.refuse_foreign()?;
        if work.dir.exists() {
            work.lock()?;
            work.refuse_foreign()?;
        }
        Ok(work)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the options of the load, which belong into the manifest.
    pub(super) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// Creates the directory and locks it, unless that was done before.
    ///
    /// # Errors
    /// Another process that uses it; I/O errors of creating or locking it.
    pub(crate) fn create(&mut self) -> Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        let failed = || format!("cannot create dir={}", self.dir.display());
        if let Some(parent) = self.dir.parent() {
            fs::create_dir_all(parent).with_context(failed)?;
        }
        self.made = match fs::create_dir(&self.dir) {
            Err(error) if error.kind() == Io::AlreadyExists => false,
            made => made.map(|()| true).with_context(failed)?,
        };
        self.lock()?;
        self.refuse_foreign()
    }

    /// Reads the manifest; `None` if there is none, and so no spill yet.
    ///
    /// # Errors
    /// A manifest that is damaged or of another version, named with the way out; I/O errors of reading it.
    pub(crate) fn manifest(&self) -> Result<Option<Manifest>> {
        if self.lock.is_none() { Ok(None) } else { read_manifest(&self.dir) }
    }

    /// Replaces the manifest durably. The runs that it lists, and their names, are durable with it.
    ///
    /// # Errors
    /// I/O errors of writing, naming the file.
    pub(crate) fn write(&self, manifest: &Manifest) -> Result<()> {
        Ok(checked::write(&self.dir.join(MANIFEST), &toml::to_string(manifest)?)?)
    }

    /// Tries whether files in the directory can have holes. Uses the manifest's temporary file, which is free until a
    /// manifest is written.
    ///
    /// # Errors
    /// I/O errors of writing that file, naming it.
    pub(crate) fn can_give_back(&self) -> Result<bool> {
        let path = self.dir.join(MANIFEST_TEMPORARY);
        let tried = File::create(&path).and_then(|mut file| {
            file.write_all(&[1; 2 * PAGE_BYTES])?;
            punch(&file, 0, PAGE_BYTES as u64)
        });
        let removed = fs::remove_file(&path);
        match tried.and(removed) {
            Err(error) if has_no_holes(&error) => Ok(false),
            tried => tried.map(|()| true).with_context(|| format!("cannot write file={}", path.display())),
        }
    }

    /// Removes every file of the spill that is not among `runs`. If `runs` is empty, the manifest is removed too.
    ///
    /// # Errors
    /// I/O errors of listing the directory or removing a file, naming it.
    pub(crate) fn keep(&self, runs: &[Run]) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        let mut kept: HashSet<String> = runs.iter().map(|run| run.name()).collect();
        kept.insert(LOCK.to_owned());
        if !runs.is_empty() {
            kept.insert(MANIFEST.to_owned());
        }
        let mut names = self.names()?;
        // Remove the manifest first: without it, no missing run is an error.
        names.sort_by_key(|name| name != MANIFEST);
        for name in names.into_iter().filter(|name| !kept.contains(name)) {
            let path = self.dir.join(&name);
            if !is_ours(&name, &path, self.made) {
                continue;
            }
            fs::remove_file(&path).with_context(|| format!("cannot remove file={}", path.display()))?;
        }
        Ok(())
    }

    /// Removes the spill. Removes the directory too, if it was made for the spill and nothing else is in it.
    ///
    /// # Errors
    /// I/O errors of listing the directory or removing a file, naming it.
    pub(crate) fn remove(&mut self) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        self.keep(&[])?;
        let lock = self.dir.join(LOCK);
        match fs::remove_file(&lock) {
            Err(error) if error.kind() != Io::NotFound => {
                return Err(error).with_context(|| format!("cannot remove file={}", lock.display()));
            }
            _ => {}
        }
        if self.made {
            // A directory that is not empty stays, because somebody else has put a file there.
            fs::remove_dir(&self.dir).ok();
        }
        self.lock = None;
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>> {
        let failed = || format!("cannot list dir={}", self.dir.display());
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == Io::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(failed),
        };
        entries.map(|entry| Ok(entry.with_context(failed)?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Refuses a directory that holds anything but a spill's files.
    fn refuse_foreign(&self) -> Result<()> {
        let names = self.names()?;
        let mark = Mark::of(&self.dir.join(LOCK));
        let foreign = |name: &&String| match (name.as_str(), mark) {
            // An empty lock file is fine while it is alone: another process has just created it.
            (LOCK, Mark::Empty) => names.len() > 1,
            (LOCK, mark) => mark == Mark::Foreign,
            // A run with a damaged header is accepted here, and reported as damaged when it is used.
            (name, Mark::Made | Mark::Found) => !is_ours(name, &self.dir.join(name), true),
            (_, Mark::Empty | Mark::Foreign) => true,
        };
        match names.iter().find(foreign) {
            None => Ok(()),
            Some(foreign) => bail!(
                "the work directory has an entry that is not a spill's: dir={} entry={foreign}: name an empty one with \
                 --work-dir",
                self.dir.display()
            ),
        }
    }

    fn lock(&mut self) -> Result<()> {
        let path = self.dir.join(LOCK);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = file.with_context(|| format!("cannot create file={}", path.display()))?;
        let dir = self.dir.display();
        let in_use = "wait for it to end, or name another directory with --work-dir";
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("another process uses the work directory: dir={dir}: {in_use}"),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock file={}", path.display()));
            }
        }
        // The process that held the lock may have removed this file with its spill. Then the locked file has no name
        // any more.
        let named = fs::metadata(&path).is_ok_and(|named| file.metadata().is_ok_and(|held| held.ino() == named.ino()));
        ensure!(named, "another process has just left the work directory: dir={dir}: start again");
        match Mark::of(&path) {
            Mark::Made => self.made = true,
            Mark::Found => {}
            Mark::Foreign => {
                bail!("not the lock of a spill: file={}: name another directory with --work-dir", path.display())
            }
            // Flushed before any other file, so that the directory is known as a spill's after a loss of power.
            Mark::Empty => {
                self.made |= self.is_default;
                let text = if self.made { MADE } else { FOUND };
                file.set_len(0)
                    .and_then(|()| file.write_all(text.as_bytes()))
                    .and_then(|()| file.sync_all())
                    .and_then(|()| File::open(&self.dir)?.sync_all())
                    .with_context(|| format!("cannot write file={}", path.display()))?;
            }
        }
        self.lock = Some(file);
        Ok(())
    }
}

/// Origin of a work directory, according to its lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// A load has created the directory.
    Made,
    /// A load has found the directory empty.
    Found,
    /// Unknown: the lock file does not exist, or was created and never written.
    Empty,
    /// No load has written the lock file.
    Foreign,
}

impl Mark {
    fn of(lock: &Path) -> Self {
        match engines::read_small(lock) {
            Ok(text) if text == MADE.as_bytes() => Self::Made,
            Ok(text) if text == FOUND.as_bytes() => Self::Found,
            Ok(text) if text.iter().all(|byte| *byte == 0) => Self::Empty,
            Err(error) if error.kind() == Io::NotFound => Self::Empty,
            Ok(_) | Err(_) => Self::Foreign,
        }
    }
}

/// Reads the manifest in `dir`; `None` if there is none.
pub(super) fn read_manifest(dir: &Path) -> Result<Option<Manifest>> {
    let path = dir.join(MANIFEST);
    let text = match checked::read_large(&path, MANIFEST_BYTES_MAX)? {
        None => return Ok(None),
        Some(Found::Whole(text)) => text,
        Some(Found::Unchecked(_) | Found::Damaged) => {
            return Err(damaged(&path, "its checksum differs, or an earlier version wrote it"));
        }
    };
    let manifest: Manifest = toml::from_str(&text).with_context(|| format!("cannot read file={}", path.display()))?;
    let version = manifest.version;
    ensure!(version == FORMAT, "the spill is of another version: file={} version={version}", path.display());
    Ok(Some(manifest))
}

/// Whether a file in a spill's directory belongs to the spill. A run is recognized by its name in a directory that was
/// `made` for spills, and in any other directory by its first bytes too.
fn is_ours(name: &str, path: &Path, made: bool) -> bool {
    match name.strip_prefix("run-") {
        Some(number) => number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit()) && (made || is_run(path)),
        None => [MANIFEST, MANIFEST_TEMPORARY, LOCK].contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_with_any_byte_changed_or_cut_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut work = Work::open(&WorkDir::named(dir.path().join("work"))).unwrap();
        assert_eq!(work.manifest().unwrap(), None);
        work.create().unwrap();
        let mut manifest = Manifest::new(5, "file=x".to_owned(), Some(Format::Csv), Order::Sorted, 0);
        manifest.runs = vec![Run::whole(0, 9), Run { taken: 5, ..Run::whole(3, 8) }];
        manifest.given_back = Tally { pairs: 3, duplicates: 2, replaced: 1, absent: 4 };
        work.write(&manifest).unwrap();
        assert_eq!(work.manifest().unwrap(), Some(manifest.clone()));
        // As many as a billion records have with the least memory, before runs are merged with one another.
        let many =
            Manifest { runs: (0..30_000).map(|number| Run::whole(number, 35_840)).collect(), ..manifest.clone() };
        work.write(&many).unwrap();
        assert_eq!(work.manifest().unwrap(), Some(many));
        work.write(&manifest).unwrap();
        let path = work.dir().join(MANIFEST);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            fs::write(&path, flipped).unwrap();
            assert!(work.manifest().unwrap_err().to_string().contains("manifest.toml"), "flipped {at}");
            fs::write(&path, &bytes[..at]).unwrap();
            assert!(work.manifest().unwrap_err().to_string().contains("manifest.toml"), "cut {at}");
        }
    }

    /// The first bytes of a run's file.
    fn run(number: u32) -> Vec<u8> {
        [&b"solkvrun"[..], &1u32.to_le_bytes(), &number.to_le_bytes(), &[0; 40]].concat()
    }

    #[test]
    fn nothing_but_a_spill_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("work");
        let mut work = Work::open(&WorkDir::named(&place)).unwrap();
        work.create().unwrap();
        fs::write(place.join("run-00001"), run(1)).unwrap();
        // A run that was cut short at its beginning.
        fs::write(place.join("run-00002"), "").unwrap();
        fs::write(place.join(MANIFEST), "x").unwrap();
        let other = Work::open(&WorkDir::named(&place)).err().unwrap().to_string();
        assert!(other.contains("another process uses the work directory"), "{other}");
        work.remove().unwrap();
        assert!(!place.exists());
        // Directories of somebody else, with names like those of a spill.
        for name in ["run-away", "run-1", "run-20240101", "bucket-7", MANIFEST, LOCK] {
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(name), "x").unwrap();
            let refused = Work::open(&WorkDir::named(&place)).err().unwrap().to_string();
            assert!(refused.contains(&format!("entry={name}")), "{refused}");
            assert_eq!(fs::read(place.join(name)).unwrap(), b"x");
            assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "{name}");
            fs::remove_dir_all(&place).unwrap();
        }
        // A directory that existed before the spill stays, and so does a file that somebody else has put there.
        fs::create_dir(&place).unwrap();
        let mut work = Work::open(&WorkDir::named(&place)).unwrap();
        work.create().unwrap();
        fs::write(place.join("run-00003"), "mine, and longer than the header of a run would be").unwrap();
        work.remove().unwrap();
        assert!(place.join("run-00003").exists() && !place.join(LOCK).exists());
    }

    #[test]
    fn nothing_is_touched_without_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("work");
        let mut late = Work::open(&WorkDir::named(&place)).unwrap();
        let mut first = Work::open(&WorkDir::named(&place)).unwrap();
        first.create().unwrap();
        fs::write(place.join("run-00001"), run(1)).unwrap();
        first.write(&Manifest::new(5, "x".to_owned(), None, Order::Sorted, 0)).unwrap();
        assert!(late.create().is_err());
        assert!(late.manifest().unwrap().is_none());
        late.keep(&[]).unwrap();
        late.remove().unwrap();
        assert!(place.join("run-00001").exists() && place.join(MANIFEST).exists() && place.join(LOCK).exists());
    }
}
