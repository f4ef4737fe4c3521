//! The keys of a value, asked over gRPC while the map follows a stream, on every engine.

use std::path::Path;
use std::time::Duration;

use client::{Commitment, ErrorKind, ReadOptions};
use engines::{EngineOptions, OpenMode};
use workload::{Pairs, Rng};

use crate::crash::derive;
use crate::support::{Service, client_runtime, columns, end, load, stream, wait_for};

#[test]
fn the_keys_of_a_value_follow_the_stream() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        let (stream, workload) = stream(
            "--pairs 3000 --events 24000 --events-per-slot 400 --change-share 0.4 --unknown-share 0.1 --close-share 0.1",
        );
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        let mut service = Service::start(&dir, &options, &geyser, &[]);
        let refused = |service: &Service| {
            let refused = connect(service).keys_of(&[7; 32], None, 0, ReadOptions::default()).unwrap_err();
            assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("E-DERIVED"), "{refused}");
        };
        refused(&service);
        // Added, built again, removed and added again while the service follows the stream.
        derive(&dir, &[]);
        assert_eq!(service.metric("solkv_derived_broken{store=\"values\"}"), Some(0.0), "{}", service.log());
        derive(&dir, &[]);
        derive(&dir, &["--drop"]);
        refused(&service);
        assert!(!dir.join("derived/values").exists());
        derive(&dir, &[]);
        let slot = service.wait_for_slot(end(&stream).slot);
        let mut client = connect(&service);
        let (pairs, all, mut changed) = (Pairs::new(workload.seed), ReadOptions::default(), 0);
        for index in (0..workload.pairs).step_by(7) {
            let (key, first) = (pairs.key(index), pairs.value(index, 0));
            let now = client.get(&key).unwrap().value;
            if let Some(value) = now {
                let found = client.keys_of(&value, None, 0, all).unwrap();
                assert_eq!((found.slot, found.value.cursor), (Some(slot), None));
                assert!(found.value.keys.contains(&key), "{options:?} index={index}");
            }
            if now != Some(first) {
                changed += 1;
                assert!(
                    !client.keys_of(&first, None, 9, all).unwrap().value.keys.contains(&key),
                    "{options:?} index={index}"
                );
            }
        }
        assert!(changed > 50, "changed={changed}");
        let mut refused =
            |cursor: Option<&[u8]>, limit, options| client.keys_of(&[7; 32], cursor, limit, options).unwrap_err();
        let processed = ReadOptions { commitment: Commitment::Processed, ..all };
        for (refused, kind, why) in [
            (refused(Some(&[1; 3]), 1, all), ErrorKind::BadInput, "not a cursor: bytes=3"),
            (refused(Some(&[1; 24]), 1, all), ErrorKind::BadInput, "begin without one"),
            (refused(None, 1, processed), ErrorKind::Refused, "processed = true"),
        ] {
            assert!(refused.kind() == kind && refused.to_string().contains(why), "{refused}");
        }
        let value = client.get(&pairs.key(3)).unwrap().value.unwrap_or_default();
        let counted = client.count_of(&value, 0, all).unwrap();
        let keys = client.keys_of(&value, None, 0, all).unwrap().value.keys;
        assert_eq!((counted.value, counted.slot), ((keys.len() as u64, false), Some(slot)));
        many_at_once(&service, &value, counted.value);
        assert_eq!(service.metric("solkv_derived_lag{store=\"values\"}"), Some(0.0));
        assert_eq!(service.metric("solkv_derived_broken{store=\"values\"}"), Some(0.0));
        assert!(service.terminate().success());
        derive(&dir, &["--check"]);

        assert_eq!(keys_in_a_copy(&dir, &options, &geyser, &value), (keys.len(), Some(slot)));

        // Without its feed it would never learn of a change.
        let mut service = Service::start(&dir, &options, &geyser, &["--feed", "false"]);
        let ended = wait_for("the refusal", || service.ended());
        assert!(
            ended.code() == Some(2) && service.log().contains("a derived store follows the feed"),
            "{}",
            service.log()
        );
        stream.stop().unwrap();
    }
}

/// Answers of one message take no place of those of several, even if all keys are asked for.
fn many_at_once(service: &Service, value: &[u8; 32], expected: (u64, bool)) {
    client_runtime().block_on(async {
        let client = client::Builder::new(&format!("http://{}", service.listen)).unwrap().connect().await.unwrap();
        let ask = || async { client.count_of(value, 0, ReadOptions::default()).await.unwrap().value };
        let counts = futures::future::join_all((0..48).map(|_| ask())).await;
        assert!(counts.iter().all(|count| *count == expected), "{counts:?}");
    });
}

/// Copies a store, and returns the number of keys of a value that a service on the copy finds, and its slot. A copy has no derived
/// store, and one that is built of it follows the copy's feed.
fn keys_in_a_copy(dir: &Path, options: &EngineOptions, geyser: &str, value: &[u8; 32]) -> (usize, Option<u64>) {
    let copy = dir.with_extension("copy");
    let map = engines::open(dir, options, OpenMode::Existing).unwrap();
    map.snapshot(&copy).unwrap();
    map.close().unwrap();
    assert!(!copy.join("derived").exists());
    derive(&copy, &[]);
    let service = Service::start(&copy, options, geyser, &[]);
    let found = connect(&service).keys_of(value, None, 0, ReadOptions::default()).unwrap();
    assert!(service.terminate().success());
    (found.value.keys.len(), found.slot)
}

#[test]
fn killed_while_a_derived_store_is_added_or_removed_the_next_one_is_whole() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        let (stream, workload) = stream(
            "--pairs 20000 --events 120000 --events-per-slot 400 --rate 20000 --replay-slots 1000000 --change-share 0.3 \
             --unknown-share 0.05 --close-share 0.05",
        );
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        let mut rng = Rng::new(options.engine as u64);
        for life in 0..8 {
            let service = Service::start(&dir, &options, &geyser, &[]);
            connect(&service);
            let place = dir.clone();
            // Fails where the service is gone before it is done.
            let change = std::thread::spawn(move || {
                for drop in [false, true, false] {
                    let mut args = vec!["bootstrap", "derive", "--dir", place.to_str().unwrap()];
                    args.extend(drop.then_some("--drop"));
                    bootstrap::cli::run(args.into_iter().map(Into::into).collect());
                }
            });
            std::thread::sleep(Duration::from_millis(rng.below(400)));
            service.kill();
            change.join().unwrap();
            if life % 2 == 1 && dir.join("derived/values").exists() {
                let mut service = Service::start(&dir, &options, &geyser, &[]);
                let lag = wait_for("its metrics", || service.metric("solkv_derived_broken{store=\"values\"}"));
                assert!(lag < 2.0 && service.ended().is_none(), "a part of a store is no reason to end");
                assert!(service.terminate().success());
            }
        }
        let mut service = Service::start(&dir, &options, &geyser, &[]);
        connect(&service);
        derive(&dir, &[]);
        let slot = service.wait_for_slot(end(&stream).slot);
        let answer = connect(&service).keys_of(&[7; 32], None, 0, ReadOptions::default()).unwrap();
        assert_eq!(answer.slot, Some(slot));
        assert!(service.terminate().success());
        derive(&dir, &["--check"]);
        let left: Vec<_> =
            std::fs::read_dir(dir.join("derived")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["values"], "nothing else is left");
        stream.stop().unwrap();
    }
}

fn connect(service: &Service) -> client::blocking::Client {
    let address = format!("http://{}", service.listen);
    wait_for("the service", || client::Builder::new(&address).unwrap().connect_blocking().ok())
}
