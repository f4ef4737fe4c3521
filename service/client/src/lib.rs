//! The client of a solkv service: one API over shared memory, a Unix socket and TCP, chosen by the address.
//!
//! | address | transport | for |
//! |---|---|---|
//! | `shm:///run/solkv/shm.sock` | shared memory, handed over on that socket | processes on the service's machine that count microseconds |
//! | `unix:///run/solkv/kv.sock` | gRPC on a Unix socket | processes on the service's machine |
//! | `http://host:7400`, `https://host:7400` | gRPC on TCP, with TLS | everybody else |
//!
//! [`Client`] is async and shared by cloning. [`blocking::Client`] is for a thread of its own and, over shared memory,
//! needs no async runtime at all. Both give the same answers:
//!
//! ```no_run
//! # async fn example() -> Result<(), solkv_client::Error> {
//! let client = solkv_client::Client::connect("unix:///run/solkv/kv.sock").await?;
//! let found = client.get(&[7; 32]).await?;
//! match found.value {
//!     Some(value) => println!("{value:?} as of slot {:?}", found.slot),
//!     None => println!("no such key"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! ```no_run
//! # fn example() -> Result<(), solkv_client::Error> {
//! let mut client = solkv_client::Builder::new("shm:///run/solkv/shm.sock")?
//!     .spin(std::time::Duration::from_micros(50))
//!     .connect_blocking()?;
//! let found = client.get_many(&[[1; 32], [2; 32]])?;
//! assert_eq!(found.value.len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! Both are on by default; a client for an address whose feature is off is refused, and the error names the feature.
//!
//! | feature | brings | links |
//! |---|---|---|
//! | `grpc` | gRPC on a Unix socket and on TCP, and the async [`Client`] for every transport | tonic, tokio |
//! | `shm` | shared memory | nothing large |
//!
//! A program that reads shared memory alone depends on the crate with `default-features = false, features = ["shm"]`,
//! and has [`blocking::Client`].
//!
//! # When things go wrong
//! Every call ends by its deadline, 5 s by default. If a connection breaks, the client connects again, with pauses from
//! 10 ms up to 1 s, until the deadline. The read that was under way is then sent once more: a read changes nothing, so
//! asking twice is harmless. For an error that remains, [`Error::kind`] says how to react. An absent key is an answer,
//! not an error.
//!
//! Owns: connections, deadlines, retries. Must not: know an engine, or anything of the service except its wire
//! contract. Threads: the caller's. The crate starts no thread; [`Client`] leaves the tasks of its connection to the
//! caller's tokio runtime.

// Other crates link this one.
#![warn(missing_docs)]

#[cfg(not(any(feature = "grpc", feature = "shm")))]
compile_error!("solkv-client has no transport: enable its feature grpc, its feature shm, or both");

mod address;
mod backoff;
pub mod blocking;
mod builder;
mod error;
mod feed;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "grpc")]
mod nonblocking;
#[cfg(feature = "shm")]
mod shm;
mod status;

use std::time::{Duration, Instant};

pub use address::Address;
pub use builder::Builder;
pub use error::{Error, ErrorKind, Result};
pub use feed::{Change, Dumped, Event, Filter, SlotEnd, Start};
pub use status::{Checkpoint, Gap, Status};
#[cfg(feature = "grpc")]
pub use {grpc::stream::Subscription, nonblocking::Client};

/// A key of the map: 32 bytes, a Solana public key.
pub type Key = [u8; 32];

/// A value of the map: 32 bytes, a Solana public key.
pub type Value = [u8; 32];

/// An answer, and the slot that its data reflects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// The value, or `None` for a key that is not in the map; for `get_many` one of these for each key, in the order
    /// asked.
    pub value: T,
    /// The newest slot that is completely in the data read; `None` before the first. If the keys took several requests,
    /// the oldest slot of their answers.
    pub slot: Option<u64>,
}

/// Keys of a value, from [`Client::keys_of`].
#[cfg(feature = "grpc")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysOf {
    /// The keys, in no particular order.
    pub keys: Vec<Key>,
    /// Where the next request goes on, if there are more keys.
    pub cursor: Option<Vec<u8>>,
}

/// The value of a key at a past slot, from [`Client::get_at`].
#[cfg(feature = "grpc")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The value; `None` if the map did not hold the key.
    pub value: Option<Value>,
    /// Slot of the first change of the key after the slot asked for; `None` if the key has not changed since.
    pub until_slot: Option<u64>,
}

/// Changes of a key, from [`Client::changes`].
#[cfg(feature = "grpc")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The changes, the newest one first.
    pub changes: Vec<PastChange>,
    /// Changes of this slot and of earlier ones are not kept.
    pub oldest_slot: u64,
    /// Where the next request goes on, if there are older changes that are kept.
    pub cursor: Option<Vec<u8>>,
}

/// A change of a key.
#[cfg(feature = "grpc")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastChange {
    /// Slot that the change was written in.
    pub slot: u64,
    /// The value before the change; `None` if the map did not hold the key.
    pub before: Option<Value>,
    /// The value after the change; `None` if it removed the key.
    pub after: Option<Value>,
}

/// How final the data of an answer must be. The numbers are those of `solkv.v1.Commitment`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commitment {
    /// The newest bank that the service has seen, which may still vanish. Only where the service follows processed
    /// slots; [`ErrorKind::Refused`] elsewhere.
    Processed = 1,
    /// The content of the store on disk, for which a supermajority has voted.
    #[default]
    Confirmed = 2,
    /// Rooted: it never vanishes. [`ErrorKind::Unavailable`] until the service has seen a finalized slot.
    Finalized = 3,
}

/// Options of one read, for calls that the client's own settings do not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// How final the data must be; confirmed by default.
    pub commitment: Commitment,
    /// Answer only once the data read includes this slot. The call waits for it within its deadline, over gRPC at most
    /// for as long as the service's own limit.
    pub min_context_slot: Option<u64>,
    /// Deadline of this read; `None` takes the client's.
    pub deadline: Option<Duration>,
}

/// One read, with its deadline as an instant.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    pub(crate) commitment: Commitment,
    pub(crate) min_context_slot: Option<u64>,
    pub(crate) deadline: Instant,
}

impl ReadOptions {
    /// Returns a read that begins now, with the client's deadline if these options name none.
    pub(crate) fn begin(self, deadline: Duration) -> Read {
        let Self { commitment, min_context_slot, deadline: own } = self;
        Read { commitment, min_context_slot, deadline: Instant::now() + own.unwrap_or(deadline) }
    }
}
