//! The work directory of a load: its lock, its manifest, and the removal of what is in it.
//!
//! Owns: which files may be removed, and the manifest's checksum. Must not: touch a file that is not a spill's, because
//! an operator may name any directory. Used on the main thread; the manifest is also written by `sort`.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Order;
use super::run::{Run, damaged};
use crate::identity::Stamp;
use crate::source::{Format, Place};
use crate::state::write_atomically;

const MANIFEST: &str = "manifest.toml";
const MANIFEST_PART: &str = "manifest.part";
const LOCK: &str = "LOCK";
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
    lock: Option<File>,
}

impl Work {
    /// Takes the lock of `dir`, where it exists.
    ///
    /// # Errors
    /// Something in it is no spill's, another process uses it, or the file system's.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let mut work = Self { dir: dir.to_owned(), lock: None };
        let names = work.names()?;
        if let Some(foreign) = names.iter().find(|name| !is_ours(name)) {
            bail!(
                "the work directory holds what is not a spill's: dir={} entry={foreign}: name an empty one with \
                 --work-dir",
                dir.display()
            );
        }
        if dir.exists() {
            work.lock()?;
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
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot create dir={}", self.dir.display()))?;
        if self.lock.is_none() { self.lock() } else { Ok(()) }
    }

    /// The manifest; `None` where there is none, so that nothing here is a spill yet.
    ///
    /// # Errors
    /// The manifest is damaged or of another version, named with the way out; else the file system's.
    pub(crate) fn manifest(&self) -> Result<Option<Manifest>> {
        let path = self.dir.join(MANIFEST);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Io::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read file={}", path.display())),
        };
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        let (first, rest) = bytes.split_at(end);
        if first != checksum_line(rest).as_bytes() {
            return Err(damaged(&path, "its checksum differs, or an earlier version wrote it"));
        }
        let manifest: Result<Manifest> =
            std::str::from_utf8(rest).map_err(Into::into).and_then(|text| toml::from_str(text).map_err(Into::into));
        let manifest = manifest.with_context(|| format!("cannot read file={}", path.display()))?;
        let version = manifest.version;
        ensure!(version == FORMAT, "the spill is of another version: file={} version={version}", path.display());
        Ok(Some(manifest))
    }

    /// Replaces the manifest, durably. Its runs and their names are durable with it.
    ///
    /// # Errors
    /// The file system's, naming the file.
    pub(crate) fn write(&self, manifest: &Manifest) -> Result<()> {
        let text = toml::to_string(manifest)?;
        write_atomically(&self.dir.join(MANIFEST), (checksum_line(text.as_bytes()) + &text).as_bytes())
    }

    /// Removes every file that is not among `runs`, and without any of them the manifest too.
    ///
    /// # Errors
    /// The file system's, naming the file.
    pub(crate) fn keep(&self, runs: &[Run]) -> Result<()> {
        let mut kept: Vec<String> = runs.iter().map(|run| run.name()).collect();
        kept.push(LOCK.to_owned());
        if !runs.is_empty() {
            kept.push(MANIFEST.to_owned());
        }
        let mut names = self.names()?;
        // The manifest first: without it nothing is missed.
        names.sort_by_key(|name| name != MANIFEST);
        for name in names.into_iter().filter(|name| is_ours(name) && !kept.contains(name)) {
            let path = self.dir.join(name);
            fs::remove_file(&path).with_context(|| format!("cannot remove file={}", path.display()))?;
        }
        Ok(())
    }

    /// Removes the spill, and the directory unless something else is in it.
    ///
    /// # Errors
    /// The file system's, naming the file.
    pub(crate) fn remove(&mut self) -> Result<()> {
        if !self.dir.exists() {
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
        // Not empty: whoever put something there keeps it.
        fs::remove_dir(&self.dir).ok();
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

    fn lock(&mut self) -> Result<()> {
        let path = self.dir.join(LOCK);
        let file = File::create(&path).with_context(|| format!("cannot create file={}", path.display()))?;
        match file.try_lock() {
            Ok(()) => self.lock = Some(file),
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "another process uses the work directory: dir={}: wait for it to end, or name another directory with --work-dir",
                    self.dir.display()
                )
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock file={}", path.display()));
            }
        }
        Ok(())
    }
}

/// The manifest's first line.
fn checksum_line(rest: &[u8]) -> String {
    format!("checksum = \"{:016x}\"\n", xxh3_64(rest))
}

/// Whether a spill makes files of that name; buckets were those of an earlier version.
fn is_ours(name: &str) -> bool {
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    [MANIFEST, MANIFEST_PART, LOCK].contains(&name) || numbered("run-") || numbered("bucket-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_with_any_byte_changed_or_cut_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut work = Work::open(&dir.path().join("work")).unwrap();
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

    #[test]
    fn nothing_but_a_spill_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("work");
        let mut work = Work::open(&place).unwrap();
        work.create().unwrap();
        for name in ["run-00001", "run-002", "bucket-007", MANIFEST] {
            fs::write(place.join(name), "x").unwrap();
        }
        let other = Work::open(&place).err().unwrap().to_string();
        assert!(other.contains("another process uses the work directory"), "{other}");
        work.remove().unwrap();
        assert!(!place.exists());
        // A directory of somebody's own.
        fs::create_dir(&place).unwrap();
        fs::write(place.join("run-away"), "x").unwrap();
        let refused = Work::open(&place).err().unwrap().to_string();
        assert!(refused.contains("entry=run-away"), "{refused}");
        assert!(place.join("run-away").exists() && !place.join(LOCK).exists());
    }
}
