//! The keys of a value, asked over gRPC while the map follows a stream, on every engine.

use client::{Commitment, ErrorKind, ReadOptions};
use workload::Pairs;

use crate::crash::derive;
use crate::support::{Service, columns, end, load, stream, wait_for};

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
        let connect = |service: &Service| {
            let address = format!("http://{}", service.listen);
            wait_for("the service", || client::Builder::new(&address).unwrap().connect_blocking().ok())
        };
        let service = Service::start(&dir, &options, &geyser, &[]);
        let refused = connect(&service).keys_of(&[7; 32], None, 0, ReadOptions::default()).unwrap_err();
        assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("E-DERIVED"), "{refused}");
        assert!(service.terminate().success());
        derive(&dir, &[]);

        let mut service = Service::start(&dir, &options, &geyser, &[]);
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
        let finalized = ReadOptions { commitment: Commitment::Finalized, ..all };
        for (refused, kind, why) in [
            (refused(None, 10_001, all), ErrorKind::BadInput, "max=10000"),
            (refused(Some(&[1; 3]), 1, all), ErrorKind::BadInput, "not a cursor: bytes=3"),
            (refused(Some(&[1; 24]), 1, all), ErrorKind::BadInput, "begin without one"),
            (refused(None, 1, finalized), ErrorKind::Refused, "at confirmed alone"),
        ] {
            assert!(refused.kind() == kind && refused.to_string().contains(why), "{refused}");
        }
        assert_eq!(service.metric("solkv_derived_lag"), Some(0.0));
        assert_eq!(service.metric("solkv_derived_broken"), Some(0.0));
        assert!(service.terminate().success());
        derive(&dir, &["--check"]);

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
