//! Runs the conformance suite on each compiled engine, opened as the tools open it.

use std::path::Path;

use ::conformance::Store;
use ::conformance::child;
use bytesize::ByteSize;
use engine_api::{Engine, Result};
use solkv_engine_registry::{self as engines, EngineKind, EngineOptions, OpenMode};

/// A column of the suite's tables: an engine with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    name: &'static str,
    options: EngineOptions,
}

/// Memory of each engine: enough for tests, and small enough to run all of them at once on a small machine.
const MEMORY: ByteSize = ByteSize::mib(64);

impl Column {
    fn engine(&self) -> EngineKind {
        self.options.engine
    }
}

impl Store for Column {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, dir: &Path) -> Result<Box<dyn Engine>> {
        engines::open(dir, &self.options, OpenMode::CreateOrOpen)
    }

    fn open_small(&self, dir: &Path) -> Result<Box<dyn Engine>> {
        let small = self.engine().descriptor().small;
        let options = small.iter().fold(self.options.clone(), |options, (name, value)| options.with(name, value));
        engines::open(dir, &options, OpenMode::CreateOrOpen)
    }

    fn has_checksums(&self) -> bool {
        self.engine().descriptor().has_checksums
    }
}

/// Returns the column with this name.
fn column(name: &str) -> Column {
    compiled_columns().find(|column| column.name == name).expect("the list names the columns of its engines")
}

/// Returns the columns whose engine is in this build.
pub(crate) fn compiled_columns() -> impl Iterator<Item = Column> {
    let of = |engine: &EngineKind| EngineOptions::columns(*engine);
    engines::compiled()
        .iter()
        .flat_map(of)
        .map(|(name, options)| Column { name, options: EngineOptions { memory: Some(MEMORY), ..options } })
}

/// Defines the suite of each column in the list of engines.
macro_rules! suites {
    ($($kind:ident = $feature:tt in $home:ident: $($column:ident)+;)+) => {
        $($(
            #[cfg(feature = $feature)]
            mod $column {
                ::conformance::suite!(super::column(stringify!($column)));
            }
        )+)+

        /// Names of the columns in this build, as the list of engines has them.
        const LISTED: &[&str] = &[$($(#[cfg(feature = $feature)] stringify!($column),)+)+];
    };
}
engines::for_each_engine!(suites);

#[test]
fn the_list_names_every_column_of_every_engine() {
    assert_eq!(compiled_columns().map(|column| column.name).collect::<Vec<_>>(), LISTED);
}

#[test]
fn another_engines_directory_is_refused() {
    for store in compiled_columns() {
        for other in compiled_columns().filter(|other| other.engine() != store.engine()) {
            ::conformance::identity::another_engines_directory_is_refused(&store, &other, other.engine().as_str());
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
    child::enter(|name| compiled_columns().find(|column| column.name == name));
}
