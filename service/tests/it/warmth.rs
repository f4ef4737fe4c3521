//! The warm-up: it reads the store in after an opening, says how far it has come, and can be turned off.

use std::path::Path;

use engines::{EngineKind, EngineOptions, OpenMode};
use serde_json::{Value, json};

use crate::support::{Service, columns, load, stream, wait_for};

const NO_STREAM: &str = "http://127.0.0.1:1";

fn warm_up(service: &mut Service) -> Value {
    service.status()["warm_up"].take()
}

/// Writes a store whose pages are in segments, which is where a warm-up reads.
fn settled(dir: &Path, options: &EngineOptions) {
    let (stream, workload) = stream("--pairs 20000 --events 1");
    load(dir, options, &workload);
    stream.stop().unwrap();
    let engine = engines::open(dir, options, OpenMode::Existing).unwrap();
    engine.settle().unwrap();
    engine.close().unwrap();
}

#[test]
fn a_store_is_read_in_after_its_opening_unless_the_operator_says_no() {
    for options in columns().into_iter().filter(|options| options.engine == EngineKind::Strata) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        settled(&dir, &options);

        let mut cold = Service::start(&dir, &options, NO_STREAM, &["--warm-up", "off"]);
        assert_eq!(warm_up(&mut cold), json!({ "under_way": false, "read_bytes": 0, "missing_bytes": 0 }));
        assert_eq!(cold.metric("solkv_warm_up_missing_bytes"), Some(0.0));
        let log = cold.log();
        assert!(cold.terminate().success());
        assert!(!log.contains("the memory for pages is filled"), "{log}");

        let mut warm = Service::start(&dir, &options, NO_STREAM, &[]);
        let ended = wait_for("the end of the warm-up", || {
            let figures = warm_up(&mut warm);
            let read = figures["read_bytes"].as_u64().unwrap();
            (read > 0 && figures["under_way"] == false).then_some(figures)
        });
        let (read, missing) = (ended["read_bytes"].as_u64().unwrap(), ended["missing_bytes"].as_u64().unwrap());
        assert!(missing > 1 << 20 && read >= missing, "20,000 pairs of 64 bytes: {ended}");
        assert_eq!(warm.metric("solkv_warming"), Some(0.0));
        assert_eq!(warm.metric("solkv_warm_up_read_bytes"), Some(read as f64));
        assert!(warm.log().contains("the memory for pages is filled"), "{}", warm.log());
        assert!(warm.terminate().success());
    }
}
