//! A disk that can lose power: a file system in memory, mounted by FUSE, that knows which changes were flushed.
//!
//! Owns: mounting, unmounting, and the changes to the device in between. Must not: touch its own mount point once an
//! agent works there, because a request that this process makes to itself may wait forever. The supervisor's thread
//! calls it; the FUSE session has threads of its own.

mod gate;
mod image;
mod loss;
mod serve;
mod tree;

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_kit::Rng;
use fuser::{BackgroundSession, Config, Session, SessionACL};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};

pub use gate::{Fault, FaultKind, Gate, Notice};

use tree::Tree;

/// Number of threads that answer requests, so that a delayed request does not delay all others.
const THREADS: usize = 3;
/// Time that requests in flight may hold up an unmount before the connection is cut.
const PATIENCE: Duration = Duration::from_secs(10);

/// State that the session's threads share with the supervisor.
pub(crate) struct Shared {
    gate: Gate,
    tree: Mutex<Tree>,
    rng: Mutex<Rng>,
}

impl Shared {
    fn fail_sync(&self, ino: u64, chance: u64) {
        self.tree.lock().fail_sync(ino, chance, &mut self.rng.lock());
    }
}

/// A disk, mounted or not.
pub struct Disk {
    shared: Arc<Shared>,
    point: PathBuf,
    session: Option<BackgroundSession>,
}

/// Gives the calling thread, and the processes and threads that it starts from now on, a mount namespace of their own.
/// So no mount remains, however they end.
///
/// # Errors
/// The kernel's errors, for example if this process lacks the permission.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: only the calling thread's view of mounts and its own current directory and umask change; no file
    // descriptor table is unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(())
}

impl Disk {
    /// Creates an empty disk of `capacity_bytes` and mounts it at `point`, which must exist.
    ///
    /// # Errors
    /// The kernel's errors, for example if FUSE is missing or this process may not mount.
    pub fn new(point: &Path, capacity_bytes: u64, seed: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            gate: Gate::default(),
            tree: Mutex::new(Tree::new(capacity_bytes)),
            rng: Mutex::new(Rng::new(seed)),
        });
        let mut disk = Self { shared, point: point.to_owned(), session: None };
        disk.mount()?;
        Ok(disk)
    }

    /// Makes flushing a file make its names durable, too, from now on, as on ext4, XFS and btrfs.
    pub fn keep_flushed_names(&self) {
        self.shared.tree.lock().flush_keeps_names = true;
    }

    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the gate before every operation, through which the supervisor makes faults.
    pub fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    /// Applies a power loss and mounts the result. To be called when the agent is gone.
    ///
    /// # Errors
    /// The kernel's errors of unmounting or mounting.
    pub fn lose_power(&mut self, seed: u64) -> io::Result<()> {
        self.unmount()?;
        self.shared.tree.lock().lose_power(&mut Rng::new(seed));
        self.mount()
    }

    /// Mounts the disk again with empty caches. To be called when the agent is gone.
    ///
    /// # Errors
    /// The kernel's errors of unmounting or mounting.
    pub fn drop_caches(&mut self) -> io::Result<()> {
        self.unmount()?;
        self.shared.tree.lock().drop_caches();
        self.mount()
    }

    fn mount(&mut self) -> io::Result<()> {
        self.shared.gate.reset();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).map_err(io::Error::other)?;
        mount("torture", &self.point, "fuse.torture", MountFlags::NOSUID | MountFlags::NODEV, Some(&*options))?;
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let served = serve::Served(Arc::clone(&self.shared));
        let session = Session::from_fd(served, OwnedFd::from(device), SessionACL::Owner, config)?;
        self.session = Some(session.spawn()?);
        Ok(())
    }

    /// Unmounts the disk, and cuts the connection if some process still holds on to it.
    fn unmount(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        // A request that is held at the gate must not block the unmount.
        self.shared.gate.release();
        let until = Instant::now() + PATIENCE;
        while let Err(e) = unmount(&self.point, UnmountFlags::empty()) {
            if e != rustix::io::Errno::BUSY || Instant::now() >= until {
                // Aborts the requests in flight. A mount that is still busy disappears with its last user.
                unmount(&self.point, UnmountFlags::FORCE).ok();
                unmount(&self.point, UnmountFlags::DETACH)?;
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        while !session.guard.is_finished() {
            if Instant::now() >= until {
                return Err(io::Error::other(format!("a FUSE session does not end: mount={}", self.point.display())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match session.join() {
            // A thread that was reading a request while the unmount cut the connection gets this, also from a clean unmount
            // (`fuse_dev_do_read` of the kernel's fs/fuse/dev.c).
            Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            ended => ended,
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.gate.cut_power();
        if let Err(e) = self.unmount() {
            program::tell!("torture: cannot unmount: mount={} reason={e}", self.point.display());
        }
    }
}
