//! Tests of the merging with scripted lanes, and of the messages that ingest-apply gets.

use solana::ChainCheckpoint;

use super::*;
use crate::chain::Event;

const BASE: u64 = 10;

fn hash(slot: u64) -> [u8; 32] {
    [slot as u8; 32]
}

/// The inputs of a slot whose one account has this value.
fn slot(number: u64, value: u8) -> Vec<Input> {
    let event = Event { key: [1; 32], value: Some([value; 32]), write_version: 0 };
    let parent_slot = number - 1;
    vec![
        Input::Account { slot: number, event },
        Input::BlockMeta {
            slot: number,
            blockhash: hash(number),
            parent_slot,
            parent_blockhash: hash(parent_slot),
            created_unix_ms: 0,
        },
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
        let lanes = (0..2).map(|_| Lane::new(&state, Duration::from_secs(60))).collect();
        Self { merge: Merge::new(lanes, out, state.clone()), state, passed }
    }

    async fn take(&mut self, lane: usize, message: Message) {
        assert!(self.merge.take(lane, message).await.is_ok());
        assert!(self.merge.tell_gap().await.is_ok());
    }

    /// Has a lane's receiver connect to the provider with this index.
    async fn connect(&mut self, lane: usize, provider: usize) {
        self.state.providers.turn(lane, Some(provider));
        self.take(lane, Message::Reconnected { provider }).await;
    }

    async fn slot(&mut self, lane: usize, number: u64, value: u8) {
        self.take(lane, Message::Batch(slot(number, value))).await;
    }

    /// Returns the providers and confirmed slots that ingest-apply was told of since the last call, in words.
    fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Ok(message) = self.passed.try_recv() {
            match message {
                Message::Reconnected { provider } => told.push(format!("provider={provider}")),
                Message::Replaced { slot, provider } => {
                    assert_eq!(slot.blockhash, hash(slot.slot));
                    told.push(format!("replaced={} provider={provider}", slot.slot));
                }
                Message::Gap(gap) => told.push(format!("gap={}-{}", gap.first_slot, gap.last_slot)),
                Message::Batch(inputs) => told.extend(inputs.iter().filter_map(|input| match input {
                    Input::Status { slot, .. } => Some(format!("slot={slot}")),
                    _ => None,
                })),
                _ => {}
            }
        }
        told
    }
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
    assert_eq!(two.merge.lanes.iter().map(|lane| lane.state().resume.slot()).collect::<Vec<_>>(), [Some(12), Some(11)]);
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
async fn a_gap_of_one_lane_is_told_where_the_other_one_has_nobody_to_ask() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
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
        if let Input::BlockMeta { blockhash, .. } = input {
            *blockhash = [99; 32];
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
    let resumed: Vec<_> = two.merge.lanes.iter().map(|lane| lane.state().resume.slot()).collect();
    assert_eq!(resumed, [Some(11); 2]);
    two.connect(0, 0).await;
    two.slot(0, 12, 1).await;
    assert_eq!(two.told(), ["provider=0", "slot=12"]);
}

/// The inputs of a slot that names these blockhashes for itself and for its parent.
fn named(number: u64, own: u8, parent: u8) -> Vec<Input> {
    let mut inputs = slot(number, 1);
    inputs.iter_mut().for_each(|input| {
        if let Input::BlockMeta { blockhash, parent_blockhash, .. } = input {
            (*blockhash, *parent_blockhash) = ([own; 32], [parent; 32]);
        }
    });
    inputs
}

#[tokio::test]
async fn a_block_that_its_own_provider_refutes_is_replaced_by_the_other_ones() {
    for other_is_first in [true, false] {
        let mut two = Two::new();
        two.connect(0, 0).await;
        two.connect(1, 1).await;
        two.take(0, Message::Batch(named(11, 99, 10))).await;
        assert_eq!(two.told(), ["provider=0", "slot=11"]);
        let (own, other) = (Message::Batch(named(12, 12, 11)), Message::Batch(named(11, 11, 10)));
        if other_is_first {
            two.take(1, other).await;
            assert!(two.state.providers.is_distrusted(1), "until the first one's next block");
            two.take(0, own).await;
        } else {
            two.take(0, own).await;
            two.take(1, other).await;
        }
        assert_eq!(two.told(), ["provider=1", "replaced=11 provider=1"]);
        assert!(two.state.providers.is_distrusted(0) && !two.state.providers.is_distrusted(1));
        if other_is_first {
            two.connect(1, 1).await;
            two.take(1, Message::Batch(named(11, 11, 10))).await;
        }
        two.take(1, Message::Batch(named(12, 12, 11))).await;
        assert_eq!(two.told(), ["slot=12"]);
    }
}

#[tokio::test]
async fn a_block_that_came_after_its_child_is_refuted_at_once() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(0, Message::Batch(named(12, 12, 11))).await;
    two.take(0, Message::Batch(named(11, 99, 10))).await;
    assert!(two.state.providers.is_distrusted(0));
    two.slot(1, 11, 7).await;
    assert_eq!(two.told(), ["provider=0", "slot=11", "provider=1", "replaced=11 provider=1"]);
}

#[tokio::test]
async fn a_block_that_comes_again_as_another_one_is_refuted_too() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(0, Message::Batch(named(11, 99, 10))).await;
    two.take(0, Message::Batch(named(11, 11, 10))).await;
    assert!(two.state.providers.is_distrusted(0));
    two.slot(1, 11, 7).await;
    two.slot(1, 12, 1).await;
    assert_eq!(two.told(), ["provider=0", "slot=11", "provider=1", "replaced=11 provider=1", "slot=12"]);
}

#[tokio::test]
async fn a_block_of_three_blockhashes_is_not_replaced() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(0, Message::Batch(named(11, 99, 10))).await;
    two.take(0, Message::Batch(named(12, 12, 11))).await;
    two.take(1, Message::Batch(named(11, 98, 10))).await;
    assert_eq!(two.told(), ["provider=0", "slot=11"]);
    assert!(two.state.providers.is_distrusted(0) && two.state.providers.is_distrusted(1), "the third one decides");
}

/// Providers 0 and 1 at once, of which the first one has sent the block 99 of slot 11.
async fn wrong_first() -> Two {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(0, Message::Batch(named(11, 99, 10))).await;
    assert_eq!(two.told(), ["provider=0", "slot=11"]);
    two
}

#[tokio::test]
async fn a_third_provider_brings_the_block_after_a_refutation() {
    // On the lane of the refuted provider, and on the other one, which stands at the newest slot as well.
    for lane in [0, 1] {
        let mut two = Two::new();
        two.connect(0, 0).await;
        two.connect(1, 1).await;
        if lane == 1 {
            two.take(1, Message::Batch(named(12, 12, 11))).await;
        }
        two.take(0, Message::Batch(named(11, 99, 10))).await;
        assert_eq!(two.told(), ["provider=0", "slot=11"]);
        if lane == 1 {
            // The other provider contradicts the slot by a later one, so that nobody has its block.
            two.take(1, Message::Batch(named(13, 13, 12))).await;
            assert!(two.state.providers.is_distrusted(1));
            two.connect(1, 2).await;
        }
        two.take(0, Message::Batch(named(12, 12, 11))).await;
        assert!(two.state.providers.is_distrusted(0), "lane={lane}");
        assert!(!two.state.providers.is_distrusted(1), "lane={lane}: it has named the same block");
        let resumed = two.merge.lanes[lane].state().resume.slot();
        assert_eq!(resumed, Some(10), "lane={lane}: the block in its place is asked for");
        two.connect(lane, 2).await;
        two.take(lane, Message::Batch(named(11, 11, 10))).await;
        two.take(lane, Message::Batch(named(12, 12, 11))).await;
        assert_eq!(two.told(), ["provider=2", "replaced=11 provider=2", "slot=12"], "lane={lane}");
        assert!(!two.state.providers.is_distrusted(2));
    }
}

#[tokio::test]
async fn those_who_named_the_right_block_first_are_trusted_again() {
    let mut two = wrong_first().await;
    two.take(1, Message::Batch(named(11, 11, 10))).await;
    two.connect(1, 2).await;
    two.take(1, Message::Batch(named(11, 11, 10))).await;
    assert_eq!([1, 2].map(|at| two.state.providers.is_distrusted(at)), [true, true]);
    two.take(0, Message::Batch(named(12, 12, 11))).await;
    assert_eq!(two.told(), ["provider=1", "replaced=11 provider=1"]);
    assert_eq!([0, 1, 2].map(|at| two.state.providers.is_distrusted(at)), [true, false, false]);
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
async fn a_lane_within_a_slot_keeps_its_accounts_when_the_slot_before_is_replaced() {
    let mut two = wrong_first().await;
    two.take(0, Message::Batch(named(12, 12, 11))).await;
    // A third provider confirms the block, and has begun its next slot, when the other one brings the right block.
    two.connect(0, 2).await;
    two.take(0, Message::Batch(named(11, 99, 10))).await;
    let next = named(12, 12, 11);
    two.take(0, Message::Batch(next[..1].to_vec())).await;
    two.take(1, Message::Batch(named(11, 11, 10))).await;
    two.take(0, Message::Batch(next[1..].to_vec())).await;
    two.state.providers.distrust(1);
    let mut accounts = Vec::new();
    while let Ok(message) = two.passed.try_recv() {
        let Message::Batch(inputs) = message else { continue };
        accounts.extend(inputs.iter().filter_map(|input| match input {
            Input::Account { slot, .. } => Some(*slot),
            _ => None,
        }));
    }
    assert_eq!(accounts, [12], "slot 12 has its account");
}

#[tokio::test]
async fn lanes_begin_anew_after_the_block_that_ingest_apply_has() {
    let mut two = wrong_first().await;
    two.take(0, Message::Batch(named(12, 12, 11))).await;
    two.take(1, Message::Batch(named(11, 11, 10))).await;
    assert_eq!(two.told(), ["provider=1", "replaced=11 provider=1"]);
    // ingest-apply could not take the block, and has the first one.
    let at_first = ChainCheckpoint { slot: Some(11), blockhash: [99; 32], ..ChainCheckpoint::default() };
    two.state.published.publish(at_first);
    two.state.resume.set_slot(11);
    two.state.resume.give_up(2);
    assert!(two.merge.look().is_ok());
    assert_eq!(two.merge.passed.last(), Some(Base { slot: 11, blockhash: [99; 32] }));
}

#[tokio::test]
async fn slots_of_one_provider_that_join_nothing_are_not_the_newest_ones() {
    let mut two = Two::new();
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.slot(1, 11, 1).await;
    let newest = |two: &Two, slots: [u64; 2]| {
        two.merge.lanes.iter().zip(slots).for_each(|(lane, slot)| lane.state().readiness.set_newest_slot(slot));
        two.merge.mirror();
        two.state.readiness.newest_slot()
    };
    assert_eq!(newest(&two, [1_000_000, 12]), Some(12));
    assert_eq!(newest(&two, [13, 12]), Some(13));
    assert_eq!(newest(&two, [1_000_000, 1_000_000]), Some(1_000_000), "nobody has others");
}

#[tokio::test]
async fn a_contradiction_is_shown_while_the_first_provider_is_away() {
    let mut two = Two::new();
    two.state.readiness.set_phase(crate::chain::Phase::CatchingUp);
    two.connect(0, 0).await;
    two.connect(1, 1).await;
    two.take(0, Message::Batch(named(11, 99, 10))).await;
    two.take(1, Message::Batch(named(11, 11, 10))).await;
    two.merge.lanes[0].state().readiness.set_trouble("cannot connect");
    two.merge.mirror();
    let verdict = two.state.readiness.verdict();
    assert!(verdict.gap.is_some_and(|gap| gap.contradicts && gap.first_slot == 12), "{:?}", verdict.not_ready);
    two.state.readiness.chain_goes_on(11, 1);
    assert!(two.state.readiness.verdict().gap.is_some(), "slot 11 was applied before");
}
