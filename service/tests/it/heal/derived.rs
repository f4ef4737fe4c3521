//! A heal of more changes than the feed keeps, with kills: the derived stores follow it to the end.

use solana::MapPhase;

use super::{OUTAGE, Run, wait_for_need};
use crate::crash::derive;
use crate::past::{assert_past, state};
use crate::support::{BASE_SLOT, columns, digest, wait_for};

#[test]
fn derived_stores_follow_a_heal_that_the_feed_would_leave_out() {
    for options in columns() {
        let run = Run::new(options);
        derive(&run.dir, &[]);
        let mut states = vec![state(&run.dir, &run.options)];
        let small = ["--commit-every", "5", "--feed-retention-bytes", "1B", "--history-slots", "100000"];
        let mut service = run.start(&small);
        let reached = service.wait_for_slot(BASE_SLOT + 10);
        service.kill();
        states.push(state(&run.dir, &run.options));
        super::wait_for_sent(&run.stream, reached + OUTAGE);
        let mut service = run.start(&small);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        run.archive(needed - BASE_SLOT);
        wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
        service.kill();
        assert!(matches!(run.phase(), MapPhase::Healing { .. }), "{:?}", run.phase());
        let mut service = run.start(&small);
        let end = run.reach_end(&mut service);
        assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
        for store in ["values", "history"] {
            let broken = format!("solkv_derived_broken{{store=\"{store}\"}}");
            assert_eq!(service.metric(&broken), Some(0.0), "{}", service.log());
        }
        assert!(service.terminate().success());
        assert_eq!(digest(&run.dir, &run.options), end.digest, "{:?}", run.options);
        derive(&run.dir, &["--check"]);
        states.push(state(&run.dir, &run.options));
        assert_past(&run.dir, &run.options, &states);
        run.stream.stop().unwrap();
    }
}
