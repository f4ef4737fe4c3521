//! Signs of life of the service's worker threads, for the watchdog of systemd.
//!
//! Owns: one counter a thread. Must not: block; a beat is one relaxed addition. A thread beats when it begins a round
//! of its loop and, in long rounds, after each piece of work. An observer that finds the same number twice has found a
//! thread that is stalled in one piece of work, for example by a deadlock or a device that does not answer.
//!
//! A commit may wait for the engine's merges for minutes, for example after a repair. As long as they make progress,
//! the files of the store change in size, and the thread that commits counts as alive.
//!
//! ingest-apply, `lookup-N` and `shm-lookup` beat. A thread that waits because the disk is full or a commit is tried
//! again beats as well, because lookups continue. `overlay` and `sample` do not beat: answers stay right while they
//! stall.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use probe::disk_bytes;

use super::lock;

/// One thread's counter. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Records that the thread makes progress.
    pub fn beat(&self) {
        // ORDERING: Relaxed: the number alone counts.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn beats(&self) -> u64 {
        // ORDERING: Relaxed: see `beat`.
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of all threads that must make progress. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pulses(Arc<Mutex<Vec<Thread>>>);

#[derive(Clone, Debug)]
struct Thread {
    name: String,
    pulse: Pulse,
    /// Directory of the store that the thread commits to.
    writes: Option<PathBuf>,
}

/// State in which a thread was seen last.
#[derive(Debug)]
pub struct Seen {
    beats: u64,
    /// Disk space of the store that the thread commits to, which is looked up only while the thread does not beat.
    disk_bytes: Option<u64>,
}

impl Pulses {
    /// Adds a thread and returns its counter. The thread must beat from now on.
    pub fn add(&self, name: impl Into<String>) -> Pulse {
        self.push(name.into(), None)
    }

    /// Adds a thread that commits to the store whose engine has its files in `data`. It need not beat while these files
    /// change in size.
    pub fn add_writer(&self, name: impl Into<String>, data: &Path) -> Pulse {
        self.push(name.into(), Some(data.to_owned()))
    }

    fn push(&self, name: String, writes: Option<PathBuf>) -> Pulse {
        let pulse = Pulse::default();
        lock(&self.0).push(Thread { name, pulse: pulse.clone(), writes });
        pulse
    }

    /// Returns the names of the threads that have made no progress since the last call, and updates `seen`. A new
    /// thread counts as alive. Blocks for as long as listing a directory takes.
    pub fn still(&self, seen: &mut Vec<Seen>) -> Vec<String> {
        let threads = lock(&self.0).clone();
        let mut still = Vec::new();
        for (n, thread) in threads.into_iter().enumerate() {
            let beats = thread.pulse.beats();
            match seen.get_mut(n) {
                Some(seen) if seen.beats == beats => {
                    let disk_bytes = thread.writes.as_deref().map(disk_bytes);
                    if seen.disk_bytes == disk_bytes {
                        still.push(thread.name);
                    }
                    seen.disk_bytes = disk_bytes;
                }
                Some(seen) => *seen = Seen { beats, disk_bytes: None },
                None => seen.push(Seen { beats, disk_bytes: None }),
            }
        }
        still
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_thread_that_does_not_beat_is_named() {
        let pulses = Pulses::default();
        let (first, second) = (pulses.add("first"), pulses.add("second"));
        let mut seen = Vec::new();
        assert!(pulses.still(&mut seen).is_empty(), "seen for the first time");
        first.beat();
        assert_eq!(pulses.still(&mut seen), ["second"]);
        assert_eq!(pulses.still(&mut seen), ["first", "second"]);
        second.beat();
        first.beat();
        assert!(pulses.still(&mut seen).is_empty());
    }

    #[test]
    fn a_commit_that_waits_for_merges_is_alive_while_they_make_progress() {
        let (pulses, dir) = (Pulses::default(), tempfile::tempdir().unwrap());
        let (_writer, reader) = (pulses.add_writer("writer", dir.path()), pulses.add("reader"));
        let mut seen = Vec::new();
        assert!(pulses.still(&mut seen).is_empty(), "seen for the first time");
        let mut look = || {
            reader.beat();
            pulses.still(&mut seen)
        };
        assert!(look().is_empty(), "the files are seen for the first time");
        for n in 0..3 {
            fs::write(dir.path().join(n.to_string()), vec![1; 1 << 16]).unwrap();
            assert!(look().is_empty(), "a merge writes");
        }
        fs::remove_file(dir.path().join("0")).unwrap();
        assert!(look().is_empty(), "a merge removes a file");
        assert_eq!(look(), ["writer"], "nothing has happened since");
        assert_eq!(look(), ["writer"]);
        fs::write(dir.path().join("4"), vec![1; 1 << 16]).unwrap();
        reader.beat();
        assert!(look().is_empty());
        assert_eq!(pulses.still(&mut seen), ["writer", "reader"], "the files excuse their writer alone");
    }
}
