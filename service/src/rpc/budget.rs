//! Memory budget of large requests and answers: one for all connections, with a share for each.
//!
//! Owns: the count. It covers the bytes of a request until the request is answered, and those of an answer until the
//! kernel has taken them. A client that never reads leaves its answers here, and only a limit on the bytes themselves
//! bounds them. Must not: wait; a request without room is refused. Threads: the network edge.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tonic::Status;

use super::account::{Account, Places, Taken};
use crate::figure::count;
use crate::net::figures::{Figures, Place, Scope};
use crate::net::limit::Seat;
use crate::net::source::Source;

/// Budget of all connections: twice the size of the largest requests that may be looked up at once with their answers
/// (32 of up to 720 KB). Clients that read their answers never reach it.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// Budget of one connection: a quarter, so that it takes several connections to use all of it.
pub(super) const PEER_BYTES_MAX: u64 = 16 << 20;

/// Budget of all connections of one source (an address, a /64, a user of the Unix socket): half, so that the others
/// have as much.
pub(super) const SOURCE_BYTES_MAX: u64 = 32 << 20;

/// Bytes of each request and of each answer that are not counted, so that single lookups work even if the budget is
/// used up.
pub(super) const FREE_BYTES: usize = 1024;

/// The budget of all connections. The count itself is `figures.bytes_held`, where the metrics read it.
#[derive(Debug)]
pub(super) struct Budget {
    figures: Arc<Figures>,
    pub(super) places: Places,
}

impl Budget {
    pub(super) fn new(figures: Arc<Figures>) -> Arc<Self> {
        Arc::new(Self { figures, places: Places::default() })
    }
}

/// A connection from the point of view of its requests: its source, the bytes that it holds, its activity.
#[derive(Debug)]
pub(super) struct Peer {
    budget: Arc<Budget>,
    /// The network address of the client, which must send a token; `None` over the Unix socket.
    pub(super) from: Option<SocketAddr>,
    seat: Arc<Seat>,
    /// Bytes and places held by all connections of the same source.
    pub(super) account: Arc<Account>,
    pub(super) places: Taken,
    held: AtomicU64,
    /// Number of charges released since the connection began. An increase shows that a client reads slowly and has not
    /// stopped reading.
    released: AtomicU64,
    /// Number of requests admitted since the connection began.
    requests: AtomicU64,
    /// Number of those requests whose answers are not sent completely yet.
    under_way: AtomicU64,
}

/// Activity of a connection, by its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Activity {
    /// Number of requests admitted since the connection began.
    pub(super) requests: u64,
    /// Whether any request is under way.
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

    /// Returns the connection that a request came in on.
    ///
    /// # Errors
    /// The request has none, which only a fault of the service can cause.
    pub(super) fn of(extensions: &http::Extensions) -> Result<&Arc<Self>, Status> {
        extensions.get().ok_or_else(|| Status::internal("a request of no connection: this is a bug"))
    }

    pub(super) fn figures(&self) -> &Figures {
        &self.budget.figures
    }

    pub(super) fn source(&self) -> Source {
        self.seat.source()
    }

    pub(super) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Returns the places that all connections share.
    pub(super) fn all_places(&self) -> &Places {
        &self.budget.places
    }

    /// Returns the number of charges released so far, if any bytes are held; otherwise `None`.
    pub(super) fn progress(&self) -> Option<u64> {
        // ORDERING: Relaxed: read again seconds later, so a short delay does not matter.
        (self.held.load(Ordering::Relaxed) > 0).then(|| self.released.load(Ordering::Relaxed))
    }

    /// Returns the connection's requests so far, and whether any is under way.
    pub(super) fn activity(&self) -> Activity {
        // ORDERING: Relaxed: as above.
        let under_way = self.under_way.load(Ordering::Relaxed);
        Activity { requests: self.requests.load(Ordering::Relaxed), busy: under_way > 0 }
    }

    fn take(&self, bytes: u64) -> bool {
        let all = &self.budget.figures.bytes_held;
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
                self.budget.figures.no_place(Place::Bytes, *scope);
                return false;
            }
        }
        true
    }
}

/// Marks a request as under way, until this is dropped.
pub(super) struct UnderWay(Arc<Peer>);

impl UnderWay {
    /// Counts one more request of a connection.
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

/// Bytes charged to the budget until this is dropped.
pub(super) struct Charge {
    peer: Arc<Peer>,
    bytes: AtomicU64,
}

impl Charge {
    /// Returns a charge of zero bytes.
    pub(super) fn new(peer: &Arc<Peer>) -> Self {
        Self { peer: Arc::clone(peer), bytes: AtomicU64::new(0) }
    }

    /// Charges more bytes. Returns false, and charges nothing, if there is no room.
    pub(super) fn grow(&self, bytes: usize) -> bool {
        let taken = self.peer.take(bytes as u64);
        if taken {
            // ORDERING: Relaxed: only the drop reads it, and every use of the shared charge comes before the drop.
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        taken
    }

    /// Returns `data` as bytes that hold this charge until the last clone of them is dropped.
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
            self.peer.budget.figures.bytes_held.fetch_sub(bytes, Ordering::Relaxed);
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
        /// Returns a peer with a connection from `source`.
        pub(in super::super) fn of_test(budget: &Arc<Budget>, source: Source) -> Arc<Self> {
            let (tcp, uds) = Limit::grpc(ROOMY, &budget.figures);
            let admission = if source.is_network() { tcp } else { uds }.admit(source).unwrap();
            Self::new(Arc::clone(budget), None, Arc::clone(admission.seat()))
        }
    }

    #[test]
    fn a_peer_and_a_source_have_their_part_and_all_have_the_whole() {
        let figures = Arc::<Figures>::default();
        let budget = Budget::new(Arc::clone(&figures));
        let held = || figures.bytes_held.load(Ordering::Relaxed);
        let peers = [1, 1, 1, 2, 2, 3].map(|n| Peer::of_test(&budget, source(n)));
        let charges = peers.each_ref().map(Charge::new);
        for full in [0, 1, 3, 4] {
            assert!(charges[full].grow(PEER_BYTES_MAX as usize) && !charges[full].grow(1), "its own part and no more");
        }
        assert!(!charges[2].grow(1), "its source has its part");
        assert!(!charges[5].grow(1), "the whole is taken");
        assert_eq!((held(), peers[2].progress(), peers[5].progress()), (BYTES_MAX, None, None));
        let refused = |scope| figures.refused_places(Place::Bytes, scope);
        assert_eq!(Scope::ALL.map(refused), [4, 1, 0, 1]);
        drop(charges);
        assert_eq!((held(), peers[0].progress()), (0, None));
        assert!(Charge::new(&peers[2]).grow(PEER_BYTES_MAX as usize), "the source has given it back");
    }

    #[test]
    fn bytes_are_held_until_the_last_of_them_is_dropped() {
        let figures = Arc::<Figures>::default();
        let peer = Peer::of_test(&Budget::new(Arc::clone(&figures)), source(1));
        let charge = Charge::new(&peer);
        assert!(charge.grow(5));
        let mut data = charge.hold(Bytes::from_static(b"12345"));
        let sent = data.split_to(2);
        assert_eq!((&data[..], peer.progress()), (&b"345"[..], Some(0)));
        drop(data);
        assert_eq!(figures.bytes_held.load(Ordering::Relaxed), 5);
        drop(sent);
        assert_eq!((figures.bytes_held.load(Ordering::Relaxed), peer.progress()), (0, None));
    }
}
