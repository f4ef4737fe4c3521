//! The work directory of a load: its lock, its manifest, and the removal of what is in it.
//!
//! Owns: which files may be removed, and the manifest's checksum. Must not: touch a file that is not a spill's, because
//! an operator may name any directory; nor anything at all without the lock, because another load may be making its spill
//! there. A name alone makes no file a spill's: the lock's file says that the directory is one, and each run says it again.
//! Used on the main thread; the manifest is also written by `sort`.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind as Io, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use engines::checked::{self, Found};
use serde::{Deserialize, Serialize};

use super::Order;
use super::run::{Run, damaged, is_run};
use crate::identity::Stamp;
use crate::paths::WorkDir;
use crate::source::{Format, Place};

const MANIFEST: &str = "manifest.toml";
const MANIFEST_TEMPORARY: &str = "manifest.tmp";
const LOCK: &str = "LOCK";
/// What the lock's file says of a directory that a load has made, and of one that it has found empty.
const MADE: &str = "the spill of a load, in a directory that was made for it\n";
const FOUND: &str = "the spill of a load\n";
/// The version of manifest and runs.
const FORMAT: u32 = 2;

/// What a spill is of, how far it has come, and its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    /// The spill's own number, as hex; every block of its runs carries it.
    pub(crate) spill: String,
    /// The source in words.
    pub(crate) source: String,
    /// How its file holds pairs.
    pub(crate) format: Option<Format>,
    pub(crate) order: Order,
    /// The seed of a shuffled order; 0 for a sorted one.
    pub(crate) seed: u64,
    /// Records in the runs.
    pub(crate) records: u64,
    /// As hex: the digest of these records, of all of them once complete, else up to the last border.
    pub(crate) content: String,
    /// Whether the source was read to its end.
    pub(crate) complete: bool,
    /// Where reading goes on.
    pub(crate) place: Place,
    /// What the file system said of the file.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) runs: Vec<Run>,
}

impl Manifest {
    /// An empty spill.
    pub(crate) fn new(spill: u64, source: String, format: Option<Format>, order: Order, seed: u64) -> Self {
        Self {
            version: FORMAT,
            spill: format!("{spill:016x}"),
            source,
            format,
            order,
            seed,
            records: 0,
            content: String::new(),
            complete: false,
            place: Place::default(),
            stamp: None,
            runs: Vec::new(),
        }
    }

    /// The spill's number.
    pub(crate) fn spill(&self) -> Result<u64> {
        number(&self.spill)
    }

    /// The digest of its records.
    pub(crate) fn content(&self) -> Result<u64> {
        number(&self.content)
    }
}

fn number(hex: &str) -> Result<u64> {
    u64::from_str_radix(hex, 16).with_context(|| format!("not a number in hex: text={hex:?}"))
}

/// A work directory that no other process uses meanwhile.
pub(crate) struct Work {
    dir: PathBuf,
    /// `None`: the directory is not there yet.
    lock: Option<File>,
    /// Whether the directory is for spills alone, and goes with this one.
    made: bool,
    is_default: bool,
}

impl Work {
    /// Takes the lock of `dir`, where it exists.
    ///
    /// # Errors
    /// Something in it is no spill's, another process uses it, or the file system's.
    pub(crate) fn open(dir: &WorkDir) -> Result<Self> {
        let mut work = Self { dir: dir.path.clone(), lock: None, made: false, is_default: dir.is_default };
        // Before anything is made in it.
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

    /// Makes the directory and takes its lock, unless that was done.
    ///
    /// # Errors
    /// Another process uses it, or the file system's.
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

    /// The manifest; `None` where there is none, so that nothing here is a spill yet.
    ///
    /// # Errors
    /// The manifest is damaged or of another version, named with the way out; else the file system's.
    pub(crate) fn manifest(&self) -> Result<Option<Manifest>> {
        if self.lock.is_none() { Ok(None) } else { read_manifest(&self.dir) }
    }

    /// Replaces the manifest, durably. Its runs and their names are durable with it.
    ///
    /// # Errors
    /// The file system's, naming the file.
    pub(crate) fn write(&self, manifest: &Manifest) -> Result<()> {
        Ok(checked::write(&self.dir.join(MANIFEST), &toml::to_string(manifest)?)?)
    }

    /// Removes every file that is not among `runs`, and without any of them the manifest too.
    ///
    /// # Errors
    /// The file system's, naming the file.
    pub(crate) fn keep(&self, runs: &[Run]) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        let mut kept: Vec<String> = runs.iter().map(|run| run.name()).collect();
        kept.push(LOCK.to_owned());
        if !runs.is_empty() {
            kept.push(MANIFEST.to_owned());
        }
        let mut names = self.names()?;
        // The manifest first: without it nothing is missed.
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

    /// Removes the spill, and the directory where it was made for one and nothing else is in it.
    ///
    /// # Errors
    /// The file system's, naming the file.
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
            // Not empty: whoever put something there keeps it.
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

    /// Refuses a directory with anything in it that no spill has made.
    fn refuse_foreign(&self) -> Result<()> {
        let names = self.names()?;
        let mark = Mark::of(&self.dir.join(LOCK));
        let foreign = |name: &&String| match (name.as_str(), mark) {
            // A lock that was just made is nobody's while nothing else is there.
            (LOCK, Mark::Empty) => names.len() > 1,
            (LOCK, mark) => mark == Mark::Foreign,
            // One that a fault has changed is named as damaged when it is used.
            (name, Mark::Made | Mark::Found) => !is_ours(name, &self.dir.join(name), true),
            (_, Mark::Empty | Mark::Foreign) => true,
        };
        match names.iter().find(foreign) {
            None => Ok(()),
            Some(foreign) => bail!(
                "the work directory holds what is not a spill's: dir={} entry={foreign}: name an empty one with \
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
        // Whoever has removed the spill meanwhile has removed the file that is locked here.
        let named = fs::metadata(&path).is_ok_and(|named| file.metadata().is_ok_and(|held| held.ino() == named.ino()));
        ensure!(named, "another process has just left the work directory: dir={dir}: start again");
        match Mark::of(&path) {
            Mark::Made => self.made = true,
            Mark::Found => {}
            Mark::Foreign => {
                bail!("not the lock of a spill: file={}: name another directory with --work-dir", path.display())
            }
            // Durable before any other file is, so that a spill is known for one after a loss of power.
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

/// What a lock's file says of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// A load has made it.
    Made,
    /// A load has found it empty.
    Found,
    /// Nothing: there is no such file, or it was made and not written.
    Empty,
    /// No load has written it.
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

/// The manifest in `dir`; `None` where there is none.
pub(super) fn read_manifest(dir: &Path) -> Result<Option<Manifest>> {
    let path = dir.join(MANIFEST);
    let text = match checked::read(&path)? {
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

/// Whether a file in a directory of a spill is a spill's: a run in a directory that was `made` for it by its name, in one
/// that was found by its first bytes too.
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
        manifest.runs = vec![Run { number: 0, records: 9 }, Run { number: 3, records: 8 }];
        work.write(&manifest).unwrap();
        assert_eq!(work.manifest().unwrap(), Some(manifest));
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

    /// A run as a spill begins it.
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
        // Cut short as it was begun.
        fs::write(place.join("run-00002"), "").unwrap();
        fs::write(place.join(MANIFEST), "x").unwrap();
        let other = Work::open(&WorkDir::named(&place)).err().unwrap().to_string();
        assert!(other.contains("another process uses the work directory"), "{other}");
        work.remove().unwrap();
        assert!(!place.exists());
        // Directories of somebody's own, with names like those of a spill.
        for name in ["run-away", "run-1", "run-20240101", "bucket-7", MANIFEST, LOCK] {
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(name), "x").unwrap();
            let refused = Work::open(&WorkDir::named(&place)).err().unwrap().to_string();
            assert!(refused.contains(&format!("entry={name}")), "{refused}");
            assert_eq!(fs::read(place.join(name)).unwrap(), b"x");
            assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "{name}");
            fs::remove_dir_all(&place).unwrap();
        }
        // One that was there before the spill stays, and so does a file that came to it.
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
