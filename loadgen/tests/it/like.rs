//! The kinds of server that a stream is like, their limits, and compression.

use std::collections::BTreeMap;

use futures::StreamExt;
use solkv_loadgen::stream::Stream;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Status};
use yellowstone_grpc_client::GeyserGrpcClient;
use yellowstone_grpc_proto::geyser::geyser_client::GeyserClient;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    GetVersionRequest, SlotStatus, SubscribeReplayInfoRequest, SubscribeRequest, SubscribeUpdate,
};

use crate::model::{Model, connect, drain, follow, start, subscription};

/// Fifty slots, of which the server keeps twenty.
const LINE: &str = "--pairs 100 --events 2000 --events-per-slot 40 --replay-slots 20";

/// Returns the error that ends a subscription.
async fn ends_with(client: &mut GeyserGrpcClient, request: SubscribeRequest) -> Status {
    let mut updates = match client.subscribe_once(request).await {
        Ok(updates) => updates,
        Err(error) => match error {
            yellowstone_grpc_client::GeyserGrpcClientError::TonicStatus(status) => return status,
            other => panic!("{other}"),
        },
    };
    loop {
        if let Err(status) = updates.next().await.expect("a status at the end") {
            return status;
        }
    }
}

/// Plays the stream to its end, and returns it with its last slot.
async fn played(line: &str) -> (Stream, u64) {
    let (stream, workload) = start(line);
    let mut model = Model::new(&workload);
    let (_, end) = follow(&stream, &mut model, subscription(None)).await;
    assert_eq!(model.digest(), end.digest, "the map does not depend on the order");
    (stream, end.slot)
}

/// Returns the updates of a replay from a slot to another one's block meta.
async fn replayed(stream: &Stream, from_slot: u64, to_slot: u64) -> Vec<SubscribeUpdate> {
    let mut updates = connect(stream).await.subscribe_once(subscription(Some(from_slot))).await.unwrap();
    let mut seen = Vec::new();
    let mut ends = false;
    while !ends {
        let update = updates.next().await.unwrap().unwrap();
        ends = matches!(&update.update_oneof, Some(UpdateOneof::BlockMeta(meta)) if meta.slot == to_slot);
        seen.push(update);
    }
    seen
}

/// Returns a letter for each message about a slot: p, c, f for its statuses, a for accounts, m for its block meta.
fn letters(updates: &[SubscribeUpdate]) -> BTreeMap<u64, String> {
    let mut letters = BTreeMap::<u64, String>::new();
    for update in updates {
        let (slot, letter) = match update.update_oneof.as_ref().unwrap() {
            UpdateOneof::Account(account) => (account.slot, 'a'),
            UpdateOneof::BlockMeta(meta) => (meta.slot, 'm'),
            UpdateOneof::Slot(slot) => match slot.status() {
                SlotStatus::SlotProcessed => (slot.slot, 'p'),
                SlotStatus::SlotConfirmed => (slot.slot, 'c'),
                SlotStatus::SlotFinalized => (slot.slot, 'f'),
                other => panic!("{other:?}"),
            },
            _ => continue,
        };
        let of_slot = letters.entry(slot).or_default();
        if letter != 'a' || !of_slot.ends_with('a') {
            of_slot.push(letter);
        }
    }
    letters
}

#[tokio::test]
async fn a_lost_slot_is_told_in_the_words_of_the_server() {
    for (like, code, words) in [
        ("yellowstone", Code::OutOfRange, "broadcast from 1000 is not available, last available: 1030"),
        ("richat", Code::InvalidArgument, "failed to get replay position for slot 1000"),
        ("laserstream", Code::DataLoss, "slot 1000 is not in the replay window"),
    ] {
        let (stream, _) = played(&format!("{LINE} --like {like}")).await;
        let status = ends_with(&mut connect(&stream).await, subscription(Some(1000))).await;
        assert_eq!((status.code(), status.message()), (code, words));
        stream.stop().unwrap();
    }
}

#[tokio::test]
async fn the_orders_of_a_slots_messages_are_those_of_the_server() {
    for (like, first, order) in [("yellowstone", 'a', "ampcf"), ("richat", 'p', "pcfam"), ("laserstream", 'p', "pcfam")]
    {
        let (stream, last) = played(&format!("{LINE} --like {like}")).await;
        let updates = replayed(&stream, last - 9, last).await;
        let of_slots = letters(&updates);
        // The statuses of the last slot may come after its block meta.
        assert!(of_slots.range(last - 9..last).all(|(_, letters)| letters == order), "{like}: {of_slots:?}");
        assert!(of_slots[&last].starts_with(first), "{like}: {of_slots:?}");
        let is_status = |update: &&SubscribeUpdate| matches!(update.update_oneof, Some(UpdateOneof::Slot(_)));
        let is_content = |update: &SubscribeUpdate| matches!(update.update_oneof, Some(UpdateOneof::Account(_)));
        let content = updates.iter().position(is_content).unwrap();
        let ahead = updates[..content].iter().filter(is_status).count();
        assert_eq!(
            ahead,
            match like {
                "laserstream" => 30,
                "richat" => 3,
                _ => 0,
            },
            "{like}"
        );
        stream.stop().unwrap();
    }
}

#[tokio::test]
async fn an_update_of_a_richat_like_stream_comes_after_its_block_meta_and_a_replay_has_it_before() {
    let line = "--pairs 100 --events 800 --events-per-slot 40 --start-slot 1490 --like richat";
    let (stream, workload) = start(line);
    let mut updates = connect(&stream).await.subscribe_once(subscription(None)).await.unwrap();
    let mut seen = Vec::new();
    while letters(&seen).last_key_value().is_none_or(|(slot, _)| *slot < workload.start_slot + 15) {
        seen.push(updates.next().await.unwrap().unwrap());
    }
    let live = letters(&seen);
    assert_eq!((live[&1500].as_str(), live[&1499].as_str()), ("pcama", "pcam"), "{live:?}");
    let again = letters(&replayed(&stream, 1499, 1501).await);
    assert_eq!(again[&1500].trim_start_matches(['p', 'c', 'f']), "am", "{again:?}");
    stream.stop().unwrap();
}

#[tokio::test]
async fn statuses_of_a_replay_are_stamped_anew_and_content_is_not() {
    let (stream, last) = played(LINE).await;
    let updates = replayed(&stream, last - 3, last).await;
    let time = |update: &SubscribeUpdate| {
        let at = update.created_at.unwrap();
        (at.seconds, at.nanos)
    };
    let newest_content = updates.iter().filter(|update| !matches!(update.update_oneof, Some(UpdateOneof::Slot(_))));
    let newest_content = newest_content
        .filter(|update| !matches!(update.update_oneof, Some(UpdateOneof::Ping(_))))
        .map(time)
        .max()
        .unwrap();
    let mut statuses = updates.iter().filter(|update| matches!(update.update_oneof, Some(UpdateOneof::Slot(_))));
    assert!(statuses.all(|update| time(update) > newest_content), "{updates:?}");
    stream.stop().unwrap();
}

#[tokio::test]
async fn places_calls_filters_and_bank_ids_are_limited_as_asked() {
    let limits = "--subscriptions-max 1 --unary-disabled --filter-limits sample --no-bank-ids";
    let (stream, _) = start(&format!("{LINE} {limits}"));
    let mut client = connect(&stream).await;
    let mut narrow = subscription(None);
    narrow.accounts.get_mut("all").unwrap().owner.push(bs58::encode([7; 32]).into_string());
    let mut held = client.subscribe_once(narrow.clone()).await.unwrap();
    let mut metas = 0;
    while metas < 3 {
        match held.next().await.unwrap().unwrap().update_oneof.unwrap() {
            UpdateOneof::BlockMeta(meta) => {
                metas += 1;
                assert_eq!(meta.bank_id, 0);
            }
            UpdateOneof::Slot(slot) => assert_eq!(slot.bank_id, None),
            _ => {}
        }
    }
    let status = ends_with(&mut client, narrow.clone()).await;
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "max subscription limit exceeded"));
    drop(held);
    let mut plain = GeyserClient::connect(format!("http://{}", stream.address())).await.unwrap();
    let status = plain.subscribe_replay_info(SubscribeReplayInfoRequest {}).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unimplemented, "method disabled"));
    let mut of_system = narrow.clone();
    of_system.accounts.get_mut("all").unwrap().owner.push(bs58::encode([0; 32]).into_string());
    for (request, words) in [
        (subscription(None), "Subscribe on full stream with `any` is not allowed, at least one filter required"),
        (of_system, "Pubkey 11111111111111111111111111111111 in filters is not allowed"),
    ] {
        let status = loop {
            let status = ends_with(&mut client, request.clone()).await;
            // The server notices a moment later that the first client has gone.
            if status.code() != Code::ResourceExhausted {
                break status;
            }
        };
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), format!("failed to create filter: {words}"));
    }
    stream.stop().unwrap();
}

#[tokio::test]
async fn messages_are_compressed_for_clients_that_accept_it_and_requests_may_be() {
    let (zstd, gzip) = (CompressionEncoding::Zstd, CompressionEncoding::Gzip);
    for (option, accepts, sent) in [
        ("stock", None, None),
        ("stock", Some(zstd), Some("zstd")),
        ("stock", Some(gzip), Some("gzip")),
        ("none", Some(zstd), None),
    ] {
        let (stream, _) = start(&format!("{LINE} --compression {option}"));
        let client = GeyserClient::connect(format!("http://{}", stream.address())).await.unwrap();
        let mut client = match accepts {
            Some(encoding) => client.accept_compressed(encoding).send_compressed(encoding),
            None => client,
        };
        client.get_version(GetVersionRequest {}).await.unwrap();
        let requests = futures::stream::iter([subscription(None)]).chain(futures::stream::pending());
        let response = client.subscribe(requests).await.unwrap();
        let encoding = response.metadata().get("grpc-encoding").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(encoding.as_deref(), sent, "{option} {accepts:?}");
        let mut updates = response.into_inner();
        let mut accounts = 0;
        while accounts < 1000 {
            let update = updates.message().await.unwrap().unwrap();
            accounts += u64::from(matches!(update.update_oneof, Some(UpdateOneof::Account(_))));
        }
        stream.stop().unwrap();
    }
    let (stream, _) = start(&format!("{LINE} --compression zstd"));
    let status = ends_with(&mut connect(&stream).await, subscription(None)).await;
    assert_eq!(status.message(), "Content is compressed with `zstd` which isn't supported");
    stream.stop().unwrap();
}

#[tokio::test]
async fn what_comes_twice_at_the_end_of_a_replay_changes_nothing() {
    // All slots: while it is cut off, the stream goes on by more than a few.
    let line = LINE.replace("--replay-slots 20", "--replay-slots 100");
    let (stream, workload) = start(&format!("{line} --duplicates --disconnect-every 700"));
    let mut model = Model::new(&workload);
    let (connections, end) = follow(&stream, &mut model, subscription(None)).await;
    assert!(connections > 1);
    let mut updates = connect(&stream).await.subscribe_once(subscription(Some(end.slot - 5))).await.unwrap();
    drain(&stream, &mut model, &mut updates, end.slot).await;
    assert_eq!(model.digest(), end.digest);
    stream.stop().unwrap();
}
