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
use tonic::Status;

use super::places::{Account, Places, Taken};
use crate::net::figures::{Place, Scope};
use crate::net::limit::Seat;
use crate::net::source::Source;
use crate::status::{Shared, count};

/// All connections: twice what the largest requests and their answers take that may be looked up at once (32 of up to
/// 720 KB), so that clients who read what they asked for never meet it.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// One connection: a quarter, so that it takes several to take it all.
pub(super) const PEER_BYTES_MAX: u64 = 16 << 20;

/// All connections of one source (an address, a /64, a user of the Unix socket): half, so that the others have as much.
pub(super) const SOURCE_BYTES_MAX: u64 = 32 << 20;

/// So much of each request and of each answer is not counted: single lookups go on whatever becomes of the budget.
pub(super) const FREE_BYTES: usize = 1024;

/// The budget of all connections. The count itself is `shared.net.bytes_held`, where the metrics find it.
#[derive(Debug)]
pub(super) struct Budget {
    shared: Arc<Shared>,
    pub(super) places: Places,
}

impl Budget {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, places: Places::default() })
    }
}

/// A connection, as its requests see it: who is at the other end, how much it holds, what it is at.
#[derive(Debug)]
pub(super) struct Peer {
    budget: Arc<Budget>,
    /// Where it comes from over the network, from where tokens are asked for; none over the Unix socket.
    pub(super) from: Option<SocketAddr>,
    seat: Arc<Seat>,
    /// What all connections of its source hold.
    pub(super) account: Arc<Account>,
    pub(super) places: Taken,
    held: AtomicU64,
    /// Charges given back since the start: that it moves tells a slow reader from one that does not read.
    released: AtomicU64,
    /// Requests let in since the start.
    requests: AtomicU64,
    /// Those of them whose answers are not sent yet.
    under_way: AtomicU64,
}

/// What a connection is at, as its requests tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Activity {
    /// Requests let in since the start.
    pub(super) requests: u64,
    /// Some are under way.
    pub(super) busy: bool,
}

impl Peer {
    pub(super) fn new(budget: Arc<Budget>, from: Option<SocketAddr>, seat: Arc<Seat>) -> Arc<Self> {
        let account = budget.places.account(seat.source());
        Arc::new(Self {
            budget,
            from,
            seat,
            account,
            places: Taken::default(),
            held: AtomicU64::new(0),
            released: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
        })
    }

    /// The one that a request came by.
    ///
    /// # Errors
    /// There is none, which only a fault of the service can cause.
    pub(super) fn of(extensions: &http::Extensions) -> Result<&Arc<Self>, Status> {
        extensions.get().ok_or_else(|| Status::internal("a request of no connection: this is a bug"))
    }

    /// The service's figures.
    pub(super) fn shared(&self) -> &Shared {
        &self.budget.shared
    }

    /// Whom it counts as.
    pub(super) fn source(&self) -> Source {
        self.seat.source()
    }

    /// Its place among the connections.
    pub(super) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// What all share.
    pub(super) fn all_places(&self) -> &Places {
        &self.budget.places
    }

    /// How many charges were given back, while any are held; `None` when nothing is.
    pub(super) fn progress(&self) -> Option<u64> {
        // ORDERING: Relaxed: looked at again seconds later; a moment's difference is none.
        (self.held.load(Ordering::Relaxed) > 0).then(|| self.released.load(Ordering::Relaxed))
    }

    /// See [`Activity`].
    pub(super) fn activity(&self) -> Activity {
        // ORDERING: Relaxed: as above.
        let under_way = self.under_way.load(Ordering::Relaxed);
        Activity { requests: self.requests.load(Ordering::Relaxed), busy: under_way > 0 }
    }

    fn take(&self, bytes: u64) -> bool {
        let all = &self.budget.shared.net.bytes_held;
        let scopes = [
            (Scope::Connection, &self.held, PEER_BYTES_MAX),
            (Scope::Source, &self.account.bytes, SOURCE_BYTES_MAX),
            (Scope::All, all, BYTES_MAX),
        ];
        for (index, (scope, held, max)) in scopes.iter().enumerate() {
            if !take(held, bytes, *max) {
                for (_, held, _) in &scopes[..index] {
                    // ORDERING: Relaxed: see `take`.
                    held.fetch_sub(bytes, Ordering::Relaxed);
                }
                self.budget.shared.net.no_place(Place::Bytes, *scope);
                return false;
            }
        }
        true
    }
}

/// A request that is under way, until it is dropped.
pub(super) struct UnderWay(Arc<Peer>);

impl UnderWay {
    /// One more of a connection.
    pub(super) fn new(peer: &Arc<Peer>) -> Self {
        // ORDERING: Relaxed: see `Peer::activity`.
        peer.under_way.fetch_add(1, Ordering::Relaxed);
        count(&peer.requests, 1);
        Self(Arc::clone(peer))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // ORDERING: Relaxed: see `Peer::activity`.
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
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
            self.peer.account.bytes.fetch_sub(bytes, Ordering::Relaxed);
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
    use crate::net::limit::Limit;
    use crate::net::limit::tests::{ROOMY, source};

    impl Peer {
        /// Of a connection from `source`.
        pub(in super::super) fn of_test(budget: &Arc<Budget>, source: Source) -> Arc<Self> {
            let (tcp, uds) = Limit::grpc(ROOMY, &budget.shared);
            let admission = if source.is_network() { tcp } else { uds }.admit(source).unwrap();
            Self::new(Arc::clone(budget), None, Arc::clone(admission.seat()))
        }
    }

    #[test]
    fn a_peer_and_a_source_have_their_part_and_all_have_the_whole() {
        let shared = Shared::new(Default::default());
        let budget = Budget::new(Arc::clone(&shared));
        let held = || shared.net.bytes_held.load(Ordering::Relaxed);
        let peers = [1, 1, 1, 2, 2, 3].map(|n| Peer::of_test(&budget, source(n)));
        let charges = peers.each_ref().map(Charge::new);
        for full in [0, 1, 3, 4] {
            assert!(charges[full].grow(PEER_BYTES_MAX as usize) && !charges[full].grow(1), "its own part and no more");
        }
        assert!(!charges[2].grow(1), "its source has its part");
        assert!(!charges[5].grow(1), "the whole is taken");
        assert_eq!((held(), peers[2].progress(), peers[5].progress()), (BYTES_MAX, None, None));
        let refused = |scope| shared.net.refused_places(Place::Bytes, scope);
        assert_eq!(Scope::ALL.map(refused), [4, 1, 0, 1]);
        drop(charges);
        assert_eq!((held(), peers[0].progress()), (0, None));
        assert!(Charge::new(&peers[2]).grow(PEER_BYTES_MAX as usize), "the source has given it back");
    }

    #[test]
    fn bytes_are_held_until_the_last_of_them_is_dropped() {
        let shared = Shared::new(Default::default());
        let peer = Peer::of_test(&Budget::new(Arc::clone(&shared)), source(1));
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
