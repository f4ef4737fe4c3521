//! [`Extract`]: the public key of an account that becomes the value stored under the account's address.
//!
//! Owns: the meaning and the name of each extraction, and when an account counts as closed. Must not: do I/O, allocate,
//! or panic on any account. Any thread.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::token::{ACCOUNT_BYTES, STATE_OFFSET, TokenProgram};
pub use crate::token::{TOKEN_2022_PROGRAM, TOKEN_PROGRAM};

/// Address of the System program, which owns a closed account. All zeros as bytes.
pub const SYSTEM_PROGRAM: &str = "11111111111111111111111111111111";

/// First bytes of an account's data that decide every extraction: up to the account type after a token account.
pub const HEAD_BYTES: usize = ACCOUNT_BYTES as usize + 1;

/// The public key of an account that becomes the value stored under the account's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extract {
    /// The program that owns the account; of all accounts.
    AccountOwner,
    /// The wallet that owns a token account; of SPL Token and Token-2022 accounts.
    TokenOwner,
    /// The mint of a token account; of SPL Token and Token-2022 accounts.
    TokenMint,
}

/// A name that no extraction has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown extraction: extract={0}: use account-owner, token-owner or token-mint")]
pub struct UnknownExtract(String);

impl Extract {
    /// Every extraction, in the order of the help.
    pub const ALL: [Self; 3] = [Self::AccountOwner, Self::TokenOwner, Self::TokenMint];

    /// Returns the name used in the configuration and in a store's marker.
    pub fn name(self) -> &'static str {
        match self {
            Self::AccountOwner => "account-owner",
            Self::TokenOwner => "token-owner",
            Self::TokenMint => "token-mint",
        }
    }

    /// Returns one sentence for the help of a command.
    pub fn about(self) -> &'static str {
        match self {
            Self::AccountOwner => "The program that owns the account; of all accounts",
            Self::TokenOwner => "The wallet that owns a token account; of SPL Token and Token-2022 accounts",
            Self::TokenMint => "The mint of a token account; of SPL Token and Token-2022 accounts",
        }
    }

    /// Returns the programs whose accounts have a value, or `all`.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::AccountOwner => &["all"],
            Self::TokenOwner | Self::TokenMint => &[TOKEN_PROGRAM, TOKEN_2022_PROGRAM],
        }
    }

    /// Returns offset and length, in bytes, of the part of an account's data that holds the value.
    pub fn value_slice(self) -> (u64, u64) {
        match self {
            Self::AccountOwner => (0, 0),
            Self::TokenMint => (0, 32),
            Self::TokenOwner => (32, 32),
        }
    }

    /// Returns the value of a whole account: `data_len` is the length of its data, and `data` are at least the first
    /// [`HEAD_BYTES`] of them. `None` when the account is closed, because it has no lamports, or when it is not an
    /// account of this extraction.
    pub fn value(self, lamports: u64, owner: &[u8; 32], data_len: u64, data: &[u8]) -> Option<[u8; 32]> {
        if lamports == 0 {
            return None;
        }
        let offset = match self {
            Self::AccountOwner => return Some(*owner),
            Self::TokenMint => 0,
            Self::TokenOwner => 32,
        };
        let byte = |at: u64| data.get(at as usize).copied();
        let program = TokenProgram::of(owner)?;
        let is_account = program.is_account(data_len, byte(STATE_OFFSET), byte(ACCOUNT_BYTES));
        data.get(offset..).and_then(<[u8]>::first_chunk).copied().filter(|_| is_account)
    }
}

impl fmt::Display for Extract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Extract {
    type Err = UnknownExtract;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|extract| extract.name() == name).ok_or_else(|| UnknownExtract(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> [u8; 32] {
        bs58::decode(text).into_vec().unwrap().try_into().unwrap()
    }

    /// Applies agave's rule to the whole data.
    fn valid(program: TokenProgram, data: &[u8]) -> bool {
        let initialised = |data: &[u8]| data[108] != 0;
        match program {
            _ if data.len() == 165 => initialised(data),
            TokenProgram::Token => false,
            TokenProgram::Token2022 => data.len() > 165 && data.len() != 355 && data[165] == 2 && initialised(data),
        }
    }

    #[test]
    fn the_head_of_the_data_tells_what_the_whole_data_tell() {
        for (program, owner) in [(TokenProgram::Token, TOKEN_PROGRAM), (TokenProgram::Token2022, TOKEN_2022_PROGRAM)] {
            for len in (0..=400).chain([1000, 10_240, 60_000]) {
                for (state, kind) in [(0, 2), (1, 2), (2, 2), (3, 2), (255, 2), (1, 0), (1, 1), (1, 3), (0, 0)] {
                    let mut data = vec![7; len];
                    data.iter_mut().take(32).for_each(|byte| *byte = 5);
                    for (at, byte) in [(108, state), (165, kind)] {
                        data.get_mut(at).into_iter().for_each(|place| *place = byte);
                    }
                    let head = &data[..len.min(HEAD_BYTES)];
                    let value = |extract: Extract, lamports| extract.value(lamports, &address(owner), len as u64, head);
                    let place = format!("{program:?} len={len} state={state} type={kind}");
                    let is_account = valid(program, &data);
                    assert_eq!(value(Extract::TokenMint, 1), is_account.then_some([5; 32]), "{place}");
                    assert_eq!(value(Extract::TokenOwner, 1), is_account.then_some([7; 32]), "{place}");
                    assert_eq!(value(Extract::TokenMint, 0), None, "{place}");
                    assert_eq!(value(Extract::AccountOwner, 1), Some(address(owner)), "{place}");
                    assert_eq!(value(Extract::AccountOwner, 0), None, "{place}");
                }
            }
        }
    }

    #[test]
    fn another_programs_account_is_no_token_account() {
        let data = [1; HEAD_BYTES];
        for owner in [address(SYSTEM_PROGRAM), [9; 32]] {
            assert_eq!(Extract::TokenMint.value(1, &owner, 165, &data[..165]), None);
            assert_eq!(Extract::AccountOwner.value(1, &owner, 165, &data[..165]), Some(owner));
        }
        assert_eq!(address(SYSTEM_PROGRAM), [0; 32]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for extract in Extract::ALL {
            assert_eq!(extract.to_string().parse(), Ok(extract));
            let owner = address(TOKEN_PROGRAM);
            let (offset, bytes) = extract.value_slice();
            if bytes > 0 {
                let data: Vec<u8> = (1..=165).collect();
                let value = extract.value(1, &owner, 165, &data).unwrap();
                assert_eq!(value[..], data[offset as usize..(offset + bytes) as usize]);
            }
        }
        let error = "mint".parse::<Extract>().unwrap_err();
        assert_eq!(error.to_string(), "unknown extraction: extract=mint: use account-owner, token-owner or token-mint");
    }
}
