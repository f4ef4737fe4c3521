//! Where pairs come from: the seed, a file of raw records, or a CSV of base58 pubkeys, also packed by gzip or zstd.
//!
//! Owns: which file is read and how. Must not: order or deduplicate. Runs on the thread that reads the source.

mod packed;
mod parse;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use engine_api::{Key, Value};
use serde::{Deserialize, Serialize};
use workload::Pairs;

use crate::wrong::Wrong;
use packed::Packing;
pub use parse::read;

/// What a pair of two random pubkeys takes in a packed file at most.
const PACKED_PAIR_BYTES: u64 = 70;

/// A pair and where it stands in its source: record or line number from 0.
pub(crate) type Record = (u64, Key, Value);

/// A place between two records of a source, where reading can go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Bytes of the file before it, unpacked; 0 for synthetic pairs.
    pub(crate) bytes: u64,
    /// Records or lines before it.
    pub(crate) number: u64,
}

/// Takes a record and the place after it.
pub(crate) type TakePlaced<'a> = dyn FnMut(Record, Place) -> Result<()> + 'a;

/// The arguments that name a source; the same for loading and verifying.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("source").required(true)))]
pub struct SourceArgs {
    /// Synthetic pairs: this many, computed from --seed, never stored
    ///
    /// Such as 5000000, 5_000_000 or 5M; k, M and G are a thousand, a million and a billion.
    #[arg(long, value_name = "N", group = "source", allow_negative_numbers = true, value_parser = workload::count)]
    pub pairs: Option<u64>,
    /// Seed of the synthetic pairs, and of the shuffle of a file
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Pairs from a file, or - for standard input: raw records of 64 bytes (32-byte key, 32-byte value), or CSV
    ///
    /// A name that ends in .gz or .zst is unpacked while it is read.
    #[arg(long, value_name = "FILE", group = "source")]
    pub input: Option<PathBuf>,
    /// What is in the file; the default goes by its name: .csv, .csv.gz and .csv.zst are csv, everything else raw
    #[arg(long, value_enum, value_name = "FORMAT", requires = "input")]
    pub format: Option<Format>,
}

/// How a file holds pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 64 bytes a pair: key, then value.
    Raw,
    /// Two base58 columns a line, separated by a comma, without a header.
    Csv,
}

/// A source that can be read from the start.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Synthetic { pairs: Pairs, count: u64, seed: u64 },
    File { path: PathBuf, format: Format },
}

impl Source {
    pub(crate) fn new(args: &SourceArgs) -> Result<Self> {
        match (&args.pairs, &args.input) {
            (Some(0), _) => Err(Wrong::error("there is nothing to do: pairs=0")),
            (Some(count), _) => Ok(Self::Synthetic { pairs: Pairs::new(args.seed), count: *count, seed: args.seed }),
            (None, Some(path)) => {
                let is_csv = Packing::of(path).inner(path).is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
                let by_name = if is_csv { Format::Csv } else { Format::Raw };
                Ok(Self::File { path: path.clone(), format: args.format.unwrap_or(by_name) })
            }
            (None, None) => Err(Wrong::error("no source: give --pairs N --seed S, or --input FILE")),
        }
    }

    /// Whether the pairs can be read only once: standard input, or a pipe that has a name.
    pub(crate) fn is_read_once(&self) -> bool {
        match self {
            Self::Synthetic { .. } => false,
            Self::File { path, .. } => {
                path == Path::new("-") || std::fs::metadata(path).is_ok_and(|meta| !meta.is_file())
            }
        }
    }

    pub(crate) fn is_stdin(&self) -> bool {
        matches!(self, Self::File { path, .. } if path == Path::new("-"))
    }

    /// How its file holds pairs; `None` for synthetic ones.
    pub(crate) fn format(&self) -> Option<Format> {
        match self {
            Self::Synthetic { .. } => None,
            Self::File { format, .. } => Some(*format),
        }
    }

    /// Number of pairs where it is known before reading; of a CSV an estimate. A file that cannot be read, or that is
    /// empty, is refused here, which is before anything is made for it.
    pub(crate) fn count_hint(&self) -> Result<Option<u64>> {
        let (path, format) = match self {
            Self::Synthetic { count, .. } => return Ok(Some(*count)),
            Self::File { .. } if self.is_stdin() => return Ok(None),
            Self::File { path, format } => (path, *format),
        };
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("cannot open file={shown}"))?;
        let meta = file.metadata().with_context(|| format!("cannot look at file={shown}"))?;
        ensure!(!meta.is_dir(), "the input is a directory: file={shown}: name a file of pairs");
        if !meta.is_file() || Packing::of(path) != Packing::None {
            return Ok(None);
        }
        ensure!(meta.len() > 0, "there are no pairs: file={shown} bytes=0");
        // A CSV line of two pubkeys takes 66 to 90 bytes; an estimate for progress and the disk check.
        let divisor = if format == Format::Raw { 64 } else { 89 };
        Ok(Some(meta.len() / divisor))
    }

    /// The least number of pairs that a packed file can hold. Packing does not make random bytes smaller, so a pair takes
    /// 64 bytes, as CSV a few more; of values that come again and again less, so there may be twice as many pairs.
    pub(crate) fn packed_count_hint(&self) -> Option<u64> {
        let Self::File { path, .. } = self else { return None };
        let packed_bytes = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?.len();
        (Packing::of(path) != Packing::None).then_some(packed_bytes / PACKED_PAIR_BYTES)
    }

    /// Calls `take` with every pair in the source's own order.
    pub(crate) fn for_each(&self, take: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        self.for_each_from(Place::default(), &mut |record, _| take(record))
    }

    /// Calls `take` with every pair after `from`, a place that an earlier call has handed out. Standard input can be
    /// read from its start alone.
    pub(crate) fn for_each_from(&self, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
        match self {
            Self::Synthetic { pairs, count, .. } => {
                for index in from.number..*count {
                    let after = Place { bytes: 0, number: index + 1 };
                    take((index, pairs.key(index), pairs.value(index, 0)), after)?;
                }
                Ok(())
            }
            Self::File { path, format } => {
                let mut pairs = from.number;
                let mut counted = |record, after| {
                    pairs += 1;
                    take(record, after)
                };
                let read = if self.is_stdin() {
                    read_stdin(*format, from, &mut counted)
                } else {
                    read_file(path, *format, from, &mut counted)
                };
                read.with_context(|| format!("in file={}", path.display()))?;
                ensure!(pairs > 0, "there are no pairs: file={}", path.display());
                Ok(())
            }
        }
    }
}

fn read_stdin(format: Format, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    ensure!(from == Place::default(), "standard input can be read from its start alone");
    parse::read_from(format, io::stdin().lock(), from, take)
}

fn read_file(path: &Path, format: Format, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    let mut file = File::open(path).context("cannot open")?;
    let meta = file.metadata().context("cannot look at the file")?;
    let packing = Packing::of(path);
    if packing != Packing::None {
        let mut unpacked = packing.open(file)?;
        // What is packed can be read on from its start alone.
        let skipped = io::copy(&mut unpacked.by_ref().take(from.bytes), &mut io::sink()).context("cannot unpack")?;
        ensure!(skipped == from.bytes, "shorter than before: bytes={skipped} expected_bytes={}", from.bytes);
        return parse::read_from(format, unpacked, from, take);
    }
    if meta.is_file() {
        packed::refuse_unnamed(path)?;
    }
    if format == Format::Raw && meta.is_file() {
        let (bytes, left_over_bytes) = (meta.len(), meta.len() % 64);
        ensure!(
            left_over_bytes == 0,
            "not a whole number of 64-byte records: bytes={bytes} left_over_bytes={left_over_bytes} (for two base58 \
             columns use --format csv)"
        );
    }
    if from.bytes > 0 {
        file.seek(SeekFrom::Start(from.bytes)).context("cannot seek")?;
    }
    parse::read_from(format, packing.open(file)?, from, take)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic { count, seed, .. } => write!(f, "synthetic pairs={count} seed={seed}"),
            Self::File { path, .. } => write!(f, "file={}", path.display()),
        }
    }
}
