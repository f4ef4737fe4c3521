//! Resources that a store uses: disk space, and pages in the kernel's page cache.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Read;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Bytes of one read in [`fill_page_cache`] and [`read_missing`]. A flash drive reaches its sequential rate with reads of 1
/// MiB.
const READ_BYTES: usize = 1 << 20;
/// Pieces that [`read_missing`] has the kernel read beyond the one that it waits for, so that the device has work meanwhile.
const PIECES_AHEAD: u64 = 1;

/// Returns the bytes of the blocks that are allocated to all files below `dir`.
pub fn disk_bytes(dir: &Path) -> u64 {
    // st_blocks counts 512 bytes whatever the file system's block size is.
    files(dir).iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.blocks() * 512).sum()
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

/// Returns the bytes of these files that the page cache lacks, in whole pages. Files that vanish meanwhile are left out.
pub fn missing_bytes(files: &[PathBuf]) -> u64 {
    let missing = |path: &PathBuf| {
        let file = File::open(path).ok()?;
        let bytes = file.metadata().ok()?.len();
        missing_within(&file, 0, bytes).ok()
    };
    files.iter().filter_map(missing).sum()
}

/// Reads the parts of these files that the page cache lacks, each file from its beginning to its end. After each piece,
/// `go_on` gets the number of its bytes that were lacking, and ends the reading by returning false. Files that vanish
/// meanwhile are left out. At most two pieces of 1 MiB are asked of the device at a time. A piece that cannot be read is left
/// out, and the first such error is returned after all others have been read.
///
/// This opens and closes the files. So none of them may be one that the process has locked with `fcntl`, because such a lock
/// ends with the first descriptor of the file that is closed.
///
/// # Errors
/// I/O errors of reading a file, which the message names.
pub fn read_missing(files: &[PathBuf], go_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
    let (mut piece, mut first_failure) = (vec![0; READ_BYTES], Ok(()));
    for path in files {
        let Ok(file) = File::open(path) else { continue };
        let failed = |e: std::io::Error| Err(e).with_context(|| format!("cannot read file={}", path.display()));
        match read_missing_of(&file, &mut piece, go_on) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => first_failure = first_failure.and_then(|()| failed(e)),
        }
    }
    first_failure
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
fn files(dir: &Path) -> Vec<PathBuf> {
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

/// Does [`read_missing`] for one file. Returns false if `go_on` did.
fn read_missing_of(file: &File, piece: &mut [u8], go_on: &mut dyn FnMut(u64) -> bool) -> std::io::Result<bool> {
    // The kernel's own readahead would bring in pieces that were not looked at yet.
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random)?;
    let bytes = file.metadata()?.len();
    let (mut asked, mut lacking, mut first_failure) = (0, VecDeque::new(), Ok(true));
    for offset in (0..bytes).step_by(READ_BYTES) {
        while asked < bytes && asked <= offset + PIECES_AHEAD * READ_BYTES as u64 {
            let piece_bytes = (bytes - asked).min(READ_BYTES as u64);
            lacking.push_back(ask_for(file, asked, piece_bytes)?);
            asked += piece_bytes;
        }
        let lacked = lacking.pop_front().unwrap_or(0);
        if lacked == 0 {
            continue;
        }
        match file.read_at(piece, offset) {
            Ok(_) if !go_on(lacked) => return Ok(false),
            Ok(_) => {}
            Err(e) => first_failure = first_failure.and(Err(e)),
        }
    }
    first_failure
}

/// Asks the kernel to read this range of the file, and returns the number of its bytes that the page cache lacked.
fn ask_for(file: &File, offset: u64, bytes: u64) -> std::io::Result<u64> {
    let missing = missing_within(file, offset, bytes)?;
    if missing > 0 {
        rustix::fs::fadvise(file, offset, NonZeroU64::new(bytes), rustix::fs::Advice::WillNeed)?;
    }
    Ok(missing)
}

/// Returns the bytes of this range of the file that the page cache lacks, in whole pages.
fn missing_within(file: &File, offset: u64, bytes: u64) -> std::io::Result<u64> {
    Ok(bytes.next_multiple_of(page_bytes() as u64).saturating_sub(cached_bytes(file, offset, bytes)?))
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
        assert_eq!((mapped(0, 1 << 20), mapped(1 << 19, 1 << 12)), (1 << 20, 1 << 12));
        drop_page_cache(dir.path()).expect("dropped");
        assert_eq!((page_cache_bytes(dir.path()), mapped(0, 1 << 20)), (0, 0));
        fill_page_cache(dir.path()).expect("read");
        assert!(page_cache_bytes(dir.path()) >= 1 << 20);
        assert!(disk_bytes(dir.path()) >= 1 << 20);
    }

    #[test]
    fn only_what_the_page_cache_lacks_is_read_until_told_to_end() {
        const BYTES: u64 = 5 * READ_BYTES as u64 + 4000;
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        let path = dir.path().join("file");
        fs::write(&path, vec![1; BYTES as usize]).expect("written");
        fs::write(dir.path().join("empty"), []).expect("written");
        drop_page_cache(dir.path()).expect("dropped");
        let files = files(dir.path());
        let read = |pieces_max: usize| {
            let mut lacked = Vec::new();
            let go_on = &mut |bytes| {
                lacked.push(bytes);
                lacked.len() < pieces_max
            };
            read_missing(&files, go_on).expect("read");
            lacked
        };
        assert_eq!(missing_bytes(&files), BYTES.next_multiple_of(page_bytes() as u64));
        assert_eq!(read(2), [READ_BYTES as u64; 2]);
        let cached = page_cache_bytes(dir.path());
        let bound = (2 + PIECES_AHEAD) * READ_BYTES as u64;
        assert!((2 * READ_BYTES as u64..=bound).contains(&cached), "cached={cached}");
        // The pages of the last piece that was asked for may still be on their way, and count as there.
        let rest = read(usize::MAX).into_iter().sum::<u64>();
        assert_eq!(cached + rest, BYTES.next_multiple_of(page_bytes() as u64));
        assert_eq!(page_cache_bytes(dir.path()), cached + rest);
        assert_eq!((read(usize::MAX), missing_bytes(&files)), (Vec::new(), 0));
    }
}
