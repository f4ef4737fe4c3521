//! Files: whole reads and writes with errors that name the file, aligned buffers, directories made durable.
//!
//! Owns: how the engine touches the file system. Must not: interpret bytes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use engine_api::{Error, ErrorKind, Result};

use crate::page::{PAGE_BYTES, PageBytes};

/// A file that is read past the page cache where the file system can.
#[derive(Debug)]
pub(crate) struct ReadFile {
    file: File,
    path: PathBuf,
}

impl ReadFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = match direct {
            // tmpfs and some network file systems have no direct reads.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => File::open(path),
            other => other,
        };
        let file = file.map_err(|e| missing(path, e))?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> Result<u64> {
        Ok(self
            .file
            .metadata()
            .map_err(|e| Error::io(format!("cannot look at file={}", self.path.display()), e))?
            .len())
    }

    /// Fills `buffer`, whose start, length and `offset` are multiples of a page. A file that is too short is damaged.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|e| {
            let message =
                format!("cannot read: file={} offset={offset} bytes={} reason={e}", self.path.display(), buffer.len());
            match e.kind() {
                io::ErrorKind::UnexpectedEof => Error::with_source(ErrorKind::DataDamaged, message, e),
                _ => Error::io(message, e),
            }
        })
    }
}

/// A file that a manifest names and that is not there is damage, not a wrong path.
fn missing(path: &Path, e: io::Error) -> Error {
    let kind = if e.kind() == io::ErrorKind::NotFound { ErrorKind::DataDamaged } else { ErrorKind::FixInput };
    Error::with_source(kind, format!("cannot open file={} reason={e}", path.display()), e)
}

/// A buffer of whole pages that starts at a page, as direct reads demand.
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    pages: usize,
}

impl PageBuffer {
    pub(crate) fn new(pages: usize) -> Self {
        let bytes = vec![0; (pages + 1) * PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        Self { bytes, start, pages }
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.pages * PAGE_BYTES]
    }

    pub(crate) fn page(&self, index: usize) -> &PageBytes {
        let at = self.start + index * PAGE_BYTES;
        self.bytes[at..at + PAGE_BYTES].first_chunk().expect("a page's length")
    }
}

/// Makes the names in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|e| Error::io(format!("cannot sync the directory: dir={} reason={e}", dir.display()), e))
}

/// Replaces `path` by `bytes`, wholly or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("tmp");
    let write = || {
        let file = File::create(&part)?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|e| Error::io(format!("cannot write file={} reason={e}", path.display()), e))?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Bytes that a user of this process can still write below `dir`.
pub(crate) fn free_bytes(dir: &Path) -> Result<u64> {
    let space = rustix::fs::statvfs(dir)
        .map_err(|e| Error::io(format!("cannot ask for the free space: dir={}", dir.display()), e.into()))?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Blocks allocated to the files in `dir`, in bytes.
pub(crate) fn disk_bytes(dir: &Path) -> Result<u64> {
    let failed = |e| Error::io(format!("cannot list the store's directory: dir={}", dir.display()), e);
    let mut total = 0;
    for entry in fs::read_dir(dir).map_err(failed)? {
        // A file that was removed meanwhile takes nothing.
        total += entry.map_err(failed)?.metadata().map_or(0, |file| file.blocks() * 512);
    }
    Ok(total)
}
