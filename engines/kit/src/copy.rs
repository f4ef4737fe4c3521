//! A copy of a store, for an engine without one of its own: a snapshot's pairs go into a new store, in key order.
//!
//! Owns: the order of the steps, so that a copy that was cut short has no checkpoint. Must not: know an engine. Runs on the
//! thread that asks for the copy. The writer of the copied store continues meanwhile.

use std::ops::ControlFlow;
use std::path::Path;

use engine_api::{Checkpoint, Durability, Engine, Key, Reader, Result, Value};

use crate::files::copy_to_new;

/// Number of pairs that are loaded at once: 64 MiB of them, so that the flushes of a commit do not matter.
const PAIRS_PER_LOAD: usize = 1 << 20;
/// Number of pairs in one transaction of an engine that has no fast path for sorted input.
const PAIRS_PER_COMMIT: usize = 1 << 16;

/// Copies everything that `from` shows into the new store that `create` makes in `dir`, which must not exist yet.
///
/// # Errors
/// `FixInput` if `dir` exists already; errors of reading, of `create`, and of writing the copy.
pub fn copy_by_scan(from: &mut dyn Reader, dir: &Path, create: impl FnOnce() -> Result<Box<dyn Engine>>) -> Result<()> {
    copy_to_new(dir, || {
        let to = create()?;
        copy_pairs(from, &*to)?;
        to.close()
    })
}

fn copy_pairs(from: &mut dyn Reader, to: &dyn Engine) -> Result<()> {
    let checkpoint = from.checkpoint()?;
    let mut pairs = Vec::with_capacity(PAIRS_PER_LOAD);
    let mut stored = Ok(());
    from.scan(&mut |key, value| {
        pairs.push((*key, *value));
        if pairs.len() < PAIRS_PER_LOAD {
            return ControlFlow::Continue(());
        }
        stored = store(to, &pairs);
        pairs.clear();
        if stored.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    stored?;
    store(to, &pairs)?;
    to.begin()?.commit(&checkpoint, Durability::Synced)
}

fn store(to: &dyn Engine, pairs: &[(Key, Value)]) -> Result<()> {
    let none_yet = Checkpoint::default();
    if let Some(bulk) = to.bulk() {
        return bulk.load_sorted(pairs, &none_yet);
    }
    for pairs in pairs.chunks(PAIRS_PER_COMMIT) {
        let mut txn = to.begin()?;
        pairs.iter().try_for_each(|(key, value)| txn.put(key, value))?;
        txn.commit(&none_yet, Durability::Buffered)?;
    }
    Ok(())
}
