//! The acts of the provider: their names, and the change that each of them makes to a message on its way.
//!
//! Owns: these changes. Must not: know where a message comes from, or who gets it. The texts of the acts are the help of
//! `loadgen provider`.

use clap::ValueEnum as _;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeUpdate};

use super::messages::{self, unix_ms};

/// Number of slots by which the server lags under `lags`.
pub(super) const LAGS_SLOTS: u64 = 60;
/// Number of slots by which the slots of `boasts` and of the `foreign` chain are ahead of the chain.
const AHEAD_SLOTS: u64 = 1_000_000_000;
/// Slot that the act `leaps` names, far ahead of any chain and within the range of slots.
const LEAP_SLOT: u64 = 1 << 39;
/// Number of slots from a confirmed slot back to the finalized one.
const FINALITY_SLOTS: u64 = 32;
/// Number of slots by which a slot of `roots-ahead` is ahead of the confirmed one.
const ROOT_AHEAD_SLOTS: u64 = 20;
/// How old every block is by its own time under `restamps`, in seconds.
const RESTAMPED_AGE_S: i64 = 136;
/// How often each account is sent under `small`.
const SMALL_TIMES: usize = 150;

/// Behaviour of the server, as the script sets it. An act that changes messages begins with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Sends every slot as soon as it exists
    Serves,
    /// Keeps connections and sends only pings; the slots come after the act
    Pings,
    /// Sends nothing and answers no request; the slots come after the act
    Stalls,
    /// Ends connections and lets nobody in, as while it is down
    Down,
    /// Ends connections and refuses subscriptions, as after a plan has run out
    Refuses,
    /// Ends connections, then knows of no slot for three seconds
    Restarts,
    /// Sends every slot 60 slots late (24 s at 400 ms a slot)
    Lags,
    /// Withholds the next slot from the existing connections; later ones get it
    Loses,
    /// Withholds the next slot from every connection, for good
    Withholds,
    /// Gives every block another parent blockhash than the chain has
    Lies,
    /// Gives the next slot a wrong blockhash and other accounts, for good; the slot after it names the right one
    Forks,
    /// Changes the owner of every account, and sends every block meta 0.3 s late
    Alters,
    /// Ends connections, then sends another chain with higher slots, whatever is asked for
    Foreign,
    /// Sends with each confirmation one of a slot that is far ahead
    Boasts,
    /// Sends after each slot a confirmed child of it that is 2^39 slots ahead; on the own chain
    Leaps,
    /// Sends after each slot a confirmed child of it in slot 2^64-1; on the own chain
    Overflows,
    /// Sends after each slot that the one 32 slots before it is finalized
    Roots,
    /// As roots, and that the one 20 slots ahead and slot 2^39 are finalized
    RootsAhead,
    /// Sends every slot as if made at the beginning of 1970
    Ancient,
    /// Sends every slot as a server that sends old blocks as new messages: 136 s old by its block time alone
    Restamps,
    /// Leaves out the data of every account
    Omits,
    /// Sends each account 150 times, so that there are many small messages
    Small,
    /// Sends only the confirmation of each slot
    Confirms,
    /// Sends only the block meta of each slot
    Metas,
    /// Sends the first slots that it has ever sent again and again
    Repeats,
}

impl Act {
    /// Finds the act of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// Whether no slot is sent.
    pub(super) fn holds(self) -> bool {
        matches!(self, Self::Pings | Self::Stalls | Self::Down | Self::Refuses | Self::Repeats)
    }

    /// Whether the act ends the existing connections where it begins.
    pub(super) fn ends_connections(self) -> bool {
        matches!(self, Self::Down | Self::Refuses | Self::Restarts | Self::Foreign)
    }

    /// Whether each slot is sent whole and as it is.
    pub(super) fn sends_whole(self) -> bool {
        !matches!(self, Self::Lies | Self::Alters | Self::Omits | Self::Foreign | Self::Confirms | Self::Metas)
    }
}

/// Lists the acts with their meanings, a line each.
pub(super) fn list() -> String {
    let acts = Act::value_variants().iter().filter_map(Act::to_possible_value);
    let line = |act: clap::builder::PossibleValue| {
        let help = act.get_help().map(ToString::to_string).unwrap_or_default();
        format!("  {:<11}  {help}\n", act.get_name())
    };
    acts.map(line).collect()
}

/// Returns the slot that a message is about, if it is about one.
pub(super) fn slot_of(update: &SubscribeUpdate) -> Option<u64> {
    match &update.update_oneof {
        Some(UpdateOneof::Account(account)) => Some(account.slot),
        Some(UpdateOneof::BlockMeta(meta)) => Some(meta.slot),
        Some(UpdateOneof::Slot(status)) => Some(status.slot),
        _ => None,
    }
}

/// Returns the messages that `act` makes of one about a slot.
pub(super) fn changed(act: Act, mut update: SubscribeUpdate) -> Vec<SubscribeUpdate> {
    use UpdateOneof::{Account, BlockMeta, Slot};
    match (act, &mut update.update_oneof) {
        (Act::Confirms, Some(Account(_) | BlockMeta(_))) | (Act::Metas, Some(Account(_) | Slot(_))) => {
            return Vec::new();
        }
        (Act::Small, Some(Account(_))) => return vec![update; SMALL_TIMES],
        (Act::Boasts, Some(Slot(status))) if status.status == SlotStatus::SlotConfirmed as i32 => {
            let mut ahead = status.clone();
            ahead.slot += AHEAD_SLOTS;
            let boast = SubscribeUpdate { update_oneof: Some(Slot(ahead)), ..update.clone() };
            return vec![boast, update];
        }
        (Act::Leaps, Some(Slot(status))) => return with_child(LEAP_SLOT, status.slot, update),
        (Act::Overflows, Some(Slot(status))) => return with_child(u64::MAX, status.slot, update),
        (Act::Roots | Act::RootsAhead, Some(Slot(status))) => {
            let (slot, now) = (status.slot, unix_ms());
            let ahead = [slot + ROOT_AHEAD_SLOTS, LEAP_SLOT].into_iter().filter(|_| act == Act::RootsAhead);
            let finalized = ahead.chain([slot.saturating_sub(FINALITY_SLOTS).max(1)]);
            let statuses = finalized.map(|slot| messages::status(slot, SlotStatus::SlotFinalized, now));
            return [update].into_iter().chain(statuses).collect();
        }
        (Act::Restamps, Some(BlockMeta(meta))) => {
            meta.block_time.iter_mut().for_each(|time| time.timestamp -= RESTAMPED_AGE_S);
        }
        (Act::Omits, Some(Account(account))) => {
            account.account.iter_mut().for_each(|account| account.data.clear());
        }
        (Act::Lies, Some(BlockMeta(meta))) => meta.parent_blockhash = other(&meta.parent_blockhash),
        (Act::Alters, Some(Account(account))) => {
            account.account.iter_mut().flat_map(|account| account.owner.first_mut()).for_each(|byte| *byte ^= 1);
        }
        (Act::Foreign, Some(Account(account))) => account.slot += AHEAD_SLOTS,
        (Act::Foreign, Some(BlockMeta(meta))) => {
            meta.slot += AHEAD_SLOTS;
            meta.parent_slot += AHEAD_SLOTS;
            meta.blockhash = other(&meta.blockhash);
            meta.parent_blockhash = other(&meta.parent_blockhash);
        }
        (Act::Foreign, Some(Slot(status))) => {
            status.slot += AHEAD_SLOTS;
            status.parent = status.parent.map(|parent| parent + AHEAD_SLOTS);
        }
        (Act::Ancient, _) => update.created_at = Some(prost_types::Timestamp::default()),
        _ => {}
    }
    vec![update]
}

/// Returns a slot's confirmation, and after it a confirmed child of that slot in the slot `child`.
fn with_child(child: u64, parent: u64, update: SubscribeUpdate) -> Vec<SubscribeUpdate> {
    let now = unix_ms();
    vec![update, messages::child(child, parent, now), messages::confirmed(child, now)]
}

/// Gives the slot of a block meta another blockhash, and the account of an update another address.
pub(super) fn fork(update: &mut SubscribeUpdate) {
    match &mut update.update_oneof {
        Some(UpdateOneof::BlockMeta(meta)) => meta.blockhash = other(&meta.blockhash),
        Some(UpdateOneof::Account(account)) => {
            account.account.iter_mut().flat_map(|account| account.pubkey.first_mut()).for_each(|byte| *byte ^= 1);
        }
        _ => {}
    }
}

/// Returns another blockhash, always the same one for the same blockhash.
fn other(blockhash: &str) -> String {
    let bytes = bs58::decode(blockhash).into_vec().unwrap_or_default();
    bs58::encode(bytes.iter().map(|byte| !byte).collect::<Vec<u8>>()).into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the messages of slots 8 and 9 under `act`.
    fn sent(act: Act) -> Vec<SubscribeUpdate> {
        let slot =
            |slot| [messages::account(slot, 0, 5000), messages::meta(slot, 5000), messages::confirmed(slot, 6000)];
        [8, 9].into_iter().flat_map(slot).flat_map(|update| changed(act, update)).collect()
    }

    fn slots(sent: &[SubscribeUpdate]) -> Vec<u64> {
        sent.iter().filter_map(slot_of).collect()
    }

    /// Returns blockhash and parent blockhash of both block metas.
    fn hashes(sent: &[SubscribeUpdate]) -> Vec<(String, String)> {
        let hash = |update: &SubscribeUpdate| match &update.update_oneof {
            Some(UpdateOneof::BlockMeta(meta)) => Some((meta.blockhash.clone(), meta.parent_blockhash.clone())),
            _ => None,
        };
        sent.iter().filter_map(hash).collect()
    }

    #[test]
    fn an_act_changes_what_its_help_says_and_nothing_else() {
        let honest = sent(Act::Serves);
        assert_eq!((honest.len(), sent(Act::Loses), sent(Act::Lags)), (6, honest.clone(), honest.clone()));
        assert_eq!((slots(&sent(Act::Confirms)), slots(&sent(Act::Metas))), (vec![8, 9], vec![8, 9]));
        assert!(hashes(&sent(Act::Confirms)).is_empty() && hashes(&sent(Act::Metas)) == hashes(&honest));
        assert_eq!(sent(Act::Small).len(), 2 * (SMALL_TIMES + 2));
        assert_eq!(slots(&sent(Act::Boasts)), [8, 8, 8 + AHEAD_SLOTS, 8, 9, 9, 9 + AHEAD_SLOTS, 9]);
        assert_eq!(slots(&sent(Act::Leaps))[..5], [8, 8, 8, LEAP_SLOT, LEAP_SLOT]);
        assert_eq!(slots(&sent(Act::Overflows))[3..6], [u64::MAX, u64::MAX, 9]);
        assert_eq!(slots(&sent(Act::RootsAhead))[2..6], [8, 8 + ROOT_AHEAD_SLOTS, LEAP_SLOT, 1]);
        assert_eq!(slots(&sent(Act::Roots))[2..5], [8, 1, 9]);
        for (act, changed) in [(Act::Restamps, 2), (Act::Omits, 0)] {
            let sent = sent(act);
            assert_eq!(sent.iter().zip(&honest).filter(|(one, other)| one != other).count(), changed, "{act:?}");
        }
        let lied = hashes(&sent(Act::Lies));
        assert!(lied[1].1 != lied[0].0 && lied[0].0 == hashes(&honest)[0].0, "only the parent is another: {lied:?}");
        let mut forked = honest.clone();
        forked.iter_mut().for_each(fork);
        let mut both = hashes(&forked).into_iter().zip(hashes(&honest));
        assert!(both.all(|(forked, honest)| forked.0 != honest.0 && forked.1 == honest.1));
        let changed = forked.iter().zip(&honest).filter(|(one, other)| one != other).count();
        assert_eq!(changed, 4, "two accounts and two block metas");
        let foreign = sent(Act::Foreign);
        let hashes_of_foreign = hashes(&foreign);
        assert!(slots(&foreign).iter().all(|slot| *slot > AHEAD_SLOTS));
        assert_eq!(hashes_of_foreign[0].0, hashes_of_foreign[1].1, "a chain of its own");
        assert_ne!(hashes_of_foreign, hashes(&honest));
        let altered = sent(Act::Alters);
        let differing = altered.iter().zip(&honest).filter(|(one, other)| one != other);
        assert_eq!((differing.count(), hashes(&altered)), (2, hashes(&honest)), "two accounts");
        assert!(sent(Act::Ancient).iter().all(|update| update.created_at == Some(prost_types::Timestamp::default())));
    }

    #[test]
    fn every_act_has_a_name_and_a_line_of_help() {
        let list = list();
        for act in Act::value_variants() {
            let name = act.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(Act::named(&name), Some(*act));
            let line = list.lines().find(|line| line.split_whitespace().next() == Some(&name)).unwrap();
            assert!(line.split_whitespace().count() > 3, "{line}");
        }
        assert_eq!(Act::named("sings"), None);
    }
}
