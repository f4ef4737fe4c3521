//! Updates as gRPC frames: account updates are encoded by hand, all rare messages by prost.
//!
//! Owns: the bytes of `SubscribeUpdate` messages. An account update is written straight into the connection's chunk.
//! Through the generated structs it would cost six allocations, and the stream shares its cores with the service that
//! it measures. Must not: decide who gets which update. Used on every feed's task.

use bytes::{BufMut, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use prost_types::Timestamp;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeUpdate, SubscribeUpdateBlockMeta, SubscribeUpdateSlot};
use yellowstone_grpc_proto::solana::storage::confirmed_block::BlockHeight;

use crate::stream::account::Account;
use crate::stream::chain::Block;
use crate::stream::compress::FRAME_HEADER_BYTES;

/// Rent epoch of a rent-exempt account.
const RENT_EXEMPT_EPOCH: u64 = u64::MAX;

/// Fields of an account update in addition to the account.
pub(crate) struct AccountMeta<'a> {
    /// Address of the updated account.
    pub(crate) key: &'a [u8; 32],
    pub(crate) slot: u64,
    /// Id of the bank of the write; 0 for none.
    pub(crate) bank: u64,
    /// Order of the write among those of the slot.
    pub(crate) write_version: u64,
    /// Signature of the transaction that wrote. Empty for a write outside of one.
    pub(crate) signature: &'a [u8],
}

/// Appends an account update. `names`: the matching filters. `slices`: the parts of the data to send.
pub(crate) fn account(
    out: &mut BytesMut,
    names: &[&str],
    meta: &AccountMeta<'_>,
    account: &Account,
    slices: &[(usize, usize)],
    created_at: &[u8],
) {
    let data_len = sliced_len(account.data().len(), slices);
    let info_len = bytes_len(32)
        + optional_varint_len(account.lamports)
        + bytes_len(32)
        + 1
        + encoded_len_varint(RENT_EXEMPT_EPOCH)
        + optional_bytes_len(data_len)
        + optional_varint_len(meta.write_version)
        + optional_bytes_len(meta.signature.len());
    let bank = meta.bank;
    let update_len = bytes_len(info_len) + optional_varint_len(meta.slot) + optional_varint_len(bank);
    let names_len: usize = names.iter().map(|name| bytes_len(name.len())).sum();
    let message_len = names_len + bytes_len(update_len) + bytes_len(created_at.len());
    out.reserve(FRAME_HEADER_BYTES + message_len);
    frame_header(out, message_len);
    for name in names {
        put_bytes(out, 1, name.as_bytes());
    }
    put_length(out, 2, update_len);
    put_length(out, 1, info_len);
    put_bytes(out, 1, meta.key);
    put_varint(out, 2, account.lamports);
    put_bytes(out, 3, &account.owner);
    put_varint(out, 5, RENT_EXEMPT_EPOCH);
    if data_len > 0 {
        put_length(out, 6, data_len);
        put_slices(out, account.data(), slices);
    }
    put_varint(out, 7, meta.write_version);
    if !meta.signature.is_empty() {
        put_bytes(out, 8, meta.signature);
    }
    put_varint(out, 2, meta.slot);
    put_varint(out, 4, bank);
    put_bytes(out, 11, created_at);
}

/// Appends the block meta of `block`, with the blockhash `hash` and the id of its bank, 0 for none.
pub(crate) fn block_meta(
    out: &mut BytesMut,
    names: &[String],
    block: &Block,
    (hash, bank): ([u8; 32], u64),
    created_at: Timestamp,
) {
    let meta = SubscribeUpdateBlockMeta {
        slot: block.slot,
        blockhash: bs58::encode(hash).into_string(),
        parent_slot: block.parent_slot,
        parent_blockhash: bs58::encode(block.parent_hash).into_string(),
        block_height: Some(BlockHeight { block_height: block.height }),
        executed_transaction_count: block.updates.len() as u64 / 4,
        entries_count: 64,
        bank_id: bank,
        ..Default::default()
    };
    update(out, names.to_vec(), UpdateOneof::BlockMeta(meta), created_at);
}

/// Appends a status of `block`'s slot, with the id of its bank, 0 for none.
pub(crate) fn slot_status(
    out: &mut BytesMut,
    names: Vec<String>,
    (block, bank): (&Block, u64),
    status: SlotStatus,
    created_at: Timestamp,
) {
    let banked = !matches!(status, SlotStatus::SlotFirstShredReceived | SlotStatus::SlotCompleted);
    let slot = SubscribeUpdateSlot {
        slot: block.slot,
        parent: Some(block.parent_slot),
        status: status as i32,
        dead_error: (status == SlotStatus::SlotDead).then(|| "invalid block: too few ticks".to_owned()),
        bank_id: (banked && bank > 0).then_some(bank),
    };
    update(out, names, UpdateOneof::Slot(slot), created_at);
}

/// Appends any other update, encoded by prost.
pub(crate) fn update(out: &mut BytesMut, filters: Vec<String>, body: UpdateOneof, created_at: Timestamp) {
    let message = SubscribeUpdate { filters, created_at: Some(created_at), update_oneof: Some(body) };
    let length = message.encoded_len();
    out.reserve(FRAME_HEADER_BYTES + length);
    frame_header(out, length);
    message.encode_raw(out);
}

fn frame_header(out: &mut BytesMut, length: usize) {
    out.put_u8(0);
    out.put_u32(u32::try_from(length).expect("an update of one small account is far below 4 GiB"));
}

/// Returns the length of the sliced data. A slice that reaches past the data is dropped as a whole, as the public
/// server does.
fn sliced_len(data_len: usize, slices: &[(usize, usize)]) -> usize {
    if slices.is_empty() {
        return data_len;
    }
    slices.iter().filter(|slice| fits(data_len, slice)).map(|(_, length)| length).sum()
}

fn put_slices(out: &mut BytesMut, data: &[u8], slices: &[(usize, usize)]) {
    if slices.is_empty() {
        out.put_slice(data);
    }
    for slice in slices.iter().filter(|slice| fits(data.len(), slice)) {
        out.put_slice(&data[slice.0..slice.0 + slice.1]);
    }
}

fn fits(data_len: usize, (offset, length): &(usize, usize)) -> bool {
    offset.checked_add(*length).is_some_and(|end| end <= data_len)
}

/// Returns the length of a length-delimited field with a one-byte tag.
fn bytes_len(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

fn optional_bytes_len(length: usize) -> usize {
    if length == 0 { 0 } else { bytes_len(length) }
}

/// Returns the length of a varint field. Proto3 leaves out a zero.
fn optional_varint_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value) }
}

fn put_length(out: &mut BytesMut, field: u8, length: usize) {
    out.put_u8(field << 3 | 2);
    encode_varint(length as u64, out);
}

fn put_bytes(out: &mut BytesMut, field: u8, bytes: &[u8]) {
    put_length(out, field, bytes.len());
    out.put_slice(bytes);
}

fn put_varint(out: &mut BytesMut, field: u8, value: u64) {
    if value != 0 {
        out.put_u8(field << 3);
        encode_varint(value, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::account::Extract;
    use yellowstone_grpc_proto::geyser::{SubscribeUpdateAccount, SubscribeUpdateAccountInfo};

    fn check(account_state: &Account, slices: &[(usize, usize)], data: &[u8], signature: &[u8]) {
        let created_at = Timestamp { seconds: 1_700_000_000, nanos: 5 };
        let meta = AccountMeta { key: &[7; 32], slot: 300, bank: 601, write_version: 1 << 40, signature };
        let mut out = BytesMut::new();
        account(&mut out, &["a", "bc"], &meta, account_state, slices, &created_at.encode_to_vec());
        let expected = SubscribeUpdate {
            filters: vec!["a".to_owned(), "bc".to_owned()],
            created_at: Some(created_at),
            update_oneof: Some(UpdateOneof::Account(SubscribeUpdateAccount {
                account: Some(SubscribeUpdateAccountInfo {
                    pubkey: vec![7; 32],
                    lamports: account_state.lamports,
                    owner: account_state.owner.to_vec(),
                    executable: false,
                    rent_epoch: u64::MAX,
                    data: data.to_vec(),
                    write_version: 1 << 40,
                    txn_signature: (!signature.is_empty()).then(|| signature.to_vec()),
                }),
                slot: 300,
                is_startup: false,
                bank_id: Some(601),
            })),
        };
        assert_eq!(out[1..5], u32::try_from(out.len() - 5).unwrap().to_be_bytes());
        assert_eq!(SubscribeUpdate::decode(&out[5..]).unwrap(), expected);
        assert_eq!(out.len() - 5, expected.encoded_len());
    }

    #[test]
    fn an_account_update_decodes_to_what_prost_would_have_sent() {
        let token = Account::open(Extract::TokenOwner, &[9; 32], &[3; 32], 77);
        check(&token, &[], token.data(), &[1; 64]);
        check(&token, &[(32, 32)], &[3; 32], &[]);
        check(&token, &[(0, 8), (60, 8)], &[&token.data()[0..8], &token.data()[60..68]].concat(), &[1; 64]);
        check(&token, &[(150, 32)], &[], &[1; 64]);
        check(&token, &[(usize::MAX, 32)], &[], &[1; 64]);
        check(&Account::closed(), &[(32, 32)], &[], &[1; 64]);
    }
}
