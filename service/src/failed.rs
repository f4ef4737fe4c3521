//! Why the service ended with an error, by what its caller can do: change something, or start it again.
//!
//! Owns: this distinction and the exit codes that stand for it. Must not: guess it from an error's text.

use std::fmt;

use engine_api::ErrorKind;

/// The exit code for an error that may pass.
const ERROR: u8 = 1;
/// The exit code for an error that comes back at each start; clap uses it for arguments. The packaged units do not start
/// the service again after it.
const WRONG: u8 = 2;

/// An error, and whether starting again could help.
#[derive(Debug)]
pub struct Failed {
    code: u8,
    error: anyhow::Error,
}

impl Failed {
    /// The caller has to change something first: the configuration, a file that it names, the store's directory.
    pub fn wrong(error: anyhow::Error) -> Self {
        Self { code: WRONG, error }
    }

    /// The program's exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

/// With all its causes.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&engine_api::words(self.error.as_ref()))
    }
}

/// Without another word starting again may help.
impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self { code: ERROR, error }
    }
}

/// An engine says by the kind of its error what it asks for. A store that is damaged stays so. Another process that has the store open is
/// [`ErrorKind::Retry`].
impl From<engine_api::Error> for Failed {
    fn from(error: engine_api::Error) -> Self {
        let wrong = [ErrorKind::FixInput, ErrorKind::DataDamaged].contains(&error.kind());
        let code = if wrong { WRONG } else { ERROR };
        Self { code, error: error.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starting_again_cannot_mend_ends_with_2() {
        for (kind, code) in [
            (ErrorKind::FixInput, WRONG),
            (ErrorKind::DataDamaged, WRONG),
            (ErrorKind::Retry, ERROR),
            (ErrorKind::FreeSpace, ERROR),
            (ErrorKind::Reopen, ERROR),
            (ErrorKind::Internal, ERROR),
        ] {
            assert_eq!(Failed::from(engine_api::Error::new(kind, "")).code(), code, "{kind:?}");
        }
    }
}
