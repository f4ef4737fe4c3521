//! Memory caps for a child process: a cgroup of the child's own, of whichever kind this machine has.
//!
//! Owns: the cgroup directory, which is removed on drop. Must not: start the child. The child joins the cgroup itself,
//! between fork and exec.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::memory::{GroupMemory, group_memory};

/// How a child's memory is capped and accounted.
#[derive(Debug)]
pub enum Cap {
    /// Directory of a cgroup v2.
    V2(PathBuf),
    /// A directory of the v1 memory controller.
    V1(PathBuf),
    /// A scope that systemd makes around the command, with a cap of this many bytes.
    Systemd(u64),
    /// There is no cap, for this reason.
    None(String),
}

/// Memory that the cgroup has accounted, in bytes.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Charged {
    /// The largest charge so far: anonymous memory and page cache together.
    pub peak_bytes: u64,
    /// The charge now, page cache included.
    pub now_bytes: u64,
    pub page_cache_bytes: u64,
}

impl Cap {
    /// Creates a cap of `bytes` in the first way that works: cgroup v2, cgroup v1, systemd. Returns [`Cap::None`] with
    /// the reason if none does.
    pub fn create(bytes: u64) -> Self {
        let name = format!("solkv-{}", std::process::id());
        match create_v2(&name, bytes) {
            Ok(dir) => return Self::V2(dir),
            Err(error) => tracing::debug!(%error, "no cgroup v2 cap"),
        }
        match create_v1(&name, bytes) {
            Ok(dir) => return Self::V1(dir),
            Err(error) => tracing::debug!(%error, "no cgroup v1 cap"),
        }
        let systemd = Path::new("/run/systemd/system").is_dir();
        if systemd && Command::new("systemd-run").arg("--version").output().is_ok_and(|output| output.status.success())
        {
            return Self::Systemd(bytes);
        }
        Self::None("no writable memory cgroup and no systemd; run as root or inside a capped scope".to_owned())
    }

    /// Describes the cap in words, for the report.
    pub fn describe(&self) -> String {
        match self {
            Self::V2(dir) => format!("cgroup v2 {}", dir.display()),
            Self::V1(dir) => format!("cgroup v1 {}", dir.display()),
            Self::Systemd(bytes) => format!("systemd scope MemoryMax={bytes}"),
            Self::None(why) => format!("none: {why}"),
        }
    }

    /// Builds the command that runs `program` under this cap.
    pub fn command(&self, program: &Path) -> io::Result<Command> {
        let dir = match self {
            Self::V2(dir) | Self::V1(dir) => dir,
            Self::Systemd(bytes) => {
                let mut command = Command::new("systemd-run");
                command.args(["--scope", "--quiet", "-p"]).arg(format!("MemoryMax={bytes}")).arg("--").arg(program);
                return Ok(command);
            }
            Self::None(_) => return Ok(Command::new(program)),
        };
        let procs = OpenOptions::new().write(true).open(dir.join("cgroup.procs"))?;
        let mut command = Command::new(program);
        let join = move || (&procs).write_all(b"0");
        // SAFETY: between fork and exec the closure makes one write(2) on a descriptor opened before the fork;
        // it neither allocates nor takes a lock, so it is async-signal-safe.
        unsafe { command.pre_exec(join) };
        Ok(command)
    }

    /// Returns the memory that the cgroup has accounted; `None` if this cap has no cgroup directory of its own.
    pub fn charged(&self) -> Option<Charged> {
        let (dir, peak) = match self {
            Self::V2(dir) => (dir, "memory.peak"),
            Self::V1(dir) => (dir, "memory.max_usage_in_bytes"),
            Self::Systemd(_) | Self::None(_) => return None,
        };
        let peak_bytes = fs::read_to_string(dir.join(peak)).ok()?.trim().parse().ok()?;
        let GroupMemory { charged_bytes: now_bytes, page_cache_bytes, .. } = group_memory(dir)?;
        Some(Charged { peak_bytes, now_bytes, page_cache_bytes })
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        if let Self::V2(dir) | Self::V1(dir) = self {
            // Fails only while the child still runs in the cgroup. An empty cgroup that remains holds no memory.
            fs::remove_dir(dir).ok();
        }
    }
}

fn create_v2(name: &str, bytes: u64) -> io::Result<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(root.join("cgroup.controllers"))?;
    if !controllers.split_whitespace().any(|controller| controller == "memory") {
        return Err(io::Error::other("the memory controller is not on cgroup v2"));
    }
    let dir = root.join(name);
    fs::create_dir(&dir)?;
    // With swap, a benchmark under a memory cap would measure the swap device.
    fs::write(dir.join("memory.swap.max"), "0").ok();
    write_limit(dir, "memory.max", bytes)
}

fn create_v1(name: &str, bytes: u64) -> io::Result<PathBuf> {
    let dir = Path::new("/sys/fs/cgroup/memory").join(name);
    fs::create_dir(&dir)?;
    write_limit(dir, "memory.limit_in_bytes", bytes)
}

fn write_limit(dir: PathBuf, file: &str, bytes: u64) -> io::Result<PathBuf> {
    if let Err(error) = fs::write(dir.join(file), bytes.to_string()) {
        fs::remove_dir(&dir).ok();
        return Err(error);
    }
    Ok(dir)
}
