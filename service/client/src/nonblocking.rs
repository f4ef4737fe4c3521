//! The async client.
//!
//! Owns: the choice of a call's transport, and the async waits on shared memory. Must not: block a worker for longer
//! than the spin time of the settings. Threads: those of the caller's tokio runtime.

use std::sync::Arc;
use std::time::Duration;

use crate::address::Address;
use crate::error::Result;
use crate::feed::{Filter, Start};
use crate::grpc::Grpc;
#[cfg(feature = "shm")]
use crate::shm::task::Task;
use crate::{Answer, Builder, Changes, Key, KeysOf, Past, ReadOptions, Status, Subscription, Value};

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
    #[cfg(feature = "shm")]
    Shm(Arc<Task>),
}

impl Builder {
    /// Connects; requires a tokio runtime, which must outlive the client.
    ///
    /// # Errors
    /// There is no service at the address (only one attempt is made), the service refuses, or a setting or a file is
    /// wrong.
    pub async fn connect(self) -> Result<Client> {
        self.check()?;
        let deadline = self.deadline;
        let transport = match &self.address {
            #[cfg(feature = "shm")]
            Address::Shm(path) => Transport::Shm(Arc::new(Task::connect(path, &self).await?)),
            #[cfg(not(feature = "shm"))]
            address @ Address::Shm(_) => return Err(address.left_out()),
            Address::Unix(_) | Address::Tcp { .. } => Transport::Grpc(Arc::new(Grpc::connect(self).await?)),
        };
        Ok(Client { deadline, transport })
    }
}

impl Client {
    /// Connects to `address` with the default settings; see [`Address`] and [`Builder`].
    ///
    /// # Errors
    /// As [`Builder::connect`], and an address of no known form.
    pub async fn connect(address: &str) -> Result<Self> {
        Builder::new(address)?.connect().await
    }

    /// Returns the value of one key.
    ///
    /// # Errors
    /// Any of [`crate::ErrorKind`], except those of a feed.
    pub async fn get(&self, key: &Key) -> Result<Answer<Option<Value>>> {
        self.get_with(key, ReadOptions::default()).await
    }

    /// Returns the value of one key, read with `options`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_with(&self, key: &Key, options: ReadOptions) -> Result<Answer<Option<Value>>> {
        let read = options.begin(self.deadline);
        match &self.transport {
            Transport::Grpc(grpc) => grpc.get(key, read).await,
            #[cfg(feature = "shm")]
            Transport::Shm(shm) => shm.get(key, read).await,
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
        let read = options.begin(self.deadline);
        match &self.transport {
            Transport::Grpc(grpc) => grpc.get_many(keys, read).await,
            #[cfg(feature = "shm")]
            Transport::Shm(shm) => shm.get_many(keys, read).await,
        }
    }

    /// Returns up to `limit` keys that have a value, or all of them with 0, in no particular order: those after `cursor`, which is
    /// that of an earlier answer, or the first ones. All are of one state of the map.
    ///
    /// # Errors
    /// As [`Client::get`]; [`crate::ErrorKind::Refused`] over shared memory, and where the map has no derived store.
    pub async fn keys_of(
        &self,
        value: &Value,
        cursor: Option<&[u8]>,
        limit: u32,
        options: ReadOptions,
    ) -> Result<Answer<KeysOf>> {
        self.derived()?.keys_of(value, cursor, limit, options.begin(self.deadline)).await
    }

    /// Returns the number of keys that have a value, at most `limit` unless that is 0, and whether there are more.
    ///
    /// # Errors
    /// As [`Client::keys_of`].
    pub async fn count_of(&self, value: &Value, limit: u32, options: ReadOptions) -> Result<Answer<(u64, bool)>> {
        self.derived()?.count_of(value, limit, options.begin(self.deadline)).await
    }

    /// Returns the value that a key had at the end of a slot. Waits for a slot that the map has not reached at the commitment of
    /// `options`; a `min_context_slot` there says nothing more.
    ///
    /// # Errors
    /// As [`Client::get`]; [`crate::ErrorKind::Refused`] over shared memory, and where the service keeps no past;
    /// [`crate::ErrorKind::BadInput`] for a slot that is not kept.
    pub async fn get_at(&self, key: &Key, slot: u64, options: ReadOptions) -> Result<Answer<Past>> {
        self.derived()?.get_at(key, slot, options.begin(self.deadline)).await
    }

    /// Returns up to `limit` changes of a key, newest first, 4,000 with 0: those before `cursor`, which is that of an earlier answer,
    /// or the newest ones.
    ///
    /// # Errors
    /// As [`Client::get_at`]; [`crate::ErrorKind::Refused`] at processed.
    pub async fn changes(
        &self,
        key: &Key,
        cursor: Option<&[u8]>,
        limit: u32,
        options: ReadOptions,
    ) -> Result<Answer<Changes>> {
        self.derived()?.changes(key, cursor, limit, options.begin(self.deadline)).await
    }

    /// Returns the transport that reaches derived stores.
    fn derived(&self) -> Result<&Grpc> {
        match &self.transport {
            Transport::Grpc(grpc) => Ok(grpc),
            #[cfg(feature = "shm")]
            Transport::Shm(_) => Err(crate::error::Error::not_over_shm()),
        }
    }

    /// Returns the service's account of itself: engine, number of pairs, checkpoint, lag, readiness.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn status(&self) -> Result<Status> {
        match &self.transport {
            Transport::Grpc(grpc) => grpc.status(self.deadline).await,
            #[cfg(feature = "shm")]
            Transport::Shm(shm) => shm.status(self.deadline).await,
        }
    }

    /// Follows the changes of the map from `start` that pass `filter`. Nothing is sent before the first
    /// [`Subscription::next`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Refused`] over shared memory, where only [`crate::blocking::Client::subscribe`] serves a feed.
    pub fn subscribe(&self, start: Start, filter: Filter) -> Result<Subscription> {
        match &self.transport {
            Transport::Grpc(grpc) => Ok(Subscription::new(Arc::clone(grpc), start, filter)),
            #[cfg(feature = "shm")]
            Transport::Shm(_) => {
                let way = "use blocking::Client, or connect to unix:///PATH or http://HOST:PORT";
                Err(crate::Error::new(crate::ErrorKind::Refused, format!("no async feed over shared memory: {way}")))
            }
        }
    }
}
