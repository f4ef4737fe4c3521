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

/// When a slot is taken in. Processed is not offered: a processed slot may be rolled back, and what is on disk may not.
/// Lookups have a [commitment](crate::overlay::Commitment) of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Commitment {
    /// Once two thirds of the stake voted for it.
    #[default]
    Confirmed,
    /// Once it is rooted, about 13 seconds later.
    Finalized,
}

/// The subscription for an extraction. `from_slot` is the first slot to send again; `None` starts with what is new.
pub fn request(extract: Extract, commitment: Commitment, from_slot: Option<u64>) -> SubscribeRequest {
    let level = match commitment {
        Commitment::Confirmed => CommitmentLevel::Confirmed,
        Commitment::Finalized => CommitmentLevel::Finalized,
    };
    request_at(extract, level, from_slot)
}

/// The subscription of the overlay: the same at processed, from now on.
pub fn request_processed(extract: Extract) -> SubscribeRequest {
    request_at(extract, CommitmentLevel::Processed, None)
}

fn request_at(extract: Extract, level: CommitmentLevel, from_slot: Option<u64>) -> SubscribeRequest {
    let (offset, length) = extract.data_slice();
    SubscribeRequest {
        accounts: account_filters(extract),
        slots: named(
            "slots",
            SubscribeRequestFilterSlots {
                filter_by_commitment: Some(false),
                // Without these no dead slot is told of, and no bank's begin.
                interslot_updates: Some(true),
            },
        ),
        blocks_meta: named("meta", SubscribeRequestFilterBlocksMeta {}),
        commitment: Some(level as i32),
        accounts_data_slice: vec![SubscribeRequestAccountsDataSlice { offset, length }],
        from_slot,
        ..Default::default()
    }
}

fn account_filters(extract: Extract) -> HashMap<String, SubscribeRequestFilterAccounts> {
    match extract {
        Extract::AccountOwner => named("all", SubscribeRequestFilterAccounts::default()),
        Extract::TokenOwner | Extract::TokenMint => {
            // By state and not by size: a Token-2022 account with extensions is longer than 165 bytes.
            let token = SubscribeRequestFilterAccounts {
                owner: vec![TOKEN_PROGRAM.to_owned(), TOKEN_2022_PROGRAM.to_owned()],
                filters: vec![state_filter(Filter::TokenAccountState(true))],
                ..Default::default()
            };
            // A closed token account belongs to System and is empty: the filter above never matches it.
            let lamports = SubscribeRequestFilterAccountsFilterLamports { cmp: Some(Cmp::Eq(0)) };
            let closed = SubscribeRequestFilterAccounts {
                owner: vec![SYSTEM_PROGRAM.to_owned()],
                filters: vec![state_filter(Filter::Lamports(lamports))],
                ..Default::default()
            };
            HashMap::from([("token".to_owned(), token), ("closed".to_owned(), closed)])
        }
    }
}

fn state_filter(filter: Filter) -> SubscribeRequestFilterAccountsFilter {
    SubscribeRequestFilterAccountsFilter { filter: Some(filter) }
}

fn named<T>(name: &str, filter: T) -> HashMap<String, T> {
    HashMap::from([(name.to_owned(), filter)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_owner_asks_for_all_accounts_without_data() {
        let request = request(Extract::AccountOwner, Commitment::Confirmed, Some(9));
        assert_eq!(request.accounts["all"], SubscribeRequestFilterAccounts::default());
        assert_eq!(request.accounts.len(), 1);
        assert_eq!(request.accounts_data_slice, [SubscribeRequestAccountsDataSlice { offset: 0, length: 0 }]);
        assert_eq!(request.commitment, Some(CommitmentLevel::Confirmed as i32));
        assert_eq!(request.from_slot, Some(9));
        assert_eq!(request.slots["slots"].interslot_updates, Some(true));
        assert_eq!(request.blocks_meta.len(), 1);
    }

    #[test]
    fn token_extractions_ask_for_closed_accounts_too() {
        for (extract, offset) in [(Extract::TokenMint, 0), (Extract::TokenOwner, 32)] {
            let request = request(extract, Commitment::Finalized, None);
            assert_eq!(request.accounts_data_slice, [SubscribeRequestAccountsDataSlice { offset, length: 32 }]);
            assert_eq!(request.accounts["token"].owner, [TOKEN_PROGRAM, TOKEN_2022_PROGRAM]);
            assert_eq!(request.accounts["closed"].owner, [SYSTEM_PROGRAM]);
            assert_eq!(request.commitment, Some(CommitmentLevel::Finalized as i32));
            assert_eq!(request.from_slot, None);
        }
    }
}
