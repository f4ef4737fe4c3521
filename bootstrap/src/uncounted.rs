//! Removes pairs from a store whose checkpoint counts none.
//!
//! Owns: their removal before a load begins. Must not: touch a store in which anything was committed. Runs on the main
//! thread.
//!
//! A sorted load that is killed between its first chunk and that chunk's checkpoint leaves the chunk in RocksDB. The
//! same load would replace these pairs, but the next load may have another source or order.

use std::ops::ControlFlow;

use anyhow::Result;
use engine_api::{Durability, Engine, Key};

use crate::limits::BATCH_PAIRS;

/// Removes every pair of a store whose checkpoint counts none.
pub(crate) fn remove(engine: &dyn Engine) -> Result<()> {
    let checkpoint = engine.checkpoint()?;
    if checkpoint.seq > 0 {
        return Ok(());
    }
    let mut keys: Vec<Key> = Vec::new();
    loop {
        // Start the next scan at the last removed key, because no pairs are left before it.
        let first = keys.pop().unwrap_or_default();
        keys.clear();
        engine.reader()?.scan_from(&first, &mut |key, _| {
            keys.push(*key);
            if (keys.len() as u64) < BATCH_PAIRS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if keys.is_empty() {
            return Ok(());
        }
        let mut batch = engine.begin()?;
        for key in &keys {
            batch.delete(key)?;
        }
        batch.commit(&checkpoint, Durability::Buffered)?;
    }
}
