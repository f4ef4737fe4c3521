//! A lookup sees only whole slots, and exactly the state of the slot that it names. Answers of one key and of many,
//! over gRPC and shared memory, are taken while large slots are applied, and compared with the states that the feed
//! reports.

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use client::{Client, Key, Value};
use proto::v1::feed_client::FeedClient;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Change, SubscribeRequest};
use workload::Pairs;

use crate::support::{BASE_SLOT, Service, client_runtime, columns, end, load, stream, uds_channel};

/// Slots of 5000 updates, each of which changes a value.
const LINE: &str = "--pairs 5000 --events 150000 --events-per-slot 5000 --rate 60000 --unknown-share 0 \
                    --change-share 1.0 --close-share 0";

/// Number of keys that are looked up. A slot writes more than half of them, spread over its length.
const KEYS: u64 = 200;

type Values = Vec<Option<Bytes>>;

/// Answer to a client: the slot, and the values from the given index on.
type Told = (u64, usize, Values);

#[test]
fn no_answer_holds_a_part_of_a_slot_or_names_another() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let [dir, uds, shm] = ["store", "solkv.sock", "shm.sock"].map(|name| temp.path().join(name));
        let (stream, workload) = stream(LINE);
        load(&dir, &options, &workload);
        let keys: Vec<Key> = (0..KEYS).map(|n| Pairs::new(workload.seed).key(n)).collect();
        let geyser = format!("http://{}", stream.address());
        // Far fewer changes than a slot makes.
        let more = ["--uds", uds.to_str().unwrap(), "--shm", shm.to_str().unwrap(), "--commit-every", "1000"];
        let mut service = Service::start(&dir, &options, &geyser, &more);
        service.wait_for_slot(workload.start_slot);
        let (answers, changes) = client_runtime().block_on(async {
            let over = |scheme: &str, path: &Path| format!("{scheme}://{}", path.display());
            let (grpc, shared) = (over("unix", &uds), over("shm", &shm));
            let last = || stream.outcome().unwrap().map(|end| end.slot);
            let told = tokio::join!(ask(&grpc, &keys, last), ask(&shared, &keys, last));
            let channel = uds_channel(&uds).await.unwrap();
            ([told.0, told.1], changes(FeedClient::new(channel), workload.pairs + 1, end(&stream).slot).await)
        });
        let states = states(&keys, workload.seed, &changes);
        answers.iter().for_each(|answers| verify(answers, &states));
        assert!(service.terminate().success());
        stream.stop().unwrap();
    }
}

/// Looks up all keys at once and then one after another, until the slot is `last`.
async fn ask(address: &str, keys: &[Key], last: impl Fn() -> Option<u64>) -> Vec<Told> {
    let bytes = |value: Value| Bytes::copy_from_slice(&value);
    let client = Client::connect(address).await.unwrap();
    let mut answers: Vec<Told> = Vec::new();
    for at in (0..keys.len()).cycle() {
        let one = client.get(&keys[at]).await.unwrap();
        answers.push((one.slot.unwrap(), at, vec![one.value.map(bytes)]));
        let many = client.get_many(keys).await.unwrap();
        answers.push((many.slot.unwrap(), 0, many.value.into_iter().map(|value| value.map(bytes)).collect()));
        if many.slot == last() {
            break;
        }
    }
    answers
}

/// Returns every change from `seq` up to the end of `slot`.
async fn changes(mut feed: FeedClient<tonic::transport::Channel>, seq: u64, slot: u64) -> Vec<Change> {
    let request = SubscribeRequest { start: Some(Start::FromSeq(seq)), ..Default::default() };
    let mut messages = feed.subscribe(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    loop {
        match messages.message().await.unwrap().unwrap().kind.unwrap() {
            Kind::Changes(changes) => all.extend(changes.changes),
            // The service sends this heartbeat once there is nothing more.
            Kind::Heartbeat(heartbeat) if heartbeat.slot == Some(slot) => return all,
            _ => {}
        }
    }
}

/// Returns the values of the keys at the end of each slot.
fn states(keys: &[Key], seed: u64, changes: &[Change]) -> HashMap<u64, Values> {
    let pairs = Pairs::new(seed);
    let place: HashMap<&[u8], usize> = keys.iter().enumerate().map(|(at, key)| (key.as_slice(), at)).collect();
    let mut held: Values = (0..keys.len() as u64).map(|n| Some(pairs.value(n, 0).to_vec().into())).collect();
    let mut states = HashMap::from([(BASE_SLOT, held.clone())]);
    for of_slot in changes.chunk_by(|a, b| a.slot == b.slot) {
        for change in of_slot {
            if let Some(&at) = place.get(change.key.as_ref()) {
                held[at].clone_from(&change.new_value);
            }
        }
        states.insert(of_slot[0].slot, held.clone());
    }
    states
}

fn verify(answers: &[Told], states: &HashMap<u64, Values>) {
    for (slot, at, values) in answers {
        let state = states.get(slot).unwrap_or_else(|| panic!("slot={slot} changed nothing"));
        assert!(state[*at..].starts_with(values), "an answer that names slot={slot} is not its state");
    }
    let mut met: Vec<u64> = answers.iter().map(|(slot, ..)| *slot).collect();
    assert!(met.is_sorted(), "answers went back");
    met.dedup();
    assert!(met.len() > 10, "answers of too few slots prove nothing: {met:?}");
}
