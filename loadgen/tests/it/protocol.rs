//! Corner cases of the protocol, with the public server's answers.

use std::time::Duration;

use crate::model::{Model, connect, drain, follow, start, subscription};
use futures::{SinkExt, StreamExt};
use prost_types::Timestamp;
use solkv_loadgen::stream::Stream;
use tonic::Code;
use yellowstone_grpc_client::GeyserGrpcClient;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    CommitmentLevel, SlotStatus, SubscribeRequest, SubscribeRequestFilterEntry, SubscribeRequestPing,
    SubscribeUpdateBlockMeta,
};

const LINE: &str = "--pairs 100 --events 2000 --events-per-slot 50 --replay-slots 10";

/// Returns the status that ends a subscription.
async fn refusal(stream: &Stream, request: SubscribeRequest) -> (Code, String) {
    let mut client = connect(stream).await;
    let mut updates = client.subscribe_once(request).await.unwrap();
    loop {
        match updates.next().await {
            Some(Ok(_)) => {}
            Some(Err(status)) => return (status.code(), status.message().to_owned()),
            None => return (Code::Ok, String::new()),
        }
    }
}

#[tokio::test]
async fn the_replay_window_is_bounded_and_says_so() {
    let (stream, workload) = start(LINE);
    let mut model = Model::new(&workload);
    let (_, end) = follow(&stream, &mut model, subscription(None)).await;
    let mut client = connect(&stream).await;
    let first = client.subscribe_replay_info().await.unwrap().first_available.unwrap();
    assert_eq!(first, end.slot - 9);
    let (code, text) = refusal(&stream, subscription(Some(first - 1))).await;
    assert_eq!(code, Code::OutOfRange);
    assert_eq!(text, format!("broadcast from {} is not available, last available: {first}", first - 1));
    let (code, text) = refusal(&stream, subscription(Some(end.slot + 1))).await;
    assert_eq!((code, text.as_str()), (Code::Internal, "failed to get replay response"));
    let mut again = Model::new(&workload);
    let mut updates = client.subscribe_once(subscription(Some(first))).await.unwrap();
    drain(&stream, &mut again, &mut updates, end.slot).await;
    assert_eq!(again.order, (first..=end.slot).collect::<Vec<_>>());
    stream.stop().unwrap();
}

/// Returns the block metas up to slot `last`, each with the time of its creation.
async fn metas(stream: &Stream, from_slot: Option<u64>, last: u64) -> Vec<(SubscribeUpdateBlockMeta, Timestamp)> {
    let mut client = connect(stream).await;
    let mut updates = client.subscribe_once(subscription(from_slot)).await.unwrap();
    let mut metas = Vec::new();
    while metas.last().is_none_or(|(meta, _): &(SubscribeUpdateBlockMeta, _)| meta.slot < last) {
        let update = updates.next().await.unwrap().unwrap();
        if let Some(UpdateOneof::BlockMeta(meta)) = update.update_oneof {
            metas.push((meta, update.created_at.unwrap()));
        }
    }
    metas
}

/// A follower measures its lag by these times: a slot is not younger because it is sent again.
#[tokio::test]
async fn a_slot_that_is_sent_again_has_the_time_at_which_it_was_made() {
    let (stream, _) = start(LINE);
    let first = metas(&stream, None, 1039).await;
    let again = metas(&stream, Some(1030), 1039).await;
    assert_eq!(again, first[30..]);
    stream.stop().unwrap();
}

#[tokio::test]
async fn a_lie_is_the_blockhash_of_one_slot_whenever_it_is_sent() {
    let (stream, _) = start(&format!("{LINE} --lies-at 1035"));
    for from_slot in [None, Some(1030)] {
        let metas = metas(&stream, from_slot, 1039).await;
        let wrong = metas.windows(2).filter(|pair| pair[0].0.blockhash != pair[1].0.parent_blockhash);
        assert!(wrong.map(|pair| pair[0].0.slot).eq([1035]), "{metas:?}");
    }
    stream.stop().unwrap();
}

#[tokio::test]
async fn a_first_empty_request_pings_and_a_later_subscription() {
    let (stream, _) = start(LINE);
    let mut client = connect(&stream).await;
    let (mut sink, mut updates) = client.subscribe().await.unwrap();
    let first = updates.next().await.unwrap().unwrap();
    assert!(matches!(first.update_oneof, Some(UpdateOneof::Ping(_))), "the first ping comes at once");
    sink.send(SubscribeRequest::default()).await.unwrap();
    sink.send(SubscribeRequest { ping: Some(SubscribeRequestPing { id: 42 }), ..Default::default() }).await.unwrap();
    let pong = updates.next().await.unwrap().unwrap();
    assert!(matches!(pong.update_oneof, Some(UpdateOneof::Pong(pong)) if pong.id == 42));
    sink.send(subscription(None)).await.unwrap();
    let status = updates.next().await.unwrap().unwrap();
    assert!(matches!(status.update_oneof, Some(UpdateOneof::Slot(slot)) if slot.status() == SlotStatus::SlotProcessed));
    let first = updates.next().await.unwrap().unwrap();
    assert_eq!(first.filters, ["all"]);
    assert!(matches!(first.update_oneof, Some(UpdateOneof::Account(account)) if account.slot == 1000));
    assert!(first.created_at.is_some());
    stream.stop().unwrap();
}

#[tokio::test]
async fn a_wrong_filter_and_a_wrong_token_are_refused() {
    let (stream, _) = start(LINE);
    let mut request = subscription(None);
    request.entry.insert("entries".to_owned(), SubscribeRequestFilterEntry::default());
    let (code, text) = refusal(&stream, request).await;
    assert_eq!(code, Code::InvalidArgument);
    assert!(text.starts_with("failed to create filter: entry"), "{text}");
    stream.stop().unwrap();

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let (stream, _) = start(&format!("{LINE} --x-token-file {}", file.path().display()));
    let mut client = connect(&stream).await;
    let status = client.get_version().await.unwrap_err();
    assert!(status.to_string().contains("No valid auth token"), "{status}");
    let builder = GeyserGrpcClient::build_from_shared(format!("http://{}", stream.address())).unwrap();
    let mut client = builder.x_token(Some("sesame")).unwrap().connect().await.unwrap();
    assert!(client.get_version().await.unwrap().version.contains("solkv-loadgen"));
    assert_eq!(client.ping(7).await.unwrap().count, 7);
    stream.stop().unwrap();
}

#[tokio::test]
async fn a_server_that_has_just_started_has_nothing_to_replay() {
    // One slot a minute, so that there is none yet.
    let line = "--pairs 100 --events 1000 --events-per-slot 60 --rate 1";
    let (fresh, _) = start(&format!("{line} --no-wait"));
    let mut client = connect(&fresh).await;
    assert_eq!(client.subscribe_replay_info().await.unwrap().first_available, Some(u64::MAX));
    let (code, text) = refusal(&fresh, subscription(Some(999))).await;
    assert_eq!((code, text.as_str()), (Code::Internal, "failed to get replay response"));
    fresh.stop().unwrap();

    let (stream, _) = start(line);
    let mut client = connect(&stream).await;
    assert_eq!(client.subscribe_replay_info().await.unwrap().first_available, Some(999), "the slot before the first");
    stream.stop().unwrap();

    let (without, _) = start(&format!("{line} --replay-slots 0"));
    let mut client = connect(&without).await;
    assert_eq!(client.subscribe_replay_info().await.unwrap().first_available, None);
    let (code, text) = refusal(&without, subscription(Some(999))).await;
    assert_eq!((code, text.as_str()), (Code::Internal, "from_slot is not supported"));
    without.stop().unwrap();
}

#[test]
fn a_stream_that_waits_for_nobody_ends_without_a_subscriber_at_any_rate() {
    let (stream, _) = start("--pairs 100 --events 1000 --events-per-slot 10 --no-wait");
    while stream.outcome().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(stream.outcome().unwrap().unwrap().slots, 100);
    stream.stop().unwrap();
}

#[tokio::test]
async fn the_calls_that_answer_once_answer_by_commitment() {
    let (stream, workload) = start(&format!("{LINE} --confirm-after 4 --no-wait --rate 100000"));
    while stream.outcome().unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut client = connect(&stream).await;
    let blockhash = client.get_latest_blockhash(Some(CommitmentLevel::Confirmed)).await.unwrap();
    let height = client.get_block_height(Some(CommitmentLevel::Confirmed)).await.unwrap().block_height;
    assert_eq!(blockhash.last_valid_block_height, height + 300);
    let status = client.is_blockhash_valid(blockhash.blockhash, None).await.unwrap_err();
    assert!(status.to_string().contains("startup"), "{status}");
    assert_eq!(blockhash.slot, stream.outcome().unwrap().unwrap().slot);
    stream.stop().unwrap();

    // Slower than two requests take, so that the newest slots are not confirmed yet.
    let line = format!("--pairs {} --events 100000 --events-per-slot 10 --rate 200 --confirm-after 4", workload.pairs);
    let (stream, _) = start(&format!("{line} --no-wait"));
    let mut client = connect(&stream).await;
    let (processed, confirmed) = loop {
        let confirmed = client.get_slot(Some(CommitmentLevel::Confirmed)).await;
        let processed = client.get_slot(Some(CommitmentLevel::Processed)).await;
        match (processed, confirmed) {
            (Ok(processed), Ok(confirmed)) => break (processed.slot, confirmed.slot),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(processed >= confirmed + 4, "processed={processed} confirmed={confirmed}");
    stream.stop().unwrap();
}

#[tokio::test]
async fn a_commitment_that_there_is_not_is_refused_as_the_public_server_does() {
    let (stream, _) = start(LINE);
    let request = SubscribeRequest { commitment: Some(7), ..subscription(None) };
    let refused = "failed to create CommitmentLevel from 7";
    assert_eq!(refusal(&stream, request).await, (Code::InvalidArgument, format!("failed to create filter: {refused}")));
    let mut raw =
        yellowstone_grpc_proto::geyser::geyser_client::GeyserClient::connect(format!("http://{}", stream.address()))
            .await
            .unwrap();
    let request = yellowstone_grpc_proto::geyser::GetSlotRequest { commitment: Some(7) };
    let status = raw.get_slot(request).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, refused));
    stream.stop().unwrap();
}

#[tokio::test]
async fn at_confirmed_statuses_come_when_they_happen_and_the_content_before_its_own() {
    let (stream, _) = start(&format!("{LINE} --confirm-after 4"));
    let mut updates = connect(&stream).await.subscribe_once(subscription(None)).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let update = updates.next().await.unwrap().unwrap();
        match update.update_oneof {
            Some(UpdateOneof::Slot(slot)) => seen.push((slot.slot, slot.status().as_str_name())),
            Some(UpdateOneof::BlockMeta(meta)) => seen.push((meta.slot, "meta")),
            Some(UpdateOneof::Account(account)) if seen.last() != Some(&(account.slot, "account")) => {
                seen.push((account.slot, "account"));
            }
            _ => {}
        }
        if seen.last() == Some(&(1000, "SLOT_CONFIRMED")) {
            break;
        }
    }
    let processed: Vec<_> = (1000..=1004).map(|slot| (slot, "SLOT_PROCESSED")).collect();
    assert_eq!(seen[..5], processed[..]);
    assert_eq!(seen[5..], [(1000, "account"), (1000, "meta"), (1000, "SLOT_CONFIRMED")]);
    stream.stop().unwrap();
}

#[tokio::test]
async fn at_a_fixed_rate_a_subscriber_that_does_not_read_is_cut_off() {
    let (stream, _) = start("--pairs 5000 --events 2000000 --events-per-slot 2000 --rate 4000000 --replay-slots 2");
    let mut client = connect(&stream).await;
    let mut updates = client.subscribe_once(subscription(None)).await.unwrap();
    updates.next().await.unwrap().unwrap();
    while stream.outcome().unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = loop {
        if let Err(status) = updates.next().await.expect("ends with a status") {
            break status;
        }
    };
    assert_eq!((status.code(), status.message()), (Code::Internal, "lagged to send an update"));
    stream.stop().unwrap();
}
