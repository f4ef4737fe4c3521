//! Tests of the banks with scripted messages.

use super::*;

const A: [u8; 32] = [1; 32];
const B: [u8; 32] = [2; 32];

fn base(slot: u64) -> Base {
    base_of(slot, 0)
}

fn base_of(slot: u64, fork: u8) -> Base {
    let mut blockhash = [0xab; 32];
    blockhash[..8].copy_from_slice(&slot.to_le_bytes());
    blockhash[8] = fork;
    Base { slot, blockhash }
}

fn account(slot: u64, bank: Option<u64>, key: [u8; 32], value: u8, write_version: u64) -> Seen {
    Seen::Account { slot, bank, event: Event { key, value: Some([value; 32]), write_version } }
}

fn status(slot: u64, bank: Option<u64>, status: BankStatus) -> Seen {
    Seen::Status { slot, bank, status }
}

/// Returns the messages of a whole bank that writes `value` to key A. Its id is its slot times 10 plus the fork's
/// number.
fn whole(base: Base, parent: Base, value: u8) -> Vec<Seen> {
    let (slot, bank) = (base.slot, Some(base.slot * 10 + u64::from(base.blockhash[8])));
    vec![
        status(slot, bank, BankStatus::Begun),
        account(slot, bank, A, value, 1),
        Seen::BlockMeta { bank, base, parent },
        status(slot, bank, BankStatus::Processed),
    ]
}

fn banks() -> Banks {
    let mut banks = Banks::new(Some(base(10)), Limits::default());
    banks.push(Seen::Connected);
    banks
}

fn feed(banks: &mut Banks, seen: impl IntoIterator<Item = Seen>) {
    seen.into_iter().for_each(|seen| _ = banks.push(seen));
}

fn dropped(banks: &Banks, reason: Reason) -> u64 {
    banks.dropped()[reason as usize]
}

/// Returns the slots of the processed fork, the tip first.
fn path(banks: &Banks) -> Vec<u64> {
    banks.view().path.iter().map(|block| block.base.slot).collect()
}

fn tip_value(banks: &Banks, key: [u8; 32]) -> Option<u8> {
    let view = banks.view();
    super::super::view::newest_write(&view.path, &key).value_or(|| None).map(|value| value[0])
}

#[test]
fn a_bank_is_whole_with_its_begin_its_meta_and_processed_in_any_order() {
    let all = whole(base(11), base(10), 5);
    for last in 0..4 {
        let mut banks = banks();
        let mut rest = all.clone();
        let end = rest.remove(last);
        feed(&mut banks, rest);
        assert_eq!(path(&banks), if last == 1 { vec![11] } else { vec![] }, "without {end:?}");
        banks.push(end);
        assert_eq!((path(&banks), tip_value(&banks, A)), (vec![11], Some(5)));
    }
}

#[test]
fn a_bank_in_flight_when_connected_is_not_used_and_one_after_a_first_shred_is() {
    let mut banks = banks();
    feed(&mut banks, whole(base(11), base(10), 5).into_iter().skip(1));
    assert_eq!(path(&banks), [] as [u64; 0]);
    feed(&mut banks, whole(base(12), base(11), 6));
    assert_eq!(path(&banks), [] as [u64; 0], "its parent is not known");
    banks.advance(Some(11), Some(base(11)));
    assert_eq!(path(&banks), [12], "its parent is in the engine");
    banks.push(status(13, None, BankStatus::Begun));
    feed(&mut banks, whole(base(13), base(12), 7).into_iter().skip(1));
    assert_eq!(path(&banks), [13, 12]);
}

#[test]
fn the_last_write_counts_and_a_late_one_is_taken_in() {
    let mut banks = banks();
    let bank = Some(110);
    let held = [account(11, bank, A, 3, 9), account(11, bank, A, 1, 7), account(11, bank, A, 2, 8)];
    feed(&mut banks, held);
    feed(&mut banks, whole(base(11), base(10), 0));
    assert_eq!(tip_value(&banks, A), Some(3));
    let before = banks.view();
    assert!(banks.push(account(11, bank, B, 4, 1)));
    assert_eq!((tip_value(&banks, A), tip_value(&banks, B)), (Some(3), Some(4)));
    assert!(!before.path[0].writes.contains_key(&B), "a view does not change");
}

#[test]
fn the_tip_descends_from_what_is_confirmed_and_is_the_highest_then_the_newest() {
    let mut banks = banks();
    feed(&mut banks, whole(base(11), base(10), 1));
    feed(&mut banks, whole(base_of(12, 1), base(10), 2));
    assert_eq!((path(&banks), tip_value(&banks, A)), (vec![12], Some(2)), "the highest");
    feed(&mut banks, whole(base_of(12, 2), base(11), 3));
    assert_eq!((path(&banks), tip_value(&banks, A)), (vec![12, 11], Some(3)), "of two in a slot the newest");
    banks.push(status(12, Some(121), BankStatus::Confirmed));
    assert_eq!(path(&banks), [12]);
    feed(&mut banks, whole(base(13), base_of(12, 2), 4));
    assert_eq!(path(&banks), [12], "what is confirmed decides before the slot does");
    banks.advance(Some(10), Some(base(11)));
    assert_eq!(path(&banks), [13, 12, 11], "the root decides before a status does");
    assert_eq!(dropped(&banks, Reason::Abandoned), 1, "the one beside the root's fork");
}

#[test]
fn abandoned_forks_go_once_the_root_is_past_them() {
    let mut banks = banks();
    feed(&mut banks, whole(base(11), base(10), 1));
    feed(&mut banks, whole(base_of(12, 1), base(11), 2));
    feed(&mut banks, whole(base_of(13, 1), base_of(12, 1), 3));
    feed(&mut banks, whole(base(14), base(11), 4));
    feed(&mut banks, [status(15, Some(151), BankStatus::Begun), account(15, Some(151), A, 5, 1)]);
    assert_eq!(banks.banks(), 5);
    banks.advance(Some(11), Some(base(14)));
    assert_eq!((banks.banks(), path(&banks)), (2, vec![14]));
    assert_eq!((dropped(&banks, Reason::Committed), dropped(&banks, Reason::Abandoned)), (1, 2));
    banks.advance(Some(14), Some(base(14)));
    assert_eq!((banks.banks(), path(&banks)), (1, vec![]));
    assert_eq!(dropped(&banks, Reason::Committed), 2);
    feed(&mut banks, whole(base(14), base(11), 4));
    assert_eq!(banks.banks(), 1, "what is committed is not held again");
}

#[test]
fn a_dead_bank_goes_and_what_still_comes_of_it_is_let_go() {
    let mut banks = banks();
    feed(&mut banks, whole(base(11), base(10), 1));
    feed(&mut banks, whole(base_of(12, 1), base(11), 2));
    banks.push(status(12, Some(121), BankStatus::Dead));
    assert_eq!(path(&banks), [11]);
    feed(&mut banks, whole(base_of(12, 1), base(11), 2));
    assert_eq!(path(&banks), [11]);
    feed(&mut banks, whole(base_of(12, 2), base(11), 3));
    assert_eq!((path(&banks), tip_value(&banks, A)), (vec![12, 11], Some(3)), "the slot's other bank");
    banks.push(status(12, None, BankStatus::Dead));
    assert_eq!(path(&banks), [11], "without an id all of the slot are meant");
    assert_eq!(dropped(&banks, Reason::Dead), 2);
}

#[test]
fn a_new_connection_keeps_what_is_whole_and_forgets_what_is_not() {
    let mut banks = banks();
    feed(&mut banks, whole(base(11), base(10), 1));
    feed(&mut banks, whole(base(12), base(11), 2).into_iter().take(2));
    banks.push(Seen::Connected);
    assert_eq!((path(&banks), dropped(&banks, Reason::Disconnected)), (vec![11], 1));
    feed(&mut banks, whole(base(12), base(11), 2).into_iter().skip(2));
    assert_eq!(path(&banks), [11], "its first writes were on the other connection");
    // Another server uses the same id for another block, and another id for the held block.
    feed(&mut banks, [account(11, Some(110), A, 9, 99)]);
    assert_eq!(tip_value(&banks, A), Some(1));
    let again = Some(7);
    feed(
        &mut banks,
        [
            status(11, again, BankStatus::Begun),
            account(11, again, A, 1, 50),
            Seen::BlockMeta { bank: again, base: base(11), parent: base(10) },
            status(11, again, BankStatus::Processed),
        ],
    );
    assert_eq!((path(&banks), tip_value(&banks, A), dropped(&banks, Reason::Duplicate)), (vec![11], Some(1), 1));
}

#[test]
fn an_id_that_is_given_again_is_another_bank() {
    let mut banks = banks();
    feed(&mut banks, whole(base(11), base(10), 1));
    banks.push(Seen::BlockMeta { bank: Some(110), base: base_of(11, 5), parent: base(10) });
    banks.push(status(11, Some(110), BankStatus::Processed));
    assert_eq!(tip_value(&banks, A), Some(1), "the begin of the other one was not seen");
}

#[test]
fn without_ids_a_status_means_the_only_bank_of_its_slot() {
    let mut banks = banks();
    let nameless = |slot: u64, parent: u64| {
        [
            status(slot, None, BankStatus::Begun),
            account(slot, None, A, slot as u8, 1),
            Seen::BlockMeta { bank: None, base: base(slot), parent: base(parent) },
            status(slot, None, BankStatus::Processed),
        ]
    };
    feed(&mut banks, nameless(11, 10));
    feed(&mut banks, nameless(12, 11));
    assert_eq!((path(&banks), tip_value(&banks, A)), (vec![12, 11], Some(12)));
    banks.push(status(12, None, BankStatus::Dead));
    feed(&mut banks, nameless(12, 11).into_iter().skip(1));
    assert_eq!(path(&banks), [11], "it may be what still comes of the dead one");
    // A status without an id, from a server that sends ids.
    feed(&mut banks, whole(base_of(13, 1), base(11), 1).into_iter().take(3));
    feed(&mut banks, whole(base_of(13, 2), base(11), 2).into_iter().take(3));
    banks.push(status(13, None, BankStatus::Processed));
    assert_eq!(path(&banks), [11], "it does not say which of two");
}

#[test]
fn too_much_is_dropped_and_refused_until_the_engine_has_it() {
    for limits in [Limits { banks_max: 3, bytes_max: usize::MAX }, Limits { banks_max: 100, bytes_max: 2000 }] {
        let mut banks = Banks::new(Some(base(10)), limits);
        let mut slot = 10;
        while dropped(&banks, Reason::Overflow) == 0 {
            slot += 1;
            feed(&mut banks, whole(base(slot), base(slot - 1), 1));
        }
        assert!(banks.view().overflowed && slot < 20, "{limits:?} slot={slot}");
        banks.advance(Some(slot - 1), Some(base(slot - 1)));
        assert!(banks.view().overflowed, "the newest one dropped is not in the engine yet");
        banks.advance(Some(slot), Some(base(slot)));
        assert!(!banks.view().overflowed);
        feed(&mut banks, whole(base(slot + 1), base(slot), 1));
        assert_eq!(path(&banks), [slot + 1]);
    }
}

#[test]
fn what_was_dropped_is_forgotten_with_its_connection() {
    let mut banks = Banks::new(Some(base(10)), Limits { banks_max: 2, bytes_max: usize::MAX });
    // A false slot far ahead, which the engine reaches late or never.
    feed(&mut banks, [11, 12, 5000].map(|slot| account(slot, None, A, 1, 1)));
    assert!(banks.view().overflowed);
    assert!(banks.push(Seen::Connected), "the view changes");
    assert!(!banks.view().overflowed);
    feed(&mut banks, whole(base(11), base(10), 2).into_iter().skip(1));
    assert_eq!(path(&banks), [] as [u64; 0], "its start was seen on neither connection");
    banks.push(Seen::Connected);
    feed(&mut banks, whole(base(11), base(10), 3));
    assert_eq!((path(&banks), tip_value(&banks, A)), (vec![11], Some(3)));
}
