//! Output of the commands that end by themselves. The reader of that output may be gone, or the disk that it goes to
//! may be full.
//!
//! Owns: the handling of text that cannot be written. Must not: panic, or be used by the running service, which logs
//! instead. Runs on the main thread.

use std::io::{self, ErrorKind as Io, Write as _};

use anyhow::{Context as _, Result};

/// Writes all of `text` to standard output. A reader that has closed its end is no error.
///
/// # Errors
/// Any other I/O error of writing.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != Io::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}

/// Writes a line to standard error. A failure is ignored, because there is no place to report it.
pub(crate) fn tell(line: &str) {
    writeln!(io::stderr().lock(), "{line}").ok();
}
