//! A task that waits on shared memory: the service's byte on the socket wakes it.
//!
//! Owns: the session of the async client. Must not: block a worker for longer than the spin time of the settings.
//! Threads: those of the caller's tokio runtime.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shm_layout::{Response, Waits};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use super::session::Session;
use super::{Call, Lost, Step, add, batches, nothing, one};
use crate::error::{Error, Result};
use crate::{Answer, Builder, Key, Read, Status, Value};

/// The session that tasks share, which is connected again after the service went away.
pub(crate) struct Task {
    path: PathBuf,
    spin: Duration,
    link: Mutex<Option<Link>>,
}

/// A session, with its socket registered in the tokio runtime.
struct Link {
    session: Session,
    socket: UnixStream,
}

impl Task {
    pub(crate) async fn connect(path: &Path, settings: &Builder) -> Result<Self> {
        let link = Link::connect(path.to_owned(), settings.spin, Instant::now() + settings.deadline).await?;
        Ok(Self { path: path.to_owned(), spin: settings.spin, link: Mutex::new(Some(link)) })
    }

    pub(crate) async fn get(&self, key: &Key, read: Read) -> Result<Answer<Option<Value>>> {
        self.call(Call::get(std::slice::from_ref(key), read), one).await
    }

    pub(crate) async fn get_many(&self, keys: &[Key], read: Read) -> Result<Answer<Vec<Option<Value>>>> {
        let mut all = nothing(keys.len());
        for batch in batches(keys) {
            self.call(Call::get(batch, read), |session, response| add(&mut all, session, response)).await?;
        }
        Ok(all)
    }

    pub(crate) async fn status(&self, limit: Duration) -> Result<Status> {
        self.call(Call::status(limit), Session::status).await?
    }

    async fn call<T>(&self, mut call: Call<'_>, take: impl FnOnce(&Session, &Response) -> T) -> Result<T> {
        loop {
            let pause = {
                let locked = timeout_at(call.deadline.into(), self.link.lock()).await;
                let mut link = locked.map_err(|_| Error::deadline())?;
                // The session stays locked from the sending of a request to its answer.
                loop {
                    let step = call.step(link.as_mut().map(|link| &mut link.session))?;
                    match (step, &mut *link) {
                        (Step::Take(response), Some(link)) => return Ok(take(&link.session, &response)),
                        (Step::Sleep, Some(connected)) => {
                            if let Err(lost) = connected.sleep(call.deadline).await {
                                if matches!(lost, Lost::Gone) {
                                    *link = None;
                                }
                                call.lost(&lost)?;
                            }
                        }
                        (Step::Pause(time), _) => break time,
                        // The steps above come only where there is a session.
                        (_, link) => match Link::connect(self.path.clone(), self.spin, call.deadline).await {
                            Ok(connected) => *link = Some(connected),
                            Err(error) => break call.backoff.after(error, call.deadline)?,
                        },
                    }
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

impl Link {
    async fn connect(path: PathBuf, spin: Duration, deadline: Instant) -> Result<Self> {
        let session = tokio::task::spawn_blocking(move || Session::connect(&path, spin, deadline)).await;
        let session = session.map_err(|_| Error::failed("connecting panicked"))??;
        let socket = session.socket.try_clone().and_then(UnixStream::from_std);
        let socket = socket.map_err(|error| Error::failed(format!("cannot watch a session: {error}")))?;
        Ok(Self { session, socket })
    }

    async fn sleep(&mut self, deadline: Instant) -> Result<(), Lost> {
        let Self { session, socket } = self;
        let started = session.begin_sleep();
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
        session.end_sleep(started);
        Ok(())
    }
}
