//! Dumps that are filtered, taken slowly during changes, or interrupted and resumed; and filters of the largest size.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engines::EngineKind;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{DumpThenTail, Filter, SubscribeRequest};

use crate::feed::{Follower, Map, UNKNOWN, held, request, subscribe};
use crate::support::{BASE_SLOT, Service, client_runtime, columns, digest, end, load, stream, wait_for};

/// Returns the pairs of a dump with this filter.
async fn dumped(uds: &Path, filter: Filter) -> Map {
    let start = Start::DumpThenTail(DumpThenTail {});
    let request = SubscribeRequest { filter: Some(filter), ..request(start) };
    let mut messages = subscribe(uds, request).await.unwrap();
    let mut map = Map::new();
    loop {
        match messages.message().await.unwrap().unwrap().kind.unwrap() {
            Kind::DumpPairs(pairs) => {
                map.extend(pairs.packed_pairs.chunks_exact(64).map(|pair| (pair[..32].to_vec(), pair[32..].to_vec())));
            }
            Kind::DumpEnd(end) => {
                assert_eq!(end.pairs, map.len() as u64);
                return map;
            }
            _ => {}
        }
    }
}

/// Runs on every engine, with filters by keys, by values, by all at once, and by prefixes. Some of the prefixes contain
/// each other, some lie far apart, and some match nothing.
#[test]
fn a_filtered_dump_holds_what_passes_and_nothing_else() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, uds) = (temp.path().join("store"), temp.path().join("solkv.sock"));
        let (stream, workload) = stream("--pairs 60000 --events 500 --events-per-slot 500");
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        let mut service = Service::start(&dir, &options, &geyser, &["--uds", uds.to_str().unwrap()]);
        service.wait_for_slot(end(&stream).slot);
        let pairs = client_runtime().block_on(dumped(&uds, Filter::default()));
        let keys: Vec<&Vec<u8>> = pairs.keys().collect();
        let picked = |from: usize, step| keys[from..].iter().step_by(step).map(|key| key.to_vec()).collect::<Vec<_>>();
        let bytes = |entries: Vec<Vec<u8>>| entries.into_iter().map(Bytes::from).collect::<Vec<_>>();
        let starts =
            |len: usize, from, step| picked(from, step).into_iter().map(|key| key[..len].to_vec()).collect::<Vec<_>>();
        let absent = || vec![vec![0x11; 32], vec![0xff; 32], vec![0; 32]];
        let prefixes = [starts(2, 9, 700), starts(4, 4000, 900), starts(1, 59_000, 500), absent()].concat();
        let values: Vec<Vec<u8>> = pairs.values().step_by(31).cloned().collect();
        let cases = [
            (picked(3, 20), vec![], vec![]),
            (absent(), vec![], vec![]),
            (vec![], prefixes.clone(), vec![]),
            (vec![], absent(), vec![]),
            (vec![], vec![], values.clone()),
            (picked(0, 13), prefixes, values),
        ];
        for (number, (keys, prefixes, values)) in cases.into_iter().enumerate() {
            let (among_keys, among_values): (BTreeSet<_>, BTreeSet<_>) =
                (keys.iter().collect(), values.iter().collect());
            let passes = |key: &Vec<u8>, value: &Vec<u8>| {
                (keys.is_empty() || among_keys.contains(key))
                    && (prefixes.is_empty() || prefixes.iter().any(|prefix| key.starts_with(prefix)))
                    && (values.is_empty() || among_values.contains(value))
            };
            let wanted: Map = pairs.iter().filter(|(k, v)| passes(k, v)).map(|(k, v)| (k.clone(), v.clone())).collect();
            let (keys, key_prefixes, values) = (bytes(keys.clone()), bytes(prefixes.clone()), bytes(values.clone()));
            let found = client_runtime().block_on(dumped(&uds, Filter { keys, values, key_prefixes }));
            assert!(found == wanted, "{options:?} case={number} found={} wanted={}", found.len(), wanted.len());
        }
        assert!(service.terminate().success());
        assert!(pairs == held(&dir, &options));
        stream.stop().unwrap();
    }
}

/// Twelve subscribers have the largest filters, which nothing passes. Their work is done in pieces, so the service
/// stops in the middle of it when told to.
#[test]
fn large_filters_do_not_keep_the_service_from_stopping() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let (dir, uds) = (temp.path().join("store"), temp.path().join("solkv.sock"));
    let (stream, workload) = stream(
        "--pairs 5000 --events 200000 --events-per-slot 500 --change-share 1.0 --close-share 0 --replay-slots 1000",
    );
    load(&dir, &options, &workload);
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start(&dir, &options, &geyser, &["--uds", uds.to_str().unwrap()]);
    service.wait_for_slot(end(&stream).slot);
    // All prefixes have the same length, so none covers another. The stream's keys begin with random bytes, so nothing
    // passes.
    let prefix = |n: u64| Bytes::copy_from_slice(&[&[0xee; 20][..], &n.to_be_bytes()].concat());
    let filter = Filter { key_prefixes: (0..10_000).map(prefix).collect(), ..Filter::default() };
    client_runtime().block_on(async {
        let request = SubscribeRequest { filter: Some(filter), ..request(Start::FromSeq(workload.pairs + 1)) };
        let mut followers = Vec::new();
        for _ in 0..12 {
            followers.push(subscribe(&uds, request.clone()).await.unwrap());
        }
        for follower in &mut followers {
            assert!(matches!(follower.message().await.unwrap().unwrap().kind, Some(Kind::Started(_))));
        }
        assert!(service.terminate().success());
    });
    stream.stop().unwrap();
}

/// Maximum growth of the store's file during a dump with changes. With one view held for the whole dump, LMDB's file
/// grows by 190 MB in this test.
const GROWTH_BYTES_MAX: f64 = 100e6;

/// A dump is taken slowly during changes, and interrupted by its subscriber and by kills of the service. The file does
/// not keep replaced data, and the subscriber ends with the store's map.
#[test]
fn a_slow_dump_lets_old_state_go_and_goes_on_after_kills() {
    // RocksDB has a log of its own, which grows and shrinks by more than that.
    for options in columns().into_iter().filter(|options| options.engine != EngineKind::Rocksdb) {
        let temp = tempfile::tempdir().unwrap();
        let (dir, uds) = (temp.path().join("store"), temp.path().join("solkv.sock"));
        let (stream, workload) = stream(
            "--pairs 200000 --events 120000 --events-per-slot 400 --rate 6000 --replay-slots 1000000 --change-share 1.0 \
             --close-share 0 --unknown-share 0",
        );
        load(&dir, &options, &workload);
        let last_seq = Arc::new(AtomicU64::new(UNKNOWN));
        let dump = Start::DumpThenTail(DumpThenTail {});
        let mut follower = Follower::new(&uds, 9, dump, (Map::new(), UNKNOWN));
        follower.pause = Duration::from_millis(60);
        let following = follower.follow(Arc::clone(&last_seq));
        let geyser = format!("http://{}", stream.address());
        let (mut smallest, mut largest, mut dumps) = (f64::MAX, 0.0f64, 0.0f64);
        let last_slot = BASE_SLOT + 120_000 / 400;
        for part in 1..=3 {
            let mut service = Service::start(&dir, &options, &geyser, &["--uds", uds.to_str().unwrap()]);
            let until = BASE_SLOT + (last_slot - BASE_SLOT) * part / 3;
            wait_for("a part of the stream", || {
                let bytes = service.metric("solkv_engine_disk_bytes").filter(|bytes| *bytes > 0.0)?;
                (smallest, largest) = (smallest.min(bytes), largest.max(bytes));
                dumps = dumps.max(service.metric("solkv_feed_dumps")?);
                service.slot().filter(|slot| *slot >= until)
            });
            if part < 3 {
                service.kill();
                continue;
            }
            let seq = service.metric("solkv_checkpoint_seq").unwrap() as u64;
            // ORDERING: Relaxed: a number that is set once.
            last_seq.store(seq, Ordering::Relaxed);
            let follower = following.join().unwrap();
            assert!(service.terminate().success());
            assert!(follower.seq == seq && follower.connections > 3, "connections={}", follower.connections);
            assert!(follower.map == held(&dir, &options), "{options:?}: the dumped map is another one");
            break;
        }
        assert!(dumps > 0.0, "no dump was under way");
        assert_eq!(digest(&dir, &options), end(&stream).digest);
        assert!(largest - smallest < GROWTH_BYTES_MAX, "{options:?}: bytes={smallest} to {largest}");
        stream.stop().unwrap();
    }
}
