//! A task that waits on shared memory: the service's byte on the socket wakes it.
//!
//! Owns: the sessions of the async client. Must not: block a worker for longer than the spin time of the settings.
//! Threads: those of the caller's tokio runtime.

use std::ops::DerefMut;
use std::path::Path;
use std::time::{Duration, Instant};

use shm_layout::Waits;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use super::{Lost, Seat, Session};
use crate::error::{Error, Result};

/// The seat of tasks that share a session.
#[derive(Default)]
pub(crate) struct Task(Mutex<Option<Link>>);

/// A session, with its socket registered in the tokio runtime.
pub(crate) struct Link {
    session: Session,
    socket: UnixStream,
}

impl AsMut<Session> for Link {
    fn as_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Seat for Task {
    type Link = Link;

    async fn take(&self, deadline: Instant) -> Result<impl DerefMut<Target = Option<Link>>> {
        timeout_at(deadline.into(), self.0.lock()).await.map_err(|_| Error::deadline())
    }

    async fn connect(path: &Path, spin: Duration, deadline: Instant) -> Result<Link> {
        let path = path.to_owned();
        let session = tokio::task::spawn_blocking(move || Session::connect(&path, spin, deadline)).await;
        let session = session.map_err(|_| Error::failed("connecting panicked"))??;
        let socket = session.socket.try_clone().and_then(UnixStream::from_std);
        let socket = socket.map_err(|error| Error::failed(format!("cannot watch a session: {error}")))?;
        Ok(Link { session, socket })
    }

    async fn sleep(Link { session, socket }: &mut Link, deadline: Instant) -> Result<(), Lost> {
        while !session.wait(Waits::Socket) {
            let Ok(_ready) = timeout_at(deadline.into(), socket.readable()).await else { return Err(Lost::Late) };
            // Reads the wake-up bytes. The service has closed the socket if there is no byte, and no more to come.
            let is_ended = match socket.try_read(&mut [0; 64]) {
                Ok(bytes) => bytes == 0,
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            };
            if is_ended && !session.answered() {
                return Err(Lost::Gone);
            }
        }
        Ok(())
    }

    async fn pause(time: Duration) {
        tokio::time::sleep(time).await;
    }
}
