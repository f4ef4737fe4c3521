//! Lines of the commands, on standard output and standard error or in a program's log.
//!
//! Owns: the choice between these. Must not: write; `program` does. Runs on any thread.

use std::fmt;
use std::sync::OnceLock;

/// Takes the lines in a program that has a log.
static LOG: OnceLock<fn(&str)> = OnceLock::new();

/// Gives every later line to `log`, in a program that runs a load as its own part. Only the first call has an effect.
pub fn log_with(log: fn(&str)) {
    LOG.get_or_init(|| log);
}

/// Gives a line to the log, or writes it to standard output.
macro_rules! say {
    ($($part:tt)*) => { $crate::out::line(format_args!($($part)*)) };
}

/// Gives a line to the log, or writes it to standard error.
macro_rules! tell {
    ($($part:tt)*) => { $crate::out::warning(format_args!($($part)*)) };
}

pub(crate) use {say, tell};

/// Writes the line of [`say`].
pub(crate) fn line(text: fmt::Arguments<'_>) {
    if !is_logged(text) {
        program::say!("{text}");
    }
}

/// Writes the line of [`tell`].
pub(crate) fn warning(text: fmt::Arguments<'_>) {
    if !is_logged(text) {
        program::tell!("{text}");
    }
}

/// Whether the lines go to a program's log, which a bar on the terminal would tear apart.
pub(crate) fn has_log() -> bool {
    LOG.get().is_some()
}

/// Gives the lines of `text` to the program's log. Returns `false` if there is none.
fn is_logged(text: fmt::Arguments<'_>) -> bool {
    let Some(log) = LOG.get() else { return false };
    text.to_string().lines().map(str::trim_end).filter(|line| !line.is_empty()).for_each(log);
    true
}
