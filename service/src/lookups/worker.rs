//! The loop of one `lookup-N` thread: single gets first, then a piece of the batch under way.
//!
//! Owns: the order of gets and batches, and the thread's two readers. Must not: block except for the next request.
//! Reading the state belongs to `reading`. Thread: `lookup-N`.
//!
//! A get waits for at most one piece of [`PIECE_KEYS`](crate::reading::PIECE_KEYS) keys and for the gets queued before
//! it. A batch continues after at most [`GETS_A_PIECE`] gets, so that an endless series of gets does not stop it.

use std::convert::Infallible;

use crossbeam_channel::{Receiver, TryRecvError};
use engine_api::Key;
use engine_latency::{Latency, Measured};
use tokio::sync::oneshot;

use super::queue::{Batch, BatchQueue};
use super::{Answer, IDLE_REFRESH, LookupError, LookupState, Origin, SOURCE};
use crate::chain::Commitment;
use crate::pulse::Pulse;
use crate::reading::{BatchReading, PIECE_KEYS, Reading};
use crate::slow::{Parts, Slow, SlowLog};

/// Maximum number of gets that are answered before the batch under way continues: as many keys as a piece has.
const GETS_A_PIECE: usize = PIECE_KEYS;

/// A request that needs at most one read of the engine.
pub(super) enum Request {
    Get { key: Key, commitment: Commitment, origin: Origin, reply: oneshot::Sender<Result<Answer, LookupError>> },
    Probe { reply: oneshot::Sender<Result<(), LookupError>> },
}

/// State of one lookup thread: its queues, its two readers, and the batch under way.
pub(super) struct Worker<'a> {
    slow: &'a SlowLog,
    latency: &'a Latency,
    requests: &'a Receiver<Request>,
    batches: &'a BatchQueue,
    stopped: &'a Receiver<Infallible>,
    pulse: &'a Pulse,
    reading: Reading<'a>,
    batch_reading: BatchReading<'a>,
    under_way: Option<Batch>,
    /// Gets answered since a batch last had its turn.
    gets: usize,
    /// When idle readers were last moved, as a reading of the latencies' clock.
    refreshed: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        engine: &'a Measured,
        state: &'a LookupState,
        requests: &'a Receiver<Request>,
        batches: &'a BatchQueue,
        stopped: &'a Receiver<Infallible>,
        pulse: &'a Pulse,
    ) -> Self {
        let latency = engine.latency();
        Self {
            slow: &state.slow,
            latency,
            requests,
            batches,
            stopped,
            pulse,
            reading: Reading::new(engine, state, SOURCE),
            batch_reading: BatchReading::new(engine, state, SOURCE),
            under_way: None,
            gets: 0,
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
            recv(self.requests) -> request => match request {
                Ok(request) => self.answer(request),
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
            let Ok(request) = self.requests.try_recv() else { break };
            self.answer(request);
        }
        self.gets = 0;
        if self.under_way.is_some() {
            self.piece();
        } else if self.batches.tokens.try_recv().is_ok() {
            self.begin();
        }
        true
    }

    /// Answers a get, unless its caller is gone because its deadline passed while it was queued.
    fn answer(&mut self, request: Request) {
        self.gets += 1;
        let (key, commitment, origin, reply) = match request {
            Request::Probe { reply } => {
                let _gone = reply.send(self.reading.probe());
                return;
            }
            Request::Get { reply, .. } if reply.is_closed() => return,
            Request::Get { key, commitment, origin, reply } => (key, commitment, origin, reply),
        };
        let taken = self.latency.clock().raw();
        self.refresh_after(taken);
        let answer = self.reading.get(&key, commitment);
        let answered = answer.is_ok();
        let _gone = reply.send(answer);
        let (clock, spent) = (self.latency.clock(), self.reading.spent());
        let total_ns = clock.delta_as_nanos(origin.asked, clock.raw());
        if answered && self.slow.is_slow(total_ns) {
            let slot_wait_ns = origin.slot_wait_ns;
            let queue_ns = clock.delta_as_nanos(origin.asked, taken).saturating_sub(slot_wait_ns);
            let parts = Parts { slot_wait_ns, queue_ns, overlay_ns: spent.overlay_ns, read_ns: spent.read_ns };
            self.slow.report(&Slow { transport: origin.transport, keys: 1, commitment, total_ns, parts });
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
        let Batch { commitment, origin, reply, .. } = batch;
        let (answered, keys, spent) = (outcome.is_ok(), self.batch_reading.keys.len(), self.batch_reading.spent());
        // The answer's memory belongs to the caller, not to the thread.
        self.batch_reading.keys = Vec::new();
        let value = std::mem::take(&mut self.batch_reading.values);
        let slot = self.batch_reading.slot();
        let _gone = reply.send(outcome.map(|()| Answer { value, slot }));
        self.batches.done();
        let clock = self.latency.clock();
        let total_ns = clock.delta_as_nanos(origin.asked, clock.raw());
        if answered && self.slow.is_slow(total_ns) {
            let (slot_wait_ns, overlay_ns, read_ns) = (origin.slot_wait_ns, spent.overlay_ns, spent.read_ns);
            // The rest of a batch's time was spent in the queue: waiting for a thread, or while gets went first.
            let queue_ns = total_ns.saturating_sub(slot_wait_ns + overlay_ns + read_ns);
            let parts = Parts { slot_wait_ns, queue_ns, overlay_ns, read_ns };
            self.slow.report(&Slow { transport: origin.transport, keys, commitment, total_ns, parts });
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
