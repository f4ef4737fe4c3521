//! The client for a thread of its own. Over shared memory it needs no async runtime: a call polls for its answer, then
//! sleeps in futex(2).
//!
//! Owns: the blocking waits. Threads: the caller's. Over gRPC each client has a small runtime that runs only during its
//! calls. Must not: be used from async code.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use proto::v1::GET_MANY_KEYS_MAX;
use shm_layout::{Request, Response, Waits};
use tokio::runtime::Runtime;

use crate::address::Address;
use crate::error::{Error, Result};
use crate::feed::{Dumped, Event, Filter, Start};
use crate::ring::RingSubscription;
use crate::settings::Settings;
use crate::shm::{self, Attempts, Lost, SLOT_PAUSE, Session};
use crate::{Answer, Key, ReadOptions, StatusResponse, Value, nonblocking};

/// Longest silence of [`Subscription::next_event`] over shared memory: it then returns a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A call that sleeps checks after this time whether the service is still there, because a killed service wakes nobody.
/// The time then doubles up to [`LOOK_MAX`]. Most answers come sooner.
const LOOK_MIN: Duration = Duration::from_millis(1);

/// Longest time between two checks of [`LOOK_MIN`].
const LOOK_MAX: Duration = Duration::from_millis(100);

/// A client for one thread: its calls take `&mut self` and block.
pub struct Client {
    settings: Settings,
    transport: Transport,
}

enum Transport {
    Shm(Shm),
    Grpc { runtime: Runtime, client: nonblocking::Client },
}

/// A session that is connected again after the service went away.
struct Shm {
    path: PathBuf,
    spin: Duration,
    session: Option<Session>,
}

impl Client {
    /// Connects to `address` with the default settings; see [`Address`] and [`Builder`](crate::Builder).
    ///
    /// # Errors
    /// As [`Builder::connect_blocking`](crate::Builder::connect_blocking), and an address of no known form.
    pub fn connect(address: &str) -> Result<Self> {
        Self::start(Settings::new(address)?)
    }

    pub(crate) fn start(settings: Settings) -> Result<Self> {
        settings.check()?;
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

    /// Returns the value of one key.
    ///
    /// # Errors
    /// Any of [`crate::ErrorKind`], except those of a feed.
    pub fn get(&mut self, key: &Key) -> Result<Answer<Option<Value>>> {
        self.get_with(key, ReadOptions::default())
    }

    /// Returns the value of one key, read with `options`.
    ///
    /// # Errors
    /// As [`Client::get`].
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

    /// Returns the values of any number of keys, in their order. More than 10,000 keys take several requests, each from
    /// a snapshot of its own.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_many(&mut self, keys: &[Key]) -> Result<Answer<Vec<Option<Value>>>> {
        self.get_many_with(keys, ReadOptions::default())
    }

    /// Returns the values of any number of keys as [`Client::get_many`] does, read with `options`.
    ///
    /// # Errors
    /// As [`Client::get`].
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

    /// Returns the service's account of itself: engine, number of pairs, checkpoint, lag, readiness.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn status(&mut self) -> Result<StatusResponse> {
        match &mut self.transport {
            Transport::Grpc { runtime, client } => runtime.block_on(client.status()),
            Transport::Shm(shm) => {
                let attempts = Attempts::new(Instant::now() + self.settings.deadline);
                shm.call(&shm::status_request(), &[], attempts, Session::status)
            }
        }
    }

    /// Follows the changes of the map from `start` that pass `filter`, over a connection of its own. Over shared
    /// memory, changes are read where the service writes them; [`Builder::spin`](crate::Builder::spin) says how long a
    /// wait polls for them before it sleeps. A dump needs gRPC.
    ///
    /// # Errors
    /// A filter or a start that this transport does not serve; over gRPC also errors of connecting, as
    /// [`Builder::connect`](crate::Builder::connect).
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

/// A feed for a thread of its own. After every break it continues where it was. Dropping it ends the subscription.
pub struct Subscription(Way);

#[expect(clippy::large_enum_variant, reason = "there is one for each subscription, so its size costs nothing")]
enum Way {
    Ring(RingSubscription),
    Grpc { runtime: Runtime, subscription: crate::Subscription },
}

impl Subscription {
    /// Returns the next event, and waits for it without a limit, also for a service that is away. Over shared memory it
    /// returns a heartbeat after each second of silence.
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

    /// Returns the next event, or `None` if none comes within `wait`.
    ///
    /// # Errors
    /// As [`Subscription::next_event`].
    pub fn next_event_within(&mut self, wait: Duration) -> Result<Option<Event>> {
        match &mut self.0 {
            Way::Ring(ring) => ring.next(Instant::now() + wait),
            Way::Grpc { runtime, subscription } => runtime.block_on(async {
                // The timeout drops the future of the subscription, which loses nothing.
                tokio::time::timeout(wait, subscription.next()).await.ok().transpose()
            }),
        }
    }

    /// Returns the seq of the last change seen. A later subscription can continue at this seq + 1. `None` before the
    /// first answer and during a dump.
    pub fn last_seq(&self) -> Option<u64> {
        match &self.0 {
            Way::Ring(ring) => ring.last_seq(),
            Way::Grpc { subscription, .. } => subscription.last_seq(),
        }
    }

    /// Returns the progress of a dump. A later subscription can continue there with [`crate::Start::DumpFrom`]. `None`
    /// before the dump's first pairs, once it is complete, and over shared memory.
    pub fn dumped(&self) -> Option<Dumped> {
        match &self.0 {
            Way::Ring(_) => None,
            Way::Grpc { subscription, .. } => subscription.dumped(),
        }
    }

    /// Returns the identifier of the feed that the seqs count in; `None` before the first answer.
    pub fn feed_id(&self) -> Option<u64> {
        match &self.0 {
            Way::Ring(ring) => ring.feed_id(),
            Way::Grpc { subscription, .. } => subscription.feed_id(),
        }
    }

    /// Returns the time at which the service published the last change seen, in ns of the machine's CLOCK_MONOTONIC.
    /// `None` over gRPC, and for changes from before the service's start.
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
    /// Sends a request until it is answered, over a new session if the service went away.
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
    // A call that gave up may have left its request in the segment: wait until it is answered.
    wait(session, deadline)?;
    session.send(*request, keys);
    wait(session, deadline)
}

/// Waits until the newest request is answered. It polls first where that helps, then sleeps until it is woken or the
/// service is gone.
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
