//! An error and its causes as one line of text.
//!
//! Does no I/O.

use std::error::Error as StdError;

/// Returns the error's message followed by those of its causes. A cause whose text is already in the line is left out,
/// because messages of engines often contain the system's reason.
pub fn words(error: &(dyn StdError + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
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
        assert_eq!(words(&adds), "cannot commit: Permission denied (os error 13)");
    }
}
