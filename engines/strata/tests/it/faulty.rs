//! A directory in memory that fails on request and crashes like a machine that loses its power.
//!
//! Owns: the simulated disk, which the tests and the fuzz target of operations put under a store. Called from any thread.
//!
//! A crash keeps all flushed bytes. Of the writes since, each file keeps any subset, and each write may be torn at any
//! 512-byte sector. Of the names created, renamed and removed since the directory was flushed, any subset has happened,
//! because a file system may write a later one first. A rename is atomic, and changes of one name take effect in their
//! order.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use engine_kit::Rng;
use parking_lot::Mutex;

use solkv_engine_strata::storage::{Storage, StorageFile};

/// A fault, counted over all calls of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Fails the call with this number among those that change the disk, and every later one: the power is gone.
    CrashAt(u64),
    /// Fails the read with this number with EIO.
    ReadAt(u64),
    /// Fails the write with this number with EIO.
    WriteAt(u64),
    /// Fails the flush with this number with EIO. No later flush makes up for it.
    SyncAt(u64),
    /// Refuses allocations beyond this many bytes.
    FullAt(u64),
    /// Refuses to create segments, as if there were no space for one.
    NoSegments,
}

#[derive(Clone, Default)]
struct Content {
    durable: Vec<u8>,
    bytes: Vec<u8>,
    /// Writes since the last flush: offset and bytes.
    pending: Vec<(u64, Vec<u8>)>,
}

type Names = BTreeMap<String, Arc<Mutex<Content>>>;
/// Atomic effect of one call on some names: the file that each name now has, if any.
type Naming = Vec<(String, Option<Arc<Mutex<Content>>>)>;

#[derive(Default)]
struct Disk {
    names: Names,
    durable_names: Names,
    /// Changes of names since the directory was flushed.
    pending_names: Vec<Naming>,
    fault: Fault,
    changes: u64,
    reads: u64,
    writes: u64,
    syncs: u64,
    allocated: u64,
}

/// A simulated disk, shared with its files.
#[derive(Clone, Default)]
pub(crate) struct FaultyStorage(Arc<Mutex<Disk>>);

struct FaultyFile {
    disk: Arc<Mutex<Disk>>,
    content: Arc<Mutex<Content>>,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Disk {
    fn change(&mut self) -> io::Result<()> {
        self.changes += 1;
        if matches!(self.fault, Fault::CrashAt(at) if self.changes >= at) { Err(eio()) } else { Ok(()) }
    }

    fn grow(&mut self, from: usize, to: usize) -> io::Result<()> {
        let more = to.saturating_sub(from) as u64;
        if more > 0 && matches!(self.fault, Fault::FullAt(most) if self.allocated + more > most) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.allocated += more;
        Ok(())
    }

    fn name(&mut self, naming: Naming) -> io::Result<()> {
        self.change()?;
        apply(&mut self.names, &naming);
        self.pending_names.push(naming);
        Ok(())
    }

    fn find(&self, name: &str) -> io::Result<Arc<Mutex<Content>>> {
        self.names.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn apply(names: &mut Names, naming: &Naming) {
    for (name, content) in naming {
        match content {
            Some(content) => names.insert(name.clone(), Arc::clone(content)),
            None => names.remove(name),
        };
    }
}

impl FaultyStorage {
    pub(crate) fn set(&self, fault: Fault) {
        let mut disk = self.0.lock();
        disk.fault = fault;
        (disk.changes, disk.reads, disk.writes, disk.syncs) = (0, 0, 0, 0);
    }

    /// Returns the numbers of changes, reads and flushes since [`FaultyStorage::set`], and the bytes allocated.
    pub(crate) fn counts(&self) -> (u64, u64, u64, u64) {
        let disk = self.0.lock();
        (disk.changes, disk.reads, disk.syncs, disk.allocated)
    }

    /// Returns the number of writes since [`FaultyStorage::set`].
    pub(crate) fn writes(&self) -> u64 {
        self.0.lock().writes
    }

    /// Returns the state after a power loss as a new disk.
    pub(crate) fn after_crash(&self, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let disk = self.0.lock();
        let mut names = disk.durable_names.clone();
        // All in order up to some point, and any subset after it.
        let first = rng.below(disk.pending_names.len() as u64 + 1) as usize;
        let happened = |at: usize, rng: &mut Rng| at < first || rng.below(2) == 0;
        let namings = disk.pending_names.iter().enumerate();
        namings.filter(|(at, _)| happened(*at, &mut rng)).for_each(|(_, naming)| apply(&mut names, naming));
        let left: Names = names
            .iter()
            .map(|(name, content)| {
                let bytes = survivor(&content.lock(), &mut rng);
                (name.clone(), Arc::new(Mutex::new(Content { durable: bytes.clone(), bytes, pending: Vec::new() })))
            })
            .collect();
        let allocated = left.values().map(|content| content.lock().bytes.len() as u64).sum();
        let disk = Disk { names: left.clone(), durable_names: left, allocated, ..Disk::default() };
        Self(Arc::new(Mutex::new(disk)))
    }

    /// Returns another disk in the same state, including everything not yet flushed.
    pub(crate) fn copy(&self) -> Self {
        let disk = self.0.lock();
        let mut copies = BTreeMap::new();
        let mut copied = |content: &Arc<Mutex<Content>>| {
            let copy = || Arc::new(Mutex::new(content.lock().clone()));
            Arc::clone(copies.entry(Arc::as_ptr(content)).or_insert_with(copy))
        };
        let mut all = |names: &Names| names.iter().map(|(name, content)| (name.clone(), copied(content))).collect();
        let (names, durable_names) = (all(&disk.names), all(&disk.durable_names));
        let mut naming = |naming: &Naming| {
            naming.iter().map(|(name, content)| (name.clone(), content.as_ref().map(&mut copied))).collect()
        };
        let pending_names = disk.pending_names.iter().map(&mut naming).collect();
        let allocated = disk.allocated;
        let copy = Disk { names, durable_names, pending_names, allocated, ..Disk::default() };
        Self(Arc::new(Mutex::new(copy)))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().names.keys().cloned().collect()
    }

    /// Returns the total size and the number of files whose names end with `kind`.
    pub(crate) fn bytes_of(&self, kind: &str) -> (u64, usize) {
        let disk = self.0.lock();
        let files: Vec<_> = disk.names.iter().filter(|(name, _)| name.ends_with(kind)).collect();
        (files.iter().map(|(_, content)| content.lock().bytes.len() as u64).sum(), files.len())
    }
}

fn survivor(content: &Content, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = content.durable.clone();
    for (offset, written) in &content.pending {
        if rng.below(3) == 0 {
            continue;
        }
        let kept = match rng.below(3) {
            0 => (rng.below(written.len() as u64 + 1) / 512 * 512) as usize,
            _ => written.len(),
        };
        write_into(&mut bytes, *offset as usize, &written[..kept]);
    }
    bytes
}

fn write_into(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    bytes.resize(bytes.len().max(offset + written.len()), 0);
    bytes[offset..offset + written.len()].copy_from_slice(written);
}

impl Storage for FaultyStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let content = Arc::new(Mutex::new(Content::default()));
        let mut disk = self.0.lock();
        if disk.fault == Fault::NoSegments && name.ends_with(".seg") {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if disk.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        disk.name(vec![(name.to_owned(), Some(Arc::clone(&content)))])?;
        Ok(Arc::new(FaultyFile { disk: Arc::clone(&self.0), content }))
    }

    fn open(&self, name: &str, _direct: bool) -> io::Result<Arc<dyn StorageFile>> {
        let content = self.0.lock().find(name)?;
        Ok(Arc::new(FaultyFile { disk: Arc::clone(&self.0), content }))
    }

    fn open_write(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.open(name, false)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.0.lock();
        let content = disk.find(from)?;
        let freed = disk.find(to).map_or(0, |replaced| replaced.lock().bytes.len() as u64);
        disk.name(vec![(from.to_owned(), None), (to.to_owned(), Some(content))])?;
        disk.allocated -= freed;
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.0.lock();
        let freed = disk.find(name)?.lock().bytes.len() as u64;
        disk.name(vec![(name.to_owned(), None)])?;
        disk.allocated -= freed;
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.change()?;
        disk.syncs += 1;
        if disk.fault == Fault::SyncAt(disk.syncs) {
            return Err(eio());
        }
        disk.durable_names = disk.names.clone();
        disk.pending_names.clear();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn used_bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().allocated)
    }

    fn link_or_copy(&self, name: &str, dir: &Path) -> io::Result<()> {
        let content = self.0.lock().find(name)?;
        let bytes = content.lock().bytes.clone();
        std::fs::write(dir.join(name), bytes)
    }

    fn shown(&self) -> String {
        "memory".to_owned()
    }
}

impl StorageFile for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.reads += 1;
        if disk.fault == Fault::ReadAt(disk.reads) {
            return Err(eio());
        }
        let content = self.content.lock();
        let bytes = content.bytes.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, written: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let mut content = self.content.lock();
        disk.change()?;
        disk.writes += 1;
        if disk.fault == Fault::WriteAt(disk.writes) {
            return Err(eio());
        }
        disk.grow(content.bytes.len(), offset as usize + written.len())?;
        write_into(&mut content.bytes, offset as usize, written);
        content.pending.push((offset, written.to_vec()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let mut content = self.content.lock();
        disk.change()?;
        disk.syncs += 1;
        let pending = std::mem::take(&mut content.pending);
        if disk.fault == Fault::SyncAt(disk.syncs) {
            // The bytes stay readable and are not written again later, as on Linux.
            return Err(eio());
        }
        pending.iter().for_each(|(offset, written)| write_into(&mut content.durable, *offset as usize, written));
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.content.lock().bytes.len() as u64)
    }

    fn forget_pages(&self) {}
}
