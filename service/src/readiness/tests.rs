//! Tests of the readiness, by a clock of their own. Must not: open a socket or a store.

use solana::ChainCheckpoint;
use tokio::time::{Instant, advance};

use super::*;
use crate::ingest::ReadinessSettings;
use crate::ingest::progress::CHAIN_BEGAN_UNIX_MS;
use crate::overlay::Overlay;

const SECOND: Duration = Duration::from_secs(1);

fn live(took: Duration) -> State {
    live_within(ReadinessSettings::default(), took)
}

fn live_within(limits: ReadinessSettings, took: Duration) -> State {
    let checkpoint = ChainCheckpoint::default();
    let state = State::new(checkpoint, Overlay::new(&checkpoint, false, false), limits);
    state.progress.slot_applied(Age::Known(took));
    state.progress.set_phase(Phase::Live);
    state.with_providers(["a", "b"].map(str::to_owned))
}

#[tokio::test(start_paused = true)]
async fn silence_ends_readiness_and_a_slot_brings_it_back() {
    let state = live(SECOND / 50);
    advance(SECOND / 2).await;
    assert_eq!(state.verdict_at(Some(0)), Verdict { not_ready: None, gap: None, lag_ms: Some(20) });
    advance(SECOND * 9).await;
    assert_eq!(state.verdict_at(Some(0)), Verdict { not_ready: None, gap: None, lag_ms: Some(9520) });
    advance(SECOND).await;
    let verdict = state.verdict_at(Some(0));
    assert_eq!(verdict.not_ready.as_deref(), Some("no slot was applied for 10 s: max_lag=10s"));
    advance(SECOND * 90).await;
    state.providers.set_trouble(0, "cannot connect");
    let verdict = state.verdict_at(Some(0));
    let reason = "no slot was applied for 100 s: max_lag=10s; stream: cannot connect";
    assert_eq!((verdict.not_ready.as_deref(), verdict.lag_ms), (Some(reason), Some(100_520)));
    state.progress.slot_applied(Age::Known(SECOND / 50));
    assert!(state.verdict_at(Some(0)).is_ready(), "trouble alone is no reason");
}

#[tokio::test(start_paused = true)]
async fn applying_old_slots_is_not_live() {
    let state = live(SECOND * 38);
    let why = "the newest applied slot is 38 s old: max_lag=10s";
    assert_eq!(state.verdict_at(Some(0)).not_ready.as_deref(), Some(why));
    state.progress.slot_applied(Age::Known(SECOND * 9));
    assert!(state.verdict_at(Some(149)).is_ready());
    let why = "150 slots behind the newest known one: limit_slots=150";
    assert_eq!(state.verdict_at(Some(150)).not_ready.as_deref(), Some(why));
    advance(SECOND * 2).await;
    assert!(!state.verdict_at(Some(0)).is_ready(), "nine seconds old when it came, and two more");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_waits_for_its_parent_is_named_with_the_time() {
    let state = live(SECOND / 50);
    advance(SECOND * 2).await;
    let (slot, parent_slot, since, gap_timeout) = (12, 11, Instant::now(), SECOND * 60);
    state.progress.set_awaited(Some(Awaited { slot, parent_slot, since, gap_timeout }));
    assert!(state.verdict_at(Some(1)).is_ready(), "a slot or two out of order are nothing");
    advance(SECOND * 35).await;
    let why = "slot=12 has waited 35 s for its parent_slot=11: gap_timeout=60s";
    let live = format!("{why}; max_lag=10s");
    assert_eq!(state.verdict_at(Some(1)).not_ready, Some(live));
    state.progress.set_phase(Phase::CatchingUp);
    assert_eq!(state.verdict_at(Some(1)).not_ready, Some(format!("catching up with the stream: {why}")));
    state.progress.set_awaited(None);
    assert_eq!(state.verdict_at(Some(1)).not_ready.as_deref(), Some("catching up with the stream"));
}

#[test]
fn a_servers_time_that_cannot_be_right_is_no_lag_and_not_ready() {
    const NOW: u64 = 1_800_000_000_000;
    let state = live(SECOND);
    for absurd in [0, 1, CHAIN_BEGAN_UNIX_MS - 1, NOW + 10_000, NOW + 3_600_000, u64::MAX] {
        state.progress.slot_applied(state.age(absurd, NOW));
        let verdict = state.verdict_at(Some(0));
        assert!(verdict.lag_ms.is_none(), "{absurd}");
        assert!(verdict.not_ready.unwrap().contains(&format!("created_unix_ms={absurd};")));
    }
    for (created, lag_ms) in [(NOW, 0), (NOW + 9_999, 0), (NOW - 20, 20), (NOW - 9_000, 9_000)] {
        state.progress.slot_applied(state.age(created, NOW));
        let verdict = state.verdict_at(Some(0));
        assert_eq!((verdict.not_ready.as_deref(), verdict.lag_ms), (None, Some(lag_ms)));
    }
}

#[test]
fn the_newest_plausible_slot_of_any_trusted_provider_counts() {
    let state = live(SECOND / 50);
    let providers = &state.providers;
    let applied = |slot| ChainCheckpoint { slot: Some(slot), ..ChainCheckpoint::default() };
    state.published.publish(applied(1000));
    providers.set_newest_slot(0, 1001);
    let why = || (state.lag_slots(), state.verdict().not_ready);
    let behind = Some("350 slots behind the newest known one: limit_slots=150".to_owned());
    for absurd in [1000 + 5_001, 1 << 39, u64::MAX] {
        providers.set_newest_slot(1, absurd);
        assert_eq!(why(), (Some(1), None), "{absurd}");
    }
    providers.set_newest_slot(1, 1350);
    assert_eq!(why(), (Some(350), behind.clone()));
    providers.set_newest_slot(0, 0);
    assert_eq!(why(), (Some(350), behind), "of a connection that has sent nothing");
    providers.set_newest_slot(0, 1001);
    providers.set_newest_slot(1, 0);
    assert_eq!(why(), (Some(1), None));
    providers.set_newest_slot(1, 1350);
    assert_eq!(state.lag_slots(), Some(350));
    state.published.publish(applied(1350));
    assert_eq!(state.lag_slots(), Some(0));
    providers.set_newest_slot(0, 1 << 39);
    assert!(state.lag_slots() > Some(1 << 38), "the followed one may have any slot");
}

#[test]
fn limits_are_settings() {
    let state = live_within(ReadinessSettings { max_lag: SECOND * 400 }, SECOND * 380);
    assert!(state.verdict_at(Some(900)).is_ready());
    assert!(!state.verdict_at(Some(1000)).is_ready());
}

#[test]
fn every_phase_but_live_is_a_reason() {
    let state = live(SECOND);
    let gap = Gap { first_slot: 8, last_slot: 9, detail: "parent".to_owned(), contradicts: false };
    for (phase, why) in [
        (Phase::Starting, "starting"),
        (Phase::Loading("pairs=5".to_owned()), "loading: pairs=5"),
        (Phase::CatchingUp, "catching up with the stream"),
        (Phase::Gap(gap.clone()), "E-GAP: slots are missing: first_slot=8 last_slot=9: parent"),
        (Phase::NoSpace("full".to_owned()), "no space: full"),
        (Phase::CommitWaits("no descriptors".to_owned()), "a commit has to wait: no descriptors"),
    ] {
        state.progress.set_phase(phase.clone());
        let verdict = state.verdict_at(None);
        assert_eq!(verdict.not_ready.as_deref(), Some(why));
        assert_eq!(verdict.gap, matches!(phase, Phase::Gap(_)).then(|| gap.clone()));
    }
    state.progress.set_phase(Phase::Gap(Gap { contradicts: true, ..gap }));
    let why = state.verdict_at(None).not_ready;
    assert_eq!(why.as_deref(), Some("E-CONTRADICTION: the stream contradicts the applied chain: parent"));
}

#[test]
fn missing_slots_are_told_with_what_brings_them() {
    let said = |heals| {
        let state = live(SECOND).with_heals(heals);
        let gap = Gap { first_slot: 8, last_slot: 9, detail: "parent".to_owned(), contradicts: false };
        state.progress.set_phase(Phase::Gap(gap));
        state.verdict_at(None).not_ready.unwrap()
    };
    let missing = "E-GAP: slots are missing: first_slot=8 last_slot=9: parent; if no server sends the missing slots, ";
    assert_eq!(said(true), format!("{missing}the service heals the store from the archives of heal_from"));
    assert_eq!(said(false), format!("{missing}set heal_from or load a newer snapshot"));
}

#[test]
fn a_contradiction_stands_while_no_other_provider_brings_slots() {
    let state = live(SECOND);
    let gap = Gap { first_slot: 8, last_slot: 8, detail: "parent".to_owned(), contradicts: true };
    state.progress.contradict(&gap, None);
    state.providers.set_trouble(0, "cannot connect");
    assert!(state.verdict_at(Some(0)).is_ready(), "the newest slot is not old yet");
    state.progress.set_phase(Phase::CatchingUp);
    let Verdict { not_ready, gap: shown, .. } = state.verdict_at(None);
    let why = "E-CONTRADICTION: the stream contradicts the applied chain: parent; stream: cannot connect";
    assert_eq!((not_ready.as_deref(), shown), (Some(why), Some(gap.clone())));
    state.progress.chain_goes_on(7, 0);
    assert!(state.verdict_at(None).gap.is_some(), "that slot was applied before");
    for slot in [9, 10] {
        state.progress.chain_goes_on(slot, 1);
        assert!(state.progress.contradiction().is_some(), "nobody knows who brought slot 8");
    }
    state.progress.contradict(&gap, Some(0));
    state.progress.chain_goes_on(11, 1);
    assert!(state.progress.contradiction().is_some(), "the accused one stays so");
    state.progress.chain_goes_on(12, 0);
    let why = "catching up with the stream; stream: cannot connect";
    assert_eq!(state.verdict_at(None).not_ready.as_deref(), Some(why));
}
