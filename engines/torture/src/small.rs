//! strata with small files: memtables and segments of a few thousand records, whose sizes no option of a store reaches.
//!
//! Owns: these sizes, and how such a store is opened in a directory. Must not: know anything of the engine except that.
//! Used in an agent.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use engine_api::{Engine, Error};
use engine_kit::Rng;
use engine_strata::storage::DirStorage;
use engine_strata::{Sizes, StrataEngine, StrataOptions};

/// Opens a store in a directory with random options: sometimes all pages have room in memory, sometimes not even the
/// filters.
///
/// # Errors
/// Any error of opening the engine; I/O errors of the directory.
pub(crate) fn open(dir: &Path, rng: &mut Rng) -> engine_api::Result<Box<dyn Engine>> {
    let memory_bytes = rng.pick(&[8, 8, 16, 48, 256]) << 20;
    let options = StrataOptions { memory_bytes, disk_reserve_bytes: 64 << 20, prefix_bytes: rng.pick(&[32, 32, 16]) };
    let failed = |e| Error::io(format!("cannot create a store: dir={}", dir.display()), e);
    fs::create_dir_all(dir).map_err(failed)?;
    let parent = dir.parent().unwrap_or(dir);
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    let storage = DirStorage::open(dir).map_err(failed)?;
    let sizes = sizes(&options, rng);
    Ok(Box::new(StrataEngine::open_sized(Arc::new(storage), &options, sizes)?))
}

/// Returns random sizes: half of the time those that follow from the memory, otherwise small ones, so that the base has
/// many segments, which merges replace in groups. Each opening has its own.
fn sizes(options: &StrataOptions, rng: &mut Rng) -> Sizes {
    let own = Sizes::of(options);
    if rng.once_in(2) {
        return own;
    }
    let wal_bytes = if rng.once_in(2) { 64 << 10 } else { own.wal_bytes };
    Sizes { mem_records: 1_024 << rng.below(3), segment_records: 2_000 << rng.below(4), wal_bytes }
}
