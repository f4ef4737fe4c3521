//! Access to files by name: whole reads and replacements whose errors name the file, and aligned buffers.
//!
//! Owns: the wording of I/O errors. Must not: interpret bytes, or touch a disk other than through [`Storage`].

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use engine_api::{Error, ErrorKind, Result};

use crate::storage::{PAGE_BYTES, PageBytes, Storage, StorageFile};

/// A file that is read past the page cache where the file system supports it.
pub(crate) struct ReadFile {
    file: Arc<dyn StorageFile>,
    shown: String,
}

impl ReadFile {
    pub(crate) fn open(storage: &dyn Storage, name: &str) -> Result<Self> {
        let shown = shown(storage, name);
        let file = storage.open(name, true).map_err(|e| {
            // A missing file that the manifest names is damage, not a wrong path.
            let missing = e.kind() == io::ErrorKind::NotFound;
            let kind = match missing {
                true => ErrorKind::DataDamaged,
                false if passes(&e) => ErrorKind::Retry,
                false => ErrorKind::FixInput,
            };
            Error::with_source(kind, format!("cannot open file={shown} reason={e}"), e)
        })?;
        Ok(Self { file, shown })
    }

    /// Path of the file as error messages show it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) fn len(&self) -> Result<u64> {
        self.file.len_bytes().map_err(|e| Error::io(format!("cannot look at file={}", self.shown), e))
    }

    /// Fills `buffer` from `offset`. Start and length of the buffer and `offset` must be multiples of a page. A file
    /// that is too short is reported as damaged.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buffer, offset).map_err(|e| self.failed(e, offset, buffer.len()))
    }

    /// Turns the error of a failed read into one that names file, offset and length.
    pub(crate) fn failed(&self, e: io::Error, offset: u64, bytes: usize) -> Error {
        let message = format!("cannot read: file={} offset={offset} bytes={bytes} reason={e}", self.shown);
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Error::with_source(ErrorKind::DataDamaged, message, e),
            _ => io_error(message, e),
        }
    }

    /// Descriptor for reads that the kernel makes on its own (io_uring); `None` where the storage has none.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        self.file.raw_fd()
    }

    /// Returns a handle that keeps the file open.
    pub(crate) fn shared(&self) -> Arc<dyn StorageFile> {
        Arc::clone(&self.file)
    }
}

/// Whether an error is a temporary shortage of descriptors, memory or kernel resources.
pub(crate) fn passes(e: &io::Error) -> bool {
    let wants = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN, libc::EINTR];
    e.raw_os_error().is_some_and(|code| wants.contains(&code)) || e.kind() == io::ErrorKind::OutOfMemory
}

/// Makes an error of an I/O call that changed nothing when it failed: a temporary shortage becomes
/// [`ErrorKind::Retry`], and something other than a regular file [`ErrorKind::FixInput`]. Do not use it for flushes,
/// because after a failed flush nothing is known about the bytes.
pub(crate) fn io_error(message: impl Into<String>, e: io::Error) -> Error {
    // The kernel's own EINVAL has a number.
    let is_no_file = e.kind() == io::ErrorKind::InvalidInput && e.raw_os_error().is_none();
    match e {
        e if passes(&e) => Error::with_source(ErrorKind::Retry, message, e),
        e if is_no_file => Error::with_source(ErrorKind::FixInput, message, e),
        e => Error::io(message, e),
    }
}

/// Path of a file of the store for error messages.
pub(crate) fn shown(storage: &dyn Storage, name: &str) -> String {
    format!("{}/{name}", storage.shown())
}

/// Longest file that is read whole. A manifest takes 88 bytes a segment, so this is one of some 700,000 segments.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// Reads the file `name` whole; `None` if there is no such file.
///
/// # Errors
/// I/O errors, which name the file; a file longer than [`WHOLE_BYTES_MAX`].
pub(crate) fn read_whole(storage: &dyn Storage, name: &str) -> Result<Option<Vec<u8>>> {
    let read = || {
        let file = storage.open(name, false)?;
        let length = file.len_bytes()?;
        if length > WHOLE_BYTES_MAX {
            let why = format!("length_bytes={length} is more than any store needs");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0)?;
        io::Result::Ok(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_error(format!("cannot read file={} reason={e}", shown(storage, name)), e)),
    }
}

/// Flushes the directory, so that the names of the store's files are durable.
pub(crate) fn sync_dir(storage: &dyn Storage) -> Result<()> {
    storage
        .sync_dir()
        .map_err(|e| Error::io(format!("cannot sync the directory: dir={} reason={e}", storage.shown()), e))
}

/// Replaces the file `name` by `bytes`: after a crash either the old or the new content is there, whole.
pub(crate) fn replace(storage: &dyn Storage, name: &str, bytes: &[u8]) -> Result<()> {
    let part = format!("{name}.tmp");
    let message = |e: &io::Error| format!("cannot write file={} reason={e}", shown(storage, name));
    let create = || match storage.remove(&part) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => storage.create(&part),
    };
    // Nothing is replaced yet, so a temporary shortage may be retried.
    let file = create().map_err(|e| io_error(message(&e), e))?;
    let write = || {
        file.write_at(bytes, 0)?;
        file.sync_data()?;
        storage.rename(&part, name)
    };
    write().map_err(|e| Error::io(message(&e), e))?;
    sync_dir(storage)
}

/// A buffer of whole pages whose start is aligned to a page, as direct reads demand.
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

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.pages * PAGE_BYTES]
    }

    pub(crate) fn page(&self, index: usize) -> &PageBytes {
        let at = self.start + index * PAGE_BYTES;
        self.bytes[at..at + PAGE_BYTES].first_chunk().expect("a page's length")
    }
}
