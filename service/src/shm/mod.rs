//! Lookups over shared memory: one OS thread `shm-lookup` that answers inline, with its own readers.
//!
//! Owns: the socket that clients connect to, their sessions, the decision to spin or sleep, and the order of turns.
//! Must not: trust data that a client wrote, wait for a client, or do more for one client than the work of a turn.
//! Thread: [`ShmServer`] is a handle; everything else is on `shm-lookup`.
//!
//! A turn answers one get of each session that asks, then one piece of one batch. In a cold store the gets of a turn
//! are looked up together: see `reading`. After an answer the thread spins for [`SPIN`], so that a client that soon
//! asks again finds it awake. If requests come more often than that, the thread keeps a core busy. If they are rare,
//! each costs [`SPIN`] and a wake-up. Without clients the thread sleeps and costs nothing.
//!
//! A turn also lets in at most four clients and looks at each bell once. So a client that asks, rings, or comes and
//! goes without end gets no more than its turn.

mod bells;
mod room;
mod session;
mod state;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use engine_api::Key;
use engine_latency::Measured;
use rustix::net::sockopt::socket_peercred;
use shm_layout::{hello, sleep_fence};

use crate::base::chain::Commitment;
use crate::base::pulse::{Pulse, Pulses};
use crate::base::stop;
use crate::lookups::IDLE_REFRESH;
use crate::net::discard::{Discard, deafen};
use crate::net::socket::SocketAccess;
use crate::net::uds::{SocketFile, UdsListener};
use crate::reading::{BatchReading, PIECE_KEYS, Reading};
use bells::Bells;
use room::{Full, full};
use session::{Asked, Scratch, Served, Session};

pub use state::ShmState;

/// How long the thread spins for another request before it sleeps. This is a few times the duration of a wake-up (5 to
/// 20 us), which a client saves if it comes back in time.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// Interval at which a busy thread checks for new and gone clients. The check is a system call, for which requests
/// should not wait often.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// Pause after a failed accept, most likely for lack of descriptors. Without it the listener would be ready again at
/// once. Nothing that a client sends causes it.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of clients accepted in one check, so that one that connects and disconnects without end does not
/// delay others.
const ACCEPTS_A_LOOK: usize = 4;

/// Source label under which these lookups' latencies are recorded.
const SOURCE: &str = "shm";

/// The running thread. Dropping this does not stop it; see [`ShmServer::join`].
pub struct ShmServer {
    stop: Arc<AtomicBool>,
    doorbell: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

/// A handle that wakes the thread from any other thread.
#[derive(Clone)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Wakes the thread, which then checks its clients once.
    pub fn ring(&self) {
        bells::ring_own(&self.0);
    }
}

impl ShmServer {
    /// Binds `path` and starts the thread. `access` decides who may connect, and `feed` is the ring of changes for
    /// clients to read.
    ///
    /// # Errors
    /// Another process listens at `path`, the file there is not a socket, or the system refuses.
    pub fn start(
        path: &Path,
        access: &SocketAccess,
        engine: Arc<Measured>,
        state: ShmState,
        pulses: &Pulses,
        feed: Option<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let (listener, file) = UdsListener::bind(path, access)?.into_parts();
        let doorbell = Arc::new(bells::bell().context("cannot make an eventfd")?);
        let bells = Bells::new(&doorbell, &listener).context("cannot watch the shared-memory socket")?;
        let discard = Discard::start().context("cannot start the thread that closes shared-memory sockets")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let pulse = pulses.add("shm-lookup");
        let run = move || {
            let _file: SocketFile = file;
            let mut server = Server::new(listener, bells, discard, &engine, &state, feed);
            server.run(&stopped, &pulse);
            server.end();
        };
        let thread = std::thread::Builder::new()
            .name("shm-lookup".to_owned())
            .spawn(run)
            .context("cannot start the shared-memory thread")?;
        Ok(Self { stop, doorbell, thread })
    }

    /// Returns a handle that wakes the thread.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell(Arc::clone(&self.doorbell))
    }

    /// Ends the thread and waits for it until `deadline`. Clients see their socket end. Afterwards no reader holds the
    /// engine, unless the thread did not end.
    ///
    /// # Errors
    /// The thread has not ended by then.
    pub fn join(self, deadline: Instant) -> Result<(), stop::Stuck> {
        // ORDERING: Release pairs with the Acquire in `run`: a thread that the doorbell wakes sees the flag.
        self.stop.store(true, Ordering::Release);
        bells::ring_own(&self.doorbell);
        stop::join_all([self.thread], deadline)
    }
}

struct Server<'e> {
    listener: UnixListener,
    bells: Bells,
    state: &'e ShmState,
    feed: Option<OwnedFd>,
    sessions: Vec<Session>,
    /// Id that the next session gets.
    next_id: u64,
    scratch: Scratch,
    /// Gets that are being looked up together, with the index of their session; empty between two turns.
    taken: Vec<(usize, Key, Asked)>,
    /// The reader for gets, and for batches of one piece.
    reading: Reading<'e>,
    /// The reader for longer batches, one at a time.
    batches: BatchReading<'e>,
    /// Id of the session whose long batch is under way.
    under_way: Option<u64>,
    /// Number of sessions with a batch that is not answered.
    waiting: usize,
    /// Index in `sessions` from which the next piece is searched.
    turn: usize,
    discard: Discard,
    /// Time before which nobody is accepted, after a failure.
    accept_at: Option<Instant>,
    /// Time when the readers were last renewed by the clock.
    refreshed: Instant,
}

impl<'e> Server<'e> {
    fn new(
        listener: UnixListener,
        bells: Bells,
        discard: Discard,
        engine: &'e Measured,
        state: &'e ShmState,
        feed: Option<OwnedFd>,
    ) -> Self {
        Self {
            listener,
            bells,
            state,
            feed,
            sessions: Vec::new(),
            next_id: 0,
            scratch: Scratch::default(),
            taken: Vec::new(),
            reading: Reading::new(engine, &state.lookups, SOURCE),
            batches: BatchReading::new(engine, &state.lookups, SOURCE),
            under_way: None,
            waiting: 0,
            turn: 0,
            discard,
            accept_at: None,
            refreshed: Instant::now(),
        }
    }

    fn run(&mut self, stop: &AtomicBool, pulse: &Pulse) {
        let mut now = Instant::now();
        let (mut answered, mut looked) = (now, now);
        // ORDERING: Acquire: see `join`.
        while !stop.load(Ordering::Acquire) {
            if self.serve() {
                now = Instant::now();
                answered = now;
            } else {
                std::hint::spin_loop();
                now = Instant::now();
            }
            if now.duration_since(answered) > SPIN {
                pulse.beat();
                self.sleep();
                looked = Instant::now();
            } else if now.duration_since(looked) > LOOK_AROUND {
                pulse.beat();
                self.look_around(Some(Duration::ZERO));
                looked = Instant::now();
            }
        }
        self.count_sessions(0);
    }

    /// Ends all sessions. The listener is closed elsewhere: a client that nobody has accepted may have sent data.
    fn end(self) {
        self.discard.put(self.listener);
    }

    /// Runs one turn: answers the gets that are waiting now, and reads a piece of a batch. Returns whether there was
    /// any work.
    fn serve(&mut self) -> bool {
        if self.reading.is_cold() {
            self.take_gets();
        }
        let mut any = self.answer_taken();
        for session in &mut self.sessions {
            match session.serve(&mut self.reading, &mut self.scratch, self.state) {
                Served::Nothing => {}
                Served::Answered => any = true,
                Served::Batch => self.waiting += 1,
            }
        }
        any | self.piece()
    }

    /// Takes the confirmed gets that wait, at most as many as a piece has keys.
    fn take_gets(&mut self) {
        for (at, session) in self.sessions.iter().enumerate() {
            self.taken.extend(session.take_get(&mut self.scratch).map(|(key, asked)| (at, key, asked)));
            if self.taken.len() == PIECE_KEYS {
                break;
            }
        }
    }

    /// Answers the gets that were taken, from one state. If that fails, they wait on and are served one by one, because
    /// one damaged page must not fail the others. Returns whether any was answered.
    fn answer_taken(&mut self) -> bool {
        if self.taken.is_empty() {
            return false;
        }
        let keys: Vec<Key> = self.taken.iter().map(|(_, key, _)| *key).collect();
        let mut values = vec![None; keys.len()];
        let found = self.reading.get_into(&keys, &mut values, Commitment::Confirmed);
        if let Ok(slot) = &found {
            for ((at, _, asked), value) in self.taken.iter().zip(values) {
                self.sessions[*at].give(asked, *slot, &[value], self.reading.spent(), self.state);
            }
        }
        self.taken.clear();
        found.is_ok()
    }

    /// Reads a piece of the batch of the session whose turn it is, and returns whether there was one. A batch of one
    /// piece gets its turn even while a longer one of another session is under way. Two long batches run one after the
    /// other.
    fn piece(&mut self) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let sessions = self.sessions.len();
        for at in (self.turn..sessions).chain(0..self.turn.min(sessions)) {
            let session = &mut self.sessions[at];
            let Some(keys) = session.batch_keys() else { continue };
            let own = self.under_way == Some(session.id());
            let answered = if keys <= PIECE_KEYS {
                session.serve_short_batch(&mut self.reading, &mut self.scratch, self.state);
                true
            } else if own || self.under_way.is_none() {
                let begun = own || session.begin_batch(&mut self.batches);
                let answered = !begun || session.piece_of_batch(&mut self.batches, self.state);
                self.under_way = (!answered).then_some(session.id());
                answered
            } else {
                continue;
            };
            self.waiting -= usize::from(answered);
            self.turn = at + 1;
            return true;
        }
        false
    }

    /// Sleeps until a bell, a new client, a client's end, or the time to renew the readers.
    fn sleep(&mut self) {
        self.sessions.iter().for_each(|session| session.segment().fall_asleep());
        sleep_fence();
        if !self.sessions.iter().any(Session::asked) {
            self.look_around((!self.sessions.is_empty()).then_some(IDLE_REFRESH));
        }
        self.sessions.iter().for_each(|session| session.segment().wake_up());
    }

    /// Handles new and gone clients, after waiting for an event for at most `timeout`.
    fn look_around(&mut self, timeout: Option<Duration>) {
        let paused = self.accept_at.map(|at| at.saturating_duration_since(Instant::now()));
        if paused.is_some_and(|left| left.is_zero()) {
            self.accept_at = None;
            self.bells.listen(&self.listener, true);
        }
        let paused = self.accept_at.and(paused);
        let heard = self.bells.wait(match (timeout, paused) {
            (Some(timeout), Some(paused)) => Some(timeout.min(paused)),
            (timeout, paused) => timeout.or(paused),
        });
        if !heard.gone.is_empty() {
            self.part(&heard.gone);
        }
        if heard.come {
            self.accept();
        }
        // By the clock, because a client that rings, or asks for the status without end, uses no reader.
        if !self.sessions.is_empty() && self.refreshed.elapsed() >= IDLE_REFRESH {
            self.reading.refresh_idle();
            self.batches.refresh_idle();
            self.refreshed = Instant::now();
        }
    }

    /// Ends the sessions of clients that are gone. Without sessions the readers are closed, so that they do not keep a
    /// view of the store for nothing.
    fn part(&mut self, gone: &[u64]) {
        let bells = &self.bells;
        self.sessions.retain(|session| {
            let stays = !gone.contains(&session.id());
            if !stays {
                bells.remove(session.bell(), session.socket());
            }
            stays
        });
        if self.under_way.is_some_and(|session| gone.contains(&session)) {
            self.under_way = None;
            self.batches.abandon();
        }
        self.waiting = self.sessions.iter().filter(|session| session.batch_keys().is_some()).count();
        if self.sessions.is_empty() {
            self.reading.close();
            self.batches.close();
        }
        self.count_sessions(self.sessions.len());
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_LOOK {
            if !self.discard.has_room() {
                return self.pause(LOOK_AROUND);
            }
            match self.listener.accept() {
                Ok((socket, _)) => self.welcome(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, pause_s = ACCEPT_PAUSE.as_secs(), "cannot accept a shared-memory client");
                    self.pause(ACCEPT_PAUSE);
                    break;
                }
            }
        }
        self.count_sessions(self.sessions.len());
    }

    fn welcome(&mut self, socket: UnixStream) {
        match deafen(&socket) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("a shared-memory client is refused: it sent data, which no correct client does");
                return self.discard.put(socket);
            }
            Err(error) => {
                tracing::debug!(%error, "a shared-memory client is gone already");
                return self.discard.put(socket);
            }
        }
        let user = socket_peercred(&socket).map_or(u32::MAX, |peer| peer.uid.as_raw());
        if let Some(Full { whose, max }) = full(self.sessions.iter().map(Session::user), user) {
            tracing::warn!(user, max, "a shared-memory client is refused: too many{whose}");
            return session::refuse(socket.as_fd(), hello::FULL);
        }
        let started = Session::start(self.next_id, user, socket, self.feed.as_ref())
            .and_then(|session| self.bells.add(session.id(), session.bell(), session.socket()).map(|()| session));
        match started {
            Ok(session) => self.sessions.push(session),
            Err(error) => tracing::warn!(%error, "cannot start a shared-memory session"),
        }
        self.next_id += 1;
    }

    fn pause(&mut self, pause: Duration) {
        self.bells.listen(&self.listener, false);
        self.accept_at = Some(Instant::now() + pause);
    }

    fn count_sessions(&self, sessions: usize) {
        // ORDERING: Relaxed: a statistic.
        self.state.sessions.store(sessions as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
