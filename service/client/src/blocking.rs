//! The client for a thread of its own. Over shared memory it needs no async runtime: a call polls for its answer, then
//! sleeps in futex(2).
//!
//! Owns: the choice of a call's transport. Threads: the caller's. Over gRPC each client has a small runtime that runs
//! only during its calls. Must not: be used from async code.

use std::time::Duration;

#[cfg(feature = "grpc")]
use tokio::runtime::Runtime;

use crate::address::Address;
use crate::error::Result;
use crate::feed::{Dumped, Event, Filter, Position, Start};
#[cfg(feature = "shm")]
use crate::shm::{ring::RingSubscription, thread::Thread};
use crate::{Answer, Builder, Key, ReadOptions, Status, Value};

/// Longest silence of [`Subscription::next_event`] over shared memory: it then returns a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A client for one thread: its calls take `&mut self` and block.
pub struct Client {
    settings: Builder,
    transport: Transport,
}

enum Transport {
    #[cfg(feature = "shm")]
    Shm(Thread),
    #[cfg(feature = "grpc")]
    Grpc { runtime: Runtime, client: crate::Client },
}

impl Builder {
    /// Connects a client that blocks, for a thread of its own.
    ///
    /// # Errors
    /// There is no service at the address (only one attempt is made), the service refuses, or a setting or a file is
    /// wrong.
    pub fn connect_blocking(self) -> Result<Client> {
        self.check()?;
        let transport = match &self.address {
            #[cfg(feature = "shm")]
            Address::Shm(path) => Transport::Shm(Thread::connect(path, &self)?),
            #[cfg(feature = "grpc")]
            Address::Unix(_) | Address::Tcp { .. } => {
                let (runtime, client) = start_grpc(&self)?;
                Transport::Grpc { runtime, client }
            }
            #[cfg(not(all(feature = "grpc", feature = "shm")))]
            address => return Err(address.left_out()),
        };
        Ok(Client { settings: self, transport })
    }
}

impl Client {
    /// Connects to `address` with the default settings; see [`Address`] and [`Builder`].
    ///
    /// # Errors
    /// As [`Builder::connect_blocking`], and an address of no known form.
    pub fn connect(address: &str) -> Result<Self> {
        Builder::new(address)?.connect_blocking()
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
            #[cfg(feature = "grpc")]
            Transport::Grpc { runtime, client } => runtime.block_on(client.get_with(key, options)),
            #[cfg(feature = "shm")]
            Transport::Shm(shm) => shm.get(key, options.begin(self.settings.deadline)),
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
        match &mut self.transport {
            #[cfg(feature = "grpc")]
            Transport::Grpc { runtime, client } => runtime.block_on(client.get_many_with(keys, options)),
            #[cfg(feature = "shm")]
            Transport::Shm(shm) => shm.get_many(keys, options.begin(self.settings.deadline)),
        }
    }

    /// Returns keys that have a value, as the async client's `keys_of` does.
    ///
    /// # Errors
    /// As [`Client::get`]; [`crate::ErrorKind::Refused`] over shared memory, and where the map has no derived store.
    #[cfg(feature = "grpc")]
    pub fn keys_of(
        &mut self,
        value: &Value,
        cursor: Option<&[u8]>,
        limit: u32,
        options: ReadOptions,
    ) -> Result<Answer<crate::KeysOf>> {
        let (runtime, client) = self.derived()?;
        runtime.block_on(client.keys_of(value, cursor, limit, options))
    }

    /// Returns the number of keys that have a value, as the async client's `count_of` does.
    ///
    /// # Errors
    /// As [`Client::keys_of`].
    #[cfg(feature = "grpc")]
    pub fn count_of(&mut self, value: &Value, limit: u32, options: ReadOptions) -> Result<Answer<(u64, bool)>> {
        let (runtime, client) = self.derived()?;
        runtime.block_on(client.count_of(value, limit, options))
    }

    /// Returns the value that a key had at the end of a slot, as the async client's `get_at` does.
    ///
    /// # Errors
    /// As [`Client::get`]; [`crate::ErrorKind::Refused`] over shared memory, and where the service keeps no past;
    /// [`crate::ErrorKind::BadInput`] for a slot that is not kept.
    #[cfg(feature = "grpc")]
    pub fn get_at(&mut self, key: &Key, slot: u64, options: ReadOptions) -> Result<Answer<crate::Past>> {
        let (runtime, client) = self.derived()?;
        runtime.block_on(client.get_at(key, slot, options))
    }

    /// Returns changes of a key, newest first, as the async client's `changes` does.
    ///
    /// # Errors
    /// As [`Client::get_at`].
    #[cfg(feature = "grpc")]
    pub fn changes(
        &mut self,
        key: &Key,
        cursor: Option<&[u8]>,
        limit: u32,
        options: ReadOptions,
    ) -> Result<Answer<crate::Changes>> {
        let (runtime, client) = self.derived()?;
        runtime.block_on(client.changes(key, cursor, limit, options))
    }

    /// Returns the transport that reaches derived stores.
    #[cfg(feature = "grpc")]
    fn derived(&self) -> Result<(&tokio::runtime::Runtime, &crate::Client)> {
        match &self.transport {
            Transport::Grpc { runtime, client } => Ok((runtime, client)),
            #[cfg(feature = "shm")]
            Transport::Shm(_) => Err(crate::error::Error::not_over_shm()),
        }
    }

    /// Returns the service's account of itself: engine, number of pairs, checkpoint, lag, readiness.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn status(&mut self) -> Result<Status> {
        match &mut self.transport {
            #[cfg(feature = "grpc")]
            Transport::Grpc { runtime, client } => runtime.block_on(client.status()),
            #[cfg(feature = "shm")]
            Transport::Shm(shm) => shm.status(self.settings.deadline),
        }
    }

    /// Follows the changes of the map from `start` that pass `filter`, over a connection of its own. Over shared
    /// memory, changes are read where the service writes them; `Builder::spin` says how long a wait polls for them
    /// before it sleeps. A dump needs gRPC.
    ///
    /// # Errors
    /// A filter or a start that this transport does not serve; over gRPC also errors of connecting, as
    /// [`Builder::connect_blocking`].
    pub fn subscribe(&self, start: Start, filter: Filter) -> Result<Subscription> {
        match &self.settings.address {
            #[cfg(feature = "shm")]
            Address::Shm(path) => {
                let ring = RingSubscription::new(path.clone(), self.settings.spin, start, filter)?;
                Ok(Subscription(Way::Ring(ring)))
            }
            #[cfg(feature = "grpc")]
            Address::Unix(_) | Address::Tcp { .. } => {
                let (runtime, client) = start_grpc(&self.settings)?;
                Ok(Subscription(Way::Grpc { runtime, subscription: client.subscribe(start, filter)? }))
            }
            #[cfg(not(all(feature = "grpc", feature = "shm")))]
            address => Err(address.left_out()),
        }
    }
}

/// A feed for a thread of its own. After every break it continues where it was. Dropping it ends the subscription.
pub struct Subscription(Way);

#[cfg_attr(
    all(feature = "grpc", feature = "shm"),
    expect(clippy::large_enum_variant, reason = "there is one for each subscription, so its size costs nothing")
)]
enum Way {
    #[cfg(feature = "shm")]
    Ring(RingSubscription),
    #[cfg(feature = "grpc")]
    Grpc { runtime: Runtime, subscription: crate::Subscription },
}

impl Subscription {
    /// Returns the next event, and waits for it without a limit, also for a service that is away. Over shared memory it
    /// returns a heartbeat after each second of silence.
    ///
    /// # Errors
    /// Only errors that waiting does not mend: the feed is lost, the request is wrong, the service refuses the caller,
    /// or it broke its contract; over shared memory also [`crate::ErrorKind::FellBehind`]. Another call tries again.
    pub fn next_event(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.next_event_within(HEARTBEAT)? {
                return Ok(event);
            }
            #[cfg(feature = "shm")]
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
            #[cfg(feature = "shm")]
            Way::Ring(ring) => ring.next(wait),
            #[cfg(feature = "grpc")]
            Way::Grpc { runtime, subscription } => runtime.block_on(async {
                // The timeout drops the future of the subscription, which loses nothing.
                tokio::time::timeout(wait, subscription.next()).await.ok().transpose()
            }),
        }
    }

    /// Returns the seq of the last change seen. A later subscription can continue at this seq + 1. `None` before the
    /// first answer and during a dump.
    pub fn last_seq(&self) -> Option<u64> {
        self.position().last_seq
    }

    /// Returns the progress of a dump. A later subscription can continue there with [`Start::DumpFrom`]. `None` before
    /// the dump's first pairs, once it is complete, and over shared memory.
    pub fn dumped(&self) -> Option<Dumped> {
        self.position().dumped
    }

    /// Returns the identifier of the feed that the seqs count in; `None` before the first answer.
    pub fn feed_id(&self) -> Option<u64> {
        self.position().feed_id
    }

    /// Returns the time at which the service published the last change seen, in ns of the machine's CLOCK_MONOTONIC.
    /// `None` over gRPC, and for changes from before the service's start.
    pub fn published_ns(&self) -> Option<u64> {
        match &self.0 {
            #[cfg(feature = "shm")]
            Way::Ring(ring) => ring.published_ns,
            #[cfg(feature = "grpc")]
            Way::Grpc { .. } => None,
        }
    }

    fn position(&self) -> &Position {
        match &self.0 {
            #[cfg(feature = "shm")]
            Way::Ring(ring) => &ring.position,
            #[cfg(feature = "grpc")]
            Way::Grpc { subscription, .. } => &subscription.position,
        }
    }
}

/// Connects over gRPC, with a runtime for the calls of one thread.
#[cfg(feature = "grpc")]
fn start_grpc(settings: &Builder) -> Result<(Runtime, crate::Client)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| crate::Error::failed(format!("cannot start a runtime: {error}")))?;
    let client = runtime.block_on(settings.clone().connect())?;
    Ok((runtime, client))
}
