//! Load for solkv: plays the stream that the service follows, and measures a service that follows it.
//!
//! Owns: the Yellowstone server on synthetic slots, the live validation run, and reports on results. Must not:
//! depend on the service or on an engine; both are reached over the wire and as processes, as a user would.
//! Threads: see [`stream`]; the live run itself is one thread.

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
