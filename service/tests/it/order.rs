//! Servers that send the parts of a slot in another order than a stock server, leave a confirmation out, or lack a slot and
//! end each stream soon.

use std::time::Duration;

use loadgen::stream::account::{Account, Extract};
use proto::v1::GetManyRequest;
use proto::v1::kv_client::KvClient;
use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use crate::scripted::{Manner, Scripted, Slot, is_confirmation, slot_of};
use crate::support::{BASE_SLOT, Service, client_runtime, columns, load, wait_for};

/// Slots in which the key of each number gets the slot's number as its value.
fn slots(keys: &[&[u8]]) -> Vec<Slot> {
    let slot = |(number, keys): (u64, &&[u8])| {
        let value = [(number - BASE_SLOT) as u8; 32];
        let write = |key: &u8| ([*key; 32], Account::open(Extract::AccountOwner, &[*key; 32], &value, 1));
        Slot { number, confirmed: true, writes: keys.iter().map(write).collect() }
    };
    (BASE_SLOT + 1..).zip(keys).map(slot).collect()
}

/// Follows a server of this manner to the end of these slots. Returns the value of each of the first nine keys, the log,
/// and the number of connections.
fn follow(keys: &[&[u8]], manner: Manner, more: &[&str]) -> (Vec<u8>, String, f64) {
    let temp = tempfile::tempdir().unwrap();
    let server = Scripted::start_as(slots(keys), manner);
    let (dir, options) = (temp.path().join("store"), columns().remove(0));
    load(&dir, &options, &loadgen::stream::options("--pairs 1").unwrap().0);
    let more = [&["--extract", "account-owner"], more].concat();
    let mut service = Service::start(&dir, &options, &server.url(), &more);
    let last = service.wait_for_slot(BASE_SLOT + keys.len() as u64);
    let reply = client_runtime().block_on(async {
        let mut client = KvClient::connect(format!("http://{}", service.listen)).await.unwrap();
        let keys = (1..10).map(|key| vec![key; 32].into()).collect();
        client.get_many(GetManyRequest { keys, ..Default::default() }).await.unwrap().into_inner()
    });
    assert_eq!(reply.slot, Some(last));
    let values = reply.entries.into_iter().map(|entry| entry.value.map_or(0, |value| value[0])).collect();
    let (log, connects) = (service.log(), service.metric("solkv_connects_total").unwrap());
    assert!(service.terminate().success());
    (values, log, connects)
}

/// Sends the confirmation first, and one account after the block meta.
fn confirmation_first(mut messages: Vec<SubscribeUpdate>) -> Vec<SubscribeUpdate> {
    let at = messages.iter().position(is_confirmation).unwrap();
    let confirmation = messages.remove(at);
    let meta = messages.pop().unwrap();
    let late = messages.pop().unwrap();
    messages.insert(0, confirmation);
    messages.extend([meta, late]);
    messages
}

#[test]
fn an_update_after_the_block_of_a_confirmed_slot_is_not_lost() {
    let manner = Manner { order: confirmation_first, ..Manner::default() };
    let keys: [&[u8]; 5] = [&[1, 2], &[1, 3], &[3, 4], &[4, 5], &[9, 8]];
    let (values, log, _) = follow(&keys, manner, &[]);
    // The last update of all has no next slot to go out with.
    assert_eq!(values, [2, 1, 3, 4, 4, 0, 0, 0, 5]);
    assert!(log.contains("the provider sends slots in part"), "{log}");
}

/// Leaves out the confirmation of one slot.
fn one_unconfirmed(mut messages: Vec<SubscribeUpdate>) -> Vec<SubscribeUpdate> {
    messages.retain(|message| !is_confirmation(message) || slot_of(message) != Some(BASE_SLOT + 3));
    messages
}

#[test]
fn a_block_without_a_confirmation_is_confirmed_by_its_child() {
    let manner = Manner { order: one_unconfirmed, ..Manner::default() };
    let keys: [&[u8]; 5] = [&[1], &[2], &[3], &[4], &[5]];
    // The slot would wait until this.
    let (values, _, connects) = follow(&keys, manner, &["--gap-timeout", "1h"]);
    assert_eq!((values, connects), (vec![1, 2, 3, 4, 5, 0, 0, 0, 0], 1.0));
}

#[test]
fn confirmations_that_run_far_ahead_of_the_slots_are_no_gap() {
    let manner = Manner { confirmed_ahead: 2000, pace: Duration::from_millis(100), ..Manner::default() };
    let keys: Vec<&[u8]> = vec![&[1]; 45];
    let (values, log, connects) = follow(&keys, manner, &["--gap-timeout", "3s"]);
    assert_eq!((values[0], connects), (45, 1.0));
    assert!(!log.contains("gap:"), "{log}");
}

/// Starts a server that lacks the first of these slots and ends each stream soon, and a service that follows it. `more` are
/// further options of the service.
fn follow_one_that_forgets(slots: &[Slot], more: &[&str]) -> (Service, Scripted, tempfile::TempDir) {
    let temp = tempfile::tempdir().unwrap();
    let manner = Manner { forgets: true, pace: Duration::from_millis(100), ..Manner::default() };
    let server = Scripted::start_as(slots[1..].to_vec(), manner);
    let (dir, options) = (temp.path().join("store"), columns().remove(0));
    load(&dir, &options, &loadgen::stream::options("--pairs 1").unwrap().0);
    let more = [&["--extract", "account-owner"], more].concat();
    (Service::start(&dir, &options, &server.url(), &more), server, temp)
}

#[test]
fn a_missing_slot_is_a_gap_although_the_server_ends_each_stream_sooner() {
    let slots = slots(&[&[1][..]; 6]);
    let (mut service, _server, _temp) = follow_one_that_forgets(&slots, &["--gap-timeout", "2s"]);
    let gap = wait_for("a gap", || Some(service.status()["gap"].clone()).filter(|gap| !gap.is_null()));
    assert_eq!(gap["first_slot"], BASE_SLOT + 1, "{gap}");
    assert!(gap["detail"].as_str().unwrap().contains("over gap_timeout=2s"), "{gap}");
    assert!(service.metric("solkv_connects_total") >= Some(3.0), "no stream lasts as long");
    assert_eq!(service.slot(), Some(BASE_SLOT));
    assert!(service.terminate().success());
}

#[test]
fn slots_without_their_parent_are_no_progress_and_another_provider_is_asked() {
    let slots = slots(&[&[1][..]; 6]);
    let whole = Scripted::start(slots.clone());
    let (mut service, _server, _temp) =
        follow_one_that_forgets(&slots, &["--gap-timeout", "1h", "--geyser", &whole.url()]);
    service.wait_for_slot(BASE_SLOT + 6);
    assert!(service.terminate().success());
}
