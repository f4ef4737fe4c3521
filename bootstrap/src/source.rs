//! Sources of pairs: a seed, a file of raw records, a CSV of base58 pubkeys, Solana's snapshot archives, or another
//! store; files may be packed by gzip or zstd.
//!
//! Owns: the choice of the file and its format. Must not: order or deduplicate. Runs on the thread that reads the
//! source.

mod archive;
mod numbers;
mod open;
mod packed;
mod parse;
mod pipe;
mod stored;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use engine_api::{Code, Key, Value};
use serde::{Deserialize, Serialize};
use solana::Extract;
use solana::archive::is_url;
use workload::{Pairs, Shape, Values};

use crate::seen::Seen;
use crate::signal::{self, Stopped};
use crate::wrong::Wrong;
pub use archive::OtherChain;
pub(crate) use archive::{Archives, Told};
pub(crate) use numbers::{Files, has_no_value};
use packed::Packing;
pub use parse::read;
use pipe::Pipe;
pub(crate) use stored::Stored;

/// Largest number of bytes that a pair of two random pubkeys takes in a packed file.
const PACKED_PAIR_BYTES: u64 = 70;

/// Position in the source (record or line number from 0), key and value. Of an archive the position is the number of a
/// version, and the value is zero where [`has_no_value`].
pub(crate) type Record = (u64, Key, Value);

/// A place between two records of a source, from which reading can continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Unpacked bytes of the file before this place; 0 for synthetic pairs.
    pub(crate) bytes: u64,
    /// Number of records or lines before this place.
    pub(crate) number: u64,
}

/// Takes a record and the place after it. An error stops the reading.
pub(crate) type TakePlaced<'a> = dyn FnMut(Record, Place) -> Result<()> + 'a;

/// The arguments that name a source; the same for loading and verifying.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("source").required(true)))]
pub struct SourceArgs {
    /// Synthetic pairs: this many, computed from --seed, never stored
    ///
    /// For example 5000000, 5_000_000 or 5M; k, M and G are a thousand, a million and a billion.
    #[arg(long, value_name = "N", group = "source", allow_negative_numbers = true, value_parser = workload::count::<u64>)]
    pub pairs: Option<u64>,
    /// Seed of the synthetic pairs, and of the shuffle of a file
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Values of the synthetic pairs: unique, or zipfian:EXPONENT:OWNERS for values that repeat
    ///
    /// Wallets own many accounts each: with zipfian:0.99:5M the values are 5 million owners, the r-th of them with
    /// weight r^-0.99. Pairs with other values are another source.
    #[arg(long, value_name = "VALUES", default_value = "unique", conflicts_with = "input")]
    pub values: Values,
    /// Keys of the synthetic pairs, by the leading bytes that they share: random, alike, some-alike, counting or grouped
    ///
    /// alike: all share 25 bytes. some-alike: one in a hundred has 8 to 20 bytes of one of a thousand prefixes. counting:
    /// numbers after zeros, which come in their order. grouped: each begins with one of a thousand prefixes of 16 bytes.
    /// Pairs with other keys are another source.
    #[arg(long, value_name = "SHAPE", default_value = "random", conflicts_with = "input")]
    pub key_shape: Shape,
    /// Pairs from a file or a pipe, or - for standard input: a Solana snapshot archive, raw records of 64 bytes (32-byte
    /// key, 32-byte value), or CSV
    ///
    /// A name that ends in .gz or .zst is unpacked while it is read. An archive is known by its name, such as
    /// snapshot-312000000-HASH.tar.zst (also .tar.lz4, .tar.gz, .tar); it may also be the directory that one was unpacked
    /// into, if its manifest lists its files, or an http(s) URL.
    #[arg(long, value_name = "FILE", group = "source")]
    pub input: Option<PathBuf>,
    /// Incremental snapshot archive on top of the full one of --input
    #[arg(long, value_name = "ARCHIVE", requires = "input")]
    pub incremental: Option<PathBuf>,
    /// Format of the file [default by its name: .csv, .csv.gz and .csv.zst are csv, snapshot-... is an archive,
    /// everything else is raw]
    #[arg(long, value_enum, value_name = "FORMAT", requires = "input")]
    pub format: Option<Format>,
    /// Refuse a source that does not have exactly this many records. Repeated keys count each time, and so does every
    /// version of an account in an archive
    ///
    /// A file that was cut between two records looks whole, so take the number from the program that wrote it.
    #[arg(long, value_name = "N", value_parser = workload::count::<u64>)]
    pub expect_pairs: Option<u64>,
    /// A store, which a migration names in another way.
    #[arg(skip)]
    pub(crate) store: Option<Stored>,
}

impl Default for SourceArgs {
    fn default() -> Self {
        let values = Values::Unique;
        Self {
            pairs: None,
            seed: 1,
            values,
            key_shape: Shape::Random,
            input: None,
            incremental: None,
            format: None,
            expect_pairs: None,
            store: None,
        }
    }
}

impl SourceArgs {
    /// Whether the input is a snapshot archive, by its format or its name.
    pub(crate) fn is_of_archives(&self) -> bool {
        let by_name = |path: &PathBuf| self.incremental.is_some() || Archives::are_at(path);
        match self.format {
            Some(format) => format == Format::Archive,
            None => self.input.as_ref().is_some_and(by_name),
        }
    }

    /// Checks the number of records against --expect-pairs, if it was given.
    ///
    /// # Errors
    /// The numbers differ; the error has both.
    pub fn check_records(&self, records: u64) -> Result<()> {
        let Some(expected) = self.expect_pairs.filter(|expected| *expected != records) else { return Ok(()) };
        let other = anyhow!(
            "the source does not have the expected number of pairs: records={records} expected_pairs={expected}: find out what is \
             missing or too many, or correct --expect-pairs"
        );
        Err(other.context(Code::Input))
    }
}

/// Format of a file's pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 64 bytes a pair: key, then value.
    Raw,
    /// Two base58 columns a line, separated by a comma, without a header.
    Csv,
    /// A Solana snapshot archive, from which --extract takes the values.
    Archive,
}

/// A source of pairs. Only [`Self::is_read_once`] sources cannot be read a second time.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Synthetic { pairs: Pairs, count: u64 },
    File { path: PathBuf, format: Format },
    Archives(Archives),
    Store(Stored),
}

impl Source {
    /// Chooses the source. `extract` is needed for archives, and `seen` is told while a server of one fails.
    ///
    /// # Errors
    /// [`Wrong`] for arguments that contradict each other; an archive that cannot be opened.
    pub(crate) fn new(args: &SourceArgs, extract: Option<Extract>, seen: &Seen) -> Result<Self> {
        if let Some(stored) = &args.store {
            return Ok(Self::Store(stored.clone()));
        }
        refuse_scheme(args)?;
        match (&args.pairs, &args.input) {
            (None, Some(path)) if args.is_of_archives() => {
                Ok(Self::Archives(Archives::new(path, args.incremental.as_deref(), extract, seen)?))
            }
            _ if args.incremental.is_some() => Err(Wrong::error(
                Code::Arguments,
                "--incremental adds to a snapshot archive: name the full one with --input",
            )),
            (Some(0), _) => Err(Wrong::error(Code::Arguments, "there is nothing to do: pairs=0")),
            (Some(count), _) => {
                let pairs = Pairs::with_values(args.seed, args.values).with_shape(args.key_shape);
                Ok(Self::Synthetic { pairs, count: *count })
            }
            (None, Some(path)) => {
                let is_csv = Packing::of(path).inner(path).is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
                let by_name = if is_csv { Format::Csv } else { Format::Raw };
                Ok(Self::File { path: path.clone(), format: args.format.unwrap_or(by_name) })
            }
            (None, None) => Err(Wrong::error(Code::Arguments, "no source: give --pairs N --seed S, or --input FILE")),
        }
    }

    /// Whether the pairs can be read only once: from standard input or a named pipe.
    pub(crate) fn is_read_once(&self) -> bool {
        match self {
            Self::Synthetic { .. } | Self::Store(_) => false,
            Self::File { path, .. } => is_pipe(path),
            Self::Archives(archives) => archives.is_read_once(),
        }
    }

    /// Whether the source has versions of accounts, so that only their numbers tell which of them counts.
    pub(crate) fn has_versions(&self) -> bool {
        matches!(self, Self::Archives(_))
    }

    /// Returns the slot that the pairs reflect: that of an archive, else the one asked for. Reading refuses an archive
    /// of another slot from now on, even if its name does not tell.
    ///
    /// # Errors
    /// [`Wrong`] if an archive is of another slot, or of an unknown one.
    pub(crate) fn fix_slot(&mut self, asked: Option<u64>) -> Result<Option<u64>> {
        match self {
            Self::Archives(archives) => archives.fix_slot(asked).map(Some),
            _ => Ok(asked),
        }
    }

    /// Returns the store; `None` for other sources.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        if let Self::Store(stored) = self { Some(stored) } else { None }
    }

    /// Returns the memory that an open store takes; 0 for other sources.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.stored().map_or(0, Stored::memory_bytes)
    }

    /// Returns the slot that the names of archives tell; `None` for other sources.
    pub(crate) fn slot(&self) -> Option<u64> {
        match self {
            Self::Archives(archives) => archives.named_slot(),
            _ => None,
        }
    }

    /// Returns the files that the source is read from; `None` if it is not, or not only, read from files.
    pub(crate) fn files(&self) -> Option<Vec<PathBuf>> {
        match self {
            Self::Synthetic { .. } | Self::Store(_) => None,
            Self::File { path, .. } => (!self.is_stdin()).then(|| vec![path.clone()]),
            Self::Archives(archives) => archives.files(),
        }
    }

    pub(crate) fn is_stdin(&self) -> bool {
        matches!(self, Self::File { path, .. } if pipe::is_stdin(path))
    }

    /// Returns the format of the source's file; `None` for synthetic pairs and stores.
    pub(crate) fn format(&self) -> Option<Format> {
        match self {
            Self::Synthetic { .. } | Self::Store(_) => None,
            Self::File { format, .. } => Some(*format),
            Self::Archives(_) => Some(Format::Archive),
        }
    }

    /// Returns the number of pairs if it is known before reading; for a CSV and a store it is an estimate. A file that cannot be
    /// read, or is empty, is refused here, before anything is created for the load.
    pub(crate) fn count_hint(&self) -> Result<Option<u64>> {
        let (path, format) = match self {
            Self::Synthetic { count, .. } => return Ok(Some(*count)),
            Self::Archives(_) => return Ok(None),
            Self::Store(stored) => return Ok(Some(stored.pairs_estimate())),
            Self::File { .. } if self.is_stdin() => return Ok(None),
            Self::File { path, format } => (path, *format),
        };
        let shown = path.display();
        let meta = std::fs::metadata(path).with_context(|| format!("cannot open file={shown}")).context(Code::Input)?;
        ensure!(
            !meta.is_dir(),
            "the input is a directory, and no unpacked archive: file={shown}: name a file of pairs, or an archive in it"
        );
        if !meta.is_file() {
            // A pipe may be opened only once, for the actual reading: when this end is closed, the writer thinks that
            // its reader is gone.
            return Ok(None);
        }
        File::open(path).with_context(|| format!("cannot open file={shown}")).context(Code::Input)?;
        if Packing::of(path) != Packing::None {
            return Ok(None);
        }
        ensure!(meta.len() > 0, "there are no pairs: file={shown} bytes=0");
        // Bytes of a CSV line of two pubkeys: 66 to 90. The estimate serves the progress bar and the disk check.
        let divisor = if format == Format::Raw { 64 } else { 89 };
        Ok(Some(meta.len() / divisor))
    }

    /// Returns the least number of pairs that a packed file can hold. Packing does not make random bytes smaller, so a
    /// pair takes 64 bytes, as CSV a few more. Values that repeat take less, so there may be twice as many pairs.
    pub(crate) fn packed_count_hint(&self) -> Option<u64> {
        let path = match self {
            Self::Synthetic { .. } | Self::Store(_) => return None,
            Self::File { path, .. } => path,
            Self::Archives(archives) => return archives.count_hint(),
        };
        let packed_bytes = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?.len();
        (Packing::of(path) != Packing::None).then_some(packed_bytes / PACKED_PAIR_BYTES)
    }

    /// Checks the number of records against --expect-pairs before the source is read, if the number is known exactly.
    ///
    /// # Errors
    /// The numbers differ; a file that cannot be read or is empty, as in [`Self::count_hint`].
    pub(crate) fn check_records_before(&self, args: &SourceArgs) -> Result<()> {
        let exact = if self.format() == Some(Format::Csv) { None } else { self.count_hint()? };
        exact.map_or(Ok(()), |records| args.check_records(records))
    }

    /// Calls `take` with every pair, in the source's own order.
    pub(crate) fn for_each(&self, take: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        self.for_each_from(Place::default(), &mut |record, _| take(record)).map(drop)
    }

    /// Calls `take` with every pair after `from`, a place that an earlier call has passed to `take`. A pipe and a store
    /// can only be read from their start. Returns the files whose versions count in another order than that of their numbers.
    pub(crate) fn for_each_from(&self, from: Place, take: &mut TakePlaced<'_>) -> Result<Told> {
        match self {
            Self::Archives(archives) => archives.for_each_from(from, take),
            Self::Store(stored) => {
                stored.for_each(&mut |record| take(record, Place { bytes: 0, number: record.0 + 1 }))?;
                Ok(Told::default())
            }
            Self::Synthetic { pairs, count } => {
                for index in from.number..*count {
                    let after = Place { bytes: 0, number: index + 1 };
                    take((index, pairs.key(index), pairs.value(index, 0)), after)?;
                }
                Ok(Told::default())
            }
            Self::File { path, format } => {
                let mut pairs = from.number;
                let mut counted = |record, after| {
                    pairs += 1;
                    take(record, after)
                };
                let read = read_file(path, *format, from, &mut counted);
                read.with_context(|| format!("in file={}", path.display())).context(Code::Input)?;
                ensure!(pairs > 0, "there are no pairs: file={}", path.display());
                Ok(Told::default())
            }
        }
    }
}

/// Refuses a URL whose scheme is not supported, which would be taken for a file.
fn refuse_scheme(args: &SourceArgs) -> Result<()> {
    for path in [&args.input, &args.incremental].into_iter().flatten() {
        let location = path.to_string_lossy();
        let is_scheme = |text: &str| text.starts_with(|c: char| c.is_ascii_alphabetic()) && !text.contains(['/', '.']);
        let scheme = location.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| is_scheme(scheme));
        if let Some(scheme) = scheme.filter(|_| !is_url(&location)) {
            return Err(Wrong::error(
                Code::Fetch,
                format!(
                    "the URL's scheme is not supported: scheme={scheme}: give an http:// or https:// URL, or download the file \
                 and name it"
                ),
            ));
        }
    }
    Ok(())
}

/// Reads the pairs of a file or a pipe, from `from` on.
fn read_file(path: &Path, format: Format, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    let packing = if pipe::is_stdin(path) { Packing::None } else { Packing::of(path) };
    if is_pipe(path) {
        ensure!(from == Place::default(), "a pipe can be read from its start alone");
        let input = packed::checked(packing.open(Box::new(Pipe::start(path)?))?, packing, format, path)?;
        return parse::read_from(format, input, from, take);
    }
    let mut file = File::open(path).context("cannot open")?;
    let bytes = file.metadata().context("cannot look at the file")?.len();
    if packing == Packing::None && format == Format::Raw && !bytes.is_multiple_of(64) {
        packed::checked(Packing::None.open_file(file)?, packing, format, path)?;
        bail!(
            "not a whole number of 64-byte records: bytes={bytes} left_over_bytes={} (for two base58 columns use \
             --format csv)",
            bytes % 64
        );
    }
    if packing == Packing::None && from.bytes > 0 {
        file.seek(SeekFrom::Start(from.bytes)).context("cannot seek")?;
    }
    let whole = file.try_clone().context("cannot open")?;
    let mut input = packing.open_file(file)?;
    if from.bytes == 0 {
        input = packed::checked(input, packing, format, path)?;
        // After the check of the format, because another one may end in zeros.
        if packing == Packing::None && format == Format::Raw {
            refuse_unwritten_end(&whole, bytes)?;
        }
    } else if packing != Packing::None {
        // A packed file can only be unpacked from its start, so skip the unpacked bytes before `from`.
        skip(&mut input, from.bytes)?;
    }
    parse::read_from(format, input, from, take).map_err(|error| {
        let early = |cause: &io::Error| packing != Packing::None && cause.kind() == io::ErrorKind::UnexpectedEof;
        match error.chain().any(|cause| cause.downcast_ref().is_some_and(early)) {
            true => {
                error.context("the packed file ends too early, as if it had been cut: compare it with the original")
            }
            false => error,
        }
    })
}

/// Reads `bytes` unpacked bytes without a use for them, until a signal asks to stop.
fn skip(input: &mut dyn BufRead, bytes: u64) -> Result<()> {
    let mut left_bytes = bytes;
    while left_bytes > 0 {
        ensure!(!signal::is_asked(), Stopped);
        let piece_bytes =
            input.fill_buf().context("cannot unpack")?.len().min(left_bytes.try_into().unwrap_or(usize::MAX));
        let skipped = bytes - left_bytes;
        ensure!(piece_bytes > 0, "shorter than before: bytes={skipped} expected_bytes={bytes}");
        input.consume(piece_bytes);
        left_bytes -= piece_bytes as u64;
    }
    Ok(())
}

/// Refuses a file that was extended and not written to its end, because its zeros would load as a pair.
fn refuse_unwritten_end(file: &File, bytes: u64) -> Result<()> {
    let mut end = [0xff; 128];
    let Some(from) = bytes.checked_sub(end.len() as u64) else { return Ok(()) };
    file.read_exact_at(&mut end, from).context("cannot read the end")?;
    ensure!(
        end != [0; 128],
        "the file ends in records of zeros, as if its end had never been written: bytes={bytes}: compare it with the \
         original, or cut them off with truncate"
    );
    Ok(())
}

/// Whether the input cannot be read from an earlier position again: standard input, a named pipe, or a device.
fn is_pipe(path: &Path) -> bool {
    pipe::is_stdin(path) || std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic { pairs, count } => f.write_str(&pairs.describe(*count)),
            Self::File { path, .. } => write!(f, "file={}", path.display()),
            Self::Archives(archives) => archives.fmt(f),
            Self::Store(stored) => stored.fmt(f),
        }
    }
}
