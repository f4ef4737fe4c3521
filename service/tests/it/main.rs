//! The real program behind a real Yellowstone stream, on every engine compiled in: it follows, answers, survives
//! kills, and says what it cannot make good.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod abuse;
mod backup;
mod browser;
mod crash;
mod dashboard;
mod disk;
mod dump;
mod feed;
mod follow;
mod fork;
mod gap;
mod hostile;
mod leaving;
mod metrics;
mod overload;
mod provider;
mod ready;
mod ring;
mod scripted;
mod secure;
mod shares;
mod slow;
mod store;
mod support;
mod systemd;
mod tools;
mod transports;
mod whole;
