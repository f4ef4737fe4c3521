//! What the process and the store take from the machine: memory, page cache, disk.
//!
//! Owns: reading /proc, `mincore` and `statvfs`. Figures that the kernel does not give are absent, never guessed.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Memory of this process in bytes, from /proc/self/status.
pub(crate) fn rss_bytes() -> u64 {
    status_kib("VmRSS:") << 10
}

/// The most it ever was.
pub(crate) fn rss_peak_bytes() -> u64 {
    status_kib("VmHWM:") << 10
}

/// Blocks allocated to all files below `dir`, in bytes.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    // st_blocks counts 512 bytes whatever the file system's block size is.
    files(dir).iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.blocks() * 512).sum()
}

/// Bytes of the files below `dir` that the page cache holds, for whatever process read or wrote them.
pub(crate) fn page_cache_bytes(dir: &Path) -> u64 {
    files(dir).iter().filter_map(|path| resident_bytes(path).ok()).sum()
}

/// Refuses to start a load that will not fit. `needed` is an estimate.
pub(crate) fn check_disk(dir: &Path, needed_bytes: u64) -> Result<()> {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let space = rustix::fs::statvfs(existing)
        .with_context(|| format!("cannot ask for the free disk space: dir={}", existing.display()))?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    if free_bytes < needed_bytes {
        bail!(
            "not enough disk: dir={} free_bytes={free_bytes} needed_bytes={needed_bytes} (an estimate); free space, \
             name another --dir or --work-dir, or insist with --skip-disk-check",
            dir.display()
        );
    }
    Ok(())
}

fn status_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

/// Files below `dir`; ones that vanish meanwhile (a compaction's) are simply not there.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

fn resident_bytes(path: &Path) -> std::io::Result<u64> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len() as usize;
    if bytes == 0 {
        return Ok(0);
    }
    // SAFETY: the mapping is never read: `mincore` only asks the kernel which pages are in memory, and that is
    // defined whatever other processes do to the file.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let page = page_bytes();
    let mut pages = vec![0u8; bytes.div_ceil(page)];
    // SAFETY: the range is the mapping's own and `pages` has a byte for each of its pages.
    if unsafe { libc::mincore(map.as_ptr() as *mut libc::c_void, bytes, pages.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(pages.iter().filter(|page| *page & 1 == 1).count() as u64 * page as u64)
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}
