//! The loop of one `lookup-N` thread: single gets first, then a piece of the batch under way.
//!
//! Owns: the order of gets and batches, and the thread's two readers. Must not: block except for the next request.
//! Reading the state belongs to `reading`. Thread: `lookup-N`.
//!
//! A get waits for at most one piece of [`PIECE_KEYS`](crate::reading::PIECE_KEYS) keys and for the gets queued before
//! it. In a cold store the gets that are queued are looked up together: see `reading`. A batch continues after at most
//! [`GETS_A_PIECE`] gets, so an endless series of gets does not stop it.

use std::convert::Infallible;

use crossbeam_channel::{Receiver, TryRecvError};
use engine_api::{Key, Value};
use engine_latency::{Latency, Measured};
use tokio::sync::oneshot;

use super::queue::{Batch, BatchQueue};
use super::{Answer, IDLE_REFRESH, LookupError, LookupState, Origin, SOURCE};
use crate::base::chain::Commitment;
use crate::base::pulse::Pulse;
use crate::base::slow::{Parts, SlowLog};
use crate::reading::{BatchReading, PIECE_KEYS, Reading};

/// Maximum number of gets that are looked up together: as many reads as strata keeps in flight.
const TOGETHER_MAX: usize = 64;

/// Maximum number of gets that are answered before the batch under way continues: as many keys as a piece has.
const GETS_A_PIECE: usize = PIECE_KEYS;

/// A get of one key, with the channel for its answer.
pub(super) struct Get {
    pub(super) key: Key,
    pub(super) commitment: Commitment,
    pub(super) origin: Origin,
    pub(super) reply: oneshot::Sender<Result<Answer, LookupError>>,
}

/// State of one lookup thread: its queues, its two readers, and the batch under way.
pub(super) struct Worker<'a> {
    slow: &'a SlowLog,
    latency: &'a Latency,
    gets_queued: &'a Receiver<Get>,
    batches: &'a BatchQueue,
    stopped: &'a Receiver<Infallible>,
    pulse: &'a Pulse,
    reading: Reading<'a>,
    batch_reading: BatchReading<'a>,
    under_way: Option<Batch>,
    /// Gets answered since a batch last had its turn.
    gets: usize,
    /// Gets that are being looked up together, their keys and their values; empty between two turns.
    together: Vec<Get>,
    keys: Vec<Key>,
    values: Vec<Option<Value>>,
    /// When idle readers were last moved, as a reading of the latencies' clock.
    refreshed: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        engine: &'a Measured,
        state: &'a LookupState,
        gets_queued: &'a Receiver<Get>,
        batches: &'a BatchQueue,
        stopped: &'a Receiver<Infallible>,
        pulse: &'a Pulse,
    ) -> Self {
        let latency = engine.latency();
        Self {
            slow: &state.slow,
            latency,
            gets_queued,
            batches,
            stopped,
            pulse,
            reading: Reading::new(engine, state, SOURCE),
            batch_reading: BatchReading::new(engine, state, SOURCE),
            under_way: None,
            gets: 0,
            together: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            refreshed: latency.clock().raw(),
        }
    }

    /// Answers requests until the pool stops.
    pub(super) fn run(&mut self) {
        while self.turn() {}
    }

    /// Answers a get or reads a piece of a batch, and waits where there is neither. Returns false when the pool stops.
    pub(super) fn turn(&mut self) -> bool {
        self.pulse.beat();
        if self.under_way.is_some() || self.gets >= GETS_A_PIECE {
            return self.turn_of_batches();
        }
        crossbeam_channel::select_biased! {
            recv(self.stopped) -> _ => return false,
            recv(self.gets_queued) -> get => match get {
                Ok(get) => self.answer(get),
                Err(_) => return false,
            },
            recv(self.batches.tokens) -> token => match token {
                Ok(()) => self.begin(),
                Err(_) => return false,
            },
            default(IDLE_REFRESH) => self.refresh(self.latency.clock().raw()),
        }
        true
    }

    /// Answers the waiting gets, and then reads a piece. Returns false when the pool stops.
    fn turn_of_batches(&mut self) -> bool {
        if self.stopped.try_recv() == Err(TryRecvError::Disconnected) {
            return false;
        }
        while self.gets < GETS_A_PIECE {
            let Ok(get) = self.gets_queued.try_recv() else { break };
            self.answer(get);
        }
        self.gets = 0;
        if self.under_way.is_some() {
            self.piece();
        } else if self.batches.tokens.try_recv().is_ok() {
            self.begin();
        }
        true
    }

    /// Answers a get. If the store is cold, answers those that are queued after it as well.
    fn answer(&mut self, get: Get) {
        let mut next = Some(get);
        while let Some(get) = next {
            if get.commitment == Commitment::Confirmed && self.reading.is_cold() {
                self.together.push(get);
            } else {
                self.answer_alone(get);
            }
            let room = self.together.len() < TOGETHER_MAX && self.gets + self.together.len() < GETS_A_PIECE;
            next = (room && self.reading.is_cold()).then(|| self.gets_queued.try_recv().ok()).flatten();
        }
        if !self.together.is_empty() {
            self.answer_together();
        }
    }

    /// Answers a get by itself, unless its caller is gone because its deadline passed while it was queued.
    fn answer_alone(&mut self, get: Get) {
        self.gets += 1;
        if get.reply.is_closed() {
            return;
        }
        let taken = self.latency.clock().raw();
        self.refresh_after(taken);
        let answer = self.reading.get(&get.key, get.commitment);
        let answered = answer.is_ok();
        let _gone = get.reply.send(answer);
        if answered {
            self.report_slow(&get.origin, get.commitment, taken);
        }
    }

    /// Looks up the gets of `together` from one state. If that fails, each is answered by itself, because one damaged
    /// page must not fail the others.
    fn answer_together(&mut self) {
        let mut together = std::mem::take(&mut self.together);
        together.retain(|get| !get.reply.is_closed());
        let taken = self.latency.clock().raw();
        self.refresh_after(taken);
        self.keys.clear();
        self.keys.extend(together.iter().map(|get| get.key));
        self.values.clear();
        self.values.resize(self.keys.len(), None);
        let found = match self.keys.len() {
            0 | 1 => None,
            _ => self.reading.get_into(&self.keys, &mut self.values, Commitment::Confirmed).ok(),
        };
        match found {
            Some(slot) => {
                self.gets += together.len();
                let values = std::mem::take(&mut self.values);
                for (Get { origin, reply, .. }, value) in together.drain(..).zip(&values) {
                    let _gone = reply.send(Ok(Answer { value: *value, slot }));
                    self.report_slow(&origin, Commitment::Confirmed, taken);
                }
                self.values = values;
            }
            None => together.drain(..).for_each(|get| self.answer_alone(get)),
        }
        self.together = together;
    }

    /// Logs the get that was just answered if it was slow. `taken` is the time when it left the queue.
    fn report_slow(&self, origin: &Origin, commitment: Commitment, taken: u64) {
        let (clock, spent) = (self.latency.clock(), self.reading.spent());
        let total_ns = clock.delta_as_nanos(origin.asked, clock.raw());
        if self.slow.is_slow(total_ns) {
            let slot_wait_ns = origin.slot_wait_ns;
            let queue_ns = clock.delta_as_nanos(origin.asked, taken).saturating_sub(slot_wait_ns);
            let parts = Parts { slot_wait_ns, queue_ns, ..spent };
            self.slow.report(origin.transport, 1, commitment, total_ns, parts);
        }
    }

    /// Begins the next batch and reads its first piece.
    fn begin(&mut self) {
        let Some(mut batch) = self.batches.take() else { return };
        self.refresh(self.latency.clock().raw());
        self.batch_reading.keys = std::mem::take(&mut batch.keys);
        match self.batch_reading.begin(batch.commitment) {
            Ok(()) => {
                self.under_way = Some(batch);
                self.piece();
            }
            Err(error) => self.end(batch, Err(error)),
        }
    }

    /// Reads a piece of the batch under way, unless its caller is gone.
    fn piece(&mut self) {
        let Some(batch) = self.under_way.take() else { return };
        if batch.reply.is_closed() {
            self.batch_reading.abandon();
            return self.end(batch, Err(LookupError::Stopped));
        }
        match self.batch_reading.piece() {
            Ok(false) => self.under_way = Some(batch),
            Ok(true) => self.end(batch, Ok(())),
            Err(error) => self.end(batch, Err(error)),
        }
    }

    fn end(&mut self, batch: Batch, outcome: Result<(), LookupError>) {
        let Batch { commitment, origin, reply, counted_keys, .. } = batch;
        let (answered, keys, spent) = (outcome.is_ok(), self.batch_reading.keys.len(), self.batch_reading.spent());
        // The answer's memory belongs to the caller, not to the thread.
        self.batch_reading.keys = Vec::new();
        let value = std::mem::take(&mut self.batch_reading.values);
        let slot = self.batch_reading.slot();
        let _gone = reply.send(outcome.map(|()| Answer { value, slot }));
        self.batches.done(counted_keys);
        let clock = self.latency.clock();
        let total_ns = clock.delta_as_nanos(origin.asked, clock.raw());
        if answered && keys > 0 && self.slow.is_slow(total_ns) {
            let mut parts = Parts { slot_wait_ns: origin.slot_wait_ns, ..spent };
            // The rest of a batch's time was spent in the queue: waiting for a thread, or while gets went first.
            parts.queue_ns = total_ns.saturating_sub(parts.sum_ns());
            self.slow.report(origin.transport, keys, commitment, total_ns, parts);
        }
    }

    /// Moves idle readers where the last move is too long ago. Without this, a busy reader would keep the other one
    /// from moving.
    fn refresh_after(&mut self, now: u64) {
        let idle_ns = self.latency.clock().delta_as_nanos(self.refreshed, now);
        if u128::from(idle_ns) >= IDLE_REFRESH.as_nanos() {
            self.refresh(now);
        }
    }

    fn refresh(&mut self, now: u64) {
        self.refreshed = now;
        self.reading.refresh_idle();
        self.batch_reading.refresh_idle();
    }
}

#[cfg(test)]
mod tests;
