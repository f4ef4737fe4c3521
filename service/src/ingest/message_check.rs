//! The check of every message of a subscription before anything is made of it.
//!
//! Owns: which messages a connection is given up for, and the error. Must not: hold a slot, or choose the next
//! connection. Runs on the receivers' tasks.
//!
//! A store cannot take an applied slot back, so a false number must not get that far. All fields of all messages, with the
//! effect of the extremes of each:
//!
//! | field | extremes |
//! |---|---|
//! | `slot` of accounts, block metas, statuses; `parent_slot`, `parent` | from [`SLOT_END`] on the message is malformed |
//! | `slot` of a block meta | too far above `parent_slot` by the clock ([`reach`](crate::base::plausible::reach)): a gap, unless another provider claims to have such a slot |
//! | `slot` of the status finalized | counts once that slot is applied, see [`undo`](crate::overlay::undo) |
//! | `slot` of other statuses and accounts | far ahead: held within the limits of the assembler, and applied only with a block meta |
//! | `status` | an unknown number is ignored |
//! | `blockhash`, `parent_blockhash`, `pubkey`, `owner` | not 32 bytes: malformed |
//! | `data` | no length that honest slices give: malformed; none at all, or the first slice alone: see [`Tokens`] |
//! | `lamports` | only 0 has a meaning: the account is closed |
//! | `write_version` | compared within one slot, never computed with |
//! | `created_at` | out of range: the nearest time; an impossible time is an unknown lag, and not ready |
//! | `block_time` | counts only if it is after the chain's beginning and earlier than `created_at` |
//! | `bank_id` | a name in the overlay, never computed with |
//! | `executable`, `rent_epoch`, `txn_signature`, `is_startup`, `dead_error`, `rewards`, `block_height`, `executed_transaction_count`, `entries_count`, `filters`, the id of a pong | not read |
//! | kinds that were not asked for | ignored |
//! | `first_available` of the replay info | `u64::MAX`: none yet; another number from `SLOT_END` on: the server errs, and is asked again later |
//! | `slot` of `GetSlot` | implausible by the age of the store: ignored, and an error of the provider |

use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeUpdate};

use super::State;
use super::assemble::Input;
use super::convert::{Converted, MalformedUpdate, convert};
use super::extract::Sent;
use super::follow::Selection;
use super::subscribe::Commitment;
use crate::base::chain::{BlockMeta, Gap, SLOT_END};
use crate::base::figure::count;

/// Minimum number of updates of token accounts by which [`Tokens`] judges a server. A mainnet slot has more.
const TOKENS_MIN: u64 = 32;

/// Of [`TOKENS_SHARE`] updates of token accounts, all but one may come without data, or with the first slice alone, from a
/// server that honours the request. Such accounts of the token programs are rare, because the programs make none.
const TOKENS_SHARE: u64 = 10;

/// The check of one connection's messages.
pub(super) struct MessageCheck<'a> {
    selection: Selection,
    commitment: Commitment,
    /// Index of the provider that the connection is to.
    at: usize,
    state: &'a State,
    tokens: Tokens,
}

impl<'a> MessageCheck<'a> {
    /// Begins with a new connection to the provider with the index `at`.
    pub(super) fn new(selection: Selection, commitment: Commitment, at: usize, state: &'a State) -> Self {
        state.overlay.forget_named();
        Self { selection, commitment, at, state, tokens: Tokens::default() }
    }

    /// Converts a message.
    ///
    /// # Errors
    /// The gap that a false message leaves. Skipping the message would leave the map wrong without any sign of it.
    pub(super) fn take(&mut self, update: SubscribeUpdate) -> Result<Converted, Gap> {
        self.tokens.note(self.selection, &update);
        let finalized = match &update.update_oneof {
            Some(UpdateOneof::Slot(status)) if status.status == SlotStatus::SlotFinalized as i32 => Some(status.slot),
            _ => None,
        };
        let converted = convert(self.selection, self.commitment, update).map_err(|malformed| {
            count(&self.state.figures.updates_malformed, 1);
            self.gap(malformed)
        })?;
        if let Converted::Boundary(input) = &converted {
            self.tokens.check().map_err(|detail| self.gap_after_applied(detail))?;
            self.check(input)?;
        }
        // Before ingest-apply gets the status, because it then looks at the finalized slots that are known.
        finalized.into_iter().for_each(|slot| self.state.overlay.name_final(slot));
        Ok(converted)
    }

    /// Checks that a block is not too far above its parent.
    fn check(&self, input: &Input) -> Result<(), Gap> {
        let Input::BlockMeta(BlockMeta { base, parent, .. }) = *input else { return Ok(()) };
        let (slot, parent_slot) = (base.slot, parent.slot);
        // What is applied already may come again.
        let is_later = self.state.resume.slot().is_none_or(|applied| slot > applied);
        let (above, reach) = (slot.saturating_sub(parent_slot), self.state.reach());
        let is_near = || self.state.providers.note_block(self.at, slot, above.saturating_sub(1), reach);
        if !is_later || is_near() || self.state.providers.is_claimed_by_another(slot, self.at) {
            return Ok(());
        }
        self.state.providers.claim(self.at, slot);
        Err(self.gap_after_applied(format!(
            "slot={slot} is {above} slots above its parent_slot={parent_slot}, more than reach={reach} by the clock together \
             with earlier such blocks, and no other provider has it: the server errs, or the chain was moved ahead, and \
             then a snapshot archive of slot={slot} or later is needed"
        )))
    }

    fn gap(&self, MalformedUpdate { slot, detail }: MalformedUpdate) -> Gap {
        let next = self.gap_after_applied(detail);
        let slot = if slot < SLOT_END { slot } else { next.first_slot };
        Gap { first_slot: slot, last_slot: slot, ..next }
    }

    /// Returns the gap of the slot after the applied one. A false number is named in the words alone.
    fn gap_after_applied(&self, detail: String) -> Gap {
        let slot = self.state.resume.slot().map_or(0, |applied| applied.saturating_add(1));
        Gap { first_slot: slot, last_slot: slot, detail, contradicts: false }
    }
}

/// The updates of one connection about accounts of the token programs with lamports, by whether they have their data.
/// Mints are left out.
///
/// A server that leaves data out would take each token account out of the map as it is written. It is judged before the end
/// of each slot, by the updates since it was judged last.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    all: u64,
    without_data: u64,
    /// Number of updates with the first slice of the data alone.
    cut: u64,
}

impl Tokens {
    /// Counts a message if it is about a token account with lamports.
    pub(crate) fn note(&mut self, selection: Selection, update: &SubscribeUpdate) {
        let Some(UpdateOneof::Account(update)) = &update.update_oneof else { return };
        if let Some(sent) = update.account.as_ref().and_then(|account| selection.token_data(account)) {
            self.all += 1;
            self.without_data += u64::from(sent == Sent::Nothing);
            self.cut += u64::from(sent == Sent::Cut);
        }
    }

    /// Judges the server, once it has sent enough. The error says that it leaves data out.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if self.all < TOKENS_MIN {
            return Ok(());
        }
        let Self { all, without_data, cut } = std::mem::take(self);
        if (all - without_data - cut).saturating_mul(TOKENS_SHARE) >= all {
            return Ok(());
        }
        let what = if without_data >= cut {
            format!(
                "{without_data} of {all} updates of token accounts came without any; have it send accounts_data_slice"
            )
        } else {
            format!(
                "{cut} of {all} updates of token accounts came with the first slice alone; have it send every slice of \
                 accounts_data_slice"
            )
        };
        Err(format!("the server leaves out the data of accounts: {what}, or follow another server"))
    }
}

#[cfg(test)]
mod tests {
    use solana::ChainCheckpoint;
    use workload::Rng;
    use yellowstone_grpc_proto::geyser::{
        SubscribeUpdateAccount, SubscribeUpdateAccountInfo, SubscribeUpdateBlockMeta, SubscribeUpdateSlot,
    };
    use yellowstone_grpc_proto::prost_types::Timestamp;
    use yellowstone_grpc_proto::solana::storage::confirmed_block::{BlockHeight, UnixTimestamp};

    use super::*;
    use crate::base::chain::Base;
    use crate::base::plausible::reach;
    use crate::ingest::extract::{Extract, TOKEN_PROGRAM};
    use crate::ingest::follow::Follow;
    use crate::ingest::fuzzing;
    use crate::ingest::progress::Age;

    const ALL: Selection = Selection { extract: Extract::AccountOwner, follow: Follow::Exact };
    const TOKENS: Selection = Selection { extract: Extract::TokenOwner, follow: Follow::Exact };

    fn state() -> State {
        State::at(ChainCheckpoint { slot: Some(1000), ..ChainCheckpoint::default() })
            .with_providers(["a", "b"].map(str::to_owned))
    }

    fn update(one: UpdateOneof) -> SubscribeUpdate {
        SubscribeUpdate { update_oneof: Some(one), ..Default::default() }
    }

    fn base58(byte: u8) -> String {
        bs58::encode([byte; 32]).into_string()
    }

    fn meta(slot: u64, parent_slot: u64) -> SubscribeUpdate {
        let (blockhash, parent_blockhash) = (base58(1), base58(2));
        update(UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
            slot,
            blockhash,
            parent_slot,
            parent_blockhash,
            ..Default::default()
        }))
    }

    fn token(data: Vec<u8>) -> SubscribeUpdate {
        let owner = bs58::decode(TOKEN_PROGRAM).into_vec().unwrap();
        let info = SubscribeUpdateAccountInfo { pubkey: vec![7; 32], lamports: 1, owner, data, ..Default::default() };
        update(UpdateOneof::Account(SubscribeUpdateAccount { account: Some(info), slot: 1001, ..Default::default() }))
    }

    #[test]
    fn a_child_is_no_further_above_its_parent_than_the_clock_allows_or_another_provider_says() {
        let state = state();
        let take = |slot, parent| MessageCheck::new(ALL, Commitment::Confirmed, 0, &state).take(meta(slot, parent));
        assert!(take(6000, 1000).is_ok() && take(900_000, 899_999).is_ok() && take(990, 3).is_ok());
        for slot in [6001, 1 << 39] {
            let gap = take(slot, 1000).unwrap_err();
            assert_eq!((gap.first_slot, gap.last_slot, gap.contradicts), (1001, 1001, false));
            assert!(
                gap.detail.contains(&format!("slot={slot} is")) && gap.detail.contains("reach=5000"),
                "{}",
                gap.detail
            );
        }
        assert!(take(1005, 3).is_ok(), "the assembler calls it a fork");
        let state = self::state();
        let take = |slot, parent| MessageCheck::new(ALL, Commitment::Confirmed, 0, &state).take(meta(slot, parent));
        state.progress.slot_applied(Age::Known(std::time::Duration::from_secs(3600)));
        assert!(take(1000 + 5_000 + 12_000, 1000).is_ok() && take(1000 + 5_000 + 12_001 + 100, 1000).is_err());
        assert!(take(1 << 39, 1000).is_err(), "its own claim is no evidence");
        state.providers.claim(1, (1 << 39) - reach(None));
        assert!(take(1 << 39, 1000).is_ok());
        state.providers.distrust(1, 0);
        assert!(take(1 << 39, 1000).is_err());
    }

    #[test]
    fn a_ladder_of_leaps_leads_no_further_than_one_and_an_honest_chain_may_skip_most_of_its_slots() {
        let state = self::state();
        let take =
            |slot, parent, at| MessageCheck::new(ALL, Commitment::Confirmed, at, &state).take(meta(slot, parent));
        // The block comes again after a break.
        assert!(take(5900, 1000, 0).is_ok() && take(5900, 1000, 0).is_ok());
        let gap = take(10_800, 5900, 0).unwrap_err();
        assert!(gap.detail.contains("together with earlier such blocks"), "{}", gap.detail);
        // Also over another connection of the provider; what another provider may do is its own.
        assert!(take(6100, 5900, 0).is_err() && take(6100, 5900, 1).is_ok());
        // Each block is the last of a leader that skipped the slots of the one before.
        assert!((0..20_000).map(|at| 6100 + 5 * at).all(|parent| take(parent + 5, parent, 1).is_ok()));
    }

    #[test]
    fn the_first_slot_of_a_store_or_a_spool_without_a_base_is_no_further_above_its_parent_either() {
        let state = State::at(ChainCheckpoint::default()).with_providers(["a", "b"].map(str::to_owned));
        let take = |slot, parent| MessageCheck::new(ALL, Commitment::Confirmed, 0, &state).take(meta(slot, parent));
        assert!(take(1000, 999).is_ok() && take(6000, 1000).is_ok());
        let gap = take(1 << 39, 1000).unwrap_err();
        assert_eq!((gap.first_slot, gap.last_slot), (0, 0));
        assert!(gap.detail.contains("more than reach=5000"), "{}", gap.detail);
        state.providers.claim(1, 1 << 39);
        assert!(take(1 << 39, 1000).is_ok(), "another provider has it");
    }

    #[test]
    fn a_false_slot_is_in_the_words_of_its_gap_alone_and_is_never_final() {
        let state = state();
        state.overlay.begin(Base { slot: 1000, blockhash: [1; 32] });
        let mut check = MessageCheck::new(ALL, Commitment::Confirmed, 0, &state);
        for (slot, is_far) in [(u64::MAX, true), (1 << 40, true), (1005, false)] {
            let account = SubscribeUpdateAccount { slot, ..Default::default() };
            let gap = check.take(update(UpdateOneof::Account(account))).unwrap_err();
            let shown = if is_far { 1001 } else { slot };
            assert_eq!((gap.first_slot, gap.last_slot), (shown, shown));
            assert!(gap.detail.contains(&format!("slot={slot}")), "{}", gap.detail);
        }
        let status = SlotStatus::SlotFinalized as i32;
        let finalized = |slot| update(UpdateOneof::Slot(SubscribeUpdateSlot { slot, status, ..Default::default() }));
        assert!(check.take(finalized(1 << 62)).is_err() && check.take(finalized(1 << 39)).is_ok());
        state.overlay.settle();
        assert_eq!(state.overlay.slot(crate::base::chain::Commitment::Finalized), None);
        assert!(check.take(finalized(1000)).is_ok());
        state.overlay.settle();
        assert_eq!(state.overlay.slot(crate::base::chain::Commitment::Finalized), Some(1000));
    }

    #[test]
    fn a_server_without_data_is_told_from_one_with_a_few_empty_accounts() {
        let state = state();
        let whole = [vec![9; 32], vec![1, 0]].concat();
        for (empty, with_data, is_refused) in [(31, 0, false), (32, 0, true), (1000, 112, false), (1000, 111, true)] {
            let mut check = MessageCheck::new(TOKENS, Commitment::Confirmed, 0, &state);
            let data = std::iter::repeat_n(Vec::new(), empty).chain(std::iter::repeat_n(whole.clone(), with_data));
            data.for_each(|data| assert!(check.take(token(data)).is_ok()));
            let ended = check.take(meta(1001, 1000));
            assert_eq!(ended.is_err(), is_refused, "{empty} {with_data}");
            assert!(ended.err().is_none_or(|gap| gap.detail.contains("leaves out the data of accounts")));
        }
        let mut check = MessageCheck::new(ALL, Commitment::Confirmed, 0, &state);
        (0..1000).for_each(|_| assert!(check.take(token(Vec::new())).is_ok()));
        assert!(check.take(meta(1001, 1000)).is_ok(), "an extraction that asks for no data");
    }

    #[test]
    fn a_server_that_sends_the_first_slice_alone_is_told_from_one_that_sends_mints() {
        let state = state();
        let mint = || [vec![9; 14], vec![1, 0, 0, 0], vec![9; 14]].concat();
        for (data, words) in [
            (vec![9; 32], Some("1000 of 1000 updates of token accounts came with the first slice alone")),
            (vec![9; 33], Some("have it send every slice of accounts_data_slice")),
            (mint(), None),
            (vec![9; 34], None),
        ] {
            let mut check = MessageCheck::new(TOKENS, Commitment::Confirmed, 0, &state);
            (0..1000).for_each(|_| assert!(check.take(token(data.clone())).is_ok()));
            let ended = check.take(meta(1001, 1000)).err().map(|gap| gap.detail);
            assert_eq!(ended.is_some(), words.is_some(), "{data:?}: {ended:?}");
            assert!(ended.zip(words).is_none_or(|(detail, words)| detail.contains(words)), "{data:?}");
        }
        let follow = Selection { follow: Follow::Wallets, ..TOKENS };
        let mut check = MessageCheck::new(follow, Commitment::Confirmed, 0, &state);
        (0..1000).for_each(|_| assert!(check.take(token(vec![9; 32])).is_ok()));
        assert!(check.take(meta(1001, 1000)).is_ok(), "one slice is all that is asked for");
    }

    #[test]
    fn updates_with_data_do_not_hide_later_ones_without() {
        let state = state();
        let whole = [vec![9; 32], vec![1, 0]].concat();
        let mut check = MessageCheck::new(TOKENS, Commitment::Confirmed, 0, &state);
        (0..10_000).for_each(|_| assert!(check.take(token(whole.clone())).is_ok()));
        assert!(check.take(meta(1001, 1000)).is_ok());
        for slot in 1002..1004 {
            (0..16).for_each(|_| assert!(check.take(token(Vec::new())).is_ok()));
            // Too few in one slot to judge by.
            assert_eq!(check.take(meta(slot, slot - 1)).is_err(), slot == 1003);
        }
    }

    /// Numbers near each bound, and a few of the chain.
    fn number(rng: &mut Rng) -> u64 {
        let bounds = [0, 1, 8, 5_000, 1 << 31, 1 << 32, 1 << 39, SLOT_END, 1 << 62, 1 << 63, u64::MAX];
        let near = bounds[rng.below(bounds.len() as u64) as usize];
        if rng.chance(0.6) { rng.below(12) } else { near.wrapping_add(rng.below(5)).wrapping_sub(2) }
    }

    fn message(rng: &mut Rng) -> SubscribeUpdate {
        let one = match rng.below(4) {
            0 => {
                let SubscribeUpdate { update_oneof: Some(UpdateOneof::Account(mut update)), .. } =
                    token(vec![1; rng.below(40) as usize])
                else {
                    panic!("an account")
                };
                let account = update.account.as_mut().unwrap();
                (account.lamports, account.write_version, account.rent_epoch) = (number(rng), number(rng), number(rng));
                account.pubkey.truncate(32 - usize::from(rng.chance(0.02)));
                (update.slot, update.bank_id) = (number(rng), Some(number(rng)));
                UpdateOneof::Account(update)
            }
            1 | 2 => {
                let (slot, parent) = (number(rng), number(rng));
                let parent_slot = if rng.chance(0.6) { slot.wrapping_sub(1) } else { parent };
                UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
                    slot,
                    blockhash: base58(slot as u8),
                    parent_slot,
                    parent_blockhash: base58(parent_slot as u8),
                    block_time: Some(UnixTimestamp { timestamp: number(rng) as i64 }),
                    block_height: Some(BlockHeight { block_height: number(rng) }),
                    executed_transaction_count: number(rng),
                    entries_count: number(rng),
                    bank_id: number(rng),
                    ..Default::default()
                })
            }
            _ => UpdateOneof::Slot(SubscribeUpdateSlot {
                slot: number(rng),
                parent: rng.chance(0.5).then(|| number(rng)),
                status: [1, 1, 2, 6, number(rng) as i32][rng.below(5) as usize],
                dead_error: Some("x".repeat(rng.below(9) as usize)),
                bank_id: Some(number(rng)),
            }),
        };
        let created_at = Timestamp { seconds: number(rng) as i64, nanos: number(rng) as i32 };
        SubscribeUpdate { created_at: rng.chance(0.9).then_some(created_at), ..update(one) }
    }

    #[test]
    fn no_extreme_of_any_field_is_handed_out_or_ends_the_process() {
        // ROUNDS is for a long run by hand.
        let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
        for seed in 0..rounds {
            let mut rng = Rng::new(seed);
            let (selection, base) = (if rng.chance(0.5) { ALL } else { TOKENS }, rng.below(3));
            let base = (base > 0).then(|| Base { slot: rng.below(8), blockhash: [0; 32] });
            let commitment = if rng.chance(0.3) { Commitment::Finalized } else { Commitment::Confirmed };
            // A whole slot at the beginning, which may be far above its parent.
            let (slot, status) = (number(&mut rng), SlotStatus::SlotFinalized as i32);
            let whole = [
                meta(slot, number(&mut rng)),
                update(UpdateOneof::Slot(SubscribeUpdateSlot { slot, status, ..Default::default() })),
            ];
            let others = (0..200).map(|_| rng.chance(0.98).then(|| message(&mut rng)));
            let updates: Vec<_> = whole.into_iter().map(Some).chain(others).collect();
            crate::processed::fuzzing::banks(selection, base, updates.clone());
            fuzzing::stream(selection, commitment, base, updates);
        }
    }
}
