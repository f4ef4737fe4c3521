//! What `shm-lookup` sleeps at: one epoll for the service's own doorbell, the listener, and bell and socket of each client.
//!
//! Owns: who is watched, and what a turn of events says. Must not: read or write a descriptor that a client holds as well:
//! its flags belong to both, so that a client could make such a call block. Thread: `shm-lookup`.
//!
//! Bells are eventfds that are watched for edges: each write is one event, without anybody reading the counter. A client
//! that fills its counter blocks itself. One that rings without end costs a turn an event, whatever it writes meanwhile.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use super::SESSIONS_MAX;
use super::session::Session;

/// The listener, two descriptors a session, and the service's own bell: all that can happen in one turn.
const EVENTS_MAX: usize = 2 + 2 * SESSIONS_MAX;

const OWN: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// The lowest bit of an event says which of a session's descriptors it is about; the others are the session's id.
const BELL: u64 = 0;
const SOCKET: u64 = 1;

/// See the head of the file.
pub(super) struct Bells {
    epoll: OwnedFd,
}

/// What a turn of events said.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Bells of sessions that were rung, each once; who asks for what is found in the segments.
    pub(super) rings: usize,
    /// Somebody wants a session.
    pub(super) come: bool,
    /// Sessions whose client is gone.
    pub(super) gone: Vec<u64>,
}

/// A bell that nobody has rung.
pub(super) fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

impl Bells {
    /// Watches `own`, which no client ever holds, and `listener`.
    pub(super) fn new(own: &OwnedFd, listener: &UnixListener) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, own, EventData::new_u64(OWN), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Self { epoll })
    }

    /// Watches a session.
    pub(super) fn add(&self, session: &Session) -> io::Result<()> {
        let data = |kind| EventData::new_u64(session.id() << 1 | kind);
        epoll::add(&self.epoll, session.bell(), data(BELL), EventFlags::IN | EventFlags::ET)?;
        // Its end is told without being asked for; there is nothing else to hear.
        let watched = epoll::add(&self.epoll, session.socket(), data(SOCKET), EventFlags::empty());
        if watched.is_err() {
            self.remove(session);
        }
        Ok(watched?)
    }

    /// Forgets a session. The client may hold its bell for ever, and what it holds would go on ringing here.
    pub(super) fn remove(&self, session: &Session) {
        // An error says that it was not watched.
        let _unknown = epoll::delete(&self.epoll, session.bell());
        let _unknown = epoll::delete(&self.epoll, session.socket());
    }

    /// Whether those who come are told.
    pub(super) fn listen(&self, listener: &UnixListener, listen: bool) {
        let flags = if listen { EventFlags::IN } else { EventFlags::empty() };
        if let Err(error) = epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!(%error, "cannot watch for shared-memory clients");
        }
    }

    /// Waits for an event, for at most `timeout`; nothing was heard when that has passed or a signal came.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Heard {
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let (mut space, mut heard) = ([const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX], Heard::default());
        // An error is a signal: the caller comes back.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) else { return heard };
        for event in events {
            // A copy: the event is packed.
            let data = event.data;
            match data.u64() {
                OWN => {}
                LISTENER => heard.come = true,
                session if session & 1 == SOCKET => heard.gone.push(session >> 1),
                _bell => heard.rings += 1,
            }
        }
        heard
    }
}

/// Rings the service's own bell.
pub(super) fn ring_own(bell: impl AsFd) {
    // Nobody else holds it, so that it blocks never; it fails after 2^64 rings.
    let _rung = rustix::io::write(bell, &1u64.to_ne_bytes());
}
