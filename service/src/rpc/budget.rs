//! Memory budget of large requests and answers: one for all connections, with a share for each.
//!
//! Owns: the count. It covers the bytes of a request until the request is answered, and those of an answer until the
//! kernel has taken them. A client that never reads leaves its answers here, and only a limit on the bytes themselves
//! bounds them. Must not: wait; a request without room is refused. Threads: the network edge.
//!
//! A connection and a source that have used up their own share are refused. If the network or all connections together
//! have used up theirs, the connection that has held any bytes for the longest time gives way, and is cut. So several
//! sources that never read cannot keep the others out. A source that holds little gives way only if none holds much.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::task::AtomicWaker;
use tokio::time::Instant;
use tonic::Status;

use super::account::{Account, Places, Taken};
use super::places::UDS_SHARE;
use crate::base::figure::count;
use crate::net::figures::{Figures, Place, Scope};
use crate::net::limit::Seat;
use crate::net::source::Source;

/// Budget of all connections: twice the size of the largest requests that may be looked up at once with their answers
/// (32 of up to 720 KB). Clients that read their answers never reach it.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// Budget of the network's connections: an eighth is reserved for the Unix socket, as with connections.
const NETWORK_BYTES_MAX: u64 = BYTES_MAX - BYTES_MAX / UDS_SHARE;

/// Budget of one connection: a quarter, so that it takes several connections to use all of it.
pub(super) const PEER_BYTES_MAX: u64 = 16 << 20;

/// Budget of all connections of one source (an address, a /64, a user of the Unix socket): half, so that the others
/// have as much.
pub(super) const SOURCE_BYTES_MAX: u64 = 32 << 20;

/// Bytes of each request and of each answer that are not counted, so that single lookups work even if the budget is
/// used up.
pub(super) const FREE_BYTES: usize = 1024;

/// Bytes that are held for less than this never give way. The largest answer, of 380 KB, takes 0.3 s at 10 Mbit/s, so a
/// client that reads its answers is not cut for others.
const HELD_MIN: Duration = Duration::from_secs(1);

/// A source that holds less than this gives way only if no source holds more: two of the largest answers. So sources that
/// take and return their bytes in turn have no client cut that reads slowly, and many that hold little keep nobody out.
const SOURCE_KEPT_BYTES: u64 = BYTES_MAX / 64;

/// The budget of all connections. The count itself is `figures.bytes_held`, where the metrics read it.
#[derive(Debug)]
pub(super) struct Budget {
    figures: Arc<Figures>,
    pub(super) places: Places,
    held: Mutex<Held>,
}

/// The charges of all connections.
#[derive(Debug, Default)]
struct Held {
    /// Bytes of the network's connections.
    network: u64,
    /// Id of the newest charge. Ids begin at 1.
    newest_id: u64,
    /// Charges by id, which is drawn with the first byte, so that the oldest comes first. One that is not here holds
    /// nothing, or has given way.
    charges: BTreeMap<u64, Holding>,
}

#[derive(Debug)]
struct Holding {
    peer: Arc<Peer>,
    bytes: u64,
    since: Instant,
}

impl Budget {
    pub(super) fn new(figures: Arc<Figures>) -> Arc<Self> {
        Arc::new(Self { figures, places: Places::default(), held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A poisoned lock is safe: every change of the charges is complete before anything that could panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Counts `bytes` more in every scope of a connection, or fewer if `sign` is not set.
    fn add(&mut self, peer: &Peer, bytes: u64, sign: bool) {
        let change = |counter: &AtomicU64| match sign {
            // ORDERING: Relaxed: changed only under this lock; read elsewhere as statistics.
            true => counter.fetch_add(bytes, Ordering::Relaxed),
            false => counter.fetch_sub(bytes, Ordering::Relaxed),
        };
        change(&peer.held);
        change(&peer.account.bytes);
        change(&peer.budget.figures.bytes_held);
        if peer.source().is_network() {
            self.network = if sign { self.network + bytes } else { self.network - bytes };
        }
    }

    /// Cuts the connection whose bytes have been held for the longest time, of a source that holds much if there is one;
    /// for the network's sake only one of the network. Returns false if none has held any for [`HELD_MIN`].
    fn make_room(&mut self, is_network: bool, now: Instant) -> bool {
        // ORDERING: Relaxed: changed only under this lock.
        let holds_much = |peer: &Peer| peer.account.bytes.load(Ordering::Relaxed) >= SOURCE_KEPT_BYTES;
        let of_listener = || self.charges.values().filter(|held| !is_network || held.peer.source().is_network());
        let oldest = of_listener().find(|held| holds_much(&held.peer)).or_else(|| of_listener().next());
        let oldest = oldest.filter(|oldest| now - oldest.since >= HELD_MIN);
        let Some(peer) = oldest.map(|oldest| Arc::clone(&oldest.peer)) else { return false };
        let of_peer = |_: &u64, holding: &mut Holding| Arc::ptr_eq(&holding.peer, &peer);
        let bytes = self.charges.extract_if(.., of_peer).map(|(_, holding)| holding.bytes).sum();
        self.add(&peer, bytes, false);
        // ORDERING: Release pairs with the Acquire in `poll_cut`; nothing else is passed on.
        peer.cut.store(true, Ordering::Release);
        peer.cut_waker.wake();
        true
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
    /// Bytes held; changed only under the lock of the budget, as those of the account are.
    held: AtomicU64,
    /// Whether the connection has to end, because it has held its bytes for the longest time.
    cut: AtomicBool,
    cut_waker: AtomicWaker,
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
            cut: AtomicBool::new(false),
            cut_waker: AtomicWaker::new(),
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

    /// Polls until the connection has to give way.
    pub(super) fn poll_cut(&self, context: &mut Context<'_>) -> Poll<()> {
        self.cut_waker.register(context.waker());
        // ORDERING: Acquire: see `Held::make_room`.
        if self.cut.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes `bytes` more for the charge with this id, cutting others if need be. A charge that holds nothing gets a new
    /// id. Returns false if a share is used up.
    fn take(self: &Arc<Self>, id: &AtomicU64, bytes: u64) -> bool {
        let Budget { figures, .. } = &*self.budget;
        let is_network = self.source().is_network();
        let mut held = self.budget.held();
        // ORDERING: Relaxed: changed only under this lock.
        let is_over = |held: &AtomicU64, max| held.load(Ordering::Relaxed).saturating_add(bytes) > max;
        let now = Instant::now();
        let refused = loop {
            if is_over(&self.held, PEER_BYTES_MAX) {
                break Some(Scope::Connection);
            }
            if is_over(&self.account.bytes, SOURCE_BYTES_MAX) {
                break Some(Scope::Source);
            }
            let scope = if is_network && held.network.saturating_add(bytes) > NETWORK_BYTES_MAX {
                Scope::Network
            } else if is_over(&figures.bytes_held, BYTES_MAX) {
                Scope::All
            } else {
                break None;
            };
            if !held.make_room(is_network, now) {
                break Some(scope);
            }
        };
        if let Some(scope) = refused {
            figures.no_place(Place::Bytes, scope);
            return false;
        }
        held.add(self, bytes, true);
        // ORDERING: Relaxed: changed only under this lock. The drop of the charge comes after every use of it.
        if let Some(holding) = held.charges.get_mut(&id.load(Ordering::Relaxed)) {
            holding.bytes += bytes;
            return true;
        }
        held.newest_id += 1;
        let newest_id = held.newest_id;
        id.store(newest_id, Ordering::Relaxed);
        held.charges.insert(newest_id, Holding { peer: Arc::clone(self), bytes, since: now });
        true
    }

    /// Gives back all that the charge `id` has taken, unless it has given way.
    fn give_back(&self, id: u64) {
        let mut held = self.budget.held();
        if let Some(Holding { bytes, .. }) = held.charges.remove(&id) {
            held.add(self, bytes, false);
            count(&self.released, 1);
        }
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
    /// 0 until any byte is taken.
    id: AtomicU64,
}

impl Charge {
    /// Returns a charge of zero bytes.
    pub(super) fn new(peer: &Arc<Peer>) -> Self {
        Self { peer: Arc::clone(peer), id: AtomicU64::new(0) }
    }

    /// Charges more bytes. Returns false, and charges nothing, if there is no room.
    pub(super) fn grow(&self, bytes: usize) -> bool {
        self.peer.take(&self.id, bytes as u64)
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
        let id = *self.id.get_mut();
        if id > 0 {
            self.peer.give_back(id);
        }
    }
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

    fn is_cut(peer: &Peer) -> bool {
        peer.poll_cut(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_a_source_and_the_network_have_their_part_and_all_have_the_whole() {
        let figures = Arc::<Figures>::default();
        let budget = Budget::new(Arc::clone(&figures));
        let held = || figures.bytes_held.load(Ordering::Relaxed);
        let peers = [1, 1, 1, 2, 2, 3].map(|n| Peer::of_test(&budget, source(n)));
        let charges = peers.each_ref().map(Charge::new);
        let eighth = PEER_BYTES_MAX as usize / 2;
        for full in [0, 1, 3] {
            assert!(charges[full].grow(eighth) && charges[full].grow(eighth) && !charges[full].grow(1), "its own part");
        }
        assert!(!charges[2].grow(1), "its source has its part");
        assert!(charges[4].grow(eighth) && !charges[4].grow(1), "the network has its part");
        let local = Peer::of_test(&budget, Source::User(7));
        let [local, other] = [Charge::new(&local), Charge::new(&Peer::of_test(&budget, Source::User(8)))];
        assert!(local.grow(eighth) && !other.grow(1), "the whole is taken");
        assert_eq!((held(), peers[2].progress(), peers[5].progress()), (BYTES_MAX, None, None));
        let refused = |scope| figures.refused_places(Place::Bytes, scope);
        assert_eq!(Scope::ALL.map(refused), [3, 1, 1, 1]);
        assert!(!peers.iter().any(|peer| is_cut(peer)), "what is held for a moment gives way to nobody");
        drop((charges, local, other));
        assert_eq!((held(), budget.held().network, peers[0].progress()), (0, 0, None));
        assert!(Charge::new(&peers[2]).grow(PEER_BYTES_MAX as usize), "the source has given it back");
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_held_bytes_give_way_and_the_networks_need_cuts_no_local_client() {
        let figures = Arc::<Figures>::default();
        let budget = Budget::new(Arc::clone(&figures));
        let held = || figures.bytes_held.load(Ordering::Relaxed);
        let part = PEER_BYTES_MAX as usize / 2;
        let mut kept = Vec::new();
        let mut take = |peer: &Arc<Peer>| {
            let charge = Charge::new(peer);
            let taken = charge.grow(part);
            kept.push(charge);
            taken
        };
        // The local one is the oldest; then four connections of the network, in this order.
        let local = Peer::of_test(&budget, Source::User(7));
        assert!(take(&local));
        let network = [1, 1, 2, 2].map(|n| Peer::of_test(&budget, source(n)));
        for peer in &network {
            tokio::time::advance(HELD_MIN).await;
            assert!(take(peer) && (Arc::ptr_eq(peer, &network[3]) || take(peer)));
        }
        assert_eq!(held(), BYTES_MAX);
        let [newcomer, second] = [3, 4].map(|n| Peer::of_test(&budget, source(n)));
        assert!(take(&newcomer));
        assert_eq!([&local, &network[0], &network[1]].map(|peer| is_cut(peer)), [false, true, false]);
        assert_eq!((held(), network[0].progress()), (BYTES_MAX - part as u64, None), "all of its bytes give way");
        assert!(take(&newcomer), "and there is room for two");
        assert!(take(&second) && is_cut(&network[1]) && !is_cut(&network[2]));
        // A local client may have what any other holds.
        let other = Peer::of_test(&budget, Source::User(8));
        assert!(take(&other) && take(&other) && is_cut(&local) && !is_cut(&network[2]));
        // What gave way is not given back a second time.
        drop(kept);
        let rest = budget.held();
        assert_eq!((held(), rest.network, rest.charges.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn neither_early_requests_nor_those_that_hold_little_keep_the_longest_held_bytes() {
        let budget = Budget::new(Arc::default());
        let part = PEER_BYTES_MAX as usize / 2;
        let [early, slow, newcomer] = [5, 6, 7].map(|n| Peer::of_test(&budget, source(n)));
        // A request that came first and holds its first byte last, and an answer that is read slowly.
        let (request, answer) = (Charge::new(&early), Charge::new(&slow));
        assert!(answer.grow(SOURCE_KEPT_BYTES as usize - 1));
        tokio::time::advance(HELD_MIN).await;
        let holders = [1, 1, 2, 2].map(|n| Peer::of_test(&budget, source(n)));
        let held: Vec<_> = holders.iter().chain(&holders).map(Charge::new).collect();
        let taken = held.iter().filter(|charge| charge.grow(part)).count();
        assert_eq!(taken, 6, "the network has its part, less what is kept");
        tokio::time::advance(HELD_MIN).await;
        assert!(request.grow(1) && Charge::new(&newcomer).grow(part));
        assert_eq!([&early, &slow, &holders[0]].map(|peer| is_cut(peer)), [false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_that_hold_little_keep_nobody_out() {
        let budget = Budget::new(Arc::default());
        let little = SOURCE_KEPT_BYTES as usize - 1;
        let local = Charge::new(&Peer::of_test(&budget, Source::User(7)));
        assert!(local.grow(little));
        let mut charges = Vec::new();
        loop {
            let peer = Peer::of_test(&budget, source(charges.len() as u8));
            let charge = Charge::new(&peer);
            if !charge.grow(little) {
                break;
            }
            charges.push((peer, charge));
            tokio::time::advance(HELD_MIN / 100).await;
        }
        assert!(charges.len() as u64 >= NETWORK_BYTES_MAX / SOURCE_KEPT_BYTES, "their sources fill the house");
        tokio::time::advance(HELD_MIN).await;
        let newcomer = Charge::new(&Peer::of_test(&budget, source(u8::MAX)));
        assert!(newcomer.grow(little));
        let cut: Vec<_> = charges.iter().map(|(peer, _)| is_cut(peer)).collect();
        assert_eq!(cut.iter().position(|cut| *cut), Some(0), "the one that has held its bytes the longest");
        assert_eq!((cut.iter().filter(|cut| **cut).count(), is_cut(&local.peer)), (1, false));
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
