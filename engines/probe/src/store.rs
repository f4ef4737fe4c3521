//! Resources that a store uses: disk space, and pages in the kernel's page cache.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Bytes of one read in [`fill_page_cache`].
const READ_BYTES: usize = 1 << 20;

/// Returns the bytes of the blocks that are allocated to all files below `dir`.
pub fn disk_bytes(dir: &Path) -> u64 {
    // st_blocks counts 512 bytes whatever the file system's block size is.
    files(dir).iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.blocks() * 512).sum()
}

/// Returns the bytes that the page cache can hold of the files below `dir`: whole pages, without the holes of a sparse file and
/// without blocks that were allocated beyond a file's end.
pub fn cacheable_bytes(dir: &Path) -> u64 {
    files(dir).iter().filter_map(|path| fs::metadata(path).ok()).map(|file| cacheable_file_bytes(&file)).sum()
}

/// Returns the same of one file.
pub fn cacheable_file_bytes(file: &fs::Metadata) -> u64 {
    file.len().next_multiple_of(page_bytes() as u64).min(file.blocks() * 512)
}

/// Returns the bytes of files below `dir` that the page cache holds, for whichever process read or wrote them.
pub fn page_cache_bytes(dir: &Path) -> u64 {
    files(dir).iter().filter_map(|path| resident_bytes(path).ok()).sum()
}

/// Drops the files below `dir` from the page cache, so that the next reads are cold. Dirty pages are flushed first.
/// Pages that another process has mapped may stay, so look at [`page_cache_bytes`] afterwards.
///
/// # Errors
/// I/O errors of opening, flushing or advising a file, which the message names.
pub fn drop_page_cache(dir: &Path) -> Result<()> {
    for path in files(dir) {
        let file = File::open(&path).with_context(|| format!("cannot open file={}", path.display()))?;
        file.sync_all().with_context(|| format!("cannot flush file={}", path.display()))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .with_context(|| format!("cannot drop pages of file={}", path.display()))?;
    }
    Ok(())
}

/// Reads the files below `dir` once, each from its beginning to its end, so that the page cache holds as much of them as
/// it has room for. Files that vanish meanwhile are left out.
///
/// # Errors
/// I/O errors of reading a file, which the message names.
pub fn fill_page_cache(dir: &Path) -> Result<()> {
    let mut piece = vec![0; READ_BYTES];
    for path in files(dir) {
        let Ok(mut file) = File::open(&path) else { continue };
        while file.read(&mut piece).with_context(|| format!("cannot read file={}", path.display()))? > 0 {}
    }
    Ok(())
}

/// Returns the bytes of this range of the file that the page cache lacks, in whole pages. `offset` is a multiple of the page
/// size, and the range lies within the file.
///
/// # Errors
/// The kernel's error of looking at the file's pages.
pub fn missing_bytes(file: &File, offset: u64, bytes: u64) -> std::io::Result<u64> {
    Ok(bytes.next_multiple_of(page_bytes() as u64).saturating_sub(cached_bytes(file, offset, bytes)?))
}

/// Flushes all writes to the file system that holds `dir` to its device.
///
/// # Errors
/// I/O errors of opening the directory, which the message names, and of the flush.
pub fn sync_file_system(dir: &Path) -> Result<()> {
    let file = File::open(dir).with_context(|| format!("cannot open dir={}", dir.display()))?;
    rustix::fs::syncfs(&file).with_context(|| format!("cannot flush the file system: dir={}", dir.display()))
}

/// Total and free space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Space {
    /// Bytes that a process without privileges may still write.
    pub free_bytes: u64,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
}

/// Returns the space of the file system that holds `dir`. The directory need not exist yet.
///
/// # Errors
/// I/O errors of asking the file system. The message names the directory that was asked about.
pub fn space(dir: &Path) -> Result<Space> {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let space = rustix::fs::statvfs(existing)
        .with_context(|| format!("cannot ask for the free disk space: dir={}", existing.display()))?;
    Ok(Space {
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
    })
}

/// Whether both directories are on one file system. Neither need exist yet.
pub fn is_same_disk(one: &Path, other: &Path) -> bool {
    let device = |dir: &Path| dir.ancestors().find_map(|dir| fs::metadata(dir).ok()).map(|dir| dir.dev());
    device(one) == device(other)
}

/// Refuses to start a load that will not fit on the disk. `needed_bytes` is an estimate.
///
/// # Errors
/// Too little free space. The message names the directory, the free bytes and the needed bytes.
pub fn check_disk(dir: &Path, needed_bytes: u64) -> Result<()> {
    let Space { free_bytes, .. } = space(dir)?;
    if free_bytes < needed_bytes {
        bail!(
            "not enough disk: dir={} free_bytes={free_bytes} needed_bytes={needed_bytes} (an estimate); free space, \
             name another --dir or --work-dir, or insist with --skip-disk-check",
            dir.display()
        );
    }
    Ok(())
}

/// Returns the files below `dir`. Files that vanish meanwhile, for example in a compaction, are left out.
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

/// Number of the system call `cachestat`, the same on all architectures that this runs on.
const CACHESTAT: libc::c_long = 451;
/// Number of counts that `cachestat` returns: pages that are cached, dirty, being written, evicted, recently evicted.
const CACHE_COUNTS: usize = 5;

fn resident_bytes(path: &Path) -> std::io::Result<u64> {
    let file = File::open(path)?;
    cached_bytes(&file, 0, file.metadata()?.len())
}

/// Returns the bytes of this range of the file that the page cache holds, in whole pages. `offset` is a multiple of the page
/// size, and the range lies within the file.
fn cached_bytes(file: &File, offset: u64, bytes: u64) -> std::io::Result<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let (range, mut counts) = ([offset, bytes], [0u64; CACHE_COUNTS]);
    let (from, to) = (range.as_ptr(), counts.as_mut_ptr());
    // SAFETY: the kernel reads the two numbers of `range` and writes the five of `counts`. Both outlive the call.
    if unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), from, to, 0) } == 0 {
        return Ok(counts[0] * page_bytes() as u64);
    }
    // Linux before 6.5 does not have this call, and a sandbox may forbid it.
    mapped_cached_bytes(file, offset, bytes)
}

/// Does the same as [`cached_bytes`] by asking the kernel about each page through a mapping of the file. This takes
/// milliseconds for a gigabyte, even if nothing of it is in the cache.
fn mapped_cached_bytes(file: &File, offset: u64, bytes: u64) -> std::io::Result<u64> {
    let bytes = bytes as usize;
    // SAFETY: the mapping is never read. `mincore` only asks the kernel which pages are in memory, and that is defined
    // whatever other processes do to the file.
    let map = unsafe { memmap2::MmapOptions::new().offset(offset).len(bytes).map(file)? };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_file_are_counted_dropped_and_read_in() {
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        fs::write(dir.path().join("file"), vec![1; 1 << 20]).expect("written");
        assert!(page_cache_bytes(dir.path()) >= 1 << 20);
        let file = File::open(dir.path().join("file")).expect("it is there");
        let mapped = |offset, bytes| mapped_cached_bytes(&file, offset, bytes).expect("counted");
        let missing = |offset, bytes| missing_bytes(&file, offset, bytes).expect("counted");
        assert_eq!((mapped(0, 1 << 20), mapped(1 << 19, 1 << 12), missing(0, 1 << 20)), (1 << 20, 1 << 12, 0));
        drop_page_cache(dir.path()).expect("dropped");
        assert_eq!((page_cache_bytes(dir.path()), mapped(0, 1 << 20)), (0, 0));
        assert_eq!((missing(0, 1 << 20), missing(1 << 19, 1), missing(0, 0)), (1 << 20, page_bytes() as u64, 0));
        fill_page_cache(dir.path()).expect("read");
        assert!(page_cache_bytes(dir.path()) >= 1 << 20);
        assert!(disk_bytes(dir.path()) >= 1 << 20);
    }

    #[test]
    fn the_page_cache_can_hold_neither_holes_nor_blocks_beyond_the_end() {
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        let file = File::create(dir.path().join("file")).expect("created");
        file.set_len(1 << 20).expect("a hole");
        assert_eq!(cacheable_bytes(dir.path()), 0);
        file.set_len(0).expect("no hole");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 1 << 20).expect("allocated");
        fs::write(dir.path().join("other"), [1]).expect("written");
        sync_file_system(dir.path()).expect("flushed");
        assert!(disk_bytes(dir.path()) >= 1 << 20);
        assert_eq!(cacheable_bytes(dir.path()), page_bytes() as u64);
    }
}
