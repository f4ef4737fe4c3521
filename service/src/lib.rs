//! `service`: follows a Yellowstone account stream into an engine and serves lookups and the feed of changes.
//!
//! Owns: ingest (receive, assemble, apply), the feed, the overlay of processed slots, lookups over gRPC and shared
//! memory, metrics and the dashboard, and the order in which all of these start and stop. Must not: apply a slot out of
//! chain order, skip a gap, or touch the engine on a network thread. Threads: see `run`.
//!
//! The program, its tests and the fuzz targets use three modules, which are public, and the names that are re-exported
//! below. Nobody outside depends on the shape of the rest.

mod admin;
mod audit;
mod backup;
mod chain;
pub mod cli;
mod config;
mod creation;
mod dashboard;
mod failed;
mod feed;
mod figure;
mod handles;
mod heal;
mod http;
pub mod ingest;
mod lookups;
mod map;
mod metrics;
mod net;
mod overlay;
mod plausible;
mod processed;
mod published;
mod pulse;
mod readiness;
mod reading;
pub mod rpc;
mod run;
mod setting;
mod shm;
mod slots;
mod slow;
mod spool;
mod status;
mod stop;
mod store;
mod systemd;
mod views;
mod warmth;

pub use chain::Base;
pub use config::Settings;
pub use feed::{Change, FeedSettings, FeedWriter, Retention, Workers};
pub use handles::Handles;
pub use lookups::{LookupThreads, Lookups};
pub use metrics::catalogue;
pub use net::Access;
pub use net::limit::ConnectionLimits;
pub use net::socket::SocketAccess;
pub use overlay::Overlay;
pub use pulse::Pulses;
pub use readiness::Limits as ReadinessLimits;
pub use shm::{ShmServer, ShmState};

// Entry points of the fuzz targets, as `ingest::fuzzing` is.
#[doc(hidden)]
pub use feed::fuzzing::log as fuzz_feed;
#[doc(hidden)]
pub use processed::fuzzing::banks as fuzz_banks;
#[doc(hidden)]
pub use spool::fuzzing::file as fuzz_spool;
