//! Statistics of the engine: sizes, debts, stalls, and the division of its memory.
//!
//! Owns: the names of the details, except those of the counters, which belong to the code that counts. Must not: change
//! anything. Any thread.

use engine_api::{Error, PAIR_BYTES, Result, Stats};

use crate::memtable::ENTRY_BYTES;
use crate::read::segment::Segment;
use crate::write::counters::percent;
use crate::write::plan::debt;
use crate::write::shared::Shared;

/// Returns the statistics of a store.
pub(crate) fn stats(shared: &Shared) -> Result<Stats> {
    let now = shared.common.newest.load();
    let version = &now.version;
    let pairs_estimate = version.pairs_estimate() + now.unflushed();
    let unmerged = version.unmerged() + now.unflushed();
    let disk_bytes =
        shared.common.storage.used_bytes().map_err(|e| {
            Error::io(format!("cannot list the store's files: dir={}", shared.common.storage.shown()), e)
        })?;
    let deltas: u64 = version.deltas.iter().map(|run| run.records()).sum();
    let memtables = std::iter::once(&now.active).chain(now.frozen.iter().map(|frozen| &frozen.mem));
    let memtable_bytes = memtables.map(|mem| mem.capacity() as u64 * ENTRY_BYTES).sum();
    let of_segments = |bytes: fn(&Segment) -> u64| version.segments().map(|one| bytes(one)).sum();
    let mut details = vec![
        ("memtable_records", now.unflushed()),
        ("delta_runs", version.deltas.len() as u64),
        ("delta_records", deltas),
        ("base_records", version.base.records()),
        ("segments", version.segments().count() as u64),
        ("merge_debt_bytes", unmerged * PAIR_BYTES),
        ("merge_debt_percent", debt(&now).percent()),
        // Beside the pairs that are certainly distinct, so that it is not too low while updates are unmerged.
        ("space_amplification_percent", percent(disk_bytes, version.base.records().max(unmerged) * PAIR_BYTES)),
        ("memory_memtable_bytes", memtable_bytes),
        ("memory_directory_bytes", of_segments(|segment| segment.directory_bytes())),
        ("memory_filter_bytes", of_segments(|segment| segment.filter_bytes())),
        ("memory_page_bytes", of_segments(|segment| segment.resident_bytes())),
        ("memory_record_cache_bytes", shared.memory.reads.cache.bytes()),
        ("memory_work_bytes", shared.memory.reads.budget.work_bytes()),
        ("memory_left_bytes", shared.memory.reads.budget.left_bytes()),
        ("memory_owed_bytes", shared.memory.reads.budget.owed_bytes()),
        ("filter_planes_least", version.segments().map(|one| one.planes_loaded() as u64).min().unwrap_or(0)),
    ];
    details.extend([
        ("unreadable_segments", version.segments().filter(|one| one.is_unreadable()).count() as u64),
        ("lost_by_repair", shared.common.lost),
        ("replaced_dropped", shared.runs.garbage.dropped.get()),
    ]);
    details.extend(shared.common.counters.details());
    details.extend(shared.memory.reads.sums.details());
    Ok(Stats { pairs_estimate, disk_bytes, details })
}
