//! The store's files as the file system shows them.
//!
//! Owns: their count and their sizes. Must not: open a file. Runs on the thread that opens the store, and on any thread
//! that asks for its statistics.

use std::fs;
use std::path::Path;

use engine_api::{Error, Result};

/// Number and size of RocksDB's files of pairs.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Files {
    /// Counts the files in `data`. Files that vanish meanwhile, or a directory that cannot be listed, count as none,
    /// because opening reports more about them.
    pub(crate) fn of(data: &Path) -> Self {
        let mut found = Self::default();
        for entry in fs::read_dir(data).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|ending| ending == "sst") {
                found.count += 1;
                found.bytes += entry.metadata().map_or(0, |meta| meta.len());
            }
        }
        found
    }
}

/// Returns the allocated bytes of the files in `dir` and below.
pub(crate) fn disk_bytes(dir: &Path) -> Result<u64> {
    engine_kit::disk_bytes(dir)
        .map_err(|e| Error::io(format!("cannot size the store's files: dir={} reason={e}", dir.display()), e))
}
