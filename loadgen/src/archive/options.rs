//! Options of `loadgen archive`.
//!
//! Owns: the command line. Must not: write anything.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::oddity::{Oddities, Oddity};
use super::pack::Packing;
use crate::stream::Workload;

/// The contents of the archives: a pure function of these and nothing else, so that two runs write the same bytes.
#[derive(clap::Args, Clone, Debug, serde::Serialize)]
pub struct Plan {
    /// Options of the stream whose accounts the archives hold.
    #[command(flatten)]
    pub workload: Workload,
    /// Take the full archive at the slot of the stream's N-th block; 0 is the slot before the first block
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = workload::count::<u64>)]
    pub slots_after: u64,
    /// Write incremental archives on top of the full one, each this many blocks of the stream after the one before: 5,10
    /// makes two
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = workload::count::<u64>)]
    pub incremental_slots: Vec<u64>,
    /// How the archives are packed
    #[arg(long, value_enum, value_name = "PACKING", default_value = "zst")]
    pub pack: Packing,
    /// The validator whose form the archives have
    #[arg(long, value_enum, value_name = "WRITER", default_value = "agave")]
    pub like: Like,
    /// Leave these oddities out of the archives
    #[arg(long, value_enum, value_name = "ODDITY,...", value_delimiter = ',')]
    pub without: Vec<Oddity>,
    /// Leave every oddity out: one version of each account, and no account that the stream does not know
    #[arg(long, conflicts_with = "without")]
    pub plain: bool,
}

/// The validator whose form an archive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Like {
    /// agave 4.2 and earlier: the manifest lists the accounts files
    Agave,
    /// agave after 4.2: the manifest lists no files
    AgaveUnlisted,
    /// Firedancer: no list either, every accounts file of the archive's slot, a frame for each entry, and no oddities
    Firedancer,
}

/// Command line of `loadgen archive`: a plan, and places for its results.
#[derive(clap::Args, Clone, Debug)]
pub struct ArchiveArgs {
    /// Directory for the archives; it is created if it is missing
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Accounts and oddities of the archives.
    #[command(flatten)]
    pub plan: Plan,
    /// Write the options and the facts about each archive as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// The options of `loadgen archive`, for callers that write archives themselves.
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    plan: Plan,
}

/// Parses a plan from the options of `loadgen archive`, written as on a command line.
///
/// # Errors
/// Options that the command would refuse.
pub fn options(line: &str) -> Result<Plan> {
    let Line { plan } = clap::Parser::try_parse_from(std::iter::once("archive").chain(line.split_whitespace()))?;
    Ok(plan)
}

impl Plan {
    /// Refuses options that do not make archives.
    ///
    /// # Errors
    /// The option, with the way out.
    pub fn check(&self) -> Result<()> {
        self.workload.check()?;
        ensure!(
            self.incremental_slots.iter().all(|slots| *slots > 0),
            "an incremental archive without a slot of its own: incremental-slots={:?}: give 1 or more for each",
            self.incremental_slots
        );
        Ok(())
    }

    pub(super) fn oddities(&self) -> Oddities {
        if self.plain || self.like == Like::Firedancer { Oddities::none() } else { Oddities::without(&self.without) }
    }
}
