//! Fuzz target: feeds arbitrary bytes to the readers of pair files. They are refused, or every pair is read at its
//! place.
//!
//! Owns: nothing. Must not: touch a store. One thread.

#![no_main]

use bootstrap::source::{Format, read};
use libfuzzer_sys::fuzz_target;

type Pair = ([u8; 32], [u8; 32]);

fuzz_target!(|bytes: &[u8]| {
    let raw: Vec<u8> =
        pairs(Format::Raw, bytes).unwrap_or_default().into_iter().flat_map(|(k, v)| [k, v].concat()).collect();
    assert_eq!(raw, if bytes.len().is_multiple_of(64) { bytes } else { &[] });
    if let Some(found) = pairs(Format::Csv, bytes) {
        let line = |(key, value): &Pair| {
            format!("{},{}\n", bs58::encode(key).into_string(), bs58::encode(value).into_string())
        };
        let again = pairs(Format::Csv, found.iter().map(line).collect::<String>().as_bytes());
        assert_eq!(again.expect("what was read can be written and read"), found);
    }
    // Whatever the bytes are, each 64 of them are one pair, and every pair can be written as CSV and read again.
    let (whole, _) = bytes.as_chunks::<64>();
    let csv: String = whole
        .iter()
        .map(|pair| {
            format!("{} , {}\r\n", bs58::encode(&pair[..32]).into_string(), bs58::encode(&pair[32..]).into_string())
        })
        .collect();
    let read: Vec<u8> =
        pairs(Format::Csv, csv.as_bytes()).expect("pairs").into_iter().flat_map(|(k, v)| [k, v].concat()).collect();
    assert_eq!(read, whole.as_flattened());
});

fn pairs(format: Format, bytes: &[u8]) -> Option<Vec<Pair>> {
    let mut found = Vec::new();
    let outcome = read(format, bytes, &mut |(number, key, value)| {
        assert_eq!(number, found.len() as u64, "in its place");
        found.push((key, value));
        Ok(())
    });
    outcome.is_ok().then_some(found)
}
