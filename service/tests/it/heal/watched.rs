//! Sources of archives that fail while the service is healthy: it says so before a heal needs them.

use super::Run;
use crate::support::{BASE_SLOT, columns, wait_for};

#[test]
fn a_source_that_fails_is_told_while_the_service_is_ready() {
    let run = Run::with(columns().remove(0), "--rate 1000 --replay-slots 1000");
    assert_eq!(run.archive(0), BASE_SLOT);
    let missing = run.temp.path().join("missing");
    // Nothing listens on a port of the system's that needs privileges.
    let dead = "http://user:s3cret@127.0.0.1:1/?key=s3cret";
    let mut service = run.start(&["--heal-from", missing.to_str().unwrap(), "--heal-from", dead]);
    wait_for("the first search", || service.metric("solkv_heal_sources_failing").filter(|failing| *failing == 2.0));
    assert_eq!(service.metric("solkv_heal_newest_archive_slot"), Some(BASE_SLOT as f64));
    wait_for("readiness", || service.get("/readyz").filter(|(code, _)| *code == 200));
    let heal = &service.status()["heal"];
    assert!(heal["sources_failing"] == 2 && heal["newest_archive_slot"] == BASE_SLOT, "{heal}");
    let log = service.log();
    for source in [format!("cannot list heal_from={}", missing.display()), "http://127.0.0.1:1/".to_owned()] {
        let is_told =
            |line: &&str| line.contains("WARN") && line.contains("no heal could get") && line.contains(&source);
        assert_eq!(log.lines().filter(is_told).count(), 1, "{source}: {log}");
    }
    assert!(!log.contains("s3cret"), "{log}");
    assert!(service.terminate().success());
}
