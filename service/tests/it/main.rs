//! The real program on a real Yellowstone stream, with every engine compiled in. It follows, answers, survives kills,
//! and reports damage that it cannot repair.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "helpers say what they skip or have measured")]

mod absurd;
mod abuse;
mod audit;
mod audit_trouble;
mod backup;
mod browser;
mod crash;
mod creation;
mod damage;
mod dashboard;
mod disk;
mod dump;
mod feed;
mod follow;
mod fork;
mod gap;
mod heal;
mod hostile;
mod keys_of;
mod leaving;
mod metrics;
mod order;
mod output;
mod overload;
mod past;
mod provider;
mod ready;
mod redis;
mod refusals;
mod ring;
mod scripted;
mod secure;
mod shares;
mod slow;
mod store;
mod support;
mod systemd;
mod takeover;
mod tools;
mod transports;
mod warmth;
mod web;
mod whole;
