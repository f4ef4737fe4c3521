//! The log of a program: text or JSON on standard error.
//!
//! Owns: the form of the log. Must not: write a line on the thread that logs it. Runs on the main thread.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::limit::LIMITER;
use crate::stderr::{self, Lines};

/// Begins the log of this process. Call it once.
///
/// # Errors
/// The thread that writes the log cannot be started.
pub fn log(filter: EnvFilter, as_json: bool) -> io::Result<()> {
    if !stderr::is_started() {
        return Err(io::Error::other("cannot start the thread of the log: see the limits on threads and memory"));
    }
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines).log_internal_errors(false);
    if as_json {
        builder.json().finish().with(&LIMITER).init();
    } else {
        builder.with_ansi(io::stderr().is_terminal()).finish().with(&LIMITER).init();
    }
    Ok(())
}
