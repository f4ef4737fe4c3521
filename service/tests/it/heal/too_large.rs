//! Heals with more changes than the feed keeps: the feed leaves them out, and every subscriber begins with a dump.

use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{DumpThenTail, SubscribeRequest};
use tonic::{Code, Status};

use super::{OUTAGE, Run, Subscriber, wait_for_need};
use crate::feed::{Follower, Map, UNKNOWN, request, subscribe};
use crate::support::{BASE_SLOT, Service, client_runtime, columns, wait_for};

/// Some 570 changes, of the thousand and more that the heal takes.
const SMALL: [&str; 4] = ["--commit-every", "5", "--feed-retention-bytes", "64kB"];

/// Follows the feed from the change `seq` on, and returns the slots of the changes that came and the refusal that ended it.
async fn follow(run: &Run, seq: u64, feed_id: Option<u64>) -> (Option<u64>, Vec<u64>, Status) {
    let asked = SubscribeRequest { feed_id, ..request(Start::FromSeq(seq)) };
    let (mut known, mut slots) = (feed_id, Vec::new());
    let mut messages = match subscribe(&run.uds, asked).await {
        Ok(messages) => messages,
        Err(refused) => return (known, slots, refused),
    };
    loop {
        match messages.message().await {
            Ok(message) => match message.and_then(|message| message.kind).expect("a feed has no end") {
                Kind::Started(started) => known = Some(started.feed_id),
                Kind::Changes(changes) => slots.extend(changes.changes.iter().map(|change| change.slot)),
                _ => {}
            },
            Err(refused) => return (known, slots, refused),
        }
    }
}

/// Starts a service that waits for an archive, with a subscriber at the store's newest change. Writes the archive and lets
/// `then` go on with the service. Returns its result, the store's newest change, and the subscriber's feed, slots and refusal.
fn heal_beside_a_subscriber<T>(
    run: &Run,
    mut service: Service,
    then: impl FnOnce(Service) -> T,
) -> (T, u64, (Option<u64>, Vec<u64>, Status)) {
    let (needed, _) = wait_for_need(&mut service, "there is none");
    let seq = service.metric("solkv_checkpoint_seq").unwrap() as u64;
    let (result, followed) = std::thread::scope(|scope| {
        let live = scope.spawn(|| client_runtime().block_on(follow(run, seq + 1, None)));
        wait_for("the subscriber", || service.metric("solkv_feed_subscribers").filter(|count| *count == 1.0));
        run.archive(needed - BASE_SLOT);
        (then(service), live.join().unwrap())
    });
    assert!(followed.1.is_empty(), "a part of the heal was sent: {:?}", followed.1);
    (result, seq, followed)
}

#[test]
fn a_heal_that_exceeds_the_feeds_retention_ends_with_a_dump() {
    for options in columns() {
        let run = Run::new(options);
        run.fall_behind(OUTAGE);
        let (mut service, _, (_, _, refused)) = heal_beside_a_subscriber(&run, run.start(&SMALL), |service| service);
        assert!(refused.code() == Code::OutOfRange && refused.message().contains("dump_then_tail"), "{refused:?}");
        assert!(service.metric("solkv_heal_differences").unwrap() > 600.0);
        let healed = |log: String| log.contains("the store is healed").then_some(log);
        let log = wait_for("the line of the heal's end", || healed(service.log()));
        let said = log.find("exceed feed_retention_bytes, so that the feed leaves them out").expect(&log);
        assert!(said < log.find("the store is healed").expect(&log), "it is said before: {log}");
        let dump = Start::DumpThenTail(DumpThenTail {});
        let subscriber = Subscriber::start(Follower::new(&run.uds, 4, dump, (Map::new(), UNKNOWN)));
        let end = run.reach_end(&mut service);
        run.finish_with(service, &end, subscriber);
    }
}

#[test]
fn killed_in_a_heal_that_exceeds_the_retention_it_begins_a_new_feed() {
    for options in columns() {
        let run = Run::new(options);
        run.fall_behind(OUTAGE);
        let (_, seq, (feed, ..)) = heal_beside_a_subscriber(&run, run.start(&SMALL), |mut service| {
            wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
            service.kill();
        });
        let mut service = run.start(&SMALL);
        wait_for("the end of the heal", || service.metric("solkv_heals_total").filter(|heals| *heals == 1.0));
        let (_, _, refused) = client_runtime().block_on(follow(&run, seq + 1, feed));
        assert!(
            refused.code() == Code::FailedPrecondition && refused.message().contains("another feed"),
            "{refused:?}"
        );
        let dump = Start::DumpThenTail(DumpThenTail {});
        let subscriber = Subscriber::start(Follower::new(&run.uds, 4, dump, (Map::new(), UNKNOWN)));
        let end = run.reach_end(&mut service);
        run.finish_with(service, &end, subscriber);
    }
}
