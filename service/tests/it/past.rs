//! The past of a map, asked over gRPC while it follows a stream, on every engine; and the comparison of a kept past with states
//! of the map that were read when they were the present.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytesize::ByteSize;
use client::{ErrorKind, ReadOptions};
use derived::history::{self, At, Period};
use engines::{EngineOptions, OpenMode};
use solana::ChainCheckpoint;
use workload::Pairs;

use crate::support::{BASE_SLOT, Service, columns, end, load, stream, wait_for};

/// A map at the end of a slot.
pub(crate) type State = (u64, BTreeMap<[u8; 32], [u8; 32]>);

/// Reads the whole map of a store that no process has open.
pub(crate) fn state(dir: &Path, options: &EngineOptions) -> State {
    let engine = engines::open(dir, options, OpenMode::Existing).unwrap();
    let slot = ChainCheckpoint::read(&engine.checkpoint().unwrap()).unwrap().slot.unwrap();
    let mut map = BTreeMap::new();
    let mut insert = |key: &[u8; 32], value: &[u8; 32]| {
        map.insert(*key, *value);
        std::ops::ControlFlow::Continue(())
    };
    engine.reader().unwrap().scan(&mut insert).unwrap();
    engine.close().unwrap();
    (slot, map)
}

/// Compares the past of a store at rest with states of its map.
pub(crate) fn assert_past(dir: &Path, options: &EngineOptions, states: &[State]) {
    let (_, now) = state(dir, options);
    let open = |(first_slot, place): (u64, std::path::PathBuf)| {
        let engine = engines::open_read_only(&place, Some(ByteSize::mib(16))).unwrap();
        Arc::new(Period::new(first_slot, engine).unwrap().0)
    };
    let periods: Vec<_> = history::periods(dir).unwrap().into_iter().map(open).collect();
    let keys: BTreeSet<_> = states.iter().flat_map(|(_, map)| map.keys()).chain(now.keys()).copied().collect();
    for (slot, map) in states {
        for key in &keys {
            let found = match history::at(&periods, key, *slot).unwrap() {
                At::Before(change) => change.before,
                At::Unchanged => now.get(key).copied(),
                other => panic!("{options:?} slot={slot} {other:?}"),
            };
            assert_eq!(found.as_ref(), map.get(key), "{options:?} slot={slot} key={}", bs58::encode(key).into_string());
        }
    }
}

#[test]
fn the_past_of_a_key_leads_from_its_value_now_to_the_first_one() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        let (stream, workload) = stream(
            "--pairs 2000 --events 24000 --events-per-slot 200 --change-share 0.4 --unknown-share 0.1 --close-share 0.1",
        );
        load(&dir, &options, &workload);
        let first = state(&dir, &options);
        let geyser = format!("http://{}", stream.address());
        let mut service = Service::start(&dir, &options, &geyser, &["--history-slots", "100000"]);
        let slot = service.wait_for_slot(end(&stream).slot);
        let address = format!("http://{}", service.listen);
        let mut client = wait_for("the service", || client::Builder::new(&address).unwrap().connect_blocking().ok());
        let (pairs, all, mut changed) = (Pairs::new(workload.seed), ReadOptions::default(), 0);
        for index in (0..workload.pairs).step_by(11) {
            let (key, mut newer, mut cursor) = (pairs.key(index), client.get(&pairs.key(index)).unwrap().value, None);
            let mut last_slot = None;
            loop {
                let page = client.changes(&key, cursor.as_deref(), 4, all).unwrap();
                assert_eq!((page.slot, page.value.oldest_slot), (Some(slot), BASE_SLOT));
                for change in &page.value.changes {
                    changed += 1;
                    assert_eq!(change.after, newer, "{options:?} index={index} {change:?}");
                    let (at, before) =
                        (client.get_at(&key, change.slot, all), client.get_at(&key, change.slot - 1, all));
                    let at = at.unwrap().value;
                    assert_eq!((at.value, at.until_slot), (change.after, last_slot), "{options:?} index={index}");
                    let before = before.unwrap().value;
                    assert_eq!((before.value, before.until_slot), (change.before, Some(change.slot)));
                    (newer, last_slot) = (change.before, Some(change.slot));
                }
                cursor = page.value.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(newer, Some(pairs.value(index, 0)), "{options:?} index={index}");
        }
        assert!(changed > 200, "changed={changed}");
        let key = pairs.key(0);
        for (refused, kind, why) in [
            (client.get_at(&key, BASE_SLOT - 1, all).unwrap_err(), ErrorKind::BadInput, "oldest_slot=999"),
            (client.changes(&key, None, 4001, all).unwrap_err(), ErrorKind::BadInput, "max=4000"),
            (client.changes(&key, Some(&[1; 16]), 1, all).unwrap_err(), ErrorKind::BadInput, "begin without one"),
            (client.changes(&key, Some(&[1; 15]), 1, all).unwrap_err(), ErrorKind::BadInput, "not a cursor: bytes=15"),
            (client.keys_of(&key, None, 1, all).unwrap_err(), ErrorKind::Refused, "bootstrap derive"),
        ] {
            assert!(refused.kind() == kind && refused.to_string().contains(why), "{refused}");
        }
        assert_eq!(service.metric("solkv_derived_lag{store=\"history\"}"), Some(0.0));
        assert!(service.terminate().success());
        assert_past(&dir, &options, &[first.clone(), state(&dir, &options)]);
        let key = bs58::encode(key).into_string();
        let get = |slot: u64| {
            let slot = slot.to_string();
            let args = ["bootstrap", "get", "--dir", dir.to_str().unwrap(), "--at", &slot, &key];
            format!("{:?}", bootstrap::cli::run(args.iter().map(Into::into).collect()))
        };
        assert_eq!(get(BASE_SLOT), format!("{:?}", std::process::ExitCode::SUCCESS));
        assert_ne!(get(BASE_SLOT - 1), get(BASE_SLOT));

        // A service that keeps none refuses; what is there stays.
        let service = Service::start(&dir, &options, &geyser, &[]);
        let address = format!("http://{}", service.listen);
        let mut client = wait_for("the service", || client::Builder::new(&address).unwrap().connect_blocking().ok());
        let refused = client.get_at(&pairs.key(0), slot, all).unwrap_err();
        assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("history_slots"), "{refused}");
        assert!(service.terminate().success());
        stream.stop().unwrap();
    }
}
