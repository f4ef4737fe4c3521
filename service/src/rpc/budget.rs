//! The memory that requests and answers may take while they are not small: a budget for all connections, a part of it
//! for each.
//!
//! Owns: counting it. What counts are the bytes of a request until it is answered, and those of an answer until they
//! are handed to the kernel: a client that never reads holds its answers here, and only a limit on the bytes themselves
//! says how much that can be. Must not: wait; whoever finds no room is refused. Threads: the network edge.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::status::{Shared, count};

/// All connections: twice what the largest requests and their answers take that may be looked up at once (32 of up to
/// 720 KB), so that clients who read what they asked for never meet it.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// One connection: a quarter, so that it takes several to take it all.
pub(super) const PEER_BYTES_MAX: u64 = 16 << 20;

/// So much of each request and of each answer is not counted: single lookups go on whatever becomes of the budget.
pub(super) const FREE_BYTES: usize = 1024;

/// The budget of all connections. The count itself is `shared.net.bytes_held`, where the metrics find it.
pub(super) struct Budget {
    shared: Arc<Shared>,
}

impl Budget {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared })
    }
}

/// A connection, as its requests see it: who is at the other end, and how much it holds.
pub(super) struct Peer {
    budget: Arc<Budget>,
    /// Where it comes from over the network, from where tokens are asked for; none over the Unix socket.
    pub(super) from: Option<SocketAddr>,
    held: AtomicU64,
    /// Charges given back since the start: that it moves tells a slow reader from one that does not read.
    released: AtomicU64,
}

impl Peer {
    pub(super) fn new(budget: Arc<Budget>, from: Option<SocketAddr>) -> Arc<Self> {
        Arc::new(Self { budget, from, held: AtomicU64::new(0), released: AtomicU64::new(0) })
    }

    /// The service's figures.
    pub(super) fn shared(&self) -> &Shared {
        &self.budget.shared
    }

    /// How many charges were given back, while any are held; `None` when nothing is.
    pub(super) fn progress(&self) -> Option<u64> {
        // ORDERING: Relaxed: looked at again seconds later; a moment's difference is none.
        (self.held.load(Ordering::Relaxed) > 0).then(|| self.released.load(Ordering::Relaxed))
    }

    fn take(&self, bytes: u64) -> bool {
        if take(&self.held, bytes, PEER_BYTES_MAX) {
            if take(&self.budget.shared.net.bytes_held, bytes, BYTES_MAX) {
                return true;
            }
            // ORDERING: Relaxed: see `take`.
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
        count(&self.budget.shared.net.bytes_refused, 1);
        false
    }
}

/// Bytes that are held, until it is dropped.
pub(super) struct Charge {
    peer: Arc<Peer>,
    bytes: AtomicU64,
}

impl Charge {
    /// Of nothing yet.
    pub(super) fn new(peer: &Arc<Peer>) -> Self {
        Self { peer: Arc::clone(peer), bytes: AtomicU64::new(0) }
    }

    /// Holds so many more; false when there is no room.
    pub(super) fn grow(&self, bytes: usize) -> bool {
        let taken = self.peer.take(bytes as u64);
        if taken {
            // ORDERING: Relaxed: read by the drop alone, which whatever shares the charge comes before.
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        taken
    }

    /// These bytes, held until the last of them is dropped.
    pub(super) fn hold(self, data: Bytes) -> Bytes {
        struct Held {
            data: Bytes,
            _charge: Charge,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.data
            }
        }
        Bytes::from_owner(Held { data, _charge: self })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        if bytes > 0 {
            // ORDERING: Relaxed: see `take`.
            self.peer.held.fetch_sub(bytes, Ordering::Relaxed);
            self.peer.budget.shared.net.bytes_held.fetch_sub(bytes, Ordering::Relaxed);
            count(&self.peer.released, 1);
        }
    }
}

fn take(held: &AtomicU64, bytes: u64, max: u64) -> bool {
    let add = |held: u64| held.checked_add(bytes).filter(|held| *held <= max);
    // ORDERING: Relaxed: the sum alone decides; it guards no other memory.
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_part_and_all_have_the_whole() {
        const PEERS: u64 = BYTES_MAX / PEER_BYTES_MAX;
        let shared = Shared::new(Default::default());
        let budget = Budget::new(Arc::clone(&shared));
        let held = || shared.net.bytes_held.load(Ordering::Relaxed);
        let peers: Vec<_> = (0..=PEERS).map(|_| Peer::new(Arc::clone(&budget), None)).collect();
        let charges: Vec<_> = peers.iter().map(Charge::new).collect();
        for charge in &charges[..PEERS as usize] {
            assert!(charge.grow(PEER_BYTES_MAX as usize) && !charge.grow(1), "its own part and no more");
        }
        assert!(!charges[PEERS as usize].grow(1), "the whole is taken");
        assert_eq!((held(), peers[PEERS as usize].progress()), (BYTES_MAX, None));
        assert_eq!(shared.net.bytes_refused.load(Ordering::Relaxed), PEERS + 1);
        drop(charges);
        assert_eq!((held(), peers[0].progress()), (0, None));
    }

    #[test]
    fn bytes_are_held_until_the_last_of_them_is_dropped() {
        let shared = Shared::new(Default::default());
        let peer = Peer::new(Budget::new(Arc::clone(&shared)), None);
        let charge = Charge::new(&peer);
        assert!(charge.grow(5));
        let mut data = charge.hold(Bytes::from_static(b"12345"));
        let sent = data.split_to(2);
        assert_eq!((&data[..], peer.progress()), (&b"345"[..], Some(0)));
        drop(data);
        assert_eq!(shared.net.bytes_held.load(Ordering::Relaxed), 5);
        drop(sent);
        assert_eq!((shared.net.bytes_held.load(Ordering::Relaxed), peer.progress()), (0, None));
    }
}
