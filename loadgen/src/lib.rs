//! Load for solkv: plays the stream that the service follows, and measures a service that follows it.
//!
//! Owns: the Yellowstone servers, the live validation run, what asks and follows a running service, benchmarks of engines,
//! and reports on results. Must not: depend on the service, which is reached over the wire and as a process, as a user would.
//! Threads: see [`stream`], [`provider`] and [`query`]; the live run itself is one thread.

mod access;
pub mod bench;
pub mod commands;
pub mod follow;
pub mod live;
pub mod provider;
pub mod query;
pub mod report;
pub mod result;
pub mod stream;
pub mod transports;
