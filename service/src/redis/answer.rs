//! Answers in both versions of the protocol, and the error of each cause of a refusal.
//!
//! Owns: the encoding, and this table. Must not: decide about a request. Threads: the network edge.

use std::io::Write as _;

use engine_api::Value;

use super::name::Form;
use crate::ask::refusal::{Cause, Refusal};
use crate::base::base58;

/// Version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    #[default]
    Two,
    /// It has maps, and a null of its own.
    Three,
}

/// Answers that are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) bytes: Vec<u8>,
    /// Number of bytes that were taken out to be sent.
    pub(super) taken: u64,
    pub(super) version: Version,
}

impl Answers {
    /// Returns the number of bytes that were ever added.
    pub(super) fn added(&self) -> u64 {
        self.taken + self.bytes.len() as u64
    }

    pub(super) fn text(&mut self, text: &str) {
        self.head('+', text);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.head(':', number);
    }

    pub(super) fn signed(&mut self, number: i64) {
        self.head(':', number);
    }

    /// Begins an array of so many answers, which the caller adds.
    pub(super) fn array(&mut self, count: usize) {
        self.head('*', count);
    }

    /// Begins a map of so many pairs of answers, which the caller adds.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.array(pairs * 2),
            Version::Three => self.head('%', pairs),
        }
    }

    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.head('$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a value in the form in which its key was given.
    pub(super) fn value(&mut self, value: Option<&Value>, form: Form) {
        match (value, form) {
            (None, _) => self.null(),
            (Some(value), Form::Raw) => self.bulk(value),
            (Some(value), Form::Base58) => self.bulk(base58::text(value).as_bytes()),
        }
    }

    pub(super) fn slot(&mut self, slot: Option<u64>) {
        match slot {
            Some(slot) => self.number(slot),
            None => self.null(),
        }
    }

    /// Adds an error: a word for programs, the stable code, and a text.
    pub(super) fn refusal(&mut self, refusal: &Refusal) {
        let word = match refusal.cause {
            Cause::Unauthenticated => "NOAUTH",
            // Clients that know this word ask again.
            Cause::NotReached | Cause::Full | Cause::Unavailable | Cause::Overdue => "TRYAGAIN",
            Cause::Invalid
            | Cause::NotFound
            | Cause::OutOfRange
            | Cause::NotOffered
            | Cause::Damaged
            | Cause::Internal => "ERR",
        };
        self.error(word, &format!("{}: {}", refusal.code.as_str(), refusal.message));
    }

    /// Adds an error. A text with the end of a line would be taken for another answer.
    pub(super) fn error(&mut self, word: &str, text: &str) {
        let start = self.bytes.len();
        self.head('-', format_args!("{word} {text}"));
        let end = self.bytes.len() - 2;
        self.bytes[start..end].iter_mut().filter(|byte| byte.is_ascii_control()).for_each(|byte| *byte = b' ');
    }

    fn head(&mut self, kind: char, what: impl std::fmt::Display) {
        // Writing to memory cannot fail.
        let _written = write!(self.bytes, "{kind}{what}\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_and_the_versions_differ_in_maps_and_nulls() {
        let mut answers = Answers::default();
        answers.refusal(&Refusal::new(Cause::Full, "a\r\n+OK"));
        answers.map(1);
        answers.null();
        answers.version = Version::Three;
        answers.map(1);
        answers.null();
        answers.value(Some(&[0; 32]), Form::Base58);
        let expected =
            "-TRYAGAIN E-BUSY: a  +OK\r\n*2\r\n$-1\r\n%1\r\n_\r\n$32\r\n11111111111111111111111111111111\r\n";
        assert_eq!(String::from_utf8(answers.bytes).unwrap(), expected);
    }
}
