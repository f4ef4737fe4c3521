//! The epoll at which `shm-lookup` sleeps: it watches the service's own doorbell, the listener, and each client's bell
//! and socket.
//!
//! Owns: the set of watched descriptors, and decoding their events. Must not: read or write a descriptor that a client
//! holds as well. The descriptor's flags belong to both sides, so that a client could make such a call block. Thread:
//! `shm-lookup`.
//!
//! Bells are eventfds watched edge-triggered: each write is one event, without reading the counter. A client that fills
//! its counter blocks only itself. A client that rings without end costs one turn an event.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use super::room::SESSIONS_MAX;

/// Maximum number of events in one turn: the listener, the service's own bell, and two descriptors a session.
const EVENTS_MAX: usize = 2 + 2 * SESSIONS_MAX;

const OWN: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// Kinds of a session's descriptors: the lowest bit of an event's data. The other bits are the session's id.
const BELL: u64 = 0;
const SOCKET: u64 = 1;

/// The watched descriptors; see the head of the file.
pub(super) struct Bells {
    epoll: OwnedFd,
}

/// The events of one turn.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Number of bells rung, each counted once. The segments show which sessions have a request.
    pub(super) rings: usize,
    /// Whether a client wants to connect.
    pub(super) come: bool,
    /// Ids of the sessions whose client is gone.
    pub(super) gone: Vec<u64>,
}

/// Creates a bell that nobody has rung.
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

    /// Watches the bell and the socket of session `id`.
    pub(super) fn add(&self, id: u64, bell: &OwnedFd, socket: &UnixStream) -> io::Result<()> {
        let data = |kind| EventData::new_u64(id << 1 | kind);
        epoll::add(&self.epoll, bell, data(BELL), EventFlags::IN | EventFlags::ET)?;
        // The socket's end (EPOLLHUP) is reported without being asked for; no other event matters.
        let watched = epoll::add(&self.epoll, socket, data(SOCKET), EventFlags::empty());
        if watched.is_err() {
            self.remove(bell, socket);
        }
        Ok(watched?)
    }

    /// Stops watching a session. The client may keep its bell forever, and would otherwise continue to ring it here.
    pub(super) fn remove(&self, bell: &OwnedFd, socket: &UnixStream) {
        // An error means that the descriptor was not watched.
        let _unknown = epoll::delete(&self.epoll, bell);
        let _unknown = epoll::delete(&self.epoll, socket);
    }

    /// Turns events of the listener on or off.
    pub(super) fn listen(&self, listener: &UnixListener, listen: bool) {
        let flags = if listen { EventFlags::IN } else { EventFlags::empty() };
        if let Err(error) = epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!(%error, "cannot watch for shared-memory clients");
        }
    }

    /// Waits for events, for at most `timeout`. Returns none if that has passed or a signal came.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Heard {
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let (mut space, mut heard) = ([const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX], Heard::default());
        // An error means a signal: the caller calls again.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) else { return heard };
        for event in events {
            // Copied, because the event is a packed struct.
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

/// Rings the service's own bell, which wakes the thread.
pub(super) fn ring_own(bell: impl AsFd) {
    // The write never blocks, because no client holds this bell. It would fail only after 2^64 rings.
    let _rung = rustix::io::write(bell, &1u64.to_ne_bytes());
}
