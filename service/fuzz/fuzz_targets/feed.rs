//! Any bytes as the feed's log: opened, continued and read.
//!
//! Owns: a directory for them. Must not: check more than `service::fuzz_feed` does. One thread.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static DIR: LazyLock<TempDir> = LazyLock::new(|| {
    // In memory, because a device would dominate the time of each run.
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory for the log can be made")
});

fuzz_target!(|bytes: &[u8]| service::fuzz_feed(bytes, &DIR.path().join("feed")));
