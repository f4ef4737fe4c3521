//! `service`: follows a Yellowstone account stream into an engine and serves lookups.

pub mod http;
pub mod ingest;
pub mod lookups;
pub mod metrics;
pub mod rpc;
pub mod status;
