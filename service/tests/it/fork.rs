//! Lookups and requests to derived stores at each commitment while the stream forks: every answer is the state of the slot that
//! it names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use loadgen::stream::Stream;
use proto::v1::kv_client::KvClient;
use proto::v1::{Commitment, GetAtRequest, GetManyRequest, GetRequest, KeysOfRequest};
use tonic::transport::Channel;
use tonic::{Code, Request};
use workload::{Pairs, Rng};
use yellowstone_grpc_client::GeyserGrpcClient;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    CommitmentLevel, SubscribeRequest, SubscribeRequestFilterAccounts, SubscribeRequestFilterBlocksMeta,
};

use crate::crash::derive;
use crate::support::{BASE_SLOT, Service, columns, digest, end, load, stream};

/// Some three seconds of slots, which are confirmed six slots after they are processed. The connection breaks now and
/// then.
const LINE: &str = "--pairs 1000 --events 50000 --events-per-slot 200 --rate 20000 --change-share 0.3 \
                    --close-share 0.05 --unknown-share 0.02 --dead-every 13 --skip-every 11 --fork-every 7 \
                    --banks-every 5 --out-of-order-every 17 --confirm-after 6 --disconnect-every 15000 --duplicates \
                    --replay-slots 100000";

/// Number of keys of one lookup.
const KEYS: usize = 200;

type Values = Vec<Option<Vec<u8>>>;

/// Last writes of a slot: the accounts with their values, `None` for a closed account.
type Writes = HashMap<Vec<u8>, Option<Vec<u8>>>;

/// One answer: the keys, the slot that it names, their values.
struct Sample {
    commitment: Commitment,
    keys: Vec<u64>,
    slot: u64,
    values: Values,
    /// Whether the values are compared with the state of that slot: answers at finalized, and answers at processed that
    /// came from the overlay. The test `whole` compares the answers at confirmed.
    exact: bool,
}

/// An answer of a derived store.
struct Derived {
    commitment: Commitment,
    /// The slot that it names.
    slot: u64,
    told: Told,
}

#[derive(Debug)]
enum Told {
    /// The keys of a value.
    Keys { value: Vec<u8>, keys: Vec<Vec<u8>> },
    /// The value of a key at a slot, and the slot of its first change after it.
    Past { key: u64, at: u64, value: Option<Vec<u8>>, until_slot: Option<u64> },
}

#[derive(Clone)]
struct Asker {
    client: KvClient<Channel>,
    pairs: Pairs,
}

impl Asker {
    async fn look(&mut self, keys: &[u64], commitment: Commitment, min: Option<u64>) -> Result<Sample, tonic::Status> {
        let request = GetManyRequest {
            keys: keys.iter().map(|index| self.pairs.key(*index).to_vec().into()).collect(),
            commitment: commitment as i32,
            min_context_slot: min,
            ..Default::default()
        };
        let reply = self.client.get_many(request).await?.into_inner();
        let values = reply.entries.into_iter().map(|entry| entry.value.map(|value| value.to_vec())).collect();
        let exact = commitment == Commitment::Finalized;
        Ok(Sample { commitment, keys: keys.to_vec(), slot: reply.slot.unwrap_or(0), values, exact })
    }

    /// Asks for the keys of a value.
    async fn keys_of(&mut self, value: Vec<u8>, commitment: Commitment) -> Result<Derived, tonic::Status> {
        let request =
            KeysOfRequest { value: value.clone().into(), commitment: commitment as i32, ..Default::default() };
        let page = self.client.keys_of(request).await?.into_inner().next().await.unwrap()?;
        let keys = page.packed_keys.chunks(32).map(<[u8]>::to_vec).collect();
        Ok(Derived { commitment, slot: page.slot.unwrap_or(0), told: Told::Keys { value, keys } })
    }

    /// Asks for the value that a key had at a slot.
    async fn get_at(&mut self, key: u64, at: u64, commitment: Commitment) -> Result<Derived, tonic::Status> {
        let bytes = self.pairs.key(key).to_vec().into();
        let request = GetAtRequest { key: bytes, slot: at, commitment: commitment as i32, ..Default::default() };
        let reply = self.client.get_at(request).await?.into_inner();
        let value = reply.value.map(|value| value.to_vec());
        let told = Told::Past { key, at, value, until_slot: reply.until_slot };
        Ok(Derived { commitment, slot: reply.slot.unwrap_or(0), told })
    }

    async fn get(&mut self, commitment: Commitment, min: u64, timeout: Duration) -> Result<Option<u64>, tonic::Status> {
        let key = self.pairs.key(0).to_vec().into();
        let get = GetRequest { key, commitment: commitment as i32, min_context_slot: Some(min), ..Default::default() };
        let mut request = Request::new(get);
        request.set_timeout(timeout);
        Ok(self.client.get(request).await?.into_inner().slot)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_answer_is_the_state_of_the_slot_it_names() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let (stream, workload) = stream(LINE);
    load(&dir, &options, &workload);
    derive(&dir, &[]);
    let geyser = format!("http://{}", stream.address());
    let more = ["--processed", "--commit-every", "70", "--history-slots", "100000"];
    let mut service = Service::start(&dir, &options, &geyser, &more);
    service.wait_for_slot(BASE_SLOT + 1);
    let mut asker = connect(&service, workload.seed).await;

    // The service gives a request up after ten seconds.
    let mut reached = None;
    for _ in 0..10 {
        reached = asker.get(Commitment::Processed, BASE_SLOT + 20, Duration::from_secs(6)).await.ok().flatten();
        if reached.is_some() {
            break;
        }
    }
    assert!(reached >= Some(BASE_SLOT + 20), "{reached:?}");
    let (mut second, mut third) = (asker.clone(), asker.clone());
    let (a, b, c) = tokio::join!(
        sample(&mut asker, &stream, workload.pairs, 7),
        sample(&mut second, &stream, workload.pairs, 8),
        sample(&mut third, &stream, workload.pairs, 9),
    );
    let (mut samples, mut derived) = (Vec::new(), Vec::new());
    for (found, told) in [a, b, c] {
        samples.extend(found);
        derived.extend(told);
    }
    let end = end(&stream);
    service.wait_for_slot(end.slot);
    let all: Vec<u64> = (0..workload.pairs).collect();
    let confirmed = asker.look(&all, Commitment::Confirmed, Some(end.slot)).await.unwrap();
    for commitment in [Commitment::Processed, Commitment::Finalized] {
        let found = asker.look(&all, commitment, Some(end.slot)).await.unwrap();
        assert_eq!((found.slot, &found.values), (end.slot, &confirmed.values), "{commitment:?}");
    }
    let refused = asker.get(Commitment::Confirmed, end.slot + 1, Duration::from_millis(400)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&format!("slot={}", end.slot)), "{refused}");
    for reason in ["committed", "abandoned", "dead"] {
        let dropped = service.metric(&format!("solkv_overlay_banks_dropped_total{{reason=\"{reason}\"}}"));
        assert!(dropped > Some(0.0), "{reason}: {dropped:?}");
    }
    assert_eq!(service.metric("solkv_finalized_slot"), Some(end.slot as f64));
    let history = history(&stream, end.slot).await;
    verify(&samples, &history, &all, workload.seed);
    verify_derived(&derived, &history, &all, workload.seed);

    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    let mut again = Service::start(&dir, &options, &geyser, &[]);
    again.wait_for_slot(end.slot);
    let mut asker = connect(&again, workload.seed).await;
    let refused = asker.look(&all, Commitment::Finalized, None).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unavailable, "what was applied before the start may not be final: {refused}");
    assert_eq!(asker.look(&all, Commitment::Processed, None).await.err().unwrap().code(), Code::FailedPrecondition);
    assert_eq!(asker.look(&all, Commitment::Unspecified, None).await.unwrap().values, confirmed.values);
    assert!(again.terminate().success());
    stream.stop().unwrap();
}

async fn connect(service: &Service, seed: u64) -> Asker {
    let client = KvClient::connect(format!("http://{}", service.listen)).await.unwrap();
    Asker { client, pairs: Pairs::new(seed) }
}

/// Asks at each commitment for as long as the stream goes on.
async fn sample(asker: &mut Asker, stream: &Stream, pairs: u64, seed: u64) -> (Vec<Sample>, Vec<Derived>) {
    let (mut samples, mut derived) = (Vec::new(), Vec::new());
    let mut rng = Rng::new(seed);
    while stream.outcome().unwrap().is_none() {
        let keys: Vec<u64> = (0..KEYS).map(|_| rng.below(pairs)).collect();
        let mut last = 0;
        // The least settled commitment comes last, so each answer can only be newer than the one before it.
        for commitment in [Commitment::Finalized, Commitment::Confirmed, Commitment::Processed] {
            match asker.look(&keys, commitment, None).await {
                Ok(mut found) => {
                    if commitment == Commitment::Processed {
                        // An answer that is ahead of the engine even now came from the overlay.
                        let confirmed = asker.get(Commitment::Confirmed, 0, Duration::from_secs(60)).await.unwrap();
                        found.exact = Some(found.slot) > confirmed;
                    }
                    assert!(found.slot >= last, "{commitment:?} is behind: {} < {last}", found.slot);
                    last = found.slot;
                    // Of the newest slots, because older ones are the same at all commitments.
                    let (n, value) = (found.keys[0], found.values.iter().flatten().next().cloned().unwrap());
                    let at = found.slot - rng.below(10).min(found.slot - BASE_SLOT);
                    derived.push(asker.keys_of(value, commitment).await.unwrap());
                    match asker.get_at(n, at, commitment).await {
                        Ok(past) => derived.push(past),
                        // A shorter fork has taken the place of the one that had the slot.
                        Err(status) => {
                            assert_eq!((commitment, status.code()), (Commitment::Processed, Code::FailedPrecondition));
                        }
                    }
                    samples.push(found);
                }
                Err(status) if commitment == Commitment::Finalized => assert_eq!(status.code(), Code::Unavailable),
                Err(status) => panic!("{commitment:?}: {status}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    (samples, derived)
}

/// Returns the writes of each slot of the chain, ascending, as the stream itself replays them.
async fn history(stream: &Stream, end: u64) -> Vec<(u64, Writes)> {
    let request = SubscribeRequest {
        accounts: HashMap::from([("all".to_owned(), SubscribeRequestFilterAccounts::default())]),
        blocks_meta: HashMap::from([("meta".to_owned(), SubscribeRequestFilterBlocksMeta::default())]),
        commitment: Some(CommitmentLevel::Confirmed as i32),
        from_slot: Some(BASE_SLOT),
        ..Default::default()
    };
    let builder = GeyserGrpcClient::build_from_shared(format!("http://{}", stream.address())).unwrap();
    let mut updates = builder.connect().await.unwrap().subscribe_once(request).await.unwrap();
    let mut slots = Vec::new();
    let mut writes = Writes::new();
    while slots.last().is_none_or(|(slot, _)| *slot < end) {
        match updates.next().await.expect("the replay goes on").expect("the replay is not cut").update_oneof {
            Some(UpdateOneof::Account(update)) => {
                let account = update.account.unwrap();
                writes.insert(account.pubkey, (account.lamports > 0).then_some(account.owner));
            }
            Some(UpdateOneof::BlockMeta(meta)) => slots.push((meta.slot, std::mem::take(&mut writes))),
            _ => {}
        }
    }
    slots
}

/// Checks each sample against the state at its slot.
fn verify(samples: &[Sample], history: &[(u64, Writes)], all: &[u64], seed: u64) {
    let pairs = Pairs::new(seed);
    let key = |index: u64| pairs.key(index).to_vec();
    let mut state: Writes = all.iter().map(|index| (key(*index), Some(pairs.value(*index, 0).to_vec()))).collect();
    let mut verified: HashMap<Commitment, u64> = HashMap::new();
    for (slot, writes) in history {
        state.extend(writes.iter().map(|(key, value)| (key.clone(), value.clone())));
        for sample in samples.iter().filter(|sample| sample.slot == *slot) {
            if sample.exact {
                let expected: Values = sample.keys.iter().map(|index| state[&key(*index)].clone()).collect();
                assert_eq!(sample.values, expected, "{:?} at slot={slot}", sample.commitment);
            }
            *verified.entry(sample.commitment).or_default() += u64::from(sample.exact);
        }
    }
    let behind = samples.windows(2).filter(|pair| {
        pair[0].commitment == Commitment::Finalized
            && pair[1].commitment == Commitment::Confirmed
            && pair[1].slot > pair[0].slot
    });
    assert!(behind.count() > 20, "finalized is behind");
    for commitment in [Commitment::Processed, Commitment::Finalized] {
        assert!(verified.get(&commitment) > Some(&20), "{verified:?}");
    }
}

/// Checks each answer of a derived store against the states at the slots that it names.
fn verify_derived(derived: &[Derived], history: &[(u64, Writes)], all: &[u64], seed: u64) {
    let pairs = Pairs::new(seed);
    let key = |index: u64| pairs.key(index).to_vec();
    let mut state: Writes = all.iter().map(|index| (key(*index), Some(pairs.value(*index, 0).to_vec()))).collect();
    let mut states = BTreeMap::from([(BASE_SLOT, state.clone())]);
    for (slot, writes) in history {
        state.extend(writes.iter().map(|(key, value)| (key.clone(), value.clone())));
        states.insert(*slot, state.clone());
    }
    let mut verified: HashMap<(Commitment, bool), u64> = HashMap::new();
    for Derived { commitment, slot, told } in derived {
        // A bank of a fork is not among the slots of the chain.
        let Some(state) = states.get(slot) else { continue };
        match told {
            Told::Keys { value, keys } => {
                let has = state.iter().filter(|(_, of)| of.as_ref() == Some(value)).map(|(key, _)| key);
                let (expected, found): (HashSet<_>, HashSet<_>) = (has.collect(), keys.iter().collect());
                assert_eq!(found, expected, "{commitment:?} at slot={slot}");
                assert_eq!(found.len(), keys.len(), "{commitment:?} at slot={slot}");
            }
            Told::Past { key: n, at, value, until_slot } => {
                let of = |state: &Writes| state.get(&key(*n)).cloned().flatten();
                let expected = of(states.range(..=at).next_back().unwrap().1);
                let until =
                    states.range(at + 1..).take_while(|(at, _)| *at <= slot).find(|(_, state)| of(state) != expected);
                assert_eq!((value, until_slot), (&expected, &until.map(|(slot, _)| *slot)), "{commitment:?} {told:?}");
            }
        }
        *verified.entry((*commitment, matches!(told, Told::Keys { .. }))).or_default() += 1;
    }
    for commitment in [Commitment::Processed, Commitment::Confirmed, Commitment::Finalized] {
        for keys in [true, false] {
            assert!(verified.get(&(commitment, keys)) > Some(&20), "{verified:?}");
        }
    }
}
