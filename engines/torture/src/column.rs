//! The engines with the options that the torture opens them with. Each is a column of its tables.
//!
//! Owns: their names, options and promises, and how each is opened. Must not: keep anything open. Used on any thread.

use std::path::Path;

use bytesize::ByteSize;
use engine_api::{Buffered, Durability, Engine, Stats};
use engine_kit::Rng;
use engines::{EngineKind, EngineOptions, OpenMode, Profile};

/// RocksDB accepts no memtable below 64 KiB.
const SMALLEST_MEMTABLE: &str = "write_buffer_size=65536";

/// An engine with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Column {
    /// RocksDB with its own defaults, without filters.
    Rocksdb,
    /// RocksDB with its defaults and a Bloom filter of 20 bits a key.
    RocksdbBloom,
    /// RocksDB's tuned profile with the smallest memtables: several logs are alive at any time, and files come and go.
    RocksdbTuned,
    Lmdb,
    Redb,
    Strata,
    /// strata with memtables and segments of a few thousand records, so that a base has many segments, which merges
    /// replace in groups; and with more data than the others, some of it with keys that share their first bytes.
    StrataSmall,
    /// strata with such small files on a device that the supervisor simulates in its memory. It loses power and flips
    /// bits.
    StrataDevice,
}

impl Column {
    /// Every column, whether its engine is in this build or not.
    pub const ALL: [Self; 8] = [
        Self::Rocksdb,
        Self::RocksdbBloom,
        Self::RocksdbTuned,
        Self::Lmdb,
        Self::Redb,
        Self::Strata,
        Self::StrataSmall,
        Self::StrataDevice,
    ];

    /// Returns the columns whose engine is in this build.
    pub fn compiled() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|column| column.is_compiled())
    }

    /// Whether the column's engine is in this build.
    pub fn is_compiled(self) -> bool {
        engines::compiled().contains(&self.kind())
    }

    /// Returns the column's name, which is the engine's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RocksdbBloom => "rocksdb_bloom",
            Self::RocksdbTuned => "rocksdb_tuned",
            Self::StrataSmall => "strata_small",
            Self::StrataDevice => "strata_device",
            Self::Rocksdb | Self::Lmdb | Self::Redb | Self::Strata => self.kind().as_str(),
        }
    }

    /// Opens the store in `dir`, or creates it.
    ///
    /// # Errors
    /// Any error of opening the engine.
    pub(crate) fn open(self, dir: &Path, rng: &mut Rng) -> engine_api::Result<Box<dyn Engine>> {
        #[cfg(feature = "strata")]
        if self == Self::StrataSmall {
            return crate::small::open(dir, rng);
        }
        engines::open(dir, &self.options(rng), OpenMode::CreateOrOpen)
    }

    /// Returns the column's options. The memory is one of several sizes, so that caches hold everything or little.
    fn options(self, rng: &mut Rng) -> EngineOptions {
        let bloom = (self == Self::RocksdbBloom).then_some(20);
        let memory = Some(ByteSize::mib(rng.pick(&[8, 16, 64])));
        let options = EngineOptions { bloom, memory, ..EngineOptions::new(self.kind()) };
        if self != Self::RocksdbTuned {
            return options;
        }
        EngineOptions { profile: Profile::Tuned, set: vec![SMALLEST_MEMTABLE.to_owned()], ..options }
    }

    fn kind(self) -> EngineKind {
        match self {
            Self::Rocksdb | Self::RocksdbBloom | Self::RocksdbTuned => EngineKind::Rocksdb,
            Self::Lmdb => EngineKind::Lmdb,
            Self::Redb => EngineKind::Redb,
            Self::Strata | Self::StrataSmall | Self::StrataDevice => EngineKind::Strata,
        }
    }

    /// Whether a failed load may cost the store. RocksDB removes files that the manifest may name if it could not flush
    /// the manifest, and then refuses the store. See RELIABILITY.md.
    pub fn loses_failed_loads(self) -> bool {
        self.kind() == EngineKind::Rocksdb
    }

    /// Whether a sorted chunk is there wholly or not at all, for readers too.
    pub(crate) fn loads_whole(self) -> bool {
        self.kind() != EngineKind::Rocksdb
    }

    /// Whether a chunk may be loaded again although its load has succeeded.
    pub(crate) fn loads_twice(self) -> bool {
        self.kind() == EngineKind::Strata
    }

    /// Whether a scrub checks more than a scan does, and changes nothing.
    pub(crate) fn scrubs_more(self) -> bool {
        self.kind() == EngineKind::Strata
    }

    /// Whether the number of pairs of a settled store with these figures is exact: strata's is, unless a merge has left
    /// out a segment that it could not read, and with it the runs above.
    pub(crate) fn counts_pairs(self, stats: &Stats) -> bool {
        self.kind() == EngineKind::Strata && figure(stats, "unreadable_segments") == 0
    }

    /// Whether settling a store with these figures merges deltas into a base in several groups: strata alone does, if
    /// it has more segments than runs.
    pub(crate) fn merges_groups(self, stats: &Stats) -> bool {
        figure(stats, "delta_records") > 0
            && figure(stats, "base_records") > 0
            && figure(stats, "segments") > figure(stats, "delta_runs") + 1
    }

    /// Whether the engine relies on flushed files keeping their names. RocksDB renames `CURRENT` to name a manifest
    /// that it has flushed, and does not flush the directory.
    pub fn needs_flushed_names(self) -> bool {
        self.kind() == EngineKind::Rocksdb
    }

    /// Returns the newest batch that must survive a power loss, once batch `seq` was acknowledged. `before` is the
    /// result for the batches before it. This is the table of RELIABILITY.md.
    pub fn survives_power_loss(self, durability: Durability, seq: u64, before: u64) -> u64 {
        match (durability, self.kind().descriptor().buffered) {
            (Durability::Synced, _) | (Durability::Buffered, Buffered::All) => seq,
            (Durability::Buffered, Buffered::AllButNewest) => before.max(seq - 1),
            (Durability::Buffered, Buffered::AllButNewestOnes) => before,
        }
    }
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns an engine's own figure of this name, 0 if it has none.
fn figure(stats: &Stats, name: &str) -> u64 {
    stats.details.iter().find(|(found, _)| *found == name).map_or(0, |(_, value)| *value)
}
