//! The async client.
//!
//! Owns: the choice of a call's transport, and the async waits on shared memory. Must not: block a worker for longer
//! than the spin time of the settings. Threads: those of the caller's tokio runtime.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proto::v1::GET_MANY_KEYS_MAX;
use shm_layout::{Request, Response, Waits};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::{Filter, Start, Subscription};
use crate::grpc::{Grpc, Read};
use crate::settings::Settings;
use crate::shm::{self, Attempts, Lost, SLOT_PAUSE, Session};
use crate::{Answer, Key, ReadOptions, StatusResponse, Value};

/// An async client; clones share its connection. Over gRPC its calls run concurrently. Over shared memory they run one
/// after another: connect more clients to have more requests under way.
#[derive(Clone)]
pub struct Client {
    deadline: Duration,
    transport: Transport,
}

#[derive(Clone)]
enum Transport {
    Grpc(Arc<Grpc>),
    Shm(Arc<Shm>),
}

struct Shm {
    path: PathBuf,
    spin: Duration,
    link: Mutex<Option<Link>>,
}

/// A session, with its socket registered in the tokio runtime.
struct Link {
    session: Session,
    socket: UnixStream,
}

impl Client {
    /// Connects to `address` with the default settings; see [`Address`] and [`Builder`](crate::Builder).
    ///
    /// # Errors
    /// As [`Builder::connect`](crate::Builder::connect), and an address of no known form.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::start(Settings::new(address)?).await
    }

    pub(crate) async fn start(settings: Settings) -> Result<Self> {
        settings.check()?;
        let deadline = settings.deadline;
        let transport = match &settings.address {
            Address::Shm(path) => {
                let link = Link::connect(path.clone(), settings.spin, Instant::now() + deadline).await?;
                let shm = Shm { path: path.clone(), spin: settings.spin, link: Mutex::new(Some(link)) };
                Transport::Shm(Arc::new(shm))
            }
            Address::Unix(_) | Address::Tcp(_) => Transport::Grpc(Arc::new(Grpc::connect(settings).await?)),
        };
        Ok(Self { deadline, transport })
    }

    /// Returns the value of one key.
    ///
    /// # Errors
    /// Any of [`ErrorKind`], except those of a feed.
    pub async fn get(&self, key: &Key) -> Result<Answer<Option<Value>>> {
        self.get_with(key, ReadOptions::default()).await
    }

    /// Returns the value of one key, read with `options`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_with(&self, key: &Key, options: ReadOptions) -> Result<Answer<Option<Value>>> {
        let read = self.read(options);
        match &self.transport {
            Transport::Grpc(grpc) => grpc.get(key, read).await,
            Transport::Shm(shm) => {
                let request = shm::get(1, read.commitment, read.min_context_slot);
                let take = |session: &Session, response: &Response| {
                    Ok(Answer { value: session.value(), slot: shm::slot(response) })
                };
                shm.call(&request, std::slice::from_ref(key), read.deadline, take).await
            }
        }
    }

    /// Returns the values of any number of keys, in their order. More than 10,000 keys take several requests, each from
    /// a snapshot of its own.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_many(&self, keys: &[Key]) -> Result<Answer<Vec<Option<Value>>>> {
        self.get_many_with(keys, ReadOptions::default()).await
    }

    /// Returns the values of any number of keys as [`Client::get_many`] does, read with `options`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_many_with(&self, keys: &[Key], options: ReadOptions) -> Result<Answer<Vec<Option<Value>>>> {
        let read = self.read(options);
        let shm = match &self.transport {
            Transport::Grpc(grpc) => return grpc.get_many(keys, read).await,
            Transport::Shm(shm) => shm,
        };
        let (mut all, mut rest, mut oldest) = (shm::nothing(keys.len()), keys, None::<Option<u64>>);
        loop {
            let (batch, more) = rest.split_at(rest.len().min(GET_MANY_KEYS_MAX));
            let request = shm::get(batch.len(), read.commitment, read.min_context_slot);
            let take = |session: &Session, response: &Response| {
                session.values(response, &mut all.value);
                Ok(shm::slot(response))
            };
            let slot = shm.call(&request, batch, read.deadline, take).await?;
            oldest = Some(oldest.map_or(slot, |oldest| oldest.min(slot)));
            if more.is_empty() {
                all.slot = oldest.flatten();
                return Ok(all);
            }
            rest = more;
        }
    }

    /// Returns the service's account of itself: engine, number of pairs, checkpoint, lag, readiness.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn status(&self) -> Result<StatusResponse> {
        let deadline = Instant::now() + self.deadline;
        match &self.transport {
            Transport::Grpc(grpc) => grpc.status(deadline).await,
            Transport::Shm(shm) => shm.call(&shm::status_request(), &[], deadline, Session::status).await,
        }
    }

    /// Follows the changes of the map from `start` that pass `filter`. Nothing is sent before the first
    /// [`Subscription::next`].
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] over shared memory, where only [`crate::blocking::Client::subscribe`] serves a feed.
    pub fn subscribe(&self, start: Start, filter: Filter) -> Result<Subscription> {
        match &self.transport {
            Transport::Grpc(grpc) => Ok(Subscription::new(Arc::clone(grpc), start, filter)),
            Transport::Shm(_) => {
                let way = "use blocking::Client, or connect to unix:///PATH or http://HOST:PORT";
                Err(Error::new(ErrorKind::Refused, format!("no async feed over shared memory: {way}")))
            }
        }
    }

    fn read(&self, options: ReadOptions) -> Read {
        Read {
            commitment: options.commitment,
            min_context_slot: options.min_context_slot,
            deadline: Instant::now() + options.deadline.unwrap_or(self.deadline),
        }
    }
}

impl Link {
    async fn connect(path: PathBuf, spin: Duration, deadline: Instant) -> Result<Self> {
        let session = tokio::task::spawn_blocking(move || Session::connect(&path, spin, deadline.into_std()));
        let session = session.await.map_err(|_| Error::failed("connecting panicked"))??;
        let watch = || UnixStream::from_std(session.socket.try_clone()?);
        let socket =
            watch().map_err(|error: std::io::Error| Error::failed(format!("cannot watch a session: {error}")))?;
        Ok(Self { session, socket })
    }

    async fn exchange(&mut self, request: &Request, keys: &[Key], deadline: Instant) -> Result<(), Lost> {
        // A call that gave up or was dropped may have left its request in the segment: wait until it is answered.
        self.wait(deadline).await?;
        self.session.send(*request, keys);
        self.wait(deadline).await
    }

    /// Waits until the newest request is answered. It polls first where that helps, then waits as a task that the
    /// socket wakes.
    async fn wait(&mut self, deadline: Instant) -> Result<(), Lost> {
        if self.session.answered() {
            return Ok(());
        }
        let spin = self.session.spin.next();
        if let Some(took) = self.session.look(spin) {
            self.session.spin.spun(took);
            return Ok(());
        }
        let started = Instant::now();
        while !self.session.wait(Waits::Socket) {
            tokio::select! {
                _ = self.socket.readable() => {
                    if self.is_ended() && !self.session.answered() {
                        return Err(Lost::Gone);
                    }
                }
                () = tokio::time::sleep_until(deadline) => return Err(Lost::Late),
            }
        }
        self.session.stop_waiting();
        match spin.is_zero() {
            true => self.session.spin.slept(started.elapsed()),
            false => self.session.spin.spun(spin + started.elapsed()),
        }
        Ok(())
    }

    /// Reads the wake-up bytes from the socket. Returns true if the service has closed it.
    fn is_ended(&self) -> bool {
        match self.socket.try_read(&mut [0; 64]) {
            Ok(rings) => rings == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

impl Shm {
    /// Sends a request until it is answered, over a new session if the service went away, as the blocking client does.
    async fn call<T>(
        &self,
        request: &Request,
        keys: &[Key],
        deadline: Instant,
        take: impl FnOnce(&Session, &Response) -> Result<T>,
    ) -> Result<T> {
        let mut attempts = Attempts::new(deadline.into_std());
        loop {
            let Ok(mut link) = tokio::time::timeout_at(deadline, self.link.lock()).await else {
                return Err(Error::deadline());
            };
            let connected = match &mut *link {
                Some(connected) => connected,
                None => match Link::connect(self.path.clone(), self.spin, deadline).await {
                    Ok(connected) => link.insert(connected),
                    Err(error) => {
                        drop(link);
                        tokio::time::sleep(attempts.pause(error)?).await;
                        continue;
                    }
                },
            };
            match connected.exchange(request, keys, deadline).await {
                Ok(()) => match connected.session.outcome(request)? {
                    Some(response) => return take(&connected.session, &response),
                    None => {
                        // Release the session: other calls need not wait for this slot.
                        drop(link);
                        attempts.behind(request.min_context_slot)?;
                        tokio::time::sleep(SLOT_PAUSE).await;
                    }
                },
                Err(lost) => {
                    if matches!(lost, Lost::Gone) {
                        *link = None;
                    }
                    attempts.lost(&lost)?;
                }
            }
        }
    }
}
