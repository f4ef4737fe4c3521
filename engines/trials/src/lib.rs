//! The shared code of this crate's programs: keys, copies of stores, times and the lines that they print.
//!
//! Owns: the form of a figure, `name=value`, one a line, which `turns` reads. Must not: know an engine. Each program runs
//! on its main thread alone.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// A key or a value.
pub type Bytes32 = [u8; 32];

/// Keys in no order, the same ones for the same seed (splitmix64).
pub struct Random(u64);

impl Random {
    /// Begins the sequence of keys that belongs to `seed`.
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

    /// Returns the next `count` keys, in ascending order if `sorted` is set.
    pub fn keys(&mut self, count: usize, sorted: bool) -> Vec<Bytes32> {
        let mut keys: Vec<Bytes32> = (0..count).map(|_| self.key()).collect();
        if sorted {
            keys.sort_unstable();
        }
        keys
    }
}

/// Keys of a store, evenly from all of it.
pub struct Sample {
    kept: Vec<Bytes32>,
    count: usize,
    seen: u64,
}

impl Sample {
    /// A sample of `count` keys, or of all if there are fewer.
    pub fn new(count: usize) -> Self {
        Self { kept: Vec::with_capacity(count), count, seen: 0 }
    }

    /// Shows it the next key of the store.
    pub fn add(&mut self, key: Bytes32, random: &mut Random) {
        self.seen += 1;
        if self.kept.len() < self.count {
            self.kept.push(key);
        } else if let Some(place) = self.kept.get_mut((random.number() % self.seen) as usize) {
            *place = key;
        }
    }

    /// Returns the keys in random order.
    ///
    /// # Errors
    /// No key was shown.
    pub fn shuffled(mut self, random: &mut Random) -> Result<Vec<Bytes32>> {
        ensure!(!self.kept.is_empty(), "store is empty: load some pairs first");
        for at in (1..self.kept.len()).rev() {
            self.kept.swap(at, (random.number() % (at as u64 + 1)) as usize);
        }
        Ok(self.kept)
    }
}

/// Number of gets in a block. The result is the median of the blocks' means.
pub const BLOCK_GETS: usize = 1000;

/// Calls `find` for each key, and returns the median of the blocks' means in nanoseconds.
///
/// # Errors
/// Errors of `find`, an answer that is not `expected`, and fewer keys than a block has.
pub fn time_gets(keys: &[Bytes32], expected: bool, mut find: impl FnMut(&Bytes32) -> Result<bool>) -> Result<f64> {
    let mut means = Vec::with_capacity(keys.len() / BLOCK_GETS);
    for block in keys.chunks_exact(BLOCK_GETS) {
        let begun = Instant::now();
        for key in block {
            ensure!(find(key)? == expected, "a get is wrong: expected={expected} key={key:?}");
        }
        means.push(begun.elapsed().as_nanos() as f64 / BLOCK_GETS as f64);
    }
    ensure!(!means.is_empty(), "there are fewer than {BLOCK_GETS} keys: ask for more, or load more");
    Ok(median(&mut means))
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

/// Returns the median of the values, which it sorts.
///
/// # Panics
/// Panics if there are no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Runs `work`, and returns its result with the time that it took.
///
/// # Errors
/// Any error of `work`.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let begun = Instant::now();
    Ok((work()?, begun.elapsed()))
}

/// Empties the directory `work` and copies the store's file into it. The copy is flushed, so that no measured flush has
/// to write it.
///
/// # Errors
/// I/O errors of emptying the directory and of copying.
pub fn copy_store(file: &Path, work: &Path) -> Result<()> {
    empty_dir(work)?;
    let name = file.file_name().with_context(|| format!("not a file: file={}", file.display()))?;
    let copy = work.join(name);
    fs::copy(file, &copy).with_context(|| format!("cannot copy: from={} to={}", file.display(), copy.display()))?;
    File::open(&copy)?.sync_all()?;
    File::open(work)?.sync_all()?;
    Ok(())
}

/// Makes `work` an empty directory. Removes the content of an existing one only if an earlier run made it.
///
/// # Errors
/// A directory with content that no earlier run made; I/O errors of removing and creating.
pub fn empty_dir(work: &Path) -> Result<()> {
    const MARK: &str = "TRIALS";
    if work.exists() {
        let known = work.join(MARK).exists() || fs::read_dir(work)?.next().is_none();
        ensure!(known, "directory is not one of an earlier run: dir={}: name another one", work.display());
        fs::remove_dir_all(work)?;
    }
    fs::create_dir_all(work)?;
    fs::write(work.join(MARK), "made by engines/trials, removed by its next run\n")?;
    Ok(())
}

/// Drops the file's pages from the page cache.
///
/// # Errors
/// I/O errors of opening and flushing the file, and of dropping its pages.
pub fn drop_cache(file: &Path) -> Result<()> {
    let opened = File::open(file).with_context(|| format!("cannot open: file={}", file.display()))?;
    opened.sync_all()?;
    // SAFETY: advice on an open file.
    let rc = unsafe { libc::posix_fadvise(opened.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    ensure!(rc == 0, "cannot drop the file from the page cache: {}", io::Error::from_raw_os_error(rc));
    Ok(())
}

/// Reads the whole file, so that the page cache holds it as far as it fits.
///
/// # Errors
/// I/O errors of opening and reading the file.
pub fn warm_cache(file: &Path) -> Result<()> {
    io::copy(&mut File::open(file)?, &mut io::sink())?;
    Ok(())
}

/// Returns the bytes that this process has passed to calls that write (`wchar` of /proc/self/io). `write_bytes` would
/// count whole folios of the page cache, which may be many times as much. Neither counts writes through a map.
///
/// # Errors
/// I/O errors of reading /proc/self/io; no such count in it.
pub fn written_bytes() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(bytes.context("/proc/self/io has no wchar")?.trim().parse()?)
}
