//! Load for solkv: plays the stream that the service follows, and measures a service that follows it.
//!
//! Owns: the Yellowstone servers, snapshot archives with the same accounts, the live validation run, clients that query
//! and follow a running service, benchmarks of engines, and reports on results. Must not: depend on the service, which
//! is reached over the wire and as a process, as a user would. Threads: see [`stream`], [`provider`], [`query`],
//! [`transports`] and `bench::drive`; the live run and the writing of archives are one thread each.

mod access;
pub mod archive;
pub mod bench;
pub mod commands;
pub mod follow;
pub mod get;
pub mod live;
pub mod provider;
pub mod query;
pub mod report;
pub mod result;
pub mod stream;
pub mod transports;
