//! The real program behind a real Yellowstone stream, on every engine compiled in: it follows, answers, survives
//! kills, and says what it cannot make good.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash;
mod follow;
mod gap;
mod support;
mod transports;
