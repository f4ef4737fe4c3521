//! Ready means that lookups are up to date with the live chain, judged by the clock. Every channel reports the same.

use std::time::Duration;

use loadgen::provider::{Act, Provider, Said, Witness};

use crate::heal::wait_for_sent;
use crate::support::{BASE_SLOT, Service, columns, load, stream, wait_for};

/// A service that follows a provider with a slot every 100 ms, from a store at the chain's beginning.
struct Followed {
    provider: Provider,
    service: Service,
    witness: Witness,
    _temp: tempfile::TempDir,
}

impl Followed {
    fn start(more: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (dir, options) = (temp.path().join("store"), columns().remove(0));
        let (_, workload) = {
            let (idle, workload) = stream("--pairs 500 --events 1");
            (idle.stop().unwrap(), workload)
        };
        load(&dir, &options, &workload);
        let provider = Provider::start("127.0.0.1:0", BASE_SLOT + 1, 100).unwrap();
        let service = Service::start(&dir, &options, &format!("http://{}", provider.address()), more);
        let witness = Witness::new(&service.metrics, &service.listen, None).unwrap();
        Self { provider, service, witness, _temp: temp }
    }

    /// Waits until every channel reports `ready`. Returns their reports.
    #[track_caller]
    fn wait_until(&mut self, ready: bool) -> Said {
        let what = format!("ready={ready} on every channel");
        let Self { service, witness, .. } = self;
        wait_for(&what, || {
            assert!(service.ended().is_none(), "{}", service.log());
            Some(witness.ask()).filter(|said| said.ready() == Some(ready))
        })
    }

    fn end(self) {
        assert!(self.service.terminate().success());
        self.provider.stop().unwrap();
    }
}

#[test]
fn a_stream_that_is_silent_down_late_or_refused_is_not_ready_on_any_channel() {
    let mut followed = Followed::start(&["--max-lag", "2s", "--gap-timeout", "1s"]);
    let said = followed.wait_until(true);
    assert!(said.lag_s.unwrap() < 2.0, "{said:?}");

    followed.provider.set(Act::Pings);
    let said = followed.wait_until(false);
    assert!(said.lag_s.unwrap() >= 2.0 && said.reason.contains("max_lag=2s"), "{said:?}");
    let made = followed.provider.figures().subscriptions;
    wait_for("two more connections under pings alone", || {
        (followed.provider.figures().subscriptions >= made + 2).then_some(())
    });
    let lag_slots = followed.service.metric("solkv_lag_slots");
    assert_eq!(lag_slots, None, "such a connection does not tell the newest slot, and the applied one is none");
    let later = followed.wait_until(false);
    assert!(later.lag_s > said.lag_s, "the lag grows while nothing comes: {said:?} {later:?}");
    assert!(later.reason.contains("no slot was applied for "), "{later:?}");
    assert!(later.reason.contains("sent no slot"), "{later:?}");
    followed.provider.set(Act::Serves);
    followed.wait_until(true);

    followed.provider.set(Act::Down);
    let said = followed.wait_until(false);
    assert!(said.reason.contains("shutting down"), "the server's own words: {said:?}");
    followed.provider.set(Act::Serves);
    followed.wait_until(true);

    // Every slot is applied at once, although each is six seconds old.
    followed.provider.set(Act::Lags);
    followed.wait_until(false);
    let applied = followed.service.slot().unwrap();
    followed.service.wait_for_slot(applied + 20);
    let said = followed.wait_until(false);
    assert!(said.lag_s.unwrap() > 2.0, "{said:?}");
    followed.provider.set(Act::Serves);
    followed.wait_until(true);

    followed.provider.set(Act::Refuses);
    let said = followed.wait_until(false);
    let said = if said.reason.contains("not allow") { said } else { followed.wait_until(false) };
    assert!(said.reason.contains("your plan has run out") && !said.reason.contains("token"), "{said:?}");
    let log = followed.service.log();
    assert!(log.contains("no longer ready") && log.contains("ready slot="), "{log}");
    followed.end();
}

#[test]
fn a_server_that_sends_nothing_that_can_be_applied_is_left_for_a_new_connection() {
    let mut followed = Followed::start(&["--max-lag", "2s", "--gap-timeout", "1s"]);
    for (act, why) in [
        (Act::Confirms, "E-GAP: slots are missing: first_slot="),
        (Act::Metas, "E-GAP: slots are missing: first_slot="),
        (Act::Repeats, "sent no slot that can be applied"),
    ] {
        followed.wait_until(true);
        followed.provider.set(act);
        let made = followed.provider.figures().subscriptions;
        wait_for("two more connections", || (followed.provider.figures().subscriptions >= made + 2).then_some(()));
        let said = followed.wait_until(false);
        assert!(said.reason.contains(why), "{act:?}: {said:?}");
        followed.provider.set(Act::Serves);
    }
    followed.wait_until(true);
    followed.end();
}

#[test]
fn slots_that_are_not_of_the_chain_do_not_end_readiness_for_good() {
    let mut followed = Followed::start(&["--gap-timeout", "700ms"]);
    followed.wait_until(true);
    followed.provider.set(Act::Boasts);
    let applied = followed.service.slot().unwrap();
    followed.service.wait_for_slot(applied + 20);
    followed.wait_until(true);
    let newest = followed.service.metric("solkv_newest_slot").unwrap();
    assert!(newest < 1e6, "one message is not believed: newest={newest}");
    let log = followed.service.log();
    assert!(!log.contains("no longer ready"), "{log}");
    followed.provider.set(Act::Foreign);
    wait_for("a gap", || {
        let said = followed.witness.ask();
        (said.ready() == Some(false) && said.reason.starts_with("E-GAP: slots are missing: first_slot=")).then_some(())
    });
    followed.provider.set(Act::Serves);
    followed.wait_until(true);
    assert!(followed.service.metric("solkv_newest_slot").unwrap() < 1e6);
    followed.end();
}

/// The slots of an outage come at once. Each of them is a commit, so that the service is seen among them.
#[test]
fn slots_that_are_sent_again_after_an_outage_are_as_old_as_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, options) = (temp.path().join("store"), columns().remove(0));
    // Twenty slots a second.
    let (stream, workload) =
        stream("--pairs 500 --events 100000 --events-per-slot 20 --rate 400 --replay-slots 100000");
    load(&dir, &options, &workload);
    let geyser = format!("http://{}", stream.address());
    let more = ["--max-lag", "1s", "--commit-every", "1"];
    let mut service = Service::start(&dir, &options, &geyser, &more);
    let left = service.wait_for_slot(BASE_SLOT + 10);
    assert!(service.terminate().success());
    wait_for_sent(&stream, left + 120);
    let mut service = Service::start(&dir, &options, &geyser, &more);
    let slot = wait_for("readiness", || {
        let status: serde_json::Value = serde_json::from_str(&service.get("/status.json")?.1).ok()?;
        status.pointer("/checkpoint/slot")?.as_u64().filter(|_| status["ready"] == true)
    });
    let newest = stream.newest_slot();
    assert!(newest < slot + 60, "ready three seconds late: slot={slot} newest={newest}");
    assert!(service.terminate().success());
    stream.stop().unwrap();
}

#[test]
fn a_time_that_cannot_be_right_is_an_unknown_lag() {
    let mut followed = Followed::start(&[]);
    followed.wait_until(true);
    followed.provider.set(Act::Ancient);
    let said = followed.wait_until(false);
    assert!(said.reason.contains("created_unix_ms=1;") && said.lag_s.is_none(), "{said:?}");
    followed.provider.set(Act::Serves);
    followed.wait_until(true);
    followed.end();
}

#[test]
fn a_slot_that_one_connection_lost_comes_with_the_next_without_a_restart() {
    let mut followed = Followed::start(&["--gap-timeout", "700ms"]);
    followed.wait_until(true);
    followed.provider.set(Act::Loses);
    let lost = followed.provider.figures().sent + 1;
    let said = followed.wait_until(false);
    assert!(said.reason.starts_with("E-GAP: slots are missing: first_slot="), "{said:?}");
    followed.wait_until(true);
    assert!(followed.service.slot().unwrap() >= lost);
    assert_eq!(followed.service.metric("solkv_gap"), Some(0.0));
    let log = followed.service.log();
    assert!(log.contains("gap: slots are missing") && log.contains("the gap is over"), "{log}");
    followed.end();
}

#[test]
fn a_server_that_has_just_started_and_one_that_refuses_to_tell_of_its_slots_have_no_gap() {
    let mut followed = Followed::start(&["--max-lag", "10m"]);
    followed.wait_until(true);
    let before = followed.provider.figures();
    followed.provider.set(Act::Restarts);
    wait_for("a new subscription", || (followed.provider.figures().subscriptions > before.subscriptions).then_some(()));
    followed.service.wait_for_slot(before.tip + 1);
    let log = followed.service.log();
    assert!(!log.contains("gap"), "{log}");
    assert!(log.contains("the server has just started and has no slots to send again yet"), "{log}");
    followed.end();
}

#[test]
fn small_messages_each_in_a_frame_of_its_own_keep_their_connection() {
    let mut followed = Followed::start(&["--max-lag", "10m"]);
    followed.provider.set(Act::Small);
    let updates = wait_for("100,000 updates", || {
        std::thread::sleep(Duration::from_millis(100));
        followed.service.metric("solkv_updates_received_total").filter(|updates| *updates > 100_000.0)
    });
    let log = followed.service.log();
    assert_eq!(followed.service.metric("solkv_connects_total"), Some(1.0), "after updates={updates}: {log}");
    assert!(!log.contains("GOAWAY") && !log.contains("ENHANCE_YOUR_CALM"), "{log}");
    followed.end();
}
