//! An error and its causes as one line of text.
//!
//! Does no I/O.

use std::error::Error as StdError;

use crate::Code;

/// Returns the error's code, its message, and those of its causes: see [`with_causes`].
pub fn words(error: &(dyn StdError + 'static)) -> String {
    let mut chain = std::iter::successors(Some(error), |error| (*error).source());
    let code = Code::of(error).or_else(|| chain.find_map(|error| named(&error.to_string())));
    match code {
        Some(code) => with_causes(code.to_string(), Some(error)),
        None => with_causes(error.to_string(), error.source()),
    }
}

/// Returns the code that the text is. A code that was added as anyhow's context shows itself by its text alone.
fn named(text: &str) -> Option<Code> {
    Code::ALL.iter().copied().find(|code| code.as_str() == text)
}

/// Adds the messages of an error's causes, of which `cause` is the first, to its own. A cause whose text is already in the
/// line is left out, because messages of engines often contain the system's reason.
pub fn with_causes(mut said: String, mut cause: Option<&(dyn StdError + 'static)>) -> String {
    while let Some(error) = cause {
        let text = error.to_string();
        if named(&text).is_none() && !said.contains(&text) {
            said.push_str(": ");
            said.push_str(&text);
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorKind};

    #[test]
    fn a_reason_is_said_once() {
        let denied = || std::io::Error::from_raw_os_error(13);
        let named = Error::io(format!("cannot open file=x reason={}", denied()), denied());
        assert_eq!(words(&named), "cannot open file=x reason=Permission denied (os error 13)");
        let adds = Error::with_source(ErrorKind::Reopen, "cannot commit", denied());
        assert_eq!(words(&adds), "E-REOPEN: cannot commit: Permission denied (os error 13)");
    }

    #[test]
    fn the_code_comes_first_wherever_it_is_in_the_chain() {
        let held = Error::new(ErrorKind::Retry, "store is open in another process").with_code(Code::Lock);
        assert_eq!(words(&held), "E-LOCK: store is open in another process");
        let outer =
            Error::with_source(ErrorKind::FixInput, "cannot begin", Error::wrong(Code::Resume, "nothing to resume"));
        assert_eq!(words(&outer), "E-RESUME: cannot begin: nothing to resume");
    }
}
