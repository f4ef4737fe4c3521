//! `service`: follows a Yellowstone account stream into an engine and serves lookups and the feed of changes.
//!
//! Owns: ingest (receive, assemble, apply), the feed, the overlay of processed slots, lookups over gRPC and shared
//! memory, metrics and the dashboard, and the order in which all of these start and stop. Must not: apply a slot out of
//! chain order, skip a gap, or touch the engine on a network thread. Threads: see `run`.
//!
//! The program, its tests, its example and the fuzz targets use three modules, which are public, and the names that are
//! re-exported below. Nobody outside depends on the shape of the rest.

mod admin;
mod ask;
mod base;
pub mod cli;
mod config;
mod creation;
mod derive;
mod feed;
mod heal;
pub mod ingest;
mod lookups;
mod net;
mod overlay;
mod pages;
mod processed;
mod readiness;
mod reading;
pub mod redis;
pub mod rpc;
mod run;
mod shm;
mod spool;
mod status;
mod store;
mod systemd;
mod warmth;
pub mod web;

pub use ask::Ask;
pub use base::chain::Base;
pub use base::pulse::Pulses;
pub use config::Settings;
pub use feed::{Change, FeedWriter, SubscriberLimits, Workers};
pub use ingest::ReadinessSettings;
pub use lookups::{LookupThreads, Lookups};
pub use net::Access;
pub use net::limit::{ConnectionLimits, Room};
pub use net::socket::SocketAccess;
pub use overlay::Overlay;
pub use pages::handles::Handles;
pub use pages::metrics::catalogue;
pub use shm::{ShmServer, ShmState};

// Entry points of the fuzz targets, which only their build has, as `ingest::fuzzing` is.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use feed::fuzzing::log as fuzz_feed;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use processed::fuzzing::banks as fuzz_banks;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use spool::fuzzing::file as fuzz_spool;
