//! Subscription filters: a request compiled, and the named filters that an update matches.
//!
//! Owns: the rules of a Yellowstone server's filters as far as this stream has the data (accounts, slots, block meta),
//! and its limits. Must not: generate or send. Used on every feed's task.

use std::collections::HashSet;

use base64::Engine as _;
use yellowstone_grpc_proto::geyser::subscribe_request_filter_accounts_filter::Filter as StateOneof;
use yellowstone_grpc_proto::geyser::subscribe_request_filter_accounts_filter_lamports::Cmp;
use yellowstone_grpc_proto::geyser::subscribe_request_filter_accounts_filter_memcmp::Data;
use yellowstone_grpc_proto::geyser::{
    CommitmentLevel, SubscribeRequest, SubscribeRequestAccountsDataSlice, SubscribeRequestFilterAccounts,
    SubscribeRequestFilterAccountsFilter,
};

use crate::stream::account::{Account, SYSTEM_PROGRAM, is_token_account};

/// Largest number of state filters in an account filter, as in the public server.
const STATE_FILTERS_MAX: usize = 4;
/// Largest number of bytes in a memcmp, as in the public server.
const MEMCMP_BYTES_MAX: usize = 128;
/// Largest number of named filters of one kind in a request: far above any real subscription.
const FILTERS_MAX: usize = 64;
/// Largest number of bytes in a filter's name, as in the public server's configuration.
const NAME_BYTES_MAX: usize = 128;
/// Largest number of characters of a memcmp in base58 and in base64, as in the public server.
const MEMCMP_BASE58_MAX: usize = 175;
const MEMCMP_BASE64_MAX: usize = 172;

/// Limits of a subscription's filters.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limits {
    /// None, as a stock server
    #[default]
    Stock,
    /// Those of the server's sample configuration: one filter of a kind, no filter without a condition, at most two data slices,
    /// and no accounts of System
    Sample,
}

impl Limits {
    fn check(self, request: &SubscribeRequest) -> Result<(), String> {
        const DATA_SLICES_MAX: usize = 2;
        if self == Self::Stock {
            return Ok(());
        }
        let max = |count: usize, max: usize| {
            if count <= max {
                Ok(())
            } else {
                Err(format!("Max amount of filters/data_slices reached, only {max} allowed"))
            }
        };
        for count in [request.accounts.len(), request.slots.len(), request.blocks_meta.len()] {
            max(count, 1)?;
        }
        for filter in request.accounts.values() {
            if *filter == SubscribeRequestFilterAccounts::default() {
                return Err(
                    "Subscribe on full stream with `any` is not allowed, at least one filter required".to_owned()
                );
            }
            let system = bs58::encode(SYSTEM_PROGRAM).into_string();
            if filter.owner.contains(&system) {
                return Err(format!("Pubkey {system} in filters is not allowed"));
            }
        }
        max(request.accounts_data_slice.len(), DATA_SLICES_MAX)
    }
}

/// A compiled subscription. Names are sorted, so that updates carry them in one order.
#[derive(Debug, Default)]
pub struct Filter {
    accounts: Vec<(String, AccountFilter)>,
    slots: Vec<SlotFilter>,
    blocks_meta: Vec<String>,
    slices: Vec<(usize, usize)>,
    commitment: Commitment,
}

/// Commitment at which a subscriber sees slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commitment {
    /// Slots as executed. A slot is delivered whole unless the stream confirms slots later than that.
    #[default]
    Processed,
    /// Slots as voted on by the cluster.
    Confirmed,
    /// Slots as rooted, 32 slots later.
    Finalized,
}

#[derive(Debug)]
struct SlotFilter {
    name: String,
    by_commitment: bool,
    interslot: bool,
}

#[derive(Debug, Default)]
struct AccountFilter {
    accounts: HashSet<[u8; 32]>,
    owners: Vec<[u8; 32]>,
    states: Vec<State>,
    nonempty_signature: Option<bool>,
}

#[derive(Debug)]
enum State {
    Memcmp { offset: usize, bytes: Vec<u8> },
    Datasize(u64),
    TokenAccount(bool),
    Lamports(Cmp),
}

impl Filter {
    /// Compiles a request as a stock server does.
    ///
    /// # Errors
    /// The reason, as the text that follows "failed to create filter: ".
    pub fn compile(request: &SubscribeRequest) -> Result<Self, String> {
        Self::compile_within(Limits::Stock, request)
    }

    /// Compiles a request within limits.
    ///
    /// # Errors
    /// Those of [`Self::compile`]; the request exceeds the limits.
    pub fn compile_within(limits: Limits, request: &SubscribeRequest) -> Result<Self, String> {
        refuse_unserved(request)?;
        limits.check(request)?;
        let mut accounts = Vec::with_capacity(request.accounts.len());
        check_names(request.accounts.keys())?;
        for (name, filter) in &request.accounts {
            accounts.push((name.clone(), AccountFilter::compile(filter)?));
        }
        accounts.sort_by(|a, b| a.0.cmp(&b.0));
        check_names(request.slots.keys())?;
        let mut slots: Vec<SlotFilter> = request
            .slots
            .iter()
            .map(|(name, filter)| SlotFilter {
                name: name.clone(),
                by_commitment: filter.filter_by_commitment.unwrap_or(false),
                interslot: filter.interslot_updates.unwrap_or(false),
            })
            .collect();
        slots.sort_by(|a, b| a.name.cmp(&b.name));
        check_names(request.blocks_meta.keys())?;
        let mut blocks_meta: Vec<String> = request.blocks_meta.keys().cloned().collect();
        blocks_meta.sort();
        let commitment = match CommitmentLevel::try_from(request.commitment.unwrap_or(0)) {
            Ok(CommitmentLevel::Processed) => Commitment::Processed,
            Ok(CommitmentLevel::Confirmed) => Commitment::Confirmed,
            Ok(CommitmentLevel::Finalized) => Commitment::Finalized,
            Err(_) => return Err(bad_commitment(request.commitment.unwrap_or(0))),
        };
        Ok(Self { accounts, slots, blocks_meta, slices: compile_slices(&request.accounts_data_slice)?, commitment })
    }

    /// Whether nothing is subscribed to. A first empty request is legal and asks for nothing.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.slots.is_empty() && self.blocks_meta.is_empty()
    }

    /// Returns the commitment of the request.
    pub fn commitment(&self) -> Commitment {
        self.commitment
    }

    /// Returns the data slices as (offset, length), ascending and disjoint. Empty means whole data.
    pub fn slices(&self) -> &[(usize, usize)] {
        &self.slices
    }

    /// Returns the names of the block meta filters.
    pub fn blocks_meta(&self) -> &[String] {
        &self.blocks_meta
    }

    /// Calls `each` with the name of every account filter that the update matches.
    pub fn matching_accounts<'a>(
        &'a self,
        key: &[u8; 32],
        account: &Account,
        signed: bool,
        mut each: impl FnMut(&'a str),
    ) {
        for (name, filter) in &self.accounts {
            if filter.matches(key, account, signed) {
                each(name);
            }
        }
    }

    /// Returns the part of an account's data that is sent: the slices one after the other. A slice that does not fit is
    /// left out as a whole.
    pub fn sliced(&self, data: &[u8]) -> Vec<u8> {
        if self.slices.is_empty() {
            return data.to_vec();
        }
        let ends = |&(offset, length): &(usize, usize)| offset.checked_add(length).map(|end| offset..end);
        self.slices.iter().filter_map(|slice| data.get(ends(slice)?)).flatten().copied().collect()
    }

    /// Returns the names of the slot filters that take a status. `interslot`: the status is of the kinds between slots.
    /// `own`: it is the subscription's own commitment.
    pub fn matching_slots(&self, interslot: bool, own: bool) -> Vec<String> {
        let takes = |filter: &&SlotFilter| if interslot { filter.interslot } else { own || !filter.by_commitment };
        self.slots.iter().filter(takes).map(|filter| filter.name.clone()).collect()
    }
}

impl AccountFilter {
    fn compile(filter: &SubscribeRequestFilterAccounts) -> Result<Self, String> {
        if filter.cuckoo_accounts_filter.is_some() {
            return Err("cuckoo_accounts_filter is not served by this stream".to_owned());
        }
        if filter.filters.len() > STATE_FILTERS_MAX {
            return Err(format!("Too many filters provided; max {STATE_FILTERS_MAX}"));
        }
        let sizes = filter.filters.iter().filter(|state| matches!(state.filter, Some(StateOneof::Datasize(_))));
        if sizes.count() > 1 {
            return Err("datasize used more than once".to_owned());
        }
        Ok(Self {
            accounts: filter.account.iter().map(|text| pubkey(text)).collect::<Result<_, _>>()?,
            owners: filter.owner.iter().map(|text| pubkey(text)).collect::<Result<_, _>>()?,
            states: filter.filters.iter().map(State::compile).collect::<Result<_, _>>()?,
            nonempty_signature: filter.nonempty_txn_signature,
        })
    }

    fn matches(&self, key: &[u8; 32], account: &Account, signed: bool) -> bool {
        (self.owners.is_empty() || self.owners.contains(&account.owner))
            && self.nonempty_signature.is_none_or(|wanted| wanted == signed)
            && self.states.iter().all(|state| state.matches(account))
            && (self.accounts.is_empty() || self.accounts.contains(key))
    }
}

impl State {
    fn compile(filter: &SubscribeRequestFilterAccountsFilter) -> Result<Self, String> {
        match filter.filter.as_ref().ok_or("filter should be defined")? {
            StateOneof::Datasize(bytes) => Ok(Self::Datasize(*bytes)),
            StateOneof::TokenAccountState(true) => Ok(Self::TokenAccount(true)),
            StateOneof::TokenAccountState(false) => Err("token_account_state only allowed to be true".to_owned()),
            StateOneof::Lamports(lamports) => {
                Ok(Self::Lamports(*lamports.cmp.as_ref().ok_or("cmp for lamports should be defined")?))
            }
            StateOneof::Memcmp(memcmp) => {
                let bytes = match memcmp.data.as_ref().ok_or("data for memcmp should be defined")? {
                    Data::Bytes(bytes) => bytes.clone(),
                    Data::Base58(text) if text.len() > MEMCMP_BASE58_MAX => return Err("data too large".to_owned()),
                    Data::Base64(text) if text.len() > MEMCMP_BASE64_MAX => return Err("data too large".to_owned()),
                    Data::Base58(text) => bs58::decode(text).into_vec().map_err(|_| "invalid base58")?,
                    Data::Base64(text) => {
                        base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| "invalid base64")?
                    }
                };
                if bytes.len() > MEMCMP_BYTES_MAX {
                    return Err("data too large".to_owned());
                }
                Ok(Self::Memcmp { offset: memcmp.offset as usize, bytes })
            }
        }
    }

    fn matches(&self, account: &Account) -> bool {
        match self {
            Self::Memcmp { offset, bytes } => account.data().get(*offset..).is_some_and(|rest| rest.starts_with(bytes)),
            Self::Datasize(bytes) => account.data().len() as u64 == *bytes,
            Self::TokenAccount(wanted) => is_token_account(account.data()) == *wanted,
            Self::Lamports(Cmp::Eq(lamports)) => account.lamports == *lamports,
            Self::Lamports(Cmp::Ne(lamports)) => account.lamports != *lamports,
            Self::Lamports(Cmp::Lt(lamports)) => account.lamports < *lamports,
            Self::Lamports(Cmp::Gt(lamports)) => account.lamports > *lamports,
        }
    }
}

/// Refuses filters that this stream does not serve. A filter that never matches would look like a quiet stream.
fn refuse_unserved(request: &SubscribeRequest) -> Result<(), String> {
    let unserved = [
        ("transactions", request.transactions.len()),
        ("transactions_status", request.transactions_status.len()),
        ("blocks", request.blocks.len()),
        ("entry", request.entry.len()),
        ("block_footer", request.block_footer.len()),
    ];
    match unserved.iter().find(|(_, count)| *count > 0) {
        Some((kind, _)) => Err(format!("{kind} filters are not served by this stream")),
        None => Ok(()),
    }
}

fn check_names<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> Result<(), String> {
    if names.len() > FILTERS_MAX {
        return Err(format!("Max amount of filters/data_slices reached, only {FILTERS_MAX} allowed"));
    }
    for name in names {
        if name.len() > NAME_BYTES_MAX {
            return Err(format!("oversized filter name (max allowed size {NAME_BYTES_MAX}), found {}", name.len()));
        }
    }
    Ok(())
}

fn compile_slices(slices: &[SubscribeRequestAccountsDataSlice]) -> Result<Vec<(usize, usize)>, String> {
    let mut compiled: Vec<(usize, usize)> = Vec::with_capacity(slices.len());
    for slice in slices {
        let (offset, length) = (slice.offset as usize, slice.length as usize);
        if let Some(&(last_offset, last_length)) = compiled.last() {
            if offset < last_offset {
                return Err("failed to create filter: data slices out of order".to_owned());
            }
            if offset < last_offset.saturating_add(last_length) {
                return Err("failed to create filter: data slices overlapped".to_owned());
            }
        }
        compiled.push((offset, length));
    }
    Ok(compiled)
}

fn pubkey(text: &str) -> Result<[u8; 32], String> {
    let mut key = [0u8; 32];
    match bs58::decode(text).onto(&mut key) {
        Ok(32) => Ok(key),
        Ok(_) | Err(bs58::decode::Error::BufferTooSmall) => Err("String is the wrong size".to_owned()),
        Err(_) => Err("Invalid Base58 string".to_owned()),
    }
}

/// Returns the error text for an unknown commitment, for the subscription and for the calls that answer once.
pub(crate) fn bad_commitment(commitment: i32) -> String {
    format!("failed to create CommitmentLevel from {commitment}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::account::{Extract, TOKEN_2022_PROGRAM, TOKEN_PROGRAM};
    use yellowstone_grpc_proto::geyser::{
        SubscribeRequestFilterAccountsFilterLamports as Lamports, SubscribeRequestFilterAccountsFilterMemcmp as Memcmp,
    };

    const KEY: [u8; 32] = [9; 32];

    fn state(filter: StateOneof) -> SubscribeRequestFilterAccountsFilter {
        SubscribeRequestFilterAccountsFilter { filter: Some(filter) }
    }

    fn request(filters: &[(&str, SubscribeRequestFilterAccounts)]) -> SubscribeRequest {
        SubscribeRequest {
            accounts: filters.iter().map(|(name, filter)| ((*name).to_owned(), filter.clone())).collect(),
            ..Default::default()
        }
    }

    fn names(request: &SubscribeRequest, account: &Account) -> Vec<String> {
        let filter = Filter::compile(request).unwrap();
        let mut names = Vec::new();
        filter.matching_accounts(&KEY, account, true, |name| names.push(name.to_owned()));
        names
    }

    fn base58(key: [u8; 32]) -> String {
        bs58::encode(key).into_string()
    }

    #[test]
    fn the_two_filters_of_a_token_follower_see_open_and_closed_accounts() {
        let tokens = SubscribeRequestFilterAccounts {
            owner: vec![base58(TOKEN_PROGRAM), base58(TOKEN_2022_PROGRAM)],
            ..Default::default()
        };
        let closed = SubscribeRequestFilterAccounts {
            owner: vec![base58(SYSTEM_PROGRAM)],
            filters: vec![state(StateOneof::Lamports(Lamports { cmp: Some(Cmp::Eq(0)) }))],
            ..Default::default()
        };
        let request = request(&[("tokens", tokens), ("closed", closed)]);
        let open = Account::open(Extract::TokenOwner, &KEY, &[5; 32], 1);
        assert_eq!(names(&request, &open), ["tokens"]);
        assert_eq!(names(&request, &Account::closed()), ["closed"]);
        assert!(names(&request, &Account::open(Extract::AccountOwner, &KEY, &[5; 32], 1)).is_empty());
    }

    #[test]
    fn state_filters_and() {
        let account = Account::open(Extract::TokenMint, &KEY, &[5; 32], 1);
        let all = |filters: Vec<StateOneof>| {
            let filters = filters.into_iter().map(state).collect();
            !names(&request(&[("f", SubscribeRequestFilterAccounts { filters, ..Default::default() })]), &account)
                .is_empty()
        };
        let memcmp = |offset, byte| StateOneof::Memcmp(Memcmp { offset, data: Some(Data::Bytes(vec![byte; 32])) });
        assert!(all(vec![StateOneof::Datasize(165), memcmp(0, 5), memcmp(32, 9), StateOneof::TokenAccountState(true)]));
        assert!(!all(vec![StateOneof::Datasize(165), memcmp(0, 6)]));
        assert!(!all(vec![memcmp(150, 5)]) && !all(vec![memcmp(u64::MAX, 5)]));
        assert!(all(vec![StateOneof::Memcmp(Memcmp { offset: 32, data: Some(Data::Base58(base58(KEY))) })]));
        assert!(all(vec![StateOneof::Lamports(Lamports { cmp: Some(Cmp::Gt(0)) })]));
    }

    #[test]
    fn what_is_not_served_or_malformed_is_refused_in_words() {
        let error = |request: &SubscribeRequest| Filter::compile(request).unwrap_err();
        let mut transactions = SubscribeRequest::default();
        transactions.transactions.insert("t".to_owned(), Default::default());
        assert!(error(&transactions).contains("transactions"));
        let bad_key = SubscribeRequestFilterAccounts { account: vec!["0OIl".to_owned()], ..Default::default() };
        assert_eq!(error(&request(&[("f", bad_key)])), "Invalid Base58 string");
        let short = SubscribeRequestFilterAccounts { owner: vec!["abc".to_owned()], ..Default::default() };
        assert_eq!(error(&request(&[("f", short)])), "String is the wrong size");
        let twice = vec![state(StateOneof::Datasize(0)), state(StateOneof::Datasize(165))];
        let twice = SubscribeRequestFilterAccounts { filters: twice, ..Default::default() };
        assert_eq!(error(&request(&[("f", twice)])), "datasize used more than once");
        let any = SubscribeRequestFilterAccounts::default();
        assert!(Filter::compile(&request(&[(&"n".repeat(128), any.clone())])).is_ok());
        assert!(error(&request(&[(&"n".repeat(129), any)])).contains("oversized filter name (max allowed size 128)"));
        let level = SubscribeRequest { commitment: Some(9), ..Default::default() };
        assert_eq!(error(&level), "failed to create CommitmentLevel from 9");
        let slices = |slices: &[(u64, u64)]| SubscribeRequest {
            accounts_data_slice: slices
                .iter()
                .map(|&(offset, length)| SubscribeRequestAccountsDataSlice { offset, length })
                .collect(),
            ..Default::default()
        };
        assert!(error(&slices(&[(32, 32), (0, 32)])).contains("out of order"));
        assert!(error(&slices(&[(0, 33), (32, 32)])).contains("overlapped"));
        let filters = vec![state(StateOneof::TokenAccountState(true)); 5];
        let many = SubscribeRequestFilterAccounts { filters, ..Default::default() };
        assert_eq!(error(&request(&[("f", many)])), "Too many filters provided; max 4");
    }
}
