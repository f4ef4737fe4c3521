//! `service`: follows a Yellowstone account stream into an engine and serves lookups and the feed of changes.
//!
//! Owns: ingest (receive, assemble, apply), the feed, the overlay of processed slots, lookups over gRPC and shared
//! memory, metrics and the dashboard, and the order in which all of these start and stop. Must not: apply a slot out of
//! chain order, skip a gap, or touch the engine on a network thread. Threads: see [`run`].

pub mod admin;
mod audit;
mod backup;
pub mod chain;
pub mod cli;
pub mod config;
mod creation;
pub mod dashboard;
pub mod failed;
pub mod feed;
pub mod figure;
pub mod handles;
mod heal;
pub mod http;
pub mod ingest;
pub mod lookups;
mod map;
pub mod metrics;
pub mod net;
mod out;
pub mod overlay;
pub mod processed;
pub mod published;
pub mod pulse;
pub mod readiness;
mod reading;
pub mod rpc;
pub mod run;
mod setting;
pub mod shm;
mod slots;
pub mod slow;
pub mod spool;
pub mod status;
pub mod stop;
mod store;
pub mod systemd;
pub mod views;
pub mod warmth;
