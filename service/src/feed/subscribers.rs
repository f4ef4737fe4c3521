//! The subscribers of the feed, and how far each one has come.
//!
//! Owns: the list. Must not: bound it, which `ask::places` does, or delay a subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::figure::unix_ms;
use crate::base::list::{List, Listed};

/// List of the current subscribers, with figures of all since the start.
#[derive(Debug, Default)]
pub struct Subscribers {
    list: List<Arc<Entry>>,
    /// Number of subscribers cut off because they did not read, since the start.
    pub cut_off: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    transport: &'static str,
    peer: String,
    seq: AtomicU64,
    connected_unix_ms: u64,
}

/// Snapshot of one subscriber, as shown in the status.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Subscriber {
    /// Number of the subscription, counted since the service's start.
    pub id: u64,
    /// Name of the transport: tcp, uds or shm.
    pub transport: &'static str,
    /// Address of the client, as far as the transport tells it.
    pub peer: String,
    /// Sequence number up to which all changes were handed to the connection.
    pub seq: u64,
    /// Number of published changes that it was not sent yet.
    pub lag_seq: u64,
    /// When it subscribed, in ms since the Unix epoch.
    pub connected_unix_ms: u64,
}

/// A place in the list, freed when dropped.
#[derive(Debug)]
pub struct Registration<'f> {
    _listed: Listed<'f, Arc<Entry>>,
    entry: Arc<Entry>,
}

impl Subscribers {
    /// Adds a subscriber that begins after the change `seq`.
    pub fn register(&self, transport: &'static str, peer: String, seq: u64) -> Registration<'_> {
        let entry = Arc::new(Entry { transport, peer, seq: AtomicU64::new(seq), connected_unix_ms: unix_ms() });
        Registration { _listed: self.list.add(Arc::clone(&entry)), entry }
    }

    /// Returns all subscribers, the oldest first, with their lag behind `newest_seq`.
    pub(super) fn show(&self, newest_seq: u64) -> Vec<Subscriber> {
        self.list.show(|id, entry| {
            // ORDERING: Relaxed: shown, nothing is inferred from it.
            let seq = entry.seq.load(Ordering::Relaxed);
            Subscriber {
                id,
                transport: entry.transport,
                peer: entry.peer.clone(),
                seq,
                lag_seq: newest_seq.saturating_sub(seq),
                connected_unix_ms: entry.connected_unix_ms,
            }
        })
    }
}

impl Registration<'_> {
    /// Notes that everything up to the change `seq` was handed to the connection.
    pub fn reached(&self, seq: u64) {
        // ORDERING: Relaxed: shown, nothing is inferred from it.
        self.entry.seq.store(seq, Ordering::Relaxed);
    }
}
