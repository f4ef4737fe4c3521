//! The async client.
//!
//! Owns: which transport a call takes, and the async waiting on shared memory. Must not: block a worker beyond the spin
//! that was asked for. Threads: those of the caller's tokio runtime.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proto::shm::{Request, Response};
use proto::v1::GET_MANY_KEYS_MAX;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::address::Address;
use crate::builder::Builder;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::{Filter, Start, Subscription};
use crate::grpc::{Grpc, Read};
use crate::shm::{self, Attempts, Lost, SLOT_PAUSE, Session};
use crate::{Answer, Key, ReadOptions, StatusResponse, Value};

/// A client; clones share its connection. Over gRPC calls go side by side, over shared memory one after another: for
/// more at once connect more clients.
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

/// A session and its two descriptors as tokio knows them.
struct Link {
    session: Session,
    doorbell: AsyncFd<OwnedFd>,
    socket: UnixStream,
}

impl Client {
    /// Connects to `address` with the defaults; see [`Address`] and [`Builder`].
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(address: &str) -> Result<Self> {
        Builder::new(address)?.connect().await
    }

    pub(crate) async fn start(settings: Builder) -> Result<Self> {
        let deadline = settings.deadline;
        let transport = match &settings.address {
            Address::Shm(path) => {
                let link = Link::connect(path.clone(), Instant::now() + deadline).await?;
                let shm = Shm { path: path.clone(), spin: settings.spin, link: Mutex::new(Some(link)) };
                Transport::Shm(Arc::new(shm))
            }
            Address::Unix(_) | Address::Tcp(_) => Transport::Grpc(Arc::new(Grpc::connect(settings).await?)),
        };
        Ok(Self { deadline, transport })
    }

    /// The value of one key.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn get(&self, key: &Key) -> Result<Answer<Option<Value>>> {
        self.get_with(key, ReadOptions::default()).await
    }

    /// The value of one key, read as told.
    ///
    /// # Errors
    /// See [`ErrorKind`].
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

    /// The values of any number of keys, in their order. More than 10,000 are several requests, each from a snapshot of
    /// its own.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn get_many(&self, keys: &[Key]) -> Result<Answer<Vec<Option<Value>>>> {
        self.get_many_with(keys, ReadOptions::default()).await
    }

    /// [`Client::get_many`], read as told.
    ///
    /// # Errors
    /// See [`ErrorKind`].
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

    /// What the service says of itself.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn status(&self) -> Result<StatusResponse> {
        let deadline = Instant::now() + self.deadline;
        match &self.transport {
            Transport::Grpc(grpc) => grpc.status(deadline).await,
            Transport::Shm(shm) => shm.call(&shm::status_request(), &[], deadline, Session::status).await,
        }
    }

    /// Follows the changes of the map from `start`, those that pass `filter`. Nothing is sent before the first
    /// [`Subscription::next`].
    ///
    /// # Errors
    /// Over shared memory, where the feed is for threads: see [`crate::blocking::Client::subscribe`].
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
    async fn connect(path: PathBuf, deadline: Instant) -> Result<Self> {
        let session = tokio::task::spawn_blocking(move || Session::connect(&path, deadline.into_std()));
        let session = session.await.map_err(|_| Error::failed("connecting panicked"))??;
        let watch = || {
            // SAFETY: an OwnedFd owns its descriptor, and nothing replaces or closes it while it is inside.
            let doorbell =
                unsafe { AsyncFd::register_with_interest(session.doorbell.try_clone()?, Interest::READABLE)? };
            Ok((doorbell, UnixStream::from_std(session.socket.try_clone()?)?))
        };
        let (doorbell, socket) =
            watch().map_err(|error: std::io::Error| Error::failed(format!("cannot watch a session: {error}")))?;
        Ok(Self { session, doorbell, socket })
    }

    async fn exchange(
        &mut self,
        request: &Request,
        keys: &[Key],
        spin: Duration,
        deadline: Instant,
    ) -> Result<(), Lost> {
        // A call that gave up or was dropped may have left its request there.
        self.wait(spin, deadline).await?;
        self.session.send(*request, keys);
        self.wait(spin, deadline).await
    }

    /// Until the newest request is answered: spinning first, then as a task that is woken by the ring.
    async fn wait(&mut self, spin: Duration, deadline: Instant) -> Result<(), Lost> {
        if self.session.answered(spin) {
            return Ok(());
        }
        while !self.session.wait() {
            tokio::select! {
                ring = self.doorbell.readable() => {
                    let mut ring = ring.map_err(|_| Lost::Gone)?;
                    self.session.stop_waiting();
                    ring.clear_ready();
                }
                _ = self.socket.readable() => {
                    if !self.session.answered(Duration::ZERO) {
                        return Err(Lost::Gone);
                    }
                }
                () = tokio::time::sleep_until(deadline) => return Err(Lost::Late),
            }
        }
        self.session.stop_waiting();
        Ok(())
    }
}

impl Shm {
    /// As the blocking client's.
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
                None => match Link::connect(self.path.clone(), deadline).await {
                    Ok(connected) => link.insert(connected),
                    Err(error) => {
                        drop(link);
                        tokio::time::sleep(attempts.pause(error)?).await;
                        continue;
                    }
                },
            };
            match connected.exchange(request, keys, self.spin, deadline).await {
                Ok(()) => match connected.session.outcome(request)? {
                    Some(response) => return take(&connected.session, &response),
                    None => {
                        // Others need not wait for this slot.
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
