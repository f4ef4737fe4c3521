//! The messages of the provider's own chain, each a pure function of its slot.
//!
//! Owns: their contents. Must not: decide which are sent, or when.

use std::time::{SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;
use workload::Pairs;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    SlotStatus, SubscribeUpdate, SubscribeUpdateAccount, SubscribeUpdateAccountInfo, SubscribeUpdateBlockMeta,
    SubscribeUpdateSlot,
};
use yellowstone_grpc_proto::solana::storage::confirmed_block::UnixTimestamp;

/// Number of keys, which are written again and again.
const KEYS: u64 = 10_000;

/// Returns the time as messages have it.
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

pub(super) fn update(one: UpdateOneof, created_unix_ms: u64) -> SubscribeUpdate {
    let created_at =
        Timestamp { seconds: (created_unix_ms / 1000) as i64, nanos: (created_unix_ms % 1000 * 1_000_000) as i32 };
    SubscribeUpdate { update_oneof: Some(one), created_at: Some(created_at), ..Default::default() }
}

/// Builds the `index`-th account of a slot: without data, a little over 100 bytes on the wire.
pub(super) fn account(slot: u64, index: u32, created_unix_ms: u64) -> SubscribeUpdate {
    let pairs = Pairs::new(1);
    let key = (slot * 7 + u64::from(index)) % KEYS;
    let info = SubscribeUpdateAccountInfo {
        pubkey: pairs.key(key).to_vec(),
        lamports: 1,
        owner: pairs.value(key, slot as u32).to_vec(),
        write_version: u64::from(index) + 1,
        ..Default::default()
    };
    let account = SubscribeUpdateAccount { account: Some(info), slot, ..Default::default() };
    update(UpdateOneof::Account(account), created_unix_ms)
}

pub(super) fn meta(slot: u64, created_unix_ms: u64) -> SubscribeUpdate {
    child(slot, slot - 1, created_unix_ms)
}

/// Builds the block meta of a slot with this parent slot.
pub(super) fn child(slot: u64, parent_slot: u64, created_unix_ms: u64) -> SubscribeUpdate {
    let meta = SubscribeUpdateBlockMeta {
        slot,
        blockhash: blockhash(slot),
        parent_slot,
        parent_blockhash: blockhash(parent_slot),
        block_time: Some(UnixTimestamp { timestamp: (created_unix_ms / 1000) as i64 }),
        ..Default::default()
    };
    update(UpdateOneof::BlockMeta(meta), created_unix_ms)
}

pub(super) fn confirmed(slot: u64, created_unix_ms: u64) -> SubscribeUpdate {
    status(slot, SlotStatus::SlotConfirmed, created_unix_ms)
}

pub(super) fn status(slot: u64, status: SlotStatus, created_unix_ms: u64) -> SubscribeUpdate {
    let status = SubscribeUpdateSlot { slot, parent: Some(slot - 1), status: status as i32, ..Default::default() };
    update(UpdateOneof::Slot(status), created_unix_ms)
}

fn blockhash(slot: u64) -> String {
    let mut bytes = [0x5a; 32];
    bytes[..8].copy_from_slice(&slot.to_be_bytes());
    bs58::encode(bytes).into_string()
}
