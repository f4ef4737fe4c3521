//! Tests of the stream as a follower sees it: the public client over a real socket, compared with a naive map. Also
//! tests of archives and of reports on result files.
//!
//! Owns: end-to-end tests of `loadgen`. Must not: look inside the chain.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod archive;
mod bench;
mod best;
mod follow;
mod like;
mod live;
mod model;
mod processed;
mod protocol;
mod report;
mod snapshot;
mod synthetic;
mod targets;
