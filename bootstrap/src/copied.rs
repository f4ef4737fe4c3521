//! The end of a load whose source is a store: the new store takes the checkpoint over, and both are compared.
//!
//! Owns: the comparison, and its printed result. Must not: mark a store complete that differs from its source. Runs on
//! the main thread.

use std::time::Duration;

use anyhow::Result;
use engine_api::Engine;
use engines::Digest;
use solana::ChainCheckpoint;

use crate::out::say;
use crate::source::{Source, Stored};

/// Returns the position of a load in the new store. A store that has taken over the checkpoint of its source holds all
/// pairs, and only the comparison is left.
///
/// # Errors
/// A checkpoint that a load has not written; errors of counting the pairs.
pub(crate) fn begun(source: &Source, engine: &dyn Engine, id: u64) -> Result<ChainCheckpoint> {
    let begun = engine.checkpoint()?;
    let is_taken_over = source.stored().is_some_and(|stored| begun.seq > 0 && begun == *stored.checkpoint());
    Ok(match is_taken_over {
        true => ChainCheckpoint { seq: Digest::of(engine)?.pairs(), source: id, ..ChainCheckpoint::default() },
        false => ChainCheckpoint::read(&begun)?,
    })
}

/// Prints how the new store compares with the pairs read from the source, and returns the exit code. `took`: the time
/// to write the store, and the time to read it again.
pub(crate) fn say_result(
    stored: &Stored,
    label: &str,
    disk_bytes: u64,
    (read, written): (&Digest, &Digest),
    took: (Duration, Duration),
) -> u8 {
    let (load_s, verify_s, pairs) = (took.0.as_secs_f64(), took.1.as_secs_f64(), written.pairs());
    let made = if stored.is_derived() { "derived" } else { "migrated" };
    say!("{made}: engine={label} pairs={pairs} load_s={load_s:.1} verify_s={verify_s:.1} disk_bytes={disk_bytes}");
    if !stored.is_derived() {
        say!("checkpoint {}", solana::shown_of_copy(stored.checkpoint()));
    }
    if read != written {
        say!("not equal: from_digest={read} digest={written}");
        return 1;
    }
    say!("equal: digest={written}");
    0
}
