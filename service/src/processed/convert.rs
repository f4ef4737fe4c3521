//! Turns one message of a processed stream into an input of the banks.
//!
//! Owns: the meaning of each message for a bank. Must not: do I/O, or panic on any message of a server. Runs on the
//! overlay's receiver task.

use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeUpdate};

use crate::base::chain::BlockMeta;
use crate::ingest::convert::{MalformedUpdate, account, block_meta, status};
use crate::ingest::follow::Selection;
use crate::overlay::banks::{BankStatus, Seen};

/// Converts one message. Returns `None` when it does not matter to a bank.
pub(super) fn convert(selection: Selection, update: SubscribeUpdate) -> Result<Option<Seen>, MalformedUpdate> {
    Ok(match update.update_oneof {
        Some(UpdateOneof::Account(update)) => {
            let (slot, bank) = (update.slot, named(update.bank_id.unwrap_or(0)));
            Some(Seen::Account { slot, bank, event: account(selection, update)? })
        }
        Some(UpdateOneof::BlockMeta(meta)) => {
            let BlockMeta { base, parent, .. } = block_meta(&meta, 0)?;
            Some(Seen::BlockMeta { bank: named(meta.bank_id), base, parent })
        }
        Some(UpdateOneof::Slot(update)) => {
            let status = match status(&update)? {
                Ok(SlotStatus::SlotFirstShredReceived | SlotStatus::SlotCreatedBank) => BankStatus::Begun,
                Ok(SlotStatus::SlotProcessed) => BankStatus::Processed,
                Ok(SlotStatus::SlotConfirmed | SlotStatus::SlotFinalized) => BankStatus::Confirmed,
                Ok(SlotStatus::SlotDead) => BankStatus::Dead,
                Ok(SlotStatus::SlotCompleted) | Err(_) => return Ok(None),
            };
            Some(Seen::Status { slot: update.slot, bank: named(update.bank_id.unwrap_or(0)), status })
        }
        _ => None,
    })
}

/// Returns the bank id, or `None` for zero. Servers without bank ids leave a block meta's field at zero; validators
/// count from one.
fn named(bank_id: u64) -> Option<u64> {
    (bank_id != 0).then_some(bank_id)
}

#[cfg(test)]
mod tests {
    use yellowstone_grpc_proto::geyser::{
        SubscribeUpdateAccount, SubscribeUpdateAccountInfo, SubscribeUpdateBlockMeta, SubscribeUpdateSlot,
    };

    use super::*;
    use crate::base::chain::Base;
    use crate::ingest::extract::Extract;

    fn seen(one: UpdateOneof) -> Option<Seen> {
        let all = Selection::exact(Extract::AccountOwner);
        convert(all, SubscribeUpdate { update_oneof: Some(one), ..Default::default() }).expect("well formed")
    }

    #[test]
    fn banks_are_named_where_the_server_names_them() {
        let info = SubscribeUpdateAccountInfo {
            pubkey: vec![7; 32],
            lamports: 1,
            owner: vec![3; 32],
            write_version: 5,
            ..Default::default()
        };
        let update = SubscribeUpdateAccount { account: Some(info), slot: 8, bank_id: Some(17), ..Default::default() };
        let Some(Seen::Account { slot: 8, bank: Some(17), event }) = seen(UpdateOneof::Account(update)) else {
            panic!("an account of bank 17");
        };
        assert_eq!((event.key, event.value, event.write_version), ([7; 32], Some([3; 32]), 5));
        let text = bs58::encode([2; 32]).into_string();
        let meta = SubscribeUpdateBlockMeta {
            slot: 8,
            parent_slot: 6,
            blockhash: text.clone(),
            parent_blockhash: text,
            ..Default::default()
        };
        let expected = Seen::BlockMeta {
            bank: None,
            base: Base { slot: 8, blockhash: [2; 32] },
            parent: Base { slot: 6, blockhash: [2; 32] },
        };
        assert_eq!(seen(UpdateOneof::BlockMeta(meta)), Some(expected));
    }

    #[test]
    fn statuses_are_told_by_what_they_mean() {
        for (status, expected) in [
            (SlotStatus::SlotFirstShredReceived, Some(BankStatus::Begun)),
            (SlotStatus::SlotCreatedBank, Some(BankStatus::Begun)),
            (SlotStatus::SlotProcessed, Some(BankStatus::Processed)),
            (SlotStatus::SlotConfirmed, Some(BankStatus::Confirmed)),
            (SlotStatus::SlotFinalized, Some(BankStatus::Confirmed)),
            (SlotStatus::SlotDead, Some(BankStatus::Dead)),
            (SlotStatus::SlotCompleted, None),
        ] {
            let slot = SubscribeUpdateSlot { slot: 9, status: status as i32, bank_id: Some(4), ..Default::default() };
            let told = expected.map(|status| Seen::Status { slot: 9, bank: Some(4), status });
            assert_eq!(seen(UpdateOneof::Slot(slot)), told, "{status:?}");
        }
    }
}
