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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::account::{Places, Taken, share, shares};
use super::refusal::{Cause, Refusal};
use crate::base::figure::count;
use crate::base::lock;
use crate::base::slow::Transport;
use crate::net::figures::{Figures, Place, Scope};
use crate::net::limit::Seat;

/// Budget of all connections: twice the size of the largest requests that may be looked up at once with their answers
/// (32 of up to 720 KB). Clients that read their answers never reach it. Connections, sources and the network have their
/// [`shares`] of it.
const BYTES_MAX: u64 = 64 << 20;

/// Bytes of each request and of each answer that are not counted, so that single lookups work even if the budget is
/// used up.
pub(crate) const FREE_BYTES: usize = 1024;

/// Bytes that are held for less than this never give way. The largest answer, of 380 KB, takes 0.3 s at 10 Mbit/s, so a
/// client that reads its answers is not cut for others.
const HELD_MIN: Duration = Duration::from_secs(1);

/// A source that holds less than this gives way only if no source holds more: two of the largest answers. So sources that
/// take and return their bytes in turn have no client cut that reads slowly, and many that hold little keep nobody out.
const SOURCE_KEPT_BYTES: u64 = BYTES_MAX / 64;

/// The budget of all connections. The count itself is among the figures, where the metrics read it.
#[derive(Debug)]
pub(super) struct Budget {
    figures: Arc<Figures>,
    pub(super) places: Places,
    held: Mutex<Held>,
}

/// The charges of all connections.
#[derive(Debug, Default)]
struct Held {
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
}

impl Held {
    /// Cuts the connection whose bytes have been held for the longest time, of a source that holds much if there is one;
    /// for the network's sake only one of the network. Returns false if none has held any for [`HELD_MIN`].
    fn make_room(&mut self, is_network: bool, now: Instant) -> bool {
        // ORDERING: Relaxed: changed only under this lock.
        let holds_much = |peer: &Peer| peer.account.of(Place::Bytes).load(Ordering::Relaxed) >= SOURCE_KEPT_BYTES;
        let of_listener = || self.charges.values().filter(|held| !is_network || held.peer.is_network());
        let oldest = of_listener().find(|held| holds_much(&held.peer)).or_else(|| of_listener().next());
        let oldest = oldest.filter(|oldest| now - oldest.since >= HELD_MIN);
        let Some(peer) = oldest.map(|oldest| Arc::clone(&oldest.peer)) else { return false };
        let of_peer = |_: &u64, holding: &mut Holding| Arc::ptr_eq(&holding.peer, &peer);
        let bytes: u64 = self.charges.extract_if(.., of_peer).map(|(_, holding)| holding.bytes).sum();
        peer.change_bytes(|held| held - bytes);
        peer.seat.activity.cut();
        true
    }
}

/// A connection from the point of view of its requests: its source, and the bytes and places that it holds.
#[derive(Debug)]
pub(crate) struct Peer {
    budget: Arc<Budget>,
    /// The network address of the client, which must send a token; `None` over the Unix socket.
    pub(crate) from: Option<SocketAddr>,
    pub(crate) transport: Transport,
    pub(crate) seat: Arc<Seat>,
    /// Bytes and places held by all connections of the same source.
    account: Arc<Taken>,
    places: Taken,
}

impl Peer {
    pub(super) fn new(
        budget: Arc<Budget>,
        transport: Transport,
        from: Option<SocketAddr>,
        seat: Arc<Seat>,
    ) -> Arc<Self> {
        let account = budget.places.account(seat.source());
        Arc::new(Self { budget, from, transport, seat, account, places: Taken::default() })
    }

    pub(super) fn is_network(&self) -> bool {
        self.seat.source().is_network()
    }

    /// Returns the number of places taken in a scope that the connection belongs to.
    pub(super) fn counter(&self, place: Place, scope: Scope) -> &AtomicU64 {
        match scope {
            Scope::Connection if place == Place::Bytes => &self.seat.activity.held,
            Scope::Connection => self.places.of(place),
            Scope::Source => self.account.of(place),
            Scope::Network => self.budget.places.network.of(place),
            Scope::All => self.budget.figures.held(place),
        }
    }

    /// Changes the number of bytes in every scope. Call it under the lock of the budget.
    fn change_bytes(&self, change: impl Fn(u64) -> u64) {
        for (scope, _) in shares(Place::Bytes, BYTES_MAX, self.is_network()) {
            let held = self.counter(Place::Bytes, scope);
            // ORDERING: Relaxed: changed only under this lock; read elsewhere as statistics.
            held.store(change(held.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Takes `bytes` more for the charge with this id, cutting others if need be. A charge that holds nothing gets a new
    /// id. Returns false if a share is used up.
    fn take(self: &Arc<Self>, id: &AtomicU64, bytes: u64) -> bool {
        let is_network = self.is_network();
        let mut held = lock(&self.budget.held);
        let is_over = |(scope, share): &(Scope, u64)| {
            // ORDERING: Relaxed: changed only under this lock.
            self.counter(Place::Bytes, *scope).load(Ordering::Relaxed).saturating_add(bytes) > *share
        };
        let now = Instant::now();
        while let Some((scope, _)) = shares(Place::Bytes, BYTES_MAX, is_network).find(is_over) {
            let is_own = matches!(scope, Scope::Connection | Scope::Source);
            if is_own || !held.make_room(is_network, now) {
                self.budget.figures.no_place(Place::Bytes, scope);
                return false;
            }
        }
        self.change_bytes(|held| held + bytes);
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
        let mut held = lock(&self.budget.held);
        if let Some(Holding { bytes, .. }) = held.charges.remove(&id) {
            self.change_bytes(|held| held - bytes);
            count(&self.seat.activity.released, 1);
        }
    }
}

/// Bytes charged to the budget until this is dropped.
pub(crate) struct Charge {
    peer: Arc<Peer>,
    /// 0 until any byte is taken.
    id: AtomicU64,
}

impl Charge {
    /// Returns a charge of zero bytes.
    pub(crate) fn new(peer: &Arc<Peer>) -> Self {
        Self { peer: Arc::clone(peer), id: AtomicU64::new(0) }
    }

    /// Charges more bytes. Returns false, and charges nothing, if there is no room.
    pub(crate) fn grow(&self, bytes: usize) -> bool {
        self.peer.take(&self.id, bytes as u64)
    }

    /// Returns `data` as bytes that hold this charge until the last clone of them is dropped.
    pub(crate) fn hold(self, data: Bytes) -> Bytes {
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

/// The refusal of bytes of this kind, for which there is no room.
pub(crate) fn no_room(kind: &str) -> Refusal {
    let [connection, address, all] =
        [Scope::Connection, Scope::Source, Scope::All].map(|scope| share(Place::Bytes, BYTES_MAX, scope));
    Refusal::new(
        Cause::Full,
        format!(
            "too many bytes of {kind}, try again later or in smaller parts: connection_max_bytes={connection} \
             address_max_bytes={address} all_max_bytes={all}"
        ),
    )
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
    use std::task::{Context, Waker};

    use super::*;
    use crate::net::limit::Limit;
    use crate::net::limit::tests::{ROOMY, source};
    use crate::net::source::Source;

    impl Peer {
        /// Returns a peer with a connection from `source`.
        pub(in super::super) fn of_test(budget: &Arc<Budget>, source: Source) -> Arc<Self> {
            let (tcp, uds) = Limit::grpc(ROOMY, &budget.figures);
            let admission = if source.is_network() { tcp } else { uds }.admit(source).unwrap();
            Self::new(Arc::clone(budget), Transport::GrpcUds, None, Arc::clone(admission.seat()))
        }
    }

    /// Budget of one connection, as [`shares`] has it.
    const PEER_BYTES_MAX: u64 = 16 << 20;

    fn network_bytes(budget: &Budget) -> u64 {
        budget.places.network.of(Place::Bytes).load(Ordering::Relaxed)
    }

    fn is_cut(peer: &Peer) -> bool {
        peer.seat.activity.poll_cut(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_a_source_and_the_network_have_their_part_and_all_have_the_whole() {
        let figures = Arc::<Figures>::default();
        let budget = Budget::new(Arc::clone(&figures));
        let held = || figures.held(Place::Bytes).load(Ordering::Relaxed);
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
        assert_eq!(
            (held(), peers[2].seat.activity.progress(), peers[5].seat.activity.progress()),
            (BYTES_MAX, None, None)
        );
        let refused = |scope| figures.refused_places(Place::Bytes, scope);
        assert_eq!(Scope::ALL.map(refused), [3, 1, 1, 1]);
        assert!(!peers.iter().any(|peer| is_cut(peer)), "what is held for a moment gives way to nobody");
        drop((charges, local, other));
        assert_eq!((held(), network_bytes(&budget), peers[0].seat.activity.progress()), (0, 0, None));
        assert!(Charge::new(&peers[2]).grow(PEER_BYTES_MAX as usize), "the source has given it back");
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_held_bytes_give_way_and_the_networks_need_cuts_no_local_client() {
        let figures = Arc::<Figures>::default();
        let budget = Budget::new(Arc::clone(&figures));
        let held = || figures.held(Place::Bytes).load(Ordering::Relaxed);
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
        assert_eq!(
            (held(), network[0].seat.activity.progress()),
            (BYTES_MAX - part as u64, None),
            "all of its bytes give way"
        );
        assert!(take(&newcomer), "and there is room for two");
        assert!(take(&second) && is_cut(&network[1]) && !is_cut(&network[2]));
        // A local client may have what any other holds.
        let other = Peer::of_test(&budget, Source::User(8));
        assert!(take(&other) && take(&other) && is_cut(&local) && !is_cut(&network[2]));
        // What gave way is not given back a second time.
        drop(kept);
        assert_eq!((held(), network_bytes(&budget), lock(&budget.held).charges.len()), (0, 0, 0));
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
        assert!(charges.len() as u64 >= BYTES_MAX / 8 * 7 / SOURCE_KEPT_BYTES, "their sources fill the house");
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
        assert_eq!((&data[..], peer.seat.activity.progress()), (&b"345"[..], Some(0)));
        drop(data);
        assert_eq!(figures.held(Place::Bytes).load(Ordering::Relaxed), 5);
        drop(sent);
        assert_eq!((figures.held(Place::Bytes).load(Ordering::Relaxed), peer.seat.activity.progress()), (0, None));
    }
}
