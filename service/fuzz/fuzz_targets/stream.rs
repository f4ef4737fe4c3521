//! Messages of a Yellowstone server, well formed and not, through both consumers: whole slots and processed banks.
//!
//! Owns: the choice of messages. Must not: check more than the two `fuzzing` modules do. One thread.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use service::Base;
use service::ingest::extract::Extract;
use service::ingest::follow::{Follow, Selection};
use service::ingest::subscribe::Commitment;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    SubscribeUpdate, SubscribeUpdateAccount, SubscribeUpdateAccountInfo, SubscribeUpdateBlockMeta, SubscribeUpdateSlot,
};
use yellowstone_grpc_proto::prost_types::Timestamp;
use yellowstone_grpc_proto::solana::storage::confirmed_block::{BlockHeight, UnixTimestamp};

#[derive(Arbitrary, Debug)]
struct Input {
    extract: u8,
    finalized: bool,
    /// The slot to begin at, and whether its blockhash is known.
    base: Option<(u8, bool)>,
    messages: Vec<Sent>,
}

/// One message. Slots, keys and hashes come from few values, so that messages refer to one another; `Any` holds
/// arbitrary bytes.
#[derive(Arbitrary, Debug)]
enum Sent {
    Reconnected,
    Any(Vec<u8>),
    Account {
        slot: u8,
        bank: u8,
        key: u8,
        write: Write,
        version: u8,
    },
    Meta {
        slot: u8,
        bank: u8,
        hash: u8,
        parent: u8,
        parent_hash: u8,
    },
    Text {
        slot: u64,
        parent: u64,
        hash: String,
    },
    Status {
        slot: u8,
        bank: u8,
        status: i8,
    },
    FarStatus {
        slot: u64,
        status: u8,
    },
    /// A message of which each number is an extreme.
    Extreme {
        slot: Number,
        parent: Number,
        others: [Number; 4],
        status: i32,
        created: (Number, i32),
        kind: u8,
    },
}

/// A number near a bound.
#[derive(Arbitrary, Debug)]
struct Number(u8, i8);

impl Number {
    fn value(&self) -> u64 {
        const BOUNDS: [u64; 11] = [0, 8, 16, 5_000, 1 << 31, 1 << 32, 1 << 39, 1 << 40, 1 << 62, 1 << 63, u64::MAX];
        BOUNDS[usize::from(self.0) % BOUNDS.len()].wrapping_add_signed(self.1.into())
    }
}

#[derive(Arbitrary, Debug)]
enum Write {
    Token(u8, u8),
    Closed,
    Moved(u8),
    Lengths(u8, u8, u8),
}

fuzz_target!(|input: Input| {
    let extract = [Extract::AccountOwner, Extract::TokenOwner, Extract::TokenMint][usize::from(input.extract % 3)];
    let follow = match extract {
        Extract::AccountOwner => Follow::Exact,
        _ => [Follow::Exact, Follow::Wallets, Follow::Closed][usize::from(input.extract / 3 % 3)],
    };
    let selection = Selection { extract, follow };
    let commitment = if input.finalized { Commitment::Finalized } else { Commitment::Confirmed };
    let base = input.base.map(|(slot, known)| Base {
        slot: u64::from(slot % 16),
        blockhash: if known { hash(slot % 16) } else { [0; 32] },
    });
    let updates: Vec<Option<SubscribeUpdate>> = input.messages.into_iter().filter_map(update).collect();
    service::fuzz_banks(selection, base, updates.clone());
    service::ingest::fuzzing::stream(selection, commitment, base, updates);
});

/// Returns the update to send: `None` for nothing at all, `Some(None)` for a new connection.
fn update(sent: Sent) -> Option<Option<SubscribeUpdate>> {
    let mut created_at = None;
    let one = match sent {
        Sent::Reconnected => return Some(None),
        Sent::Any(bytes) => return SubscribeUpdate::decode(&bytes[..]).ok().map(Some),
        Sent::Account { slot, bank, key, write, version } => UpdateOneof::Account(SubscribeUpdateAccount {
            account: Some(account(key, write, version)),
            slot: u64::from(slot % 16),
            bank_id: (bank % 4 > 0).then_some(u64::from(bank % 4)),
            ..Default::default()
        }),
        // Most blocks belong to one chain.
        Sent::Meta { slot, bank, hash: other, parent, parent_hash } => {
            UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
                slot: u64::from(slot % 16),
                blockhash: base58(if other < 200 { slot % 16 } else { other }),
                parent_slot: u64::from(if parent < 128 { (slot % 16).saturating_sub(1) } else { parent % 16 }),
                parent_blockhash: base58(if parent_hash < 200 { (slot % 16).saturating_sub(1) } else { parent_hash }),
                bank_id: u64::from(bank % 4),
                ..Default::default()
            })
        }
        Sent::Text { slot, parent, hash } => UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
            slot,
            blockhash: if hash.is_empty() { base58(1) } else { hash },
            parent_slot: parent,
            parent_blockhash: base58(1),
            ..Default::default()
        }),
        Sent::Status { slot, bank, status } => UpdateOneof::Slot(SubscribeUpdateSlot {
            slot: u64::from(slot % 16),
            status: i32::from(status % 8),
            bank_id: (bank % 4 > 0).then_some(u64::from(bank % 4)),
            ..Default::default()
        }),
        Sent::Extreme { slot, parent, others, status, created: (seconds, nanos), kind } => {
            created_at = Some(Timestamp { seconds: seconds.value() as i64, nanos });
            extreme(slot.value(), parent.value(), others.map(|number| number.value()), status, kind)
        }
        Sent::FarStatus { slot, status } => {
            UpdateOneof::Slot(SubscribeUpdateSlot { slot, status: i32::from(status % 7), ..Default::default() })
        }
    };
    let update = SubscribeUpdate { update_oneof: Some(one), created_at, ..Default::default() };
    // Encode and decode it, as on the wire.
    let wire = update.encode_to_vec();
    Some(Some(SubscribeUpdate::decode(&wire[..]).expect("just encoded")))
}

fn extreme(slot: u64, parent: u64, [one, two, three, four]: [u64; 4], status: i32, kind: u8) -> UpdateOneof {
    match kind % 3 {
        0 => {
            let mut info = account(kind, Write::Token(1, 2), 0);
            (info.lamports, info.write_version, info.rent_epoch) = (one, two, three);
            UpdateOneof::Account(SubscribeUpdateAccount {
                account: Some(info),
                slot,
                is_startup: four > 0,
                bank_id: Some(four),
            })
        }
        1 => UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
            slot,
            blockhash: base58(slot as u8),
            parent_slot: parent,
            parent_blockhash: base58(parent as u8),
            block_time: Some(UnixTimestamp { timestamp: one as i64 }),
            block_height: Some(BlockHeight { block_height: two }),
            executed_transaction_count: three,
            entries_count: three,
            bank_id: four,
            ..Default::default()
        }),
        _ => UpdateOneof::Slot(SubscribeUpdateSlot {
            slot,
            parent: Some(parent),
            status,
            dead_error: Some(String::new()),
            bank_id: Some(four),
        }),
    }
}

fn account(key: u8, write: Write, version: u8) -> SubscribeUpdateAccountInfo {
    let token = bs58::decode(service::ingest::extract::TOKEN_PROGRAM).into_vec().expect("an address");
    let (pubkey, lamports, owner, data) = match write {
        // The value, the state, and for longer accounts the account type and part of the extension data.
        Write::Token(value, more) => {
            let shape = [1, 0, 2, 0, 0][..usize::from(more % 6)].to_vec();
            (vec![key % 8; 32], 1, token, [vec![value; 32], shape].concat())
        }
        Write::Closed => (vec![key % 8; 32], 0, vec![0; 32], Vec::new()),
        Write::Moved(owner) => (vec![key % 8; 32], 1, vec![owner; 32], Vec::new()),
        Write::Lengths(pubkey, owner, data) => {
            (vec![key; usize::from(pubkey)], 1, vec![1; usize::from(owner)], vec![1; usize::from(data)])
        }
    };
    SubscribeUpdateAccountInfo {
        pubkey,
        lamports,
        owner,
        data,
        write_version: u64::from(version),
        ..Default::default()
    }
}

fn hash(n: u8) -> [u8; 32] {
    [n.wrapping_add(1); 32]
}

fn base58(n: u8) -> String {
    bs58::encode(hash(n)).into_string()
}
