//! RocksDB 11 (the crate rocksdb 0.25) behind [`engine_api`]: a log-structured merge tree.
//!
//! Owns: the directory it is given; `ingest/` in it holds sorted files on their way in, and `SOLKV-MANIFEST` says how long
//! RocksDB's manifest has to be. One column family: pairs under
//! their 32-byte keys, the checkpoint under a one-byte key that sorts before all of them, so one log and one memtable
//! hold both and no second column family keeps old logs alive. Must not: know the marker file, the store's lock or any
//! other engine. Threads: RocksDB's own pool for flushes and compactions, `max_background_jobs` of them (2; tuned up
//! to 4).
//!
//! # What a commit survives
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | the newest commits may be missing, whole; what is kept ends at a checkpoint |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! `Buffered` writes the log with `write(2)` and does not flush it; `Synced` adds `fdatasync` of the log. A batch and
//! its checkpoint are one record of the log. Recovery is `kPointInTimeRecovery`: replay ends at the first record that
//! is not whole, because after a power loss the unflushed end of a log may have holes. What follows a damaged record
//! is dropped with it, also where the device has damaged a flushed one; the checkpoint tells where the store stands.
//! RocksDB does not see every hole, so the sequence numbers of what it replays are compared, and a gap ends the replay.
//!
//! # Settings, and why
//!
//! - **No compression** in either profile: pubkeys are random bytes, and no codec is compiled in.
//! - **[`Profile::Vanilla`]** is RocksDB's defaults with a block cache of [`RocksdbOptions::cache_bytes`], and a full
//!   Bloom filter over whole keys where [`RocksdbOptions::bloom_bits`] asks for it. Index and filters live outside the
//!   cache and are not limited: that is the default's known weak spot under a memory cap, and measured as such.
//! - **[`Profile::Tuned`]** puts partitioned filters and index into a HyperClockCache and pins their top level, charges
//!   memtables to that cache, adds a hash index to data blocks, XXH3 checksums, interpolation search of the index (keys
//!   are uniform), 256 MiB files, and direct reads where the directory exceeds the memory limit at opening: the page
//!   cache would then hold what the block cache holds.
//! - **A filter that changes** from one opening to the next holds for files written from then on.
//! - **Open files** are limited to half of the process's limit, the log of events to 3 files of 8 MiB.
//!
//! # A manifest that is cut or damaged
//!
//! RocksDB takes the first record of its manifest that is not whole for the manifest's end, and removes every file that
//! the lost records named. So the length that was flushed is kept in `SOLKV-MANIFEST` after each flush, compaction and
//! load, and a manifest that is not whole up to there is refused before RocksDB sees it, also for reading.
//!
//! # When the disk is full
//!
//! `begin` looks at the free space and returns [`ErrorKind::FreeSpace`] below [`RocksdbOptions::disk_reserve_bytes`];
//! nothing was touched and the next `begin` after space was freed succeeds. A commit that meets a full disk all the
//! same reports [`ErrorKind::Reopen`]: the log may hold a part of the batch or the whole of it, and the library offers
//! no way to tell. Reads go on; after opening again the checkpoint tells.
//!
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace
//! [`ErrorKind::Reopen`]: engine_api::ErrorKind::Reopen

mod bulk;
mod engine;
mod error;
mod frame;
mod manifest;
mod reader;
mod replay;
mod scrub;
mod set;
mod settings;
mod write;

pub use engine::RocksdbEngine;
pub use set::settings;

/// The checkpoint's key: a prefix of the all-zero pubkey, so it sorts before every pair.
pub(crate) const CHECKPOINT_KEY: &[u8] = &[0];

/// The least possible key of a pair: where scans begin.
pub(crate) const FIRST_PAIR: engine_api::Key = [0; 32];

/// How RocksDB is set up. The files of one open in the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// RocksDB's defaults.
    #[default]
    Vanilla,
    /// For a store that fits in memory.
    Memory,
    /// For uniform keys under a memory cap.
    Tuned,
}

/// How to open a RocksDB store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocksdbOptions {
    /// The set of settings.
    pub profile: Profile,
    /// Bits per key of the Bloom filter; `None` writes no filters and ignores those that are there.
    pub bloom_bits: Option<u32>,
    /// Block cache in bytes.
    pub cache_bytes: u64,
    /// What the process may use, in bytes: the tuned profile reads directly where the store exceeds it.
    pub memory_limit_bytes: u64,
    /// `begin` returns `FreeSpace` while the file system has less than this many bytes left.
    pub disk_reserve_bytes: u64,
    /// RocksDB's settings in place of the profile's, as names and values of its options files; the names are those of
    /// [`settings`].
    pub set: Vec<(String, String)>,
}

impl Default for RocksdbOptions {
    /// A cache of 256 MiB, no memory limit, and a reserve of 32 MiB: the log allocates its space ahead, so a commit
    /// takes little; flushes and compactions take theirs when they may fail without losing anything.
    fn default() -> Self {
        Self {
            profile: Profile::Vanilla,
            bloom_bits: None,
            cache_bytes: 256 << 20,
            memory_limit_bytes: u64::MAX,
            disk_reserve_bytes: 32 << 20,
            set: Vec::new(),
        }
    }
}
