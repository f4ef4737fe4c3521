//! Who follows the feed, and how far each has come.
//!
//! Owns: the list and its bound. Must not: hold up a subscriber; the list is locked only to add, remove and show.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::dump::DUMPS_MAX;
use crate::status::unix_ms;

/// The list.
#[derive(Debug)]
pub struct Subscribers {
    list: Mutex<List>,
    dump_places: Arc<Semaphore>,
    /// Subscribers cut off because they did not read, since start.
    pub cut_off: AtomicU64,
    /// Changes sent to all of them together, since start.
    pub changes_sent: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    next_id: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
}

#[derive(Debug)]
struct Entry {
    transport: &'static str,
    peer: String,
    seq: AtomicU64,
    connected_unix_ms: u64,
}

/// One of them, as shown.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Subscriber {
    /// Counts subscriptions since the service's start.
    pub id: u64,
    /// tcp, uds or shm.
    pub transport: &'static str,
    /// Where it is.
    pub peer: String,
    /// Everything up to here was handed to its connection.
    pub seq: u64,
    /// Published changes that it was not sent yet.
    pub lag_seq: u64,
    /// When it subscribed, ms since the Unix epoch.
    pub connected_unix_ms: u64,
}

/// As many are subscribed as may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySubscribers {
    /// How many.
    pub max: usize,
}

/// A place in the list, left when dropped.
#[derive(Debug)]
pub struct Registration<'f> {
    subscribers: &'f Subscribers,
    id: u64,
    entry: Arc<Entry>,
}

impl Default for Subscribers {
    fn default() -> Self {
        Self {
            list: Mutex::default(),
            dump_places: Arc::new(Semaphore::new(DUMPS_MAX)),
            cut_off: AtomicU64::new(0),
            changes_sent: AtomicU64::new(0),
        }
    }
}

impl Subscribers {
    /// Takes one of [`DUMPS_MAX`] places for a dump, left when it is dropped; `None` when all are taken.
    pub fn begin_dump(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.dump_places).try_acquire_owned().ok()
    }

    /// Dumps under way.
    pub fn dumps(&self) -> usize {
        DUMPS_MAX - self.dump_places.available_permits()
    }

    /// Takes a place.
    ///
    /// # Errors
    /// When `max` are taken.
    pub fn register(
        &self,
        transport: &'static str,
        peer: String,
        seq: u64,
        max: usize,
    ) -> Result<Registration<'_>, TooManySubscribers> {
        let mut list = self.list();
        if list.entries.len() >= max {
            return Err(TooManySubscribers { max });
        }
        let entry = Arc::new(Entry { transport, peer, seq: AtomicU64::new(seq), connected_unix_ms: unix_ms() });
        let id = list.next_id;
        list.next_id += 1;
        list.entries.insert(id, Arc::clone(&entry));
        Ok(Registration { subscribers: self, id, entry })
    }

    /// All of them, the oldest first, as they are behind `newest_seq`.
    pub(super) fn show(&self, newest_seq: u64) -> Vec<Subscriber> {
        let show = |(id, entry): (&u64, &Arc<Entry>)| {
            // ORDERING: Relaxed: shown, nothing is inferred from it.
            let seq = entry.seq.load(Ordering::Relaxed);
            Subscriber {
                id: *id,
                transport: entry.transport,
                peer: entry.peer.clone(),
                seq,
                lag_seq: newest_seq.saturating_sub(seq),
                connected_unix_ms: entry.connected_unix_ms,
            }
        };
        self.list().entries.iter().map(show).collect()
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // Every change of it is complete before anything that could panic.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration<'_> {
    /// Everything up to `seq` was handed over.
    pub fn reached(&self, seq: u64) {
        // ORDERING: Relaxed: shown, nothing is inferred from it.
        self.entry.seq.store(seq, Ordering::Relaxed);
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.subscribers.list().entries.remove(&self.id);
    }
}
