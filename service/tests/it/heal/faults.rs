//! Heals during which a provider goes wrong while its slots are kept: map and subscriber stay exact, by a second provider
//! or by newer slots.

use loadgen::provider::{Act, Provider};

use super::{Run, STORY, Subscriber, wait_for_need};
use crate::support::{BASE_SLOT, Service, columns, wait_for};

/// The server keeps four seconds of slots, and sends for twenty. A provider is left within less than those four.
const DELIVERY: &str = "--rate 2000 --replay-slots 80";
const TIMEOUTS: [&str; 2] = ["--gap-timeout", "700ms"];
/// Slots sent while the service is away: more than the server keeps.
const OUTAGE: u64 = 110;

/// Number of slots that the spool takes after the takeover before the archive comes.
const SLOTS_AFTER: f64 = 10.0;

/// Starts a provider of the run's stream.
fn provider(run: &Run) -> Provider {
    Provider::start_of("127.0.0.1:0", &format!("http://{}", run.stream.address())).unwrap()
}

/// Starts a service that follows `first`, and then the providers of `more`.
fn start(run: &Run, first: &Provider, more: &[&str]) -> Service {
    let always = ["--uds", run.uds.to_str().unwrap()];
    let heal = ["--heal-from", run.archives.to_str().unwrap()];
    let geyser = format!("http://{}", first.address());
    Service::start(&run.dir, &run.options, &geyser, &[&always[..], &heal, &TIMEOUTS, more].concat())
}

/// Heals with a first provider that `spoil` makes useless in the middle of the spool, which the log shows by `words`. After
/// the heal the second one is followed on: it would have dropped the slots while the first one is waited for.
fn heal_beside(spoil: impl FnOnce(Provider) -> Option<Provider>, words: &str) {
    let run = Run::with(columns().remove(0), DELIVERY);
    let first = provider(&run);
    let subscriber = Subscriber::start(run.follower(3));
    run.fall_behind(OUTAGE);
    let second = format!("http://{}", run.stream.address());
    let mut service = start(&run, &first, &["--geyser", &second]);
    let (needed, _) = wait_for_need(&mut service, "there is none");
    assert!(!service.log().contains(words), "the fault comes later: {}", service.log());
    let spoilt = spoil(first);
    wait_for("the fault in the log", || service.log().contains(words).then_some(()));
    let slots = service.metric("solkv_spool_slots").unwrap();
    wait_for("the second provider", || service.metric("solkv_spool_slots").filter(|now| *now >= slots + SLOTS_AFTER));
    assert_eq!(wait_for_need(&mut service, "there is none").0, needed, "the kept slots have no gap");
    let followed = format!("solkv_provider_condition{{provider=\"{second}\",condition=\"followed\"}}");
    wait_for("the page of the heal", || service.metric(&followed).filter(|followed| *followed == 1.0));
    let slot = run.archive(needed - BASE_SLOT);
    service.wait_for_slot(slot);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    assert_eq!(service.metric(&followed), Some(1.0), "{}", service.log());
    run.finish_with(service, &end, subscriber);
    drop(spoilt);
}

fn with(act: Act) -> impl FnOnce(Provider) -> Option<Provider> {
    move |provider| {
        provider.set(act);
        Some(provider)
    }
}

#[test]
fn a_provider_that_ends_during_a_heal_is_left() {
    let end = |provider| {
        drop(provider);
        None
    };
    heal_beside(end, "stream ended: ");
}

#[test]
fn a_provider_that_lies_during_a_heal_is_left() {
    heal_beside(with(Act::Lies), "the provider contradicts the applied chain: another one takes over");
}

#[test]
fn a_provider_that_withholds_a_slot_during_a_heal_is_left() {
    heal_beside(with(Act::Withholds), "over gap_timeout=");
}

#[test]
fn a_provider_that_stalls_during_a_heal_is_left() {
    heal_beside(with(Act::Stalls), "stream ended: the server answers, but sent no slot");
}

#[test]
fn kept_slots_with_a_gap_that_stays_are_dropped_for_the_newest() {
    let run = Run::with(columns().remove(0), "--rate 1300 --replay-slots 40");
    run.fall_behind(60);
    let only = provider(&run);
    let mut service = start(&run, &only, &[]);
    let (first, _) = wait_for_need(&mut service, "there is none");
    only.set(Act::Withholds);
    let dropped = "the kept slots have a gap of their own: they are dropped";
    wait_for("the end of the first spool", || service.log().contains(dropped).then_some(()));
    let needed = wait_for("a later slot", || {
        Some(wait_for_need(&mut service, "there is none").0).filter(|needed| *needed > first)
    });
    let slot = run.archive(needed - BASE_SLOT);
    service.wait_for_slot(slot);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish(service, &end);
}

/// Nothing shows which of the two is right until another provider agrees with the archive.
#[test]
fn a_first_provider_of_another_chain_is_left_for_one_that_agrees_with_the_archive() {
    // Two archives in turn take a busy machine longer than the twenty seconds of the other tests.
    let delivery = "--rate 1000 --replay-slots 40";
    let run = Run::with(columns().remove(0), delivery);
    let (other, _) = crate::support::stream(&format!("{STORY} {delivery} --no-wait --seed 9"));
    run.fall_behind(60);
    let (first, second) = (format!("http://{}", other.address()), format!("http://{}", run.stream.address()));
    let more = ["--geyser", &second, "--heal-from", run.archives.to_str().unwrap()];
    let mut service = Service::start(&run.dir, &run.options, &first, &[&more[..], &TIMEOUTS].concat());
    let (needed, _) = wait_for_need(&mut service, "there is none");
    run.archive(needed - BASE_SLOT);
    wait_for("the turn", || service.log().contains("are of two chains").then_some(()));
    let needed =
        wait_for("a later slot", || Some(wait_for_need(&mut service, "too old").0).filter(|later| *later > needed));
    let slot = run.archive(needed - BASE_SLOT);
    service.wait_for_slot(slot);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish(service, &end);
    other.stop().unwrap();
}

/// The first provider's slots are so far ahead that no archive ever reaches them.
#[test]
fn kept_slots_far_ahead_of_another_provider_are_left_for_those_of_that_one() {
    let run = Run::with(columns().remove(0), DELIVERY);
    let first = provider(&run);
    run.fall_behind(OUTAGE);
    first.set(Act::Foreign);
    let mut service = start(&run, &first, &["--geyser", &format!("http://{}", run.stream.address())]);
    wait_for("the turn", || service.log().contains("far ahead of another provider's newest one").then_some(()));
    let needed = wait_for("a slot of the chain", || {
        Some(wait_for_need(&mut service, "there is none").0).filter(|needed| *needed < BASE_SLOT + 1_000_000)
    });
    let slot = run.archive(needed - BASE_SLOT);
    service.wait_for_slot(slot);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish(service, &end);
}
