//! Faults that the service cannot repair are reported: missing slots by their range, a refused token by its file.

use crate::support::{BASE_SLOT, Service, columns, digest, end, load, secret, stream, wait_for};

#[test]
fn a_missing_slot_makes_it_not_ready_and_is_named() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        // Few slots follow the gap, so it is found by the time limit and not by their number.
        let line = "--pairs 2000 --events 15000 --events-per-slot 500 --change-share 0.5 --gap-at 1020 \
                    --replay-slots 1000";
        let (stream, workload) = stream(line);
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        let mut service = Service::start(&dir, &options, &geyser, &["--gap-timeout", "700ms"]);
        let (_, body) = wait_for("a gap", || {
            service.get("/readyz").filter(|(code, body)| *code == 503 && body.contains("first_slot=1020"))
        });
        assert!(body.contains("first_slot=1020") && body.contains("last_slot=1020"), "{body}");
        assert_eq!(service.metric("solkv_gap_first_slot"), Some(1020.0));
        assert_eq!(service.metric("solkv_gap_last_slot"), Some(1020.0));
        assert_eq!(service.metric("solkv_ready"), Some(0.0));
        assert_eq!(service.get("/healthz").unwrap().0, 200, "alive all the same");
        assert_eq!(service.slot(), Some(1019), "nothing after the gap is applied");
        let gap = end(&stream).gap.unwrap();
        assert!(service.terminate().success());
        assert_eq!(digest(&dir, &options), gap.digest);
        stream.stop().unwrap();
    }
}

#[test]
fn a_stream_that_no_longer_has_the_slots_is_a_gap() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let line = "--pairs 2000 --events 50000 --events-per-slot 500 --no-wait --replay-slots 20 --rate 1000000";
    let (stream, workload) = stream(line);
    load(&dir, &options, &workload);
    let end = end(&stream);
    let mut service = Service::start(&dir, &options, &format!("http://{}", stream.address()), &[]);
    let (_, body) = wait_for("a gap", || service.get("/readyz").filter(|(_, body)| body.contains("first_slot")));
    let last = end.slot - 20;
    assert!(body.contains(&format!("first_slot={}", BASE_SLOT + 1)), "{body}");
    assert!(body.contains(&format!("last_slot={last}")), "{body}");
    assert_eq!(service.slot(), Some(BASE_SLOT));
    assert!(service.terminate().success());
    stream.stop().unwrap();
}

#[test]
fn a_refused_token_is_reported_and_not_shown() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let (good, bad) = (temp.path().join("good"), temp.path().join("bad"));
    std::fs::write(&good, "open-sesame\n").unwrap();
    secret(&bad, "hunter2\n");
    let (stream, _) = stream(&format!("--pairs 10 --events 10 --x-token-file {}", good.display()));
    let dir = temp.path().join("store");
    let geyser = format!("http://{}", stream.address());
    let service = Service::start(&dir, &options, &geyser, &["--x-token-file", bad.to_str().unwrap()]);
    wait_for("a refusal in the log", || service.log().contains("x-token-file").then_some(()));
    assert!(!service.log().contains("hunter2") && !service.log().contains("open-sesame"));
    assert!(service.terminate().success());
    stream.stop().unwrap();
}
