//! What a lookup sees ends where a slot ends: answers of many keys, taken while large slots are applied, against the
//! states that the feed tells of.

use std::collections::HashMap;

use bytes::Bytes;
use proto::v1::feed_client::FeedClient;
use proto::v1::kv_client::KvClient;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Change, GetManyRequest, SubscribeRequest};
use workload::Pairs;

use crate::support::{Service, client_runtime, columns, end, load, stream, uds_channel};

/// Slots of 5000 updates, of which each changes something.
const LINE: &str = "--pairs 5000 --events 150000 --events-per-slot 5000 --rate 60000 --unknown-share 0 \
                    --change-share 1.0 --close-share 0";

/// Keys that are looked up: a slot writes more than half of them, all over its length.
const KEYS: u64 = 200;

type Values = Vec<Option<Bytes>>;

#[test]
fn no_answer_holds_a_part_of_a_slot() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, uds) = (temp.path().join("store"), temp.path().join("solkv.sock"));
        let (stream, workload) = stream(LINE);
        load(&dir, &options, &workload);
        let keys: Vec<Bytes> = (0..KEYS).map(|n| Pairs::new(workload.seed).key(n).to_vec().into()).collect();
        let geyser = format!("http://{}", stream.address());
        // Far less than a slot changes.
        let more = ["--uds", uds.to_str().unwrap(), "--commit-every", "1000"];
        let mut service = Service::start(&dir, &options, &geyser, &more);
        service.wait_for_slot(workload.start_slot);
        let (answers, changes) = client_runtime().block_on(async {
            let channel = uds_channel(&uds).await.unwrap();
            let mut kv = KvClient::new(channel.clone());
            let (mut answers, request) = (Vec::new(), GetManyRequest { keys: keys.clone(), ..Default::default() });
            while answers.last().is_none_or(|(slot, _)| Some(*slot) != stream.outcome().unwrap().map(|end| end.slot)) {
                let answer = kv.get_many(request.clone()).await.unwrap().into_inner();
                let values: Values = answer.entries.into_iter().map(|entry| entry.value).collect();
                answers.push((answer.slot.unwrap(), values));
            }
            (answers, changes(FeedClient::new(channel), workload.pairs + 1, end(&stream).slot).await)
        });
        verify(&answers, &states(&keys, workload.seed, &changes));
        assert!(service.terminate().success());
        stream.stop().unwrap();
    }
}

/// Every change from `seq` on, through `slot`.
async fn changes(mut feed: FeedClient<tonic::transport::Channel>, seq: u64, slot: u64) -> Vec<Change> {
    let request = SubscribeRequest { start: Some(Start::FromSeq(seq)), ..Default::default() };
    let mut messages = feed.subscribe(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    loop {
        match messages.message().await.unwrap().unwrap().kind.unwrap() {
            Kind::Changes(changes) => all.extend(changes.changes),
            // Sent once there is nothing more.
            Kind::Heartbeat(heartbeat) if heartbeat.slot == Some(slot) => return all,
            _ => {}
        }
    }
}

/// What the keys held at the end of each slot.
fn states(keys: &[Bytes], seed: u64, changes: &[Change]) -> Vec<(u64, Values)> {
    let pairs = Pairs::new(seed);
    let place: HashMap<&Bytes, usize> = keys.iter().enumerate().map(|(at, key)| (key, at)).collect();
    let mut held: Values = (0..keys.len() as u64).map(|n| Some(pairs.value(n, 0).to_vec().into())).collect();
    let mut states = Vec::new();
    for of_slot in changes.chunk_by(|a, b| a.slot == b.slot) {
        for change in of_slot {
            if let Some(&at) = place.get(&change.key) {
                held[at].clone_from(&change.new_value);
            }
        }
        states.push((of_slot[0].slot, held.clone()));
    }
    states
}

fn verify(answers: &[(u64, Values)], states: &[(u64, Values)]) {
    let slots: HashMap<&Values, u64> = states.iter().map(|(slot, values)| (values, *slot)).collect();
    assert_eq!(slots.len(), states.len(), "each slot leaves another state");
    let mut met: Vec<u64> = Vec::new();
    for (named, values) in answers {
        let slot = slots.get(values).unwrap_or_else(|| panic!("an answer at slot={named} is the state of no slot"));
        assert!(slot >= named, "the state of slot={slot} is called slot={named}");
        met.push(*slot);
    }
    assert!(met.is_sorted(), "answers went back");
    met.dedup();
    assert!(met.len() > 10, "answers of too few slots prove nothing: {met:?}");
}
