//! Notes for an operator about memory that no setting bounds, and about files that cannot all be kept open.
//!
//! Owns: the arithmetic and the sentences. Must not: open a store, or refuse anything. Runs on the thread that opens
//! the store.

use std::fs;
use std::path::Path;

use bytesize::ByteSize;
use engine_api::{Note, Settings};
use rustix::process::{Resource, getrlimit};

use crate::Profile;
use crate::options::{bloom_bits, profile};
use crate::settings::{FILE_BYTES_A_PAIR, INDEX_CENTIBYTES_A_PAIR, PINNED_EIGHTHS, pinned_bytes};

/// Memory in addition to cache, filters and indexes: vanilla's two memtables of 64 MiB, and as much for the program and
/// its connections.
const REST_BYTES: u64 = 256 << 20;

/// Memory of the tuned profile in addition to its cache: 75 MiB for the program and its code, and the rest for a
/// compaction. A service with 20M pairs, a cache of 64 MiB and a stream at full speed took 95 MiB and 24 MiB of code in
/// addition to its cache. The default cache leaves this much free, as far as its minimum allows; a limit of 192 MiB
/// suffices.
pub(crate) const REST_TUNED_BYTES: u64 = 128 << 20;

/// Returns the notes about the store in `dir`, which may be missing.
pub(crate) fn notes(dir: &Path, settings: &Settings) -> Vec<Note> {
    let (files, files_bytes) = sorted_files(dir);
    let tables = Tables {
        bloom_bits: bloom_bits(&settings.options),
        pairs: files_bytes / FILE_BYTES_A_PAIR,
        cache_bytes: settings.cache_bytes,
        limit_bytes: settings.limit_bytes,
    };
    let is_tuned = profile(&settings.options) == Profile::Tuned;
    let memory = if is_tuned { [tables.inside(), tables.beside()] } else { [tables.outside(), None] };
    memory.into_iter().flatten().chain(too_few_readers(files, getrlimit(Resource::Nofile).maximum)).collect()
}

/// Returns the number and the size of the files of pairs in `dir`. Files that vanish meanwhile, or a directory that
/// cannot be listed, count as none, because opening reports more about them.
fn sorted_files(dir: &Path) -> (u64, u64) {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let sorted = files.filter(|file| file.path().extension().is_some_and(|ending| ending == "sst"));
    sorted.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.metadata().map_or(0, |found| found.len())))
}

/// Memory of RocksDB's filters and indexes: outside of its cache, or inside in the tuned profile.
struct Tables {
    bloom_bits: u32,
    pairs: u64,
    cache_bytes: u64,
    limit_bytes: u64,
}

impl Tables {
    /// Returns the bytes of filter and index per pair, times 100.
    fn centibytes_a_pair(&self) -> u64 {
        u64::from(self.bloom_bits) * 100 / 8 + INDEX_CENTIBYTES_A_PAIR
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

    /// Returns the warning about a cache that cannot hold filters and indexes. They are pinned only if they leave an
    /// eighth of it to the pairs.
    fn inside(&self) -> Option<Note> {
        let tables_bytes = pinned_bytes(self.pairs, self.bloom_bits);
        let needed_bytes = tables_bytes / PINNED_EIGHTHS * 8;
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

    /// Returns the warning about a limit that leaves a compaction too little in addition to the tuned profile's cache.
    /// Without pairs nothing is compacted yet.
    fn beside(&self) -> Option<Note> {
        let needed_bytes = self.cache_bytes.saturating_add(REST_TUNED_BYTES);
        let (cache, rest) = (ByteSize::b(self.cache_bytes), ByteSize::b(REST_TUNED_BYTES));
        let (needed, limit) = (ByteSize::b(needed_bytes), ByteSize::b(self.limit_bytes));
        let less = ByteSize::b(needed_bytes.saturating_sub(self.limit_bytes));
        let text = format!(
            "rocksdb tuned needs about {rest} beside its cache of {cache} while it compacts, together a memory limit of \
             {needed}: it has {limit}, and the kernel may kill the process: raise the limit or lower --memory by {less}"
        );
        (self.pairs > 0 && needed_bytes > self.limit_bytes).then_some(Note { text, is_warning: true })
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
    fn a_limit_without_room_for_a_compaction_is_said() {
        let tables = Tables { bloom_bits: 10, pairs: 20_000_000, cache_bytes: 128 << 20, limit_bytes: 256 << 20 };
        assert_eq!(tables.beside(), None);
        let note = Tables { cache_bytes: 80 << 20, limit_bytes: 128 << 20, ..tables }.beside().unwrap();
        assert!(
            note.is_warning
                && note.text.contains("a memory limit of 208.0 MiB: it has 128.0 MiB")
                && note.text.ends_with("by 80.0 MiB"),
            "{}",
            note.text
        );
        assert_eq!(Tables { pairs: 0, limit_bytes: 0, ..tables }.beside(), None);
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
    fn a_store_is_looked_at_by_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let of = |bloom_bits: u32, profile: &str| {
            let options = [("bloom", bloom_bits.to_string()), ("profile", profile.to_owned())];
            let options = options.map(|(name, value)| (name.to_owned(), value)).into();
            notes(
                dir.path(),
                &Settings { cache_bytes: GIB, limit_bytes: 4 * GIB, prefix_bytes: 32, options, set: Vec::new() },
            )
        };
        assert_eq!(of(0, "vanilla"), []);
        assert_eq!(of(20, "vanilla").len(), 1);
        assert_eq!(of(20, "tuned"), []);
        let file = fs::File::create(dir.path().join("000007.sst")).unwrap();
        file.set_len(FILE_BYTES_A_PAIR * 1_000_000).unwrap();
        let found = of(20, "vanilla");
        assert!(found.len() == 1 && found[0].text.contains("about pairs=1000000"), "{found:?}");
    }
}
