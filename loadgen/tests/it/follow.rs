//! A follower ends up with the state that the stream announces, whatever faults occur on the way.

use crate::model::{Model, follow, start, subscription};
use solkv_loadgen::stream::Final;
use solkv_loadgen::stream::account::SYSTEM_PROGRAM;
use yellowstone_grpc_proto::geyser::subscribe_request_filter_accounts_filter::Filter;
use yellowstone_grpc_proto::geyser::{
    SubscribeRequest, SubscribeRequestAccountsDataSlice, SubscribeRequestFilterAccounts,
    SubscribeRequestFilterAccountsFilter,
};

const SMALL: &str = "--pairs 5000 --seed 3 --events 20000 --events-per-slot 400 --unknown-share 0.05 --change-share 0.2 \
                     --close-share 0.05";

/// Follows a whole stream. Returns the model, the number of connections, and the end that the stream states.
async fn whole(line: &str, slice: Option<u64>) -> (Model, u32, Final) {
    let (stream, workload) = start(line);
    let mut model = Model::new(&workload);
    model.slice = slice.map(|offset| offset as usize);
    let mut request = subscription(None);
    request.accounts_data_slice =
        slice.iter().map(|&offset| SubscribeRequestAccountsDataSlice { offset, length: 32 }).collect();
    let (connections, end) = follow(&stream, &mut model, request).await;
    stream.stop().unwrap();
    (model, connections, end)
}

#[tokio::test]
async fn a_follower_has_the_digest_and_two_runs_agree() {
    let (model, connections, end) = whole(SMALL, None).await;
    assert_eq!((connections, model.received, end.events), (1, 20_000, 20_000));
    assert_eq!(model.digest(), end.digest);
    let (again, _, same) = whole(SMALL, None).await;
    assert_eq!((again.digest(), same.slot), (end.digest.clone(), end.slot));
    let (_, _, other) = whole(&SMALL.replace("--seed 3", "--seed 4"), None).await;
    assert_ne!(other.digest, end.digest);
}

#[tokio::test]
async fn every_extractor_finds_the_value_whole_or_sliced() {
    for (extract, slice) in [("token-owner", None), ("token-owner", Some(32)), ("token-mint", Some(0))] {
        let (model, _, end) = whole(&format!("{SMALL} --extract {extract} --skew zipfian:0.99"), slice).await;
        assert_eq!(model.digest(), end.digest, "extract={extract} slice={slice:?}");
    }
}

#[tokio::test]
async fn an_account_that_leaves_the_token_programs_is_sent_to_those_who_ask_for_all() {
    let line = format!("{SMALL} --extract token-owner --leave-share 0.1");
    let (model, _, end) = whole(&line, None).await;
    assert_eq!(model.digest(), end.digest);
    let (stream, workload) = start(&line);
    let token = SubscribeRequestFilterAccounts {
        filters: vec![SubscribeRequestFilterAccountsFilter { filter: Some(Filter::TokenAccountState(true)) }],
        ..Default::default()
    };
    let closed = SubscribeRequestFilterAccounts {
        owner: vec![bs58::encode(SYSTEM_PROGRAM).into_string()],
        ..Default::default()
    };
    let accounts = [("token".to_owned(), token), ("closed".to_owned(), closed)].into();
    let mut model = Model::new(&workload);
    let (_, end) = follow(&stream, &mut model, SubscribeRequest { accounts, ..subscription(None) }).await;
    assert_ne!(model.digest(), end.digest, "a multisig or a mint is sent to nobody who asks for token accounts");
    stream.stop().unwrap();
}

#[tokio::test]
async fn faults_change_nothing_of_the_final_map() {
    let faults = "--disconnect-every 1700 --dead-every 5 --skip-every 7 --out-of-order-every 6 --duplicates";
    let (model, connections, end) = whole(&format!("{SMALL} {faults}"), None).await;
    assert_eq!(model.digest(), end.digest);
    assert!(connections > 5, "connections={connections}");
    assert!(model.received > 20_000, "replays send slots again: received={}", model.received);
    assert!(model.order.windows(2).any(|pair| pair[0] > pair[1]), "a slot comes after later ones");
}

#[tokio::test]
async fn a_missing_slot_stops_a_follower_at_its_parent() {
    let (stream, workload) = start(&format!("{SMALL} --gap-at 1020 --replay-slots 100000"));
    let mut model = Model::new(&workload);
    let mut client = crate::model::connect(&stream).await;
    let mut updates = client.subscribe_once(subscription(None)).await.unwrap();
    let end = crate::model::drain(&stream, &mut model, &mut updates, 1049).await;
    let gap = end.gap.expect("a gap was asked for");
    assert_eq!((gap.slot, gap.parent_slot, model.applied), (1020, 1019, 1019));
    assert_eq!(model.digest(), gap.digest);
    assert!(!model.order.contains(&1020) && model.order.contains(&1021));
    stream.stop().unwrap();
}

#[tokio::test]
async fn known_keys_may_come_from_a_file_of_real_mints() {
    let mints = "tests/data/mints.txt";
    let (stream, workload) = start(&format!("--keys {mints} --base-empty --events 30000 --extract token-mint"));
    let mut model = Model::new(&workload);
    let (_, end) = follow(&stream, &mut model, subscription(None)).await;
    assert_eq!(model.digest(), end.digest);
    stream.stop().unwrap();
}
