//! Slow requests are logged with the parts of their time, and without their keys.

use client::blocking;
use proto::v1::kv_client::KvClient;
use proto::v1::{GetManyRequest, GetRequest};
use workload::Pairs;

use crate::support::{BASE_SLOT, Service, client_runtime, columns, load, stream, uds_channel, wait_for};

const ENDLESS: &str = "--pairs 2000 --events 100000000 --events-per-slot 400 --rate 4000 --replay-slots 1000";

/// Returns the log lines of slow requests that have all of these words.
fn lines(service: &Service, words: &[&str]) -> Vec<String> {
    let log = service.log();
    let slow = log.lines().filter(|line| line.contains("slow request"));
    slow.filter(|line| words.iter().all(|word| line.contains(word))).map(ToOwned::to_owned).collect()
}

#[test]
fn each_transports_slow_requests_are_counted_and_their_parts_logged() {
    let options = columns().pop().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let (dir, uds, shm) = (temp.path().join("store"), temp.path().join("kv.sock"), temp.path().join("shm.sock"));
    let (stream, workload) = stream(ENDLESS);
    load(&dir, &options, &workload);
    let geyser = format!("http://{}", stream.address());
    let sockets = ["--uds", uds.to_str().unwrap(), "--shm", shm.to_str().unwrap()];
    // With this threshold every request is slow.
    let mut service = Service::start(
        &dir,
        &options,
        &geyser,
        &[&sockets[..], &["--slow-request", "1ns", "--log-format", "json"]].concat(),
    );
    service.wait_for_slot(BASE_SLOT + 1);
    let (listen, key) = (service.listen.clone(), Pairs::new(workload.seed).key(1));
    let get = || GetRequest { key: key.to_vec().into(), ..Default::default() };
    client_runtime().block_on(async {
        let mut tcp = KvClient::connect(format!("http://{listen}")).await.unwrap();
        let mut local = KvClient::new(uds_channel(&uds).await.unwrap());
        let slot = tcp.get(get()).await.unwrap().into_inner().slot.unwrap();
        let many = GetManyRequest { keys: vec![key.to_vec().into(); 3], ..Default::default() };
        local.get_many(many).await.unwrap();
        // The next slots are a tenth of a second away, which is longer than any other part.
        let ahead = GetRequest { min_context_slot: Some(slot + 5), ..get() };
        tcp.get(ahead).await.unwrap();
    });
    let mut shared = blocking::Client::connect(&format!("shm://{}", shm.display())).unwrap();
    shared.get(&key).unwrap();

    for (transport, requests) in [("grpc-tcp", 2.0), ("grpc-uds", 1.0), ("shm", 1.0)] {
        let name = format!("solkv_slow_requests_total{{transport=\"{transport}\"}}");
        wait_for(&name, || service.metric(&name).filter(|count| *count == requests));
        let said = wait_for(transport, || lines(&service, &[&format!("\"transport\":\"{transport}\"")]).pop());
        let line: serde_json::Value = serde_json::from_str(&said).unwrap();
        let field = |name: &str| line["fields"][name].as_u64().unwrap_or_else(|| panic!("{name}: {said}"));
        let parts = ["slot_wait_us", "queue_us", "overlay_us", "read_us", "other_us"].map(field);
        // Each part is rounded down to whole microseconds.
        assert!(field("total_us").abs_diff(parts.iter().sum()) <= parts.len() as u64, "{said}");
        assert_eq!(field("keys"), if transport == "grpc-uds" { 3 } else { 1 }, "{said}");
    }
    let waited = lines(&service, &["\"cause\":\"slot_wait\"", "grpc-tcp"]);
    assert_eq!(waited.len(), 1, "{}", service.log());
    let log = service.log();
    for secret in
        [bs58::encode(key).into_string(), key.iter().map(|byte| format!("{byte:02x}")).collect(), format!("{key:?}")]
    {
        assert!(!log.contains(&secret), "a key is in the log");
    }
    assert!(service.terminate().success());
    stream.stop().unwrap();
}

#[test]
fn nothing_is_slow_when_the_setting_says_so() {
    let options = columns().pop().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let (stream, workload) = stream(ENDLESS);
    load(&dir, &options, &workload);
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start(&dir, &options, &geyser, &["--slow-request", "0s"]);
    let slot = service.wait_for_slot(BASE_SLOT + 1);
    let listen = service.listen.clone();
    client_runtime().block_on(async {
        let mut tcp = KvClient::connect(format!("http://{listen}")).await.unwrap();
        let key = Pairs::new(workload.seed).key(1).to_vec().into();
        tcp.get(GetRequest { key, min_context_slot: Some(slot + 2), ..Default::default() }).await.unwrap();
    });
    assert_eq!(service.metric("solkv_slow_requests_total{transport=\"grpc-tcp\"}"), Some(0.0));
    assert!(lines(&service, &[]).is_empty());
    assert!(service.terminate().success());
    stream.stop().unwrap();
}
