//! Notes for an operator about a store and its process: memory that no setting bounds, files that cannot all be kept
//! open, and losses from a repair.
//!
//! Owns: the arithmetic and the sentences. Must not: open an engine, or refuse anything. Runs on the thread that opens
//! the store.

use std::fs;
use std::path::Path;

use bytesize::ByteSize;
use engine_api::Result;

use crate::marker;
use crate::options::{EngineKind, EngineOptions, Profile};
use crate::repair::lost;
use crate::store::{DATA, effective};

/// Bytes of RocksDB's files per pair, measured on a settled store.
const FILE_BYTES_A_PAIR: u64 = 76;
/// Bytes of RocksDB's index per pair, times 100, measured with the filter that comes in addition.
const INDEX_CENTIBYTES_A_PAIR: u64 = 29;
/// Memory in addition to cache, filters and indexes: vanilla's two memtables of 64 MiB, and as much for the program and
/// its connections.
const REST_BYTES: u64 = 256 << 20;

/// A sentence for the log, about something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The sentence, with its figures.
    pub text: String,
    /// Whether something has to be changed. Otherwise the note is for information only.
    pub is_warning: bool,
}

/// Returns the notes to log when the store in `dir` is opened with `options`. The directory may be missing, if the
/// store is yet to be made.
///
/// # Errors
/// Any error of [`inspect`](crate::inspect), or of reading the list of losses.
pub fn notes(dir: &Path, options: &EngineOptions) -> Result<Vec<Note>> {
    let known = marker::read(dir)?.filter(|known| known.engine == options.engine);
    let options = effective(options, known.as_ref());
    let common = not_whole(lost(dir)?).into_iter().chain(more_than_there_is(&options));
    if options.engine != EngineKind::Rocksdb {
        return Ok(common.collect());
    }
    let files = Files::of(&dir.join(DATA));
    let hard_limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let division = options.division();
    let tables = Tables {
        bloom_bits: options.bloom.unwrap_or(0).into(),
        pairs: files.bytes / FILE_BYTES_A_PAIR,
        cache_bytes: division.cache_bytes,
        limit_bytes: division.limit.bytes,
    };
    let memory = if options.profile == Profile::Tuned { tables.inside() } else { tables.outside() };
    Ok(common.chain(memory).chain(too_few_readers(files.count, hard_limit)).collect())
}

/// Builds the note about a repair that could not save everything: the store is sound, but some changes are lost.
fn not_whole(lost: u64) -> Option<Note> {
    let text = format!(
        "a repair of this store has lost a part of its pairs: lost={lost}: lost keys are answered as absent, or \
         with the value before: restore a snapshot, or load it again"
    );
    (lost > 0).then_some(Note { text, is_warning: true })
}

/// Builds the note about an engine whose cache is larger than the memory limit, because an engine fills its cache in
/// time.
fn more_than_there_is(options: &EngineOptions) -> Option<Note> {
    let division = options.division();
    let (memory, limit) = (ByteSize::b(division.cache_bytes), ByteSize::b(division.limit.bytes));
    let text = format!("memory={memory} is more than this process may use, which is {limit}: the kernel will kill it");
    (division.cache_bytes > division.limit.bytes).then_some(Note { text, is_warning: true })
}

/// Number and size of RocksDB's files of pairs.
#[derive(Debug, Default)]
struct Files {
    count: u64,
    bytes: u64,
}

impl Files {
    /// Counts the files in `data`. Files that vanish meanwhile, or a directory that cannot be listed, count as none,
    /// because opening reports more about them.
    fn of(data: &Path) -> Self {
        let mut found = Self::default();
        for entry in fs::read_dir(data).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|ending| ending == "sst") {
                found.count += 1;
                found.bytes += entry.metadata().map_or(0, |meta| meta.len());
            }
        }
        found
    }
}

/// Memory of RocksDB's filters and indexes: outside of its cache, or inside in the tuned profile.
struct Tables {
    bloom_bits: u64,
    pairs: u64,
    cache_bytes: u64,
    limit_bytes: u64,
}

impl Tables {
    /// Returns the bytes of filter and index per pair, times 100.
    fn centibytes_a_pair(&self) -> u64 {
        self.bloom_bits * 100 / 8 + INDEX_CENTIBYTES_A_PAIR
    }

    fn outside(&self) -> Option<Note> {
        let tables_bytes = self.pairs.saturating_mul(self.centibytes_a_pair()) / 100;
        let needed_bytes = self.cache_bytes.saturating_add(tables_bytes).saturating_add(REST_BYTES);
        let is_warning = self.pairs > 0 && needed_bytes > self.limit_bytes;
        if self.bloom_bits == 0 && !is_warning {
            return None;
        }
        let a_pair = self.centibytes_a_pair() as f64 / 100.0;
        let at_a_billion = ByteSize::b(self.centibytes_a_pair() * 10_000_000).display().si();
        let (tables, cache) = (ByteSize::b(tables_bytes), ByteSize::b(self.cache_bytes));
        let (needed, limit) = (ByteSize::b(needed_bytes), ByteSize::b(self.limit_bytes));
        let so_far = if self.pairs == 0 {
            String::new()
        } else {
            format!(
                "; at about pairs={} they take {tables}, and beside a cache of {cache} the process needs a memory limit of \
                 {needed}: it has {limit}",
                self.pairs
            )
        };
        let way_out =
            if is_warning { ": raise the limit, lower --memory or --bloom, or use --profile tuned" } else { "" };
        let text = format!(
            "rocksdb keeps filters and indexes in memory outside of --memory: bloom={} bytes_a_pair={a_pair:.1}, \
             {at_a_billion} at a billion pairs{so_far}{way_out}",
            self.bloom_bits
        );
        Some(Note { text, is_warning })
    }

    /// Returns the warning about a cache that cannot hold them. They are pinned only where they leave an eighth of it to
    /// the pairs, as the engine does it; its Ribbon filters take three quarters of a Bloom filter's bits.
    fn inside(&self) -> Option<Note> {
        let centibytes_a_pair = self.bloom_bits * 75 / 8 + INDEX_CENTIBYTES_A_PAIR;
        let tables_bytes = self.pairs.saturating_mul(centibytes_a_pair) / 100;
        let needed_bytes = tables_bytes / 7 * 8;
        let (tables, cache) = (ByteSize::b(tables_bytes), ByteSize::b(self.cache_bytes));
        let needed = ByteSize::b(needed_bytes);
        let text = format!(
            "rocksdb tuned keeps filters and indexes in its cache: at about pairs={} they take {tables}, for which a cache of \
             {cache} is too small, and a lookup may read a whole filter first: set --memory to {needed} or more, or load \
             anew with --set index_type=kTwoLevelIndexSearch --set partition_filters=true",
            self.pairs
        );
        (needed_bytes > self.cache_bytes).then_some(Note { text, is_warning: true })
    }
}

/// Builds the note about more files than RocksDB can keep open, which is half of the process's limit.
fn too_few_readers(files: u64, hard_limit: Option<u64>) -> Option<Note> {
    let hard_limit = hard_limit.filter(|hard_limit| files > hard_limit / 2)?;
    let text = format!(
        "rocksdb can keep {} of the store's {files} files open, half of the open files that this process may have \
         ({hard_limit}): a lookup in any other file reads that file's index and filter first: allow {} open files (the \
         unit's LimitNOFILE, or ulimit -Hn)",
        hard_limit / 2,
        (files * 4).next_power_of_two()
    );
    Some(Note { text, is_warning: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn filters_outside_of_the_cache_are_said_with_the_limit_they_need() {
        let outside = Tables { bloom_bits: 20, pairs: 1_000_000_000, cache_bytes: GIB / 4, limit_bytes: GIB };
        let note = outside.outside().unwrap();
        assert!(note.is_warning);
        for part in
            ["bloom=20 bytes_a_pair=2.8, 2.8 GB at a billion", "a memory limit of 3.1 GiB: it has 1.0 GiB", "tuned"]
        {
            assert!(note.text.contains(part), "{part}: {}", note.text);
        }
        let enough = Tables { limit_bytes: 4 * GIB, ..outside };
        assert!(!enough.outside().unwrap().is_warning);
        // For a store that is yet to be made the note gives the cost of a pair.
        let new = Tables { pairs: 0, limit_bytes: GIB / 8, ..enough };
        let note = new.outside().unwrap();
        assert!(!note.is_warning && note.text.contains("2.8 GB at a billion"), "{}", note.text);
        // Without a filter there is a note only if the index alone is too much.
        assert_eq!(Tables { bloom_bits: 0, ..enough }.outside(), None);
        assert!(Tables { bloom_bits: 0, limit_bytes: GIB / 2, ..enough }.outside().is_some_and(|note| note.is_warning));
    }

    #[test]
    fn filters_that_do_not_fit_in_the_cache_are_said() {
        let tables = Tables { bloom_bits: 10, pairs: 50_000_000, cache_bytes: 80_000_000, limit_bytes: 128_000_000 };
        assert_eq!(tables.inside(), None);
        let note = Tables { cache_bytes: 64_000_000, ..tables }.inside().unwrap();
        assert!(
            note.is_warning && note.text.contains("take 58.2 MiB") && note.text.contains("66.5 MiB or more"),
            "{}",
            note.text
        );
        assert_eq!(Tables { pairs: 0, cache_bytes: 0, ..tables }.inside(), None);
    }

    #[test]
    fn more_files_than_can_be_kept_open_are_said() {
        assert_eq!(too_few_readers(512, Some(1024)), None);
        assert_eq!(too_few_readers(100_000, None), None);
        let note = too_few_readers(1200, Some(1024)).unwrap();
        let said = "keep 512 of the store's 1200 files open, half of the open files that this process may have (1024)";
        assert!(note.is_warning && note.text.contains(said) && note.text.contains("allow 8192"), "{}", note.text);
    }

    #[test]
    fn more_memory_than_there_is_is_said() {
        let dir = tempfile::tempdir().unwrap();
        for (kind, said) in [(EngineKind::Strata, 1), (EngineKind::Redb, 1), (EngineKind::Lmdb, 0)] {
            let options = EngineOptions { memory: Some(ByteSize::pib(1)), ..EngineOptions::new(kind) };
            assert_eq!(notes(dir.path(), &options).unwrap().len(), said, "{kind}");
        }
    }

    #[test]
    fn a_store_is_looked_at_by_its_files_and_its_marker() {
        let dir = tempfile::tempdir().unwrap();
        let of = |options: &EngineOptions| notes(dir.path(), options).unwrap();
        let rocksdb = EngineOptions::new(EngineKind::Rocksdb);
        assert_eq!(of(&rocksdb), []);
        assert_eq!(of(&EngineOptions::new(EngineKind::Strata)), []);
        assert_eq!(of(&EngineOptions { bloom: Some(20), ..rocksdb.clone() }).len(), 1);
        assert_eq!(of(&EngineOptions { bloom: Some(20), profile: Profile::Tuned, ..rocksdb.clone() }), []);
        // If no filter is asked for, the marker's one counts.
        let known = marker::Identity { bloom: 20, ..marker::Identity::new(EngineKind::Rocksdb) };
        marker::write(dir.path(), &known).unwrap();
        fs::create_dir(dir.path().join(DATA)).unwrap();
        let file = fs::File::create(dir.path().join(DATA).join("000007.sst")).unwrap();
        file.set_len(FILE_BYTES_A_PAIR * 1_000_000).unwrap();
        let found = of(&rocksdb);
        assert!(found.len() == 1 && found[0].text.contains("about pairs=1000000"), "{found:?}");
    }
}
