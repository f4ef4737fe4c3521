//! A wrong block, which its own provider contradicts: an archive that agrees with the stream takes it back.

use loadgen::provider::{Act, Provider};

use super::{LEFT, Run, Subscriber, wait_for_need};
use crate::support::{BASE_SLOT, Service, columns, wait_for};

/// The server sends for twenty seconds. A contradiction has to last for five of them.
const DELIVERY: &str = "--rate 2000 --replay-slots 80";

/// A restart does not forget the contradiction.
#[test]
fn a_contradiction_that_outlives_a_kill_is_healed() {
    let run = Run::with(columns().remove(0), DELIVERY);
    let provider = Provider::start_of("127.0.0.1:0", &format!("http://{}", run.stream.address())).unwrap();
    let geyser = format!("http://{}", provider.address());
    let more = ["--uds", run.uds.to_str().unwrap(), "--heal-from", run.archives.to_str().unwrap()];
    let start = || Service::start(&run.dir, &run.options, &geyser, &[&more[..], &["--gap-timeout", "500ms"]].concat());
    let subscriber = Subscriber::start(run.follower(5));
    let mut service = start();
    service.wait_for_slot(LEFT);
    provider.set(Act::Forks);
    wait_for("the contradiction", || {
        service.get("/readyz").filter(|(code, body)| *code == 503 && body.contains("contradicts the applied chain"))
    });
    service.kill();
    let mut service = start();
    let (needed, reason) = wait_for_need(&mut service, "there is none");
    assert!(reason.contains("; the store's chain is contradicted: "), "{reason}");
    let slot = run.archive(needed - BASE_SLOT);
    service.wait_for_slot(slot);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish_with(service, &end, subscriber);
}
