//! Ctrl-C and SIGTERM as a flag that the load loop checks between batches.
//!
//! The handlers only store the signal's number. A second signal ends the process at once.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Error, Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::out::tell;

/// The [`Stop`] of the work under way, which is the newest one. It is global because the code that waits for input has no
/// other way to the flag.
static CURRENT: RwLock<Option<Stop>> = RwLock::new(None);

/// Error: a signal has ended the reading of the source.
#[derive(Debug)]
pub(crate) struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped while reading the source")
    }
}

impl std::error::Error for Stopped {}

impl Stopped {
    /// Whether `error` was caused by the signal, possibly wrapped in an I/O error.
    pub(crate) fn is_cause_of(error: &Error) -> bool {
        let passed_on = |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<Self>());
        error.chain().any(|cause| cause.is::<Self>() || cause.downcast_ref::<io::Error>().is_some_and(passed_on))
    }
}

/// Whether the work under way was asked to stop; `false` if there is no [`Stop`].
pub(crate) fn is_asked() -> bool {
    asked().is_some()
}

/// Says that a signal has ended a command before it changed anything, and returns the command's exit code.
pub(crate) fn tell_unchanged(error: &Error) -> u8 {
    tell!("{error}: nothing was changed, and the same command begins again");
    asked().unwrap_or(1)
}

/// Returns [`Stop::asked`] of the work under way; `None` if there is no [`Stop`].
fn asked() -> Option<u8> {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Stop::asked)
}

/// Tells which signal has asked the process to stop, if any.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Installs handlers for SIGINT and SIGTERM for the rest of the process.
    ///
    /// # Errors
    /// I/O errors of installing a handler, naming the signal.
    pub fn install() -> Result<Self> {
        let number = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters. The first handler exits if an earlier signal has set the flag, and the second one sets
            // it.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&number), signal as usize))
                .with_context(|| format!("cannot take over signal={signal}"))?;
        }
        Ok(Self(number).made_current())
    }

    /// Makes a stop without handlers, for a program that takes its signals itself and calls [`Self::ask`]. A stop that was
    /// asked for ends the work before it, and not the work after.
    pub fn without_handlers() -> Self {
        Self(Arc::default()).made_current()
    }

    fn made_current(self) -> Self {
        *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(self.clone());
        self
    }

    /// Asks to stop as SIGTERM does.
    pub fn ask(&self) {
        // ORDERING: Relaxed: see `asked`.
        self.0.store(SIGTERM as usize, Ordering::Relaxed);
    }

    /// Ends work by an error once it was asked to stop.
    ///
    /// # Errors
    /// It was asked to stop.
    pub(crate) fn look(&self) -> Result<()> {
        ensure!(self.asked().is_none(), "stopped");
        Ok(())
    }

    /// Returns the exit code for the signal that arrived: 130 for SIGINT, 143 for SIGTERM. `None` before any signal.
    pub fn asked(&self) -> Option<u8> {
        // ORDERING: Relaxed: the number is all that is communicated.
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(128 + signal as u8),
        }
    }
}
