//! Resources that one process has used so far: memory, CPU, page faults and I/O.

use std::fs;

use anyhow::{Context, Result};

use crate::memory::field;

/// Counters of a process since its start. Subtract two of them to get an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct ProcessCounts {
    pub user_s: f64,
    pub system_s: f64,
    /// Number of page faults that waited for a device.
    pub major_faults: u64,
    /// Bytes that were read from the device for the process; `None` if the kernel does not account I/O.
    pub device_read_bytes: Option<u64>,
    /// Bytes that the process caused to be written to the device. If a page of a large folio changes, the kernel counts
    /// the whole folio. For commits of LMDB the figure was eight times the bytes written.
    pub device_write_bytes: Option<u64>,
}

impl ProcessCounts {
    /// Subtracts `earlier`, so that the result covers the time since then.
    pub fn since(&self, earlier: &Self) -> Self {
        let minus = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            user_s: self.user_s - earlier.user_s,
            system_s: self.system_s - earlier.system_s,
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            device_read_bytes: minus(self.device_read_bytes, earlier.device_read_bytes),
            device_write_bytes: minus(self.device_write_bytes, earlier.device_write_bytes),
        }
    }
}

/// Returns the counters of the process `pid`.
///
/// # Errors
/// The process no longer exists.
pub fn process_counts(pid: u32) -> Result<ProcessCounts> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("no process: pid={pid}"))?;
    // The name in parentheses may contain spaces, so the fields are counted from the last parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // SAFETY: sysconf takes no pointers.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let io = fs::read_to_string(format!("/proc/{pid}/io")).ok();
    let bytes = |name: &str| io.as_deref()?.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Ok(ProcessCounts {
        user_s: number(11) as f64 / per_second,
        system_s: number(12) as f64 / per_second,
        major_faults: number(9),
        device_read_bytes: bytes("read_bytes:"),
        device_write_bytes: bytes("write_bytes:"),
    })
}

/// Returns how often the calling thread has slept for something, such as a read of a device, since it began.
pub fn thread_waits() -> u64 {
    // SAFETY: zero is a valid value of every field, because all are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`. The call cannot fail for a thread that asks for itself.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nvcsw as u64
}

/// Returns the resident set of `pid` in bytes; 0 once the process is gone.
pub fn rss_bytes(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:") << 10
}

/// Returns the largest resident set that `pid` ever had, in bytes; 0 once the process is gone.
pub fn rss_peak_bytes(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:") << 10
}

fn status_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, name).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_uses_cpu() {
        let pid = std::process::id();
        assert!(rss_bytes(pid) > 0 && rss_peak_bytes(pid) >= rss_bytes(pid) / 2);
        let before = process_counts(pid).expect("it runs");
        while process_counts(pid).expect("it runs").since(&before).user_s <= 0.0 {
            std::hint::black_box((0..1000).sum::<u64>());
        }
        assert!(process_counts(u32::MAX).is_err() && rss_bytes(u32::MAX) == 0);
    }
}
