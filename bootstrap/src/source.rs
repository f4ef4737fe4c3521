//! Where pairs come from: the seed, a file of raw records, or a CSV of base58 pubkeys.
//!
//! Owns: parsing outside bytes, with the offset or line in every error. Must not: order or deduplicate.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use engine_api::{Key, Value};
use serde::{Deserialize, Serialize};
use workload::Pairs;

/// A pair and where it stands in its source: record or line number from 0.
pub(crate) type Record = (u64, Key, Value);

/// A place between two records of a source, where reading can go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Bytes of the file before it; 0 for synthetic pairs.
    pub(crate) bytes: u64,
    /// Records or lines before it.
    pub(crate) number: u64,
}

/// Takes a record and the place after it.
pub(crate) type TakePlaced<'a> = dyn FnMut(Record, Place) -> Result<()> + 'a;

/// The arguments that name a source; the same for loading and verifying.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct SourceArgs {
    /// Synthetic pairs: this many, computed from --seed, never stored
    #[arg(long, value_name = "N", required_unless_present = "input", conflicts_with = "input")]
    pub pairs: Option<u64>,
    /// Seed of the synthetic pairs, and of the shuffle of a file
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Pairs from a file, or - for standard input: raw records of 64 bytes (32-byte key, 32-byte value), or CSV
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// What is in the file; the default goes by its name: .csv is csv, everything else raw
    #[arg(long, value_enum, value_name = "FORMAT", requires = "input")]
    pub format: Option<Format>,
}

/// How a file holds pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 64 bytes a pair: key, then value.
    Raw,
    /// Two base58 columns a line, comma between, no header.
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
            (Some(0), _) => bail!("there is nothing to do: pairs=0"),
            (Some(count), _) => Ok(Self::Synthetic { pairs: Pairs::new(args.seed), count: *count, seed: args.seed }),
            (None, Some(path)) => {
                let by_name = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv")) {
                    Format::Csv
                } else {
                    Format::Raw
                };
                Ok(Self::File { path: path.clone(), format: args.format.unwrap_or(by_name) })
            }
            (None, None) => bail!("no source: give --pairs N --seed S, or --input FILE"),
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

    /// Number of pairs where it is known before reading.
    pub(crate) fn count_hint(&self) -> Result<Option<u64>> {
        match self {
            Self::Synthetic { count, .. } => Ok(Some(*count)),
            Self::File { .. } if self.is_stdin() => Ok(None),
            Self::File { path, format } => {
                let bytes = std::fs::metadata(path).with_context(|| format!("cannot open file={}", path.display()))?;
                // A CSV line of two pubkeys takes 66 to 90 bytes; an estimate for progress and the disk check.
                let divisor = if *format == Format::Raw { 64 } else { 89 };
                Ok(Some(bytes.len() / divisor))
            }
        }
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
                let named = |error: anyhow::Error| error.context(format!("in file={}", path.display()));
                if self.is_stdin() {
                    ensure!(from == Place::default(), "standard input can be read from its start alone");
                    return read_from(*format, io::stdin().lock(), from, take).map_err(named);
                }
                let mut file = File::open(path).with_context(|| format!("cannot open file={}", path.display()))?;
                let bytes = file.metadata().with_context(|| format!("cannot look at file={}", path.display()))?.len();
                if *format == Format::Raw {
                    ensure!(
                        bytes % 64 == 0,
                        "file is not a whole number of 64-byte records: file={} bytes={bytes} left_over_bytes={} \
                         (for two base58 columns use --format csv)",
                        path.display(),
                        bytes % 64
                    );
                }
                if from.bytes > 0 {
                    file.seek(SeekFrom::Start(from.bytes))
                        .with_context(|| format!("cannot seek in file={}", path.display()))?;
                }
                read_from(*format, BufReader::with_capacity(1 << 20, file), from, take).map_err(named)
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic { count, seed, .. } => write!(f, "synthetic pairs={count} seed={seed}"),
            Self::File { path, .. } => write!(f, "file={}", path.display()),
        }
    }
}

/// Reads pairs in `format`; errors name the byte offset or the line.
pub fn read(format: Format, input: impl BufRead, take: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
    read_from(format, input, Place::default(), &mut |record, _| take(record))
}

/// Reads pairs from `input`, which stands at `from`.
fn read_from(format: Format, input: impl BufRead, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    match format {
        Format::Raw => read_raw(input, from, take),
        Format::Csv => read_csv(input, from, take),
    }
}

fn read_raw(mut input: impl Read, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    for number in from.number.. {
        let mut record = [0u8; 64];
        let mut filled = 0;
        while filled < record.len() {
            match input.read(&mut record[filled..]) {
                Ok(0) if filled == 0 => return Ok(()),
                Ok(0) => bail!("input ends inside a record: offset={} record_bytes={filled} expected=64", number * 64),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context(format!("cannot read: offset={}", number * 64)),
            }
        }
        let (key, value) = record.split_at(32);
        let after = Place { bytes: (number + 1) * 64, number: number + 1 };
        take((number, key.try_into()?, value.try_into()?), after)?;
    }
    Ok(())
}

/// Longest line worth reading: two pubkeys of 44 characters, a comma, a line end, and room for blanks.
const LINE_BYTES_MAX: u64 = 256;

fn read_csv(mut input: impl BufRead, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    let mut line = Vec::new();
    let mut offset = from.bytes;
    // Blank lines may end a file, as editors leave them. Between pairs one may stand for a pair that was lost.
    let mut blank = None;
    for number in from.number.. {
        line.clear();
        let at = number + 1;
        // Bounded: a file without line ends must not be read into memory.
        let bytes = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if bytes.with_context(|| format!("cannot read: line={at}"))? == 0 {
            return Ok(());
        }
        offset += line.len() as u64;
        ensure!(
            line.ends_with(b"\n") || (line.len() as u64) < LINE_BYTES_MAX,
            "line is too long: line={at} max_bytes={LINE_BYTES_MAX}"
        );
        let text = line.trim_ascii();
        if text.is_empty() {
            blank.get_or_insert(at);
            continue;
        }
        if let Some(blank) = blank {
            bail!("a blank line between pairs: line={blank}: remove it, or find the pair that is missing");
        }
        let mut columns = text.split(|byte| *byte == b',');
        let (Some(key), Some(value), None) = (columns.next(), columns.next(), columns.next()) else {
            bail!("expected two columns, KEY,VALUE in base58: line={at} text={:?}", String::from_utf8_lossy(text));
        };
        let after = Place { bytes: offset, number: number + 1 };
        take((number, pubkey(key, "key", at)?, pubkey(value, "value", at)?), after)?;
    }
    Ok(())
}

fn pubkey(text: &[u8], column: &str, line: u64) -> Result<[u8; 32]> {
    let text = text.trim_ascii();
    let mut out = [0u8; 32];
    match bs58::decode(text).onto(&mut out) {
        Ok(32) => Ok(out),
        Ok(bytes) => bail!("not a pubkey: line={line} column={column} bytes={bytes} expected=32"),
        Err(error) => bail!(
            "not base58 of 32 bytes: line={line} column={column} text={:?} reason={error}",
            String::from_utf8_lossy(text)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(format: Format, bytes: &[u8]) -> Result<Vec<Record>> {
        let mut out = Vec::new();
        read(format, bytes, &mut |record| {
            out.push(record);
            Ok(())
        })?;
        Ok(out)
    }

    proptest! {
        #[test]
        fn both_formats_give_back_what_was_written(pairs in prop::collection::vec(any::<([u8; 32], [u8; 32])>(), 0..50)) {
            let raw: Vec<u8> = pairs.iter().flat_map(|(k, v)| [*k, *v].concat()).collect();
            let line = |(k, v): &([u8; 32], [u8; 32])| {
                format!("{},{}\r\n", bs58::encode(k).into_string(), bs58::encode(v).into_string())
            };
            let csv: String = pairs.iter().map(line).collect();
            let expected: Vec<Record> = pairs.iter().zip(0..).map(|((k, v), n)| (n, *k, *v)).collect();
            prop_assert_eq!(all(Format::Raw, &raw).unwrap(), expected.clone());
            prop_assert_eq!(all(Format::Csv, csv.as_bytes()).unwrap(), expected);
        }

        #[test]
        fn any_bytes_are_pairs_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = all(Format::Csv, &bytes);
            prop_assert_eq!(all(Format::Raw, &bytes).is_ok(), bytes.len() % 64 == 0);
        }
    }

    #[test]
    fn every_place_of_a_source_goes_on_with_the_next_record() {
        let dir = tempfile::tempdir().unwrap();
        let pairs: Vec<[u8; 32]> = (1..9).map(|byte| [byte; 32]).collect();
        let text = |key: &[u8; 32]| bs58::encode(key).into_string();
        let csv: String = pairs.iter().map(|key| format!("{} ,{}\r\n", text(key), text(key))).collect();
        let raw: Vec<u8> = pairs.iter().flat_map(|key| [*key, *key].concat()).collect();
        let (csv_path, raw_path) = (dir.path().join("pairs.csv"), dir.path().join("pairs.bin"));
        std::fs::write(&csv_path, csv + "\n").unwrap();
        std::fs::write(&raw_path, raw).unwrap();
        let sources = [
            Source::File { path: csv_path, format: Format::Csv },
            Source::File { path: raw_path, format: Format::Raw },
            Source::Synthetic { pairs: Pairs::new(3), count: 8, seed: 3 },
        ];
        for source in sources {
            let from = |place: Place| {
                let mut out = Vec::new();
                source.for_each_from(place, &mut |record, after| {
                    out.push((record, after));
                    Ok(())
                })?;
                anyhow::Ok(out)
            };
            let all = from(Place::default()).unwrap();
            assert_eq!(all.len(), 8);
            for (at, (_, after)) in all.iter().enumerate() {
                assert_eq!(from(*after).unwrap(), all[at + 1..], "{source} {after:?}");
            }
        }
    }

    #[test]
    fn blank_lines_may_end_a_file() {
        let good = bs58::encode([7u8; 32]).into_string();
        for end in ["\n", "\n\n", "\r\n \r\n\n"] {
            let records = all(Format::Csv, format!("{good},{good}{end}").as_bytes()).unwrap();
            assert_eq!(records, [(0, [7; 32], [7; 32])], "{end:?}");
        }
    }

    #[test]
    fn errors_name_the_place() {
        let good = bs58::encode([7u8; 32]).into_string();
        let error = |csv: &str| format!("{:#}", all(Format::Csv, csv.as_bytes()).unwrap_err());
        assert!(error(&format!("{good},{good}\n{good},0OIl\n")).contains("line=2 column=value"));
        assert!(error(&format!("{good}\n")).contains("line=1"));
        assert!(error(&format!("{good},abc\n")).contains("bytes=3 expected=32"));
        assert!(error(&"1".repeat(1000)).contains("line is too long: line=1"));
        assert!(error(&format!("{good},{good}\n\n\n{good},{good}\n")).contains("a blank line between pairs: line=2:"));
        assert!(format!("{:#}", all(Format::Raw, &[0; 100]).unwrap_err()).contains("offset=64 record_bytes=36"));
    }
}
