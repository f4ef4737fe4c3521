//! The shape of an account update: where an extractor finds the pair of key and value.
//!
//! Owns: the byte layouts of SPL Token and Token-2022 accounts as far as a reader of the stream looks at them.
//! Must not: know slots, filters or the wire. Plain functions, used on every feed's task.

use workload::{Key, Value};

/// What part of an account is the pair's value. The key is always the account's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extract {
    /// The program that owns the account.
    AccountOwner,
    /// Bytes 32..64 of a token account: the wallet.
    TokenOwner,
    /// Bytes 0..32 of a token account: the mint.
    TokenMint,
}

/// The System program's address: 32 zero bytes. A closed account belongs to it.
pub const SYSTEM_PROGRAM: [u8; 32] = [0; 32];
/// `TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA`.
pub const TOKEN_PROGRAM: [u8; 32] = [
    6, 221, 246, 225, 215, 101, 161, 147, 217, 203, 225, 70, 206, 235, 121, 172, 28, 180, 133, 237, 95, 91, 55, 145,
    58, 140, 245, 133, 126, 255, 0, 169,
];
/// `TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb`.
pub const TOKEN_2022_PROGRAM: [u8; 32] = [
    6, 221, 246, 225, 238, 117, 143, 222, 24, 66, 93, 188, 228, 108, 205, 218, 182, 26, 252, 77, 131, 185, 13, 39, 254,
    189, 249, 40, 216, 161, 139, 252,
];

/// Length of an SPL Token account.
const TOKEN_BYTES: usize = 165;
/// A Token-2022 account with one empty extension: the account type at 165, then a 2-byte type and a 2-byte length.
const TOKEN_2022_BYTES: usize = 170;
/// Length of a Token multisig, which is never a token account though its byte 165 may look like one.
const MULTISIG_BYTES: usize = 355;
/// Where a token account keeps its state: 0 uninitialized, 1 initialized, 2 frozen.
const STATE_OFFSET: usize = 108;
/// Data of an account that is not a token account: any few bytes will do.
const PLAIN_BYTES: usize = 40;

/// An account as the validator would report it, before slicing. 170 bytes at most, on the stack.
#[derive(Clone, Debug)]
pub struct Account {
    /// Balance in lamports; 0 for a closed account.
    pub lamports: u64,
    /// The owning program.
    pub owner: [u8; 32],
    data: [u8; TOKEN_2022_BYTES],
    data_len: usize,
}

impl Account {
    /// The account `key` with the pair's `value`, shaped for `extract`. `version` varies what is not the value (the
    /// token amount), as a live account's data does.
    pub fn open(extract: Extract, key: &Key, value: &Value, version: u64) -> Self {
        let mut account =
            Self { lamports: 2_039_280, owner: *value, data: [0; TOKEN_2022_BYTES], data_len: PLAIN_BYTES };
        if extract == Extract::AccountOwner {
            account.data[..8].copy_from_slice(&version.to_le_bytes());
            account.data[8..PLAIN_BYTES].copy_from_slice(key);
            return account;
        }
        // The other address field is the key itself: any address will do, and a mixed-up offset then shows.
        let (mint, owner) = if extract == Extract::TokenMint { (value, key) } else { (key, value) };
        account.data[..32].copy_from_slice(mint);
        account.data[32..64].copy_from_slice(owner);
        account.data[64..72].copy_from_slice(&version.to_le_bytes());
        account.data[STATE_OFFSET] = 1;
        account.owner = TOKEN_PROGRAM;
        account.data_len = TOKEN_BYTES;
        // One in eight, so that a reader that asks for exactly 165 bytes is found out.
        if key[31] & 7 == 0 {
            account.owner = TOKEN_2022_PROGRAM;
            account.data[TOKEN_BYTES] = 2;
            account.data[TOKEN_BYTES + 1] = 7;
            account.data_len = TOKEN_2022_BYTES;
        }
        account
    }

    /// A closed account: no lamports, no data, owned by the System program.
    pub fn closed() -> Self {
        Self { lamports: 0, owner: SYSTEM_PROGRAM, data: [0; TOKEN_2022_BYTES], data_len: 0 }
    }

    /// The account's whole data.
    pub fn data(&self) -> &[u8] {
        &self.data[..self.data_len]
    }
}

/// Whether `data` is that of a live token account, by the Token programs' own rule.
pub fn is_token_account(data: &[u8]) -> bool {
    let initialized = data.get(STATE_OFFSET).is_some_and(|&state| state != 0);
    let shape = data.len() == TOKEN_BYTES
        || (data.len() > TOKEN_BYTES && data.len() != MULTISIG_BYTES && data[TOKEN_BYTES] == 2);
    initialized && shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_the_well_known_addresses() {
        assert_eq!(bs58::encode(TOKEN_PROGRAM).into_string(), "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA");
        assert_eq!(bs58::encode(TOKEN_2022_PROGRAM).into_string(), "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb");
        assert_eq!(bs58::encode(SYSTEM_PROGRAM).into_string(), "11111111111111111111111111111111");
    }

    #[test]
    fn the_value_is_where_each_extractor_looks() {
        let (key, value) = ([8u8; 32], [3u8; 32]);
        assert_eq!(Account::open(Extract::AccountOwner, &key, &value, 1).owner, value);
        assert_eq!(Account::open(Extract::TokenMint, &key, &value, 1).data()[..32], value);
        let long = Account::open(Extract::TokenOwner, &key, &value, 1);
        assert_eq!((&long.data()[32..64], long.data().len(), long.owner), (&value[..], 170, TOKEN_2022_PROGRAM));
        let short = Account::open(Extract::TokenOwner, &[9; 32], &value, 1);
        assert_eq!((short.data().len(), short.owner), (165, TOKEN_PROGRAM));
        assert!(is_token_account(long.data()) && is_token_account(short.data()));
        assert!(!is_token_account(Account::closed().data()));
    }
}
