//! The machine and the file system on which a figure was measured.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::limit::meminfo_bytes;

/// Facts about the machine and the file system of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    /// Number of CPUs that the process may use.
    pub cores: u32,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Type of the file system that holds the store.
    pub filesystem: String,
    /// Device that the file system is on, or another source of it, as the mount table names it.
    pub device: String,
    /// Read-ahead of that device in bytes; `None` if the kernel does not say.
    pub readahead_bytes: Option<u64>,
    /// Load averages over 1, 5 and 15 minutes at the time of the measurement.
    pub loadavg: String,
}

/// Returns the facts about this machine and the file system that holds `dir`. The directory need not exist yet.
pub fn machine(dir: &Path) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| -> String {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let (device, filesystem) = mount_of(dir);
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32),
        memory_bytes: meminfo_bytes("MemTotal").unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        readahead_bytes: readahead_bytes(&device),
        filesystem,
        device,
        loadavg: read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "),
    }
}

/// Returns the device and the type of the file system with the longest mount point above `dir`.
fn mount_of(dir: &Path) -> (String, String) {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let dir = existing.canonicalize().unwrap_or_else(|_| PathBuf::from("/"));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (device, at, kind) = (words.next()?, words.next()?, words.next()?);
        dir.starts_with(at).then(|| (at.len(), device.to_owned(), kind.to_owned()))
    });
    // Of two mounts on the same point the later one is visible.
    found.max_by_key(|(length, ..)| *length).map(|(_, device, kind)| (device, kind)).unwrap_or_default()
}

pub(crate) fn device_name(device: &str) -> Option<String> {
    let path = fs::canonicalize(device).ok()?;
    Some(path.file_name()?.to_str()?.to_owned())
}

fn readahead_bytes(device: &str) -> Option<u64> {
    let name = device_name(device)?;
    let of = |name: &str| fs::read_to_string(format!("/sys/class/block/{name}/queue/read_ahead_kb")).ok();
    // A partition has no queue of its own; the directory of its disk is the parent one.
    let disk = || {
        let link = fs::canonicalize(format!("/sys/class/block/{name}")).ok()?;
        fs::read_to_string(link.parent()?.join("queue/read_ahead_kb")).ok()
    };
    of(&name).or_else(disk)?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_cores_memory_and_a_file_system() {
        let facts = machine(Path::new("/tmp/that/does/not/exist"));
        assert!(facts.cores > 0 && facts.memory_bytes > 1 << 20 && !facts.kernel.is_empty());
        assert!(!facts.filesystem.is_empty(), "{facts:?}");
    }
}
