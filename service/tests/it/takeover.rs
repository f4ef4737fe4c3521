//! Several providers: the next one takes over from the checkpoint, and one that contradicts the chain is left for good.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loadgen::provider::{Act, Provider};
use loadgen::stream::{Stream, Workload};
use serde_json::Value;

use crate::support::{BASE_SLOT, Service, Signal, columns, digest, end, load, stream, wait_for};

const SLOT_MS: u64 = 100;

/// A stream of 80 slots in four seconds, all of which can be replayed.
const LINE: &str = "--pairs 2000 --events 40000 --events-per-slot 500 --change-share 0.5 --replay-slots 1000 \
                    --rate 10000";

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Starts a service on an empty store that follows `first`, with `second` next in order.
fn follow(dir: &std::path::Path, first: &str, second: &str, more: &[&str]) -> Service {
    let (idle, workload) = stream("--pairs 500 --events 1");
    idle.stop().unwrap();
    let options = columns().remove(0);
    load(dir, &options, &workload);
    Service::start(dir, &options, first, &[&["--geyser", second][..], more].concat())
}

fn providers() -> [Provider; 2] {
    providers_of(SLOT_MS)
}

fn providers_of(slot_ms: u64) -> [Provider; 2] {
    [(); 2].map(|()| Provider::start("127.0.0.1:0", BASE_SLOT + 1, slot_ms).unwrap())
}

/// Waits until the provider with this index has this condition, on `/status.json` as in `/metrics`.
#[track_caller]
fn wait_for_condition(service: &mut Service, index: usize, condition: &str) {
    wait_for(condition, || {
        let status: Value = serde_json::from_str(&service.get("/status.json")?.1).ok()?;
        let of = &status["providers"][index];
        let sample = format!(
            "solkv_provider_condition{{provider=\"{}\",condition=\"{condition}\"}}",
            of["name"].as_str().unwrap_or_default()
        );
        (of["condition"] == condition && service.metric(&sample) == Some(1.0)).then_some(())
    });
}

#[test]
fn a_silent_provider_is_left_and_the_next_one_followed() {
    let temp = tempfile::tempdir().unwrap();
    let [first, second] = providers();
    let more = ["--gap-timeout", "3s", "--processed"];
    let mut service = follow(&temp.path().join("store"), &url(first.address()), &url(second.address()), &more);
    service.wait_for_slot(BASE_SLOT + 5);
    wait_for_condition(&mut service, 0, "followed");
    wait_for_condition(&mut service, 1, "standby");
    first.set(Act::Pings);
    wait_for_condition(&mut service, 1, "followed");
    let slot = service.slot().unwrap();
    service.wait_for_slot(slot + 5);
    assert!(service.metric("solkv_provider_takeovers_total").is_some_and(|takeovers| takeovers >= 1.0));
    // The overlay follows the same provider.
    wait_for("the second subscription", || (second.figures().subscriptions >= 2).then_some(()));
    first.set(Act::Serves);
    second.set(Act::Down);
    wait_for_condition(&mut service, 0, "followed");
    let slot = service.slot().unwrap();
    service.wait_for_slot(slot + 5);
    assert!(service.terminate().success());
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
fn a_provider_that_accepts_connections_and_never_answers_is_left_within_seconds() {
    let temp = tempfile::tempdir().unwrap();
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let second = Provider::start("127.0.0.1:0", BASE_SLOT + 1, SLOT_MS).unwrap();
    let begun = Instant::now();
    let hung_url = url(hung.local_addr().unwrap());
    let mut service = follow(&temp.path().join("store"), &hung_url, &url(second.address()), &[]);
    service.wait_for_slot(BASE_SLOT + 1);
    // Keep-alive ends such a connection after 20 s.
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    assert!(service.log().contains("does not answer within 5s"), "{}", service.log());
    assert!(service.terminate().success());
    second.stop().unwrap();
}

/// Starts a way to a server that passes bytes on, connections included, until the flag is set. Then it holds them.
fn way(server: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let (listener, hangs) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(AtomicBool::new(false)));
    let (address, flag) = (listener.local_addr().unwrap(), Arc::clone(&hangs));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            for (mut from, mut to) in [(client, server), back] {
                let flag = Arc::clone(&flag);
                thread::spawn(move || {
                    let mut bytes = [0; 1 << 14];
                    while let Ok(read @ 1..) = from.read(&mut bytes) {
                        // ORDERING: Relaxed: a flag of its own.
                        while flag.load(Ordering::Relaxed) {
                            thread::sleep(Duration::from_millis(100));
                        }
                        if to.write_all(&bytes[..read]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    (address, hangs)
}

#[test]
fn a_provider_that_hangs_at_work_is_left_once_it_answers_no_keep_alive() {
    let temp = tempfile::tempdir().unwrap();
    // Two slots a second: with ten, its lag would be too large sooner.
    let [first, second] = providers_of(500);
    let (address, hangs) = way(first.address());
    let mut service = follow(&temp.path().join("store"), &url(address), &url(second.address()), &[]);
    service.wait_for_slot(BASE_SLOT + 5);
    // ORDERING: Relaxed: see its read.
    hangs.store(true, Ordering::Relaxed);
    let hung = Instant::now();
    wait_for_condition(&mut service, 1, "followed");
    // The keep-alive takes 20 s. Another connection to the first one would take as long again, or 5 s.
    assert!(hung.elapsed() < Duration::from_secs(24), "{:?}", hung.elapsed());
    let slot = service.slot().unwrap();
    service.wait_for_slot(slot + 5);
    assert!(service.log().contains("the server is silent: silent_ms="), "{}", service.log());
    assert!(service.terminate().success());
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
fn a_provider_that_contradicts_the_chain_is_not_asked_again_until_sighup() {
    let temp = tempfile::tempdir().unwrap();
    let [first, second] = providers();
    let mut service = follow(&temp.path().join("store"), &url(first.address()), &url(second.address()), &[]);
    service.wait_for_slot(BASE_SLOT + 5);
    first.set(Act::Lies);
    wait_for_condition(&mut service, 0, "distrusted");
    wait_for_condition(&mut service, 1, "followed");
    let asked = first.figures().subscriptions;
    let slot = service.slot().unwrap();
    service.wait_for_slot(slot + 5);
    second.set(Act::Restarts);
    service.wait_for_slot(slot + 60);
    assert_eq!(first.figures().subscriptions, asked, "the other one is waited for");
    let log = service.log();
    assert!(log.contains("contradicts the applied chain") && log.contains(&url(first.address())), "{log}");
    assert!(!log.contains("slots are missing"), "{log}");
    first.set(Act::Serves);
    service.signal(Signal::HUP);
    wait_for_condition(&mut service, 0, "standby");
    second.set(Act::Refuses);
    wait_for_condition(&mut service, 0, "followed");
    assert!(service.terminate().success());
    first.stop().unwrap();
    second.stop().unwrap();
}

/// Starts the same stream twice. The second one does not wait for a subscriber.
fn twice(first: &str) -> (Stream, Stream, Workload) {
    let (one, workload) = stream(&format!("{LINE} {first}"));
    let (two, _) = stream(&format!("{LINE} --no-wait"));
    (one, two, workload)
}

#[test]
fn the_map_is_whole_after_a_provider_is_killed_or_withholds_a_slot() {
    for options in columns() {
        for (killed, first) in [(true, ""), (false, "--gap-at 1020")] {
            let temp = tempfile::tempdir().unwrap();
            let dir = temp.path().join("store");
            let (one, two, workload) = twice(first);
            load(&dir, &options, &workload);
            let more = ["--geyser", &url(two.address()), "--gap-timeout", "700ms"];
            let mut service = Service::start(&dir, &options, &url(one.address()), &more);
            service.wait_for_slot(1010);
            if killed {
                one.stop().unwrap();
            }
            let end = end(&two);
            service.wait_for_slot(end.slot);
            assert_eq!(service.metric("solkv_gap"), Some(0.0));
            assert!(service.terminate().success());
            assert_eq!(digest(&dir, &options), end.digest);
        }
    }
}

/// Follows two providers of one stream at once, which misbehave as `spoil` says after the first slots. Compares the store
/// with the stream, and returns the log and the slots for which each of the two sent other accounts.
fn follow_two(spoil: impl FnOnce(&mut Service, &Provider, &Provider)) -> (String, [f64; 2]) {
    let temp = tempfile::tempdir().unwrap();
    let (dir, options) = (temp.path().join("store"), columns().remove(0));
    let (stream, workload) = stream(LINE);
    load(&dir, &options, &workload);
    let of = url(stream.address());
    let [one, two] = [(); 2].map(|()| Provider::start_of("127.0.0.1:0", &of).unwrap());
    let urls = [&one, &two].map(|provider| url(provider.address()));
    let more = ["--geyser", &urls[1], "--geyser-at-once", "2", "--gap-timeout", "700ms"];
    let mut service = Service::start(&dir, &options, &urls[0], &more);
    service.wait_for_slot(BASE_SLOT + 10);
    spoil(&mut service, &one, &two);
    let end = end(&stream);
    service.wait_for_slot(end.slot);
    let mut of =
        |name: &str| [&urls[0], &urls[1]].map(|url| service.metric(&format!("{name}{{provider=\"{url}\"}}")).unwrap());
    let firsts: f64 = of("solkv_provider_slots_first_total").iter().sum();
    let differing = of("solkv_provider_slots_differing_total");
    assert_eq!(Some(firsts), service.metric("solkv_slots_applied_total"), "each slot was first once");
    let log = service.log();
    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    (log, differing)
}

#[test]
fn of_two_at_once_each_may_lack_a_slot_and_one_may_end() {
    let (log, differing) = follow_two(|service, one, two| {
        one.set(Act::Withholds);
        let slot = service.slot().unwrap();
        service.wait_for_slot(slot + 10);
        two.set(Act::Withholds);
        let slot = service.slot().unwrap();
        service.wait_for_slot(slot + 10);
        assert_eq!(service.metric("solkv_provider_takeovers_total"), Some(0.0));
        two.set(Act::Stalls);
    });
    assert_eq!(differing, [0.0; 2]);
    assert!(!log.contains("gap:"), "a slot that the other one brings is no gap: {log}");
}

#[test]
fn of_two_at_once_one_that_comes_back_is_asked_from_the_applied_slot() {
    let (log, _) = follow_two(|service, one, two| {
        two.set(Act::Down);
        wait_for_condition(service, 1, "fails");
        let slot = service.slot().unwrap();
        let applied = service.wait_for_slot(slot + 20);
        // The other one brings nothing more, so that no slot of it moves the lane on.
        one.set(Act::Stalls);
        two.set(Act::Serves);
        wait_for_condition(service, 1, "followed");
        let line = format!("subscribed url=\"{}\" from_slot=", url(two.address()));
        let log = service.log();
        let newest = log.lines().rev().find_map(|text| text.split_once(&line)).unwrap().1;
        let asked: u64 = newest.parse().unwrap();
        assert!(asked >= applied, "asked={asked} applied={applied}: {log}");
        service.wait_for_slot(applied + 20);
    });
    assert!(!log.contains("gap:"), "{log}");
}

#[test]
fn of_two_at_once_one_that_lies_is_distrusted_and_the_other_followed() {
    let (log, _) = follow_two(|service, _, two| {
        two.set(Act::Lies);
        wait_for_condition(service, 1, "distrusted");
        wait_for_condition(service, 0, "followed");
    });
    assert!(log.contains("the provider contradicts the applied chain"), "{log}");
}

#[test]
fn of_two_at_once_accounts_that_differ_under_one_blockhash_are_reported() {
    let (log, differing) = follow_two(|service, one, two| {
        two.set(Act::Alters);
        let differing = format!("solkv_provider_slots_differing_total{{provider=\"{}\"}}", url(two.address()));
        wait_for("a slot that differs", || service.metric(&differing).filter(|slots| *slots > 0.0));
        assert_eq!(service.metric("solkv_gap"), Some(0.0));
        one.set(Act::Serves);
    });
    assert!(differing[0] == 0.0 && log.contains("two providers send different accounts of one block"), "{log}");
}
