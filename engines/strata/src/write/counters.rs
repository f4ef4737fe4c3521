//! Counters of the writing side: bytes, flushes, merges, and the waits of commits.
//!
//! Owns: their names in the statistics. The thread that does the work adds to them.

use crate::statistic::{Statistic, Times};

/// Sums since the store was opened.
#[derive(Default)]
pub(crate) struct Counters {
    /// Bytes of pairs and deletions that were committed, and of pairs that were loaded.
    pub(crate) committed_bytes: Statistic,
    pub(crate) wal_bytes: Statistic,
    pub(crate) segment_bytes: Statistic,
    /// Memtables that a flush has written as delta runs.
    pub(crate) flushes: Statistic,
    /// Merges of several runs into one.
    pub(crate) merges: Statistic,
    /// Steps of merges, each of a segment or a group of the base.
    pub(crate) merge_steps: Times,
    /// Flushes and merges that failed, or that were put off for want of disk space.
    pub(crate) failures: Statistic,
    /// Disk space in bytes that the next merge lacks; 0 if there is enough.
    pub(crate) merge_short_bytes: Statistic,
    /// Commits that waited for a flush or a merge.
    pub(crate) stalls: Times,
    /// Commits that were slowed because merges lag.
    pub(crate) slowed: Times,
    /// Commits that began the next WAL file and memtable.
    pub(crate) rotations: Times,
    /// Rounds of the merge into the base that began at the first key.
    pub(crate) base_merges: Statistic,
    /// The greatest number of delta runs.
    pub(crate) runs_most: Statistic,
    /// The greatest merge debt at any change of the runs, in percent.
    pub(crate) debt_most_percent: Statistic,
}

impl Counters {
    /// Returns the names and values for the statistics.
    pub(crate) fn details(&self) -> [(&'static str, u64); 20] {
        let written = self.wal_bytes.get() + self.segment_bytes.get();
        [
            ("wal_written_bytes", self.wal_bytes.get()),
            ("segment_written_bytes", self.segment_bytes.get()),
            ("write_amplification_percent", percent(written, self.committed_bytes.get())),
            ("flushes", self.flushes.get()),
            ("merges", self.merges.get()),
            ("merge_us", self.merge_steps.us.get()),
            ("merge_step_longest_us", self.merge_steps.longest_us.get()),
            ("merge_failures", self.failures.get()),
            ("merge_short_of_disk_bytes", self.merge_short_bytes.get()),
            ("write_stalls", self.stalls.count.get()),
            ("write_stall_us", self.stalls.us.get()),
            ("write_stall_longest_us", self.stalls.longest_us.get()),
            ("write_slowed", self.slowed.count.get()),
            ("write_slowed_us", self.slowed.us.get()),
            ("wal_rotations", self.rotations.count.get()),
            ("wal_rotation_us", self.rotations.us.get()),
            ("wal_rotation_longest_us", self.rotations.longest_us.get()),
            ("base_merges_begun", self.base_merges.get()),
            ("delta_runs_most", self.runs_most.get()),
            ("merge_debt_most_percent", self.debt_most_percent.get()),
        ]
    }
}

/// Returns the percentage of `whole` that `part` is; 0 of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100).checked_div(u128::from(whole)).map_or(0, |percent| percent as u64)
}
