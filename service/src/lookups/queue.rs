//! Batches that wait for a lookup thread: one line for each connection, served in turn.
//!
//! Owns: the lines and their bound. Must not: wait, or divide the room, which `ask::places` does. A thread waits at the
//! channel of tokens instead, of which there is at least one for each queued batch. Threads: the network edge puts in,
//! `lookup-N` takes out.

use std::collections::VecDeque;
use std::sync::Mutex;

use crossbeam_channel::{Receiver, Sender, bounded};
use engine_api::{Key, Value};
use tokio::sync::oneshot;

use super::{Answer, BATCH_COUNTED_KEYS_MIN, GET_MANY_QUEUE_KEYS, LookupError, Origin, counted_keys};
use crate::base::chain::Commitment;
use crate::base::lock;

/// A batch of gets, with the channel for its answer.
pub(super) struct Batch {
    pub(super) keys: Vec<Key>,
    pub(super) commitment: Commitment,
    pub(super) origin: Origin,
    pub(super) reply: Reply,
    /// Number of keys for which the batch counts, also after a thread has taken `keys` out of it.
    pub(super) counted_keys: usize,
}

type Reply = oneshot::Sender<Result<Answer<Vec<Option<Value>>>, LookupError>>;

impl Batch {
    pub(super) fn new(keys: Vec<Key>, commitment: Commitment, origin: Origin, reply: Reply) -> Self {
        let counted_keys = counted_keys(keys.len());
        Self { keys, commitment, origin, reply, counted_keys }
    }
}

/// Queue of batches with a line for each connection, and a bound over all lines.
pub(super) struct BatchQueue {
    lines: Mutex<Lines>,
    token: Sender<()>,
    /// Gives at least one token for each batch that waits; more where callers have given up.
    pub(super) tokens: Receiver<()>,
}

#[derive(Default)]
struct Lines {
    /// Lines of connections with waiting batches. The first one has the next turn; no line is empty.
    lines: VecDeque<Line>,
    /// Number of keys in batches that threads have taken and not yet reported [`BatchQueue::done`], as they count.
    keys_under_way: usize,
    closed: bool,
}

struct Line {
    connection: usize,
    batches: VecDeque<Batch>,
}

impl BatchQueue {
    pub(super) fn new() -> Self {
        let (token, tokens) = bounded(GET_MANY_QUEUE_KEYS / BATCH_COUNTED_KEYS_MIN);
        Self { lines: Mutex::default(), token, tokens }
    }

    /// Queues a batch.
    ///
    /// # Errors
    /// There are too many keys with it, or the threads end.
    pub(super) fn push(&self, batch: Batch) -> Result<(), LookupError> {
        let mut lines = lock(&self.lines);
        if lines.closed {
            return Err(LookupError::Stopped);
        }
        if !lines.has_room(&batch) {
            lines.drop_given_up();
            if !lines.has_room(&batch) {
                return Err(LookupError::Busy);
            }
        }
        lines.push(batch);
        // Where the channel is full, it already holds a token for every batch that may wait.
        let _full = self.token.try_send(());
        Ok(())
    }

    /// Takes the next batch, after a token. Returns `None` when another thread took the batch or its caller has given
    /// up. The keys of a taken batch count until [`BatchQueue::done`].
    pub(super) fn take(&self) -> Option<Batch> {
        let mut lines = lock(&self.lines);
        while let Some(batch) = lines.pop() {
            if !batch.reply.is_closed() {
                lines.keys_under_way += batch.counted_keys;
                return Some(batch);
            }
        }
        None
    }

    /// Makes the keys of a batch that was taken count no longer. Call it once the batch is answered and its memory is free.
    pub(super) fn done(&self, counted_keys: usize) {
        lock(&self.lines).keys_under_way -= counted_keys;
    }

    /// Drops all waiting batches, and every batch pushed from now on. Call it when the threads end.
    pub(super) fn close(&self) {
        let mut lines = lock(&self.lines);
        lines.closed = true;
        lines.lines.clear();
    }
}

impl Lines {
    fn keys(&self) -> usize {
        self.keys_under_way + self.lines.iter().map(Line::keys).sum::<usize>()
    }

    fn push(&mut self, batch: Batch) {
        let connection = batch.origin.connection;
        match self.lines.iter_mut().find(|line| line.connection == connection) {
            Some(line) => line.batches.push_back(batch),
            None => self.lines.push_back(Line { connection, batches: [batch].into() }),
        }
    }

    /// Takes the oldest batch of the connection whose turn it is.
    fn pop(&mut self) -> Option<Batch> {
        let mut line = self.lines.pop_front()?;
        let batch = line.batches.pop_front();
        if !line.batches.is_empty() {
            self.lines.push_back(line);
        }
        batch
    }

    /// Drops batches whose callers have given up.
    fn drop_given_up(&mut self) {
        for line in &mut self.lines {
            line.batches.retain(|batch| !batch.reply.is_closed());
        }
        self.lines.retain(|line| !line.batches.is_empty());
    }

    fn has_room(&self, batch: &Batch) -> bool {
        self.keys() + batch.counted_keys <= GET_MANY_QUEUE_KEYS
    }
}

impl Line {
    fn keys(&self) -> usize {
        self.batches.iter().map(|batch| batch.counted_keys).sum()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    type Waiting = oneshot::Receiver<Result<Answer<Vec<Option<Value>>>, LookupError>>;

    /// Number of the smallest batches for which there is room.
    const BATCHES_MAX: usize = GET_MANY_QUEUE_KEYS / BATCH_COUNTED_KEYS_MIN;

    fn batch(connection: usize) -> (Batch, Waiting) {
        batch_of(connection, 1)
    }

    fn batch_of(connection: usize, keys: usize) -> (Batch, Waiting) {
        let (reply, answer) = oneshot::channel();
        let origin = Origin { connection, ..Origin::default() };
        (Batch::new(vec![[connection as u8; 32]; keys], Commitment::Confirmed, origin, reply), answer)
    }

    #[test]
    fn connections_take_turns() {
        let queue = BatchQueue::new();
        let waiting: Vec<Waiting> = [1, 1, 1, 2, 3, 3]
            .into_iter()
            .map(|connection| {
                let (batch, answer) = batch(connection);
                queue.push(batch).unwrap();
                answer
            })
            .collect();
        let order: Vec<usize> = std::iter::from_fn(|| queue.take()).map(|batch| batch.origin.connection).collect();
        assert_eq!(order, [1, 2, 3, 1, 3, 1]);
        assert_eq!(queue.tokens.try_iter().count(), waiting.len());
    }

    #[test]
    fn a_batch_counts_by_its_keys_and_those_given_up_make_room() {
        const LARGE: usize = 10_000;
        let queue = BatchQueue::new();
        let push = |keys| {
            let (batch, answer) = batch_of(1, keys);
            queue.push(batch).map(|()| answer)
        };
        let mut waiting: Vec<Waiting> = (0..GET_MANY_QUEUE_KEYS / LARGE).map(|_| push(LARGE).unwrap()).collect();
        assert!(matches!(push(1), Err(LookupError::Busy)));
        drop(waiting.pop());
        let places = LARGE / BATCH_COUNTED_KEYS_MIN;
        waiting.extend((0..places).map(|_| push(1).unwrap()));
        assert!(matches!(push(1), Err(LookupError::Busy)), "a small batch counts for more than its keys");
        assert!(waiting.iter_mut().all(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty))));
    }

    #[test]
    fn what_is_under_way_counts_and_what_waits_at_the_end_is_told() {
        let queue = BatchQueue::new();
        let push = |connection| {
            let (batch, answer) = batch(connection);
            queue.push(batch).map(|()| answer)
        };
        let mut waiting: Vec<Waiting> = (0..BATCHES_MAX).map(|connection| push(connection).unwrap()).collect();
        let taken = queue.take().unwrap();
        assert!(matches!(push(BATCHES_MAX + 1), Err(LookupError::Busy)), "taken is not yet done");
        queue.done(taken.counted_keys);
        drop(taken);
        waiting.push(push(BATCHES_MAX + 1).unwrap());
        queue.close();
        assert!(queue.take().is_none());
        assert!(matches!(push(1), Err(LookupError::Stopped)));
        for mut answer in waiting {
            assert!(matches!(answer.try_recv(), Err(TryRecvError::Closed)));
        }
    }
}
