//! The service's pages over HTTP: metrics, the dashboard, health.
//!
//! Owns: the handles to the state of every part, and the pages that show them. Must not: change any of that state. Runs
//! on the network threads and on `sample`.

pub(crate) mod dashboard;
pub(crate) mod handles;
pub(crate) mod http;
pub(crate) mod metrics;
mod status;
