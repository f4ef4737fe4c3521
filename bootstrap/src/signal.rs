//! Ctrl-C and SIGTERM as a flag that the load loop looks at between batches.
//!
//! The handlers only store the signal's number; a second signal ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Which signal asked to stop, if any.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Takes SIGINT and SIGTERM over for the rest of the process.
    pub(crate) fn install() -> Result<Self> {
        let number = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first handler sees what an earlier signal has left, the second leaves it.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&number), signal as usize))
                .with_context(|| format!("cannot take over signal={signal}"))?;
        }
        Ok(Self(number))
    }

    /// The exit code for the signal that arrived: 130 for SIGINT, 143 for SIGTERM.
    pub(crate) fn asked(&self) -> Option<u8> {
        // ORDERING: Relaxed: the number is all that is communicated.
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(128 + signal as u8),
        }
    }
}
