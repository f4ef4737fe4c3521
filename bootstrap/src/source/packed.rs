//! Files packed by gzip or zstd, unpacked while they are read.
//!
//! Owns: the packing that a file's name implies, its reader, and the refusal of bytes that do not match the name and
//! the format. Must not: parse pairs. Runs on the thread that reads the source.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind as Io, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use solana::archive::gzip::Gzip;

use super::open::window_bytes_max;
use super::{Format, pipe};

/// Bytes read from the file, or unpacked, at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes at the start of a file that are examined to recognize its kind.
const LOOK_BYTES: u64 = 4096;
/// Beginning of the mark in the first header of a tar archive, and its place.
const TAR_MAGIC: &[u8] = b"ustar";
const TAR_MAGIC_AT: usize = 257;
/// Way to read a snapshot archive that no name tells, as the end of a message. `verify` takes no slot.
const ARCHIVE_WAY_OUT: &str =
    "; a snapshot archive is read with --format archive, to which a load adds --slot SLOT; it need not be unpacked";
/// First bytes of every gzip file.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b, 0x08];
/// First bytes of every zstd file.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Largest window that zstd knows, as a power of two.
const WINDOW_LOG_MAX: u32 = 31;

/// Words of zstd's error for a window beyond the limit.
const WINDOW_REFUSED: &str = "too much memory";

/// Compression format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    /// Returns the packing that the file's name implies. The bytes cannot tell, because any bytes may begin a raw
    /// record.
    pub(super) fn of(path: &Path) -> Self {
        let ending = path.extension().unwrap_or_default();
        if ending.eq_ignore_ascii_case("gz") {
            Self::Gzip
        } else if ending.eq_ignore_ascii_case("zst") {
            Self::Zstd
        } else {
            Self::None
        }
    }

    /// Returns the extension of the file's name after unpacking.
    pub(super) fn inner(self, path: &Path) -> Option<&OsStr> {
        match self {
            Self::None => path.extension(),
            Self::Gzip | Self::Zstd => path.file_stem().map(Path::new).and_then(Path::extension),
        }
    }

    /// Returns a reader of the unpacked bytes. For a file that was cut short, reading fails instead of ending early,
    /// unless the cut is exactly between two of the parts that the file was joined from.
    pub(super) fn open(self, packed: Box<dyn BufRead>) -> Result<Box<dyn BufRead>> {
        Ok(match self {
            Self::None => packed,
            Self::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, Gzip::new(packed))),
            Self::Zstd => {
                let mut unpacked = zstd::Decoder::with_buffer(packed).context("cannot unpack zstd")?;
                let window_log = window_bytes_max(&probe::memory_limit()).ilog2().min(WINDOW_LOG_MAX);
                unpacked.window_log_max(window_log).context("cannot unpack zstd")?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, Windowed { unpacked, window_bytes: 1 << window_log }))
            }
        })
    }

    /// Returns a reader of a file's unpacked bytes.
    pub(super) fn open_file(self, file: File) -> Result<Box<dyn BufRead>> {
        self.open(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
    }

    /// Recognizes the packing of a file from its first bytes, whatever its name is. A raw key may begin with the same
    /// magic bytes, but does not unpack.
    fn of_bytes(first: &[u8]) -> Result<Self> {
        let packing = match first {
            _ if first.starts_with(GZIP_MAGIC) => Self::Gzip,
            _ if first.starts_with(ZSTD_MAGIC) => Self::Zstd,
            _ => return Ok(Self::None),
        };
        let unpacked = packing.open(Box::new(Cursor::new(first.to_vec())))?;
        let read = unpacked.take(LOOK_BYTES).read_to_end(&mut Vec::new());
        // These first bytes may end before the packed data does.
        let is_begun =
            |error: io::Error| error.kind() == Io::UnexpectedEof || error.to_string().contains(WINDOW_REFUSED);
        let is_packed = read.map_or_else(is_begun, |_| true);
        Ok(if is_packed { packing } else { Self::None })
    }
}

/// Reads a zstd file and explains a window that is too large.
struct Windowed<R> {
    unpacked: R,
    window_bytes: u64,
}

impl<R: Read> Read for Windowed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.unpacked.read(buffer).map_err(|error| match error.to_string() {
            why if why.contains(WINDOW_REFUSED) => io::Error::other(format!(
                "{why}: window_max_bytes={}, at most an eighth of this process's memory: raise the memory limit, or pack the file \
                 again without --long and --ultra",
                self.window_bytes
            )),
            _ => error,
        })
    }
}

/// Returns the same bytes, unless the first of them do not match the file's name and format. Such a file would load as
/// pairs that nobody wrote, if its length happens to be a multiple of a record's.
///
/// # Errors
/// Packed bytes under another name, or text in place of raw records, with the way out; I/O errors of reading.
pub(super) fn checked(
    mut input: Box<dyn BufRead>,
    named: Packing,
    format: Format,
    path: &Path,
) -> Result<Box<dyn BufRead>> {
    let mut first = Vec::new();
    input.by_ref().take(LOOK_BYTES).read_to_end(&mut first).context("cannot read: offset=0")?;
    let found = if named == Packing::None { Packing::of_bytes(&first)? } else { Packing::None };
    let way_out = match (found, pipe::is_stdin(path)) {
        (Packing::Gzip, true) => Some("gzip: unpack pairs on the way, as with: gzip -dc FILE | PROGRAM --input -"),
        (Packing::Gzip, false) => Some("gzip: give the file a name that ends in .gz"),
        (Packing::Zstd, true) => Some("zstd: unpack pairs on the way, as with: zstd -dc FILE | PROGRAM --input -"),
        (Packing::Zstd, false) => Some("zstd: give the file a name that ends in .zst"),
        (Packing::None, _) => None,
    };
    if let Some(way_out) = way_out {
        let of_archive = if pipe::is_stdin(path) { ARCHIVE_WAY_OUT } else { "" };
        bail!("packed by {way_out}{of_archive}");
    }
    if first.get(TAR_MAGIC_AT..).is_some_and(|rest| rest.starts_with(TAR_MAGIC)) {
        bail!(
            "a tar archive, not pairs: a snapshot archive is known by its name, snapshot-SLOT-HASH.tar.zst: rename it\
             {ARCHIVE_WAY_OUT}"
        );
    }
    if format == Format::Raw && is_text(&first) {
        bail!("text, not raw records of 64 bytes: for two base58 columns use --format csv");
    }
    Ok(Box::new(Cursor::new(first).chain(input)))
}

/// Whether the bytes are text in lines or columns. Among random keys, 64 such bytes follow each other once in 1e26.
fn is_text(first: &[u8]) -> bool {
    let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
    let is_character = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    first.iter().all(is_character)
        && first.iter().any(u8::is_ascii_alphanumeric)
        && first.iter().any(|byte| b",\n".contains(byte))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::path::PathBuf;

    use workload::Pairs;

    use super::super::{Format, Place, Record, Source, SourceArgs};
    use super::*;
    use crate::seen::Seen;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    fn records(path: &Path) -> Result<Vec<Record>> {
        let args = SourceArgs { input: Some(path.to_owned()), ..SourceArgs::default() };
        let source = Source::new(&args, None, &Seen::default())?;
        source.count_hint()?;
        let mut out = Vec::new();
        source.for_each(&mut |record| {
            out.push(record);
            Ok(())
        })?;
        Ok(out)
    }

    fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn packed_files_are_read_as_what_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let raw: Vec<u8> =
            (0..1000u32).flat_map(|number| [[number as u8; 60].as_slice(), &number.to_le_bytes()].concat()).collect();
        let csv: String = raw
            .chunks(64)
            .map(|pair| {
                format!("{},{}\n", bs58::encode(&pair[..32]).into_string(), bs58::encode(&pair[32..]).into_string())
            })
            .collect();
        let expected = records(&write(dir.path(), "plain.bin", &raw)).unwrap();
        assert_eq!(expected.len(), 1000);
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
        // Two members (gzip) or two frames (zstd), one after the other.
        let (first, second) = csv.split_at(csv.len() / 2);
        let files = [
            ("pairs.csv.gz", gzip(csv.as_bytes())),
            ("pairs.CSV.GZ", [gzip(first.as_bytes()), gzip(second.as_bytes())].concat()),
            ("pairs.csv.zst", [zstd(first.as_bytes()), zstd(second.as_bytes())].concat()),
            ("pairs.bin.gz", gzip(&raw)),
            ("pairs.zst", zstd(&raw)),
        ];
        for (name, bytes) in files {
            let path = write(dir.path(), name, &bytes);
            assert_eq!(records(&path).unwrap(), expected, "{name}");
            // A cut anywhere but between two of its parts is an error and never gives fewer pairs.
            for cut in [1, bytes.len() / 3, bytes.len() - 1] {
                write(dir.path(), name, &bytes[..cut]);
                assert!(records(&path).is_err(), "{name}: cut={cut}");
            }
        }
        for (bytes, ending) in [(gzip(&raw), ".gz"), (zstd(&raw), ".zst"), (gzip(csv.as_bytes()), ".gz")] {
            let whole = bytes.len().next_multiple_of(64);
            for name in ["pairs.bin", "pairs.csv"] {
                for bytes in [bytes.clone(), [&bytes[..], &vec![0; whole - bytes.len()]].concat()] {
                    let error = records(&write(dir.path(), name, &bytes)).unwrap_err();
                    assert!(format!("{error:#}").contains(&format!("ends in {ending}")), "{name}: {error:#}");
                }
            }
        }
        // A key that begins with the magic bytes of a packed file.
        for magic in [GZIP_MAGIC, ZSTD_MAGIC] {
            let mut pairs = raw.clone();
            pairs[..magic.len()].copy_from_slice(magic);
            assert_eq!(records(&write(dir.path(), "pairs.bin", &pairs)).unwrap().len(), 1000);
        }
    }

    #[test]
    fn a_file_without_pairs_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in
            [("a.csv", vec![]), ("a.bin", vec![]), ("b.csv", b"\n\n".to_vec()), ("c.csv.gz", gzip(b""))]
        {
            let error = records(&write(dir.path(), name, &bytes)).unwrap_err();
            assert!(format!("{error:#}").contains("there are no pairs: file="), "{name}: {error:#}");
        }
        let error = records(dir.path()).unwrap_err();
        assert!(format!("{error:#}").contains("the input is a directory"), "{error:#}");
    }

    #[test]
    fn the_name_says_the_format() {
        for (name, format) in
            [("a.csv", Format::Csv), ("a.csv.gz", Format::Csv), ("a.zst", Format::Raw), ("csv", Format::Raw)]
        {
            let args = SourceArgs { input: Some(name.into()), ..SourceArgs::default() };
            assert!(
                matches!(Source::new(&args, None, &Seen::default()).unwrap(), Source::File { format: found, .. } if found == format),
                "{name}"
            );
        }
    }

    #[test]
    fn every_place_of_a_source_goes_on_with_the_next_record() {
        let dir = tempfile::tempdir().unwrap();
        let pairs: Vec<[u8; 32]> = (1..9).map(|byte| [byte; 32]).collect();
        let text = |key: &[u8; 32]| bs58::encode(key).into_string();
        let csv: String = pairs.iter().map(|key| format!("{} ,{}\r\n", text(key), text(key))).collect();
        let raw: Vec<u8> = pairs.iter().flat_map(|key| [*key, *key].concat()).collect();
        let packed_path = dir.path().join("pairs.csv.gz");
        fs::write(&packed_path, gzip(csv.as_bytes())).unwrap();
        let (csv_path, raw_path) = (dir.path().join("pairs.csv"), dir.path().join("pairs.bin"));
        fs::write(&csv_path, csv + "\n").unwrap();
        fs::write(&raw_path, raw).unwrap();
        let sources = [
            Source::File { path: packed_path, format: Format::Csv },
            Source::File { path: csv_path, format: Format::Csv },
            Source::File { path: raw_path, format: Format::Raw },
            Source::Synthetic { pairs: Pairs::new(3), count: 8 },
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
}
