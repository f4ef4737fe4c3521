//! Implements [`engine_api`] with RocksDB 11 (the crate rocksdb 0.25), a log-structured merge tree.
//!
//! Owns: the directory it is given. In it, `ingest/` holds sorted files that are about to be ingested, and
//! `SOLKV-MANIFEST` records the minimum length of RocksDB's manifest. One column family holds the pairs under their
//! 32-byte keys and the checkpoint under a one-byte key that sorts before all of them. So one log and one memtable hold
//! both, and no second column family keeps old logs alive. Must not: know the marker file, the store's lock or any
//! other engine. Threads: RocksDB's own pool for flushes and compactions, `max_background_jobs` of them (2; tuned up to
//! 4); `rocksdb-load`, which writes half of the sorted files of a chunk of a load.
//!
//! # Durability of a commit
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | the newest commits may be missing, whole; the state is that of a checkpoint |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! `Buffered` writes the log with `write(2)` and does not flush it; `Synced` adds `fdatasync` of the log. A batch and
//! its checkpoint are one record of the log.
//!
//! Recovery is `kPointInTimeRecovery`: replay ends at the first record that is not whole, because after a power loss
//! the unflushed end of a log may have holes. Every record after a damaged one is dropped as well, even if the device
//! has damaged a record that was flushed. The checkpoint tells which state the store has then. RocksDB does not notice
//! every hole, so the sequence numbers of the replayed batches are compared, and a gap ends the replay.
//!
//! # Settings, and why
//!
//! - **No compression** in any profile: pubkeys are random bytes, and no codec is compiled in. Values that repeat would
//!   compress (TRIED.md).
//! - **[`Profile::Vanilla`]** is RocksDB as it comes: its defaults with a block cache of
//!   [`RocksdbOptions::cache_bytes`], a HyperClockCache as in every profile. If [`RocksdbOptions::bloom_bits`] asks for it, there
//!   is a full Bloom filter over whole keys. Index and filters live outside the cache and are not limited. This is a known weakness
//!   of the defaults under a memory cap, and the benchmarks show it.
//! - **[`Profile::Memory`]** is for a store that fits in memory: a hash index in data blocks, interpolation search of the index
//!   (keys are uniform), and eight memtables of 16 MiB with filters of their own, of which four are flushed as one file. Index and
//!   filters live outside the cache.
//! - **[`Profile::Tuned`]** is for a memory cap. It has the settings of Memory, with Ribbon filters instead of Bloom
//!   filters. Filters and index are in the cache, and are pinned there if they take at most seven eighths of it at the
//!   opening. If they do not fit, a get may have to read a whole filter first, and the opening warns about it.
//!   Partitions (`index_type=kTwoLevelIndexSearch`, `partition_filters=true`) are then the better choice. Memtables are
//!   charged to the cache. If filters and index are pinned and the store is larger than the cache, a sixth of the cache is one of
//!   pairs. Files have 256 MiB. If the cache leaves less than 1 GiB of the limit, files and a
//!   compaction's read-ahead are smaller. Both take memory outside of the cache: a filter while it is made, and a
//!   buffer for each file that is read. So the default cache leaves 128 MiB of the limit, as far as its own minimum of
//!   64 MiB allows. Reads are direct if the directory exceeds the memory limit at the opening, because the page cache
//!   would hold a second copy of the block cache's blocks.
//! - **[`RocksdbOptions::set`]** overrides the profile's settings.
//! - **A filter that changes** from one opening to the next holds for files written from then on.
//! - **Open files** have no limit, which is RocksDB's default, unless the process may open fewer than 131,072. Then the
//!   limit is half of that number. RocksDB's log of events has 3 files of 8 MiB.
//!
//! TRIED.md in this crate's folder has each knob that RocksDB's authors name for such a store, with its figure or the
//! reason.
//!
//! # A manifest that is cut or damaged
//!
//! RocksDB takes the first incomplete record of its manifest for the manifest's end, and removes every file that the
//! lost records named. So after each flush, compaction and load the flushed length is recorded in `SOLKV-MANIFEST`. A
//! manifest that is not whole up to that length is refused before RocksDB reads it, also for reading alone.
//!
//! # When the disk is full
//!
//! `begin` checks the free space and returns [`ErrorKind::FreeSpace`] below [`RocksdbOptions::disk_reserve_bytes`].
//! Nothing was touched then, and the next `begin` after space was freed succeeds. A commit that meets a full disk all
//! the same returns [`ErrorKind::Reopen`]: the log may hold a part of the batch or all of it, and the library offers no
//! way to tell. Reads continue, and after opening again the checkpoint tells.
//!
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace
//! [`ErrorKind::Reopen`]: engine_api::ErrorKind::Reopen

mod bulk;
mod descriptor;
mod engine;
mod error;
mod frame;
mod manifest;
mod notes;
mod options;
mod reader;
mod replay;
mod scrub;
mod set;
mod settings;
mod store;
mod write;

pub use descriptor::DESCRIPTOR;
pub use engine::RocksdbEngine;
pub use set::settings;

/// Key of the checkpoint: a prefix of the all-zero pubkey, so that it sorts before every pair.
pub(crate) const CHECKPOINT_KEY: &[u8] = &[0];

/// Smallest possible key of a pair, where scans begin.
pub(crate) const FIRST_PAIR: engine_api::Key = [0; 32];

/// A set of RocksDB settings. Files written with one profile can be opened with any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// RocksDB's defaults, apart from the block cache's size.
    #[default]
    Vanilla,
    /// Settings for a store that fits in memory.
    Memory,
    /// Settings for uniform keys under a memory cap.
    Tuned,
}

impl Profile {
    /// Returns the profile with this name; RocksDB's defaults for any other name.
    fn of(name: &str) -> Self {
        match name {
            "memory" => Self::Memory,
            "tuned" => Self::Tuned,
            _ => Self::Vanilla,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Memory => "memory",
            Self::Tuned => "tuned",
        }
    }
}

/// Options for opening a RocksDB store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocksdbOptions {
    pub profile: Profile,
    /// Bits per key of the Bloom filter. `None` writes no filters and ignores those in existing files.
    pub bloom_bits: Option<u32>,
    /// Size of the block cache in bytes; in [`Profile::Tuned`] the cache of pairs is a part of it.
    pub cache_bytes: u64,
    /// Memory in bytes that the process may use. The tuned profile makes direct reads if the store is larger.
    pub memory_limit_bytes: u64,
    /// Free bytes of the file system below which `begin` returns `FreeSpace`.
    pub disk_reserve_bytes: u64,
    /// Leading bytes of a key that filters have entries for besides the whole key; 32 for none.
    pub prefix_bytes: u32,
    /// RocksDB's own settings that replace the profile's, as names and values of its options files. [`settings`] lists
    /// the names.
    pub set: Vec<(String, String)>,
}

impl Default for RocksdbOptions {
    /// The cache has 256 MiB, memory has no limit, and the reserve has 32 MiB. A small reserve is enough because the
    /// log allocates its space ahead, so a commit takes little. Flushes and compactions take space at times when they
    /// may fail without losing anything.
    fn default() -> Self {
        Self {
            profile: Profile::Vanilla,
            bloom_bits: None,
            cache_bytes: 256 << 20,
            memory_limit_bytes: u64::MAX,
            disk_reserve_bytes: 32 << 20,
            prefix_bytes: 32,
            set: Vec::new(),
        }
    }
}
