//! The engines with the options that the torture opens them with. Each is a column of its tables.
//!
//! Owns: their names, options and promises, and how each is opened. Must not: keep anything open. Used on any thread.

use std::path::Path;
use std::sync::LazyLock;

use bytesize::ByteSize;
use clap::builder::PossibleValue;
use engine_api::{Buffered, Count, Descriptor, Durability, Engine, Stats};
use engine_kit::Rng;
use engines::{EngineKind, EngineOptions, OpenMode};
use serde::{Deserialize, Serialize};

/// An engine with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Column {
    /// A column of an engine, by the places of both in their lists, opened as the tools open it.
    Listed(usize, usize),
    /// strata with memtables and segments of a few thousand records, so that a base has many segments, which merges
    /// replace in groups; and with more data than the others, some of it with keys that share their first bytes.
    StrataSmall,
}

/// Every column, whether its engine is in this build or not.
static ALL: LazyLock<Vec<Column>> = LazyLock::new(|| {
    let listed = EngineKind::ALL.into_iter().enumerate().flat_map(|(engine, kind)| {
        let further = kind.descriptor().columns.iter().enumerate().filter(|(_, column)| column.torture.is_some());
        std::iter::once(0).chain(further.map(|(at, _)| at + 1)).map(move |at| Column::Listed(engine, at))
    });
    listed.chain([Column::StrataSmall]).collect()
});

impl clap::ValueEnum for Column {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()))
    }
}

impl Column {
    /// Returns the columns whose engine is in this build.
    pub fn compiled() -> impl Iterator<Item = Self> {
        ALL.iter().copied().filter(|column| engines::compiled().contains(&column.kind()))
    }

    /// Returns the columns of the engine with this name, opened as the tools open them. The first is its defaults.
    pub fn of(engine: &str) -> impl Iterator<Item = Self> {
        Self::compiled().filter(move |column| matches!(column, Self::Listed(..)) && column.kind().as_str() == engine)
    }

    /// Returns the column's name, which is the engine's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Listed(_, 0) => self.kind().as_str(),
            Self::Listed(_, at) => self.engine().columns[at - 1].name,
            Self::StrataSmall => "strata_small",
        }
    }

    /// Opens the store in `dir`, or creates it.
    ///
    /// # Errors
    /// Any error of opening the engine.
    pub(crate) fn open(self, dir: &Path, rng: &mut Rng) -> engine_api::Result<Box<dyn Engine>> {
        #[cfg(feature = "strata")]
        if self == Self::StrataSmall {
            return crate::small::open(dir, rng);
        }
        engines::open(dir, &self.options(rng), OpenMode::CreateOrOpen)
    }

    /// Returns the column's options. The memory is one of several sizes, so that caches hold everything or little.
    fn options(self, rng: &mut Rng) -> EngineOptions {
        let memory = Some(ByteSize::mib(rng.pick(&[8, 16, 64])));
        let own = EngineOptions::columns(self.kind()).find(|(name, _)| *name == self.as_str());
        let mut options = own.map_or_else(|| EngineOptions::new(self.kind()), |(_, options)| options);
        if let Self::Listed(_, at @ 1..) = self {
            let further = self.engine().columns[at - 1].torture.unwrap_or_default();
            options.set.extend(further.iter().map(|setting| (*setting).to_owned()));
        }
        EngineOptions { memory, ..options }
    }

    fn kind(self) -> EngineKind {
        match self {
            Self::Listed(engine, _) => EngineKind::ALL[engine],
            Self::StrataSmall => EngineKind::Strata,
        }
    }

    /// Returns the facts about the column's engine.
    pub fn engine(self) -> &'static Descriptor {
        self.kind().descriptor()
    }

    /// Whether the number of pairs of a settled store with these figures is exact.
    pub(crate) fn counts_pairs(self, stats: &Stats) -> bool {
        match self.engine().counts {
            Count::Exact => true,
            // A merge has left out a segment that it could not read, and with it the runs above.
            Count::AtMost => figure(stats, "unreadable_segments") == 0,
            Count::Estimate => false,
        }
    }

    /// Whether settling a store with these figures merges deltas into a base in several groups: strata alone does, if
    /// it has more segments than runs.
    pub(crate) fn merges_groups(self, stats: &Stats) -> bool {
        figure(stats, "delta_records") > 0
            && figure(stats, "base_records") > 0
            && figure(stats, "segments") > figure(stats, "delta_runs") + 1
    }

    /// Returns the newest batch that must survive a power loss, once batch `seq` was acknowledged. `before` is the
    /// result for the batches before it. This is the table of RELIABILITY.md.
    pub fn survives_power_loss(self, durability: Durability, seq: u64, before: u64) -> u64 {
        match (durability, self.engine().buffered) {
            (Durability::Synced, _) | (Durability::Buffered, Buffered::All) => seq,
            (Durability::Buffered, Buffered::AllButNewest) => before.max(seq - 1),
            (Durability::Buffered, Buffered::AllButNewestOnes) => before,
        }
    }
}

impl From<Column> for String {
    fn from(column: Column) -> Self {
        column.as_str().to_owned()
    }
}

impl TryFrom<String> for Column {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        clap::ValueEnum::from_str(&name, false)
    }
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns an engine's own figure of this name, 0 if it has none.
fn figure(stats: &Stats, name: &str) -> u64 {
    stats.details.iter().find(|(found, _)| *found == name).map_or(0, |(_, value)| *value)
}
