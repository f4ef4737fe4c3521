//! Turns a block of the chain into the messages that a Yellowstone server makes of it, well-formed or not.
//!
//! Owns: the shape of messages. Must not: decide which messages are sent, or when.

use loadgen::stream::account::{self as stream, Account, LEAVINGS};
use loadgen::stream::filter::Filter;
use tonic::Status;
use workload::Rng;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    SlotStatus, SubscribeUpdate, SubscribeUpdateAccount, SubscribeUpdateAccountInfo, SubscribeUpdateBlockMeta,
    SubscribeUpdatePing, SubscribeUpdatePong, SubscribeUpdateSlot,
};

use super::chain::{Block, Write};
use crate::ingest::extract::{Extract, TOKEN_PROGRAM};
use crate::ingest::follow::{Follow, Selection};
use crate::ingest::subscribe::Commitment;

/// A message of a subscription, or the error that ends it.
pub(super) type Item = Result<SubscribeUpdate, Status>;

pub(super) fn update(one: UpdateOneof) -> SubscribeUpdate {
    SubscribeUpdate { update_oneof: Some(one), ..Default::default() }
}

pub(super) fn ping() -> SubscribeUpdate {
    update(UpdateOneof::Ping(SubscribeUpdatePing {}))
}

pub(super) fn status(slot: u64, status: SlotStatus) -> SubscribeUpdate {
    update(UpdateOneof::Slot(SubscribeUpdateSlot { slot, status: status as i32, ..Default::default() }))
}

/// Status with which a client at this commitment takes a slot in.
pub(super) fn confirmation(commitment: Commitment) -> SlotStatus {
    match commitment {
        Commitment::Finalized => SlotStatus::SlotFinalized,
        Commitment::Confirmed => SlotStatus::SlotConfirmed,
    }
}

pub(super) fn meta(block: &Block) -> SubscribeUpdate {
    update(UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
        slot: block.slot,
        blockhash: base58(&block.hash),
        parent_slot: block.parent.slot,
        parent_blockhash: base58(&block.parent.blockhash),
        ..Default::default()
    }))
}

/// Returns the message for one write of an account. `None` where no filter matches the account after the write.
pub(super) fn account(
    selection: Selection,
    filter: &Filter,
    slot: u64,
    write: &Write,
    rng: &mut Rng,
) -> Option<SubscribeUpdate> {
    let account = match write.value {
        Some(value) => open(selection.extract, write, &value, rng),
        None => left(selection, rng),
    };
    let mut names = Vec::new();
    filter.matching_accounts(&write.key, &account, true, |name| names.push(name.to_owned()));
    let held = (account.lamports, account.owner.to_vec(), filter.sliced(account.data()));
    let update = account_of(slot, write.key.to_vec(), held, write.version);
    (!names.is_empty()).then_some(SubscribeUpdate { filters: names, ..update })
}

/// Returns an account that holds the value. A token account belongs to either program and may have extensions.
fn open(extract: Extract, write: &Write, value: &[u8; 32], rng: &mut Rng) -> Account {
    let shape = match extract {
        Extract::AccountOwner => stream::Extract::AccountOwner,
        Extract::TokenOwner => stream::Extract::TokenOwner,
        Extract::TokenMint => stream::Extract::TokenMint,
    };
    let account = Account::open(shape, &write.key, value, write.version);
    if extract == Extract::AccountOwner || rng.chance(0.5) {
        return account;
    }
    let mut data = account.data()[..165].to_vec();
    if rng.chance(0.5) {
        // Never 355 bytes, because that is a multisig.
        let len = [166, 170, 182, 354, 356, 400][rng.below(6) as usize];
        data.push(2);
        data.resize(len, 7);
    }
    Account::of(account.lamports, stream::TOKEN_2022_PROGRAM, data)
}

/// Returns an account that has left the map: closed, or turned into something else where the subscription shows that.
fn left(selection: Selection, rng: &mut Rng) -> Account {
    /// Arguments of [`Account::left`]: `WALLET` gives a System account with lamports, `EMPTY` one without lamports and
    /// data.
    const WALLET: u8 = 0;
    const EMPTY: u8 = 6;
    let any = rng.below(u64::from(LEAVINGS)) as u8;
    let draw = match selection {
        _ if rng.chance(0.3) => return Account::closed(),
        Selection { extract: Extract::AccountOwner, .. } | Selection { follow: Follow::Closed, .. } => EMPTY,
        Selection { follow: Follow::Wallets, .. } => [WALLET, EMPTY][usize::from(any % 2)],
        Selection { follow: Follow::Exact, .. } => any,
    };
    Account::left(draw)
}

fn account_of(slot: u64, pubkey: Vec<u8>, held: (u64, Vec<u8>, Vec<u8>), write_version: u64) -> SubscribeUpdate {
    let (lamports, owner, data) = held;
    let account = SubscribeUpdateAccountInfo { pubkey, lamports, owner, data, write_version, ..Default::default() };
    update(UpdateOneof::Account(SubscribeUpdateAccount { account: Some(account), slot, ..Default::default() }))
}

/// Returns a message that real streams contain and that the ingest ignores.
pub(super) fn noise(slot: u64, rng: &mut Rng) -> SubscribeUpdate {
    match rng.below(6) {
        0 => SubscribeUpdate::default(),
        1 => ping(),
        2 => update(UpdateOneof::Pong(SubscribeUpdatePong { id: 1 })),
        3 => update(UpdateOneof::Slot(SubscribeUpdateSlot { slot, status: 77, ..Default::default() })),
        4 => status(slot, SlotStatus::SlotCreatedBank),
        _ => status(slot, SlotStatus::SlotProcessed),
    }
}

/// Returns a malformed message, which no server should send.
pub(super) fn malformed(selection: Selection, block: &Block, rng: &mut Rng) -> SubscribeUpdate {
    let slot = block.slot;
    let token = decode(TOKEN_PROGRAM);
    match rng.below(6) {
        0 => account_of(slot, vec![1; 31], (1, vec![2; 32], vec![3; 32]), 1),
        1 => account_of(slot, vec![1; 32], (1, vec![2; 5], vec![3; 32]), 1),
        2 if selection.extract != Extract::AccountOwner => account_of(slot, vec![1; 32], (1, token, vec![3; 165]), 1),
        3 => update(UpdateOneof::Account(SubscribeUpdateAccount { slot, ..Default::default() })),
        4 => {
            let parent = block.slot + rng.below(3);
            let mut other = block.clone();
            other.parent.slot = parent;
            meta(&other)
        }
        _ => {
            let text = ["", "0OIl", "abc", "11111111111111111111111111111111111"][rng.below(4) as usize];
            update(UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
                slot,
                blockhash: text.to_owned(),
                parent_slot: slot - 1,
                ..Default::default()
            }))
        }
    }
}

fn decode(text: &str) -> Vec<u8> {
    bs58::decode(text).into_vec().expect("a program's address is base58")
}

fn base58(bytes: &[u8; 32]) -> String {
    bs58::encode(bytes).into_string()
}
