//! Tests of the merging with scripted lanes, and of the messages that ingest-apply gets.

use solana::ChainCheckpoint;

use super::*;
use crate::base::chain::{BlockMeta, Event};
use crate::ingest::phase::Taker;

const BASE: u64 = 10;

fn hash(slot: u64) -> [u8; 32] {
    [slot as u8; 32]
}

/// The inputs of a slot whose one account has this value.
fn slot(number: u64, value: u8) -> Vec<Input> {
    let event = Event { key: [1; 32], value: Some([value; 32]), write_version: 0 };
    let block = |slot| Base { slot, blockhash: hash(slot) };
    let meta = BlockMeta { base: block(number), parent: block(number - 1), created_unix_ms: 0 };
    vec![
        Input::Account { slot: number, event },
        Input::BlockMeta(meta),
        Input::Status { slot: number, confirmed: true, dead: false },
    ]
}

struct Two {
    merge: Merge,
    state: State,
    passed: mpsc::Receiver<Message>,
}

impl Two {
    fn new() -> Self {
        let checkpoint = ChainCheckpoint { slot: Some(BASE), blockhash: hash(BASE), ..ChainCheckpoint::default() };
        let state = State::at(checkpoint).with_providers(["a", "b", "c"].map(str::to_owned));
        let (out, passed) = mpsc::channel(1000);
        let gap_timeout = Duration::from_secs(60);
        let lanes = (0..2).map(|_| Sequence::new(Taker::Merge, state.of_lane(), None, gap_timeout)).collect();
        Self { merge: Merge::new(lanes, out, state.clone()), state, passed }
    }

    async fn take(&mut self, lane: usize, message: Message) {
        assert!(self.merge.take(lane, message).await.is_ok());
        assert!(self.merge.send_gap().await.is_ok());
    }

    /// Has a lane's receiver connect to the provider with this index.
    async fn connect(&mut self, lane: usize, provider: usize) {
        self.state.providers.turn(lane, Some(provider));
        self.state.providers.follow(lane, provider);
        std::mem::forget(self.merge.lanes[lane].state().open());
        self.take(lane, Message::Reconnected { provider, stream: 0 }).await;
    }

    /// Ends the connection of a lane's receiver.
    fn disconnect(&self, lane: usize) {
        drop(self.merge.lanes[lane].state().open());
    }

    fn resumed(&self) -> Vec<Option<u64>> {
        self.merge.lanes.iter().map(|lane| lane.state().resume.slot()).collect()
    }

    async fn slot(&mut self, lane: usize, number: u64, value: u8) {
        self.take(lane, Message::Batch(slot(number, value))).await;
    }

    /// Returns the providers and confirmed slots that ingest-apply was told of since the last call, in words.
    fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Ok(message) = self.passed.try_recv() {
            match message {
                Message::From { provider, .. } => told.push(format!("provider={provider}")),
                Message::Gap(gap) => told.push(format!("gap={}-{}", gap.first_slot, gap.last_slot)),
                Message::Slot(whole) => told.push(format!("slot={}", whole.slot.slot)),
                _ => {}
            }
        }
        told
    }
}

/// The inputs of a slot whose accounts are these keys, with the slot's number as their value.
fn of_keys(number: u64, keys: &[u8]) -> Vec<Input> {
    let mut inputs = slot(number, 1);
    inputs.splice(..1, keys.iter().map(|key| account(number, *key, number as u8)));
    inputs
}

fn account(slot: u64, key: u8, value: u8) -> Input {
    let event = Event { key: [key; 32], value: Some([value; 32]), write_version: u64::from(value) };
    Input::Account { slot, event }
}

impl Two {
    /// Returns the slots that ingest-apply got since the last call, each with key and value of its late updates.
    fn late(&mut self) -> Vec<(u64, Vec<(u8, u8)>)> {
        let mut slots = Vec::new();
        while let Ok(message) = self.passed.try_recv() {
            if let Message::Slot(whole) = message {
                let late = whole.slot.events[..whole.slot.late].iter();
                slots.push((whole.slot.slot, late.map(|event| (event.key[0], event.value.unwrap()[0])).collect()));
            }
        }
        slots
    }
}

#[tokio::test]
async fn a_late_update_of_either_lane_goes_out_with_the_next_slot_of_any() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    for lane in [0, 1] {
        two.take(lane, Message::Batch(of_keys(11, &[1, 2]))).await;
    }
    assert_eq!(two.late(), [(11, vec![])]);
    // Lane 1 comes second in each slot.
    two.take(1, Message::Batch(vec![account(11, 1, 70), account(11, 3, 71), account(11, 4, 72)])).await;
    two.take(0, Message::Batch(vec![account(11, 2, 73)])).await;
    two.take(0, Message::Batch(of_keys(12, &[4, 5]))).await;
    let late = vec![(3, 71), (2, 73)];
    assert_eq!(two.late(), [(12, late)], "slot 12 has key 4, and the copy of key 1 that was first stays");
    two.take(1, Message::Batch(vec![account(11, 5, 80), account(11, 6, 81)])).await;
    two.take(1, Message::Batch(of_keys(12, &[4, 5]))).await;
    two.take(0, Message::Batch(of_keys(13, &[]))).await;
    assert_eq!(two.late(), [(13, vec![(6, 81)])], "a later slot that was passed on has key 5");
}

#[tokio::test]
async fn a_late_update_of_a_lane_that_is_passed_over_or_connects_anew_is_kept() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    for lane in [0, 1] {
        two.take(lane, Message::Batch(of_keys(11, &[1]))).await;
    }
    two.late();
    // Lane 1 lacks slot 12.
    two.take(1, Message::Batch([of_keys(13, &[1]), vec![account(11, 2, 70)]].concat())).await;
    two.take(0, Message::Batch(of_keys(12, &[1]))).await;
    assert_eq!(two.late(), [(12, vec![(2, 70)]), (13, vec![])]);
    two.take(1, Message::Batch(vec![account(13, 3, 71)])).await;
    two.connect(1, 1).await;
    two.take(0, Message::Batch(of_keys(13, &[1]))).await;
    two.take(0, Message::Batch(of_keys(14, &[1]))).await;
    assert_eq!(two.late(), [(14, vec![(3, 71)])]);
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_parent_goes_on_from_one_connection_of_a_lane_to_the_next() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    let state = two.merge.lanes[0].state().clone();
    for round in 0..12 {
        assert!(!two.merge.lanes[0].phase.is_in_gap(), "{round}");
        let open = state.open();
        // Another slot each time, as where a server ignores `from_slot`.
        two.take(0, Message::Reconnected { provider: 0, stream: 0 }).await;
        two.take(0, Message::Batch(slot(20 + round, 1))).await;
        for _ in 0..10 {
            assert!(two.merge.look().is_ok());
            tokio::time::advance(LOOK_EVERY).await;
        }
        assert!(two.merge.look().is_ok());
        assert_eq!(state.resume.slots_of(round + 2), 0, "no progress");
        drop(open);
        // This time does not count.
        tokio::time::advance(Duration::from_secs(40)).await;
        assert!(two.merge.look().is_ok());
    }
    assert!(two.merge.lanes[0].phase.is_in_gap(), "60 s in all");
}

fn gap(slot: u64) -> Message {
    Message::Gap(Gap { first_slot: slot, last_slot: slot, detail: "lost".to_owned(), contradicts: false })
}

#[tokio::test]
async fn the_first_whole_slot_is_passed_on_and_the_second_compared() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.slot(0, 11, 1).await;
    two.slot(1, 11, 1).await;
    two.slot(1, 12, 1).await;
    assert_eq!(two.told(), ["provider=0", "slot=11", "provider=1", "slot=12"]);
    two.slot(0, 12, 2).await;
    assert_eq!(two.told(), [""; 0]);
    let reports = two.state.providers.reports();
    assert_eq!((reports[0].slots_first, reports[1].slots_first), (1, 1));
    assert_eq!((reports[0].slots_differing, reports[1].slots_differing), (1, 0), "the later one differs");
}

#[tokio::test]
async fn a_slot_that_one_lane_lacks_comes_from_the_other() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.slot(0, 12, 1).await;
    two.slot(1, 11, 1).await;
    assert_eq!(two.told(), ["provider=1", "slot=11", "provider=0", "slot=12"]);
    assert_eq!(two.resumed(), [Some(12), Some(11)]);
}

#[tokio::test]
async fn a_gap_is_told_once_no_lane_can_close_it() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(0, gap(11)).await;
    assert_eq!(two.told(), [""; 0], "the other lane may bring the slot");
    two.take(1, gap(11)).await;
    assert_eq!(two.told(), ["provider=1", "gap=11-11"]);
    two.connect(1, 2).await;
    two.slot(1, 11, 1).await;
    assert_eq!(two.told(), ["provider=2", "slot=11"]);
    two.take(0, gap(11)).await;
    assert_eq!(two.told(), [""; 0], "the slot was passed on");
}

#[tokio::test]
async fn a_lane_that_was_away_goes_on_from_what_was_passed_on() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.slot(0, 11, 1).await;
    two.slot(1, 11, 1).await;
    two.disconnect(1);
    two.slot(0, 12, 1).await;
    two.slot(0, 13, 1).await;
    assert_eq!(two.resumed(), [Some(13); 2]);
    two.told();
    // The answer to an attempt from before.
    two.take(1, gap(12)).await;
    assert_eq!(
        (two.told(), two.merge.lanes[1].phase.is_in_gap()),
        (vec![], false),
        "the other lane has brought the slot"
    );
    two.disconnect(0);
    two.state.providers.failed(0, "killed");
    two.connect(1, 1).await;
    two.slot(1, 14, 1).await;
    assert_eq!(two.told(), ["provider=1", "slot=14"]);
    two.disconnect(1);
    two.take(1, gap(15)).await;
    assert_eq!(two.told(), ["gap=15-15"], "nobody can bring the slot");
}

#[tokio::test]
async fn a_lane_begins_where_ingest_apply_stands_though_it_was_slower() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    for number in [11, 12, 13] {
        two.slot(0, number, 1).await;
    }
    assert_eq!(two.resumed(), [Some(13), Some(10)], "it is connected, and may bring the slots");
    two.state.resume.set_slot(12);
    two.disconnect(1);
    two.disconnect(0);
    assert_eq!(two.resumed(), [Some(13), Some(12)]);
    two.connect(1, 1).await;
    for number in [12, 13, 14] {
        two.slot(1, number, 1).await;
    }
    assert_eq!(two.told()[4..], ["provider=1", "slot=14"]);
}

#[tokio::test]
async fn a_gap_of_one_lane_is_told_where_the_other_one_has_nobody_to_ask() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.disconnect(1);
    two.state.providers.failed(1, "refused");
    two.take(0, gap(11)).await;
    assert_eq!(two.told(), ["provider=0", "gap=11-11"]);
}

#[tokio::test]
async fn a_lane_of_another_chain_is_distrusted_and_the_other_one_goes_on() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.slot(0, 11, 1).await;
    let mut other = slot(11, 1);
    other.iter_mut().for_each(|input| {
        if let Input::BlockMeta(meta) = input {
            meta.base.blockhash = [99; 32];
        }
    });
    two.take(1, Message::Batch(other)).await;
    assert!(two.state.providers.is_distrusted(1) && !two.state.providers.is_distrusted(0));
    two.slot(0, 12, 1).await;
    assert_eq!(two.told(), ["provider=0", "slot=11", "slot=12"]);
}

#[tokio::test]
async fn lanes_begin_anew_where_a_slot_could_not_be_applied() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.slot(0, 11, 1).await;
    two.slot(0, 12, 1).await;
    two.state.resume.set_slot(11);
    two.state.resume.give_up(1);
    assert!(two.merge.look().is_ok());
    two.told();
    assert_eq!(two.resumed(), [Some(11); 2]);
    two.connect(0, 0).await;
    two.slot(0, 12, 1).await;
    assert_eq!(two.told(), ["provider=0", "slot=12"]);
}

/// The inputs of a slot that names these blockhashes for itself and for its parent.
fn named(number: u64, own: u8, parent: u8) -> Vec<Input> {
    let mut inputs = slot(number, 1);
    inputs.iter_mut().for_each(|input| {
        if let Input::BlockMeta(meta) = input {
            (meta.base.blockhash, meta.parent.blockhash) = ([own; 32], [parent; 32]);
        }
    });
    inputs
}

#[tokio::test]
async fn a_block_that_a_slow_lane_had_when_it_passed_it_over_is_kept() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    // The other lane lacks slot 11, so that it cannot hand slot 12 out.
    two.take(1, Message::Batch(named(12, 12, 11))).await;
    two.take(0, Message::Batch(named(11, 11, 10))).await;
    assert_eq!(two.told(), ["provider=0", "slot=11", "provider=1", "slot=12"]);
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(1, Message::Batch(named(13, 13, 12))).await;
    for number in [11, 12] {
        two.take(0, Message::Batch(named(number, number as u8, number as u8 - 1))).await;
    }
    two.take(0, Message::Batch(named(13, 99, 12))).await;
    assert_eq!(two.told(), ["provider=0", "slot=11", "slot=12", "provider=1", "slot=13"]);
    assert!(two.state.providers.is_distrusted(0));
}

#[tokio::test]
async fn slots_of_one_provider_that_join_nothing_are_not_the_newest_ones() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.slot(1, 11, 1).await;
    two.slot(0, 12, 1).await;
    // Block metas whose slots are never confirmed.
    let metas =
        |slots: std::ops::Range<u64>| Message::Batch(slots.map(|number| slot(number, 1).swap_remove(1)).collect());
    two.take(0, metas(999_999..1_000_001)).await;
    assert_eq!(two.state.newest_slot(), Some(11), "of the other one");
    two.take(1, metas(999_999..1_000_001)).await;
    assert_eq!(two.state.newest_slot(), Some(1_000_000), "no others are known");
    two.connect(0, 0).await;
    two.take(0, metas(13..15)).await;
    assert_eq!(two.state.newest_slot(), Some(14));
}

#[tokio::test]
async fn a_contradiction_is_shown_while_the_first_provider_is_away() {
    let mut two = Two::new();
    two.state.progress.set_phase(crate::base::chain::Phase::CatchingUp);
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(0, Message::Batch(named(11, 99, 10))).await;
    two.take(1, Message::Batch(named(11, 11, 10))).await;
    two.state.providers.set_trouble(0, "cannot connect");
    let verdict = two.state.verdict();
    assert!(verdict.gap.is_some_and(|gap| gap.contradicts && gap.first_slot == 12), "{:?}", verdict.not_ready);
    two.state.progress.chain_goes_on(11, 1);
    assert!(two.state.verdict().gap.is_some(), "slot 11 was applied before");
}
