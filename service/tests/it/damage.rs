//! A store with one damaged page: the warm-up and the lookups do everything that does not need that page.

use std::path::{Path, PathBuf};

use client::{Builder, ErrorKind, ReadOptions};
use engines::{EngineKind, EngineOptions};
use futures::StreamExt as _;
use workload::Pairs;

use crate::crash::derive;
use crate::support::{Service, client_runtime, columns, settled, wait_for};
use crate::warmth::ended;

const NO_STREAM: &str = "http://127.0.0.1:1";

const PAIRS: u64 = 20_000;

/// A byte of the sixth page of 4 KiB, in the first of the warm-up's reads of 1 MiB.
const DAMAGED_AT: usize = 5 * 4096 + 2000;

/// Largest number of pairs in a page of strata.
const PAGE_PAIRS_MAX: usize = 79;

/// Number of gets that are under way at any time: as many as a lookup thread answers together.
const UNDER_WAY: usize = 64;

/// Returns the options of strata, which alone has checksums of pages that these tests can damage; `None` in a build
/// without it.
fn strata() -> Option<EngineOptions> {
    columns().into_iter().find(|options| options.engine == EngineKind::Strata)
}

/// Writes a store and changes one byte of its largest file.
fn damaged(temp: &Path, options: &EngineOptions) -> PathBuf {
    let dir = temp.join("store");
    settled(&dir, options, PAIRS);
    damage(&dir);
    dir
}

/// Changes one byte of the store's largest file, which has pages of pairs.
fn damage(dir: &Path) {
    let files = std::fs::read_dir(dir.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let segment = files.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[DAMAGED_AT] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
}

#[test]
fn damage_in_a_derived_store_is_told_until_it_is_built_again_and_the_map_goes_on() {
    let Some(options) = strata() else { return };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    settled(&dir, &options, PAIRS);
    derive(&dir, &[]);
    damage(&dir.join("derived/values"));
    let mut service = Service::start(&dir, &options, NO_STREAM, &["--warm-up", "off"]);
    let address = format!("http://{}", service.listen);
    let mut client = wait_for("the service", || Builder::new(&address).unwrap().connect_blocking().ok());
    let (pairs, all) = (Pairs::new(1), ReadOptions::default());
    let failed = (0..PAIRS).find_map(|index| client.keys_of(&pairs.value(index, 0), None, 0, all).err()).unwrap();
    let says_the_way_out = |refused: &client::Error| {
        let text = refused.to_string();
        assert!(text.contains("E-DERIVED") && text.contains("checksum") && text.contains("bootstrap derive"), "{text}");
    };
    says_the_way_out(&failed);
    // From now on no page of it is believed.
    says_the_way_out(&client.keys_of(&pairs.value(0, 0), None, 0, all).unwrap_err());
    assert_eq!(service.metric("solkv_derived_broken{store=\"values\"}"), Some(1.0));
    assert_eq!(client.get(&pairs.key(0)).unwrap().value, Some(pairs.value(0, 0)));
    derive(&dir, &[]);
    for index in (0..PAIRS).step_by(97) {
        assert_eq!(client.keys_of(&pairs.value(index, 0), None, 0, all).unwrap().value.keys, [pairs.key(index)]);
    }
    assert_eq!(service.metric("solkv_derived_broken{store=\"values\"}"), Some(0.0));
    assert!(service.terminate().success());
}

#[test]
fn a_damaged_page_does_not_end_the_warm_up() {
    let Some(options) = strata() else { return };
    let temp = tempfile::tempdir().unwrap();
    let dir = damaged(temp.path(), &options);
    let mut service = Service::start(&dir, &options, NO_STREAM, &[]);
    let ended = ended(&mut service);
    assert!(ended.read_bytes > 0, "pages after the damaged one were read: {ended:?}");
    assert_eq!((ended.state.as_str(), ended.left_bytes), ("failed", 4096), "the damaged page alone is left");
    let log = service.log();
    assert!(log.contains("the warm-up stopped before its end") && log.contains("checksum"), "{log}");
    assert!(service.terminate().success());
}

#[test]
fn a_damaged_page_fails_no_get_that_is_looked_up_beside_one_of_its_own() {
    let Some(options) = strata() else { return };
    let temp = tempfile::tempdir().unwrap();
    let dir = damaged(temp.path(), &options);
    let mut service = Service::start(&dir, &options, NO_STREAM, &["--warm-up", "off"]);
    let address = format!("http://{}", service.listen);
    service.status();
    let pairs = Pairs::new(1);
    let outcomes: Vec<_> = client_runtime().block_on(async {
        let client = &Builder::new(&address).unwrap().connect().await.unwrap();
        let get = |index| async move { (index, client.get(&pairs.key(index)).await) };
        futures::stream::iter(0..PAIRS).map(get).buffer_unordered(UNDER_WAY).collect().await
    });
    let (mut failed, mut wrong) = (0, Vec::new());
    for (index, outcome) in outcomes {
        match outcome {
            Ok(answer) if answer.value == Some(pairs.value(index, 0)) => {}
            Err(error) if error.kind() == ErrorKind::Failed => failed += 1,
            other => wrong.push((index, other)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!((1..=PAGE_PAIRS_MAX).contains(&failed), "failed={failed}: the pairs of the damaged page, and no others");
    let (_, metrics) = service.get("/metrics").unwrap();
    let is_joint = |line: &str| {
        line.starts_with("solkv_op_latency_seconds_count{") && line.contains("op=\"get_many\"") && line.contains("rpc")
    };
    let joint =
        metrics.lines().find(|line| is_joint(line)).and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert!(joint.is_some_and(|count| count > 0.0), "gets were looked up together: {joint:?}");
    assert!(service.terminate().success());
}
