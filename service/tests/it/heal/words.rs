//! Servers that say in words of their own that they no longer have a slot, and do not tell their oldest one.

use super::{DELIVERY, OUTAGE, Run, wait_for_need};
use crate::support::columns;

#[test]
fn a_gap_that_a_server_tells_in_its_own_words_is_healed() {
    for like in ["yellowstone", "richat", "laserstream"] {
        let run = Run::with(columns().remove(0), &format!("{DELIVERY} --unary-disabled --like {like}"));
        run.fall_behind(OUTAGE);
        let mut service = run.start(&[]);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        run.archive(needed - crate::support::BASE_SLOT);
        let end = run.reach_end(&mut service);
        assert_eq!(service.metric("solkv_heals_total"), Some(1.0), "{like}");
        run.finish(service, &end);
    }
}
