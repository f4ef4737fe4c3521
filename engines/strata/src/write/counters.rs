//! Counters of the writing side: bytes, flushes, merges, and the waits of commits.
//!
//! Owns: their names in the statistics. Counters are plain sums; the thread that does the work adds to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_api::PAIR_BYTES;

/// Sums since the store was opened.
#[derive(Default)]
pub(crate) struct Counters {
    /// Bytes of pairs and deletions that were committed, and of pairs that were loaded.
    committed_bytes: AtomicU64,
    wal_bytes: AtomicU64,
    segment_bytes: AtomicU64,
    flushes: AtomicU64,
    merges: AtomicU64,
    merge_us: AtomicU64,
    merge_step_longest_us: AtomicU64,
    failures: AtomicU64,
    /// Disk space in bytes that the next merge lacks; 0 if there is enough.
    merge_short_bytes: AtomicU64,
    stalls: AtomicU64,
    stall_us: AtomicU64,
    stall_longest_us: AtomicU64,
    slowed: AtomicU64,
    slowed_us: AtomicU64,
    rotations: AtomicU64,
    rotation_us: AtomicU64,
    rotation_longest_us: AtomicU64,
    base_merges: AtomicU64,
    runs_most: AtomicU64,
    debt_most_percent: AtomicU64,
}

// ORDERING: Relaxed in all of this file: sums that guard no other memory.
impl Counters {
    /// Counts a batch of `ops` operations that was written to the WAL as `wal_bytes`.
    pub(crate) fn committed(&self, ops: usize, wal_bytes: u64) {
        self.committed_bytes.fetch_add(ops as u64 * PAIR_BYTES, Ordering::Relaxed);
        self.wal_bytes.fetch_add(wal_bytes, Ordering::Relaxed);
    }

    /// Counts pairs that were loaded into the base without a batch.
    pub(crate) fn loaded(&self, pairs: usize) {
        self.committed_bytes.fetch_add(pairs as u64 * PAIR_BYTES, Ordering::Relaxed);
    }

    /// Counts a segment of `bytes` that was written.
    pub(crate) fn segment(&self, bytes: u64) {
        self.segment_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a memtable that became a run.
    pub(crate) fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a merge of several runs into one.
    pub(crate) fn merged(&self) {
        self.merges.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the time of one step of a merge.
    pub(crate) fn merge_step(&self, time: Duration) {
        let us = time.as_micros() as u64;
        self.merge_us.fetch_add(us, Ordering::Relaxed);
        self.merge_step_longest_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Counts a flush or a merge that failed, or that was put off for want of disk space.
    pub(crate) fn merge_failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the disk space that a due merge lacks; 0 if there is enough.
    pub(crate) fn merge_short(&self, bytes: u64) {
        self.merge_short_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts a commit that waited for a flush or a merge.
    pub(crate) fn stalled(&self, time: Duration) {
        let us = time.as_micros() as u64;
        self.stalls.fetch_add(1, Ordering::Relaxed);
        self.stall_us.fetch_add(us, Ordering::Relaxed);
        self.stall_longest_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Counts a commit that was slowed because merges lag.
    pub(crate) fn slowed(&self, time: Duration) {
        self.slowed.fetch_add(1, Ordering::Relaxed);
        self.slowed_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Counts a commit that began the next WAL file and memtable, and the time it took.
    pub(crate) fn rotated(&self, time: Duration) {
        let us = time.as_micros() as u64;
        self.rotations.fetch_add(1, Ordering::Relaxed);
        self.rotation_us.fetch_add(us, Ordering::Relaxed);
        self.rotation_longest_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Counts a merge into the base that began at its first key.
    pub(crate) fn base_merge_began(&self) {
        self.base_merges.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the present number of delta runs and the merge debt, of which the statistics keep the maximum.
    pub(crate) fn shape(&self, runs: u64, debt_percent: u64) {
        self.runs_most.fetch_max(runs, Ordering::Relaxed);
        self.debt_most_percent.fetch_max(debt_percent, Ordering::Relaxed);
    }

    /// Returns the names and values for the statistics.
    pub(crate) fn details(&self) -> [(&'static str, u64); 21] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (committed, wal, segments) =
            (read(&self.committed_bytes), read(&self.wal_bytes), read(&self.segment_bytes));
        [
            ("committed_bytes", committed),
            ("wal_written_bytes", wal),
            ("segment_written_bytes", segments),
            ("write_amplification_percent", percent(wal + segments, committed)),
            ("flushes", read(&self.flushes)),
            ("merges", read(&self.merges)),
            ("merge_us", read(&self.merge_us)),
            ("merge_step_longest_us", read(&self.merge_step_longest_us)),
            ("merge_failures", read(&self.failures)),
            ("merge_short_of_disk_bytes", read(&self.merge_short_bytes)),
            ("write_stalls", read(&self.stalls)),
            ("write_stall_us", read(&self.stall_us)),
            ("write_stall_longest_us", read(&self.stall_longest_us)),
            ("write_slowed", read(&self.slowed)),
            ("write_slowed_us", read(&self.slowed_us)),
            ("wal_rotations", read(&self.rotations)),
            ("wal_rotation_us", read(&self.rotation_us)),
            ("wal_rotation_longest_us", read(&self.rotation_longest_us)),
            ("base_merges_begun", read(&self.base_merges)),
            ("delta_runs_most", read(&self.runs_most)),
            ("merge_debt_most_percent", read(&self.debt_most_percent)),
        ]
    }
}

/// Returns the percentage of `whole` that `part` is; 0 of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100).checked_div(u128::from(whole)).map_or(0, |percent| percent as u64)
}
