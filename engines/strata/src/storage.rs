//! The files of one store: the only way in which the engine touches a disk.
//!
//! Owns: the [`Storage`] and [`StorageFile`] traits, [`DirStorage`], which implements them on a directory, and the size
//! of a page. Must not: know formats. Called from any thread.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a page, the unit of every read.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Bytes of one page, verified or not.
pub(crate) type PageBytes = [u8; PAGE_BYTES];

/// A flat directory of files. Names contain no separators.
///
/// Nothing is durable before it was flushed: the bytes of a file by [`StorageFile::sync_data`], the names by
/// [`Storage::sync_dir`].
pub trait Storage: Send + Sync + 'static {
    /// Creates a file for reading and writing. The name must not exist.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// Opens a file for reading, past the page cache if `direct` is set and the filesystem supports it.
    fn open(&self, name: &str, direct: bool) -> io::Result<Arc<dyn StorageFile>>;
    /// Opens an existing file for overwriting.
    fn open_write(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// Renames a file, replacing any file that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file from the directory.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Lists the names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes created, renamed and removed names durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Returns the bytes that can still be allocated.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Returns the bytes that all files have allocated.
    fn used_bytes(&self) -> io::Result<u64>;
    /// Links or copies the immutable file `name` into the directory `dir`. The content is durable, the new name is not.
    fn link_or_copy(&self, name: &str, dir: &Path) -> io::Result<()>;
    /// Path of the directory for messages.
    fn shown(&self) -> String;
}

/// An open file. Reads and writes name their offset, so that threads can share it.
pub trait StorageFile: Send + Sync {
    /// Fills `buf` from `offset`; `UnexpectedEof` if the file is shorter.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes every byte written so far durable. After a failure nothing is known about those bytes.
    fn sync_data(&self) -> io::Result<()>;
    /// Returns the length of the file in bytes.
    fn len_bytes(&self) -> io::Result<u64>;
    /// Advises the system that the written bytes will not be read through the page cache, where they would only be
    /// charged to a memory cap.
    fn forget_pages(&self);
    /// Advises the device to begin writing these bytes. Then the flush at the end is short, and reads do not compete
    /// with all of the writing at once.
    fn start_writeback(&self, _offset: u64, _bytes: u64) {}
    /// Returns a descriptor that the kernel can read from by itself (io_uring); `None` if there is none.
    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

/// A directory of the filesystem that holds one store.
pub struct DirStorage {
    dir: PathBuf,
    /// The open directory, for flushes, which must not fail for want of a descriptor. `None` where a flush may open the
    /// directory itself: for repairs, for the record of losses, and for reading.
    handle: Option<File>,
}

impl DirStorage {
    /// Opens the directory `dir`, creating it if it is missing.
    ///
    /// # Errors
    /// I/O errors of creating or opening the directory.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { handle: Some(File::open(dir)?), ..Self::existing(dir) })
    }

    /// Refers to the directory `dir`, which must exist, without keeping it open.
    pub(crate) fn existing(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), handle: None }
    }
}

impl Storage for DirStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.dir.join(name))?;
        Ok(Arc::new(DirFile { file }))
    }

    fn open(&self, name: &str, direct: bool) -> io::Result<Arc<dyn StorageFile>> {
        let path = self.dir.join(name);
        refuse_special(&path)?;
        if direct {
            match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path) {
                // tmpfs and some overlay filesystems support no direct reads.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
                opened => return Ok(Arc::new(DirFile { file: opened? })),
            }
        }
        let file = File::open(&path)?;
        // Only advice: without it the kernel reads ahead for lookups that will not come.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        Ok(Arc::new(DirFile { file }))
    }

    fn open_write(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let path = self.dir.join(name);
        refuse_special(&path)?;
        Ok(Arc::new(DirFile { file: OpenOptions::new().write(true).open(path)? }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn sync_dir(&self) -> io::Result<()> {
        match &self.handle {
            Some(handle) => handle.sync_all(),
            None => File::open(&self.dir)?.sync_all(),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        engine_kit::free_bytes(&self.dir)
    }

    fn used_bytes(&self) -> io::Result<u64> {
        engine_kit::disk_bytes(&self.dir)
    }

    fn link_or_copy(&self, name: &str, dir: &Path) -> io::Result<()> {
        let (from, to) = (self.dir.join(name), dir.join(name));
        match fs::hard_link(&from, &to) {
            Err(e) if matches!(e.kind(), io::ErrorKind::CrossesDevices | io::ErrorKind::PermissionDenied) => {
                fs::copy(&from, &to)?;
                File::open(&to)?.sync_all()
            }
            linked => linked,
        }
    }

    fn shown(&self) -> String {
        self.dir.display().to_string()
    }
}

/// Refuses anything but a regular file before it is opened, because opening a FIFO waits for its other end.
/// `O_NONBLOCK` is no way out: it would stay with the file, and reads through io_uring would fail where they have to
/// wait.
fn refuse_special(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file: move it away")),
    }
}

struct DirFile {
    file: File,
}

impl StorageFile for DirFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn forget_pages(&self) {
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed).ok();
    }

    fn start_writeback(&self, offset: u64, bytes: u64) {
        // SAFETY: no pointers are passed, and the descriptor is open as long as `self` is. A refusal costs only time.
        unsafe {
            libc::sync_file_range(self.file.as_raw_fd(), offset as i64, bytes as i64, libc::SYNC_FILE_RANGE_WRITE)
        };
    }

    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}
