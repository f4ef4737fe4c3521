//! A block of the chain as the messages that a Yellowstone server makes of it, well formed and not.
//!
//! Owns: the shape of messages. Must not: decide which are sent, or when.

use workload::Rng;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    SlotStatus, SubscribeUpdate, SubscribeUpdateAccount, SubscribeUpdateAccountInfo, SubscribeUpdateBlockMeta,
    SubscribeUpdatePing, SubscribeUpdatePong, SubscribeUpdateSlot,
};

use super::chain::{Block, Write};
use crate::ingest::extract::{Extract, TOKEN_2022_PROGRAM, TOKEN_PROGRAM};

pub(super) fn update(one: UpdateOneof) -> SubscribeUpdate {
    SubscribeUpdate { update_oneof: Some(one), ..Default::default() }
}

pub(super) fn ping() -> SubscribeUpdate {
    update(UpdateOneof::Ping(SubscribeUpdatePing {}))
}

pub(super) fn status(slot: u64, status: SlotStatus) -> SubscribeUpdate {
    update(UpdateOneof::Slot(SubscribeUpdateSlot { slot, status: status as i32, ..Default::default() }))
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

/// One write of an account. What leaves the map is an account that was closed, one that keeps its program's name while
/// it is closed, or one that went to another program.
pub(super) fn account(extract: Extract, slot: u64, write: &Write, rng: &mut Rng) -> SubscribeUpdate {
    let token = decode(if rng.chance(0.5) { TOKEN_PROGRAM } else { TOKEN_2022_PROGRAM });
    let followed = !matches!(extract, Extract::AccountOwner);
    let (lamports, owner, data) = match write.value {
        Some(value) if followed => (1, token, [&value[..], &[1, 0]].concat()),
        Some(value) => (1, value.to_vec(), Vec::new()),
        None => match rng.below(if followed { 3 } else { 2 }) {
            0 => (0, vec![0; 32], Vec::new()),
            1 => (0, token, vec![7; 32]),
            _ => (5, vec![9; 32], vec![7; 32]),
        },
    };
    account_of(slot, write.key.to_vec(), (lamports, owner, data), write.version)
}

fn account_of(slot: u64, pubkey: Vec<u8>, held: (u64, Vec<u8>, Vec<u8>), write_version: u64) -> SubscribeUpdate {
    let (lamports, owner, data) = held;
    let account = SubscribeUpdateAccountInfo { pubkey, lamports, owner, data, write_version, ..Default::default() };
    update(UpdateOneof::Account(SubscribeUpdateAccount { account: Some(account), slot, ..Default::default() }))
}

/// What is part of every stream and means nothing to the ingest.
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

/// What no server should send.
pub(super) fn malformed(extract: Extract, block: &Block, rng: &mut Rng) -> SubscribeUpdate {
    let slot = block.slot;
    let token = decode(TOKEN_PROGRAM);
    match rng.below(6) {
        0 => account_of(slot, vec![1; 31], (1, vec![2; 32], vec![3; 32]), 1),
        1 => account_of(slot, vec![1; 32], (1, vec![2; 5], vec![3; 32]), 1),
        2 if !matches!(extract, Extract::AccountOwner) => account_of(slot, vec![1; 32], (1, token, vec![3; 165]), 1),
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
