//! Limit on open connections: which ones give way when there is no room, and the file descriptors that they need.
//!
//! Owns: the places. A connection is a newcomer until its first request is admitted, and settled from then on.
//! Newcomers take only free places: if there is none, the next one evicts the oldest newcomer of the source that has
//! the most newcomers. Connections without a token therefore cannot keep out those with one. Settled connections keep
//! their places; each source has a share of them. Must not: wait; a connection without room is turned away. Threads:
//! the network edge.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine_api::{Code, Error};
use futures::task::AtomicWaker;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::activity::Activity;
use super::figures::{Ending, Figures, Listener};
use super::source::Source;
use crate::base::figure::count;
use crate::base::lock;
use crate::base::setting::settings;

/// One in this many connections is reserved for the Unix sockets, and so is one in this many of whatever else clients
/// share. A peer that takes all it can over the network does not lock out the machine's own processes.
pub(crate) const UDS_SHARE: u32 = 8;

/// One source may have one in this many of the connections, so that it takes several sources to take
/// them all. A machine or proxy does not notice: it needs a handful, because each carries 256 requests at once.
const SOURCE_SHARE: u32 = 4;

/// Smallest share of a source, for a small `max_connections`: one machine may run several programs.
const SOURCE_MIN: u32 = 8;

/// Maximum number of the clients' connections: each can cost 4.5 MiB, so 288 GiB in all.
const CONNECTIONS_MAX: u32 = 65_536;

/// Maximum number of HTTP connections: a handful of scrapers and browsers, and a page of histograms may be a megabyte.
pub(crate) const HTTP_CONNECTIONS_MAX: u32 = 128;

/// Maximum number of HTTP connections of one source: a browser opens six, and each carries one request.
pub(crate) const HTTP_SOURCE_MAX: u32 = 32;

/// File descriptors left to the store, the log and the stream. RocksDB keeps every file of the store open: about one
/// for each 64 MB of it.
const FILES_RESERVE: u64 = 512;

/// A connection without requests, new or under way, is closed after this long. A client of the house opens another one by
/// itself, and a client that is gone frees its place.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// A request that is not answered within this time is given up; streams may last longer. It holds its resources for this
/// long. A client may give a shorter deadline of its own.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

settings! {
    /// The setting of the clients' connections.
    #[derive(Copy)]
    pub struct ConnectionSettings from ConnectionGiven {
        /// Connections for lookups at once, of gRPC, the Redis protocol and http together; for many clients, or for little memory:
        /// each can cost 4.5 MiB. One address may have a quarter of them, and one in 16 may follow the feed [default: 1024]
        #[arg(value_name = "N", value_parser = bootstrap::count::<u32>)]
        #[serde(deserialize_with = "crate::base::setting::count")]
        max_connections: u32 = 1024, within 1..=CONNECTIONS_MAX;
    }
}

/// Limits on the clients' connections and their requests.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections, on all listeners together.
    pub max_connections: u32,
    /// Maximum number of settled connections of one source.
    pub per_source: u32,
    /// A connection without requests ends after this long; zero: never.
    pub idle_timeout: Duration,
    /// A request is given up after this long.
    pub request_timeout: Duration,
}

impl ConnectionLimits {
    /// Returns the limits of a service that takes so many connections.
    pub fn of(max_connections: u32) -> Self {
        let per_source = per_source(max_connections);
        Self { max_connections, per_source, idle_timeout: IDLE_TIMEOUT, request_timeout: REQUEST_TIMEOUT }
    }
}

/// Returns the share of one source: a quarter, or most of few connections.
fn per_source(max_connections: u32) -> u32 {
    (max_connections / SOURCE_SHARE).max(SOURCE_MIN).min(max_connections)
}

/// The room of all clients that make lookups, whichever protocol they speak. Clones share it.
#[derive(Clone, Debug)]
pub struct Room {
    limits: ConnectionLimits,
    rooms: Arc<Rooms>,
}

impl Room {
    pub fn new(limits: ConnectionLimits, figures: &Arc<Figures>) -> Self {
        let max = limits.max_connections;
        Self { limits, rooms: Rooms::new(max, max - max / UDS_SHARE, limits.per_source, figures) }
    }

    pub(crate) fn limits(&self) -> ConnectionLimits {
        self.limits
    }

    /// Returns the limit of one listener.
    pub(crate) fn at(&self, listener: Listener) -> Limit {
        Limit { rooms: Arc::clone(&self.rooms), listener }
    }
}

/// Admits connections of one listener while there is room. Clones share the room.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    rooms: Arc<Rooms>,
    listener: Listener,
}

#[derive(Debug)]
struct Rooms {
    figures: Arc<Figures>,
    max: u32,
    network_max: u32,
    source_max: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of connections that hold a place.
    open: u32,
    /// Number of those that came over the network.
    network: u32,
    settled: HashMap<Source, u32>,
    /// Newcomers by id, so the oldest comes first.
    newcomers: BTreeMap<u64, Arc<Seat>>,
    next_id: u64,
}

/// The limit that a connection met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its source has as many settled connections as it may have.
    Source {
        /// Maximum number of settled connections of one source.
        max: u32,
    },
    /// The connection was evicted or has ended.
    Gone,
}

impl Limit {
    /// Returns the limit of HTTP connections.
    pub(crate) fn http(figures: &Arc<Figures>) -> Self {
        let rooms = Rooms::new(HTTP_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX, HTTP_SOURCE_MAX, figures);
        Self { rooms, listener: Listener::Metrics }
    }

    /// Returns a place for one more connection, held until it is dropped; `None`, counted as a refusal, if there is
    /// none. A connection over the Unix socket is settled at once, because the mode of the socket's file has let it in.
    pub(crate) fn admit(&self, source: Source) -> Option<Admission> {
        let figures = self.rooms.figures.of(self.listener);
        match self.rooms.enter(source, self.listener) {
            Ok(seat) => {
                count(&figures.open, 1);
                Some(Admission { seat })
            }
            Err(ending) => {
                count(&figures.refused, 1);
                self.rooms.figures.ended(ending);
                None
            }
        }
    }
}

impl Rooms {
    fn new(max: u32, network_max: u32, source_max: u32, figures: &Arc<Figures>) -> Arc<Self> {
        let (figures, state) = (Arc::clone(figures), Mutex::default());
        Arc::new(Self { figures, max, network_max, source_max, state })
    }

    fn enter(self: &Arc<Self>, source: Source, listener: Listener) -> Result<Arc<Seat>, Ending> {
        let network = source.is_network();
        let mut state = lock(&self.state);
        if !network && state.settled.get(&source).is_some_and(|settled| *settled >= self.source_max) {
            return Err(Ending::SourceShare);
        }
        let full = state.open >= self.max || (network && state.network >= self.network_max);
        if full && !state.evict(self) {
            return Err(Ending::Full);
        }
        let id = state.next_id;
        let at = AtomicU8::new(if network { NEWCOMER } else { SETTLED });
        let (rooms, evicted, activity) = (Arc::clone(self), AtomicWaker::new(), Activity::default());
        let seat = Arc::new(Seat { rooms, listener, source, id, state: at, evicted, activity });
        state.next_id += 1;
        state.open += 1;
        if network {
            state.network += 1;
            state.newcomers.insert(id, Arc::clone(&seat));
        } else {
            *state.settled.entry(source).or_default() += 1;
        }
        Ok(seat)
    }
}

impl State {
    /// Frees the place of the oldest newcomer of the source that has the most newcomers. Returns false if there is no
    /// newcomer.
    fn evict(&mut self, rooms: &Rooms) -> bool {
        let mut by_source: HashMap<Source, (u32, u64)> = HashMap::new();
        for (id, seat) in &self.newcomers {
            by_source.entry(seat.source).or_insert((0, *id)).0 += 1;
        }
        // Among sources with equally many, the one whose oldest newcomer has waited longest.
        let most = by_source.into_values().max_by_key(|(newcomers, oldest)| (*newcomers, u64::MAX - oldest));
        let Some(seat) = most.and_then(|(_, oldest)| self.newcomers.remove(&oldest)) else { return false };
        self.leave(&seat);
        // ORDERING: Release, and Acquire in the readers: pairs with nothing else; the waker does the waking.
        seat.state.store(EVICTED, Ordering::Release);
        count(&rooms.figures.of(seat.listener).refused, 1);
        rooms.figures.ended(Ending::Newcomer);
        seat.evicted.wake();
        true
    }

    fn leave(&mut self, seat: &Seat) {
        self.open -= 1;
        self.network -= u32::from(seat.source.is_network());
    }
}

/// State of a seat: the connection waits for its first request to be admitted.
const NEWCOMER: u8 = 0;
/// State of a seat: the first request was admitted.
const SETTLED: u8 = 1;
/// State of a seat: another connection has taken the place.
const EVICTED: u8 = 2;
/// State of a seat: the connection has ended.
const GONE: u8 = 3;

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Seat {
    rooms: Arc<Rooms>,
    listener: Listener,
    source: Source,
    id: u64,
    /// Changed only under the lock of the rooms.
    state: AtomicU8,
    evicted: AtomicWaker,
    pub(crate) activity: Activity,
}

impl Seat {
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Returns the listener that accepted the connection.
    pub(crate) fn listener(&self) -> Listener {
        self.listener
    }

    pub(crate) fn figures(&self) -> &Figures {
        &self.rooms.figures
    }

    /// Counts that the service ends the connection, and the reason.
    pub(crate) fn cut(&self, ending: Ending) {
        count(&self.figures().of(self.listener).cut, 1);
        self.figures().ended(ending);
    }

    /// Whether a request of the connection was admitted.
    pub(crate) fn is_settled(&self) -> bool {
        // ORDERING: Acquire: see `State::evict`.
        self.state.load(Ordering::Acquire) == SETTLED
    }

    /// Settles the connection, because a request of it is admitted. Does nothing from the second time on.
    ///
    /// # Errors
    /// The source's share is full, and the connection stays a newcomer; or the connection was evicted or has ended.
    pub(crate) fn settle(&self) -> Result<(), Refused> {
        if self.is_settled() {
            return Ok(());
        }
        let mut state = lock(&self.rooms.state);
        // ORDERING: Relaxed: changed only under this lock.
        match self.state.load(Ordering::Relaxed) {
            NEWCOMER => {}
            SETTLED => return Ok(()),
            _ => return Err(Refused::Gone),
        }
        let max = self.rooms.source_max;
        let settled = state.settled.entry(self.source).or_default();
        if *settled >= max {
            self.rooms.figures.ended(Ending::SourceShare);
            return Err(Refused::Source { max });
        }
        *settled += 1;
        state.newcomers.remove(&self.id);
        // ORDERING: Release: see `State::evict`.
        self.state.store(SETTLED, Ordering::Release);
        Ok(())
    }

    /// Polls until another connection has taken this one's place; pending forever once settled.
    pub(crate) fn poll_evicted(&self, context: &mut TaskContext<'_>) -> Poll<()> {
        if self.is_settled() {
            return Poll::Pending;
        }
        self.evicted.register(context.waker());
        // ORDERING: Acquire: see `State::evict`.
        if self.state.load(Ordering::Acquire) == EVICTED { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// An open connection with its place, which dropping it frees.
#[derive(Debug)]
pub(crate) struct Admission {
    seat: Arc<Seat>,
}

impl Admission {
    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Waits until another connection has taken this one's place.
    pub(crate) async fn evicted(&self) {
        poll_fn(|context| self.seat.poll_evicted(context)).await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let seat = &self.seat;
        let mut state = lock(&seat.rooms.state);
        // ORDERING: Relaxed: changed only under this lock.
        match seat.state.swap(GONE, Ordering::Relaxed) {
            NEWCOMER => {
                state.newcomers.remove(&seat.id);
                state.leave(seat);
            }
            SETTLED => {
                state.leave(seat);
                if let Some(settled) = state.settled.get_mut(&seat.source) {
                    *settled -= 1;
                    if *settled == 0 {
                        state.settled.remove(&seat.source);
                    }
                }
            }
            _ => {}
        }
        drop(state);
        // ORDERING: Relaxed: a statistic; the limit uses the state.
        seat.figures().of(seat.listener).open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Raises the process's soft limit of open files to the hard one. At a soft limit of 1024, which shells set, sockets
/// would leave no descriptors to the engine.
///
/// # Errors
/// The hard limit has no room for `max_connections`.
pub(crate) fn open_files(max_connections: u32) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the limit of open files")?;
    let needed = u64::from(max_connections) + u64::from(HTTP_CONNECTIONS_MAX) + FILES_RESERVE;
    ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= needed),
        Error::wrong(
            Code::OpenFiles,
            format!(
                "max_connections={max_connections} needs more open files than the process may have: needed={needed} \
                 hard_limit={}; give fewer, or raise LimitNOFILE= (systemd) or ulimit -Hn",
                limit.maximum.unwrap_or_default()
            )
        )
    );
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Limit {
        /// Returns the limits of gRPC on TCP and on the Unix socket, which share a room.
        pub(crate) fn grpc(limits: ConnectionLimits, figures: &Arc<Figures>) -> (Self, Self) {
            let room = Room::new(limits, figures);
            (room.at(Listener::GrpcTcp), room.at(Listener::GrpcUds))
        }
    }

    /// Limits that never refuse a connection in a test.
    pub(crate) const ROOMY: ConnectionLimits = ConnectionLimits {
        max_connections: 100,
        per_source: 100,
        idle_timeout: Duration::ZERO,
        request_timeout: Duration::from_secs(60),
    };

    /// Returns source `n` of a network.
    pub(crate) fn source(n: u8) -> Source {
        Source::of([192, 0, 2, n].into())
    }

    fn limits(max_connections: u32, per_source: u32) -> ConnectionLimits {
        ConnectionLimits { max_connections, per_source, ..ROOMY }
    }

    fn evicted(admission: &Admission) -> bool {
        let mut context = TaskContext::from_waker(std::task::Waker::noop());
        admission.seat.poll_evicted(&mut context).is_ready()
    }

    #[test]
    fn the_network_leaves_room_for_the_unix_socket() {
        let figures = Arc::<Figures>::default();
        let (tcp, uds) = Limit::grpc(limits(16, 16), &figures);
        let settled = |limit: &Limit, source| {
            std::iter::from_fn(|| limit.admit(source).inspect(|admission| admission.seat.settle().unwrap()))
                .collect::<Vec<_>>()
        };
        let (network, local) = (settled(&tcp, source(1)), settled(&uds, Source::User(0)));
        assert_eq!((network.len(), local.len()), (14, 2));
        let of = |listener| {
            let figures = figures.of(listener);
            [&figures.open, &figures.refused].map(|figure| figure.load(Ordering::Relaxed))
        };
        assert_eq!((of(Listener::GrpcTcp), of(Listener::GrpcUds)), ([14, 1], [2, 1]));
        drop(network);
        assert_eq!(of(Listener::GrpcTcp), [0, 1]);
        assert!(uds.admit(Source::User(0)).is_some(), "what the network gave back is free for both");
    }

    #[test]
    fn newcomers_give_way_the_oldest_of_the_most_numerous_source_first() {
        let figures = Arc::<Figures>::default();
        let (tcp, uds) = Limit::grpc(limits(16, 16), &figures);
        let honest = tcp.admit(source(1)).unwrap();
        let settled = tcp.admit(source(2)).unwrap();
        settled.seat.settle().unwrap();
        let flood: Vec<_> = (0..100).map(|_| tcp.admit(source(2)).unwrap()).collect();
        let left: Vec<_> = (0..100).filter(|n| !evicted(&flood[*n])).collect();
        assert_eq!(left, (88..100).collect::<Vec<_>>(), "12 of 14 places are left to the flood, its newest ones");
        assert!(!evicted(&honest) && !evicted(&settled));
        honest.seat.settle().unwrap();
        assert_eq!(flood[0].seat.settle(), Err(Refused::Gone));
        let local: Vec<_> = (0..3).map(|_| uds.admit(Source::User(7)).unwrap()).collect();
        assert!(evicted(&flood[88]) && !evicted(&flood[89]), "the third takes a newcomer's place");
        assert_eq!(figures.endings(Ending::Newcomer), 89);
        drop((local, flood));
        let state = lock(&tcp.rooms.state);
        assert_eq!((state.open, state.network, state.newcomers.len(), state.settled.len()), (2, 2, 0, 2));
    }

    #[test]
    fn a_source_has_a_share_of_the_settled_ones() {
        let figures = Arc::<Figures>::default();
        let (tcp, uds) = Limit::grpc(limits(16, 3), &figures);
        let mut of_one: Vec<_> = (0..4).map(|_| tcp.admit(source(1)).unwrap()).collect();
        let settled: Vec<_> = of_one.iter().map(|admission| admission.seat.settle()).collect();
        assert_eq!(settled, [Ok(()), Ok(()), Ok(()), Err(Refused::Source { max: 3 })]);
        tcp.admit(source(2)).unwrap().seat.settle().unwrap();
        drop(of_one.remove(0));
        of_one[2].seat.settle().unwrap();
        let local: Vec<_> = (0..4).filter_map(|_| uds.admit(Source::User(0))).collect();
        assert_eq!((local.len(), figures.endings(Ending::SourceShare)), (3, 2));
        assert_eq!(per_source(1024), 256);
        assert_eq!([1, 8, 16, 100].map(per_source), [1, 8, 8, 25]);
    }
}
