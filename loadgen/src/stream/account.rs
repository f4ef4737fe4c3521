//! The shape of an account update: where an extractor finds key and value, and the other states of an account.
//!
//! Owns: the byte layouts of SPL Token and Token-2022 accounts, as far as a reader of the stream looks at them. Must
//! not: know slots, filters or the wire. Plain functions, used on every feed's task.

use workload::{Key, Value};

/// The part of an account that is the pair's value. The key is always the account's address.
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

/// Address of the System program: 32 zero bytes. It owns closed accounts.
pub const SYSTEM_PROGRAM: [u8; 32] = [0; 32];
/// Address of the SPL Token program, `TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA`.
pub const TOKEN_PROGRAM: [u8; 32] = [
    6, 221, 246, 225, 215, 101, 161, 147, 217, 203, 225, 70, 206, 235, 121, 172, 28, 180, 133, 237, 95, 91, 55, 145,
    58, 140, 245, 133, 126, 255, 0, 169,
];
/// Address of the Token-2022 program, `TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb`.
pub const TOKEN_2022_PROGRAM: [u8; 32] = [
    6, 221, 246, 225, 238, 117, 143, 222, 24, 66, 93, 188, 228, 108, 205, 218, 182, 26, 252, 77, 131, 185, 13, 39, 254,
    189, 249, 40, 216, 161, 139, 252,
];

/// Number of variants of [`Account::left`]: a wallet, another program's account, a mint, a mint with an extension, a
/// multisig, an uninitialised token account, and one without lamports and data that still belongs to Token.
pub const LEAVINGS: u8 = 7;

/// Lamports of an open account: the balance that makes a token account rent exempt.
const OPEN_LAMPORTS: u64 = 2_039_280;
/// Bytes of an SPL Token mint.
pub(crate) const MINT_BYTES: usize = 82;
/// Bytes of an SPL Token account.
pub(crate) const TOKEN_BYTES: usize = 165;
/// Bytes of a Token-2022 account with one empty extension: the account type at 165, then a 2-byte type and a 2-byte
/// length.
pub(crate) const TOKEN_2022_BYTES: usize = 170;
/// Bytes of a Token multisig. It is never a token account, although its byte 165 may look like one.
pub(crate) const MULTISIG_BYTES: usize = 355;
/// Offset of a token account's state: 0 uninitialized, 1 initialized, 2 frozen.
pub(crate) const STATE_OFFSET: usize = 108;
/// Bytes of data of an account that is not a token account. Any few bytes will do.
const PLAIN_BYTES: usize = 40;

/// An account as the validator reports it, before slicing.
#[derive(Clone, Debug)]
pub struct Account {
    /// Balance in lamports; 0 for a closed account.
    pub lamports: u64,
    /// Address of the owning program.
    pub owner: [u8; 32],
    data: Data,
}

/// Data of an account. The short form, of which streams mostly consist, is on the stack.
#[derive(Clone, Debug)]
enum Data {
    Short([u8; TOKEN_2022_BYTES], usize),
    Any(Vec<u8>),
}

impl Account {
    /// Makes the open account `key` with the pair's `value`, shaped for `extract`. `version` varies other bytes than
    /// the value (the token amount), as the data of a live account varies.
    pub fn open(extract: Extract, key: &Key, value: &Value, version: u64) -> Self {
        let mut data = [0; TOKEN_2022_BYTES];
        if extract == Extract::AccountOwner {
            data[..8].copy_from_slice(&version.to_le_bytes());
            data[8..PLAIN_BYTES].copy_from_slice(key);
            return Self { lamports: OPEN_LAMPORTS, owner: *value, data: Data::Short(data, PLAIN_BYTES) };
        }
        // The other address field gets the key: any address will do, and a wrong offset then shows.
        let (mint, owner) = if extract == Extract::TokenMint { (value, key) } else { (key, value) };
        data[..32].copy_from_slice(mint);
        data[32..64].copy_from_slice(owner);
        data[64..72].copy_from_slice(&version.to_le_bytes());
        data[STATE_OFFSET] = 1;
        // One account in eight, so that a reader that asks for exactly 165 bytes is found out.
        let (owner, data_len) = if key[31] & 7 == 0 {
            data[TOKEN_BYTES] = 2;
            data[TOKEN_BYTES + 1] = 7;
            (TOKEN_2022_PROGRAM, TOKEN_2022_BYTES)
        } else {
            (TOKEN_PROGRAM, TOKEN_BYTES)
        };
        Self { lamports: OPEN_LAMPORTS, owner, data: Data::Short(data, data_len) }
    }

    /// Makes an account with these fields.
    pub fn of(lamports: u64, owner: [u8; 32], data: Vec<u8>) -> Self {
        Self { lamports, owner, data: Data::Any(data) }
    }

    /// Makes an account that was a token account and is none any more. `draw` picks one of the [`LEAVINGS`].
    pub fn left(draw: u8) -> Self {
        match draw % LEAVINGS {
            0 => Self::of(5, SYSTEM_PROGRAM, Vec::new()),
            1 => Self::of(5, [9; 32], looks_like_an_account(TOKEN_BYTES, 1, 0)),
            2 => Self::of(5, TOKEN_PROGRAM, looks_like_an_account(MINT_BYTES, 0, 0)),
            3 => Self::of(5, TOKEN_2022_PROGRAM, looks_like_an_account(TOKEN_2022_BYTES, 1, 1)),
            4 => Self::of(5, TOKEN_2022_PROGRAM, looks_like_an_account(MULTISIG_BYTES, 1, 2)),
            5 => Self::of(5, TOKEN_PROGRAM, looks_like_an_account(TOKEN_BYTES, 0, 0)),
            _ => Self::of(0, TOKEN_PROGRAM, Vec::new()),
        }
    }

    /// Makes a closed account: no lamports, no data, owned by the System program.
    pub fn closed() -> Self {
        Self { lamports: 0, owner: SYSTEM_PROGRAM, data: Data::Short([0; TOKEN_2022_BYTES], 0) }
    }

    /// Returns the account's whole data.
    pub fn data(&self) -> &[u8] {
        match &self.data {
            Data::Short(data, len) => &data[..*len],
            Data::Any(data) => data,
        }
    }

    /// Returns the account's whole data, to be changed in place.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        match &mut self.data {
            Data::Short(data, len) => &mut data[..*len],
            Data::Any(data) => data,
        }
    }
}

/// Makes data with these bytes at the places that decide, as far as the length has them, and 7 in every other place.
pub(crate) fn looks_like_an_account(bytes: usize, state: u8, account_type: u8) -> Vec<u8> {
    let mut data = vec![7; bytes];
    for (at, byte) in [(STATE_OFFSET, state), (TOKEN_BYTES, account_type)] {
        data.get_mut(at).into_iter().for_each(|place| *place = byte);
    }
    data
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
        for draw in 0..LEAVINGS {
            let left = Account::left(draw);
            let followed = [TOKEN_PROGRAM, TOKEN_2022_PROGRAM].contains(&left.owner) && is_token_account(left.data());
            assert!(!followed || left.lamports == 0, "{left:?}");
        }
    }
}
