//! The memory that this process may use, and the part of it that an engine gets.
//!
//! Reads `/proc` and `/sys/fs/cgroup`. It never fails: without a readable limit the machine's memory counts.

use std::fs;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use engine_api::{Settings, Share};

use crate::options::EngineOptions;

/// Smallest default share of an engine, in bytes: with less memory every lookup would read index blocks again.
pub const MEMORY_MIN: u64 = 64 << 20;

const CGROUP_V2: &str = "/sys/fs/cgroup";
const CGROUP_V1: &str = "/sys/fs/cgroup/memory";

/// Limit of the memory that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    pub bytes: u64,
    /// File of the cgroup that sets the limit; `None` if it is the machine's memory.
    pub cgroup_file: Option<PathBuf>,
}

/// Division of the memory between the engine's cache and everything else, as `check-config` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    pub limit: MemoryLimit,
    /// Size of the engine's own cache in bytes: RocksDB's block cache, redb's page cache, all of strata's memory. 0 for
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
        let eighths = self.share().cache_eighths;
        let cache_bytes = match self.memory {
            _ if eighths == 0 => 0,
            Some(memory) => memory.as_u64(),
            // If the limit is too small for the minimum, the engine gets half of it.
            None => (limit.bytes / 8 * eighths).max(MEMORY_MIN.min(limit.bytes / 2)),
        };
        let rest_bytes = limit.bytes.saturating_sub(cache_bytes);
        Division { limit, cache_bytes, configured: self.memory.is_some(), rest_bytes }
    }

    /// Returns the engine's shares of memory with these options.
    pub fn share(&self) -> Share {
        (self.engine.descriptor().share)(self.profile.as_str())
    }

    /// Returns these options as the engine is told them, with this machine's memory.
    pub(crate) fn settings(&self) -> Settings {
        let Division { limit, cache_bytes, .. } = self.division();
        let pair = |setting: &String| {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            (name.to_owned(), value.to_owned())
        };
        Settings {
            cache_bytes,
            limit_bytes: limit.bytes,
            bloom_bits: self.bloom.unwrap_or(0),
            profile: self.profile.as_str(),
            map_bytes: self.lmdb_map_size.map(|size| size.as_u64()),
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

/// Returns the smallest memory limit of this process's cgroup and its ancestors (v2 or v1), or the machine's memory if
/// that is smaller.
pub fn memory_limit() -> MemoryLimit {
    let info = rustix::system::sysinfo();
    let machine_bytes = u64::from(info.mem_unit).saturating_mul(info.totalram);
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    smallest(&cgroups, machine_bytes, |file| fs::read_to_string(file).ok())
}

fn smallest(cgroups: &str, machine_bytes: u64, read: impl Fn(&Path) -> Option<String>) -> MemoryLimit {
    let mut limit = MemoryLimit { bytes: machine_bytes, cgroup_file: None };
    for file in limit_files(cgroups) {
        // "max" is no number, and v1 expresses "no limit" by a number beyond any machine's memory.
        let bytes = read(&file).and_then(|text| text.trim().parse::<u64>().ok());
        if let Some(bytes) = bytes.filter(|bytes| *bytes < limit.bytes) {
            limit = MemoryLimit { bytes, cgroup_file: Some(file) };
        }
    }
    limit
}

/// Returns the files with the limits for a process with these lines in `/proc/self/cgroup`: those of its group and of
/// the groups above.
fn limit_files(cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (root, names) = if controllers.is_empty() {
            // Above `high` no allocation fails, but each one waits for the kernel to reclaim memory.
            (CGROUP_V2, ["memory.max", "memory.high"].as_slice())
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (CGROUP_V1, ["memory.limit_in_bytes"].as_slice())
        } else {
            continue;
        };
        // In a container the group may have the name that it has outside. Names that do not exist here are skipped, and
        // the root, which is the container's own group, is among the ancestors.
        let group = Path::new(group.trim_start_matches('/'));
        let above = group.ancestors();
        files.extend(above.flat_map(|above| names.iter().map(move |name| Path::new(root).join(above).join(name))));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::EngineKind;

    #[test]
    fn the_smallest_limit_above_the_process_counts() {
        let read = |file: &Path| match file.to_str().unwrap() {
            "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/a/memory.max" => Some("1000\n".to_owned()),
            "/sys/fs/cgroup/memory.max" => Some("2000\n".to_owned()),
            "/sys/fs/cgroup/high/memory.max" => Some("1000\n".to_owned()),
            "/sys/fs/cgroup/high/memory.high" => Some("900\n".to_owned()),
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes" => Some("9223372036854771712\n".to_owned()),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes" => Some("500\n".to_owned()),
            _ => None,
        };
        let v2 = smallest("0::/a/b\n", 5000, read);
        assert_eq!((v2.bytes, v2.cgroup_file), (1000, Some("/sys/fs/cgroup/a/memory.max".into())));
        assert_eq!(smallest("0::/high/c\n", 5000, read).bytes, 900);
        let v1 = smallest("3:cpu:/x\n2:memory:/x\n", 5000, read);
        assert_eq!(v1.bytes, 500);
        assert_eq!(smallest("", 5000, read), MemoryLimit { bytes: 5000, cgroup_file: None });
        assert_eq!(smallest("garbage\n0::/gone\n", 1500, |_| None).bytes, 1500);
    }

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
        let rocksdb = |profile| EngineOptions { profile, ..EngineOptions::new(EngineKind::Rocksdb) };
        let strata = EngineOptions::new(EngineKind::Strata);
        assert_eq!([of(&strata, 8000), of(&rocksdb(Profile::Tuned), 8000)], [5000; 2]);
        assert_eq!([of(&rocksdb(Profile::Memory), 8000), of(&rocksdb(Profile::Vanilla), 8000)], [4000, 2000]);
        // First the minimum, then half of a limit below twice the minimum.
        assert_eq!([of(&rocksdb(Profile::Vanilla), 200), of(&rocksdb(Profile::Vanilla), 100)], [64, 50]);
    }
}
