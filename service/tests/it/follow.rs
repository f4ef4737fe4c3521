//! A service follows a stream with every kind of repairable fault, and answers lookups meanwhile.

use std::path::Path;

use bytes::Bytes;
use clap::Parser as _;
use proto::v1::kv_client::KvClient;
use proto::v1::{GetManyRequest, GetRequest, StatusRequest};
use tonic::Code;
use workload::Pairs;

use crate::support::{Service, client_runtime, columns, digest, end, load, stream, uds_channel, wait_for};

const FAULTS: &str = "--pairs 5000 --events 60000 --events-per-slot 500 --unknown-share 0.05 --change-share 0.3 \
                      --close-share 0.05 --dead-every 9 --skip-every 11 --out-of-order-every 7 \
                      --disconnect-every 17000 --duplicates --replay-slots 10000";

#[test]
fn the_map_is_the_streams_and_lookups_give_it() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, uds) = (temp.path().join("store"), temp.path().join("solkv.sock"));
        let (stream, workload) = stream(FAULTS);
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        // The stream is faster than a slow machine, and ends before the lookups start.
        let more = ["--uds", uds.to_str().unwrap(), "--max-lag", "10m"];
        let mut service = Service::start(&dir, &options, &geyser, &more);
        let end = end(&stream);
        service.wait_for_slot(end.slot);
        assert_eq!(service.get("/readyz").unwrap().0, 200);
        assert!(service.metric("solkv_connects_total").unwrap() > 2.0, "the stream disconnects");
        assert!(service.metric("solkv_slots_dead_total").unwrap() > 0.0);
        assert!(service.metric("solkv_slots_duplicate_total").unwrap() > 0.0);

        let found = lookups(&service.listen, &uds, workload.seed, workload.pairs, end.slot);
        let key = bs58::encode(Pairs::new(workload.seed).key(0)).into_string();
        let absent = bs58::encode([1; 32]).into_string();
        let address = format!("unix://{}", uds.display());
        let asked = Asked::try_parse_from(["get", "--address", &address, &key, &absent]).unwrap();
        let value = found[0].as_ref().map(|value| value[..].try_into().unwrap());
        assert_eq!(loadgen::get::look_up(&asked.get).unwrap(), [value, None]);
        assert!(loadgen::get::run(&asked.get).unwrap_err().to_string().contains("absent="));

        assert!(service.terminate().success());
        assert!(!uds.exists(), "the socket's file is gone with the service");
        assert_eq!(digest(&dir, &options), end.digest, "{options:?}");
        assert_eq!(found, held(&dir, &options, workload.seed, workload.pairs), "{options:?}");
        stream.stop().unwrap();
    }
}

/// The arguments of `loadgen get`, as its command line parses them.
#[derive(clap::Parser)]
struct Asked {
    #[command(flatten)]
    get: loadgen::get::GetArgs,
}

/// Looks up every known key over TCP in batches, and compares some with single lookups over the Unix socket.
fn lookups(listen: &str, uds: &Path, seed: u64, pairs: u64, slot: u64) -> Vec<Option<Bytes>> {
    client_runtime().block_on(async {
        let mut tcp = KvClient::connect(format!("http://{listen}")).await.unwrap();
        let mut local = KvClient::new(uds_channel(uds).await.unwrap());
        let keys: Vec<Vec<u8>> = (0..pairs).map(|index| Pairs::new(seed).key(index).to_vec()).collect();
        let mut found = Vec::new();
        for chunk in keys.chunks(2000) {
            let reply = tcp
                .get_many(GetManyRequest {
                    keys: chunk.iter().cloned().map(Into::into).collect(),
                    ..Default::default()
                })
                .await
                .unwrap()
                .into_inner();
            assert_eq!(reply.slot, Some(slot));
            found.extend(reply.entries.into_iter().map(|entry| entry.value));
        }
        for index in (0..pairs as usize).step_by(97) {
            let reply = local
                .get(GetRequest { key: keys[index].clone().into(), ..Default::default() })
                .await
                .unwrap()
                .into_inner();
            assert_eq!((reply.slot, &reply.value), (Some(slot), &found[index]));
        }
        let absent = Pairs::new(seed).absent_key(0).to_vec();
        assert_eq!(
            local.get(GetRequest { key: vec![1; 31].into(), ..Default::default() }).await.unwrap_err().code(),
            Code::InvalidArgument
        );
        let status = tcp.status(StatusRequest::default()).await.unwrap().into_inner();
        assert!(status.ready);
        let reply = tcp.get(GetRequest { key: absent.into(), ..Default::default() }).await;
        assert!(reply.is_ok(), "an absent key is an answer, not an error");
        found
    })
}

fn held(dir: &Path, options: &engines::EngineOptions, seed: u64, pairs: u64) -> Vec<Option<Bytes>> {
    let engine = engines::open(dir, options, engines::OpenMode::Existing).unwrap();
    let mut reader = engine.reader().unwrap();
    (0..pairs)
        .map(|index| reader.get(&Pairs::new(seed).key(index)).unwrap().map(|value| value.to_vec().into()))
        .collect()
}

#[test]
fn accounts_that_leave_the_token_programs_leave_the_map() {
    let options = columns().remove(0);
    for extract in ["token-owner", "token-mint"] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        let (stream, workload) = stream(&format!("{FAULTS} --extract {extract} --leave-share 0.1 --confirm-after 3"));
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        let mut service = Service::start(&dir, &options, &geyser, &["--extract", extract]);
        let end = end(&stream);
        service.wait_for_slot(end.slot);
        assert!(service.terminate().success());
        assert_eq!(digest(&dir, &options), end.digest, "{extract}");
        stream.stop().unwrap();
    }
}

#[test]
fn a_stream_that_breaks_before_the_first_commit_starts_over_after_the_taken_slots() {
    // An empty store without a checkpoint, and connections that break before its first commit. A reset discards what the
    // kernel holds unread, and without a first slot the service has none to ask for: the stream goes slowly enough that
    // even a busy machine takes one before the first break.
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let line = "--pairs 500 --base-empty --events 20000 --events-per-slot 500 --disconnect-every 3700 --replay-slots 1000 --rate 2500";
    let (stream, _) = stream(line);
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start(&dir, &options, &geyser, &["--commit-every", "100000"]);
    let end = end(&stream);
    wait_for("the last slot", || {
        service.metric("solkv_slots_applied_total").filter(|slots| *slots >= end.slots as f64)
    });
    assert!(service.metric("solkv_connects_total").unwrap() > 5.0);
    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    stream.stop().unwrap();
}
