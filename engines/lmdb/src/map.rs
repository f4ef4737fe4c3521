//! The environment's map: who may use it, and the one place where it is moved.
//!
//! Owns: the lock that keeps the map still while a transaction is active, and the growth policy. Growth runs on
//! the writer's thread, between two write transactions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine_api::Result;
use lmdb::Environment;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::{LmdbOptions, error};

/// Growth is tried once less than this share of the map is left, within the two bounds below.
const HEADROOM_SHARE: u64 = 8;
/// Twice what a commit of 1000 random keys writes: each leaf on its path is copied.
const HEADROOM_BYTES_MIN: u64 = 16 << 20;
/// More than one transaction of any sensible size writes.
const HEADROOM_BYTES_MAX: u64 = 1 << 30;
/// How long growth waits for readers while there is still room, so that `begin` stays quick.
const WAIT_LOW: Duration = Duration::from_millis(10);
/// How long growth waits for readers once a transaction has failed for want of room.
const WAIT_FULL: Duration = Duration::from_secs(1);

/// Proof that the map stays where it is: held by each active transaction.
pub(crate) type MapGuard<'e> = RwLockReadGuard<'e, ()>;

pub(crate) struct Map {
    lock: RwLock<()>,
    bytes: AtomicU64,
    bytes_max: u64,
    /// A transaction has failed for want of room since the map last grew.
    full: AtomicBool,
    /// Growth waits for the readers, so that a refresh that finds no new commit makes way nevertheless.
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

    /// Keeps the map still. Recursive, so that a thread with an open reader may open another or ask for the
    /// checkpoint while growth is waiting: it would otherwise wait for itself.
    pub(crate) fn hold(&self) -> MapGuard<'_> {
        self.lock.read_recursive()
    }

    /// Whether growth waits for the readers to step aside.
    pub(crate) fn growth_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets a waiting growth go first. The caller's transaction must not be active.
    pub(crate) fn yield_to_growth(guard: &mut MapGuard<'_>) {
        RwLockReadGuard::bump(guard);
    }

    /// Size of the map in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed here and below: figures for messages and for the writer, which the lock orders.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Largest size the map may grow to, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.max(self.bytes())
    }

    /// Notes that a transaction did not fit.
    pub(crate) fn note_full(&self) {
        self.full.store(true, Ordering::Relaxed);
    }

    /// Grows the map when it is nearly used up, unless it has reached its limit or readers stay open.
    ///
    /// The caller is the only writer of the process and has no transaction open on this thread that it holds a
    /// guard for; a reader open on this thread merely makes growth give up.
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
        // A Linux host of 64 bits: usize holds a u64.
        env.set_map_size(grown.min(self.bytes_max) as usize).map_err(|e| error::lmdb(WHAT, e))?;
        let info = env.info().map_err(|e| error::lmdb(WHAT, e))?;
        self.bytes.store(info.map_size() as u64, Ordering::Relaxed);
        self.full.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether little of a map of `bytes` lies beyond the `used` ones.
fn is_short(bytes: u64, used: u64) -> bool {
    bytes.saturating_sub(used) < (bytes / HEADROOM_SHARE).clamp(HEADROOM_BYTES_MIN, HEADROOM_BYTES_MAX)
}

/// Bytes of the map up to the last page ever used. Free pages before it are not taken off: readers may hold them.
pub(crate) fn used_bytes(env: &Environment) -> Result<u64> {
    const WHAT: &str = "cannot ask for LMDB's map use";
    let info = env.info().map_err(|e| error::lmdb(WHAT, e))?;
    let page_bytes = u64::from(env.stat().map_err(|e| error::lmdb(WHAT, e))?.page_size());
    Ok((info.last_pgno() as u64 + 1) * page_bytes)
}
