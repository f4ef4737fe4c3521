//! Lines on standard output, whose reader may have gone, or whose disk may be full.
//!
//! Owns: the first failure of writing them. Must not: end the program, which may be in the middle of a load. Runs on
//! any thread.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// First failure to write to standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes a line to standard output as `println!` does, and never panics.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Writes a line to standard error as `eprintln!` does. Never panics, and waits for [`LIMIT`](crate::LIMIT) at most.
#[macro_export]
macro_rules! tell {
    ($($part:tt)*) => { $crate::tell(format_args!($($part)*)) };
}

/// Writes a text to standard output. [`end`](crate::end) reports a failure.
pub fn print(text: Arguments<'_>) {
    keep(io::stdout().lock().write_fmt(text));
}

/// Whether an earlier text could not be written, so that a program without another purpose should end.
pub fn is_output_lost() -> bool {
    failed().is_some()
}

/// Flushes standard output, and returns the first failure to write to it. A reader that has gone is none, because it
/// wants no more.
pub(crate) fn failure() -> Option<io::Error> {
    keep(io::stdout().lock().flush());
    failed().take().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

fn keep(written: io::Result<()>) {
    if let Err(error) = written {
        failed().get_or_insert(error);
    }
}

fn failed() -> MutexGuard<'static, Option<io::Error>> {
    FAILED.lock().unwrap_or_else(PoisonError::into_inner)
}
