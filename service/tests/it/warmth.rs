//! The warm-up: it reads the store in after an opening, says how far it has come, and can be turned off.

use engines::EngineKind;
use serde_json::Value;

use crate::support::{Service, columns, settled, wait_for};

const NO_STREAM: &str = "http://127.0.0.1:1";

/// More pairs than a few page faults of the engine itself bring in, of which each may read several mebibytes.
const PAIRS: u64 = 300_000;

fn warm_up(service: &mut Service) -> Value {
    service.status()["warm_up"].take()
}

/// How a warm-up has ended, as `/status.json` tells it.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Ended {
    pub(crate) state: String,
    pub(crate) store_bytes: u64,
    pub(crate) room_bytes: u64,
    pub(crate) missing_bytes: u64,
    pub(crate) left_bytes: u64,
    pub(crate) read_bytes: u64,
}

/// Waits until the warm-up has ended.
pub(crate) fn ended(service: &mut Service) -> Ended {
    let figures = wait_for("the end of the warm-up", || {
        let figures = warm_up(service);
        (figures["state"] != "not_open" && figures["state"] != "under_way").then_some(figures)
    });
    serde_json::from_value(figures).unwrap()
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
        assert_eq!(warm_up(&mut cold)["state"], "off");
        assert_eq!(cold.metric("solkv_warm_up_missing_bytes"), Some(0.0));
        let log = cold.log();
        assert!(cold.terminate().success());
        assert!(
            !log.contains("the warm-up has read the whole store into memory") && log.contains("because warm_up is off"),
            "{log}"
        );

        probe::drop_page_cache(&dir).unwrap();
        let mut warm = Service::start(&dir, &options, NO_STREAM, &[]);
        let ended = ended(&mut warm);
        let Ended { missing_bytes: missing, read_bytes: read, .. } = ended;
        assert!(missing > 4 << 20 && read > 1 << 20, "{PAIRS} pairs of 64 bytes: {ended:?}");
        // Pages that the engine itself reads into the page cache meanwhile are not read again, and not left either.
        assert_eq!((ended.state.as_str(), ended.left_bytes, ended.room_bytes), ("warm", 0, ended.store_bytes));
        assert_eq!(warm.metric("solkv_warming"), Some(0.0));
        assert_eq!(warm.metric("solkv_warm_up_read_bytes"), Some(read as f64));
        let log = warm.log();
        assert!(
            log.contains("the warm-up reads the store into memory")
                && log.contains("the warm-up has read the whole store into memory"),
            "{log}"
        );
        let there =
            if options.engine == EngineKind::Strata { read } else { probe::page_cache_bytes(&dir.join("data")) };
        assert!(there >= missing, "engine={} there={there} missing={missing}", options.engine);
        assert!(warm.terminate().success());
    }
}

#[test]
fn a_store_without_room_is_not_read_in_and_the_operator_learns_why() {
    let Some(options) = columns().into_iter().find(|options| options.engine == EngineKind::Strata) else { return };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    settled(&dir, &options, PAIRS);
    let mut service = Service::start(&dir, &options, NO_STREAM, &["--memory", "8MiB"]);
    let ended = ended(&mut service);
    assert!(ended.store_bytes > 16 << 20 && ended.room_bytes < ended.store_bytes, "{ended:?}");
    assert!(ended.state == "no_room" && ended.missing_bytes == 0 && ended.read_bytes == 0, "{ended:?}");
    assert!(service.log().contains("no warm-up, because the store has no room in memory"), "{}", service.log());
    assert!(service.terminate().success());
}
