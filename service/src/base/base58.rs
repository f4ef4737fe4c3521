//! Pubkeys in base58, as people and programs write them.
//!
//! Owns: the length of such a text. Must not: guess whether a text is one.

use engine_api::Key;

/// Lengths of a pubkey in base58. The only one of 32 characters is all ones.
const CHARS_MIN: usize = 32;
const CHARS_MAX: usize = 44;

/// Returns the base58 of a pubkey.
pub(crate) fn text(pubkey: &[u8; 32]) -> String {
    let mut text = [0; CHARS_MAX];
    let length = five8::encode_32(pubkey, &mut text);
    String::from_utf8_lossy(&text[..usize::from(length)]).into_owned()
}

/// Returns the pubkey that this is the base58 of.
pub(crate) fn pubkey(text: &[u8]) -> Option<Key> {
    let mut key = Key::default();
    let is_one = (CHARS_MIN..=CHARS_MAX).contains(&text.len()) && five8::decode_32(text, &mut key).is_ok();
    is_one.then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_what_the_slower_library_makes_of_it() {
        let keys =
            (0..=255u8).flat_map(|n| [[n; 32], std::array::from_fn(|at| if at < 20 { 0 } else { n ^ at as u8 })]);
        for key in keys {
            let text = bs58::encode(key).into_string();
            assert_eq!((super::text(&key), pubkey(text.as_bytes())), (text.clone(), Some(key)), "{text}");
            for at in 0..text.len() {
                let mut other = text.clone().into_bytes();
                other[at] = b"1z0Il\xff"[at % 6];
                let mut expected = Key::default();
                let length = bs58::decode(&other).onto(&mut expected);
                assert_eq!(pubkey(&other), (length == Ok(32)).then_some(expected), "{other:?}");
            }
        }
    }
}
