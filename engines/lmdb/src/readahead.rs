//! Reads the neighbours of a missing page as well, while the file is small enough to fit into memory.
//!
//! Owns: the advice to the kernel about the map. Must not: affect any result. Runs on the thread that opens the store,
//! and later on the writer's.
//!
//! The environment is opened with `MDB_NORDAHEAD`, which LMDB repeats whenever it moves the map. So the map is read
//! without readahead unless this file says otherwise.

use std::sync::atomic::{AtomicBool, Ordering};

use engine_api::Result;
use lmdb::{Database, Environment, Transaction};

use crate::pages::{Pages, Tree, page_bytes, used_bytes};
use crate::tables::PAIRS_TABLE;

/// Whether and how long the kernel reads ahead.
pub(crate) struct Readahead {
    bytes_max: u64,
    on: AtomicBool,
}

impl Readahead {
    /// Readahead up to this size of the file; it is off at first.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, on: AtomicBool::new(false) }
    }

    /// Whether the kernel reads ahead now.
    pub(crate) fn is_on(&self) -> bool {
        // ORDERING: Relaxed: the thread that opens the store is the only one then, and the writer's lock orders the rest.
        self.on.load(Ordering::Relaxed)
    }

    /// Switches the readahead on for a file that is small enough, and off for one that has grown too large. `main` is
    /// LMDB's table of tables, and `txn` is an active transaction of `env`, which keeps the map where it is.
    ///
    /// # Errors
    /// An error of LMDB's when it is asked for the size of the file.
    pub(crate) fn switch<T: Transaction>(&self, env: &Environment, main: Database, txn: &T) -> Result<()> {
        let used = used_bytes(env)?;
        let now = used <= self.bytes_max;
        if now == self.is_on() {
            return Ok(());
        }
        // ORDERING: Relaxed, see `is_on`.
        self.on.store(now, Ordering::Relaxed);
        let page_bytes = page_bytes(env)?;
        let tree = Tree::of(txn, main, PAIRS_TABLE);
        let pages = tree.and_then(|(_, record)| Pages::around(record, page_bytes, used));
        if let Some(pages) = pages {
            pages.advise(if now { libc::MADV_NORMAL } else { libc::MADV_RANDOM });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use engine_api::Engine;

    use crate::ahead::tests::fill;
    use crate::pages::used_bytes;
    use crate::{FILE_NAME, LmdbEngine, LmdbOptions};

    /// Whether the kernel reads ahead in the part of the map that holds the file's first page.
    fn reads_ahead(dir: &Path) -> bool {
        let file = dir.canonicalize().unwrap().join(FILE_NAME).display().to_string();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = maps.split("\nVmFlags:").zip(maps.split("\nVmFlags:").skip(1));
        let mut flags = of_file.filter(|(map, _)| {
            let head = map.lines().find(|line| line.ends_with(&file)).unwrap_or_default();
            head.split_whitespace().nth(2) == Some("00000000")
        });
        let (_, after) = flags.next().expect("the store is mapped");
        !after.lines().next().unwrap().split_whitespace().any(|flag| flag == "rr")
    }

    fn open(dir: &Path, readahead_bytes_max: u64) -> Box<LmdbEngine> {
        Box::new(LmdbEngine::open(dir, &LmdbOptions { readahead_bytes_max, ..LmdbOptions::default() }).unwrap())
    }

    #[test]
    fn a_file_is_read_ahead_until_it_is_too_large() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let engine = open(dir, 0);
        assert!(!reads_ahead(dir));
        fill(&engine, 5_000);
        let used = used_bytes(&engine.store.env).unwrap();
        engine.close().unwrap();
        let engine = open(dir, used - 1);
        assert!(!reads_ahead(dir));
        engine.close().unwrap();
        let engine = open(dir, used * 2);
        assert!(reads_ahead(dir));
        // The batch that makes the file too large is followed by one that sees it.
        fill(&engine, 50_000);
        assert!(used_bytes(&engine.store.env).unwrap() > used * 2);
        drop(engine.begin().unwrap());
        assert!(!reads_ahead(dir));
        engine.close().unwrap();
    }

    #[test]
    fn the_setting_is_always_or_never() {
        let mut options = LmdbOptions { readahead_bytes_max: 7, ..LmdbOptions::default() };
        for (value, bytes) in [("true", u64::MAX), ("false", 0)] {
            options.set("readahead", value).unwrap();
            assert_eq!(options.readahead_bytes_max, bytes);
        }
        assert!(options.set("readahead", "7").unwrap_err().to_string().contains("true or false"));
    }
}
