//! Parses pairs from outside bytes, raw records or CSV, with the offset or the line in every error.
//!
//! Owns: the two formats, and the hints for input that is nearly one of them. Must not: open files. Runs on the thread
//! that reads the source.

use std::io::{self, BufRead, Read};

use anyhow::{Context, Result, anyhow, bail, ensure};
use engine_api::{Key, Value};

use super::{Format, Place, Record, TakePlaced};

/// Reads pairs in `format` and passes them to `take`. Errors name the byte offset or the line.
pub fn read(format: Format, input: impl BufRead, take: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
    read_from(format, input, Place::default(), &mut |record, _| take(record))
}

/// Reads pairs from `input`, whose next byte is at `from`.
pub(super) fn read_from(format: Format, input: impl BufRead, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    match format {
        Format::Raw => read_raw(input, from, take),
        Format::Csv => read_csv(input, from, take),
        Format::Archive => bail!("a snapshot archive holds accounts, not pairs: give its location with --input"),
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

/// Longest accepted line of a CSV in bytes: two pubkeys of 44 characters, a comma, a line end, and room for blanks.
const LINE_BYTES_MAX: u64 = 256;

/// Bytes that some editors and spreadsheets write before the first character of a UTF-8 file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

fn read_csv(mut input: impl BufRead, from: Place, take: &mut TakePlaced<'_>) -> Result<()> {
    let mut line = Vec::new();
    let mut offset = from.bytes;
    // Blank lines may end a file, because editors leave them. A blank line between pairs may stand for a lost pair.
    let mut blank = None;
    for number in from.number.. {
        line.clear();
        let at = number + 1;
        // Bounded, because a file without line ends must not be read into memory.
        let bytes = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if bytes.with_context(|| format!("cannot read: line={at}"))? == 0 {
            return Ok(());
        }
        offset += line.len() as u64;
        ensure!(
            line.ends_with(b"\n") || (line.len() as u64) < LINE_BYTES_MAX,
            "line is too long for CSV: line={at} max_bytes={LINE_BYTES_MAX}: raw records are --format raw"
        );
        let text = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| number == 0).unwrap_or(&line).trim_ascii();
        if text.is_empty() {
            blank.get_or_insert(at);
            continue;
        }
        if let Some(blank) = blank {
            bail!("a blank line between pairs: line={blank}: remove it, or find the pair that is missing");
        }
        // Without a line end, the last character may be missing too, and the remaining 43 may still be a valid pubkey.
        ensure!(
            line.ends_with(b"\n"),
            "the last line has no line end, as if the file had been cut: line={at}: compare its end with the original; if \
             it is whole, add the line end, as with: echo >> FILE"
        );
        let (key, value) = pair(text, at).map_err(|error| match hint(text, at) {
            Some(hint) => anyhow!("{error}: {hint}"),
            None => error,
        })?;
        take((number, key, value), Place { bytes: offset, number: number + 1 })?;
    }
    Ok(())
}

fn pair(text: &[u8], line: u64) -> Result<(Key, Value)> {
    let mut columns = text.split(|byte| *byte == b',');
    let (Some(key), Some(value), None) = (columns.next(), columns.next(), columns.next()) else {
        bail!("expected two columns, KEY,VALUE in base58: line={line} text={:?}", String::from_utf8_lossy(text));
    };
    Ok((pubkey(key, "key", line)?, pubkey(value, "value", line)?))
}

/// Suggests how to correct a line that is no pair, if its text allows a guess.
fn hint(text: &[u8], line: u64) -> Option<&'static str> {
    if text.contains(&b'"') || text.contains(&b'\'') {
        return Some("write the columns without quotes");
    }
    if !text.contains(&b',') && text.iter().any(|byte| b"\t; |".contains(byte)) {
        return Some("separate the columns by a comma");
    }
    let is_pubkey = |text: &[u8]| pubkey(text, "", line).is_ok();
    if line == 1 && !text.split(|byte| *byte == b',').any(is_pubkey) {
        return Some("if the first line names the columns, remove it, as with: tail -n +2 FILE");
    }
    None
}

fn pubkey(text: &[u8], column: &str, line: u64) -> Result<[u8; 32]> {
    let text = text.trim_ascii();
    let shown = || String::from_utf8_lossy(text).into_owned();
    let mut out = [0u8; 32];
    match bs58::decode(text).onto(&mut out) {
        Ok(32) => Ok(out),
        Ok(bytes) => {
            bail!("not a pubkey: line={line} column={column} text={:?} bytes={bytes} expected_bytes=32", shown())
        }
        Err(bs58::decode::Error::BufferTooSmall) => {
            bail!("not a pubkey: line={line} column={column} text={:?} bytes=33 or more expected_bytes=32", shown())
        }
        Err(error) => bail!("not base58: line={line} column={column} text={:?} reason={error}", shown()),
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
        assert!(error(&format!("{good},abc\n")).contains("bytes=3 expected_bytes=32"));
        assert!(error(&"1".repeat(1000)).contains("line is too long for CSV: line=1"));
        assert!(error(&format!("{good},{good}\n\n\n{good},{good}\n")).contains("a blank line between pairs: line=2:"));
        assert!(format!("{:#}", all(Format::Raw, &[0; 100]).unwrap_err()).contains("offset=64 record_bytes=36"));
    }
    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_key() {
        let good = bs58::encode([7u8; 32]).into_string();
        let marked = format!("\u{feff}{good},{good}\n{good},{good}\n");
        assert_eq!(all(Format::Csv, marked.as_bytes()).unwrap().len(), 2);
        // Anywhere else the mark is a character that no key has.
        let error = all(Format::Csv, format!("{good},{good}\n\u{feff}{good},{good}\n").as_bytes()).unwrap_err();
        assert!(format!("{error:#}").contains("not base58: line=2 column=key"), "{error:#}");
    }

    #[test]
    fn what_is_nearly_csv_gets_a_hint() {
        let good = bs58::encode([7u8; 32]).into_string();
        let error = |csv: String| format!("{:#}", all(Format::Csv, csv.as_bytes()).unwrap_err());
        for header in ["key,value", "pubkey,owner", "KEY", "account,mint,owner"] {
            let error = error(format!("{header}\n{good},{good}\n"));
            assert!(error.contains("line=1") && error.contains("names the columns, remove it"), "{error}");
        }
        assert!(error(format!("\"{good}\",\"{good}\"\n")).contains("without quotes"));
        assert!(error(format!("{good}\t{good}\n")).contains("by a comma"));
        assert!(error(format!("{good};{good}\n")).contains("by a comma"));
        // A first line with one bad key, or any later line, is not taken for a header.
        for csv in [format!("{good},abc\n"), format!("{good},{good}\nkey,value\n")] {
            let error = error(csv);
            assert!(!error.contains("names the columns"), "{error}");
        }
    }
}
