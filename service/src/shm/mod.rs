//! Lookups over shared memory: one `shm-lookup` OS thread that answers inline, with readers of its own.
//!
//! Owns: the socket that clients come to, their sessions, when the thread spins and when it sleeps, and who has his turn.
//! Must not: trust what a client wrote, wait for one, or do more for one than the work of a turn. Thread: [`ShmServer`] is
//! a handle; everything else is on `shm-lookup`.
//!
//! A turn answers a get of each session that asks, then one piece of one batch. What it costs: after an answer the thread
//! looks for the next request for [`SPIN`], so that a client that asks again at once finds it awake. Asked more often than
//! that it keeps a core busy; asked rarely it takes [`SPIN`] and a wake-up a request; without clients it sleeps and takes
//! nothing.

mod bells;
mod discard;
mod session;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use engine_latency::Measured;
use proto::shm::{hello, sleep_fence};
use rustix::net::sockopt::socket_peercred;

use crate::lookups::IDLE_REFRESH;
use crate::pulse::Pulse;
use crate::reading::{BatchReading, PIECE_KEYS, Reading};
use crate::rpc::uds::{self, SocketAccess, SocketFile};
use crate::status::Shared;
use crate::stop;
use bells::Bells;
use discard::Discard;
use session::{Scratch, Served, Session};

/// Clients at a time. Each may cause 0.6 MiB of memory when it asks for the largest batches, 40 MiB in all, and costs
/// the spinning thread one look at a cache line a round.
pub const SESSIONS_MAX: usize = 64;

/// Of these one user may have so many, as over the Unix socket: the other half is everybody else's.
pub const SESSIONS_PER_USER: usize = SESSIONS_MAX / 2;

/// Refused clients are told of in the log this often at most: one that comes again and again must not fill it.
const REFUSED_EVERY: Duration = Duration::from_secs(10);

/// How long the thread looks for another request before it sleeps: a few times what waking it up takes (5 to 20 us),
/// which is what a client that comes back within it is spared.
pub const SPIN: Duration = Duration::from_micros(50);

/// How often a busy thread looks after those who come and go: a system call that no request should wait for often.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// After an accept that failed, most likely for want of descriptors, nobody is accepted for this long: the socket
/// would be ready at once again.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Clients that are let in during one look around, so that one that comes and goes without end does not hold up others.
const ACCEPTS_A_LOOK: usize = 4;

/// The source under which lookups are recorded.
const SOURCE: &str = "shm";

/// The running thread. Dropping it does not stop it; see [`ShmServer::join`].
pub struct ShmServer {
    stop: Arc<AtomicBool>,
    doorbell: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

/// Wakes the thread from any other.
#[derive(Clone)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// The thread looks around once.
    pub fn ring(&self) {
        bells::ring_own(&self.0);
    }
}

impl ShmServer {
    /// Binds `path` and starts the thread. `label` is the engine's, `feed` the ring of changes for clients to read. Who
    /// may not connect by `access` gets no memory.
    ///
    /// # Errors
    /// Something listens at `path`, the file is not a socket, or the system refuses.
    pub fn start(
        path: &Path,
        access: &SocketAccess,
        engine: Arc<Measured>,
        shared: Arc<Shared>,
        label: &'static str,
        feed: Option<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let (listener, file) = uds::bind(path, access)?;
        let doorbell = Arc::new(bells::bell().context("cannot make an eventfd")?);
        let bells = Bells::new(&doorbell, &listener).context("cannot watch the shared-memory socket")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let pulse = shared.pulses.add("shm-lookup");
        let run = move || {
            let _file: SocketFile = file;
            let mut server = Server::new(listener, bells, &engine, &shared, label, feed);
            server.run(&stopped, &pulse);
        };
        let thread = std::thread::Builder::new()
            .name("shm-lookup".to_owned())
            .spawn(run)
            .context("cannot start the shared-memory thread")?;
        Ok(Self { stop, doorbell, thread })
    }

    /// What wakes the thread.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell(Arc::clone(&self.doorbell))
    }

    /// Ends the thread and waits until `deadline`. Clients see their socket end; after it no reader holds the engine any
    /// more, unless the thread did not end.
    ///
    /// # Errors
    /// The thread has not ended.
    pub fn join(self, deadline: Instant) -> Result<(), stop::Stuck> {
        // ORDERING: Release pairs with the Acquire in `run`: the flag is seen by whoever the doorbell wakes.
        self.stop.store(true, Ordering::Release);
        bells::ring_own(&self.doorbell);
        stop::join_all([self.thread], deadline)
    }
}

struct Server<'e> {
    listener: UnixListener,
    bells: Bells,
    shared: &'e Shared,
    label: &'static str,
    feed: Option<OwnedFd>,
    sessions: Vec<Session>,
    /// The id of the next session.
    next_id: u64,
    scratch: Scratch,
    /// The reader of gets, and of batches that are one piece.
    reading: Reading<'e>,
    /// The reader of longer batches, one at a time.
    batches: BatchReading<'e>,
    /// The session whose long batch is under way.
    under_way: Option<u64>,
    /// Sessions whose batch is not answered.
    waiting: usize,
    /// The place in `sessions` where the search for the next piece begins.
    turn: usize,
    discard: Discard,
    /// When a refusal was told of last, and those since then.
    refused: Option<Instant>,
    refused_since: u64,
    /// Nobody is accepted before, after a failure.
    accept_at: Option<Instant>,
    /// When the readers were moved last, though nobody may have asked them.
    refreshed: Instant,
}

impl<'e> Server<'e> {
    fn new(
        listener: UnixListener,
        bells: Bells,
        engine: &'e Measured,
        shared: &'e Shared,
        label: &'static str,
        feed: Option<OwnedFd>,
    ) -> Self {
        Self {
            listener,
            bells,
            shared,
            label,
            feed,
            sessions: Vec::new(),
            next_id: 0,
            scratch: Scratch::default(),
            reading: Reading::new(engine, shared, SOURCE),
            batches: BatchReading::new(engine, shared, SOURCE),
            under_way: None,
            waiting: 0,
            turn: 0,
            discard: Discard::default(),
            refused: None,
            refused_since: 0,
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

    /// A turn: the gets that are asked right now, and a piece of a batch. True when there was anything.
    fn serve(&mut self) -> bool {
        let mut any = false;
        for session in &mut self.sessions {
            match session.serve(&mut self.reading, &mut self.scratch, self.shared, self.label) {
                Served::Nothing => {}
                Served::Answered => any = true,
                Served::Batch => self.waiting += 1,
            }
        }
        any | self.piece()
    }

    /// A piece of the batch of the session whose turn it is. A batch of one piece has its turn also while a longer one of
    /// another session is under way; two long ones come one after the other. True when there was one.
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
                session.serve_short_batch(&mut self.reading, &mut self.scratch, self.shared);
                true
            } else if own || self.under_way.is_none() {
                let begun = own || session.begin_batch(&mut self.batches);
                let answered = !begun || session.piece_of_batch(&mut self.batches, self.shared);
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

    /// Waits for a ring, someone new, someone's end, or until the readers have to move on.
    fn sleep(&mut self) {
        self.sessions.iter().for_each(|session| session.segment().fall_asleep());
        sleep_fence();
        if !self.sessions.iter().any(Session::asked) {
            self.look_around((!self.sessions.is_empty()).then_some(IDLE_REFRESH));
        }
        self.sessions.iter().for_each(|session| session.segment().wake_up());
    }

    /// Sees to those who come and go, waiting for something to happen for at most `timeout`.
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
        // By the clock, because a client that rings or asks for the status without end asks no reader.
        if self.refreshed.elapsed() >= IDLE_REFRESH {
            self.reading.refresh_idle();
            self.batches.refresh_idle();
            self.refreshed = Instant::now();
        }
    }

    /// Ends the sessions of clients that are gone. Without any the readers are closed: nobody must keep a snapshot for
    /// nothing.
    fn part(&mut self, gone: &[u64]) {
        let bells = &self.bells;
        self.sessions.retain(|session| {
            let stays = !gone.contains(&session.id());
            if !stays {
                bells.remove(session);
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
            match self.listener.accept() {
                Ok((socket, _)) => self.welcome(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, pause_s = ACCEPT_PAUSE.as_secs(), "cannot accept a shared-memory client");
                    self.pause();
                    break;
                }
            }
        }
        self.count_sessions(self.sessions.len());
    }

    fn welcome(&mut self, socket: UnixStream) {
        match session::deafen(&socket) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("a shared-memory client is refused: it sends, which no client does");
                self.discard.put(socket);
                return self.pause();
            }
            Err(error) => return tracing::debug!(%error, "a shared-memory client is gone already"),
        }
        let user = socket_peercred(&socket).map_or(u32::MAX, |peer| peer.uid.as_raw());
        if let Some(full) = full(self.sessions.iter().map(Session::user), user) {
            self.tell_refused(user, full);
            return session::refuse(socket.as_fd(), hello::FULL);
        }
        let started = Session::start(self.next_id, user, socket, self.feed.as_ref())
            .and_then(|session| self.bells.add(&session).map(|()| session));
        match started {
            Ok(session) => self.sessions.push(session),
            Err(error) => tracing::warn!(%error, "cannot start a shared-memory session"),
        }
        self.next_id += 1;
    }

    fn tell_refused(&mut self, user: u32, Full { whose, max }: Full) {
        self.refused_since += 1;
        if self.refused.is_none_or(|at| at.elapsed() >= REFUSED_EVERY) {
            self.refused = Some(Instant::now());
            let refused = std::mem::take(&mut self.refused_since);
            tracing::warn!(user, max, refused, "shared-memory clients are refused: too many{whose}");
        }
    }

    fn pause(&mut self) {
        self.bells.listen(&self.listener, false);
        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn count_sessions(&self, sessions: usize) {
        // ORDERING: Relaxed: a statistic.
        self.shared.shm_sessions.store(sessions as u64, Ordering::Relaxed);
    }
}

/// Why there is no room for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    whose: &'static str,
    max: usize,
}

/// Whether a client of `user` finds no room beside those of `users`.
fn full(users: impl ExactSizeIterator<Item = u32>, user: u32) -> Option<Full> {
    if users.len() >= SESSIONS_MAX {
        return Some(Full { whose: "", max: SESSIONS_MAX });
    }
    let own = users.filter(|other| *other == user).count();
    (own >= SESSIONS_PER_USER).then_some(Full { whose: " of this user", max: SESSIONS_PER_USER })
}

#[cfg(test)]
mod tests;
