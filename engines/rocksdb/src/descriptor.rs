//! RocksDB's description.
//!
//! Owns: the facts, and the options that follow from [`Settings`]. Threads: none.

use engine_api::{Buffered, Column, Descriptor, Error, ErrorKind, Options, PairBytes, Result, Settings, Share};

use crate::{Profile, RocksdbEngine, RocksdbOptions, notes, set, settings};

/// Memtables: two of 64 MiB or eight of 16 MiB. Only the tuned profile charges them to its cache.
const MEMTABLES_BYTES: u64 = 128 << 20;

const BLOOM: &str = "bloom";
const PROFILE: &str = "profile";
/// Largest number of filter bits per key. More bits gain nothing: a false positive costs one read, and 20 bits leave
/// one in 6000.
const BLOOM_BITS_MAX: u32 = 32;

/// RocksDB accepts no memtable below 64 KiB. With it several logs are alive at any time, and files come and go.
const SMALLEST_MEMTABLE: &str = "write_buffer_size=65536";

const COLUMNS: [Column; 4] = [
    Column { name: "rocksdb_bloom", options: &[(BLOOM, "20")], set: &[], torture: Some(&[]) },
    Column { name: "rocksdb_memory", options: &[(PROFILE, "memory")], set: &[], torture: None },
    Column { name: "rocksdb_tuned", options: &[(PROFILE, "tuned")], set: &[], torture: Some(&[SMALLEST_MEMTABLE]) },
    Column {
        name: "rocksdb_settings",
        options: &[],
        set: &[
            "sort_batches=true",
            "prefix_extractor=capped:2",
            "memtable=hash_linkedlist:1024",
            "allow_concurrent_memtable_write=false",
            "index_type=kHashSearch",
            "compaction_style=kCompactionStyleUniversal",
        ],
        torture: None,
    },
];

pub static DESCRIPTOR: Descriptor = Descriptor {
    line: "Log-structured merge tree: the fastest writes, reads depend on filters and cache",
    options: &[BLOOM, PROFILE],
    kept,
    settings: || settings().collect(),
    check,
    label: |options| match (profile(options), bloom_bits(options)) {
        (Profile::Memory, _) => Some("rocksdb_memory"),
        (Profile::Tuned, _) => Some("rocksdb_tuned"),
        (Profile::Vanilla, 0) => None,
        (Profile::Vanilla, _) => Some("rocksdb_bloom"),
    },
    share: |options| match profile(options) {
        // Memtables, filters and indexes are outside of the cache.
        Profile::Vanilla => Share {
            cache_eighths: 2,
            cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES,
            rest_bytes: 0,
            memtables_bytes: MEMTABLES_BYTES,
        },
        Profile::Memory => Share {
            cache_eighths: 4,
            cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES,
            rest_bytes: 0,
            memtables_bytes: MEMTABLES_BYTES,
        },
        // All of the memory is in the cache, and none of it in the page cache.
        Profile::Tuned => Share {
            cache_eighths: 5,
            cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES,
            rest_bytes: notes::REST_TUNED_BYTES,
            memtables_bytes: 0,
        },
    },
    page_cache_endings: |settings| if set::reads_directly(&settings.set) { &[] } else { &[".sst"] },
    has_filter_in_memory: |options| bloom_bits(options) > 0,
    get_many_waits_in_turn: true,
    // With room for a compaction.
    pair_bytes: PairBytes { shuffled: 120, sorted: 90 },
    loads_sorted: false,
    main_file: "CURRENT",
    log_ending: Some(".log"),
    checks_reads: true,
    has_checksums: true,
    loads_whole: false,
    // It removes files that the manifest may name if it could not flush the manifest, and then refuses the store.
    loses_failed_loads: true,
    // It renames `CURRENT` to name a manifest that it has flushed, and does not flush the directory.
    needs_flushed_names: true,
    buffered: Buffered::AllButNewestOnes,
    notes: notes::notes,
    reserve_bytes: |settings| options(settings).disk_reserve_bytes,
    columns: &COLUMNS,
    open: |dir, settings, _| Ok(Box::new(RocksdbEngine::open(dir, &options(settings))?)),
    open_read_only: Some(|dir, settings| Ok(Box::new(RocksdbEngine::open_read_only(dir, &options(settings))?))),
    ..Descriptor::NONE
};

fn options(settings: &Settings) -> RocksdbOptions {
    RocksdbOptions {
        profile: profile(&settings.options),
        bloom_bits: Some(bloom_bits(&settings.options)).filter(|bits| *bits > 0),
        cache_bytes: settings.cache_bytes,
        memory_limit_bytes: settings.limit_bytes,
        set: settings.set.clone(),
        ..Default::default()
    }
}

pub(crate) fn profile(options: &Options) -> Profile {
    Profile::of(options.get(PROFILE).map_or("", String::as_str))
}

/// Returns the bits per key of the filter; 0 is none.
pub(crate) fn bloom_bits(options: &Options) -> u32 {
    options.get(BLOOM).and_then(|bits| bits.parse().ok()).unwrap_or(0)
}

fn check(settings: &Settings) -> Result<()> {
    let refuse = |message: String| Err(Error::new(ErrorKind::FixInput, message));
    match settings.options.get(BLOOM).map(|bits| (bits, bits.parse())) {
        None | Some((_, Ok(0..=BLOOM_BITS_MAX))) => set::check(profile(&settings.options), &settings.set),
        Some((bits, Ok(_))) => {
            refuse(format!("{BLOOM}={bits} is more than {BLOOM_BITS_MAX} bits per key: 10 to 20 are useful"))
        }
        Some((bits, Err(_))) => refuse(format!("{BLOOM}={bits}: give a number of bits per key")),
    }
}

/// Returns the profile and the filter. A store keeps both until others are given. A filter is also chosen anew with
/// another profile, unless the store has one.
fn kept(given: &Options, known: Option<&Options>) -> Options {
    let named = |name| given.get(name).or(known.and_then(|known| known.get(name)));
    let profile = Profile::of(named(PROFILE).map_or("", String::as_str));
    let held = known.filter(|known| bloom_bits(known) > 0 || self::profile(known) == profile).map(bloom_bits);
    let bits = match given.get(BLOOM) {
        Some(bits) => bits.clone(),
        None => held.unwrap_or(default_bloom_bits(profile)).to_string(),
    };
    Options::from([(BLOOM.to_owned(), bits), (PROFILE.to_owned(), profile.as_str().to_owned())])
}

/// Returns the bits per key of a new store's filter: none for RocksDB's defaults, one false positive in 6000 for a store
/// in memory, one in a hundred under a memory cap.
fn default_bloom_bits(profile: Profile) -> u32 {
    match profile {
        Profile::Vanilla => 0,
        Profile::Memory => 20,
        Profile::Tuned => 10,
    }
}
