//! The warm-up: it reads the store in after an opening, says how far it has come, and can be turned off.

use engines::EngineKind;
use serde_json::{Value, json};

use crate::support::{Service, columns, settled, wait_for};

const NO_STREAM: &str = "http://127.0.0.1:1";

/// More pairs than a few page faults of the engine itself bring in, of which each may read several mebibytes.
const PAIRS: u64 = 300_000;

fn warm_up(service: &mut Service) -> Value {
    service.status()["warm_up"].take()
}

/// Waits until the warm-up has ended, and returns its figures.
pub(crate) fn ended(service: &mut Service) -> (u64, u64) {
    let figures = wait_for("the end of the warm-up", || {
        let figures = warm_up(service);
        (figures["missing_bytes"].as_u64().unwrap() > 0 && figures["under_way"] == false).then_some(figures)
    });
    (figures["read_bytes"].as_u64().unwrap(), figures["missing_bytes"].as_u64().unwrap())
}

#[test]
fn a_store_is_read_in_after_its_opening_unless_the_operator_says_no() {
    for options in columns() {
        // In the checkout, because a temporary directory may be in memory.
        let temp = tempfile::tempdir_in(".").unwrap();
        let dir = temp.path().join("store");
        settled(&dir, &options, PAIRS);
        probe::drop_page_cache(&dir).unwrap();

        let mut cold = Service::start(&dir, &options, NO_STREAM, &["--warm-up", "off"]);
        assert_eq!(warm_up(&mut cold), json!({ "under_way": false, "read_bytes": 0, "missing_bytes": 0 }));
        assert_eq!(cold.metric("solkv_warm_up_missing_bytes"), Some(0.0));
        let log = cold.log();
        assert!(cold.terminate().success());
        assert!(!log.contains("the store is warm"), "{log}");

        probe::drop_page_cache(&dir).unwrap();
        let mut warm = Service::start(&dir, &options, NO_STREAM, &[]);
        let (read, missing) = ended(&mut warm);
        assert!(missing > 4 << 20 && read > 1 << 20, "{PAIRS} pairs of 64 bytes: read={read} missing={missing}");
        assert_eq!(warm.metric("solkv_warming"), Some(0.0));
        assert_eq!(warm.metric("solkv_warm_up_read_bytes"), Some(read as f64));
        assert!(warm.log().contains("the store is warm"), "{}", warm.log());
        // Pages that the engine itself reads into the page cache meanwhile are not read again.
        let there =
            if options.engine == EngineKind::Strata { read } else { probe::page_cache_bytes(&dir.join("data")) };
        assert!(there >= missing, "engine={} there={there} missing={missing}", options.engine);
        assert!(warm.terminate().success());
    }
}
