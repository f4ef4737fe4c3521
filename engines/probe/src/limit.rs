//! The memory that this process may use: the smallest limit of its cgroups, or the machine's memory.
//!
//! Owns: reading the limits, v1 and v2. Must not: fail; without a readable limit the machine's memory counts. Any thread.

use std::fs;
use std::path::{Path, PathBuf};

use crate::memory::{CGROUP_V2, hierarchies};

/// Limit of the memory that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    pub bytes: u64,
    /// File of the cgroup that sets the limit; `None` if it is the machine's memory.
    pub cgroup_file: Option<PathBuf>,
}

/// Returns the smallest memory limit of this process's cgroup and its ancestors (v2 or v1), or the machine's memory if
/// that is smaller.
pub fn memory_limit() -> MemoryLimit {
    let info = rustix::system::sysinfo();
    let machine_bytes = u64::from(info.mem_unit).saturating_mul(info.totalram);
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    smallest(&cgroups, machine_bytes, |file| fs::read_to_string(file).ok())
}

/// Returns the machine's memory that programs may still take, file pages that can be dropped included; `None` if the kernel
/// does not say.
pub fn available_bytes() -> Option<u64> {
    meminfo_bytes("MemAvailable")
}

/// Returns a figure of the machine's memory.
pub(crate) fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
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
    for (root, group) in hierarchies(cgroups) {
        // Above `high` no allocation fails, but each one waits for the kernel to reclaim memory.
        let names = if root == CGROUP_V2 { &["memory.max", "memory.high"][..] } else { &["memory.limit_in_bytes"] };
        // In a container the group may have the name that it has outside. Names that do not exist here are skipped, and
        // the root, which is the container's own group, is among the ancestors.
        let dirs = group.ancestors().map(|above| Path::new(root).join(above));
        files.extend(dirs.flat_map(|dir| names.iter().map(move |name| dir.join(name))));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_memory_programs_may_still_take() {
        let machine = rustix::system::sysinfo();
        let machine_bytes = u64::from(machine.mem_unit) * machine.totalram;
        assert!(available_bytes().is_some_and(|available| (1..=machine_bytes).contains(&available)));
    }

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
}
