//! The stream at processed: banks arrive as they happen, and only the confirmed ones count.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use engines::Digest;
use futures::StreamExt;
use workload::Pairs;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    CommitmentLevel, SlotStatus, SubscribeRequest, SubscribeUpdate, SubscribeUpdateAccount, SubscribeUpdateBlockMeta,
};

use crate::model::{Model, connect, follow, start, subscription};

const LINE: &str = "--pairs 500 --events 20000 --events-per-slot 100 --change-share 0.4 --close-share 0.1 \
                    --unknown-share 0.05 --dead-every 13 --skip-every 11 --fork-every 7 --banks-every 5 \
                    --out-of-order-every 17 --confirm-after 4 --replay-slots 10000";

/// A bank as the subscriber saw it.
#[derive(Default)]
struct Bank {
    accounts: Vec<SubscribeUpdateAccount>,
    meta: Option<SubscribeUpdateBlockMeta>,
    statuses: Vec<SlotStatus>,
    late: usize,
}

#[derive(Default)]
struct Banks(BTreeMap<(u64, u64), Bank>);

impl Banks {
    fn take(&mut self, update: SubscribeUpdate) {
        match update.update_oneof {
            Some(UpdateOneof::Account(update)) => {
                let bank = self.0.entry((update.slot, update.bank_id.unwrap())).or_default();
                bank.late += usize::from(bank.meta.is_some());
                bank.accounts.push(update);
            }
            Some(UpdateOneof::BlockMeta(meta)) => {
                let name = (meta.slot, meta.bank_id);
                self.0.entry(name).or_default().meta = Some(meta);
            }
            Some(UpdateOneof::Slot(update)) => {
                if let Some(bank) = update.bank_id {
                    let status = SlotStatus::try_from(update.status).unwrap();
                    self.0.entry((update.slot, bank)).or_default().statuses.push(status);
                }
            }
            _ => {}
        }
    }

    fn is_final(&self, slot: u64) -> bool {
        self.0.range((slot, 0)..(slot + 1, 0)).any(|(_, bank)| bank.statuses.contains(&SlotStatus::SlotFinalized))
    }

    /// Computes the digest of the map with the last write of each account in each confirmed bank.
    fn digest(&self, pairs: u64, seed: u64) -> String {
        let base = Pairs::new(seed);
        let mut map: HashMap<Vec<u8>, Vec<u8>> =
            (0..pairs).map(|index| (base.key(index).to_vec(), base.value(index, 0).to_vec())).collect();
        for bank in self.0.values().filter(|bank| bank.statuses.contains(&SlotStatus::SlotConfirmed)) {
            let mut accounts: Vec<_> = bank.accounts.iter().map(|update| update.account.as_ref().unwrap()).collect();
            accounts.sort_by_key(|account| account.write_version);
            for account in accounts {
                match account.lamports {
                    0 => map.remove(&account.pubkey),
                    _ => map.insert(account.pubkey.clone(), account.owner.clone()),
                };
            }
        }
        let mut digest = Digest::default();
        for (key, value) in &map {
            digest.add(key[..].try_into().unwrap(), value[..].try_into().unwrap());
        }
        digest.to_string()
    }
}

#[tokio::test]
async fn only_confirmed_banks_count_and_nothing_says_which_are_abandoned() {
    let (stream, workload) = start(LINE);
    let request = SubscribeRequest { commitment: Some(CommitmentLevel::Processed as i32), ..subscription(None) };
    let request = SubscribeRequest {
        slots: HashMap::from([(
            "slots".to_owned(),
            yellowstone_grpc_proto::geyser::SubscribeRequestFilterSlots {
                interslot_updates: Some(true),
                ..Default::default()
            },
        )]),
        ..request
    };
    let mut updates = connect(&stream).await.subscribe_once(request).await.unwrap();
    let mut banks = Banks::default();
    let end = loop {
        match tokio::time::timeout(Duration::from_millis(50), updates.next()).await {
            Ok(Some(update)) => banks.take(update.unwrap()),
            Ok(None) => panic!("the subscription ended"),
            Err(_) => {}
        }
        if let Some(end) = stream.outcome().unwrap()
            && banks.is_final(end.slot)
        {
            break end.clone();
        }
    };
    assert_eq!(banks.digest(workload.pairs, workload.seed), end.digest);
    let banks = &banks.0;
    let has = |bank: &Bank, status| bank.statuses.contains(&status);
    let silent = |bank: &&Bank| {
        has(bank, SlotStatus::SlotProcessed) && !has(bank, SlotStatus::SlotConfirmed) && bank.meta.is_some()
    };
    assert!(banks.values().filter(silent).count() > 10, "forks are abandoned without a word");
    let slots: HashSet<u64> = banks.keys().map(|(slot, _)| *slot).collect();
    assert!(banks.len() > slots.len() + 10, "there are slots of several banks");
    assert!(banks.values().map(|bank| bank.late).sum::<usize>() > 50, "accounts come after their block meta");
    let sealed =
        [SlotStatus::SlotCreatedBank, SlotStatus::SlotProcessed, SlotStatus::SlotConfirmed, SlotStatus::SlotFinalized];
    for bank in banks.values().filter(|bank| has(bank, SlotStatus::SlotConfirmed)) {
        assert_eq!(bank.statuses, sealed, "lower levels come first");
    }
    assert!(banks.values().filter(|bank| has(bank, SlotStatus::SlotDead)).count() > 10);
    stream.stop().unwrap();
}

#[tokio::test]
async fn at_confirmed_none_of_it_is_seen() {
    let (stream, workload) = start(LINE);
    let mut model = Model::new(&workload);
    let (_, end) = follow(&stream, &mut model, subscription(None)).await;
    assert_eq!(model.digest(), end.digest);
    assert_eq!(model.order.len() as u64, end.slots, "each sealed slot once, and no other");
    stream.stop().unwrap();
}
