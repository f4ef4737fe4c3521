//! What the commands that end by themselves print: a reader may have gone, or the disk behind it may be full.
//!
//! Owns: what becomes of text that cannot be written. Must not: panic, or be used by the running service, which logs. Runs
//! on the main thread.

use std::io::{self, ErrorKind as Io, Write as _};

use anyhow::{Context as _, Result};

/// Writes all of `text` to standard output. A reader that has gone has had enough.
///
/// # Errors
/// It did not arrive.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != Io::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}

/// Writes a line to standard error. There is nowhere to say that it failed.
pub(crate) fn tell(line: &str) {
    writeln!(io::stderr().lock(), "{line}").ok();
}
