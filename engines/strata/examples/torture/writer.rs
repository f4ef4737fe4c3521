//! One change, written through the engine's interface.
//!
//! Owns: transactions and bulk loads, with the detours that a caller may take. Must not: judge an error. Runs on the
//! thread that owns the store.

use engine_api::{Durability, Engine, ErrorKind, Key, Value};

use crate::model::{Check, wrong};
use crate::plan::{Change, Op, Plan, value};
use crate::support::{Rng, at};

/// Writes change `seq`. Returns the durability with which it was acknowledged.
pub(crate) fn write(engine: &dyn Engine, plan: &Plan, seq: u64, change: &Change, rng: &mut Rng) -> Check<Durability> {
    if rng.below(32) == 0 {
        abandon(engine, rng)?;
    }
    match change {
        Change::Bulk(ops) => load(engine, plan, seq, ops, rng),
        Change::Batch(ops) => {
            let durability = if rng.below(3) == 0 { Durability::Synced } else { Durability::Buffered };
            let mut txn = engine.begin()?;
            for op in ops {
                match op.stamp {
                    0 => txn.delete(&plan.key(op.id))?,
                    stamp => txn.put(&plan.key(op.id), &value(stamp))?,
                }
            }
            if let Some(last) = ops.last()
                && txn.get(&plan.key(last.id))? != (last.stamp != 0).then(|| value(last.stamp))
            {
                return wrong(format!("a transaction does not see its own last write: seq={seq}"));
            }
            txn.commit(&at(seq), durability)?;
            Ok(durability)
        }
    }
}

/// Drops a transaction without a commit. It must leave no trace, which the later checks would find.
fn abandon(engine: &dyn Engine, rng: &mut Rng) -> Check {
    let mut txn = engine.begin()?;
    for _ in 0..rng.below(50) {
        txn.put(&[rng.next() as u8; 32], &[1; 32])?;
        txn.delete(&[rng.next() as u8; 32])?;
    }
    Ok(())
}

fn load(engine: &dyn Engine, plan: &Plan, seq: u64, ops: &[Op], rng: &mut Rng) -> Check<Durability> {
    let Some(bulk) = engine.bulk() else { return wrong("strata has a path for sorted input") };
    let mut pairs: Vec<(Key, Value)> = ops.iter().map(|op| (plan.key(op.id), value(op.stamp))).collect();
    if pairs.len() > 1 && rng.below(4) == 0 {
        pairs.swap(0, 1);
        match bulk.load_sorted(&pairs, &at(seq)) {
            Err(error) if error.kind() == ErrorKind::FixInput => {}
            other => return wrong(format!("keys that do not ascend were not refused: {other:?}")),
        }
        pairs.swap(0, 1);
    }
    bulk.load_sorted(&pairs, &at(seq))?;
    if rng.below(4) == 0 {
        // As after a crash when the loader does not know the outcome.
        bulk.load_sorted(&pairs, &at(seq))?;
    }
    Ok(Durability::Synced)
}
