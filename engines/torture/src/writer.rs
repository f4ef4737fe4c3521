//! One batch or chunk, written through the engine's interface, and the demands on an engine whose commit has failed.
//!
//! Owns: transactions and loads, with the detours that a caller may take. Must not: judge an error. Runs on the thread
//! that owns the store.

use engine_api::{Durability, Engine, Error, ErrorKind, Key, Value, WriteTxn};
use engine_kit::Rng;

use crate::model::{Bad, Check, Model, wrong};
use crate::plan::{Op, Work};

/// Point that a write has reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// All changes of a batch are in its transaction.
    Written,
    Committing,
    /// The load of a sorted chunk begins.
    Loading,
}

/// Stage at which a batch failed.
pub(crate) enum Failed {
    /// Before its commit: nothing of the batch is there.
    Before(Bad),
    /// During its commit. The kind of the error says whether the batch may be there.
    Commit(Error),
    /// During the load of a sorted chunk: any part of the chunk may be there, unless the engine loads it whole.
    Load(Error),
    /// During the repetition of a load that has succeeded: all of the chunk is there.
    Repeat(Error),
}

impl From<Failed> for Bad {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Before(bad) => bad,
            Failed::Commit(error) | Failed::Load(error) | Failed::Repeat(error) => Self::Error(error),
        }
    }
}

/// Writes the batch after the model's in the epoch that the history has for it, and applies it to the model. Returns the
/// durability of its acknowledgement and the number of changes. `reached` is called on the way.
///
/// # Errors
/// The stage at which the batch failed; the model is as before, except for the parts of a chunk, and for a chunk whose load
/// was repeated.
pub(crate) fn write(
    engine: &dyn Engine,
    model: &mut Model,
    durability: Durability,
    rng: &mut Rng,
    reached: &mut dyn FnMut(Point),
) -> Result<(Durability, usize), Failed> {
    let seq = model.seq + 1;
    let epoch = model.history.epoch(seq);
    let written = match model.plan.work(seq, epoch) {
        Work::Chunk(ops) => {
            reached(Point::Loading);
            match load(engine, model, &ops, seq, rng) {
                Ok(()) => (Durability::Synced, ops.len()),
                Err(failed) => {
                    match failed {
                        Failed::Load(_) => model.cut(ops),
                        Failed::Repeat(_) => model.advance_to(seq),
                        Failed::Before(_) | Failed::Commit(_) => {}
                    }
                    return Err(failed);
                }
            }
        }
        Work::Batch(ops) => {
            let txn = put(engine, model, &ops, rng).map_err(Failed::Before)?;
            reached(Point::Written);
            reached(Point::Committing);
            txn.commit(&model.plan.checkpoint(seq, epoch), durability).map_err(Failed::Commit)?;
            (durability, ops.len())
        }
    };
    model.advance_to(seq);
    Ok(written)
}

fn put<'e>(engine: &'e dyn Engine, model: &Model, ops: &[Op], rng: &mut Rng) -> Check<Box<dyn WriteTxn + 'e>> {
    if rng.once_in(8) {
        // This transaction is dropped and must leave no trace.
        let mut txn = engine.begin()?;
        for op in ops.iter().take(100) {
            txn.put(&model.plan.key(op.id), &[7; 32])?;
            txn.put(&[rng.next() as u8; 32], &[1; 32])?;
            txn.delete(&[rng.next() as u8; 32])?;
        }
    }
    let mut txn = engine.begin()?;
    for (nth, op) in ops.iter().enumerate() {
        let key = model.plan.key(op.id);
        match op.value() {
            Some(value) => txn.put(&key, &value)?,
            None => txn.delete(&key)?,
        }
        if (rng.once_in(40) || nth + 1 == ops.len()) && txn.get(&key)? != op.value() {
            return wrong(format!("a transaction does not see its own change of key={key:02x?}"));
        }
    }
    Ok(txn)
}

fn load(engine: &dyn Engine, model: &Model, ops: &[Op], seq: u64, rng: &mut Rng) -> Result<(), Failed> {
    let wrong = |what: String| Err(Failed::Before(Bad::Wrong(what)));
    let checkpoint = model.plan.checkpoint(seq, model.history.epoch(seq));
    let pair = |op: &Op| (model.plan.key(op.id), op.value().unwrap_or_default());
    let mut pairs: Vec<(Key, Value)> = ops.iter().map(pair).collect();
    if pairs.len() > 1 && rng.once_in(4) {
        pairs.swap(0, 1);
        match engine.load_sorted(&pairs, &checkpoint) {
            Err(error) if error.kind() == ErrorKind::FixInput => {}
            Err(error) => return Err(Failed::Load(error)),
            Ok(()) => return wrong(format!("keys that do not ascend were loaded: seq={seq}")),
        }
        pairs.swap(0, 1);
    }
    engine.load_sorted(&pairs, &checkpoint).map_err(Failed::Load)?;
    if model.column.engine().loads_twice && rng.once_in(4) {
        // A loader does the same after a crash, when it does not know whether the chunk was loaded.
        engine.load_sorted(&pairs, &checkpoint).map_err(Failed::Repeat)?;
    }
    Ok(())
}

/// Checks that more writes are refused after a failed commit, and returns the kind of the refusal.
pub(crate) fn refusal(engine: &dyn Engine) -> Check<ErrorKind> {
    match engine.begin().map(drop) {
        Ok(()) => wrong("a commit has failed for another reason than space, and writing goes on"),
        Err(error) if ![ErrorKind::Reopen, ErrorKind::FreeSpace].contains(&error.kind()) => {
            wrong(format!("a commit has failed, and the next batch is refused with: {error}"))
        }
        Err(error) => Ok(error.kind()),
    }
}

/// Checks that reads return the state before or after the batch whose commit has failed.
pub(crate) fn check_before_or_after(engine: &dyn Engine, model: &Model, rng: &mut Rng) -> Check {
    let mut reader = engine.reader()?;
    let mut holds = model.clone();
    if reader.checkpoint()?.seq != model.seq {
        holds.advance_to(model.seq + 1);
    }
    holds.check_gets(&mut *reader, rng, 40)
}
