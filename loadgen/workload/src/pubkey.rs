//! Parses pubkeys as people write them.
//!
//! Must not: read files. Plain functions, used where the arguments are parsed.

/// Reads a pubkey in base58 or as 64 hex digits. No pubkey has 64 digits in base58.
///
/// # Errors
/// A text that is neither, or that encodes another number of bytes than 32.
pub fn pubkey(text: &str) -> Result<[u8; 32], String> {
    let mut key = [0; 32];
    if text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        for (byte, at) in key.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|error| error.to_string())?;
        }
        return Ok(key);
    }
    match bs58::decode(text).onto(&mut key) {
        Ok(32) => Ok(key),
        Ok(bytes) => Err(format!("not a pubkey: text={text:?} bytes={bytes} expected_bytes=32")),
        Err(bs58::decode::Error::BufferTooSmall) => {
            Err(format!("not a pubkey: text={text:?} bytes=33 or more expected_bytes=32"))
        }
        Err(error) => Err(format!("not a pubkey in base58, nor 64 hex digits: text={text:?} reason={error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pubkey_has_32_bytes_in_base58_or_in_hex() {
        let hex = "069b8857feab8184fb687f634618c035dac439dc1aeb3b5598a0f00000000001";
        assert_eq!(pubkey("So11111111111111111111111111111111111111112"), pubkey(hex));
        assert_eq!(pubkey(hex).unwrap()[..2], [0x06, 0x9b]);
        for (text, said) in [
            ("So111", "bytes=4 "),
            ("", "bytes=0 "),
            ("0OIl", "hex digits: text=\"0OIl\" reason="),
            ("So111111111111111111111111111111111111111122222", "33 or more"),
            (&hex[1..], "64 hex digits"),
        ] {
            let error = pubkey(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
