//! Tests of one worker, turned by hand: the order of its answers, counted in pieces, and the state that each is read
//! from.

use crossbeam_channel::{Sender, bounded};
use engine_api::{Durability, Engine as _};
use engine_latency::Op;
use solana::ChainCheckpoint;
use tokio::sync::oneshot::Receiver as Reply;

use super::*;
use crate::lookups::LOOKUP_QUEUE;
use crate::lookups::tests::Pool;

const KEYS: usize = 1000;

/// Number of keys of the largest batch.
const BATCH: usize = 10_000;

fn key(n: usize) -> Key {
    let mut key = [9; 32];
    key[..8].copy_from_slice(&(n as u64).to_be_bytes());
    key
}

/// Writes the value of `slot` to every key, in one commit.
fn commit_all(pool: &Pool, slot: u64) {
    let checkpoint = ChainCheckpoint { seq: slot, slot: Some(slot), ..ChainCheckpoint::default() };
    let mut txn = pool.engine.begin().unwrap();
    (0..KEYS).for_each(|n| txn.put(&key(n), &[slot as u8; 32]).unwrap());
    txn.commit(&checkpoint.write(), Durability::Buffered).unwrap();
    pool.handles.lookups.published.publish(checkpoint);
    pool.handles.lookups.overlay.published(checkpoint.slot);
}

type BatchReply = Reply<Result<Answer<Vec<Option<Value>>>, LookupError>>;

fn batch(connection: usize) -> (Batch, BatchReply) {
    let (reply, answer) = oneshot::channel();
    let keys = (0..BATCH).map(|n| key(n % KEYS)).collect();
    let origin = Origin { connection, ..Origin::default() };
    (Batch::new(keys, Commitment::Confirmed, origin, reply), answer)
}

fn get(n: usize) -> (Get, Reply<Result<Answer, LookupError>>) {
    let (reply, answer) = oneshot::channel();
    (Get { key: key(n), commitment: Commitment::Confirmed, origin: Origin::default(), reply }, answer)
}

/// Runs `test` with a worker, the channel to it, and its queue of batches.
fn with_worker(test: impl FnOnce(&Pool, &mut Worker<'_>, &Sender<Get>, &BatchQueue)) {
    let pool = Pool::start();
    let (requests, taken) = bounded(LOOKUP_QUEUE);
    let (_signal, stopped) = bounded(0);
    let (queue, pulse) = (BatchQueue::new(), Pulse::default());
    let mut worker = Worker::new(&pool.engine, &pool.handles.lookups, &taken, &queue, &stopped, &pulse);
    test(&pool, &mut worker, &requests, &queue);
}

#[test]
fn a_get_waits_for_one_piece_at_most_and_no_batch_mixes_two_states() {
    with_worker(|pool, worker, requests, queue| {
        let mut slot = 8;
        commit_all(pool, slot);
        let mut hog: Vec<_> = (0..8)
            .map(|_| {
                let (batch, answer) = batch(1);
                queue.push(batch).unwrap();
                answer
            })
            .collect();
        let (mut turns, mut slots) = (0, Vec::new());
        while !hog.is_empty() {
            if turns % 10 == 0 {
                slot += 1;
                commit_all(pool, slot);
            }
            let mut answer = worker.under_way.is_some().then(|| {
                let (request, answer) = get(turns % KEYS);
                requests.send(request).unwrap();
                answer
            });
            assert!(worker.turn());
            turns += 1;
            if let Some(answer) = &mut answer {
                // The turn, which reads at most one piece, has answered the get from the newest state.
                let found = answer.try_recv().expect("a get is answered before the next piece").unwrap();
                assert_eq!(found, Answer { value: Some([slot as u8; 32]), slot: Some(slot) });
            }
            if let Ok(found) = hog[0].try_recv() {
                let found = found.unwrap();
                let whole = found.slot.unwrap();
                assert!(
                    found.value.len() == BATCH && found.value.iter().all(|value| *value == Some([whole as u8; 32]))
                );
                slots.push(whole);
                drop(hog.remove(0));
            }
        }
        assert_eq!(turns, 8 * BATCH.div_ceil(PIECE_KEYS), "a piece a turn");
        assert!(slots.is_sorted() && slots.first() < slots.last(), "each from the state it began at: {slots:?}");
    });
}

#[test]
fn gets_without_end_do_not_stop_a_batch() {
    with_worker(|pool, worker, requests, queue| {
        commit_all(pool, 8);
        let (batch, mut answer) = batch(1);
        queue.push(batch).unwrap();
        let (mut turns, mut waiting) = (0, Vec::new());
        let found = loop {
            let mut room = true;
            while room {
                let (request, answer) = get(1);
                room = requests.try_send(request).is_ok();
                // The callers of every other batch give up.
                waiting.push((!waiting.len().is_multiple_of(2)).then_some(answer));
            }
            assert!(worker.turn());
            turns += 1;
            if let Ok(found) = answer.try_recv() {
                break found.unwrap();
            }
            assert!(turns <= GETS_A_PIECE + BATCH, "the batch does not come to its end");
        };
        assert_eq!((found.value.len(), found.slot), (BATCH, Some(8)));
    });
}

#[test]
fn a_batch_that_nobody_waits_for_ends_at_once() {
    with_worker(|pool, worker, _, queue| {
        commit_all(pool, 8);
        let (first, answer) = batch(1);
        let (second, mut next) = batch(2);
        queue.push(first).unwrap();
        queue.push(second).unwrap();
        assert!(worker.turn());
        drop(answer);
        let mut turns = 0;
        while next.try_recv().is_err() {
            assert!(worker.turn());
            turns += 1;
        }
        assert_eq!(turns, 1 + BATCH.div_ceil(PIECE_KEYS), "one turn to give it up");
    });
}

#[test]
fn gets_of_a_cold_store_are_looked_up_together_and_answered_from_one_state() {
    with_worker(|pool, worker, requests, _| {
        commit_all(pool, 8);
        let mut answers = Vec::new();
        for n in [1, 2, KEYS, 3] {
            let (request, answer) = get(n);
            requests.send(request).unwrap();
            answers.push(answer);
        }
        let (request, gone) = get(4);
        requests.send(request).unwrap();
        drop(gone);
        worker.reading.pretend_cold();
        let before = pool.engine.latency().snapshot();
        assert!(worker.turn());
        let read = pool.engine.latency().snapshot().since(&before);
        assert_eq!(read.get(SOURCE, Op::GetMany).map_or(0, |series| series.len()), 1);
        let found: Vec<_> = answers.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap()).collect();
        let of = |value: Option<Value>| Answer { value, slot: Some(8) };
        assert_eq!(found, [of(Some([8; 32])), of(Some([8; 32])), of(None), of(Some([8; 32]))]);
        assert!(worker.together.is_empty() && requests.is_empty());
        assert_eq!(worker.gets, 4, "a get whose caller is gone is none");
    });
}
