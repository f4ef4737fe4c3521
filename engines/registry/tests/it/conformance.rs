//! Runs the conformance suite on each compiled engine, opened as the tools open it.

use std::path::Path;

use ::conformance::Store;
use ::conformance::child;
use bytesize::ByteSize;
use engine_api::{Engine, Result};
use solkv_engine_registry::{self as engines, EngineKind, EngineOptions, OpenMode, Profile};

/// A column of the benchmark tables: an engine with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    name: &'static str,
    engine: EngineKind,
    bloom: Option<u32>,
    profile: Profile,
    set: &'static [&'static str],
}

/// Memory of each engine: enough for tests, and small enough to run all of them at once on a small machine.
const MEMORY: ByteSize = ByteSize::mib(64);
/// A small LMDB map, which is full after a few batches. The smallest that options accept is 1 MiB.
const SMALL_MAP: ByteSize = ByteSize::mib(4);

const COLUMNS: [Column; 10] = [
    Column { name: "rocksdb", engine: EngineKind::Rocksdb, bloom: None, profile: Profile::Vanilla, set: &[] },
    Column { name: "rocksdb_bloom", engine: EngineKind::Rocksdb, bloom: Some(20), profile: Profile::Vanilla, set: &[] },
    Column { name: "rocksdb_memory", engine: EngineKind::Rocksdb, bloom: None, profile: Profile::Memory, set: &[] },
    Column { name: "rocksdb_tuned", engine: EngineKind::Rocksdb, bloom: None, profile: Profile::Tuned, set: &[] },
    Column { name: "lmdb", engine: EngineKind::Lmdb, bloom: None, profile: Profile::Vanilla, set: &[] },
    Column { name: "redb", engine: EngineKind::Redb, bloom: None, profile: Profile::Vanilla, set: &[] },
    Column {
        name: "rocksdb_settings",
        engine: EngineKind::Rocksdb,
        bloom: None,
        profile: Profile::Vanilla,
        set: &[
            "sort_batches=true",
            "prefix_extractor=capped:2",
            "memtable=hash_linkedlist:1024",
            "allow_concurrent_memtable_write=false",
            "index_type=kHashSearch",
            "compaction_style=kCompactionStyleUniversal",
        ],
    },
    Column {
        name: "lmdb_settings",
        engine: EngineKind::Lmdb,
        bloom: None,
        profile: Profile::Vanilla,
        set: &["readahead=true", "sort_batches=true"],
    },
    Column {
        name: "redb_settings",
        engine: EngineKind::Redb,
        bloom: None,
        profile: Profile::Vanilla,
        set: &["quick_repair_every=3", "sort_batches=true"],
    },
    Column { name: "strata", engine: EngineKind::Strata, bloom: None, profile: Profile::Vanilla, set: &[] },
];

impl Column {
    fn options(self) -> EngineOptions {
        EngineOptions {
            bloom: self.bloom,
            profile: self.profile,
            memory: Some(MEMORY),
            set: self.set.iter().map(|setting| (*setting).to_owned()).collect(),
            ..EngineOptions::new(self.engine)
        }
    }
}

impl Store for Column {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, dir: &Path) -> Result<Box<dyn Engine>> {
        engines::open(dir, &self.options(), OpenMode::CreateOrOpen)
    }

    fn open_small(&self, dir: &Path) -> Result<Box<dyn Engine>> {
        let lmdb_map_size = (self.engine == EngineKind::Lmdb).then_some(SMALL_MAP);
        engines::open(dir, &EngineOptions { lmdb_map_size, ..self.options() }, OpenMode::CreateOrOpen)
    }

    fn has_checksums(&self) -> bool {
        self.engine != EngineKind::Lmdb
    }
}

/// Returns the column with this name.
pub(crate) fn column(name: &str) -> Column {
    COLUMNS.into_iter().find(|column| column.name == name).expect("the modules below name columns of the table above")
}

/// Returns the columns whose engine is in this build.
pub(crate) fn compiled_columns() -> impl Iterator<Item = Column> {
    COLUMNS.into_iter().filter(|column| engines::compiled().contains(&column.engine))
}

#[cfg(feature = "rocksdb")]
mod rocksdb {
    ::conformance::suite!(super::column("rocksdb"));
}

#[cfg(feature = "rocksdb")]
mod rocksdb_bloom {
    ::conformance::suite!(super::column("rocksdb_bloom"));
}

#[cfg(feature = "rocksdb")]
mod rocksdb_memory {
    ::conformance::suite!(super::column("rocksdb_memory"));
}

#[cfg(feature = "rocksdb")]
mod rocksdb_tuned {
    ::conformance::suite!(super::column("rocksdb_tuned"));
}

#[cfg(feature = "lmdb")]
mod lmdb {
    ::conformance::suite!(super::column("lmdb"));
}

#[cfg(feature = "redb")]
mod redb {
    ::conformance::suite!(super::column("redb"));
}

#[cfg(feature = "rocksdb")]
mod rocksdb_settings {
    ::conformance::suite!(super::column("rocksdb_settings"));
}

#[cfg(feature = "lmdb")]
mod lmdb_settings {
    ::conformance::suite!(super::column("lmdb_settings"));
}

#[cfg(feature = "redb")]
mod redb_settings {
    ::conformance::suite!(super::column("redb_settings"));
}

#[cfg(feature = "strata")]
mod strata {
    ::conformance::suite!(super::column("strata"));
}

#[test]
fn another_engines_directory_is_refused() {
    for store in compiled_columns() {
        for other in compiled_columns().filter(|other| other.engine != store.engine) {
            ::conformance::identity::another_engines_directory_is_refused(&store, &other, other.engine.as_str());
        }
    }
}

#[test]
fn a_newer_format_is_refused() {
    for store in compiled_columns() {
        let dir = tempfile::tempdir().unwrap();
        store.open(dir.path()).unwrap().close().unwrap();
        let marker = dir.path().join("SOLKV");
        let known = format!("format = {}\n", engines::FORMAT_VERSION);
        let text = crate::marker_text(dir.path());
        assert!(text.contains(&known), "{text}");
        std::fs::write(&marker, text.replace(&known, "format = 4000000000\n")).unwrap();
        let error = store.open(dir.path()).err().unwrap();
        assert_eq!(error.kind(), engine_api::ErrorKind::FixInput, "{error}");
        assert!(error.to_string().contains("format=4000000000"), "the error names the format: {error}");
        std::fs::write(&marker, text).unwrap();
        store.open(dir.path()).unwrap().close().unwrap();
    }
}

#[test]
fn labels_are_the_columns_names() {
    for store in compiled_columns() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(store.open(dir.path()).unwrap().label(), store.name.trim_end_matches("_settings"));
    }
}

/// Entry point of the suite's child processes. [`::conformance::agent::ENTRY`] fixes its name.
#[test]
fn conformance_child() {
    child::enter(|name| COLUMNS.into_iter().find(|column| column.name == name));
}
