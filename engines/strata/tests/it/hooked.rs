//! A storage around another one that counts calls and refuses those that a test tells it to refuse.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use solkv_engine_strata::storage::{Storage, StorageFile};

/// Switches and counters. Relaxed everywhere, because they guard no other memory.
pub(crate) struct Hooks {
    /// Number of bytes that all files may take together.
    pub(crate) disk_bytes: AtomicU64,
    /// Whether every opening and creation fails, as in a process without free descriptors.
    pub(crate) no_descriptors: AtomicBool,
    /// Whether the next manifest of `strata-merge` cannot be created, as without free descriptors.
    pub(crate) no_manifest: AtomicBool,
    /// Which flush of the directory from now on fails, as on a full disk: 1 is the next one, 0 none.
    pub(crate) dir_full: AtomicU64,
    /// Whether the disk looks full to `strata-merge`.
    pub(crate) no_room_for_merges: AtomicBool,
    /// Whether the next listing by `strata-flush` fails, as without free descriptors.
    pub(crate) unlisted: AtomicBool,
    /// Number of segments that `strata-merge` may still begin. It waits while there are none.
    pub(crate) merge_segments_left: AtomicU64,
    /// Whether that thread waits for the right to begin another.
    pub(crate) merge_waits: AtomicBool,
    /// Name of the file whose next opening fails, as without free descriptors.
    pub(crate) unopened: Mutex<Option<String>>,
    /// Name of the file whose reads fail with EIO.
    pub(crate) unreadable: Mutex<Option<String>>,
    /// Names that were removed, each with the thread that removed it.
    pub(crate) removed: Mutex<Vec<(String, String)>>,
    /// Names of WAL files that were created or renamed to, each with the thread that did it.
    pub(crate) wals: Mutex<Vec<(String, String)>>,
    /// Number of times that a WAL file was flushed.
    pub(crate) wal_flushes: AtomicU64,
    /// Number of bytes written to segments.
    pub(crate) segment_bytes: AtomicU64,
    /// Least free space after any write to a segment, in bytes.
    pub(crate) least_free_bytes: AtomicU64,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            disk_bytes: AtomicU64::new(u64::MAX),
            no_descriptors: AtomicBool::default(),
            no_manifest: AtomicBool::default(),
            dir_full: AtomicU64::default(),
            no_room_for_merges: AtomicBool::default(),
            unlisted: AtomicBool::default(),
            merge_segments_left: AtomicU64::new(u64::MAX),
            merge_waits: AtomicBool::default(),
            unopened: Mutex::default(),
            unreadable: Mutex::default(),
            removed: Mutex::default(),
            wals: Mutex::default(),
            wal_flushes: AtomicU64::default(),
            segment_bytes: AtomicU64::default(),
            least_free_bytes: AtomicU64::new(u64::MAX),
        }
    }
}

/// A storage with hooks around `inner`.
pub(crate) struct Hooked {
    pub(crate) inner: Arc<dyn Storage>,
    pub(crate) hooks: Arc<Hooks>,
}

struct HookedFile {
    name: String,
    inner: Arc<dyn StorageFile>,
    storage: Arc<dyn Storage>,
    hooks: Arc<Hooks>,
}

fn thread() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

impl Hooked {
    fn made(&self, name: &str) {
        if name.ends_with(".wal") {
            self.hooks.wals.lock().push((name.to_owned(), thread()));
        }
    }

    /// Waits until `strata-merge` may create this file, and fails if it may not.
    fn begin_of_merge(&self, name: &str) -> io::Result<()> {
        if name.ends_with(".seg") {
            let left = &self.hooks.merge_segments_left;
            while left.load(Ordering::Relaxed) == 0 {
                self.hooks.merge_waits.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            self.hooks.merge_waits.store(false, Ordering::Relaxed);
            left.fetch_sub(1, Ordering::Relaxed);
        }
        if name.starts_with("MANIFEST") && self.hooks.no_manifest.swap(false, Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(())
    }

    fn file(
        &self,
        name: &str,
        open: impl FnOnce() -> io::Result<Arc<dyn StorageFile>>,
    ) -> io::Result<Arc<dyn StorageFile>> {
        let is_unopened = self.hooks.unopened.lock().take_if(|unopened| unopened == name).is_some();
        if is_unopened || self.hooks.no_descriptors.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let (storage, hooks) = (Arc::clone(&self.inner), Arc::clone(&self.hooks));
        Ok(Arc::new(HookedFile { name: name.to_owned(), inner: open()?, storage, hooks }))
    }
}

impl Storage for Hooked {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.made(name);
        if thread() == "strata-merge" {
            self.begin_of_merge(name)?;
        }
        self.file(name, || self.inner.create(name))
    }

    fn open(&self, name: &str, direct: bool) -> io::Result<Arc<dyn StorageFile>> {
        self.file(name, || self.inner.open(name, direct))
    }

    fn open_write(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.file(name, || self.inner.open_write(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.made(to);
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.hooks.removed.lock().push((name.to_owned(), thread()));
        self.inner.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        if thread() == "strata-flush" && self.hooks.unlisted.swap(false, Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        self.inner.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        let one_less = |left: u64| left.checked_sub(1);
        if self.hooks.dir_full.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) == Ok(1) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.sync_dir()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        if thread() == "strata-merge" && self.hooks.no_room_for_merges.load(Ordering::Relaxed) {
            return Ok(0);
        }
        Ok(self.hooks.disk_bytes.load(Ordering::Relaxed).saturating_sub(self.inner.used_bytes()?))
    }

    fn used_bytes(&self) -> io::Result<u64> {
        self.inner.used_bytes()
    }

    fn link_or_copy(&self, name: &str, dir: &Path) -> io::Result<()> {
        self.inner.link_or_copy(name, dir)
    }

    fn shown(&self) -> String {
        self.inner.shown()
    }
}

impl StorageFile for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.hooks.unreadable.lock().as_ref() == Some(&self.name) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let disk_bytes = self.hooks.disk_bytes.load(Ordering::Relaxed);
        let more = (offset + bytes.len() as u64).saturating_sub(self.inner.len_bytes()?);
        if self.storage.used_bytes()? + more > disk_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.write_at(bytes, offset)?;
        if self.name.ends_with(".seg") {
            self.hooks.segment_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let free = disk_bytes.saturating_sub(self.storage.used_bytes()?);
            self.hooks.least_free_bytes.fetch_min(free, Ordering::Relaxed);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.name.ends_with(".wal") {
            self.hooks.wal_flushes.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.sync_data()
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }

    fn forget_pages(&self) {}
}
