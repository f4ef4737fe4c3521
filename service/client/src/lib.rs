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
//! # async fn example() -> Result<(), client::Error> {
//! let client = client::Client::connect("unix:///run/solkv/kv.sock").await?;
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
//! # fn example() -> Result<(), client::Error> {
//! let mut client = client::Builder::new("shm:///run/solkv/shm.sock")?
//!     .spin(std::time::Duration::from_micros(50))
//!     .connect_blocking()?;
//! let found = client.get_many(&[[1; 32], [2; 32]])?;
//! assert_eq!(found.value.len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! # When things go wrong
//! Every call ends by its deadline, 5 s unless told otherwise. A connection that breaks is made anew with pauses from
//! 10 ms up to 1 s until the deadline, and the read that was under way is sent once more: a read changes nothing, so
//! asking twice is harmless. [`Error::kind`] says what to do about what remains. A key that is not there is an answer.
//!
//! Owns: connections, deadlines, retries. Must not: know an engine, or anything of the service but its wire. Threads:
//! the caller's; no thread is started, [`Client`] leaves its connection's tasks with the caller's tokio runtime.

// Other crates link this one.
#![warn(missing_docs)]

mod address;
mod backoff;
pub mod blocking;
mod builder;
mod error;
mod feed;
mod grpc;
mod nonblocking;
mod ring;
mod shm;
mod spin;

use std::time::Duration;

pub use address::Address;
pub use builder::Builder;
pub use error::{Error, ErrorKind, Result};
pub use feed::{Change, Dumped, Event, Filter, SlotEnd, Start, Subscription};
pub use nonblocking::Client;
pub use proto::v1::{Commitment, StatusResponse};

/// A key of the map.
pub type Key = [u8; 32];

/// A value of the map.
pub type Value = [u8; 32];

/// An answer and the slot it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// `None` for a key that is not in the map; for `get_many` one of these a key, in the order asked.
    pub value: T,
    /// The newest slot that is wholly in what was read; `None` before the first. For more keys than one request takes
    /// the oldest of the requests'.
    pub slot: Option<u64>,
}

/// How a read is made, where the client's own settings do not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// How settled the data has to be; unspecified is confirmed.
    pub commitment: Commitment,
    /// Answer only once this slot is in what is read, waiting for it within the deadline.
    pub min_context_slot: Option<u64>,
    /// Instead of the client's.
    pub deadline: Option<Duration>,
}
