//! The lives of stores that strata alone can have: with small files, and on a simulated device in memory.
//!
//! Owns: sizes and options of such stores, the device's faults, and the thread of a life on it. Must not: know anything
//! of the engine except how it is opened on a device and with which sizes. Plan, model, writing and reading are those of
//! all engines. Runs in an agent ([`open_small`]) and on a thread of the supervisor ([`live`]).

mod device;
mod flips;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use engine_api::{Engine, Error};
use engine_strata::storage::DirStorage;
use engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::life::Failure;
use crate::rng::Rng;
use crate::totals::Totals;

/// Time after which a life on the device counts as hanging. Not a measure of speed: a busy machine takes long.
const PATIENCE: Duration = Duration::from_secs(300);

/// Opens a store in a directory with random options: sometimes all pages have room in memory, sometimes not even the
/// filters.
///
/// # Errors
/// Those of the engine, and I/O errors of the directory.
pub(crate) fn open_small(dir: &Path, rng: &mut Rng) -> engine_api::Result<Box<dyn Engine>> {
    let options = StrataOptions { memory_bytes: rng.pick(&[8, 8, 16, 48, 256]) << 20, disk_reserve_bytes: 64 << 20 };
    let failed = |e| Error::io(format!("cannot create a store: dir={}", dir.display()), e);
    fs::create_dir_all(dir).map_err(failed)?;
    let parent = dir.parent().unwrap_or(dir);
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    let storage = DirStorage::open(dir).map_err(failed)?;
    let sizes = sizes(&options, rng, (1_024, 2_000));
    Ok(Box::new(StrataEngine::open_sized(Arc::new(storage), &options, sizes)?))
}

/// Returns random sizes for a device or a directory: half of the time those that follow from the memory, otherwise
/// small ones, so that the base has many segments, which merges replace in groups. Each opening has its own.
fn sizes(options: &StrataOptions, rng: &mut Rng, (mem_records, segment_records): (usize, u64)) -> Sizes {
    let own = Sizes::of(options);
    if rng.once_in(2) {
        return own;
    }
    let wal_bytes = if rng.once_in(2) { 64 << 10 } else { own.wal_bytes };
    Sizes { mem_records: mem_records << rng.below(3), segment_records: segment_records << rng.below(4), wal_bytes }
}

/// Runs the life of a store on the device, on a thread of its own, because a deadlock would look like a long life.
///
/// # Errors
/// The first violation: a wrong answer, an error that no fault explains, a panic, or no end.
pub(crate) fn live(seed: u64) -> (Totals, Result<(), Failure>) {
    let (sender, ended) = channel();
    // Nobody receives it once the patience has ended.
    std::thread::spawn(move || sender.send(device::live(seed)).ok());
    let violated = |what: &str| (Totals::default(), Err(Failure::Violation(what.to_owned())));
    match ended.recv_timeout(PATIENCE) {
        Ok((totals, outcome)) => (totals, outcome.map_err(Failure::from)),
        Err(RecvTimeoutError::Disconnected) => violated("a panic, see above"),
        Err(RecvTimeoutError::Timeout) => violated("a life on the device hangs"),
    }
}
