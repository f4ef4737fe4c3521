//! The options at the end of a request: `NAME VALUE`, in any order.
//!
//! Owns: reading them. Must not: take a key for one: no key has the length of an option's name.

use proto::v1::GET_MANY_KEYS_MAX;

use crate::ask::refusal::{Refusal, unknown_commitment};
use crate::base::chain::Commitment;
use crate::derive::Cursor;

/// Values of the options that a request may have beside its keys.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) commitment: Commitment,
    pub(super) min_slot: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) cursor: Option<Cursor>,
}

impl Options {
    pub(super) fn new(commitment: Commitment) -> Self {
        Self { commitment, min_slot: None, limit: None, cursor: None }
    }
}

/// Takes the options that have one of the `known` names from the end of `words`. Returns the other words.
///
/// # Errors
/// A value is none of its option.
pub(super) fn read<'w, 'b>(
    mut words: &'w [&'b [u8]],
    known: &[&str],
    commitment: Commitment,
) -> Result<(&'w [&'b [u8]], Options), Refusal> {
    let mut options = Options::new(commitment);
    while let [rest @ .., name, value] = words
        && let Some(name) = known.iter().find(|known| known.as_bytes().eq_ignore_ascii_case(name))
    {
        match *name {
            "COMMITMENT" => options.commitment = self::commitment(value)?,
            "MINSLOT" => options.min_slot = Some(number(value, "MINSLOT")?),
            "LIMIT" => options.limit = Some(limit(value)?),
            _ => options.cursor = Some(cursor(value)?),
        }
        words = rest;
    }
    Ok((words, options))
}

/// Reads a commitment's name.
///
/// # Errors
/// There is no such commitment.
pub(super) fn commitment(word: &[u8]) -> Result<Commitment, Refusal> {
    std::str::from_utf8(word).ok().and_then(Commitment::named).ok_or_else(unknown_commitment)
}

/// Reads a number. The error calls it `name`.
///
/// # Errors
/// It is none, or too large.
pub(super) fn number(word: &[u8], name: &str) -> Result<u64, Refusal> {
    let digits = std::str::from_utf8(word).ok().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| Refusal::invalid(format!("{name} is no number")))
}

fn limit(word: &[u8]) -> Result<u64, Refusal> {
    let limit = number(word, "LIMIT")?;
    if (1..=GET_MANY_KEYS_MAX as u64).contains(&limit) {
        return Ok(limit);
    }
    Err(Refusal::invalid(format!("LIMIT is 1 to {GET_MANY_KEYS_MAX}: go on with CURSOR")))
}

fn cursor(word: &[u8]) -> Result<Cursor, Refusal> {
    let mut cursor = Cursor::default();
    let read = bs58::decode(word).onto(&mut cursor);
    if read == Ok(cursor.len()) {
        Ok(cursor)
    } else {
        Err(Refusal::invalid("CURSOR is not of an answer: begin without one"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_last_in_any_order() {
        let known = ["COMMITMENT", "MINSLOT", "LIMIT", "CURSOR"];
        let read = |words: &[&[u8]]| {
            super::read(words, &known, Commitment::Confirmed)
                .map(|(rest, options)| (rest.len(), options.commitment, options.min_slot, options.limit))
        };
        let words: [&[u8]; 6] = [b"key", b"other", b"minslot", b"7", b"Commitment", b"FINALIZED"];
        assert_eq!(read(&words).unwrap(), (2, Commitment::Finalized, Some(7), None));
        assert_eq!(read(&words[..2]).unwrap(), (2, Commitment::Confirmed, None, None));
        assert_eq!(read(&[b"key", b"LIMIT", b"10000"]).unwrap(), (1, Commitment::Confirmed, None, Some(10_000)));
        let wrong: [[&[u8]; 2]; 6] = [
            [b"limit", b"0"],
            [b"limit", b"10001"],
            [b"minslot", b"-1"],
            [b"minslot", b"18446744073709551616"],
            [b"commitment", b"sure"],
            [b"cursor", b"1"],
        ];
        for words in wrong {
            assert!(read(&words).is_err(), "{words:?}");
        }
    }
}
