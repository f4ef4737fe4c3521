//! Batches that wait for a lookup thread: one line for each connection, served in turn.
//!
//! Owns: the lines, their bound, and which batch is refused when they are full. Must not: wait. A thread waits at the
//! channel of tokens instead, of which there is at least one for each queued batch. Threads: the network edge puts in,
//! `lookup-N` takes out.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use engine_api::{Key, Value};
use tokio::sync::oneshot;

use super::{Answer, BATCH_COUNTED_KEYS_MIN, GET_MANY_QUEUE_KEYS, LookupError, Origin, counted_keys};
use crate::base::chain::Commitment;

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
    /// Gives at least one token for each batch that waits; more where batches were refused after they were queued.
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

    /// Queues a batch. If there are too many keys with it, refuses the newest batches of the connections with the most
    /// waiting keys, so that no connection can keep all others out. Returns the number of batches refused.
    pub(super) fn push(&self, batch: Batch) -> usize {
        let mut lines = self.lock();
        if lines.closed {
            // Dropping the batch tells its caller that the service stops.
            return 0;
        }
        let refused = match lines.make_room(&batch) {
            Some(refused) => {
                lines.push(batch);
                // Where the channel is full, it already holds a token for every batch that may wait.
                let _full = self.token.try_send(());
                refused
            }
            None => vec![batch],
        };
        drop(lines);
        let count = refused.len();
        refused.into_iter().for_each(refuse);
        count
    }

    /// Takes the next batch, after a token. Returns `None` when another thread took the batch or its caller has given
    /// up. The keys of a taken batch count until [`BatchQueue::done`].
    pub(super) fn take(&self) -> Option<Batch> {
        let mut lines = self.lock();
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
        self.lock().keys_under_way -= counted_keys;
    }

    /// Drops all waiting batches, and every batch pushed from now on. Call it when the threads end.
    pub(super) fn close(&self) {
        let mut lines = self.lock();
        lines.closed = true;
        lines.lines.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // A panic cannot leave the lines half changed, so a poisoned lock is safe to use.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Makes room for a batch. Drops batches whose callers have given up. If that is not enough, removes and returns the
    /// newest batches of the longest line, which must keep at least as many keys as the new batch's own line gets. Returns
    /// `None`, and removes none, where there is no room even so.
    fn make_room(&mut self, batch: &Batch) -> Option<Vec<Batch>> {
        let mut removed = Vec::new();
        if self.has_room(batch) {
            return Some(removed);
        }
        for line in &mut self.lines {
            line.batches.retain(|batch| !batch.reply.is_closed());
        }
        self.lines.retain(|line| !line.batches.is_empty());
        let own = self.lines.iter().find(|line| line.connection == batch.origin.connection).map_or(0, Line::keys);
        while !self.has_room(batch) {
            let longest = self.lines.iter_mut().max_by_key(|line| line.keys());
            match longest.and_then(|line| line.shorten(own + batch.counted_keys)) {
                Some(newest) => removed.push(newest),
                None => {
                    removed.into_iter().rev().for_each(|batch| self.push(batch));
                    return None;
                }
            }
        }
        Some(removed)
    }

    fn has_room(&self, batch: &Batch) -> bool {
        self.keys() + batch.counted_keys <= GET_MANY_QUEUE_KEYS
    }
}

impl Line {
    fn keys(&self) -> usize {
        self.batches.iter().map(|batch| batch.counted_keys).sum()
    }

    /// Removes and returns the newest batch, if `keys_min` keys stay.
    fn shorten(&mut self, keys_min: usize) -> Option<Batch> {
        let newest = self.batches.back()?.counted_keys;
        if self.keys() - newest < keys_min { None } else { self.batches.pop_back() }
    }
}

fn refuse(batch: Batch) {
    let _gone = batch.reply.send(Err(LookupError::Busy));
}

#[cfg(test)]
mod tests {
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

    fn is_refused(answer: &mut Waiting) -> bool {
        matches!(answer.try_recv(), Ok(Err(LookupError::Busy)))
    }

    #[test]
    fn connections_take_turns() {
        let queue = BatchQueue::new();
        let waiting: Vec<Waiting> = [1, 1, 1, 2, 3, 3]
            .into_iter()
            .map(|connection| {
                let (batch, answer) = batch(connection);
                assert_eq!(queue.push(batch), 0);
                answer
            })
            .collect();
        let order: Vec<usize> = std::iter::from_fn(|| queue.take()).map(|batch| batch.origin.connection).collect();
        assert_eq!(order, [1, 2, 3, 1, 3, 1]);
        assert_eq!(queue.tokens.try_iter().count(), waiting.len());
    }

    #[test]
    fn one_connection_may_take_all_places_and_gives_them_back_to_others() {
        let queue = BatchQueue::new();
        let mut hog: Vec<Waiting> = (0..BATCHES_MAX)
            .map(|_| {
                let (batch, answer) = batch(1);
                assert_eq!(queue.push(batch), 0);
                answer
            })
            .collect();
        let (more, mut refused) = batch(1);
        assert_eq!((queue.push(more), is_refused(&mut refused)), (1, true), "its own places are taken");
        let mut others = Vec::new();
        for connection in 2..10 {
            let (batch, answer) = batch(connection);
            assert_eq!(queue.push(batch), 1);
            assert!(is_refused(&mut hog.pop().unwrap()), "its newest makes room: connection={connection}");
            others.push(answer);
        }
        assert!(!hog.iter_mut().chain(&mut others).any(is_refused));
        // There are as many lines as places, so a batch of another connection is refused.
        for connection in 10..=BATCHES_MAX {
            let (batch, answer) = batch(connection);
            assert_eq!(queue.push(batch), 1);
            others.push(answer);
        }
        let (late, mut refused) = batch(BATCHES_MAX + 1);
        assert_eq!((queue.push(late), is_refused(&mut refused)), (1, true));
        // A batch whose caller has given up makes room without a refusal.
        drop(others.pop());
        let (late, mut waits) = batch(BATCHES_MAX + 1);
        assert_eq!((queue.push(late), is_refused(&mut waits)), (0, false));
    }

    #[test]
    fn a_batch_counts_by_its_keys_and_several_may_make_room_for_it() {
        const LARGE: usize = 10_000;
        let queue = BatchQueue::new();
        let mut hog: Vec<Waiting> = (0..BATCHES_MAX)
            .map(|_| {
                let (batch, answer) = batch(1);
                assert_eq!(queue.push(batch), 0);
                answer
            })
            .collect();
        let (large, mut waits) = batch_of(2, LARGE);
        let places = LARGE.div_ceil(BATCH_COUNTED_KEYS_MIN);
        assert_eq!((queue.push(large), is_refused(&mut waits)), (places, false));
        assert_eq!(hog.iter_mut().map(is_refused).filter(|refused| *refused).count(), places);
        assert!(queue.lock().keys() <= GET_MANY_QUEUE_KEYS);

        let queue = BatchQueue::new();
        let mut all: Vec<Waiting> = (0..GET_MANY_QUEUE_KEYS / LARGE)
            .map(|connection| {
                let (batch, answer) = batch_of(connection, LARGE);
                assert_eq!(queue.push(batch), 0);
                answer
            })
            .collect();
        let (small, mut refused) = batch(BATCHES_MAX + 1);
        assert_eq!((queue.push(small), is_refused(&mut refused)), (1, true), "no line is longer than one batch");
        assert!(!all.iter_mut().any(is_refused), "a batch is refused, and none is removed for it");
    }

    #[test]
    fn what_is_under_way_counts_and_what_waits_at_the_end_is_told() {
        let queue = BatchQueue::new();
        let mut waiting: Vec<Waiting> = Vec::new();
        for connection in 0..BATCHES_MAX {
            let (batch, answer) = batch(connection);
            assert_eq!(queue.push(batch), 0);
            waiting.push(answer);
        }
        let taken = queue.take().unwrap();
        let (late, mut refused) = batch(BATCHES_MAX + 1);
        assert_eq!((queue.push(late), is_refused(&mut refused)), (1, true), "taken is not yet done");
        queue.done(taken.counted_keys);
        drop(taken);
        let (late, answer) = batch(BATCHES_MAX + 1);
        assert_eq!(queue.push(late), 0);
        waiting.push(answer);
        queue.close();
        assert!(queue.take().is_none());
        let (late, answer) = batch(1);
        assert_eq!(queue.push(late), 0);
        waiting.push(answer);
        for mut answer in waiting {
            assert!(matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        }
    }
}
