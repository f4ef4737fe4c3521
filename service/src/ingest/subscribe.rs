//! The subscription that the receiver sends.
//!
//! Owns: the filters, and why each is there. Must not: do I/O. Runs on the receiver's task.

use std::collections::HashMap;

use yellowstone_grpc_proto::geyser::subscribe_request_filter_accounts_filter::Filter;
use yellowstone_grpc_proto::geyser::subscribe_request_filter_accounts_filter_lamports::Cmp;
use yellowstone_grpc_proto::geyser::{
    CommitmentLevel, SubscribeRequest, SubscribeRequestAccountsDataSlice, SubscribeRequestFilterAccounts,
    SubscribeRequestFilterAccountsFilter, SubscribeRequestFilterAccountsFilterLamports,
    SubscribeRequestFilterBlocksMeta, SubscribeRequestFilterSlots,
};

use super::extract::{Extract, SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM};
use super::follow::{Follow, Selection};

/// Name of the filter of a subscription to all accounts.
const ALL: &str = "all";

/// Commitment at which a slot is taken in. There is no `processed`, because a processed slot may be rolled back and
/// data on disk cannot be. Lookups have a commitment of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Commitment {
    /// Once two thirds of the stake voted for it.
    #[default]
    Confirmed,
    /// Once it is rooted, about 13 seconds later.
    Finalized,
}

impl Commitment {
    /// The commitment as requests spell it.
    pub(super) const fn level(self) -> CommitmentLevel {
        match self {
            Self::Confirmed => CommitmentLevel::Confirmed,
            Self::Finalized => CommitmentLevel::Finalized,
        }
    }
}

/// Returns the subscription for a selection. `from_slot` is the first slot to send again; with `None` the server starts
/// with new slots.
pub fn request(selection: Selection, commitment: Commitment, from_slot: Option<u64>) -> SubscribeRequest {
    request_at(selection, commitment.level(), from_slot)
}

/// Returns the overlay's subscription: the same selection at processed, starting with new slots.
pub fn request_processed(selection: Selection) -> SubscribeRequest {
    request_at(selection, CommitmentLevel::Processed, None)
}

/// Whether a subscription to fewer accounts exists: for a token extraction that asks for all accounts.
pub(super) fn has_narrower(request: &SubscribeRequest) -> bool {
    request.accounts.contains_key(ALL) && request.accounts_data_slice.len() > 1
}

fn request_at(selection: Selection, level: CommitmentLevel, from_slot: Option<u64>) -> SubscribeRequest {
    let slices = selection.data_slices();
    SubscribeRequest {
        accounts: account_filters(selection),
        slots: named(
            "slots",
            SubscribeRequestFilterSlots {
                filter_by_commitment: Some(false),
                // Without these updates the server reports neither dead slots nor the creation of banks.
                interslot_updates: Some(true),
            },
        ),
        blocks_meta: named("meta", SubscribeRequestFilterBlocksMeta {}),
        commitment: Some(level as i32),
        accounts_data_slice: slices
            .map(|(offset, length)| SubscribeRequestAccountsDataSlice { offset, length })
            .collect(),
        from_slot,
        ..Default::default()
    }
}

fn account_filters(selection: Selection) -> HashMap<String, SubscribeRequestFilterAccounts> {
    // An account that has left the token programs matches no filter that names them. Only a subscription to all
    // accounts is exact.
    let (name, leaving) = match selection {
        Selection { extract: Extract::AccountOwner, .. } | Selection { follow: Follow::Exact, .. } => {
            return named(ALL, SubscribeRequestFilterAccounts::default());
        }
        // Closed accounts have no data either, so this filter covers them.
        Selection { follow: Follow::Wallets, .. } => ("wallets", Filter::Datasize(0)),
        Selection { follow: Follow::Closed, .. } => {
            ("closed", Filter::Lamports(SubscribeRequestFilterAccountsFilterLamports { cmp: Some(Cmp::Eq(0)) }))
        }
    };
    let owned_by = |owners: &[&str], filter: Filter| SubscribeRequestFilterAccounts {
        owner: owners.iter().map(|owner| (*owner).to_owned()).collect(),
        filters: vec![SubscribeRequestFilterAccountsFilter { filter: Some(filter) }],
        ..Default::default()
    };
    // Filter by state and not by size, because a Token-2022 account with extensions is longer than 165 bytes.
    let token = owned_by(&[TOKEN_PROGRAM, TOKEN_2022_PROGRAM], Filter::TokenAccountState(true));
    // A closed account belongs to System. The token programs are listed too, because some validators report a closed
    // account with its former owner.
    let left = owned_by(&[SYSTEM_PROGRAM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM], leaving);
    HashMap::from([("token".to_owned(), token), (name.to_owned(), left)])
}

fn named<T>(name: &str, filter: T) -> HashMap<String, T> {
    HashMap::from([(name.to_owned(), filter)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(request: &SubscribeRequest) -> Vec<(u64, u64)> {
        request.accounts_data_slice.iter().map(|slice| (slice.offset, slice.length)).collect()
    }

    #[test]
    fn account_owner_asks_for_all_accounts_without_data() {
        let request = request(Selection::exact(Extract::AccountOwner), Commitment::Confirmed, Some(9));
        assert_eq!(request.accounts["all"], SubscribeRequestFilterAccounts::default());
        assert_eq!(request.accounts.len(), 1);
        assert_eq!(slices(&request), [(0, 0)]);
        assert_eq!(request.commitment, Some(CommitmentLevel::Confirmed as i32));
        assert_eq!(request.from_slot, Some(9));
        assert_eq!(request.slots["slots"].interslot_updates, Some(true));
        assert_eq!(request.blocks_meta.len(), 1);
    }

    #[test]
    fn token_extractions_ask_for_all_accounts_and_what_tells_them_apart() {
        for (extract, offset) in [(Extract::TokenMint, 0), (Extract::TokenOwner, 32)] {
            for request in [
                request(Selection::exact(extract), Commitment::Confirmed, None),
                request_processed(Selection::exact(extract)),
            ] {
                assert_eq!(request.accounts, named("all", SubscribeRequestFilterAccounts::default()));
                assert_eq!(slices(&request), [(offset, 32), (108, 1), (164, 1), (165, 1), (354, 1), (355, 1)]);
            }
        }
    }

    #[test]
    fn narrower_selections_ask_for_token_accounts_and_what_they_mostly_become() {
        let owners = [SYSTEM_PROGRAM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM];
        for (follow, name) in [(Follow::Wallets, "wallets"), (Follow::Closed, "closed")] {
            let selection = Selection { extract: Extract::TokenOwner, follow };
            let request = request(selection, Commitment::Finalized, None);
            assert_eq!(request.accounts["token"].owner, [TOKEN_PROGRAM, TOKEN_2022_PROGRAM]);
            assert_eq!(
                (&request.accounts[name].owner[..], request.accounts.len()),
                (&owners.map(str::to_owned)[..], 2)
            );
            assert_eq!(slices(&request), [(32, 32)]);
            assert_eq!(request.commitment, Some(CommitmentLevel::Finalized as i32));
        }
    }
}
