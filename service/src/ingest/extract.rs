//! Turns an account update into a key and a value.
//!
//! Owns: what each extraction means, and when an account counts as closed. Must not: do I/O, allocate for a well
//! formed update, or panic on what a server sends. Runs on the receiver's task.

use std::fmt;

use yellowstone_grpc_proto::geyser::SubscribeUpdateAccountInfo;

use super::event::Event;

/// The SPL Token program.
pub const TOKEN_PROGRAM: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";

/// The Token-2022 program.
pub const TOKEN_2022_PROGRAM: &str = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb";

/// The System program: the owner that a closed account falls back to. All zeros as bytes.
pub const SYSTEM_PROGRAM: &str = "11111111111111111111111111111111";

const TOKEN_PROGRAM_BYTES: [u8; 32] = bs58::decode(TOKEN_PROGRAM.as_bytes()).into_array_const_unwrap();
const TOKEN_2022_PROGRAM_BYTES: [u8; 32] = bs58::decode(TOKEN_2022_PROGRAM.as_bytes()).into_array_const_unwrap();

/// Which pubkey of an account becomes the value under the account's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extract {
    /// The program that owns the account; of all accounts.
    AccountOwner,
    /// The wallet that owns a token account; of SPL Token and Token-2022 accounts.
    TokenOwner,
    /// The mint of a token account; of SPL Token and Token-2022 accounts.
    TokenMint,
}

/// An update that no event can be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The address is not 32 bytes long; the length in bytes.
    Pubkey(usize),
    /// The owner is not 32 bytes long; the length in bytes.
    Owner(usize),
    /// The sliced data of a token account is not 32 bytes long: address, length in bytes.
    Data([u8; 32], usize),
}

impl Extract {
    /// The event of one update, whose data is already sliced as the subscription asks for (see `subscribe`).
    ///
    /// An account without lamports is closed: the value is `None`. So is one that a token extraction follows and
    /// that no longer belongs to a token program.
    pub fn extract(self, account: &SubscribeUpdateAccountInfo) -> Result<Event, Malformed> {
        let key = bytes_32(&account.pubkey).ok_or(Malformed::Pubkey(account.pubkey.len()))?;
        let owner = bytes_32(&account.owner).ok_or(Malformed::Owner(account.owner.len()))?;
        let open = account.lamports > 0;
        let value = match self {
            Self::AccountOwner => open.then_some(owner),
            Self::TokenOwner | Self::TokenMint if open && is_token_program(&owner) => {
                Some(bytes_32(&account.data).ok_or(Malformed::Data(key, account.data.len()))?)
            }
            Self::TokenOwner | Self::TokenMint => None,
        };
        Ok(Event { key, value, write_version: account.write_version })
    }

    /// The name, as in the configuration and in a store's marker.
    pub fn name(self) -> &'static str {
        match self {
            Self::AccountOwner => "account-owner",
            Self::TokenOwner => "token-owner",
            Self::TokenMint => "token-mint",
        }
    }

    /// The programs whose accounts have a value.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::AccountOwner => &["all"],
            Self::TokenOwner | Self::TokenMint => &[TOKEN_PROGRAM, TOKEN_2022_PROGRAM],
        }
    }

    /// Offset and length in bytes of the part of an account's data that holds the value.
    pub fn data_slice(self) -> (u64, u64) {
        match self {
            Self::AccountOwner => (0, 0),
            Self::TokenMint => (0, 32),
            Self::TokenOwner => (32, 32),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pubkey(len) => write!(f, "account address is not 32 bytes long: len_bytes={len}"),
            Self::Owner(len) => write!(f, "account owner is not 32 bytes long: len_bytes={len}"),
            Self::Data(key, len) => write!(
                f,
                "token account data is not the 32 bytes asked for: account={} len_bytes={len}; \
                 the server has to honour accounts_data_slice",
                bs58::encode(key).into_string()
            ),
        }
    }
}

impl std::error::Error for Malformed {}

fn is_token_program(owner: &[u8; 32]) -> bool {
    *owner == TOKEN_PROGRAM_BYTES || *owner == TOKEN_2022_PROGRAM_BYTES
}

fn bytes_32(bytes: &[u8]) -> Option<[u8; 32]> {
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(owner: [u8; 32], lamports: u64, data: Vec<u8>) -> SubscribeUpdateAccountInfo {
        SubscribeUpdateAccountInfo {
            pubkey: vec![7; 32],
            lamports,
            owner: owner.to_vec(),
            data,
            write_version: 5,
            ..Default::default()
        }
    }

    fn value(extract: Extract, account: &SubscribeUpdateAccountInfo) -> Option<[u8; 32]> {
        extract.extract(account).expect("well formed").value
    }

    #[test]
    fn program_addresses_are_what_base58_says() {
        for (text, bytes) in [
            (TOKEN_PROGRAM, TOKEN_PROGRAM_BYTES),
            (TOKEN_2022_PROGRAM, TOKEN_2022_PROGRAM_BYTES),
            (SYSTEM_PROGRAM, [0; 32]),
        ] {
            assert_eq!(bs58::encode(bytes).into_string(), text);
        }
    }

    #[test]
    fn the_owner_of_any_open_account() {
        assert_eq!(value(Extract::AccountOwner, &account([3; 32], 1, vec![])), Some([3; 32]));
        assert_eq!(value(Extract::AccountOwner, &account([0; 32], 1, vec![])), Some([0; 32]));
        assert_eq!(value(Extract::AccountOwner, &account([3; 32], 0, vec![])), None);
    }

    #[test]
    fn token_accounts_by_either_program() {
        for extract in [Extract::TokenOwner, Extract::TokenMint] {
            for program in [TOKEN_PROGRAM_BYTES, TOKEN_2022_PROGRAM_BYTES] {
                assert_eq!(value(extract, &account(program, 1, vec![9; 32])), Some([9; 32]));
                assert_eq!(value(extract, &account(program, 0, vec![9; 32])), None, "closed");
            }
            assert_eq!(value(extract, &account([0; 32], 0, vec![])), None, "closed, back with System");
            assert_eq!(value(extract, &account([4; 32], 1, vec![9; 32])), None, "moved to another program");
        }
    }

    #[test]
    fn wrong_lengths_are_named() {
        let mut bad = account([3; 32], 1, vec![]);
        bad.pubkey.pop();
        assert_eq!(Extract::AccountOwner.extract(&bad), Err(Malformed::Pubkey(31)));
        let mut bad = account([3; 32], 1, vec![]);
        bad.owner.clear();
        assert_eq!(Extract::AccountOwner.extract(&bad), Err(Malformed::Owner(0)));
        for len in [0, 31, 33, 165] {
            let bad = account(TOKEN_PROGRAM_BYTES, 1, vec![0; len]);
            assert_eq!(Extract::TokenMint.extract(&bad), Err(Malformed::Data([7; 32], len)));
        }
    }
}
