//! The part of this process's memory that an engine gets.
//!
//! Owns: the division of the limit that [`probe`] finds. Must not: read a limit itself. No threads.

use bytesize::ByteSize;
use engine_api::{Settings, Share};
use probe::{MemoryLimit, memory_limit};

use crate::content::Holds;
use crate::options::EngineOptions;

/// Memory in bytes with which any engine opens a store and works: the smallest default share of most.
pub const MEMORY_MIN: u64 = Share::INDEX_CACHE_MIN_BYTES;

/// Quarters of that memory that an engine's files may fill. The last quarter is for the process and for the growth of the
/// files. LMDB's readahead has the same limit.
const PAGE_CACHE_QUARTERS: u64 = 3;

/// Division of the memory between the engine's cache and everything else, as `check-config` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    pub limit: MemoryLimit,
    /// Size of the engine's own cache in bytes: RocksDB's caches of blocks and pairs, redb's page cache, all of strata's memory. 0 for
    /// LMDB, which has no cache.
    pub cache_bytes: u64,
    /// Whether `memory` was set. Otherwise `cache_bytes` is the default share.
    pub configured: bool,
    /// Bytes of the limit that remain for everything else, the kernel's page cache included.
    pub rest_bytes: u64,
}

impl EngineOptions {
    /// Returns the division for an engine with these options on this machine, now.
    pub fn division(&self) -> Division {
        self.division_of(memory_limit())
    }

    /// Returns the division of `limit` for an engine with these options.
    pub fn division_of(&self, limit: MemoryLimit) -> Division {
        let Share { cache_eighths: eighths, cache_min_bytes, rest_bytes, .. } = self.share();
        let cache_bytes = match self.memory {
            _ if eighths == 0 => 0,
            Some(memory) => memory.as_u64(),
            // If the limit is too small for the minimum, the engine gets half of it.
            None => {
                let room_bytes = limit.bytes.saturating_sub(rest_bytes);
                (limit.bytes / 8 * eighths).min(room_bytes).max(cache_min_bytes.min(limit.bytes / 2))
            }
        };
        let rest_bytes = limit.bytes.saturating_sub(cache_bytes);
        Division { limit, cache_bytes, configured: self.memory.is_some(), rest_bytes }
    }

    /// Returns the bytes of files for which the page cache has room: a part of the memory beside the engine's cache. Without a
    /// cgroup it is also a part of the memory that other programs leave.
    pub(crate) fn page_cache_room_bytes(&self) -> u64 {
        let Division { limit, rest_bytes, .. } = self.division();
        let left_bytes = if limit.cgroup_file.is_none() { probe::available_bytes() } else { None };
        rest_bytes.min(left_bytes.unwrap_or(u64::MAX)) / 4 * PAGE_CACHE_QUARTERS
    }

    /// Returns the engine's shares of memory with these options.
    pub fn share(&self) -> Share {
        (self.engine.descriptor().share)(&self.options)
    }

    /// Returns these options as the engine of a store with this meaning is told them, with this machine's memory.
    pub(crate) fn settings_for(&self, holds: &Holds) -> Settings {
        Settings { prefix_bytes: holds.prefix_bytes(), ..self.settings() }
    }

    /// Returns these options as the engine of a map is told them, with this machine's memory.
    pub(crate) fn settings(&self) -> Settings {
        let Division { limit, cache_bytes, .. } = self.division();
        let pair = |setting: &String| {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            (name.to_owned(), value.to_owned())
        };
        Settings {
            cache_bytes,
            limit_bytes: limit.bytes,
            prefix_bytes: 32,
            options: self.options.clone(),
            set: self.set.iter().map(pair).collect(),
        }
    }

    /// Returns the bytes that a store leaves free on its disk. With less free space it accepts no writes. 0 for an
    /// engine that is not in this build.
    pub fn disk_reserve_bytes(&self) -> u64 {
        (self.engine.descriptor().reserve_bytes)(&self.settings())
    }
}

impl std::fmt::Display for Division {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = match &self.limit.cgroup_file {
            Some(file) => file.display().to_string(),
            None => "machine".to_owned(),
        };
        let by = if self.configured { "configured" } else { "default" };
        write!(
            f,
            "memory_limit={} limit_from={source} engine_cache={} cache_by={by} rest={}",
            ByteSize::b(self.limit.bytes),
            ByteSize::b(self.cache_bytes),
            ByteSize::b(self.rest_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::EngineKind;

    #[cfg(feature = "rocksdb")]
    const MIB: f64 = (1 << 20) as f64;

    #[test]
    fn a_set_memory_wins_and_lmdb_has_no_cache() {
        let redb = EngineOptions { memory: Some(ByteSize::mib(100)), ..EngineOptions::new(EngineKind::Redb) };
        assert_eq!((redb.division().cache_bytes, redb.division().configured), (100 << 20, true));
        assert_eq!(EngineOptions::new(EngineKind::Lmdb).division().cache_bytes, 0);
        assert!(EngineOptions::default().division().cache_bytes >= MEMORY_MIN);
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn every_engine_has_its_part_of_a_limit() {
        use crate::options::Profile;

        let of = |options: &EngineOptions, mib: u64| {
            options.division_of(MemoryLimit { bytes: mib << 20, cgroup_file: None }).cache_bytes >> 20
        };
        let rocksdb = |profile: Profile| EngineOptions::new(EngineKind::Rocksdb).with("profile", profile.as_str());
        let strata = EngineOptions::new(EngineKind::Strata);
        assert_eq!([of(&strata, 8000), of(&rocksdb(Profile::Tuned), 8000)], [5000; 2]);
        assert_eq!([of(&rocksdb(Profile::Memory), 8000), of(&rocksdb(Profile::Vanilla), 8000)], [4000, 2000]);
        // First the minimum, then half of a limit below twice the minimum.
        assert_eq!([of(&rocksdb(Profile::Vanilla), 200), of(&rocksdb(Profile::Vanilla), 100)], [64, 50]);
        // redb's index fits into less.
        assert_eq!([200, 128, 40, 20].map(|mib| of(&EngineOptions::new(EngineKind::Redb), mib)), [50, 32, 16, 10]);
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn tuned_rocksdb_leaves_room_for_a_compaction_under_every_limit_that_has_it() {
        let tuned = EngineOptions::new(EngineKind::Rocksdb).with("profile", "tuned");
        let of =
            |mib: u64| tuned.division_of(MemoryLimit { bytes: mib << 20, cgroup_file: None }).cache_bytes as f64 / MIB;
        // From 341 MiB on five eighths leave 128 MiB, below it the rest has them, and in the end the cache its minimum.
        assert_eq!([1024, 344, 336, 256, 192].map(of), [640.0, 215.0, 208.0, 128.0, 64.0]);
        assert_eq!([191, 128, 122, 96].map(of), [64.0, 64.0, 61.0, 48.0]);
    }
}
