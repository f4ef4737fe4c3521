//! Prints lines to standard output and standard error, whose reader may have gone, or gives them to a program's log.
//!
//! Owns: the handling of a line that cannot be written. Must not: end the program, which may be in the middle of a
//! load. Runs on any thread.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::{Mutex, OnceLock};

/// First failure to write to standard output, other than a closed pipe.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Takes the lines in a program that has a log.
static LOG: OnceLock<fn(&str)> = OnceLock::new();

/// Gives every later line to `log`, in a program that runs a load as its own part. Only the first call has an effect.
pub fn log_with(log: fn(&str)) {
    LOG.get_or_init(|| log);
}

/// Writes a line to standard output, as `println!` does, and never panics.
macro_rules! say {
    ($($part:tt)*) => { $crate::out::line(format_args!($($part)*)) };
}

/// Writes a line to standard error, as `eprintln!` does, and never panics.
macro_rules! tell {
    ($($part:tt)*) => { $crate::out::warning(format_args!($($part)*)) };
}

pub(crate) use {say, tell};

/// Writes the line of [`say`].
pub(crate) fn line(text: fmt::Arguments<'_>) {
    if !is_logged(text) {
        keep(writeln!(io::stdout().lock(), "{text}"));
    }
}

/// Writes the line of [`tell`]. A failure is ignored, because there is nowhere to report it.
pub(crate) fn warning(text: fmt::Arguments<'_>) {
    if !is_logged(text) {
        writeln!(io::stderr().lock(), "{text}").ok();
    }
}

/// Flushes standard output, and returns the first error of writing to it. A closed pipe is no error, because its reader
/// wants no more.
pub(crate) fn failure() -> Option<io::Error> {
    keep(io::stdout().lock().flush());
    FAILED.lock().ok()?.take()
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

fn keep(written: io::Result<()>) {
    if let (Err(error), Ok(mut failed)) = (written, FAILED.lock())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        failed.get_or_insert(error);
    }
}
