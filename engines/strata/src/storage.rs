//! The files of one store: the only way in which the engine touches a disk.
//!
//! Owns: the [`Storage`] and [`StorageFile`] traits and [`DirStorage`], which is a directory. Must not: know formats.
//! Called from any thread.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A flat directory of files. Names have no separators.
///
/// Nothing is durable before it was synced: a file's bytes by [`StorageFile::sync_data`], the names by
/// [`Storage::sync_dir`].
pub trait Storage: Send + Sync + 'static {
    /// Creates a file that does not exist, readable and writable.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// Opens a file for reading, past the page cache where `direct` is set and the filesystem can.
    fn open(&self, name: &str, direct: bool) -> io::Result<Arc<dyn StorageFile>>;
    /// Opens a file for overwriting.
    fn open_write(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// Gives a file another name, replacing what has that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Every name.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes created, renamed and removed names durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Bytes that can still be allocated.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Bytes allocated by all files.
    fn used_bytes(&self) -> io::Result<u64>;
    /// Makes the immutable file `name` appear in the directory `dir` too, linked or copied, durable but for the name.
    fn share(&self, name: &str, dir: &Path) -> io::Result<()>;
    /// The directory, for messages.
    fn shown(&self) -> String;
}

/// An open file. Reads and writes name their offset, so that threads share it.
pub trait StorageFile: Send + Sync {
    /// Fills `buf` from `offset`; `UnexpectedEof` when the file is shorter.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes every byte written so far durable. Once it has failed nothing is known of them.
    fn sync_data(&self) -> io::Result<()>;
    /// Length in bytes.
    fn len_bytes(&self) -> io::Result<u64>;
    /// Advice: what was written will not be read through the page cache. In it the pages would only be charged to a
    /// memory cap.
    fn forget_pages(&self);
    /// Advice: the device may begin to write these bytes, so that the flush at the end finds little to do and reads do
    /// not meet all of it at once.
    fn start_writeback(&self, _offset: u64, _bytes: u64) {}
    /// A descriptor that reads may be asked of the kernel with (io_uring), where there is one.
    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

/// A directory of the filesystem.
pub struct DirStorage {
    dir: PathBuf,
    /// The directory itself, for flushes: they must not fail for want of a descriptor. None where nothing is written.
    handle: Option<File>,
}

impl DirStorage {
    /// The directory `dir`, created where it is missing.
    ///
    /// # Errors
    /// What the filesystem says.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { handle: Some(File::open(dir)?), ..Self::existing(dir) })
    }

    /// The directory `dir`, which is there.
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
                // tmpfs and some overlays know no direct reads.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
                opened => return Ok(Arc::new(DirFile { file: opened? })),
            }
        }
        let file = File::open(&path)?;
        // Only advice: without it the kernel reads ahead of lookups that will not come.
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
        let space = rustix::fs::statvfs(&self.dir)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn used_bytes(&self) -> io::Result<u64> {
        let mut sum = 0;
        for entry in fs::read_dir(&self.dir)? {
            match entry?.metadata() {
                // st_blocks counts 512 bytes whatever the filesystem's block size is.
                Ok(metadata) => sum += metadata.blocks() * 512,
                // Merged away since the listing.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(sum)
    }

    fn share(&self, name: &str, dir: &Path) -> io::Result<()> {
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

/// Refuses what is no regular file before it is opened: opening a FIFO waits for its other end. Not by `O_NONBLOCK`, which
/// would stay with the file and make reads through io_uring fail where they have to wait.
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
        // SAFETY: no pointers; the descriptor is open as long as `self` is. A refusal costs only time.
        unsafe {
            libc::sync_file_range(self.file.as_raw_fd(), offset as i64, bytes as i64, libc::SYNC_FILE_RANGE_WRITE)
        };
    }

    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}
