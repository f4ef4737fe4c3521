//! Files by name: whole reads and writes with errors that say which, aligned buffers.
//!
//! Owns: the words of I/O errors. Must not: interpret bytes, or touch a disk but through [`Storage`].

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use engine_api::{Error, ErrorKind, Result};

use crate::format::page::{PAGE_BYTES, PageBytes};
use crate::storage::{Storage, StorageFile};

/// A file that is read past the page cache where the file system can.
pub(crate) struct ReadFile {
    file: Arc<dyn StorageFile>,
    shown: String,
}

impl ReadFile {
    pub(crate) fn open(storage: &dyn Storage, name: &str) -> Result<Self> {
        let shown = shown(storage, name);
        let file = storage.open(name, true).map_err(|e| {
            // A file that a manifest names and that is not there is damage, not a wrong path.
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

    /// The file in messages.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) fn len(&self) -> Result<u64> {
        self.file.len_bytes().map_err(|e| Error::io(format!("cannot look at file={}", self.shown), e))
    }

    /// Fills `buffer`, whose start, length and `offset` are multiples of a page. A file that is too short is damaged.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buffer, offset).map_err(|e| self.failed(e, offset, buffer.len()))
    }

    /// A read that failed, in words.
    pub(crate) fn failed(&self, e: io::Error, offset: u64, bytes: usize) -> Error {
        let message = format!("cannot read: file={} offset={offset} bytes={bytes} reason={e}", self.shown);
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Error::with_source(ErrorKind::DataDamaged, message, e),
            _ => io_error(message, e),
        }
    }

    /// The descriptor, for reads that the kernel does by itself.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        self.file.raw_fd()
    }

    /// The open file, to keep it open.
    pub(crate) fn shared(&self) -> Arc<dyn StorageFile> {
        Arc::clone(&self.file)
    }
}

/// Whether an error is a want of descriptors, memory or kernel resources, which passes.
pub(crate) fn passes(e: &io::Error) -> bool {
    let wants = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN, libc::EINTR];
    e.raw_os_error().is_some_and(|code| wants.contains(&code)) || e.kind() == io::ErrorKind::OutOfMemory
}

/// An I/O error of a call that has changed nothing where it failed: a want that passes is [`ErrorKind::Retry`]. Not for
/// flushes, after which nothing is known.
pub(crate) fn io_error(message: impl Into<String>, e: io::Error) -> Error {
    if passes(&e) { Error::with_source(ErrorKind::Retry, message, e) } else { Error::io(message, e) }
}

/// A file of the store in messages.
pub(crate) fn shown(storage: &dyn Storage, name: &str) -> String {
    format!("{}/{name}", storage.shown())
}

/// A manifest takes 88 bytes a segment: this is one of 700,000.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// All bytes of the file `name`; `None` where there is no such file.
///
/// # Errors
/// Those of reading, naming the file.
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
        Err(e) => Err(Error::io(format!("cannot read file={} reason={e}", shown(storage, name)), e)),
    }
}

/// Makes the names of the store's files durable.
pub(crate) fn sync_dir(storage: &dyn Storage) -> Result<()> {
    storage
        .sync_dir()
        .map_err(|e| Error::io(format!("cannot sync the directory: dir={} reason={e}", storage.shown()), e))
}

/// Replaces the file `name` by `bytes`, wholly or not at all.
pub(crate) fn replace(storage: &dyn Storage, name: &str, bytes: &[u8]) -> Result<()> {
    let part = format!("{name}.tmp");
    let message = |e: &io::Error| format!("cannot write file={} reason={e}", shown(storage, name));
    let create = || match storage.remove(&part) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => storage.create(&part),
    };
    // Nothing is replaced yet: what passes may be tried again.
    let file = create().map_err(|e| io_error(message(&e), e))?;
    let write = || {
        file.write_at(bytes, 0)?;
        file.sync_data()?;
        storage.rename(&part, name)
    };
    write().map_err(|e| Error::io(message(&e), e))?;
    sync_dir(storage)
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

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.pages * PAGE_BYTES]
    }

    pub(crate) fn page(&self, index: usize) -> &PageBytes {
        let at = self.start + index * PAGE_BYTES;
        self.bytes[at..at + PAGE_BYTES].first_chunk().expect("a page's length")
    }
}
