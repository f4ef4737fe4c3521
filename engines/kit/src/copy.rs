//! A copy of a store, for an engine without one of its own: a snapshot's pairs go into a new store, in key order.
//!
//! Owns: the order of the steps, so that a copy that was cut short has no checkpoint. Must not: know an engine. Runs on the
//! thread that asks for the copy. The writer of the copied store continues meanwhile.

use std::ops::ControlFlow;
use std::path::Path;

use engine_api::{Checkpoint, Durability, Engine, Reader, Result};

use crate::files::copy_to_new;

/// Number of pairs that are loaded at once: 64 MiB of them, so that the flushes of a commit do not matter.
const PAIRS_PER_LOAD: usize = 1 << 20;

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
    let (checkpoint, none_yet) = (from.checkpoint()?, Checkpoint::default());
    let mut pairs = Vec::with_capacity(PAIRS_PER_LOAD);
    let mut stored = Ok(());
    from.scan(&mut |key, value| {
        pairs.push((*key, *value));
        if pairs.len() < PAIRS_PER_LOAD {
            return ControlFlow::Continue(());
        }
        stored = to.load_sorted(&pairs, &none_yet);
        pairs.clear();
        if stored.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    stored?;
    to.load_sorted(&pairs, &none_yet)?;
    to.begin()?.commit(&checkpoint, Durability::Synced)
}
