//! Performance of a storage device without any engine, and the device's counters since boot.
//!
//! Owns: the baseline that every result is compared with, and the reading of the device's counters. Must not: leave its
//! measuring file on the device.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::machine::{device_name, machine};

/// Size of the baseline's file: larger than a device's own cache, small enough to be written in seconds.
const FILE_BYTES: u64 = 1 << 30;
/// Bytes of one sequential read or write.
const CHUNK_BYTES: usize = 4 << 20;
pub(crate) const PAGE_BYTES: usize = 4096;
/// Largest number of random reads. They end earlier after [`RANDOM_READS_TIME`].
const RANDOM_READS: u32 = 20_000;
const RANDOM_READS_TIME: Duration = Duration::from_secs(5);
const FLUSH_BYTES: usize = 64 << 10;
const FLUSHES: u32 = 300;
const FLUSHES_TIME: Duration = Duration::from_secs(5);
const NAME: &str = "solkv-baseline.tmp";

/// Quantiles of a latency, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub p9999: u64,
    pub max: u64,
}

impl Quantiles {
    /// Reads the quantiles from a histogram of values in ns.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            min: histogram.min(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: histogram.max(),
        }
    }
}

/// Performance of the device without any engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Latency of 4 KiB reads at random offsets of a 1 GiB file, one at a time, bypassing the page cache.
    pub random_read_ns: Quantiles,
    /// Speed of reading that file from start to end in pieces of 4 MiB, bypassing the page cache.
    pub sequential_read_bytes_per_s: f64,
    /// Speed of writing that file from start to end through the page cache, with one flush at the end.
    pub sequential_write_bytes_per_s: f64,
    /// Latency of overwriting 64 KiB and then calling `fdatasync`.
    pub fdatasync_ns: Quantiles,
    /// Whether `O_DIRECT` was available. Without it the reads may have come from the page cache.
    pub direct: bool,
}

/// Measures the device under `dir`. Takes some ten seconds and 1 GiB of space.
///
/// # Errors
/// Any I/O error of creating, writing, flushing or reading the file, which the message names.
pub fn baseline(dir: &Path) -> Result<Baseline> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make dir={}", dir.display()))?;
    let path = dir.join(NAME);
    let measured = measure(&path).with_context(|| format!("cannot measure the device: file={}", path.display()));
    fs::remove_file(&path).ok();
    measured
}

fn measure(path: &Path) -> Result<Baseline> {
    let sequential_write_bytes_per_s = write_file(path)?;
    let fdatasync_ns = flushes(path)?;
    let (file, direct) = open_direct(path)?;
    let mut buffer = Aligned::new(CHUNK_BYTES);
    let started = Instant::now();
    for offset in (0..FILE_BYTES).step_by(CHUNK_BYTES) {
        file.read_exact_at(buffer.bytes(), offset)?;
    }
    let sequential_read_bytes_per_s = FILE_BYTES as f64 / started.elapsed().as_secs_f64();
    let histogram = read_at_random(&[(file, FILE_BYTES)], RANDOM_READS, RANDOM_READS_TIME)?;
    Ok(Baseline {
        random_read_ns: Quantiles::of(&histogram),
        sequential_read_bytes_per_s,
        sequential_write_bytes_per_s,
        fdatasync_ns,
        direct,
    })
}

/// Measures 4 KiB reads at random offsets of all files in `dir`, `depth` of them at once on as many threads, bypassing
/// the page cache. This shows the device's present performance over the space that a store takes. Returns the latencies
/// and the reads a second. `None` if no file has 1 MiB, or the file system has no direct reads.
///
/// # Errors
/// Any I/O error of listing the directory, which the message names, or of opening and reading its files.
pub fn random_reads(dir: &Path, depth: u32, time: Duration) -> Result<Option<(Quantiles, f64)>> {
    let measure = || {
        let Some(files) = large_files(dir)? else { return Ok(None) };
        let (started, mut taken) = (Instant::now(), histogram());
        let read = || read_at_random(&files, u32::MAX, time);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..depth).map(|_| scope.spawn(read)).collect();
            threads.into_iter().try_for_each(|thread| {
                taken.add(thread.join().expect("a loop of reads does not panic")?)?;
                anyhow::Ok(())
            })
        })?;
        let per_second = taken.len() as f64 / started.elapsed().as_secs_f64();
        anyhow::Ok(Some((Quantiles::of(&taken), per_second)))
    };
    measure().with_context(|| format!("cannot measure the device: dir={}", dir.display()))
}

/// Opens every file of 1 MiB or more below `dir` for direct reads, with its allocated bytes. `None` if there is no such
/// file, or the file system has no direct reads.
pub(crate) fn large_files(dir: &Path) -> Result<Option<Vec<(File, u64)>>> {
    let mut files = Vec::new();
    let is_direct = open_large_files(dir, &mut files)?;
    Ok((is_direct && !files.is_empty()).then_some(files))
}

/// Adds these files to `files`. Returns false if the file system has no direct reads.
fn open_large_files(dir: &Path, files: &mut Vec<(File, u64)>) -> Result<bool> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            if !open_large_files(&entry.path(), files)? {
                return Ok(false);
            }
            continue;
        }
        // LMDB's file is sparse: only its allocated part may be read.
        let bytes = metadata.len().min(metadata.blocks() * 512);
        if bytes >= 1 << 20 {
            let (file, direct) = open_direct(&entry.path())?;
            if !direct {
                return Ok(false);
            }
            files.push((file, bytes));
        }
    }
    Ok(true)
}

/// Returns the seed of the random offsets, another one each time: a host that caches earlier reads would answer the
/// same offsets from its memory. It is never 0, a state that xorshift does not leave.
pub(crate) fn seed() -> u64 {
    let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Returns the next number of xorshift64 (Marsaglia 2003): places that it picks have no pattern that a device or a processor
/// could predict.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A page of one of several files.
pub(crate) struct Place<'a> {
    pub(crate) file: &'a File,
    pub(crate) offset: u64,
}

impl<'a> Place<'a> {
    /// Returns page `number` of `files`, which are given with their lengths in bytes and count as one long file that repeats.
    /// `None` if they have no page.
    pub(crate) fn at(files: &'a [(File, u64)], number: u64) -> Option<Self> {
        let pages = |bytes: u64| bytes / PAGE_BYTES as u64;
        let mut page = number.checked_rem(files.iter().map(|(_, bytes)| pages(*bytes)).sum())?;
        let (file, _) = files.iter().find(|(_, bytes)| {
            let here = page < pages(*bytes);
            page -= if here { 0 } else { pages(*bytes) };
            here
        })?;
        Some(Self { file, offset: page * PAGE_BYTES as u64 })
    }
}

/// Reads random pages of `files`. Ends after `most` reads or after `time`, whichever comes first.
fn read_at_random(files: &[(File, u64)], most: u32, time: Duration) -> Result<Histogram<u64>> {
    let mut buffer = Aligned::new(PAGE_BYTES);
    let mut histogram = histogram();
    let (started, mut state) = (Instant::now(), seed());
    for _ in 0..most {
        let Some(Place { file, offset }) = Place::at(files, random(&mut state)) else { break };
        let start = Instant::now();
        file.read_exact_at(buffer.bytes(), offset)?;
        histogram.saturating_record(start.elapsed().as_nanos() as u64);
        if started.elapsed() > time {
            break;
        }
    }
    Ok(histogram)
}

fn write_file(path: &Path) -> Result<f64> {
    // Not zeros, because some devices do not store them.
    let chunk: Vec<u8> = (0..CHUNK_BYTES as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let mut file = File::create(path)?;
    let started = Instant::now();
    for _ in 0..FILE_BYTES / CHUNK_BYTES as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(FILE_BYTES as f64 / started.elapsed().as_secs_f64())
}

fn flushes(path: &Path) -> Result<Quantiles> {
    let file = OpenOptions::new().write(true).open(path)?;
    let bytes = vec![0x5a; FLUSH_BYTES];
    let mut histogram = histogram();
    let started = Instant::now();
    for turn in 0..FLUSHES {
        let start = Instant::now();
        file.write_all_at(&bytes, u64::from(turn % 1024) * FLUSH_BYTES as u64)?;
        file.sync_data()?;
        histogram.saturating_record(start.elapsed().as_nanos() as u64);
        if started.elapsed() > FLUSHES_TIME {
            break;
        }
    }
    Ok(Quantiles::of(&histogram))
}

fn open_direct(path: &Path) -> Result<(File, bool)> {
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => Ok((file, true)),
        // tmpfs and some network file systems have no direct reads.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok((File::open(path)?, false)),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants that are valid")
}

/// A buffer that starts at a page boundary, as direct reads demand.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    pub(crate) fn new(length: usize) -> Self {
        let bytes = vec![0; length + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        Self { bytes, start, length }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Bytes of a sector in `/proc/diskstats`, whatever the device's own sector size is.
const SECTOR_BYTES: u64 = 512;

/// Counters of a device since boot, over all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Number of reads that were completed since boot.
    pub reads: u64,
    /// Number of writes that were completed since boot.
    pub writes: u64,
    pub written_bytes: u64,
}

impl DeviceCounts {
    /// Subtracts `earlier`, so that the result covers the time since then.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }
}

/// Returns the counters of the device that holds `dir`; `None` if the kernel shows no such device.
pub fn device_counts(dir: &Path) -> Option<DeviceCounts> {
    let name = device_name(&machine(dir).device)?;
    let text = fs::read_to_string("/proc/diskstats").ok()?;
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        if *words.get(2)? != name {
            return None;
        }
        let written_bytes = number(9)?.saturating_mul(SECTOR_BYTES);
        Some(DeviceCounts { reads: number(3)?, writes: number(7)?, written_bytes })
    })
}
