//! The shared code of this crate's programs: keys, copies of stores, times and the lines that they print.
//!
//! Owns: the form of a figure, `name=value`, one a line, which `turns` reads. Must not: know an engine. Each program runs
//! on its main thread alone.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// A key or a value.
pub type Bytes32 = [u8; 32];

/// Keys in no order, the same ones for the same seed (splitmix64).
pub struct Random(u64);

impl Random {
    /// The keys of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn key(&mut self) -> Bytes32 {
        let mut key = [0; 32];
        key.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&self.number().to_be_bytes()));
        key
    }

    /// So many keys, sorted where that is asked for.
    pub fn keys(&mut self, count: usize, sorted: bool) -> Vec<Bytes32> {
        let mut keys: Vec<Bytes32> = (0..count).map(|_| self.key()).collect();
        if sorted {
            keys.sort_unstable();
        }
        keys
    }
}

/// The key at place `at` of `count` keys that ascend evenly.
pub fn ascending_key(random: &mut Random, at: u64, count: u64) -> Bytes32 {
    let mut key = random.key();
    key[..8].copy_from_slice(&(at * (u64::MAX / count)).to_be_bytes());
    key
}

/// Prints a figure for `turns`.
pub fn print_figure(name: &str, value: f64) {
    println!("{name}={value:.4}");
}

/// The middle one of the values.
///
/// # Panics
/// Without any.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Runs `work` and says how long it took.
///
/// # Errors
/// Those of `work`.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let begun = Instant::now();
    Ok((work()?, begun.elapsed()))
}

/// Makes `work` an empty directory that holds a copy of the store's file, flushed, so that no measured flush carries it.
///
/// # Errors
/// The file system's.
pub fn copy_store(file: &Path, work: &Path) -> Result<()> {
    empty_dir(work)?;
    let name = file.file_name().with_context(|| format!("not a file: file={}", file.display()))?;
    let copy = work.join(name);
    fs::copy(file, &copy).with_context(|| format!("cannot copy: from={} to={}", file.display(), copy.display()))?;
    File::open(&copy)?.sync_all()?;
    File::open(work)?.sync_all()?;
    Ok(())
}

/// Makes `work` an empty directory. Its content is removed only if an earlier run made it.
///
/// # Errors
/// The directory holds something else; else the file system's.
pub fn empty_dir(work: &Path) -> Result<()> {
    const MARK: &str = "TRIALS";
    if work.exists() {
        let known = work.join(MARK).exists() || fs::read_dir(work)?.next().is_none();
        anyhow::ensure!(known, "directory is not one of an earlier run: dir={}: name another one", work.display());
        fs::remove_dir_all(work)?;
    }
    fs::create_dir_all(work)?;
    fs::write(work.join(MARK), "made by engines/trials, removed by its next run\n")?;
    Ok(())
}

/// Drops the file's pages from the page cache.
///
/// # Errors
/// The file system's.
pub fn drop_cache(file: &Path) -> Result<()> {
    let opened = File::open(file).with_context(|| format!("cannot open: file={}", file.display()))?;
    opened.sync_all()?;
    // SAFETY: advice on an open file.
    let rc = unsafe { libc::posix_fadvise(opened.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    anyhow::ensure!(rc == 0, "cannot drop the file from the page cache: {}", io::Error::from_raw_os_error(rc));
    Ok(())
}

/// Reads the whole file, so that the page cache holds it as far as it fits.
///
/// # Errors
/// The file system's.
pub fn warm_cache(file: &Path) -> Result<()> {
    io::copy(&mut File::open(file)?, &mut io::sink())?;
    Ok(())
}

/// Bytes that this process has handed to calls that write, from /proc/self/io. Not `write_bytes`: that counts whole folios
/// of the page cache, which may be many times the bytes written. Writes through a map are in neither.
///
/// # Errors
/// The kernel does not say.
pub fn written_bytes() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(bytes.context("/proc/self/io has no wchar")?.trim().parse()?)
}
