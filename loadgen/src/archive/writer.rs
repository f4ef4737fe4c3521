//! A snapshot archive while it is written: entries into a packed tar, under a temporary name until it is whole.
//!
//! Owns: the archive's file, its name and its hash. Must not: choose the contents. Runs on the caller's thread. Memory:
//! the buffers of the compressor, whatever the archive's size.
//!
//! The hash in the name depends on the contents: it is computed from every byte of the tar before packing, so that
//! archives that are packed differently have the same hash, as agave's have.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::pack::{Packer, Packing};
use super::tar::{BLOCK_BYTES, Kind, header, padding};

/// Contents of the file `version`.
const VERSION: &[u8] = b"1.2.0";
/// Time of change of the entries that have one, in seconds since 1970. It is fixed so that equal options give equal
/// archives.
const MTIME: u64 = 1_700_000_000;

/// A snapshot archive that is being written. Its file is removed if this is dropped before [`ArchiveWriter::finish`].
pub struct ArchiveWriter {
    dir: PathBuf,
    /// Path under which the archive is written.
    partial: PathBuf,
    /// The archive's name up to its hash.
    stem: String,
    slot: u64,
    packing: Packing,
    /// Whether each entry is packed by itself, as Firedancer does.
    by_entry: bool,
    /// `None` once the packed stream has ended.
    packer: Option<Packer>,
    hash: Box<Xxh3>,
    bytes: u64,
    files: u64,
    whole: bool,
}

/// An archive that is whole and on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Path under which the archive lies.
    pub path: PathBuf,
    /// Bytes of the tar before packing.
    pub unpacked_bytes: u64,
    /// Bytes of the archive as a file.
    pub packed_bytes: u64,
    /// Number of its files of accounts.
    pub files: u64,
}

impl ArchiveWriter {
    /// Begins the archive of `slot` in the directory `dir`: an incremental one if `base` is the slot of a full one. Each
    /// entry is packed by itself if `by_entry`.
    ///
    /// # Errors
    /// I/O errors, with the file's name.
    pub fn create(dir: &Path, base: Option<u64>, slot: u64, packing: Packing, by_entry: bool) -> Result<Self> {
        let stem = match base {
            None => format!("snapshot-{slot}"),
            Some(base) => format!("incremental-snapshot-{base}-{slot}"),
        };
        // Readers take no file whose name begins like this for an archive. The process keeps two runs apart.
        let partial = dir.join(format!("tmp-{stem}-{}{}", std::process::id(), packing.ending()));
        let file =
            File::create(&partial).with_context(|| format!("cannot create archive: file={}", partial.display()))?;
        let packer = Packer::new(packing, file).with_context(|| wrong(&partial))?;
        let mut writer = Self {
            dir: dir.to_owned(),
            partial,
            stem,
            slot,
            packing,
            by_entry,
            packer: Some(packer),
            hash: Box::new(Xxh3::new()),
            bytes: 0,
            files: 0,
            whole: false,
        };
        writer.entry(Kind::File, "version", VERSION)?;
        writer.entry(Kind::Directory, "snapshots/", &[])?;
        Ok(writer)
    }

    /// Writes the status cache. It comes once, before or after the manifest.
    ///
    /// # Errors
    /// I/O errors, with the file's name.
    pub fn status_cache(&mut self, contents: &[u8]) -> Result<()> {
        self.entry(Kind::File, "snapshots/status_cache", contents)
    }

    /// Writes the manifest. It comes once, before or after the status cache.
    ///
    /// # Errors
    /// I/O errors, with the file's name.
    pub fn manifest(&mut self, contents: &[u8]) -> Result<()> {
        let slot = self.slot;
        self.entry(Kind::Directory, &format!("snapshots/{slot}"), &[])?;
        self.entry(Kind::File, &format!("snapshots/{slot}/{slot}"), contents)
    }

    /// Writes the file of accounts with this slot and id.
    ///
    /// # Errors
    /// I/O errors, with the file's name.
    pub fn accounts(&mut self, slot: u64, id: u64, contents: &[u8]) -> Result<()> {
        self.files += 1;
        self.entry(Kind::Accounts, &format!("accounts/{slot}.{id}"), contents)
    }

    /// Ends the archive and gives it its name. It is on the disk when this returns.
    ///
    /// # Errors
    /// I/O errors, with the file's name. The archive then has no name, and its file is removed.
    pub fn finish(mut self) -> Result<Written> {
        self.put(&[0; 2 * BLOCK_BYTES])?;
        let mut hash = [0; 32];
        let half = self.hash.digest128().to_be_bytes();
        hash[..16].copy_from_slice(&half);
        hash[16..].copy_from_slice(&xxh3_128(&half).to_be_bytes());
        let name = format!("{}-{}{}", self.stem, bs58::encode(hash).into_string(), self.packing.ending());
        let path = self.dir.join(name);
        let packer = self.packer.take().context("the archive was ended before")?;
        let packed = packer.finish().and_then(|file| {
            file.sync_all()?;
            Ok(file.metadata()?.len())
        });
        let packed_bytes = packed.with_context(|| wrong(&self.partial))?;
        fs::rename(&self.partial, &path)
            .with_context(|| format!("cannot name archive: file={} to={}", self.partial.display(), path.display()))?;
        self.whole = true;
        let dir = if self.dir.as_os_str().is_empty() { Path::new(".") } else { self.dir.as_path() };
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .with_context(|| format!("cannot flush directory: dir={}", dir.display()))?;
        Ok(Written { path, unpacked_bytes: self.bytes, packed_bytes, files: self.files })
    }

    fn entry(&mut self, kind: Kind, name: &str, contents: &[u8]) -> Result<()> {
        let size = contents.len() as u64;
        self.put(&header(kind, name, size, MTIME)?)?;
        self.put(contents)?;
        self.put(&[0; BLOCK_BYTES][..padding(size)])?;
        if self.by_entry {
            let packer = self.packer.take().context("the archive was ended before")?;
            self.packer = Some(packer.next_frame().with_context(|| wrong(&self.partial))?);
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        let packer = self.packer.as_mut().context("the archive was ended before")?;
        packer.write_all(bytes).with_context(|| wrong(&self.partial))
    }
}

impl Drop for ArchiveWriter {
    fn drop(&mut self) {
        if !self.whole {
            // Without its file nothing is left to remove; any other error has nobody to report to.
            fs::remove_file(&self.partial).ok();
        }
    }
}

fn wrong(path: &Path) -> String {
    format!("cannot write archive: file={}", path.display())
}
