//! The measured figures from which machines are sized: one table of stores and loads, one of reads.
//!
//! Owns: these figures and where each comes from (`loadgen/results/README.md`). Must not: compute. No threads.

use engines::EngineKind::{self, Lmdb, Redb, Rocksdb, Strata};

use super::{short, size};

/// Figures of an engine, from the largest map that was measured with it.
pub(super) struct Facts {
    pub(super) engine: EngineKind,
    /// Number of pairs of that map.
    pub(super) measured_pairs: u64,
    /// Bytes of a pair on disk after the load, times 100.
    pub(super) store_centibytes: u64,
    /// The same for the disk that a store needs while it follows a stream.
    pub(super) followed_centibytes: u64,
    /// Reason for the difference of the two.
    pub(super) followed_why: &'static str,
    /// Bytes of memory a pair with which absent keys cost no read, times 100: filters and index. 0 without filters.
    pub(super) filter_centibytes: u64,
    /// Option that makes these filters; empty if there are always some.
    pub(super) filter_option: &'static str,
    /// Bytes of memory a pair without which the engine does not work, times 100.
    pub(super) directory_centibytes: u64,
    /// Bytes of memory for a store of any size: the least cache, and memtables outside of it.
    pub(super) fixed_bytes: u64,
    /// Eighths of the memory limit that are for all of this by default.
    pub(super) held_eighths: u64,
    /// Eighths of the limit that the whole store may fill: the engine's own memory, or the part of the page cache up to which
    /// the service reads it in.
    pub(super) cached_eighths: u64,
    /// Rate of the load in the default order.
    pub(super) load_pairs_a_second: u64,
    /// That order, and the machine's memory.
    pub(super) load_order: &'static str,
    /// Least memory of a load of so many pairs.
    pub(super) load_least_bytes: fn(u64) -> u64,
    /// Section of `loadgen/results/README.md`, and date.
    pub(super) source: &'static str,
}

const FACTS: [Facts; 4] = [
    Facts {
        engine: Strata,
        measured_pairs: 700_000_000,
        store_centibytes: 6520,
        followed_centibytes: 13040,
        followed_why: "with room for changes that are not merged",
        // With 1.6 bytes one absent key in 56 costs a read, and from 2 bytes on one in 1,700.
        filter_centibytes: 200,
        filter_option: "",
        directory_centibytes: 13,
        fixed_bytes: 64 << 20,
        held_eighths: 5,
        cached_eighths: 5,
        load_pairs_a_second: 5_100_000,
        load_order: "sorted on the way, under 4 GiB",
        // The directory of more than 300M pairs needs more, by calculation.
        load_least_bytes: |pairs| if pairs > 300_000_000 { (128 << 20) + pairs / 100 * 40 } else { 128 << 20 },
        source: "large, 2026-11-27",
    },
    Facts {
        engine: Rocksdb,
        measured_pairs: 700_000_000,
        store_centibytes: 7550,
        followed_centibytes: 15100,
        followed_why: "with room for compactions",
        // Filters and index are outside of the cache, which gets a quarter of the limit.
        filter_centibytes: 279,
        filter_option: ", with --bloom 20",
        directory_centibytes: 29,
        fixed_bytes: 128 << 20,
        held_eighths: 6,
        cached_eighths: 4,
        load_pairs_a_second: 300_000,
        load_order: "as the pairs come, under 4 GiB, compactions left",
        load_least_bytes: |_| 256 << 20,
        source: "large, with --bloom 20, 2026-11-27",
    },
    Facts {
        engine: Lmdb,
        measured_pairs: 100_000_000,
        store_centibytes: 7500,
        followed_centibytes: 12100,
        followed_why: "because random inserts leave pages partly empty",
        filter_centibytes: 0,
        filter_option: "",
        directory_centibytes: 0,
        fixed_bytes: 0,
        held_eighths: 8,
        cached_eighths: 6,
        load_pairs_a_second: 4_400_000,
        load_order: "50M pairs, sorted on the way, no limit",
        load_least_bytes: |_| 64 << 20,
        source: "other figures, 2026-11-21; strata, loads",
    },
    Facts {
        engine: Redb,
        measured_pairs: 100_000_000,
        store_centibytes: 6600,
        followed_centibytes: 10100,
        followed_why: "because random inserts leave pages partly empty",
        filter_centibytes: 0,
        filter_option: "",
        directory_centibytes: 0,
        fixed_bytes: 0,
        held_eighths: 8,
        cached_eighths: 4,
        load_pairs_a_second: 2_800_000,
        load_order: "50M pairs, sorted on the way, no limit",
        load_least_bytes: |_| 80 << 20,
        source: "other figures, 2026-11-21; strata, loads",
    },
];

impl Facts {
    /// Returns the figures of an engine; `None` if it was not measured.
    pub(super) fn of(engine: EngineKind) -> Option<&'static Self> {
        FACTS.iter().find(|facts| facts.engine == engine)
    }
}

/// Measured latencies of one reader, in microseconds at p50 and p99.
pub(super) struct Read {
    pub(super) pairs: u64,
    /// `None` if all of the store was in memory.
    pub(super) memory_bytes: Option<u64>,
    pub(super) engine: EngineKind,
    /// Profile and filter, or a remark; empty for the engine as it comes.
    options: &'static str,
    disk_bytes: u64,
    absent: &'static str,
    present: &'static str,
}

const fn read(
    (pairs_millions, memory_mb): (u64, u64),
    (engine, options): (EngineKind, &'static str),
    disk_hundred_mb: u64,
    (absent, present): (&'static str, &'static str),
) -> Read {
    let memory_bytes = if memory_mb == 0 { None } else { Some(memory_mb * 1_000_000) };
    let (pairs, disk_bytes) = (pairs_millions * 1_000_000, disk_hundred_mb * 100_000_000);
    Read { pairs, memory_bytes, engine, options, disk_bytes, absent, present }
}

pub(super) const READS: [Read; 23] = [
    read((20, 0), (Strata, ""), 13, ("0.17 / 0.57", "0.65 / 1.1")),
    read((20, 0), (Lmdb, ""), 15, ("1.7 / 2.6", "1.6 / 2.6")),
    read((20, 0), (Redb, ""), 13, ("2.1 / 3.4", "2.5 / 3.5")),
    read((20, 0), (Rocksdb, "profile for memory"), 16, ("0.46 / 0.66", "2.8 / 3.9")),
    read((20, 0), (Rocksdb, "bloom 20"), 15, ("0.47 / 0.78", "3.0 / 4.4")),
    read((50, 128), (Strata, ""), 33, ("0.19 / 55", "55 / 106")),
    read((50, 128), (Rocksdb, "tuned, 14 bits"), 38, ("0.51 / 0.87", "61 / 188")),
    read((50, 128), (Rocksdb, "tuned"), 38, ("0.61 / 2.3", "67 / 182")),
    read((50, 128), (Rocksdb, ""), 37, ("61 / 179", "65 / 185")),
    read((50, 128), (Lmdb, ""), 38, ("63 / 209", "65 / 211")),
    read((50, 128), (Redb, ""), 33, ("68 / 213", "72 / 241")),
    read((50, 576), (Strata, ""), 33, ("0.18 / 0.62", "55 / 81")),
    read((50, 576), (Rocksdb, "profile for memory"), 39, ("0.50 / 0.86", "66 / 187")),
    read((50, 576), (Rocksdb, "tuned"), 38, ("0.58 / 2.2", "65 / 119")),
    read((50, 576), (Lmdb, ""), 38, ("62 / 158", "60 / 140")),
    read((50, 576), (Redb, ""), 33, ("62 / 174", "66 / 171")),
    read((100, 1150), (Strata, ""), 65, ("0.24 / 0.43", "75 / 157")),
    read((100, 1150), (Rocksdb, "bloom 20"), 76, ("0.74 / 1.4", "228 / 7135")),
    read((100, 1150), (Lmdb, ""), 75, ("112 / 215", "122 / 283")),
    read((100, 1150), (Redb, ""), 66, ("138 / 284", "137 / 284")),
    read((300, 1070), (Strata, ""), 195, ("0.62 / 20", "55 / 108")),
    read((700, 4290), (Strata, ""), 456, ("0.63 / 1.8", "60 / 159")),
    read((700, 4290), (Rocksdb, "bloom 20, compactions under way"), 529, ("11 / 35", "88 / 2540")),
];

impl Read {
    /// Describes the reads in one line.
    pub(super) fn text(&self) -> String {
        let Self { absent, present, .. } = self;
        let (pairs, disk, memory) = (short(self.pairs), size(self.disk_bytes), self.memory());
        let options = if self.options.is_empty() { String::new() } else { format!(", {}", self.options) };
        let of_pairs = if self.memory_bytes.is_some() { " of the pairs' bytes" } else { "" };
        format!(
            "{pairs} pairs ({disk}{options}), {memory}{of_pairs}: absent {absent} us, present {present} us (p50 / p99)"
        )
    }

    fn memory(&self) -> String {
        let of_pairs = |bytes: u64| (bytes as f64 / (self.pairs * 64) as f64 * 100.0).round();
        match self.memory_bytes {
            Some(bytes) => format!("{}, {}%", size(bytes), of_pairs(bytes)),
            None => "all of it in memory".to_owned(),
        }
    }
}
