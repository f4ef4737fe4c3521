//! Lines on standard output and standard error, of which a reader may have had enough.
//!
//! Owns: what becomes of a line that cannot be written. Must not: end the program, which may be in the middle of a load.
//! Runs on any thread.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::Mutex;

/// The first failure to write to standard output, a closed pipe aside.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes a line to standard output, as `println!` does, and never panics.
macro_rules! say {
    ($($part:tt)*) => { $crate::out::line(format_args!($($part)*)) };
}

/// Writes a line to standard error, as `eprintln!` does, and never panics.
macro_rules! tell {
    ($($part:tt)*) => { $crate::out::warning(format_args!($($part)*)) };
}

pub(crate) use {say, tell};

/// What [`say`] does.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    keep(writeln!(io::stdout().lock(), "{text}"));
}

/// What [`tell`] does. There is nowhere to say that it failed.
pub(crate) fn warning(text: fmt::Arguments<'_>) {
    writeln!(io::stderr().lock(), "{text}").ok();
}

/// Flushes standard output; why something that was said did not arrive, if so. A reader that has gone has had enough.
pub(crate) fn failure() -> Option<io::Error> {
    keep(io::stdout().lock().flush());
    FAILED.lock().ok()?.take()
}

fn keep(written: io::Result<()>) {
    if let (Err(error), Ok(mut failed)) = (written, FAILED.lock())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        failed.get_or_insert(error);
    }
}
