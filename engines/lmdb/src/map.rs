//! The environment's map: the lock for its users, and the one place where it is moved.
//!
//! Owns: the lock that keeps the map still while a transaction is active, and the growth policy. Growth runs on the
//! writer's thread, between two write transactions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine_api::Result;
use lmdb::Environment;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::{LmdbOptions, error};

/// The map is to grow when less than 1/HEADROOM_SHARE of it is free. The two bounds that follow limit that headroom.
const HEADROOM_SHARE: u64 = 8;
/// Smallest headroom: twice the bytes that a commit of 1000 random keys writes, which copies each leaf on its path.
const HEADROOM_BYTES_MIN: u64 = 16 << 20;
/// Largest headroom: more than one transaction of any sensible size writes.
const HEADROOM_BYTES_MAX: u64 = 1 << 30;
/// Time that growth waits for readers while there is still room. Short, so that `begin` stays quick.
const WAIT_LOW: Duration = Duration::from_millis(10);
/// Time that growth waits for readers once a transaction has failed for lack of room.
const WAIT_FULL: Duration = Duration::from_secs(1);

/// Proof that the map stays where it is. Each active transaction holds one.
pub(crate) type MapGuard<'e> = RwLockReadGuard<'e, ()>;

pub(crate) struct Map {
    lock: RwLock<()>,
    bytes: AtomicU64,
    bytes_max: u64,
    /// Whether a transaction has failed for lack of room since the map last grew.
    full: AtomicBool,
    /// Whether growth waits for readers. A refresh makes way then even if it finds no new commit.
    waiting: AtomicBool,
}

impl Map {
    pub(crate) fn new(env: &Environment, options: &LmdbOptions) -> Result<Self> {
        let info = env.info().map_err(|e| error::lmdb("cannot ask for LMDB's map size", e))?;
        Ok(Self {
            lock: RwLock::new(()),
            bytes: AtomicU64::new(info.map_size() as u64),
            bytes_max: options.map_bytes_max,
            full: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
        })
    }

    /// Keeps the map still while the guard lives. The lock is recursive, so that a thread with an open reader may open
    /// another, or ask for the checkpoint, while growth is waiting. Otherwise the thread would wait for itself.
    pub(crate) fn hold(&self) -> MapGuard<'_> {
        self.lock.read_recursive()
    }

    /// Whether growth waits for the readers to make way.
    pub(crate) fn growth_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets a waiting growth go first. The transaction of the caller must not be active.
    pub(crate) fn yield_to_growth(guard: &mut MapGuard<'_>) {
        RwLockReadGuard::bump(guard);
    }

    pub(crate) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed here and below: these are figures for messages and for the writer, and the lock orders
        // them.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the size in bytes up to which the map may grow.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.max(self.bytes())
    }

    /// Notes that a transaction did not fit into the map.
    pub(crate) fn note_full(&self) {
        self.full.store(true, Ordering::Relaxed);
    }

    /// Grows the map when it is nearly used up. Does nothing if the map has reached its limit or readers stay open.
    ///
    /// The caller must be the only writer of the process, and must not hold a guard for a transaction on this thread. A
    /// reader open on this thread only makes growth give up.
    pub(crate) fn grow_when_short(&self, env: &Environment) -> Result<()> {
        const WHAT: &str = "cannot grow LMDB's map";
        let full = self.full.load(Ordering::Relaxed);
        let bytes = self.bytes();
        if bytes >= self.bytes_max {
            return Ok(());
        }
        let used = used_bytes(env)?;
        let mut grown = if full { bytes.saturating_mul(2) } else { bytes };
        while grown < self.bytes_max && is_short(grown, used) {
            grown = grown.saturating_mul(2);
        }
        if grown == bytes {
            return Ok(());
        }
        let wait = if full { WAIT_FULL } else { WAIT_LOW };
        self.waiting.store(true, Ordering::Relaxed);
        let alone = self.lock.try_write_for(wait);
        self.waiting.store(false, Ordering::Relaxed);
        let Some(_alone) = alone else {
            return Ok(());
        };
        // The host is Linux on 64 bits, so a usize holds a u64.
        env.set_map_size(grown.min(self.bytes_max) as usize).map_err(|e| error::lmdb(WHAT, e))?;
        let info = env.info().map_err(|e| error::lmdb(WHAT, e))?;
        self.bytes.store(info.map_size() as u64, Ordering::Relaxed);
        self.full.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether too little of a map of `bytes` is left after the `used` ones.
fn is_short(bytes: u64, used: u64) -> bool {
    bytes.saturating_sub(used) < (bytes / HEADROOM_SHARE).clamp(HEADROOM_BYTES_MIN, HEADROOM_BYTES_MAX)
}

/// Returns the bytes of the map up to the last page ever used. Free pages before it are not subtracted, because readers
/// may hold them.
pub(crate) fn used_bytes(env: &Environment) -> Result<u64> {
    let info = env.info().map_err(|e| error::lmdb("cannot ask for LMDB's map use", e))?;
    Ok((info.last_pgno() as u64 + 1) * page_bytes(env)? as u64)
}

/// Returns the size in bytes of the store's pages.
pub(crate) fn page_bytes(env: &Environment) -> Result<usize> {
    Ok(env.stat().map_err(|e| error::lmdb("cannot ask for LMDB's page size", e))?.page_size() as usize)
}
