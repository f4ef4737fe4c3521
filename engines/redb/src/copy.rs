//! Copies a snapshot of one store into a new file, in key order, so that the copy's leaves are full.
//!
//! Reads from a snapshot only. The writer continues meanwhile, but the pages that it frees are reused only after the
//! copy.

use std::path::Path;

use engine_api::{Key, Result, Value};
use redb::{Database, ReadableTable};

use crate::error;
use crate::file::{begin, create_file};
use crate::store::Store;
use crate::tables::{append, put_checkpoint, read_checkpoint};

/// Pairs in one transaction of the copy: 64 MiB of pairs, so that the two flushes of a commit do not matter, while the
/// transaction's lists of allocated pages stay small.
const PAIRS_PER_COMMIT: usize = 1 << 20;

/// Page cache of the copy in bytes. Small, because the copy is written once, front to back.
const CACHE_BYTES: u64 = 64 << 20;

/// Writes the newest commit of `from` into a new store in `dir`, which must exist and be empty.
pub(crate) fn copy_to(from: &Store, dir: &Path) -> Result<()> {
    const WHAT: &str = "redb snapshot failed";
    let (txn, source) = from.open_snapshot()?;
    let checkpoint = read_checkpoint(&txn)?;
    let copy = create_file(dir, CACHE_BYTES)?;
    let mut chunk: Vec<(Key, Value)> = Vec::with_capacity(PAIRS_PER_COMMIT);
    for pair in source.iter().map_err(|e| error::storage(WHAT, e))? {
        let (key, value) = pair.map_err(|e| error::storage(WHAT, e))?;
        chunk.push((*key.value(), *value.value()));
        if chunk.len() == PAIRS_PER_COMMIT {
            commit_chunk(&copy, &chunk)?;
            chunk.clear();
        }
    }
    commit_chunk(&copy, &chunk)?;
    // The checkpoint comes last, so that a copy that was cut short has none.
    let last = begin(&copy)?;
    put_checkpoint(&last, &checkpoint)?;
    last.commit().map_err(error::commit)
}

fn commit_chunk(copy: &Database, chunk: &[(Key, Value)]) -> Result<()> {
    let txn = begin(copy)?;
    append(&txn, chunk.iter().map(|(key, value)| (key, value)))?;
    txn.commit().map_err(error::commit)
}
