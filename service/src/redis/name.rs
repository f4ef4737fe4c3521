//! Keys as clients write them: 32 raw bytes, or base58.
//!
//! Owns: telling the two apart. Must not: guess: 32 characters can be both, so base58 of 32 characters needs its prefix.

use engine_api::Key;

use crate::ask::refusal::Refusal;
use crate::base::base58;

/// Prefix of a key that is certainly base58.
const BASE58: &[u8] = b"b58:";

/// How a key was given: its value is answered in the same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Raw,
    Base58,
}

/// A key, as a client gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) key: Key,
    pub(super) form: Form,
}

impl Name {
    /// Reads a key.
    ///
    /// # Errors
    /// It is neither 32 bytes nor the base58 of 32 bytes.
    pub(super) fn read(word: &[u8]) -> Result<Self, Refusal> {
        if let Ok(key) = word.try_into() {
            return Ok(Self { key, form: Form::Raw });
        }
        let text = word.strip_prefix(BASE58).unwrap_or(word);
        if let Some(key) = base58::pubkey(text) {
            return Ok(Self { key, form: Form::Base58 });
        }
        let message = format!(
            "a key is 32 bytes, or base58 of them in 33 to 44 characters, or in any number after `b58:`: got_bytes={}",
            word.len()
        );
        Err(Refusal::invalid(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::refusal::Cause;

    #[test]
    fn thirty_two_bytes_are_raw_and_base58_has_its_lengths_or_its_prefix() {
        let name = |word: &[u8]| Name::read(word).map(|name| (name.key, name.form)).map_err(|refusal| refusal.cause);
        let ones = [b'1'; 32];
        assert_eq!(name(&ones), Ok((ones, Form::Raw)), "the system program's name without the prefix is raw");
        assert_eq!(name(&[b"b58:".as_slice(), &ones].concat()), Ok(([0; 32], Form::Base58)));
        for key in [[1; 32], [255; 32], [7; 32]] {
            let text = bs58::encode(key).into_string();
            assert_eq!(name(text.as_bytes()), Ok((key, Form::Base58)), "{text}");
            assert_eq!(name(format!("b58:{text}").as_bytes()), Ok((key, Form::Base58)));
        }
        // 33 ones are 33 bytes; 44 z are more than 32 bytes; 0 is no letter of base58.
        for wrong in
            [vec![b'1'; 33], vec![b'z'; 44], vec![b'0'; 43], vec![b'1'; 45], vec![0; 31], Vec::new(), b"b58:".to_vec()]
        {
            assert_eq!(name(&wrong), Err(Cause::Invalid), "{wrong:?}");
        }
    }
}
