//! The engines with the options that the torture opens them with. Each is a column of its tables.
//!
//! Owns: their names, options and promises. Must not: open anything.

use bytesize::ByteSize;
use engine_api::{Buffered, Durability};
use engines::{EngineKind, EngineOptions, Profile};

use crate::rng::Rng;

/// RocksDB accepts no memtable below 64 KiB.
const SMALLEST_MEMTABLE: &str = "write_buffer_size=65536";

/// An engine with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Column {
    /// RocksDB with its own defaults, without filters.
    Rocksdb,
    /// The same with a Bloom filter of 20 bits a key.
    RocksdbBloom,
    /// Its tuned profile with the smallest memtables: several logs are alive at any time, and files come and go.
    RocksdbTuned,
    Lmdb,
    Redb,
    Strata,
}

impl Column {
    /// Every column, whether its engine is in this build or not.
    pub const ALL: [Self; 6] =
        [Self::Rocksdb, Self::RocksdbBloom, Self::RocksdbTuned, Self::Lmdb, Self::Redb, Self::Strata];

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
            Self::Rocksdb | Self::Lmdb | Self::Redb | Self::Strata => self.kind().as_str(),
        }
    }

    /// Returns the column's options. The memory is one of several sizes, so that caches hold everything or little.
    pub fn options(self, rng: &mut Rng) -> EngineOptions {
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
            Self::Strata => EngineKind::Strata,
        }
    }

    /// Whether a failed load may cost the store. RocksDB removes files that the manifest may name if it could not flush
    /// the manifest, and then refuses the store. See RELIABILITY.md.
    pub fn loses_failed_loads(self) -> bool {
        self.kind() == EngineKind::Rocksdb
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
