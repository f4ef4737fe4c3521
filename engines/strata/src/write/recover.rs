//! Opening: runs from the manifest, batches behind them from the WAL, and the division of the memory.
//!
//! Owns: FORMAT.md's "Recovery". Runs on the thread that opens the store.

use std::sync::Arc;

use engine_api::Result;

use crate::budget::Budget;
use crate::file::sync_dir;
use crate::format::filter::PLANES;
use crate::format::manifest::Manifest;
use crate::format::wal::Wal;
use crate::read::cache::RecordCache;
use crate::read::lookup::Reads;
use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::read::visible::Visible;
use crate::sizes::mem_bytes;
use crate::storage::Storage;
use crate::write::directory::{Survey, remove, survey};
use crate::write::mem::Mem;
use crate::write::replay::{Replay, Replayed};
use crate::{Sizes, StrataOptions};

/// The part of the index, one in so many, that is left for what merges and new deltas need on top.
const INDEX_RESERVE: u64 = 16;
/// The part of the memory, one in so many, that records get before the second plane does: between a sixty-fourth and a
/// quarter. At a cap of 4% of 50M pairs these meant 0.59 and 0.52 reads a get with zipfian keys (ten seconds from a cold
/// start), and 0.003 and 0.01 reads a get of absent keys, for a quarter leaves no room for the second plane.
const CACHE_LEAST: u64 = 20;
/// A record cache smaller than this is not worth its locks.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// What was found, and what goes on from there.
pub(crate) struct Recovered {
    pub(crate) visible: Visible,
    pub(crate) wal: Wal,
    /// Number of the last batch.
    pub(crate) batch: u64,
    pub(crate) manifest: Manifest,
    pub(crate) budget: Arc<Budget>,
    pub(crate) reads: Arc<Reads>,
    /// A segment is given room for its pages while this much memory is left beside it.
    pub(crate) pages_beside_bytes: u64,
    pub(crate) next_id: u64,
}

/// Runs from the manifest, batches behind them from the WAL. Files that nothing needs are removed at the end, when all
/// of the store was found to be as a crash may leave it.
pub(crate) fn recover(
    storage: &Arc<dyn Storage>,
    options: &StrataOptions,
    sizes: Sizes,
    mut manifest: Manifest,
) -> Result<Recovered> {
    let mem_records = sizes.mem_records;
    let budget = Budget::new(options.memory_bytes.saturating_sub(mem_bytes(options)));
    let reads = Arc::new(Reads::new(manifest.seed));
    let (mut version, pages_beside_bytes) = open_version(storage, &manifest, &budget, &reads)?;
    let Survey { wals, obsolete, highest } = survey(&**storage, &manifest)?;
    let next_id = manifest.next_id.max(highest + 1);
    let mut replay = Replay { storage, budget: &budget, reads: &reads, mem_records, next_id };
    let Replayed { batch, checkpoint, frozen } = replay.run(&wals, &mut manifest, &mut version)?;
    let next_id = replay.next_id;
    let wal = Wal::create(&**storage, &manifest.wal_key, next_id, None, batch)?;
    // Only now, when everything was found in order. The manifest's name may not be durable yet, and what it replaces is
    // what is removed.
    sync_dir(&**storage)?;
    remove(&**storage, &obsolete)?;
    // What was replayed is frozen at once, behind a new active memtable.
    let visible = Visible {
        active: Arc::new(Mem::new(mem_records)),
        length: 0,
        frozen: frozen.into_iter().collect(),
        version: Arc::new(version),
        checkpoint,
    };
    Ok(Recovered { visible, wal, batch, manifest, budget, reads, pages_beside_bytes, next_id: next_id + 1 })
}

/// Opens all runs: first what every get needs, then the other planes, then pages or single records with what is left.
/// Also gives how much memory has to be left beside the pages of segments that are written later.
fn open_version(
    storage: &Arc<dyn Storage>,
    manifest: &Manifest,
    budget: &Arc<Budget>,
    reads: &Arc<Reads>,
) -> Result<(Version, u64)> {
    let all_bytes = budget.left_bytes();
    let mut runs = Vec::new();
    for run in &manifest.runs {
        let segments = run.iter().map(|info| Segment::open(storage, *info, budget, reads)).collect::<Result<_>>()?;
        runs.push(Arc::new(Run::new(segments)));
    }
    let base = runs.pop().unwrap_or_default();
    let version = Version { deltas: runs, base };
    let pages: u64 = version.segments().map(|segment| segment.page_bytes()).sum();
    let index: u64 = version.segments().map(|segment| segment.index_bytes()).sum();
    let largest = version.segments().map(|segment| segment.index_bytes()).max().unwrap_or(0);
    // A merge holds old and new segments for a moment, and there will be deltas.
    let reserve = (index / INDEX_RESERVE + 2 * largest).min(budget.left_bytes());
    let least_cache = all_bytes / CACHE_LEAST;
    for plane in 1..PLANES {
        version.segments().try_for_each(|segment| segment.load_plane(plane, budget, reserve + least_cache))?;
    }
    let left = budget.left_bytes().saturating_sub(reserve);
    if pages == 0 {
        // A new store: nobody knows how much its index will need. Half of the memory is kept for it.
        return Ok((version, left / 2));
    }
    // Pages are worth keeping where at least half of them have room. Otherwise most gets would miss them, and records
    // that are asked for often are kept instead, one by one.
    let keep_pages = left >= pages / 2;
    let mut room = if left >= pages { left } else { left / 4 * 3 };
    for segment in version.segments().filter(|_| keep_pages) {
        if room >= segment.page_bytes() {
            room -= segment.page_bytes();
            segment.make_resident(budget);
        }
    }
    let left = budget.left_bytes().saturating_sub(reserve);
    if left < pages && left >= CACHE_BYTES_MIN {
        let _ = reads.cache.set(RecordCache::new(left, budget.take_always(left)));
    }
    Ok((version, if keep_pages { reserve } else { u64::MAX }))
}
