//! The end of a connection to a Yellowstone server: its reasons, and the wait before the next attempt.
//!
//! Owns: which wait follows which reason, and the log line. Must not: connect, or read a server's text. Runs on a receiver's
//! task.

use std::time::Duration;

use engine_api::Code;
use tracing::{error, warn};

use super::backoff::Waits;
use crate::base::chain::Gap;

/// Wait before a retry where only a person can fix the cause, such as a wrong token or a forbidden filter.
const SLOW_RETRY: Duration = Duration::from_secs(30);

/// Reason for the end of a connection.
#[derive(Debug)]
pub(crate) enum Ended {
    /// A failure that a retry is likely to mend.
    Retry(String),
    /// The stream ended after a long time without any message: the server hangs, or cannot be reached any more.
    Silent(String),
    /// The server answers and sends no slot that can be applied. `sends_slots`: whether it sends messages about slots
    /// all the same.
    Idle { why: String, sends_slots: bool },
    /// A refusal that only a changed setting or a changed server can mend.
    Refused(String),
    /// The server's slots come later than those of another provider.
    Lags(String),
    /// Missing slots: the server no longer has them, or one of its messages cannot be read.
    Gap(Gap),
    /// The server's slots begin right after the slot that was asked for: ask for this slot instead.
    BeginsAt(u64),
    /// ingest-apply has found a gap on this connection.
    GivenUp,
    /// The token or the certificates have changed.
    Renewed,
    /// The receiving end of the queue to ingest-apply is gone.
    Closed,
}

impl Ended {
    /// Returns why the stream sends nothing now. `None` where slots are missing, or where nothing is wrong with the
    /// server.
    pub(crate) fn trouble(&self) -> Option<&str> {
        match self {
            Self::Retry(why) | Self::Silent(why) | Self::Refused(why) | Self::Lags(why) | Self::Idle { why, .. } => {
                Some(why)
            }
            Self::Gap(_) | Self::BeginsAt(_) | Self::GivenUp | Self::Renewed | Self::Closed => None,
        }
    }

    /// Returns the same reason with its text passed through `mask`, which removes secrets. A server may quote the
    /// secrets that it was sent.
    pub(crate) fn masked(self, mask: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Retry(why) => Self::Retry(mask(&why)),
            Self::Silent(why) => Self::Silent(mask(&why)),
            Self::Refused(why) => Self::Refused(mask(&why)),
            Self::Idle { why, sends_slots } => Self::Idle { why: mask(&why), sends_slots },
            Self::Lags(why) => Self::Lags(mask(&why)),
            Self::Gap(gap) => Self::Gap(Gap { detail: mask(&gap.detail), ..gap }),
            Self::BeginsAt(_) | Self::GivenUp | Self::Renewed | Self::Closed => self,
        }
    }

    /// Logs the reason and returns the wait before the next attempt; `None` when there is none to be made.
    pub(crate) fn log_and_wait(&self, url: &str, waits: &mut Waits) -> Option<Duration> {
        match self {
            Self::Closed => None,
            Self::BeginsAt(_) | Self::Renewed => Some(Duration::ZERO),
            Self::Retry(why) | Self::Silent(why) | Self::Idle { why, .. } => {
                // A server that sends only useless slots is retried as rarely as one that lacks a slot.
                let useless = matches!(self, Self::Idle { sends_slots: true, .. });
                let wait = if useless { waits.gap.next_wait() } else { waits.broken.next_wait() };
                warn!(url, retry_ms = wait.as_millis() as u64, "stream ended: {why}");
                Some(wait)
            }
            Self::Refused(why) => {
                error!(url, retry_ms = SLOW_RETRY.as_millis() as u64, "{}: {why}", Code::StreamRefused);
                Some(SLOW_RETRY)
            }
            Self::Lags(why) => {
                let wait = waits.gap.next_wait();
                warn!(url, retry_ms = wait.as_millis() as u64, "another provider takes over: {why}");
                Some(wait)
            }
            // ingest-apply logs the gap.
            Self::Gap(_) | Self::GivenUp => {
                let wait = waits.gap.next_wait();
                warn!(url, retry_ms = wait.as_millis() as u64, "reconnecting, to get the missing slots");
                Some(wait)
            }
        }
    }
}
