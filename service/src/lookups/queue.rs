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

use super::{Answer, GET_MANY_QUEUE, LookupError, Origin};
use crate::chain::Commitment;

/// A batch of gets, with the channel for its answer.
pub(super) struct Batch {
    pub(super) keys: Vec<Key>,
    pub(super) commitment: Commitment,
    pub(super) origin: Origin,
    pub(super) reply: oneshot::Sender<Result<Answer<Vec<Option<Value>>>, LookupError>>,
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
    /// Number of batches that threads have taken and not yet reported [`BatchQueue::done`].
    under_way: usize,
    closed: bool,
}

struct Line {
    connection: usize,
    batches: VecDeque<Batch>,
}

impl BatchQueue {
    pub(super) fn new() -> Self {
        let (token, tokens) = bounded(GET_MANY_QUEUE);
        Self { lines: Mutex::default(), token, tokens }
    }

    /// Queues a batch. When all places are taken, refuses the newest batch of the connection with the longest line, so
    /// that no connection can take the places of all others. Returns the number of batches refused.
    pub(super) fn push(&self, batch: Batch) -> usize {
        let mut lines = self.lock();
        if lines.closed {
            // Dropping the batch tells its caller that the service stops.
            return 0;
        }
        let refused = if lines.len() < GET_MANY_QUEUE { None } else { lines.make_room(batch.origin.connection) };
        if lines.len() >= GET_MANY_QUEUE {
            drop(lines);
            refuse(batch);
            return 1;
        }
        lines.push(batch);
        drop(lines);
        // Where the channel is full, it already holds a token for every batch that may wait.
        let _full = self.token.try_send(());
        refused.map_or(0, |refused| {
            refuse(refused);
            1
        })
    }

    /// Takes the next batch, after a token. Returns `None` when another thread took the batch or its caller has given
    /// up. A taken batch keeps its place until [`BatchQueue::done`].
    pub(super) fn take(&self) -> Option<Batch> {
        let mut lines = self.lock();
        while let Some(batch) = lines.pop() {
            if !batch.reply.is_closed() {
                lines.under_way += 1;
                return Some(batch);
            }
        }
        None
    }

    /// Frees the place of a batch that was taken. Call it once the batch is answered and its memory is free.
    pub(super) fn done(&self) {
        self.lock().under_way -= 1;
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
    fn len(&self) -> usize {
        self.under_way + self.lines.iter().map(|line| line.batches.len()).sum::<usize>()
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

    /// Makes room for a batch of `connection`. Drops batches whose callers have given up. If there are none, removes
    /// and returns the newest batch of the longest line. That line must stay at least as long as that of `connection`
    /// becomes.
    fn make_room(&mut self, connection: usize) -> Option<Batch> {
        let before = self.len();
        for line in &mut self.lines {
            line.batches.retain(|batch| !batch.reply.is_closed());
        }
        self.lines.retain(|line| !line.batches.is_empty());
        if self.len() < before {
            return None;
        }
        let own = self.lines.iter().find(|line| line.connection == connection).map_or(0, |line| line.batches.len());
        let longest = self.lines.iter_mut().max_by_key(|line| line.batches.len())?;
        if longest.batches.len() < own + 2 { None } else { longest.batches.pop_back() }
    }
}

fn refuse(batch: Batch) {
    let _gone = batch.reply.send(Err(LookupError::Busy));
}

#[cfg(test)]
mod tests {
    use super::*;

    type Reply = oneshot::Receiver<Result<Answer<Vec<Option<Value>>>, LookupError>>;

    fn batch(connection: usize) -> (Batch, Reply) {
        let (reply, answer) = oneshot::channel();
        let origin = Origin { connection, ..Origin::default() };
        (Batch { keys: vec![[connection as u8; 32]], commitment: Commitment::Confirmed, origin, reply }, answer)
    }

    fn is_refused(answer: &mut Reply) -> bool {
        matches!(answer.try_recv(), Ok(Err(LookupError::Busy)))
    }

    #[test]
    fn connections_take_turns() {
        let queue = BatchQueue::new();
        let waiting: Vec<Reply> = [1, 1, 1, 2, 3, 3]
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
        let mut hog: Vec<Reply> = (0..GET_MANY_QUEUE)
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
        for connection in 10..=GET_MANY_QUEUE {
            let (batch, answer) = batch(connection);
            assert_eq!(queue.push(batch), 1);
            others.push(answer);
        }
        let (late, mut refused) = batch(99);
        assert_eq!((queue.push(late), is_refused(&mut refused)), (1, true));
        // A batch whose caller has given up makes room without a refusal.
        drop(others.pop());
        let (late, mut waits) = batch(99);
        assert_eq!((queue.push(late), is_refused(&mut waits)), (0, false));
    }

    #[test]
    fn what_is_under_way_counts_and_what_waits_at_the_end_is_told() {
        let queue = BatchQueue::new();
        let mut waiting: Vec<Reply> = Vec::new();
        for connection in 0..GET_MANY_QUEUE {
            let (batch, answer) = batch(connection);
            assert_eq!(queue.push(batch), 0);
            waiting.push(answer);
        }
        let taken = queue.take().unwrap();
        let (late, mut refused) = batch(99);
        assert_eq!((queue.push(late), is_refused(&mut refused)), (1, true), "taken is not yet done");
        drop(taken);
        queue.done();
        let (late, answer) = batch(99);
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
