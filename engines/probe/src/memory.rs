//! Memory of this process, and the memory that its cgroup is charged for.
//!
//! Owns: reading /proc/self and the cgroup's accounts, v1 and v2. Must not: set a limit, or take the machine's figures
//! for a cgroup's.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const CGROUP_V2: &str = "/sys/fs/cgroup";
const CGROUP_V1: &str = "/sys/fs/cgroup/memory";

/// Resident set of this process in bytes, in two parts whose sum is the RSS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct OwnRss {
    /// Heap, stacks and caches of the engine. The kernel could reclaim them only by swapping.
    pub anon_bytes: u64,
    /// Mapped files (LMDB's map, the program itself) and shared memory: pages of the page cache.
    pub file_bytes: u64,
}

/// Memory that a cgroup and those below it are charged for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GroupMemory {
    /// The whole charge, which counts against the limit. More than the sum of the two parts below, because it includes
    /// memory of the kernel.
    pub charged_bytes: u64,
    pub anon_bytes: u64,
    /// Pages of files, mapped or not. The kernel reclaims the clean ones when the limit is near.
    pub page_cache_bytes: u64,
}

/// Returns the resident set of this process; `None` if the kernel does not split it.
pub fn own_rss() -> Option<OwnRss> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = |name: &str| field(&status, name);
    Some(OwnRss { anon_bytes: kib("RssAnon:")? << 10, file_bytes: (kib("RssFile:")? + kib("RssShmem:")?) << 10 })
}

/// Returns the accounts of the cgroup with this directory; `None` if it has none.
pub fn group_memory(dir: &Path) -> Option<GroupMemory> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let (charged, anon, cache) = match read("memory.current") {
        Some(charged) => (charged, "anon ", "file "),
        None => (read("memory.usage_in_bytes")?, "total_rss ", "total_cache "),
    };
    let stat = read("memory.stat")?;
    Some(GroupMemory {
        charged_bytes: charged.trim().parse().ok()?,
        anon_bytes: field(&stat, anon)?,
        page_cache_bytes: field(&stat, cache)?,
    })
}

/// Returns the directory of the memory cgroup that this process is in; `None` for the root cgroup, whose accounts are
/// the machine's.
pub fn own_group() -> Option<PathBuf> {
    group_of(&fs::read_to_string("/proc/self/cgroup").ok()?).into_iter().find(|dir| group_memory(dir).is_some())
}

/// Returns the directories of the cgroups that the lines of `/proc/self/cgroup` name and that may account memory. The
/// root is left out.
fn group_of(cgroups: &str) -> Vec<PathBuf> {
    let groups = hierarchies(cgroups).filter(|(_, group)| !group.as_os_str().is_empty());
    groups.map(|(root, group)| Path::new(root).join(group)).collect()
}

/// Returns the hierarchies that may account memory, each with the path of this process's group below its root.
pub(crate) fn hierarchies(cgroups: &str) -> impl Iterator<Item = (&'static str, &Path)> {
    cgroups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let root = match controllers {
            "" => CGROUP_V2,
            _ if controllers.split(',').any(|controller| controller == "memory") => CGROUP_V1,
            _ => return None,
        };
        Some((root, Path::new(group)))
    })
}

/// Returns the number that follows `name` at the start of a line.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_set_grows_with_what_is_touched() {
        let before = own_rss().expect("the kernel splits it");
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = own_rss().expect("the kernel splits it");
        assert!(after.anon_bytes >= before.anon_bytes + (48 << 20), "{before:?} {after:?}");
        drop(touched);
    }

    #[test]
    fn both_kinds_of_cgroup_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
        assert_eq!(group_memory(dir.path()), None);
        write("memory.usage_in_bytes", "700\n");
        write("memory.stat", "cache 1\nrss 2\ntotal_cache 400\ntotal_rss 200\nanon 21\nfile 41\n");
        let v1 = GroupMemory { charged_bytes: 700, anon_bytes: 200, page_cache_bytes: 400 };
        assert_eq!(group_memory(dir.path()), Some(v1));
        write("memory.current", "70\n");
        let v2 = GroupMemory { charged_bytes: 70, anon_bytes: 21, page_cache_bytes: 41 };
        assert_eq!(group_memory(dir.path()), Some(v2));
    }

    #[test]
    fn the_root_is_not_taken_for_a_group() {
        assert_eq!(group_of("0::/\n"), Vec::<PathBuf>::new());
        assert_eq!(
            group_of("3:cpu:/x\n2:memory,hugetlb:/a/b\n0::/c\ngarbage"),
            [Path::new("/sys/fs/cgroup/memory/a/b"), Path::new("/sys/fs/cgroup/c")]
        );
    }
}
