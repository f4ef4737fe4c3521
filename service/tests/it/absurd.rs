//! A provider that sends numbers that cannot be right: slots, final slots, times, data that are missing. It is named, nothing
//! of it is applied, and the service goes on from another provider or once the provider is right again.

use loadgen::provider::{Act, Provider};
use serde_json::Value;

use crate::support::{BASE_SLOT, Service, columns, load, stream, wait_for};

const SLOT_MS: u64 = 100;

/// Slot that no chain reaches while this test is kept.
const FAR_SLOT: u64 = 1 << 38;

/// Starts a service that follows these providers, from a store before their first slot.
fn follow(temp: &tempfile::TempDir, providers: &[&Provider], more: &[&str]) -> Service {
    let (idle, workload) = stream("--pairs 500 --events 1");
    idle.stop().unwrap();
    let (dir, options) = (temp.path().join("store"), columns().remove(0));
    load(&dir, &options, &workload);
    let urls: Vec<_> = providers.iter().map(|provider| format!("http://{}", provider.address())).collect();
    let others: Vec<_> = urls[1..].iter().flat_map(|url| ["--geyser", url]).collect();
    Service::start(&dir, &options, &urls[0], &[&others[..], more].concat())
}

fn provider(start_slot: u64) -> Provider {
    Provider::start("127.0.0.1:0", start_slot, SLOT_MS).unwrap()
}

fn condition(service: &mut Service, index: usize) -> String {
    service.status()["providers"][index]["condition"].as_str().unwrap().to_owned()
}

#[test]
fn one_provider_with_an_absurd_slot_is_a_gap_and_goes_on_once_it_is_right() {
    let temp = tempfile::tempdir().unwrap();
    let only = provider(BASE_SLOT + 1);
    let mut service = follow(&temp, &[&only], &[]);
    service.wait_for_slot(BASE_SLOT + 5);
    for (act, words) in [(Act::Leaps, "more than reach="), (Act::Overflows, "beyond the last slot")] {
        only.set(act);
        let status = wait_for("a gap", || Some(service.status()).filter(|status| status["gap"] != Value::Null));
        let gap = &status["gap"];
        assert!(gap["detail"].as_str().unwrap().contains(words), "{status}");
        assert!(
            gap["first_slot"].as_u64().unwrap() < FAR_SLOT && gap["last_slot"].as_u64().unwrap() < FAR_SLOT,
            "{gap}"
        );
        let said = service.get("/readyz").unwrap().1;
        assert!(said.contains(words) && said.contains("set heal_from or load a newer snapshot"), "{said}");
        only.set(Act::Serves);
        let slot = service.slot().unwrap();
        assert!(slot < FAR_SLOT, "slot={slot}");
        service.wait_for_slot(slot + 10);
        wait_for("readiness", || service.get("/readyz").filter(|(code, _)| *code == 200));
    }
    assert!(service.terminate().success());
    only.stop().unwrap();
}

#[test]
fn an_empty_store_does_not_begin_with_an_absurd_slot() {
    let temp = tempfile::tempdir().unwrap();
    let only = provider(BASE_SLOT + 1);
    only.set(Act::Leaps);
    let geyser = format!("http://{}", only.address());
    let mut service = Service::start(&temp.path().join("store"), &columns().remove(0), &geyser, &[]);
    let status = wait_for("a gap", || Some(service.status()).filter(|status| status["gap"] != Value::Null));
    let gap = &status["gap"];
    assert!(gap["detail"].as_str().unwrap().contains("more than reach="), "{gap}");
    assert!(gap["first_slot"].as_u64().unwrap() < FAR_SLOT, "{gap}");
    only.set(Act::Serves);
    let slot = wait_for("a slot", || service.slot());
    assert!(slot < FAR_SLOT, "slot={slot}");
    service.wait_for_slot(slot + 10);
    assert!(service.terminate().success());
    only.stop().unwrap();
}

#[test]
fn of_two_providers_the_right_one_goes_on_and_stays_trusted() {
    for at_once in ["1", "2"] {
        for act in [Act::Leaps, Act::Overflows] {
            let temp = tempfile::tempdir().unwrap();
            let (first, second) = (provider(BASE_SLOT + 1), provider(BASE_SLOT + 1));
            first.set(act);
            let mut service = follow(&temp, &[&first, &second], &["--geyser-at-once", at_once]);
            let slot = service.wait_for_slot(BASE_SLOT + 40);
            assert!(slot < FAR_SLOT, "at_once={at_once} {act:?}: slot={slot}");
            let ready = || service.get("/readyz").filter(|(code, _)| *code == 200);
            wait_for("readiness", ready);
            assert_eq!(condition(&mut service, 1), "followed", "at_once={at_once} {act:?}: {}", service.log());
            let error = service.status()["providers"][0]["last_error"].to_string();
            assert!(error.contains("reach=") || error.contains("beyond the last slot"), "{error}");
            assert!(service.terminate().success());
        }
    }
}

#[test]
fn a_false_final_slot_has_no_effect_beyond_its_own_slot() {
    let temp = tempfile::tempdir().unwrap();
    let only = provider(BASE_SLOT + 1);
    only.set(Act::Roots);
    let mut service = follow(&temp, &[&only], &[]);
    let mut behind = |slots: std::ops::RangeInclusive<i64>| {
        wait_for(&format!("finality behind by {slots:?} slots"), || {
            let (_, text) = service.get("/metrics")?;
            let of = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
                line.parse::<f64>().ok().map(|slot| slot as i64)
            };
            let behind = of("solkv_checkpoint_slot")? - of("solkv_finalized_slot")?;
            slots.contains(&behind).then_some(())
        });
    };
    behind(30..=36);
    only.set(Act::RootsAhead);
    // The provider's own statement about the newest slot counts when that slot comes. A commit may come within the page.
    behind(-2..=2);
    only.set(Act::Roots);
    behind(30..=36);
    assert!(service.terminate().success());
    only.stop().unwrap();
}

#[test]
fn a_store_behind_the_slot_that_another_provider_names_is_not_ready() {
    for at_once in ["1", "2"] {
        let temp = tempfile::tempdir().unwrap();
        // The same chain. The first provider is 400 slots ahead, and has none of those before.
        let (ahead, behind) = (provider(BASE_SLOT + 401), provider(BASE_SLOT + 1));
        let more = ["--geyser-at-once", at_once];
        let mut service = follow(&temp, &[&ahead, &behind], &more);
        let slot = service.wait_for_slot(BASE_SLOT + 5);
        // Soon enough: after five seconds of lag the provider that is ahead takes over.
        service.wait_for_slot(slot + 5);
        let status = wait_for("the slots of the provider that is ahead", || {
            Some(service.status()).filter(|status| status["lag_slots"].as_u64() >= Some(300))
        });
        assert_eq!(status["ready"], false, "{status}");
        let reason = status["not_ready_reason"].as_str().unwrap();
        assert!(reason.contains("slots behind the newest known one: limit_slots=150"), "{status}");
        assert!(status["providers"][1]["lag_slots"].as_u64() >= Some(300), "at_once={at_once}: {status}");
        assert!(service.metric("solkv_lag_slots") >= Some(300.0) && service.metric("solkv_ready") == Some(0.0));
        assert!(service.terminate().success());
    }
}

#[test]
fn old_blocks_that_are_sent_as_new_messages_are_as_old_as_their_block_time() {
    let temp = tempfile::tempdir().unwrap();
    let only = provider(BASE_SLOT + 1);
    only.set(Act::Restamps);
    let mut service = follow(&temp, &[&only], &[]);
    service.wait_for_slot(BASE_SLOT + 5);
    let status = wait_for("an age", || {
        Some(service.status()).filter(|status| status["not_ready_reason"].as_str().unwrap().contains(" s old"))
    });
    assert!(status["ready"] == false && status["lag_ms"].as_u64() >= Some(130_000), "{status}");
    assert!(service.metric("solkv_lag_seconds") >= Some(130.0));
    only.set(Act::Serves);
    wait_for("readiness", || service.get("/readyz").filter(|(code, _)| *code == 200));
    assert!(service.terminate().success());
    only.stop().unwrap();
}

#[test]
fn a_server_that_leaves_out_the_data_of_token_accounts_takes_nothing_out_of_the_map() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, options) = (temp.path().join("store"), columns().remove(0));
    let line = "--extract token-owner --pairs 2000 --events 20000 --events-per-slot 500 --change-share 0.5 --replay-slots 1000";
    let (stream, workload) = stream(line);
    load(&dir, &options, &workload);
    let omits = Provider::start_of("127.0.0.1:0", &format!("http://{}", stream.address())).unwrap();
    omits.set(Act::Omits);
    let more = ["--extract", "token-owner"];
    let mut service = Service::start(&dir, &options, &format!("http://{}", omits.address()), &more);
    let status = wait_for("a gap", || Some(service.status()).filter(|status| status["gap"] != Value::Null));
    let detail = status["gap"]["detail"].as_str().unwrap();
    assert!(detail.contains("leaves out the data of accounts") && detail.contains("accounts_data_slice"), "{status}");
    assert_eq!((service.slot(), service.metric("solkv_events_deleted_total")), (Some(BASE_SLOT), Some(0.0)));
    omits.set(Act::Serves);
    service.wait_for_slot(BASE_SLOT + 20);
    assert!(service.terminate().success());
    omits.stop().unwrap();
    stream.stop().unwrap();
}
