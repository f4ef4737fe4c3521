//! [`Measured`]: any engine with its operations timed.
//!
//! Owns: the rule that says which call counts as which [`Op`]. Must not: change the engine's answers.
//! Threads: those of the engine inside. Every reader and every transaction records on its own thread.

use std::path::Path;
use std::sync::Arc;

use engine_api::{
    Checkpoint, Durability, Engine, Key, Pace, Reader, Resident, Result, Stats, Value, Visitor, Warmed, WriteTxn,
};

use crate::{Latency, Op, Recorder};

/// An engine whose readers and transactions record their latencies.
///
/// A get counts as `read_positive` or `read_negative` by its result, inside a transaction too. A `get_many` counts as
/// one `get_many`, and its keys count as nothing else. A delete counts as a `write`. `commit_per_item` is the time of a
/// commit divided by the number of events in its batch. That number is the largest of three: the gets, the writes, and
/// the number given to [`Measured::begin_for`]. An event that changes nothing is read and not written, but counts as an
/// item.
///
/// Opening, refreshing, bulk loading and administration are passed through and not recorded.
pub struct Measured {
    engine: Box<dyn Engine>,
    latency: Arc<Latency>,
    source: &'static str,
}

impl Measured {
    /// Wraps `engine` and records its operations in `latency` under `source`.
    pub fn new(engine: Box<dyn Engine>, latency: Arc<Latency>, source: &'static str) -> Self {
        Self { engine, latency, source }
    }

    /// Opens a reader that records under another source than the one given to [`Measured::new`].
    ///
    /// # Errors
    /// Any error of [`Engine::reader`].
    pub fn reader_for(&self, source: &'static str) -> Result<MeasuredReader<'_>> {
        let reader = self.engine.reader()?;
        Ok(MeasuredReader { reader, recorder: self.latency.recorder(source), last_ns: 0 })
    }

    /// Opens a reader that records under the source given to [`Measured::new`].
    ///
    /// # Errors
    /// Any error of [`Engine::reader`].
    pub fn own_reader(&self) -> Result<MeasuredReader<'_>> {
        self.reader_for(self.source)
    }

    /// Begins a transaction for a batch that was made from `events` events. Some of them may change nothing and never
    /// reach the transaction, so the caller gives their number: `commit_per_item` divides by it.
    ///
    /// # Errors
    /// Any error of [`Engine::begin`].
    pub fn begin_for(&self, events: u64) -> Result<Box<dyn WriteTxn + '_>> {
        let txn = self.engine.begin()?;
        Ok(Box::new(MeasuredTxn { txn, recorder: self.latency.recorder(self.source), events, gets: 0, writes: 0 }))
    }

    /// Returns the recorders and counters that this engine records in.
    pub fn latency(&self) -> &Arc<Latency> {
        &self.latency
    }

    /// Returns the engine inside. Operations that are called on it directly are not recorded.
    pub fn inner(&self) -> &dyn Engine {
        &*self.engine
    }
}

impl Engine for Measured {
    fn label(&self) -> &'static str {
        self.engine.label()
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(self.own_reader()?))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        self.begin_for(0)
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.engine.checkpoint()
    }

    fn stats(&self) -> Result<Stats> {
        self.engine.stats()
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        self.engine.snapshot(dir)
    }

    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        self.engine.load_sorted(pairs, checkpoint)
    }

    fn settle(&self) -> Result<()> {
        self.engine.settle()
    }

    fn warm_up(&self, go_on: &mut dyn FnMut(Warmed) -> Pace) -> Result<()> {
        self.engine.warm_up(go_on)
    }

    fn scrub(&mut self) -> Result<u64> {
        self.engine.scrub()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.engine.close()
    }
}

/// A reader that records each of its gets, calls of `get_many`, and scans.
pub struct MeasuredReader<'e> {
    reader: Box<dyn Reader + 'e>,
    recorder: Recorder,
    last_ns: u64,
}

impl MeasuredReader<'_> {
    /// Returns the duration of the newest recorded operation in ns; 0 before the first one.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Looks up every `keys[i]` into `values[i]` with `look_up`, which gets the reader, and records this as one
    /// `get_many`.
    ///
    /// # Errors
    /// Any error of `look_up`.
    pub fn get_many_with(
        &mut self,
        keys: &[Key],
        values: &mut [Option<Value>],
        look_up: impl FnOnce(&mut dyn Reader, &[Key], &mut [Option<Value>]) -> Result<()>,
    ) -> Result<()> {
        let start = self.recorder.start();
        look_up(&mut *self.reader, keys, values)?;
        self.record(Op::GetMany, start);
        Ok(())
    }

    fn record(&mut self, op: Op, start: u64) {
        self.last_ns = self.recorder.elapsed_ns(start);
        self.recorder.record(op, self.last_ns);
    }
}

impl Reader for MeasuredReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        let start = self.recorder.start();
        let found = self.reader.get(key)?;
        self.record(read_op(found.as_ref()), start);
        Ok(found)
    }

    fn get_resident(&mut self, key: &Key) -> Resident {
        let start = self.recorder.start();
        let found = self.reader.get_resident(key);
        match found {
            Resident::Found(_) => self.record(Op::ReadPositive, start),
            Resident::Absent => self.record(Op::ReadNegative, start),
            // The get that reads the device is recorded.
            Resident::WouldRead => {}
        }
        found
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        self.get_many_with(keys, values, |reader, keys, values| reader.get_many(keys, values))
    }

    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
        let start = self.recorder.start();
        self.reader.scan_from(first, visit)?;
        self.record(Op::Scan, start);
        Ok(())
    }

    fn scan_prefix(&mut self, first: &Key, prefix_bytes: usize, visit: &mut Visitor<'_>) -> Result<()> {
        let start = self.recorder.start();
        self.reader.scan_prefix(first, prefix_bytes, visit)?;
        self.record(Op::Scan, start);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint> {
        self.reader.checkpoint()
    }

    fn refresh(&mut self) -> Result<()> {
        self.reader.refresh()
    }
}

struct MeasuredTxn<'e> {
    txn: Box<dyn WriteTxn + 'e>,
    recorder: Recorder,
    events: u64,
    gets: u64,
    writes: u64,
}

impl WriteTxn for MeasuredTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        let start = self.recorder.start();
        let found = self.txn.get(key)?;
        self.recorder.record_since(read_op(found.as_ref()), start);
        self.gets += 1;
        Ok(found)
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        let start = self.recorder.start();
        self.txn.put(key, value)?;
        self.recorder.record_since(Op::Write, start);
        self.writes += 1;
        Ok(())
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        let start = self.recorder.start();
        self.txn.delete(key)?;
        self.recorder.record_since(Op::Write, start);
        self.writes += 1;
        Ok(())
    }

    fn commit(self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let Self { txn, mut recorder, events, gets, writes } = *self;
        let start = recorder.start();
        txn.commit(checkpoint, durability)?;
        let nanos = recorder.elapsed_ns(start);
        recorder.record(Op::Commit, nanos);
        // An item is one event of the batch: it is read and then written if it differs, or written without a read.
        let items = events.max(gets).max(writes);
        if items > 0 {
            recorder.record(Op::CommitPerItem, nanos.div_ceil(items));
        }
        Ok(())
    }
}

fn read_op(found: Option<&Value>) -> Op {
    if found.is_some() { Op::ReadPositive } else { Op::ReadNegative }
}
