//! The options of a load, as they are given on the command line or by a program that runs the load as its own part.
//!
//! Owns: their names, defaults and help; the refusal of options that are of no use together; the options that a resumed
//! load takes from its spill. Must not: open a file, or decide anything about a store. Runs on the main thread.

use engine_api::Code;
use std::fmt::Display;
use std::path::PathBuf;

use anyhow::Result;
use bytesize::ByteSize;
use engines::EngineArgs;

use crate::limits::SORT_BYTES_MIN;
use crate::meaning::MeaningArgs;
use crate::order::{Asked, OnDuplicate};
use crate::out::tell;
use crate::rank::Order;
use crate::seen::Seen;
use crate::source::SourceArgs;
use crate::wrong::Wrong;

// The default has the defaults of the command line.
/// Loads pairs into a store.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Directory of the store: missing or empty, unless --resume
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) meaning: MeaningArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Order in which keys reach the engine: random, or ascending through the engine's bulk path [default: sorted for
    /// strata, lmdb and redb, because it makes their loads faster and smaller; shuffled for rocksdb]
    #[arg(long, value_enum)]
    pub(crate) order: Option<Order>,
    /// A key given twice with different values: stop, or take the last one in the source
    #[arg(long, value_enum, default_value = "error", requires = "input")]
    pub(crate) on_duplicate: OnDuplicate,
    /// Continue a load of the same source that was stopped or killed
    ///
    /// The options --engine, --bloom, --profile, --extract, --cluster, --slot and --order need not be given again,
    /// because the store keeps them, and before there is a store its spill does. With a store, only --bloom and --profile
    /// may differ; they apply to new files. Before that, new values replace the kept ones, and a line names them.
    ///
    /// The source must have the same content. A file is recognized by its size and times, or, if those have changed, by
    /// reading it again. The spill of another source is thrown away and made again; a store that holds pairs of another
    /// source is refused. If the load is already complete, nothing is done and the exit code is 0.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Solana slot of the pairs, from which the service follows the stream; a snapshot archive names its own
    #[arg(long, value_name = "SLOT")]
    pub(crate) slot: Option<u64>,
    /// Pairs per commit (shuffled order); fewer if lmdb or redb could not hold a commit's pages in memory
    /// [default: 10000]
    #[arg(long, value_name = "N", value_parser = workload::count_within(1..=1_000_000u64))]
    pub(crate) batch: Option<u64>,
    /// Flush every commit to the device, instead of every 100th (shuffled order; redb always does)
    #[arg(long)]
    pub(crate) synced: bool,
    /// Sample latencies every N pairs; the default is a 200th of the load
    #[arg(long, value_name = "N", value_parser = workload::count_within(1..=u64::MAX))]
    pub(crate) sample_every: Option<u64>,
    /// Merge everything that the load leaves unmerged (strata with --order shuffled, RocksDB) before the end, and
    /// include it in the figures; with --resume also in a store whose load is complete
    #[arg(long)]
    pub(crate) settle: bool,
    /// Directory for the spill of a file or a sort, 73 bytes a pair at first; default: DIR with .work at the end
    ///
    /// The spill is given back to the file system while the store grows, so that both together take little more than
    /// the larger of the two. The directory must be missing, empty, or that of an earlier spill. A directory that is
    /// named here and existed before the load is not removed.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Memory for sorting, such as 64MiB; a source that fits into a quarter of it is not spilled [default: a share of
    /// the memory that the engine leaves of the cgroup's limit or the machine's]
    #[arg(long, value_name = "BYTES", value_parser = sort_memory)]
    pub(crate) sort_memory: Option<ByteSize>,
    /// Start even if the disk looks too small
    #[arg(long)]
    pub(crate) skip_disk_check: bool,
    /// Write everything measured as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write the histograms as an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    pub(crate) hlog: Option<PathBuf>,
    /// Progress for a program that runs the load as its own part.
    #[arg(skip)]
    pub(crate) seen: Seen,
    /// Bytes on the store's disk that such a program may take in the store's directory during the load.
    #[arg(skip)]
    pub(crate) beside_bytes: u64,
    /// Whether such a program runs the load. Its next start continues an interrupted load, without an option.
    #[arg(skip)]
    pub(crate) is_part: bool,
}

impl LoadArgs {
    /// Returns the words that say how an interrupted load is continued.
    pub(crate) fn way_on(&self) -> &'static str {
        match &self.source.store {
            Some(stored) if stored.is_derived() => "the same command begins again",
            _ if self.is_part => "the next start continues",
            _ => "the same command with --resume continues",
        }
    }

    /// Returns the options of this start that a spill keeps.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            engine: self.engine.engine,
            bloom: self.engine.bloom,
            profile: self.engine.profile,
            cluster: self.meaning.cluster.clone(),
            order: self.order,
            slot: self.slot,
        }
    }

    /// Adds the options of an earlier start that are lacking, except the slot, and prints them. If an option is given
    /// again with another value, the new value holds, because nothing is loaded yet; a line says so. Options of another
    /// engine than the one that is given are left out.
    pub(crate) fn fill(&mut self, asked: &Asked) {
        let mut taken = Taken::default();
        taken.one("--engine", &mut self.engine.engine, asked.engine, |engine| engine.to_string());
        if self.engine.engine == asked.engine {
            taken.one("--bloom", &mut self.engine.bloom, asked.bloom, |bits| bits.to_string());
            taken.one("--profile", &mut self.engine.profile, asked.profile, |profile| profile.as_str().to_owned());
        }
        taken.one("--cluster", &mut self.meaning.cluster, asked.cluster.clone(), String::clone);
        taken.one("--order", &mut self.order, asked.order, |order| order.name().to_owned());
        taken.tell(self.dir.display());
    }

    /// Refuses options about commits for a sorted load: the bulk path takes chunks of its own size and flushes each.
    pub(crate) fn refuse_unused(&self, order: Order) -> Result<()> {
        let unused = match order {
            Order::Shuffled => None,
            Order::Sorted if self.batch.is_some() => Some("--batch"),
            Order::Sorted => self.synced.then_some("--synced"),
        };
        match unused {
            None => Ok(()),
            Some(option) => Err(Wrong::error(
                Code::Arguments,
                format!(
                    "{option} is for order=shuffled: a sorted load takes chunks of its own size and flushes each: leave it out, or \
                 add --order shuffled"
                ),
            )),
        }
    }
}

/// Options that a load takes from an earlier start, and options that are given with other values now, as text.
#[derive(Default)]
struct Taken {
    again: Vec<String>,
    otherwise: Vec<String>,
}

impl Taken {
    fn one<T: PartialEq>(&mut self, name: &str, given: &mut Option<T>, kept: Option<T>, show: impl Fn(&T) -> String) {
        match (given.as_ref(), kept) {
            (None, Some(kept)) => {
                self.again.push(format!("{name} {}", show(&kept)));
                *given = Some(kept);
            }
            (Some(given), Some(kept)) if *given != kept => {
                self.otherwise.push(format!("{name} {} instead of {}", show(given), show(&kept)));
            }
            _ => {}
        }
    }

    fn tell(&self, dir: impl Display) {
        if !self.again.is_empty() {
            tell!("options taken from the load that was begun: dir={dir} {}", self.again.join(" "));
        }
        if !self.otherwise.is_empty() {
            tell!("options that replace those of the load that was begun: dir={dir} {}", self.otherwise.join(", "));
        }
    }
}

fn sort_memory(text: &str) -> Result<ByteSize, String> {
    let bytes = engines::size(text)?;
    if bytes.as_u64() < SORT_BYTES_MIN {
        return Err(format!("too small: minimum={}", ByteSize::b(SORT_BYTES_MIN)));
    }
    Ok(bytes)
}
