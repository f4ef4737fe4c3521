//! The secret of a derived store, and the hashes that are made with it.
//!
//! Owns: the choice of the hash. Must not: show the secret: whoever knows it can choose keys and values whose entries collide.

use std::fmt;
use std::hash::Hasher as _;

use engine_api::{Error, ErrorKind, Key, Result};
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::PREFIX_BYTES;

/// Secret of one derived store, drawn when it is built.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; Self::BYTES]);

impl Secret {
    pub(crate) const BYTES: usize = 16;

    /// Draws a secret.
    ///
    /// # Errors
    /// `Internal`: the kernel gives no random bytes.
    pub fn random() -> Result<Self> {
        Ok(Self(random()?))
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn to_bytes(&self) -> [u8; Self::BYTES] {
        self.0
    }

    /// Returns the SipHash-2-4-128 of a key or a value. Strangers choose both, so the hash has to be one whose collisions cannot
    /// be found without the secret.
    pub(crate) fn hash(&self, of: &Key) -> [u8; PREFIX_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(of);
        hasher.finish128().as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::with_source(ErrorKind::Internal, "cannot get random bytes from the kernel", e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `vectors_sip128[32]` of https://github.com/veorq/SipHash: the key is 00 to 0f, the input 00 to 1f.
    #[test]
    fn the_hash_is_that_of_the_reference_implementation() {
        let secret = Secret::from_bytes(std::array::from_fn(|n| n as u8));
        let hash = secret.hash(&std::array::from_fn(|n| n as u8));
        assert_eq!(u128::from_be_bytes(hash), 0x7c39_56ca_5eea_fc3e_363e_9d55_6546_eb68);
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
    }
}
