//! A storage that never writes to its directory: writes during the opening of a store go to memory.
//!
//! Owns: that memory, for as long as the store is open. Must not: create, change or remove anything in the directory.
//! Called from any thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::storage::{DirStorage, Storage, StorageFile};

/// The files of a directory, overlaid by the files that were made since the opening.
pub(crate) struct ReadOnlyStorage {
    dir: DirStorage,
    over: Mutex<Over>,
}

#[derive(Default)]
struct Over {
    made: BTreeMap<String, Arc<MemoryFile>>,
    removed: BTreeSet<String>,
}

impl ReadOnlyStorage {
    /// Wraps the directory `dir`, which must exist.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: DirStorage::existing(dir), over: Mutex::default() }
    }
}

impl Storage for ReadOnlyStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let file = Arc::new(MemoryFile::default());
        let mut over = self.over.lock();
        over.removed.remove(name);
        over.made.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, name: &str, direct: bool) -> io::Result<Arc<dyn StorageFile>> {
        let over = self.over.lock();
        if let Some(made) = over.made.get(name) {
            return Ok(Arc::clone(made) as Arc<dyn StorageFile>);
        }
        if over.removed.contains(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.dir.open(name, direct)
    }

    /// Opens a file for writing. Recovery alone does so with files of the directory, to write the same bytes once more;
    /// those writes are dropped.
    fn open_write(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let there = self.open(name, false)?;
        let ours = self.over.lock().made.contains_key(name);
        Ok(if ours { there } else { Arc::new(Unwritten(there)) })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut over = self.over.lock();
        let file = over.made.remove(from).ok_or_else(|| io::Error::from(io::ErrorKind::ReadOnlyFilesystem))?;
        over.removed.remove(to);
        over.made.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.open(name, false)?;
        let mut over = self.over.lock();
        over.made.remove(name);
        over.removed.insert(name.to_owned());
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = self.dir.list()?;
        let over = self.over.lock();
        let there = names.into_iter().filter(|name| !over.removed.contains(name) && !over.made.contains_key(name));
        Ok(there.chain(over.made.keys().cloned()).collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.dir.free_bytes()
    }

    /// Returns the bytes that the directory's files take on the device.
    fn used_bytes(&self) -> io::Result<u64> {
        self.dir.used_bytes()
    }

    fn link_or_copy(&self, _name: &str, _dir: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn shown(&self) -> String {
        self.dir.shown()
    }
}

/// A file that was made since the opening and exists only in memory.
#[derive(Default)]
struct MemoryFile {
    bytes: Mutex<Vec<u8>>,
}

impl StorageFile for MemoryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.lock();
        let from = usize::try_from(offset).ok().and_then(|at| bytes.get(at..at.checked_add(buf.len())?));
        buf.copy_from_slice(from.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn write_at(&self, written: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        let at = usize::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let end = at + written.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[at..end].copy_from_slice(written);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn forget_pages(&self) {}
}

/// A file of the directory whose writes are dropped.
struct Unwritten(Arc<dyn StorageFile>);

impl StorageFile for Unwritten {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, _written: &[u8], _offset: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }

    fn forget_pages(&self) {}
}
