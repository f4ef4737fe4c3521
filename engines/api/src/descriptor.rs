//! The facts about an engine that programs need without knowing the engine, and the ways to open it.
//!
//! Owns: the form of these facts. Each engine's crate fills in one [`Descriptor`]. Must not: name a concrete engine.
//! Threads: none.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{Checkpoint, Engine, Error, ErrorKind, Result};

/// Options of an engine that have a flag of their own: values by name. `--lmdb-map-size` has the name `lmdb_map_size`.
pub type Options = BTreeMap<String, String>;

/// Settings of an engine at one opening, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes for the engine's cache.
    pub cache_bytes: u64,
    /// Bytes of memory that the process may use.
    pub limit_bytes: u64,
    /// Leading bytes of a key that the filters of a new store are made of: 32 for lookups of keys, 16 for scans of the keys
    /// that share so many ([`Reader::scan_prefix`](crate::Reader::scan_prefix)). Engines without filters ignore it.
    pub prefix_bytes: u32,
    /// The options with a flag of their own.
    pub options: Options,
    /// The engine's other settings, as names and values.
    pub set: Vec<(String, String)>,
}

/// A sentence for the log, about something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The sentence, with its figures.
    pub text: String,
    /// Whether something has to be changed. Otherwise the note is for information only.
    pub is_warning: bool,
}

/// Report of a repair: the damage, the losses, and the resulting state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Damage that was found and the action taken, one line each. Empty if everything was in order and nothing was
    /// changed.
    pub findings: Vec<String>,
    /// Data that are lost or may be lost, one line each.
    pub lost: Vec<String>,
    /// Checkpoint of the store after the repair, not counting the losses.
    pub checkpoint: Checkpoint,
}

/// Functions of an engine that can repair a store. Each takes the directory of the engine's files.
#[derive(Clone, Copy, Debug)]
pub struct Repair {
    /// Makes the store sound again, as far as its files allow.
    pub run: fn(&Path) -> Result<Repaired>,
    /// Returns the recorded losses, a line each.
    pub lost: fn(&Path) -> Result<Vec<String>>,
    /// Adds a line to the recorded losses.
    pub remember_lost: fn(&Path, &str) -> Result<()>,
}

/// Acknowledged commits with [`Durability::Buffered`](crate::Durability::Buffered) that survive a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffered {
    /// Every acknowledged commit survives a power loss.
    All,
    /// All but the newest one, which may be missing, whole.
    AllButNewest,
    /// All but the newest ones, which may be missing, whole.
    AllButNewestOnes,
}

/// Shares of memory of an engine with certain options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Eighths of the memory limit for the engine's cache, unless a size is set. The rest is for the engine's other
    /// memory, dirty pages, connections, and the page cache, which is charged too. 0: the engine has no cache.
    pub cache_eighths: u64,
    /// Smallest default size of the cache in bytes, though never more than half of the limit.
    pub cache_min_bytes: u64,
    /// Bytes of the limit that the default cache leaves free even if its eighths would leave less. They are for the
    /// program and for memory of the engine that no setting bounds. 0: the eighths leave enough.
    pub rest_bytes: u64,
    /// Bytes that the engine takes in addition to the cache while it writes batches that are not in key order.
    pub memtables_bytes: u64,
}

impl Share {
    /// Smallest default size of a cache that holds an engine's index: with less, every lookup would read index blocks
    /// again.
    pub const INDEX_CACHE_MIN_BYTES: u64 = 64 << 20;
}

/// Bytes of a store on disk per pair, at its peak during a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairBytes {
    /// After a load in random order.
    pub shuffled: u64,
    /// After a load in key order.
    pub sorted: u64,
}

/// Options under which the suites test an engine, in addition to its defaults: a column of their tables.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Name of the column: the label of the engine with these options, or a name of its own that begins with the engine's.
    pub name: &'static str,
    /// Options that have a flag of their own, as names and values.
    pub options: &'static [(&'static str, &'static str)],
    /// The engine's other settings, each `NAME=VALUE`.
    pub set: &'static [&'static str],
    /// Further settings with which the torture opens the column; `None` keeps it out of the torture.
    pub torture: Option<&'static [&'static str]>,
}

/// How well an engine knows the number of its pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The number counts each pair once.
    Exact,
    /// The number is an upper bound, and exact in a settled store of which everything can be read.
    AtMost,
    /// The number is an estimate.
    Estimate,
}

/// Function that opens a store in a directory. It may ask whether a checkpoint is accepted before it changes any file;
/// the caller asks again once the store is open.
pub type Open = fn(&Path, &Settings, &dyn Fn(&Checkpoint) -> Result<()>) -> Result<Box<dyn Engine>>;

/// Function that opens a store in a directory for reading alone.
pub type OpenReadOnly = fn(&Path, &Settings) -> Result<Box<dyn Engine>>;

/// Facts about an engine, and the functions that open its stores.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// A line about the engine for the help.
    pub line: &'static str,
    /// Names of the engine's options that have a flag of their own.
    pub options: &'static [&'static str],
    /// Returns the options that a store keeps in its marker. The arguments are the options that are given, and those
    /// that the store has kept; `None` for a new store.
    pub kept: fn(&Options, Option<&Options>) -> Options,
    /// Returns the names of the engine's other settings.
    pub settings: fn() -> Vec<&'static str>,
    /// Refuses values of options and settings that can be judged before the store is opened.
    pub check: fn(&Settings) -> Result<()>,
    /// Returns the label for metrics and table rows. `None` is the engine's name.
    pub label: fn(&Options) -> Option<&'static str>,
    /// Returns the shares of memory.
    pub share: fn(&Options) -> Share,
    /// Bytes of pages that a transaction holds in memory for each key it changes, if the keys are far apart: one leaf in
    /// a B+tree, none in an engine that collects changes in a log.
    pub page_bytes: u64,
    /// Returns the names, or with a dot before them the endings, of the files that lookups read through the kernel's page
    /// cache; none for an engine that reads past it. The process may open and close these files: no lock of the engine's
    /// ends with that.
    pub page_cache_endings: fn(&Settings) -> &'static [&'static str],
    /// Whether a lookup of an absent key is answered by a filter in memory, with these options.
    pub has_filter_in_memory: fn(&Options) -> bool,
    /// Whether `warm_up` reads pairs into the engine's own memory.
    pub warms_own_memory: bool,
    /// Whether `get_many` waits for one read of the device after another, so that several threads read faster.
    pub get_many_waits_in_turn: bool,
    /// Whether opening a reader, its checkpoint and `get_resident` wait for nothing, and `get_resident` answers from memory.
    pub answers_from_memory: bool,
    /// Bytes that a store takes on disk per pair.
    pub pair_bytes: PairBytes,
    /// Whether a load is in key order, unless an order is set.
    pub loads_sorted: bool,
    /// Name of the file without which there is no store.
    pub main_file: &'static str,
    /// Endings of other files. A directory with any such file counts as a store even without the main file, because the
    /// engine itself reports the missing ones.
    pub part_endings: &'static [&'static str],
    /// Ending of the files with the newest batches; `None` if there are no separate files for them.
    pub log_ending: Option<&'static str>,
    /// Whether each read is compared with a checksum.
    pub checks_reads: bool,
    /// Whether a scrub compares the stored data with checksums.
    pub has_checksums: bool,
    /// Whether a scrub checks more than a scan does, and changes nothing.
    pub scrubs_more: bool,
    /// How well the engine knows the number of its pairs.
    pub counts: Count,
    /// Buffered commits that survive a power loss.
    pub buffered: Buffered,
    /// Whether a copy on the store's file system links its files, which takes no space.
    pub links_copies: bool,
    /// Whether a sorted chunk is there wholly or not at all, for readers too.
    pub loads_whole: bool,
    /// Whether a sorted chunk may be loaded again although its load has succeeded.
    pub loads_twice: bool,
    /// Whether a failed load may cost the store.
    pub loses_failed_loads: bool,
    /// Whether the engine relies on a flushed file keeping its name although the directory is not flushed.
    pub needs_flushed_names: bool,
    /// Functions that repair a store; `None` if the engine cannot.
    pub repair: Option<Repair>,
    /// Returns notes for an operator about the store in a directory, which may be missing.
    pub notes: fn(&Path, &Settings) -> Vec<Note>,
    /// Prepares the process for a memory fault in a store: before the fault ends the process, stderr names the store.
    /// The argument is the exit code of such an end; with `None` the signal ends the process.
    pub explain_faults: Option<fn(Option<u8>)>,
    /// Whether a panic of the calling thread becomes an error of the engine, as over a damaged page in redb.
    pub catches_panics: fn() -> bool,
    /// Returns the bytes that a store leaves free on its disk.
    pub reserve_bytes: fn(&Settings) -> u64,
    /// Further columns of the suites. The registry's list names them, too.
    pub columns: &'static [Column],
    /// Options with which a store is full after a few batches, for the suites; empty if only a full disk ends it.
    pub small: &'static [(&'static str, &'static str)],
    /// Opens a store, and creates it if it is missing.
    pub open: Open,
    /// Opens a store for reading alone, without changing anything in its directory; `None` if the engine cannot.
    pub open_read_only: Option<OpenReadOnly>,
}

impl Descriptor {
    /// The description of an engine that is not in a build, which cannot be opened. It has no options, cache,
    /// checksums, repair or notes; the descriptions of other engines begin with it.
    pub const NONE: Self = Self {
        line: "Not in this build",
        options: &[],
        kept: |_, _| Options::new(),
        settings: Vec::new,
        check: |_| Ok(()),
        label: |_| None,
        share: |_| Share { cache_eighths: 0, cache_min_bytes: 0, rest_bytes: 0, memtables_bytes: 0 },
        page_bytes: 0,
        page_cache_endings: |_| &[],
        has_filter_in_memory: |_| false,
        warms_own_memory: false,
        get_many_waits_in_turn: false,
        answers_from_memory: false,
        pair_bytes: PairBytes { shuffled: 0, sorted: 0 },
        loads_sorted: true,
        main_file: "",
        part_endings: &[],
        log_ending: None,
        checks_reads: false,
        has_checksums: false,
        scrubs_more: false,
        counts: Count::Estimate,
        buffered: Buffered::AllButNewestOnes,
        links_copies: false,
        loads_whole: true,
        loads_twice: false,
        loses_failed_loads: false,
        needs_flushed_names: false,
        repair: None,
        notes: |_, _| Vec::new(),
        explain_faults: None,
        catches_panics: || false,
        reserve_bytes: |_| 0,
        columns: &[],
        small: &[],
        open: |dir, _, _| Err(not_in_this_build(dir)),
        open_read_only: None,
    };
}

fn not_in_this_build(dir: &Path) -> Error {
    let message =
        format!("the store's engine is not in this build: dir={}: build with its cargo feature", dir.display());
    Error::new(ErrorKind::FixInput, message)
}
