//! Errors that end the service, by the caller's remedy: change something, or start the service again.
//!
//! Owns: this distinction and its exit codes. Must not: infer it from an error's text.

use std::fmt;

use bootstrap::Wrong;
use engine_api::{Code, ErrorKind};
use rustix::io::Errno;

/// Exit code for an error that may pass.
const ERROR: u8 = 1;
/// Exit code for an error that comes back at each start; clap uses it for wrong arguments. The packaged units do not
/// restart the service after it.
const WRONG: u8 = 2;

/// An error, with the exit code that says whether starting again could help.
#[derive(Debug)]
pub(crate) struct Failed {
    code: u8,
    error: anyhow::Error,
}

impl Failed {
    /// Marks an error that lasts until the caller changes something: the configuration, a file that it names, the
    /// store's directory.
    pub(crate) fn wrong(error: anyhow::Error) -> Self {
        Self { code: WRONG, error }
    }

    /// Marks an error as [`Failed::wrong`], unless its cause is a file system that became read-only: a start after it was
    /// mounted again succeeds.
    pub(crate) fn wrong_unless_read_only(error: anyhow::Error) -> Self {
        let is_read_only = error.chain().any(|cause| cause.downcast_ref() == Some(&Errno::ROFS));
        if is_read_only { error.into() } else { Self::wrong(error) }
    }

    /// Gives an error of the loader, of a copy or of an audit the exit code of its kind.
    pub(crate) fn by_remedy(error: anyhow::Error) -> Self {
        let kind = error.downcast_ref::<engine_api::Error>().map(engine_api::Error::kind);
        let lasts = error.is::<Wrong>() || matches!(kind, Some(ErrorKind::FixInput | ErrorKind::DataDamaged));
        if lasts { Self::wrong(error) } else { error.into() }
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

/// Shows the error with its code and all its causes. An error without a code that comes back at each start is the
/// configuration's fault.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_code = self.error.is::<Code>() || Code::of(self.error.as_ref()).is_some();
        if self.code == WRONG && !has_code {
            write!(f, "{}: ", Code::Config)?;
        }
        f.write_str(&engine_api::words(self.error.as_ref()))
    }
}

/// An error of no known kind counts as one that may pass.
impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self { code: ERROR, error }
    }
}

/// An engine's error kind decides. A damaged store stays damaged. If another process has the store open, the kind is
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
        // A file system that turned read-only (EROFS) is mounted for writing again; missing permissions (EACCES) stay.
        for (errno, code) in [(30, ERROR), (13, WRONG)] {
            let io = || engine_api::Error::io("", std::io::Error::from_raw_os_error(errno));
            assert_eq!([Failed::from(io()).code(), Failed::by_remedy(io().into()).code()], [code; 2], "errno={errno}");
        }
    }

    #[test]
    fn the_code_comes_first_wherever_it_was_added() {
        let read = || anyhow::anyhow!("file=x is missing").context(Code::Secret);
        assert_eq!(Failed::wrong(read()).to_string(), "E-SECRET: file=x is missing");
        assert_eq!(Failed::wrong(read().context("no token")).to_string(), "E-SECRET: no token: file=x is missing");
        assert_eq!(Failed::wrong(anyhow::anyhow!("no token")).to_string(), "E-CONFIG: no token");
    }
}
