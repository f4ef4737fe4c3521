//! The least that a lookup can cost: a random read of the device, or a miss of the processor's caches. A program does one
//! between two lookups of its own, so that both meet the same machine.
//!
//! Owns: such accesses, one at a time, with their latencies. Must not: know the program's own work. Runs on the caller's
//! thread.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use memmap2::{Advice, MmapMut};

use crate::device::{Aligned, PAGE_BYTES, Place, Quantiles, histogram, large_files, random, seed};

/// Size of the memory whose lines are read: many times a processor's last cache, so nearly every line is a miss.
const MEMORY_BYTES: usize = 1 << 30;
const LINE_BYTES: usize = 64;

/// Accesses of one kind, and their latencies so far.
pub struct Floor {
    of: Of,
    /// State of xorshift64, never 0.
    state: u64,
    taken: Histogram<u64>,
    /// Time in all accesses, with the work around them.
    spent: Duration,
}

enum Of {
    Device { files: Vec<(File, u64)>, buffer: Aligned },
    Memory(MmapMut),
}

impl Floor {
    /// Prepares reads of 4 KiB at random places of the files in `dir`, past the page cache. `None` if no file has 1 MiB, or
    /// the file system has no direct reads.
    ///
    /// # Errors
    /// I/O errors of listing and opening the files.
    pub fn of_device(dir: &Path) -> Result<Option<Self>> {
        let files = large_files(dir)
            .with_context(|| format!("cannot open the files for direct reads: dir={}", dir.display()))?;
        Ok(files.map(|files| Self::new(Of::Device { files, buffer: Aligned::new(PAGE_BYTES) })))
    }

    /// Prepares loads of random cache lines of 1 GiB of memory in huge pages, if the kernel has some.
    ///
    /// # Errors
    /// No such memory.
    pub fn of_memory() -> Result<Self> {
        let mut memory = MmapMut::map_anon(MEMORY_BYTES).context("cannot take memory to measure its misses")?;
        // Without huge pages the loads have misses of the TLB in them as well.
        memory.advise(Advice::HugePage).ok();
        // Each page is touched, because untouched ones may all be the same page of zeros.
        memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        // A kernel that had no huge pages ready has given small ones. It is asked for huge ones once more, as strata does.
        // SAFETY: the range is this mapping, whose content the kernel keeps. A kernel that does not know the advice, or has
        // no huge pages, leaves it as it is.
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_COLLAPSE) };
        Ok(Self::new(Of::Memory(memory)))
    }

    fn new(of: Of) -> Self {
        Self { of, state: seed(), taken: histogram(), spent: Duration::ZERO }
    }

    /// Makes one access and records its latency.
    ///
    /// # Errors
    /// I/O errors of reading.
    pub fn access(&mut self) -> Result<()> {
        let entered = Instant::now();
        let number = random(&mut self.state);
        let taken = match &mut self.of {
            Of::Device { files, buffer } => {
                let Some(Place { file, offset }) = Place::at(files, number) else { return Ok(()) };
                let started = Instant::now();
                file.read_exact_at(buffer.bytes(), offset)?;
                started.elapsed()
            }
            Of::Memory(memory) => {
                let line = (number % (MEMORY_BYTES / LINE_BYTES) as u64) as usize;
                let started = Instant::now();
                // The second reading waits for the load, because the kernel's clock begins with a fence for loads.
                black_box(memory[black_box(line * LINE_BYTES)]);
                started.elapsed()
            }
        };
        self.taken.saturating_record(taken.as_nanos() as u64);
        self.spent += entered.elapsed();
        Ok(())
    }

    /// Number of accesses so far.
    pub fn count(&self) -> u64 {
        self.taken.len()
    }

    /// Time in all accesses so far, in seconds. Their CPU time and the memory that they take are the process's.
    pub fn elapsed_s(&self) -> f64 {
        self.spent.as_secs_f64()
    }

    /// Bytes read from the device so far.
    pub fn device_read_bytes(&self) -> u64 {
        if matches!(self.of, Of::Device { .. }) { self.count() * PAGE_BYTES as u64 } else { 0 }
    }

    /// Quantiles of the latencies so far, in ns.
    pub fn quantiles(&self) -> Quantiles {
        Quantiles::of(&self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_counted_with_the_bytes_that_they_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Floor::of_device(dir.path()).unwrap().is_none(), "no file");
        std::fs::write(dir.path().join("large"), vec![7; 2 << 20]).unwrap();
        // A file system without direct reads has none.
        for mut floor in Floor::of_device(dir.path()).unwrap().into_iter().chain([Floor::of_memory().unwrap()]) {
            (0..100).for_each(|_| floor.access().unwrap());
            assert_eq!(floor.count(), 100);
            assert!([0, 100 * 4096].contains(&floor.device_read_bytes()));
            let Quantiles { min, p50, max, .. } = floor.quantiles();
            assert!(min <= p50 && p50 <= max && floor.elapsed_s() > 0.0);
        }
    }
}
