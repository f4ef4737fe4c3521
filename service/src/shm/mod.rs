//! Lookups over shared memory: one `shm-lookup` OS thread that answers inline, with its own reader.
//!
//! Owns: the socket that clients come to, their sessions, when the thread spins and when it sleeps. Must not: trust
//! what a client wrote, or wait for one. Thread: [`ShmServer`] is a handle; everything else is on `shm-lookup`.
//!
//! What it costs: after an answer the thread looks for the next request for [`SPIN`], so that a client that asks again
//! at once finds it awake. Asked more often than that it keeps a core busy; asked rarely it takes [`SPIN`] and a
//! wake-up a request; without clients it sleeps in one poll(2) and takes nothing.

mod session;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use engine_latency::Measured;
use proto::shm::{hello, sleep_fence};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::lookups::IDLE_REFRESH;
use crate::pulse::Pulse;
use crate::reading::Reading;
use crate::rpc::uds::{self, SocketFile};
use crate::status::Shared;
use session::{Scratch, Session};

/// Clients at a time. Each may cause 0.6 MiB of memory when it asks for the largest batches, 40 MiB in all, and costs
/// the spinning thread one look at a cache line a round.
pub const SESSIONS_MAX: usize = 64;

/// How long the thread looks for another request before it sleeps: a few times what waking it up takes (5 to 20 us),
/// which is what a client that comes back within it is spared.
pub const SPIN: Duration = Duration::from_micros(50);

/// How often a busy thread looks after those who come and go: a system call that no request should wait for often.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// After an accept that failed, most likely for want of descriptors, nobody is accepted for this long: the socket
/// would be ready at once again.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The owner alone may connect, and who cannot connect gets no memory.
const MODE: u32 = 0o600;

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
        session::ring(&self.0);
    }
}

impl ShmServer {
    /// Binds `path` and starts the thread. `label` is the engine's, `feed` the ring of changes for clients to read.
    ///
    /// # Errors
    /// Something listens at `path`, the file is not a socket, or the system refuses.
    pub fn start(
        path: &Path,
        engine: Arc<Measured>,
        shared: Arc<Shared>,
        label: &'static str,
        feed: Option<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let (listener, file) = uds::bind(path, MODE)?;
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("cannot make an eventfd")?;
        let (stop, doorbell) = (Arc::new(AtomicBool::new(false)), Arc::new(doorbell));
        let (stopped, own) = (Arc::clone(&stop), Arc::clone(&doorbell));
        let pulse = shared.pulses.add("shm-lookup");
        let run = move || {
            let _file: SocketFile = file;
            let reading = Reading::new(&engine, &shared, SOURCE);
            let (sessions, scratch) = (Vec::new(), Scratch::default());
            Server {
                listener,
                doorbell: &own,
                stop: &stopped,
                shared: &shared,
                label,
                feed,
                sessions,
                scratch,
                reading,
                accept_at: None,
                pulse,
            }
            .run();
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

    /// Ends the thread and waits. Clients see their socket end; after it no reader holds the engine any more.
    pub fn join(self) {
        // ORDERING: Release pairs with the Acquire in `run`: the flag is seen by whoever the doorbell wakes.
        self.stop.store(true, Ordering::Release);
        session::ring(&self.doorbell);
        if self.thread.join().is_err() {
            tracing::error!("the shm-lookup thread panicked");
        }
    }
}

struct Server<'e> {
    listener: UnixListener,
    doorbell: &'e OwnedFd,
    stop: &'e AtomicBool,
    shared: &'e Shared,
    label: &'static str,
    feed: Option<OwnedFd>,
    sessions: Vec<Session>,
    scratch: Scratch,
    reading: Reading<'e>,
    /// Nobody is accepted before, after a failure.
    accept_at: Option<Instant>,
    pulse: Pulse,
}

impl Server<'_> {
    fn run(&mut self) {
        let mut now = Instant::now();
        let (mut answered, mut looked) = (now, now);
        // ORDERING: Acquire: see `join`.
        while !self.stop.load(Ordering::Acquire) {
            if self.serve() {
                now = Instant::now();
                answered = now;
            } else {
                std::hint::spin_loop();
                now = Instant::now();
            }
            if now.duration_since(answered) > SPIN {
                self.pulse.beat();
                if self.sleep() {
                    answered = Instant::now();
                }
                looked = Instant::now();
            } else if now.duration_since(looked) > LOOK_AROUND {
                self.pulse.beat();
                self.look_around(Some(Duration::ZERO));
                looked = Instant::now();
            }
        }
        self.count_sessions(0);
    }

    /// Answers what is asked right now. True when something was.
    fn serve(&mut self) -> bool {
        let mut any = false;
        for session in &mut self.sessions {
            any |= session.serve(&mut self.reading, &mut self.scratch, self.shared, self.label);
        }
        any
    }

    /// Waits for a ring, someone new, someone's end, or until the reader has to move on. True when a request may be
    /// there.
    fn sleep(&mut self) -> bool {
        self.sessions.iter().for_each(|session| session.segment().fall_asleep());
        sleep_fence();
        let rung = if self.sessions.iter().any(Session::asked) {
            true
        } else {
            let timeout = (!self.sessions.is_empty()).then_some(IDLE_REFRESH);
            let rung = self.look_around(timeout);
            if !rung {
                self.reading.refresh_idle();
            }
            rung
        };
        self.sessions.iter().for_each(|session| session.segment().wake_up());
        rung
    }

    /// Sees to those who come and go, waiting for something to happen for at most `timeout`. True when rung.
    fn look_around(&mut self, timeout: Option<Duration>) -> bool {
        let now = Instant::now();
        let paused = self.accept_at.map(|at| at.saturating_duration_since(now)).filter(|left| !left.is_zero());
        let timeout = match (timeout, paused) {
            (Some(timeout), Some(paused)) => Some(timeout.min(paused)),
            (timeout, paused) => timeout.or(paused),
        };
        let mut fds = Vec::with_capacity(2 + self.sessions.len());
        fds.push(PollFd::new(self.doorbell, PollFlags::IN));
        fds.push(PollFd::new(&self.listener, if paused.is_some() { PollFlags::empty() } else { PollFlags::IN }));
        fds.extend(self.sessions.iter().map(|session| PollFd::new(session.socket(), PollFlags::IN)));
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        // An error is a signal: the caller comes back.
        if poll(&mut fds, timeout.as_ref()).unwrap_or(0) == 0 {
            return false;
        }
        let (rung, come) = (!fds[0].revents().is_empty(), fds[1].revents().contains(PollFlags::IN));
        // A client sends nothing: whatever its socket has to say, it is the end.
        let mut gone: Vec<bool> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if rung {
            session::quiet(self.doorbell);
        }
        if gone.contains(&true) {
            let mut gone = gone.drain(..);
            self.sessions.retain(|_| !gone.next().unwrap_or(false));
            self.left();
        }
        if come {
            self.accept();
        }
        rung
    }

    /// Without clients the reader is closed: nobody must keep a snapshot for nothing.
    fn left(&mut self) {
        if self.sessions.is_empty() {
            self.reading.close();
        }
        self.count_sessions(self.sessions.len());
    }

    fn accept(&mut self) {
        self.accept_at = None;
        loop {
            match self.listener.accept() {
                Ok((socket, _)) if self.sessions.len() >= SESSIONS_MAX => {
                    tracing::warn!(max = SESSIONS_MAX, "a shared-memory client is refused: too many");
                    session::refuse(socket.as_fd(), hello::FULL);
                }
                Ok((socket, _)) => match Session::start(socket, self.doorbell, self.feed.as_ref()) {
                    Ok(session) => self.sessions.push(session),
                    Err(error) => tracing::warn!(%error, "cannot start a shared-memory session"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, pause_s = ACCEPT_PAUSE.as_secs(), "cannot accept a shared-memory client");
                    self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    break;
                }
            }
        }
        self.count_sessions(self.sessions.len());
    }

    fn count_sessions(&self, sessions: usize) {
        // ORDERING: Relaxed: a statistic.
        self.shared.shm_sessions.store(sessions as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
