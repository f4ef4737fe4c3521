//! Turns an account update into a key and a value.
//!
//! Owns: the data slices of each subscription, and the check that an update has them. Must not: do I/O, allocate for a
//! well-formed update, or panic on any message of a server. Runs on the receivers' tasks.

pub use solana::extract::{Extract, SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM};
use solana::token::TokenProgram;
use yellowstone_grpc_proto::geyser::SubscribeUpdateAccountInfo;

use super::follow::{Follow, Selection};
use super::token::{self, SHAPE_SLICES};
use crate::base::chain::Event;

/// How much of the data of a token account has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Nothing,
    /// The value's slice, and too few of the other slices for any account that the token programs make, except a mint.
    Cut,
    Data,
}

impl Selection {
    /// Extracts the event of one update, whose data must be sliced as [`data_slices`](Self::data_slices) asks.
    ///
    /// An account without lamports is closed, so its value is `None`. Under a token extraction the value is also `None`
    /// for an account that is no token account, or no longer one.
    ///
    /// # Errors
    /// The defect, in words: an address or an owner of another length than 32 bytes, or the data of a token account without
    /// the requested slices.
    pub fn extract(self, account: &SubscribeUpdateAccountInfo) -> Result<Event, String> {
        let not_32 = |name, len| format!("account {name} is not 32 bytes long: len_bytes={len}");
        let key = bytes_32(&account.pubkey).ok_or_else(|| not_32("address", account.pubkey.len()))?;
        let owner = bytes_32(&account.owner).ok_or_else(|| not_32("owner", account.owner.len()))?;
        let open = account.lamports > 0;
        let value = match (self.extract, TokenProgram::of(&owner)) {
            _ if !open => None,
            (Extract::AccountOwner, _) => Some(owner),
            (Extract::TokenOwner | Extract::TokenMint, None) => None,
            (Extract::TokenOwner | Extract::TokenMint, Some(program)) => {
                self.token_value(program, &account.data).map_err(|len| {
                    format!(
                        "token account data is not what was asked for: account={} len_bytes={len}; \
                         the server has to honour accounts_data_slice",
                        bs58::encode(key).into_string()
                    )
                })?
            }
        };
        Ok(Event { key, value, write_version: account.write_version })
    }

    /// Returns the value of a token account, or the length of data without the requested slices.
    fn token_value(self, program: TokenProgram, data: &[u8]) -> Result<Option<[u8; 32]>, usize> {
        match self.follow {
            Follow::Exact => token::value(program, data),
            // The server's filters have inspected the whole data. Of the token programs' accounts they let through
            // token accounts, and accounts without any data.
            Follow::Wallets | Follow::Closed if data.is_empty() => Ok(None),
            Follow::Wallets | Follow::Closed => bytes_32(data).map(Some).ok_or(data.len()),
        }
    }

    /// Returns how much of the data of an open account of a token program has come, under a token extraction. `None` for a
    /// mint, whose data end early, and for any other account.
    pub(super) fn token_data(self, account: &SubscribeUpdateAccountInfo) -> Option<Sent> {
        let is_token = self.extract != Extract::AccountOwner
            && account.lamports > 0
            && bytes_32(&account.owner).is_some_and(|owner| TokenProgram::of(&owner).is_some());
        let (offset, _) = self.extract.value_slice();
        match &account.data[..] {
            _ if !is_token => None,
            [] => Some(Sent::Nothing),
            data if self.follow == Follow::Exact && token::is_short(data) => {
                (!token::is_mint(offset, data)).then_some(Sent::Cut)
            }
            _ => Some(Sent::Data),
        }
    }

    /// Returns offset and length, in bytes, of the parts of an account's data to subscribe to, ascending. They are the
    /// value and, where the server's filter does not do so, the bytes that identify a token account.
    pub fn data_slices(self) -> impl Iterator<Item = (u64, u64)> {
        let exact = self.follow == Follow::Exact && self.extract != Extract::AccountOwner;
        let shape = if exact { &SHAPE_SLICES[..] } else { &[] };
        std::iter::once(self.extract.value_slice()).chain(shape.iter().copied())
    }
}

fn bytes_32(bytes: &[u8]) -> Option<[u8; 32]> {
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN_PROGRAM_BYTES: [u8; 32] = bs58::decode(TOKEN_PROGRAM.as_bytes()).into_array_const_unwrap();
    const TOKEN_2022_PROGRAM_BYTES: [u8; 32] = bs58::decode(TOKEN_2022_PROGRAM.as_bytes()).into_array_const_unwrap();

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

    fn value(selection: Selection, account: &SubscribeUpdateAccountInfo) -> Option<[u8; 32]> {
        selection.extract(account).expect("well formed").value
    }

    /// Returns the slices of a token account's data: the value, its state, and its 165th byte.
    fn token_data(value: u8, state: u8) -> Vec<u8> {
        [vec![value; 32], vec![state, 0]].concat()
    }

    #[test]
    fn the_owner_of_any_open_account() {
        let all = Selection::exact(Extract::AccountOwner);
        assert_eq!(value(all, &account([3; 32], 1, vec![])), Some([3; 32]));
        assert_eq!(value(all, &account([0; 32], 1, vec![])), Some([0; 32]));
        assert_eq!(value(all, &account([3; 32], 0, vec![])), None);
        // The data of an account do not matter for this extraction, not even those of a token account.
        assert_eq!(value(all, &account(TOKEN_PROGRAM_BYTES, 1, vec![1; 165])), Some(TOKEN_PROGRAM_BYTES));
    }

    #[test]
    fn token_accounts_by_either_program() {
        for extract in [Extract::TokenOwner, Extract::TokenMint] {
            let exact = Selection::exact(extract);
            for program in [TOKEN_PROGRAM_BYTES, TOKEN_2022_PROGRAM_BYTES] {
                assert_eq!(value(exact, &account(program, 1, token_data(9, 1))), Some([9; 32]));
                assert_eq!(value(exact, &account(program, 1, token_data(9, 2))), Some([9; 32]), "frozen");
                assert_eq!(value(exact, &account(program, 1, token_data(9, 0))), None, "uninitialised");
                assert_eq!(value(exact, &account(program, 1, vec![9; 32])), None, "a mint");
                assert_eq!(value(exact, &account(program, 1, vec![])), None, "without data");
                assert_eq!(value(exact, &account(program, 0, token_data(9, 1))), None, "closed");
            }
            let multisig = [token_data(9, 1), vec![2, 1]].concat();
            assert_eq!(value(exact, &account(TOKEN_2022_PROGRAM_BYTES, 1, multisig.clone())), None, "a multisig");
            let longer = [multisig, vec![1]].concat();
            assert_eq!(value(exact, &account(TOKEN_2022_PROGRAM_BYTES, 1, longer)), Some([9; 32]), "extensions");
            assert_eq!(value(exact, &account([0; 32], 0, vec![])), None, "closed, back with System");
            assert_eq!(value(exact, &account([0; 32], 1, vec![])), None, "closed and funded again");
            assert_eq!(value(exact, &account([4; 32], 1, token_data(9, 1))), None, "moved to another program");
        }
    }

    #[test]
    fn what_the_servers_filter_lets_through_is_a_token_account() {
        for follow in [Follow::Wallets, Follow::Closed] {
            let selection = Selection { extract: Extract::TokenOwner, follow };
            assert_eq!(value(selection, &account(TOKEN_2022_PROGRAM_BYTES, 1, vec![9; 32])), Some([9; 32]));
            assert_eq!(value(selection, &account(TOKEN_PROGRAM_BYTES, 1, vec![])), None, "without data");
            assert_eq!(value(selection, &account([0; 32], 1, vec![])), None);
            assert_eq!(value(selection, &account([0; 32], 0, vec![])), None);
            assert_eq!(selection.data_slices().collect::<Vec<_>>(), [(32, 32)]);
        }
    }

    #[test]
    fn wrong_lengths_are_named() {
        let exact = Selection::exact(Extract::TokenMint);
        let refusal =
            |selection: Selection, bad: &SubscribeUpdateAccountInfo| selection.extract(bad).expect_err("malformed");
        let mut bad = account([3; 32], 1, vec![]);
        bad.pubkey.pop();
        let why = "account address is not 32 bytes long: len_bytes=31";
        assert_eq!(refusal(Selection::exact(Extract::AccountOwner), &bad), why);
        let mut bad = account([3; 32], 1, vec![]);
        bad.owner.clear();
        let why = "account owner is not 32 bytes long: len_bytes=0";
        assert_eq!(refusal(Selection::exact(Extract::AccountOwner), &bad), why);
        let why = |len| {
            format!(
                "token account data is not what was asked for: account={} len_bytes={len}; \
                 the server has to honour accounts_data_slice",
                bs58::encode([7; 32]).into_string()
            )
        };
        for len in [1, 31, 38, 82, 165] {
            let bad = account(TOKEN_PROGRAM_BYTES, 1, vec![0; len]);
            assert_eq!(refusal(exact, &bad), why(len));
        }
        for len in [31, 33, 165] {
            let bad = account(TOKEN_PROGRAM_BYTES, 1, vec![0; len]);
            let filtered = Selection { follow: Follow::Closed, ..exact };
            assert_eq!(refusal(filtered, &bad), why(len));
        }
    }
}
