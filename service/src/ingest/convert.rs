//! Turns one message of the stream into one compact input.
//!
//! Owns: the meaning of each message for the assembler, and the refusal of slots that no chain has. Must not: do I/O, or
//! panic on any message of a server. Runs on the receiver's task.

use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    SlotStatus, SubscribeUpdate, SubscribeUpdateAccount, SubscribeUpdateBlockMeta, SubscribeUpdateSlot,
};
use yellowstone_grpc_proto::prost::UnknownEnumValue;
use yellowstone_grpc_proto::prost_types::Timestamp;

use super::assemble::Input;
use super::follow::Selection;
use super::progress::CHAIN_BEGAN_UNIX_MS;
use super::subscribe::Commitment;
use crate::base::chain::{Base, BlockMeta, Event, SLOT_END};

/// How much a block's own time may be before the creation of its message. The cluster estimates the time of a block from
/// its votes, in whole seconds, and the estimate drifts.
const BLOCK_TIME_DRIFT_MS: u64 = 30_000;

/// Maximum number of bytes of a server's text in a description.
const TEXT_BYTES_MAX: usize = 64;

/// Result of converting one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Converted {
    /// An update of one account.
    Account(Input),
    /// A block meta or a status of a slot. The batch of earlier inputs should be passed on together with it.
    Boundary(Input),
    /// The message has nothing that the assembler needs.
    Nothing,
}

/// A message that cannot be converted into an input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedUpdate {
    /// Slot that the message belongs to.
    pub(crate) slot: u64,
    /// Description of the defect, for the log.
    pub(crate) detail: String,
}

/// Converts one message. A slot counts as confirmed once its status is at `commitment`; a finalized status implies a
/// confirmed one.
pub(super) fn convert(
    selection: Selection,
    commitment: Commitment,
    update: SubscribeUpdate,
) -> Result<Converted, MalformedUpdate> {
    match update.update_oneof {
        Some(UpdateOneof::Account(update)) => {
            let slot = update.slot;
            Ok(Converted::Account(Input::Account { slot, event: account(selection, update)? }))
        }
        Some(UpdateOneof::BlockMeta(meta)) => {
            let meta = block_meta(&meta, unix_ms(update.created_at))?;
            Ok(Converted::Boundary(Input::BlockMeta(meta)))
        }
        Some(UpdateOneof::Slot(update)) => Ok(match status(&update)? {
            Ok(SlotStatus::SlotConfirmed) if commitment == Commitment::Finalized => Converted::Nothing,
            Ok(SlotStatus::SlotConfirmed | SlotStatus::SlotFinalized) => {
                Converted::Boundary(Input::Status { slot: update.slot, confirmed: true, dead: false })
            }
            Ok(SlotStatus::SlotDead) => {
                Converted::Boundary(Input::Status { slot: update.slot, confirmed: false, dead: true })
            }
            _ => Converted::Nothing,
        }),
        _ => Ok(Converted::Nothing),
    }
}

/// Extracts the event of an account update.
pub(crate) fn account(selection: Selection, update: SubscribeUpdateAccount) -> Result<Event, MalformedUpdate> {
    let slot = of_a_chain(update.slot)?;
    let malformed = |detail: String| MalformedUpdate { slot, detail: format!("slot={slot}: {detail}") };
    let account = update.account.ok_or_else(|| malformed("account update without an account".to_owned()))?;
    selection.extract(&account).map_err(malformed)
}

/// Decodes a block meta, whose message was made at this time.
pub(crate) fn block_meta(meta: &SubscribeUpdateBlockMeta, created_unix_ms: u64) -> Result<BlockMeta, MalformedUpdate> {
    let slot = of_a_chain(meta.slot)?;
    let decode = |name: &str, text: &str| {
        let shown = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        blockhash(text).ok_or_else(|| MalformedUpdate {
            slot,
            detail: format!("slot={slot}: {name}={shown:?} is not 32 bytes in base58"),
        })
    };
    let base = Base { slot, blockhash: decode("blockhash", &meta.blockhash)? };
    let parent_slot = of_a_chain(meta.parent_slot)?;
    Ok(BlockMeta {
        base,
        parent: Base { slot: parent_slot, blockhash: decode("parent_blockhash", &meta.parent_blockhash)? },
        created_unix_ms: made_unix_ms(created_unix_ms, meta.block_time.map(|time| time.timestamp)),
    })
}

/// Returns the status that a message names, or the number that is none.
pub(crate) fn status(update: &SubscribeUpdateSlot) -> Result<Result<SlotStatus, UnknownEnumValue>, MalformedUpdate> {
    of_a_chain(update.slot)?;
    of_a_chain(update.parent.unwrap_or(0))?;
    Ok(SlotStatus::try_from(update.status))
}

/// Returns `slot` if a chain can have it.
fn of_a_chain(slot: u64) -> Result<u64, MalformedUpdate> {
    let detail = || format!("slot={slot} is beyond the last slot that a chain can have: last_slot={}", SLOT_END - 1);
    (slot < SLOT_END).then_some(slot).ok_or_else(|| MalformedUpdate { slot, detail: detail() })
}

/// Returns when a block was made, in ms since the Unix epoch. A server that sends a block again may give the message a
/// new time, so the block's own time counts if it is earlier by more than its drift. A time before the chain's first slot
/// is none.
fn made_unix_ms(created_unix_ms: u64, block_time: Option<i64>) -> u64 {
    let block_unix_ms = u64::try_from(block_time.unwrap_or(0)).unwrap_or(0).saturating_mul(1000);
    let is_late = block_unix_ms.saturating_add(BLOCK_TIME_DRIFT_MS) < created_unix_ms;
    if block_unix_ms >= CHAIN_BEGAN_UNIX_MS && is_late { block_unix_ms } else { created_unix_ms }
}

fn blockhash(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let len = bs58::decode(text).onto(&mut bytes).ok()?;
    (len == bytes.len()).then_some(bytes)
}

/// Returns a message's time of creation in ms since the Unix epoch, never 0. A message without one gets the time of its
/// arrival. A time before 1970 counts as the first moment of 1970, because it cannot be right.
fn unix_ms(created_at: Option<Timestamp>) -> u64 {
    let Some(at) = created_at else { return crate::base::figure::unix_ms() };
    let seconds = u64::try_from(at.seconds).unwrap_or(0);
    let nanos = u64::try_from(at.nanos).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use yellowstone_grpc_proto::geyser::SubscribeUpdateAccountInfo;
    use yellowstone_grpc_proto::solana::storage::confirmed_block::UnixTimestamp;

    use super::*;
    use crate::ingest::extract::Extract;
    use crate::ingest::follow::Follow;

    const ALL: Selection = Selection { extract: Extract::AccountOwner, follow: Follow::Exact };

    fn update(one: UpdateOneof) -> SubscribeUpdate {
        SubscribeUpdate {
            update_oneof: Some(one),
            created_at: Some(Timestamp { seconds: 3, nanos: 4_000_000 }),
            ..Default::default()
        }
    }

    fn meta(blockhash: &str) -> UpdateOneof {
        UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
            slot: 8,
            blockhash: blockhash.to_owned(),
            parent_slot: 6,
            parent_blockhash: bs58::encode([1; 32]).into_string(),
            ..Default::default()
        })
    }

    #[test]
    fn block_meta_decodes_its_hashes() {
        let converted = convert(ALL, Commitment::Confirmed, update(meta(&bs58::encode([2; 32]).into_string())));
        let (base, parent) = (Base { slot: 8, blockhash: [2; 32] }, Base { slot: 6, blockhash: [1; 32] });
        let input = Input::BlockMeta(BlockMeta { base, parent, created_unix_ms: 3004 });
        assert_eq!(converted, Ok(Converted::Boundary(input)));
    }

    #[test]
    fn a_time_of_creation_is_never_none() {
        let at = |seconds, nanos| unix_ms(Some(Timestamp { seconds, nanos }));
        assert_eq!(
            (at(3, 4_000_000), at(0, 0), at(i64::MIN, i32::MIN), at(i64::MAX, i32::MAX)),
            (3004, 1, 1, u64::MAX)
        );
        assert!(unix_ms(None) > 1_584_316_800_000, "when it came");
    }

    #[test]
    fn a_block_that_is_sent_again_with_a_new_time_is_as_old_as_its_own_time_says() {
        const NOW: u64 = 1_800_000_000_000;
        let made = |block_time| made_unix_ms(NOW, block_time);
        let seconds = (NOW / 1000) as i64;
        assert_eq!(made(Some(seconds - 136)), NOW - 136_000);
        for drift in [-30, -29, 0, 5, 3600] {
            assert_eq!(made(Some(seconds + drift)), NOW, "{drift}");
        }
        for none in [None, Some(0), Some(-1), Some(i64::MIN), Some(i64::MAX), Some(1_584_316_799)] {
            assert_eq!(made(none), NOW, "{none:?}");
        }
        let UpdateOneof::BlockMeta(mut late) = meta(&bs58::encode([2; 32]).into_string()) else { panic!("a meta") };
        late.block_time = Some(UnixTimestamp { timestamp: 1_700_000_000 });
        assert_eq!(block_meta(&late, NOW).unwrap().created_unix_ms, 1_700_000_000_000);
    }

    #[test]
    fn slots_that_no_chain_has_are_malformed_in_every_message() {
        let hash = bs58::encode([2; 32]).into_string();
        let of = |one| convert(ALL, Commitment::Confirmed, update(one));
        let info = SubscribeUpdateAccountInfo {
            pubkey: vec![7; 32],
            lamports: u64::MAX,
            owner: vec![3; 32],
            rent_epoch: u64::MAX,
            write_version: u64::MAX,
            ..Default::default()
        };
        for (slot, is_one) in [(SLOT_END - 1, true), (SLOT_END, false), (1 << 62, false), (u64::MAX, false)] {
            let account = SubscribeUpdateAccount { account: Some(info.clone()), slot, ..Default::default() };
            assert_eq!(of(UpdateOneof::Account(account)).is_ok(), is_one, "{slot}");
            let UpdateOneof::BlockMeta(known) = meta(&hash) else { panic!("a meta") };
            for meta in [
                SubscribeUpdateBlockMeta { slot, ..known.clone() },
                SubscribeUpdateBlockMeta { parent_slot: slot, ..known },
            ] {
                assert_eq!(of(UpdateOneof::BlockMeta(meta)).is_ok(), is_one, "{slot}");
            }
            for status in 0..=7 {
                for (slot, parent) in [(slot, None), (9, Some(slot))] {
                    let status = SubscribeUpdateSlot { slot, parent, status, ..Default::default() };
                    let converted = of(UpdateOneof::Slot(status));
                    assert_eq!(converted.is_ok(), is_one, "{slot}");
                    assert!(converted.err().is_none_or(|malformed| malformed.detail.contains("beyond the last slot")));
                }
            }
        }
    }

    #[test]
    fn malformed_messages_are_errors_with_their_slot() {
        for text in ["", "0OIl", "abc", &bs58::encode([2; 33]).into_string(), &"1".repeat(1000)] {
            let error = convert(ALL, Commitment::Confirmed, update(meta(text))).expect_err("malformed");
            assert_eq!(error.slot, 8);
            assert!(error.detail.len() < 200, "{}", error.detail);
        }
        let empty = UpdateOneof::Account(SubscribeUpdateAccount { slot: 5, ..Default::default() });
        assert_eq!(convert(ALL, Commitment::Confirmed, update(empty)).expect_err("no account").slot, 5);
    }

    #[test]
    fn only_statuses_that_matter_are_handed_on() {
        let status_at = |commitment, status: i32| {
            let slot = SubscribeUpdateSlot { slot: 9, status, ..Default::default() };
            convert(ALL, commitment, update(UpdateOneof::Slot(slot))).expect("well formed")
        };
        let status = |status| status_at(Commitment::Confirmed, status);
        let confirmed = Converted::Boundary(Input::Status { slot: 9, confirmed: true, dead: false });
        assert_eq!(status(SlotStatus::SlotConfirmed as i32), confirmed);
        assert_eq!(status(SlotStatus::SlotFinalized as i32), confirmed);
        let dead = Converted::Boundary(Input::Status { slot: 9, confirmed: false, dead: true });
        assert_eq!(status(SlotStatus::SlotDead as i32), dead);
        assert_eq!(status(SlotStatus::SlotProcessed as i32), Converted::Nothing);
        assert_eq!(status(77), Converted::Nothing);
        assert_eq!(status_at(Commitment::Finalized, SlotStatus::SlotConfirmed as i32), Converted::Nothing);
        assert_eq!(status_at(Commitment::Finalized, SlotStatus::SlotFinalized as i32), confirmed);
    }
}
