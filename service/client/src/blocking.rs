//! The client for a thread of its own. Over shared memory it needs no async runtime: a call looks for its answer, then
//! sleeps in futex(2).
//!
//! Owns: the waiting. Threads: the caller's. Over gRPC each client has a small runtime that runs during its calls only;
//! it must not be used from async code.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use proto::shm::{Request, Response, Waits};
use proto::v1::GET_MANY_KEYS_MAX;
use tokio::runtime::Runtime;

use crate::address::Address;
use crate::builder::Builder;
use crate::error::{Error, Result};
use crate::feed::{Dumped, Event, Filter, Start};
use crate::ring::RingSubscription;
use crate::shm::{self, Attempts, Lost, SLOT_PAUSE, Session};
use crate::{Answer, Key, ReadOptions, StatusResponse, Value, nonblocking};

/// How long [`Subscription::next_event`] is silent over shared memory when nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A call that sleeps looks after this time whether the service is still there, then after twice the time, up to
/// [`LOOK_MAX`]: one that was killed wakes nobody. Most answers come sooner.
const LOOK_MIN: Duration = Duration::from_millis(1);

/// See [`LOOK_MIN`].
const LOOK_MAX: Duration = Duration::from_millis(100);

/// A client of one thread.
pub struct Client {
    settings: Builder,
    transport: Transport,
}

enum Transport {
    Shm(Shm),
    Grpc { runtime: Runtime, client: nonblocking::Client },
}

/// A session that is made anew when the service went away.
struct Shm {
    path: PathBuf,
    spin: Duration,
    session: Option<Session>,
}

impl Client {
    /// Connects to `address` with the defaults; see [`Address`] and [`Builder`].
    ///
    /// # Errors
    /// As [`Builder::connect_blocking`].
    pub fn connect(address: &str) -> Result<Self> {
        Builder::new(address)?.connect_blocking()
    }

    pub(crate) fn start(settings: Builder) -> Result<Self> {
        let deadline = settings.deadline;
        let own = settings.clone();
        let transport = match &settings.address {
            Address::Shm(path) => {
                let session = Session::connect(path, settings.spin, Instant::now() + deadline)?;
                Transport::Shm(Shm { path: path.clone(), spin: settings.spin, session: Some(session) })
            }
            Address::Unix(_) | Address::Tcp(_) => {
                let runtime = start_runtime()?;
                let client = runtime.block_on(nonblocking::Client::start(settings))?;
                Transport::Grpc { runtime, client }
            }
        };
        Ok(Self { settings: own, transport })
    }

    /// The value of one key.
    ///
    /// # Errors
    /// See [`crate::ErrorKind`].
    pub fn get(&mut self, key: &Key) -> Result<Answer<Option<Value>>> {
        self.get_with(key, ReadOptions::default())
    }

    /// The value of one key, read as told.
    ///
    /// # Errors
    /// See [`crate::ErrorKind`].
    pub fn get_with(&mut self, key: &Key, options: ReadOptions) -> Result<Answer<Option<Value>>> {
        match &mut self.transport {
            Transport::Grpc { runtime, client } => runtime.block_on(client.get_with(key, options)),
            Transport::Shm(shm) => {
                let request = shm::get(1, options.commitment, options.min_context_slot);
                let attempts = Attempts::new(Instant::now() + options.deadline.unwrap_or(self.settings.deadline));
                let take = |session: &Session, response: &Response| {
                    Ok(Answer { value: session.value(), slot: shm::slot(response) })
                };
                shm.call(&request, std::slice::from_ref(key), attempts, take)
            }
        }
    }

    /// The values of any number of keys, in their order. More than 10,000 are several requests, each from a snapshot of
    /// its own.
    ///
    /// # Errors
    /// See [`crate::ErrorKind`].
    pub fn get_many(&mut self, keys: &[Key]) -> Result<Answer<Vec<Option<Value>>>> {
        self.get_many_with(keys, ReadOptions::default())
    }

    /// [`Client::get_many`], read as told.
    ///
    /// # Errors
    /// See [`crate::ErrorKind`].
    pub fn get_many_with(&mut self, keys: &[Key], options: ReadOptions) -> Result<Answer<Vec<Option<Value>>>> {
        let shm = match &mut self.transport {
            Transport::Grpc { runtime, client } => return runtime.block_on(client.get_many_with(keys, options)),
            Transport::Shm(shm) => shm,
        };
        let deadline = Instant::now() + options.deadline.unwrap_or(self.settings.deadline);
        let (mut all, mut rest, mut oldest) = (shm::nothing(keys.len()), keys, None::<Option<u64>>);
        loop {
            let (batch, more) = rest.split_at(rest.len().min(GET_MANY_KEYS_MAX));
            let request = shm::get(batch.len(), options.commitment, options.min_context_slot);
            let slot = shm.call(&request, batch, Attempts::new(deadline), |session, response| {
                session.values(response, &mut all.value);
                Ok(shm::slot(response))
            })?;
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
    /// See [`crate::ErrorKind`].
    pub fn status(&mut self) -> Result<StatusResponse> {
        match &mut self.transport {
            Transport::Grpc { runtime, client } => runtime.block_on(client.status()),
            Transport::Shm(shm) => {
                let attempts = Attempts::new(Instant::now() + self.settings.deadline);
                shm.call(&shm::status_request(), &[], attempts, Session::status)
            }
        }
    }

    /// Follows the changes of the map from `start`, those that pass `filter`, over a connection of its own. Over shared
    /// memory changes are read where the service writes them: see [`Builder::spin`] for how long a wait looks for them
    /// before it sleeps. A dump comes over gRPC alone.
    ///
    /// # Errors
    /// A filter or start that this transport does not serve; over gRPC also those of connecting.
    pub fn subscribe(&self, start: Start, filter: Filter) -> Result<Subscription> {
        match &self.settings.address {
            Address::Shm(path) => {
                let ring = RingSubscription::new(path.clone(), self.settings.spin, start, filter)?;
                Ok(Subscription(Way::Ring(ring)))
            }
            Address::Unix(_) | Address::Tcp(_) => {
                let runtime = start_runtime()?;
                let client = runtime.block_on(nonblocking::Client::start(self.settings.clone()))?;
                let subscription = client.subscribe(start, filter)?;
                Ok(Subscription(Way::Grpc { runtime, subscription }))
            }
        }
    }
}

/// A feed for a thread of its own; it goes on where it was after every break. Dropping it ends it.
pub struct Subscription(Way);

#[expect(clippy::large_enum_variant, reason = "there is one for each subscription, so its size costs nothing")]
enum Way {
    Ring(RingSubscription),
    Grpc { runtime: Runtime, subscription: crate::Subscription },
}

impl Subscription {
    /// What comes next, waiting for it however long; over shared memory with a heartbeat each second of silence. A
    /// service that is away is waited for.
    ///
    /// # Errors
    /// As [`crate::Subscription::next`]; over shared memory also [`crate::ErrorKind::FellBehind`].
    pub fn next_event(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.next_event_within(HEARTBEAT)? {
                return Ok(event);
            }
            if let Way::Ring(ring) = &self.0
                && let Some(heartbeat) = ring.heartbeat()
            {
                return Ok(heartbeat);
            }
        }
    }

    /// What comes within `wait`; `None` when nothing did.
    ///
    /// # Errors
    /// As [`Subscription::next_event`].
    pub fn next_event_within(&mut self, wait: Duration) -> Result<Option<Event>> {
        match &mut self.0 {
            Way::Ring(ring) => ring.next(Instant::now() + wait),
            Way::Grpc { runtime, subscription } => runtime.block_on(async {
                // Dropping the future of a subscription loses nothing.
                tokio::time::timeout(wait, subscription.next()).await.ok().transpose()
            }),
        }
    }

    /// The last change seen, to begin after it another time; `None` before the first answer and during a dump.
    pub fn last_seq(&self) -> Option<u64> {
        match &self.0 {
            Way::Ring(ring) => ring.last_seq(),
            Way::Grpc { subscription, .. } => subscription.last_seq(),
        }
    }

    /// How far a dump has come, to go on with it another time by [`crate::Start::DumpFrom`]; `None` before its first
    /// pairs, once it is complete, and over shared memory.
    pub fn dumped(&self) -> Option<Dumped> {
        match &self.0 {
            Way::Ring(_) => None,
            Way::Grpc { subscription, .. } => subscription.dumped(),
        }
    }

    /// The feed that the changes count in; `None` before the first answer.
    pub fn feed_id(&self) -> Option<u64> {
        match &self.0 {
            Way::Ring(ring) => ring.feed_id(),
            Way::Grpc { subscription, .. } => subscription.feed_id(),
        }
    }

    /// When the service published the last change seen, ns of the machine's CLOCK_MONOTONIC. `None` over gRPC, and for
    /// what was committed before the service started.
    pub fn published_ns(&self) -> Option<u64> {
        match &self.0 {
            Way::Ring(ring) => ring.published_ns(),
            Way::Grpc { .. } => None,
        }
    }
}

fn start_runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error::failed(format!("cannot start a runtime: {error}")))
}

impl Shm {
    /// Sends a request until it is answered, over a new session when the service went away.
    fn call<T>(
        &mut self,
        request: &Request,
        keys: &[Key],
        mut attempts: Attempts,
        take: impl FnOnce(&Session, &Response) -> Result<T>,
    ) -> Result<T> {
        loop {
            let session = match &mut self.session {
                Some(session) => session,
                None => match Session::connect(&self.path, self.spin, attempts.deadline) {
                    Ok(session) => self.session.insert(session),
                    Err(error) => {
                        std::thread::sleep(attempts.pause(error)?);
                        continue;
                    }
                },
            };
            match exchange(session, request, keys, attempts.deadline) {
                Ok(()) => match session.outcome(request)? {
                    Some(response) => return take(session, &response),
                    None => {
                        attempts.behind(request.min_context_slot)?;
                        std::thread::sleep(SLOT_PAUSE);
                    }
                },
                Err(lost) => {
                    if matches!(lost, Lost::Gone) {
                        self.session = None;
                    }
                    attempts.lost(&lost)?;
                }
            }
        }
    }
}

fn exchange(session: &mut Session, request: &Request, keys: &[Key], deadline: Instant) -> Result<(), Lost> {
    // A call that gave up may have left its request there.
    wait(session, deadline)?;
    session.send(*request, keys);
    wait(session, deadline)
}

/// Until the newest request is answered: looking for it first, if that helps, then asleep until woken or the service is
/// gone.
fn wait(session: &mut Session, deadline: Instant) -> Result<(), Lost> {
    if session.answered() {
        return Ok(());
    }
    let spin = session.spin.next();
    if let Some(took) = session.look(spin) {
        session.spin.spun(took);
        return Ok(());
    }
    let started = session.spin.is_on().then(Instant::now);
    let outcome = sleep(session, deadline);
    session.stop_waiting();
    if let (Ok(()), Some(started)) = (&outcome, started) {
        match spin.is_zero() {
            true => session.spin.slept(started.elapsed()),
            false => session.spin.spun(spin + started.elapsed()),
        }
    }
    outcome
}

fn sleep(session: &Session, deadline: Instant) -> Result<(), Lost> {
    let mut look = LOOK_MIN;
    while !session.wait(Waits::Futex) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Lost::Late);
        }
        if !session.sleep(left.min(look)) {
            look = LOOK_MAX.min(look * 2);
            if session.is_gone() && !session.answered() {
                return Err(Lost::Gone);
            }
        }
    }
    Ok(())
}
