//! Tests of the assembler: scripted sequences and random interleavings.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

fn hash(slot: u64) -> [u8; 32] {
    let mut hash = [0xab; 32];
    hash[..8].copy_from_slice(&slot.to_le_bytes());
    hash
}

fn account(slot: u64, key: u8, value: u8, write_version: u64) -> Input {
    Input::Account { slot, event: Event { key: [key; 32], value: Some([value; 32]), write_version } }
}

fn meta(slot: u64, parent: u64) -> Input {
    meta_of(slot, hash(slot), parent, hash(parent))
}

fn meta_of(slot: u64, blockhash: [u8; 32], parent_slot: u64, parent_blockhash: [u8; 32]) -> Input {
    let parent = Base { slot: parent_slot, blockhash: parent_blockhash };
    Input::BlockMeta(BlockMeta { base: Base { slot, blockhash }, parent, created_unix_ms: 0 })
}

fn confirmed(slot: u64) -> Input {
    Input::Status { slot, confirmed: true, dead: false }
}

fn dead(slot: u64) -> Input {
    Input::Status { slot, confirmed: false, dead: true }
}

fn from(slot: u64) -> Assembler {
    Assembler::new(Some(Base { slot, blockhash: hash(slot) }), HeldLimits::default())
}

fn feed(assembler: &mut Assembler, inputs: &[Input]) -> Vec<WholeSlot> {
    let mut out = Vec::new();
    for &input in inputs {
        assembler.push(input).expect("no gap");
        out.extend(std::iter::from_fn(|| assembler.next()));
    }
    out
}

fn gap(assembler: &mut Assembler, inputs: &[Input]) -> Gap {
    inputs.iter().find_map(|&input| assembler.push(input).err()).expect("a gap")
}

fn numbers(slots: &[WholeSlot]) -> Vec<u64> {
    slots.iter().map(|slot| slot.slot).collect()
}

#[test]
fn a_slot_is_whole_with_both_its_meta_and_its_confirmation() {
    let mut assembler = from(10);
    assert_eq!(feed(&mut assembler, &[account(11, 1, 1, 1), meta(11, 10), account(11, 2, 2, 2)]), []);
    let out = feed(&mut assembler, &[confirmed(11)]);
    assert_eq!(out[0].events.len(), 2, "the update between meta and confirmation is in");
    assert_eq!(numbers(&feed(&mut assembler, &[confirmed(12), meta(12, 11)])), [12]);
    assert_eq!((assembler.held_slots(), assembler.held_bytes()), (0, 0));
}

#[test]
fn children_wait_for_their_parent_and_skipped_slots_do_not_matter() {
    let mut assembler = from(10);
    assert_eq!(feed(&mut assembler, &[meta(15, 12), confirmed(15), meta(16, 15), confirmed(16)]), []);
    assert_eq!(assembler.held_slots(), 2);
    assert_eq!(assembler.check_gap(), None);
    assert_eq!(numbers(&feed(&mut assembler, &[meta(12, 10), confirmed(12)])), [12, 15, 16]);
}

#[test]
fn the_first_whole_slot_is_the_base_when_there_is_none() {
    let mut assembler = Assembler::new(None, HeldLimits::default());
    let out = feed(&mut assembler, &[meta(7, 5), confirmed(7), meta(8, 7), confirmed(8)]);
    assert_eq!(numbers(&out), [7, 8]);
}

#[test]
fn a_replay_is_dropped_and_another_block_in_it_is_a_gap() {
    let mut assembler = from(10);
    let slot = [account(11, 1, 1, 1), meta(11, 10), confirmed(11)];
    assert_eq!(numbers(&feed(&mut assembler, &slot)), [11]);
    assert_eq!(feed(&mut assembler, &[Input::Reconnected, meta(10, 9), confirmed(10)]), []);
    assert_eq!(feed(&mut assembler, &slot), []);
    assert_eq!(assembler.dropped().duplicate_slots, 2);
    assert_eq!(assembler.held_slots(), 0);
    let gap = gap(&mut assembler, &[meta_of(11, [9; 32], 10, hash(10))]);
    assert_eq!((gap.first_slot, gap.last_slot), (11, 11));
}

#[test]
fn a_base_without_a_blockhash_takes_any_and_learns_it_from_the_replay() {
    let base = Base { slot: 10, blockhash: [0; 32] };
    let mut assembler = Assembler::new(Some(base), HeldLimits::default());
    assert_eq!(numbers(&feed(&mut assembler, &[meta(11, 10), confirmed(11)])), [11]);
    let mut assembler = Assembler::new(Some(base), HeldLimits::default());
    feed(&mut assembler, &[meta(10, 9), confirmed(10)]);
    assert_eq!(assembler.last(), Some(Base { slot: 10, blockhash: hash(10) }));
    gap(&mut assembler, &[meta_of(11, hash(11), 10, [9; 32]), confirmed(11)]);
}

#[test]
fn a_dead_slot_is_dropped_and_may_come_again() {
    let mut assembler = from(10);
    assert_eq!(feed(&mut assembler, &[account(11, 1, 1, 1), meta(11, 10), dead(11)]), []);
    assert_eq!((assembler.held_slots(), assembler.held_bytes()), (0, 0));
    let out = feed(&mut assembler, &[account(11, 2, 2, 2), meta(11, 10), confirmed(11)]);
    assert_eq!(out[0].events.len(), 1);
    assert_eq!(out[0].events[0].key, [2; 32]);
    // A slot that is whole and waits for its parent can be found dead as well.
    assert_eq!(feed(&mut assembler, &[account(13, 1, 1, 1), meta(13, 12), confirmed(13), dead(13)]), []);
    assert_eq!((assembler.held_slots(), assembler.held_bytes()), (0, 0));
    assert_eq!(assembler.dropped().dead_slots, 2);
}

#[test]
fn a_reconnect_drops_what_is_held() {
    let mut assembler = from(10);
    feed(&mut assembler, &[meta(12, 11), confirmed(12), account(11, 1, 1, 1), Input::Reconnected]);
    assert_eq!((assembler.held_slots(), assembler.held_bytes()), (0, 0));
    let replay = [account(11, 1, 2, 1), meta(11, 10), confirmed(11), account(12, 1, 1, 1), meta(12, 11), confirmed(12)];
    let out = feed(&mut assembler, &replay);
    assert_eq!(numbers(&out), [11, 12]);
    assert_eq!(out[0].events, [Event { key: [1; 32], value: Some([2; 32]), write_version: 1 }]);
}

/// Returns key and value of each update of a slot that came late, and of each of its own.
fn updates(slot: &WholeSlot) -> [Vec<(u8, u8)>; 2] {
    let of = |events: &[Event]| events.iter().map(|event| (event.key[0], event.value.unwrap()[0])).collect();
    [of(&slot.events[..slot.late]), of(slot.own_events())]
}

#[test]
fn an_update_after_its_slot_goes_out_with_the_next_one_unless_a_newer_one_was_taken() {
    let mut assembler = from(10);
    let first = [confirmed(11), account(11, 1, 1, 1), account(11, 2, 1, 2), account(11, 3, 1, 3), meta(11, 10)];
    assert_eq!(updates(&feed(&mut assembler, &first)[0]), [vec![], vec![(1, 1), (2, 1), (3, 1)]]);
    // New keys, a later write, and what was taken or overwritten already.
    let late =
        [account(11, 4, 7, 4), account(11, 5, 7, 5), account(11, 2, 7, 6), account(11, 1, 1, 1), account(11, 3, 7, 2)];
    assert_eq!(feed(&mut assembler, &late), []);
    assert_eq!((assembler.dropped().late_updates, assembler.dropped().duplicate_updates), (3, 2));
    let next = feed(&mut assembler, &[confirmed(12), account(12, 5, 8, 7), meta(12, 11)]);
    assert_eq!(updates(&next[0]), [vec![(4, 7), (2, 7)], vec![(5, 8)]], "the slot's own write of key 5 wins");
    // Later than the slot after it: what that one has written stays.
    assert_eq!(feed(&mut assembler, &[account(11, 5, 9, 8), account(11, 6, 9, 9)]), []);
    let next = feed(&mut assembler, &[confirmed(13), meta(13, 12)]);
    assert_eq!(updates(&next[0]), [vec![(6, 9)], vec![]]);
}

#[test]
fn of_late_updates_the_newest_stays_and_each_is_taken_once() {
    let mut assembler = from(10);
    feed(&mut assembler, &[meta(11, 10), confirmed(11), account(11, 1, 5, 5), account(11, 1, 5, 5)]);
    assert_eq!((assembler.dropped().late_updates, assembler.dropped().duplicate_updates), (1, 1));
    let next = feed(&mut assembler, &[meta(12, 11), confirmed(12)]);
    assert_eq!(updates(&next[0])[0], [(1, 5)]);
    // An older write of the same slot, and of the one before.
    feed(&mut assembler, &[account(11, 1, 3, 3), account(12, 2, 9, 9)]);
    assert_eq!(updates(&feed(&mut assembler, &[meta(13, 12), confirmed(13)])[0])[0], [(2, 9)]);
    feed(&mut assembler, &[account(11, 2, 8, 8)]);
    assert_eq!(updates(&feed(&mut assembler, &[meta(14, 13), confirmed(14)])[0])[0], []);
}

#[test]
fn a_slot_that_comes_again_and_again_takes_no_more_memory_and_the_newest_copy_counts() {
    let mut assembler = from(10);
    feed(&mut assembler, &[account(11, 1, 1, 1), meta(11, 10), confirmed(11)]);
    assert_eq!(feed(&mut assembler, &[account(11, 2, 2, 900)]), [], "a server with higher versions");
    for _ in 0..9 {
        // As after a gap.
        assembler.restart(assembler.last());
        let again = [Input::Reconnected, account(11, 1, 1, 1), account(11, 2, 4, 40), meta(11, 10), confirmed(11)];
        assert_eq!(feed(&mut assembler, &again), []);
        assert_eq!(assembler.late.updates(), 2);
    }
    let next = feed(&mut assembler, &[meta(12, 11), confirmed(12)]);
    assert_eq!(updates(&next[0])[0], [(1, 1), (2, 4)]);
    // LateUpdates updates that fill the memory leave it to the next connection.
    for key in 0..=1_u64 << 16 {
        let event = Event { key: hash(key), value: Some([1; 32]), write_version: 1 };
        feed(&mut assembler, &[Input::Account { slot: 12, event }]);
    }
    assembler.restart(assembler.last());
    assert_eq!(assembler.late.updates(), 0);
}

#[test]
fn a_late_update_of_the_last_slot_stays_where_the_next_connection_begins_after_that_slot() {
    let late = [account(11, 1, 1, 1), meta(11, 10), confirmed(11), account(11, 2, 7, 2)];
    let mut assembler = from(10);
    feed(&mut assembler, &late);
    // Another provider takes over, and is asked for the next slot.
    assembler.restart(assembler.last());
    feed(&mut assembler, &[Input::Reconnected]);
    let next = feed(&mut assembler, &[account(12, 3, 8, 1), meta(12, 11), confirmed(12)]);
    assert_eq!(updates(&next[0]), [vec![(2, 7)], vec![(3, 8)]]);
    let mut assembler = from(10);
    feed(&mut assembler, &late);
    assembler.restart(assembler.last());
    feed(
        &mut assembler,
        &[Input::Reconnected, account(11, 1, 1, 1), account(11, 2, 9, 2), meta(11, 10), confirmed(11)],
    );
    let next = feed(&mut assembler, &[meta(12, 11), confirmed(12)]);
    assert_eq!(updates(&next[0])[0], [(1, 1), (2, 9)], "the slot has come again");
}

#[test]
fn the_rest_of_a_slot_that_another_stream_has_brought_is_not_taken() {
    let mut assembler = from(10);
    feed(&mut assembler, &[account(11, 1, 9, 9)]);
    assembler.advance(Base { slot: 11, blockhash: hash(11) });
    feed(&mut assembler, &[account(11, 1, 5, 5), meta(11, 10), confirmed(11)]);
    assert_eq!(updates(&feed(&mut assembler, &[meta(12, 11), confirmed(12)])[0]), [vec![], vec![]]);
}

#[test]
fn the_last_slot_that_a_new_connection_sends_again_goes_out_with_the_next_one() {
    let mut assembler = from(10);
    feed(&mut assembler, &[confirmed(11), account(11, 1, 1, 5), meta(11, 10)]);
    // The connection ends before a late update, and the next one belongs to a server with other write versions.
    let again = [Input::Reconnected, account(11, 1, 1, 1), account(11, 2, 7, 2), meta(11, 10), confirmed(11)];
    assert_eq!(feed(&mut assembler, &again), []);
    let next = feed(&mut assembler, &[account(11, 1, 3, 3), account(12, 3, 8, 4), meta(12, 11), confirmed(12)]);
    assert_eq!(updates(&next[0]), [vec![(2, 7), (1, 3)], vec![(3, 8)]]);
    // A part of it is nothing.
    feed(&mut assembler, &[Input::Reconnected, account(12, 4, 9, 1)]);
    let next = feed(&mut assembler, &[meta(13, 12), confirmed(13)]);
    assert_eq!(updates(&next[0]), [vec![], vec![]]);
    assert_eq!((assembler.held_slots(), assembler.held_bytes()), (0, 0));
    // Another block in its place contradicts the chain.
    // Also where somebody else has brought the slot.
    assembler.advance(Base { slot: 14, blockhash: hash(14) });
    for slot in [14, 13] {
        let other = [account(slot, 4, 9, 1), meta_of(slot, [9; 32], slot - 1, hash(slot - 1)), confirmed(slot)];
        let gap = gap(&mut assembler, &other);
        assert!(gap.contradicts, "{gap:?}");
        assembler.restart(assembler.last());
    }
    let next = feed(&mut assembler, &[meta(15, 14), confirmed(15)]);
    assert_eq!(updates(&next[0]), [vec![], vec![]], "nothing of another block goes out");
}

#[test]
fn a_confirmed_child_confirms_the_block_that_it_names() {
    let mut assembler = from(10);
    let unconfirmed = [account(11, 1, 1, 1), meta(11, 10), account(12, 1, 2, 1), meta(12, 11)];
    assert_eq!(feed(&mut assembler, &unconfirmed), []);
    assert_eq!(numbers(&feed(&mut assembler, &[meta(13, 12), confirmed(13)])), [11, 12, 13]);
    // Only the one that it names, and only once its block meta has come.
    assert_eq!(feed(&mut assembler, &[account(14, 1, 1, 1), meta_of(15, hash(15), 14, hash(14)), confirmed(15)]), []);
    assert_eq!(feed(&mut assembler, &[account(14, 2, 1, 1), meta_of(14, [9; 32], 13, hash(13)), dead(14)]), []);
    let block = [account(14, 3, 1, 1), meta(14, 13)];
    assert_eq!(feed(&mut assembler, &block), [], "its own confirmation is next, or another slot shows that it is not");
    let out = feed(&mut assembler, &[meta(16, 15), confirmed(16)]);
    assert_eq!((numbers(&out), updates(&out[0])), (vec![14, 15, 16], [vec![], vec![(3, 1)]]));
    assert_eq!((assembler.held_slots(), assembler.held_bytes()), (0, 0));
}

#[test]
fn the_newest_slot_is_one_that_follows_from_another() {
    let mut assembler = from(100);
    for lie in [confirmed(1 << 30), meta_of(1 << 30, [1; 32], 99, [2; 32]), meta(u64::MAX, u64::MAX - 1)] {
        assembler.push(lie).ok();
        assembler.restart(assembler.last());
        assert_eq!(assembler.newest(), Some(100), "{lie:?}");
    }
    feed(&mut assembler, &[meta(101, 100)]);
    assert_eq!((assembler.newest(), assembler.handed_out()), (Some(101), 0), "announced");
    assert_eq!(assembler.incomplete(), Some((101, "no confirmation")));
    feed(&mut assembler, &[confirmed(101), confirmed(103)]);
    assert_eq!((assembler.handed_out(), assembler.incomplete()), (1, Some((103, "no block meta"))));
    for slot in 104..=250 {
        feed(&mut assembler, &[meta(slot, slot - 1), confirmed(slot)]);
    }
    assert_eq!(assembler.newest(), Some(250), "a lag is seen while slots are missing");
    assert_eq!((assembler.handed_out(), assembler.incomplete()), (1, None), "a slot that waits is no progress");
    feed(&mut assembler, &[Input::Reconnected]);
    assert_eq!((assembler.newest(), assembler.handed_out(), assembler.incomplete()), (Some(101), 0, None));
}

#[test]
fn confirmations_far_ahead_of_the_content_are_kept() {
    let mut assembler = from(100);
    let ahead: Vec<_> = (101..3000).map(confirmed).collect();
    assert_eq!(feed(&mut assembler, &ahead), []);
    let content: Vec<_> = (101..3000).map(|slot| meta(slot, slot - 1)).collect();
    assert_eq!((feed(&mut assembler, &content).len(), assembler.handed_out()), (2899, 2899));
}

#[test]
fn a_slot_from_elsewhere_has_to_follow_the_last_one() {
    let mut assembler = from(10);
    let out = feed(&mut from(10), &[meta(11, 10), confirmed(11), meta(12, 11), confirmed(12)]);
    assert_eq!(assembler.gap_before(&out[0]), None);
    let missing = assembler.gap_before(&out[1]).unwrap();
    assert_eq!((missing.first_slot, missing.last_slot, missing.contradicts), (11, 11, false));
    assembler.restart(Some(Base { slot: 11, blockhash: [9; 32] }));
    assert!(assembler.gap_before(&out[1]).unwrap().contradicts);
}

#[test]
fn the_highest_write_version_of_a_key_is_left() {
    let inputs = [
        account(11, 1, 1, 5),
        account(11, 2, 1, 1),
        account(11, 1, 2, 4),
        account(11, 2, 2, 1),
        account(11, 1, 3, 6),
        meta(11, 10),
        confirmed(11),
    ];
    let out = feed(&mut from(10), &inputs);
    let event = |key, value, write_version| Event { key: [key; 32], value: Some([value; 32]), write_version };
    assert_eq!(out[0].events, [event(1, 3, 6), event(2, 2, 1)]);
}

#[test]
fn a_parent_that_does_not_fit_is_a_gap() {
    let below = gap(&mut from(10), &[meta(12, 9), confirmed(12)]);
    assert_eq!((below.first_slot, below.last_slot), (10, 10));
    let other = gap(&mut from(10), &[meta_of(11, hash(11), 10, [9; 32]), confirmed(11)]);
    assert_eq!((other.first_slot, other.last_slot), (10, 10));
    gap(&mut from(10), &[meta(11, 11)]);
}

#[test]
fn too_many_waiting_slots_or_bytes_are_a_gap() {
    let base = Some(Base { slot: 10, blockhash: hash(10) });
    let mut assembler = Assembler::new(base, HeldLimits { slots_max: 2, bytes_max: usize::MAX });
    let missing = [meta(13, 12), confirmed(13), meta(14, 13), confirmed(14), meta(15, 14), confirmed(15)];
    let gap_slots = gap(&mut assembler, &missing);
    assert_eq!((gap_slots.first_slot, gap_slots.last_slot), (11, 12));
    let mut assembler = Assembler::new(base, HeldLimits { slots_max: 2, bytes_max: 1000 });
    let updates: Vec<_> = (0..100).map(|key| account(11, key, 1, 1)).collect();
    gap(&mut assembler, &updates);
}

/// A chain that starts after slot 100, each slot with its inputs; some slots are skipped.
fn chain() -> impl Strategy<Value = Vec<(u64, Vec<Input>)>> {
    prop::collection::vec((1_u64..4, prop::collection::vec((0_u8..6, any::<u8>()), 0..6)), 1..12).prop_map(|slots| {
        let mut parent = 100;
        slots
            .into_iter()
            .map(|(step, accounts)| {
                let slot = parent + step;
                let mut inputs: Vec<_> =
                    (1..).zip(accounts).map(|(version, (key, value))| account(slot, key, value, version)).collect();
                inputs.extend([meta(slot, parent), confirmed(slot)]);
                parent = slot;
                (slot, inputs)
            })
            .collect()
    })
}

proptest! {
    /// The inputs of several slots are interleaved, the meta and the confirmation of a slot come in either order, and a
    /// reconnect replays everything. The chain still comes out in order, each slot once and whole.
    #[test]
    fn any_interleaving_gives_the_chain_once(
        chain in chain(),
        swaps in prop::collection::vec(any::<bool>(), 12),
        picks in prop::collection::vec(any::<Index>(), 0..200),
        cut in any::<Index>(),
        reconnect in any::<bool>(),
    ) {
        let mut queues: Vec<VecDeque<Input>> = chain
            .iter()
            .zip(&swaps)
            .map(|((_, inputs), &swap)| {
                let mut inputs = inputs.clone();
                if swap {
                    let len = inputs.len();
                    inputs.swap(len - 1, len - 2);
                }
                inputs.into()
            })
            .collect();
        let mut stream = Vec::new();
        let mut picks = picks.into_iter();
        while queues.iter().any(|queue| !queue.is_empty()) {
            let open: Vec<_> = (0..queues.len()).filter(|&at| !queues[at].is_empty()).collect();
            let at = picks.next().map_or(open[0], |pick| *pick.get(&open));
            stream.extend(queues[at].pop_front());
        }
        let mut assembler = from(100);
        let mut out = Vec::new();
        if reconnect {
            out = feed(&mut assembler, &stream[..cut.index(stream.len())]);
            out.extend(feed(&mut assembler, &[Input::Reconnected, meta(100, 99), confirmed(100)]));
        }
        out.extend(feed(&mut assembler, &stream));
        prop_assert_eq!(numbers(&out), chain.iter().map(|(slot, _)| *slot).collect::<Vec<_>>());
        for (whole, (_, inputs)) in out.iter().zip(&chain) {
            let mut last = std::collections::HashMap::new();
            for input in inputs {
                if let Input::Account { event, .. } = input {
                    last.insert(event.key, *event);
                }
            }
            prop_assert_eq!(whole.own_events().len(), last.len());
            prop_assert!(whole.own_events().iter().all(|event| last[&event.key] == *event));
        }
        prop_assert_eq!((assembler.held_slots(), assembler.held_bytes()), (0, 0));
    }
}
