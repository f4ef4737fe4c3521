//! Pairs of a store in files: all, those of a value or a prefix, a sample; read again, on every engine; and the refusals.

use std::collections::BTreeSet;
use std::fs;

use crate::{Map, engines, fails, ok, raw_file, str, synthetic};

/// A map of 3000 pairs with 30 values.
fn map() -> Map {
    synthetic(3000, 5).into_keys().enumerate().map(|(n, key)| (key, [(n % 30) as u8; 32])).collect()
}

fn raw(file: &std::path::Path) -> BTreeSet<([u8; 32], [u8; 32])> {
    let bytes = fs::read(file).unwrap();
    let (records, rest) = bytes.as_chunks::<64>();
    assert!(rest.is_empty());
    let halves = |record: &[u8; 64]| (record[..32].try_into().unwrap(), record[32..].try_into().unwrap());
    records.iter().map(halves).collect()
}

#[test]
fn exported_pairs_are_those_of_the_store_and_load_again() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let (store, map) = (dir.path().join("store"), map());
        let input = raw_file(dir.path(), map.clone());
        ok(&["--engine", engine, "--dir", str(&store), "--input", str(&input), "--slot", "77"]);
        let digest = ok(&["info", "--dir", str(&store), "--digest"]);
        let digest = digest.split("digest=").nth(1).unwrap().split_whitespace().next().unwrap();
        let file = |name: &str| dir.path().join(name);
        for form in ["csv", "raw"] {
            let said = ok(&["export", "--dir", str(&store), "--to", str(&file(form)), "--form", form]);
            assert!(said.contains(&format!("pairs=3000 digest={digest}")) && said.contains("slot=77"), "{said}");
            let again = file(&format!("again-{form}"));
            ok(&["--engine", engine, "--dir", str(&again), "--input", str(&file(form)), "--format", form]);
            ok(&["compare", "--dir", str(&store), "--with", str(&again)]);
            let said = fails(1, &["export", "--dir", str(&store), "--to", str(&file(form)), "--form", form]);
            assert!(said.contains("the file is there already"), "{said}");
        }
        let all: BTreeSet<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
        assert_eq!(raw(&file("raw")), all, "{engine}");
        let export = |name: &str, more: &[&str]| {
            let to = file(name);
            ok(&[&["export", "--dir", str(&store), "--to", str(&to), "--form", "raw"], more].concat());
            raw(&to)
        };
        let value = bs58::encode([7; 32]).into_string();
        let said = fails(1, &["export", "--dir", str(&store), "--to", str(&file("no")), "--value", &value]);
        assert!(said.contains("E-DERIVED") && !file("no").exists() && !file("no.partial").exists(), "{said}");
        ok(&["derive", "--dir", str(&store)]);
        let of_value = all.iter().filter(|(_, value)| *value == [7; 32]).copied().collect();
        assert_eq!(export("value", &["--value", &value]), of_value, "{engine}");
        let begins: BTreeSet<_> = all.iter().filter(|(key, _)| key[0] == 0x5a).copied().collect();
        assert!(!begins.is_empty());
        assert_eq!(export("prefix", &["--prefix", "5A"]), begins, "{engine}");
        assert_eq!(export("everything", &["--prefix", ""]), all);
        assert_eq!(export("nothing", &["--prefix", &"ff".repeat(32)]), BTreeSet::new());
        let (first, other) =
            (export("first", &["--sample", "100"]), export("other", &["--sample", "100", "--seed", "2"]));
        assert!(first.len() == 100 && first.is_subset(&all) && other.is_subset(&all) && first != other);
        assert_eq!(export("same", &["--sample", "100", "--seed", "1"]), first);
        assert_eq!(export("more", &["--sample", "4000"]), all);
        // Each tenth of the keys has a part of a sample.
        let keys: Vec<_> = all.iter().map(|(key, _)| *key).collect();
        let sample = export("tenths", &["--sample", "1000", "--seed", "3"]);
        let counts = keys.chunks(300).map(|tenth| sample.iter().filter(|(key, _)| tenth.contains(key)).count());
        assert!(counts.clone().all(|count| (60..140).contains(&count)), "{:?}", counts.collect::<Vec<_>>());
    }
}

#[test]
fn a_prefix_is_hex_digits_of_whole_bytes() {
    for wrong in ["5", "5g", "+5", &"00".repeat(33)] {
        let said = fails(2, &["export", "--dir", "/nowhere", "--to", "/nowhere/file", "--prefix", wrong]);
        assert!(said.contains("hex digits"), "{said}");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn a_table_has_the_pairs_the_checkpoint_and_the_digest() {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;

    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("pairs.parquet"));
    // More than one row group.
    ok(&["--engine", engines().next().unwrap(), "--dir", str(&store), "--pairs", "300000", "--seed", "1"]);
    let said = ok(&["export", "--dir", str(&store), "--to", str(&to), "--form", "parquet"]);
    let reader = SerializedFileReader::new(fs::File::open(&to).unwrap()).unwrap();
    let told = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let digest = told.iter().find(|entry| entry.key == "digest").and_then(|entry| entry.value.clone()).unwrap();
    assert!(said.contains(&format!("digest={digest}")) && told.iter().any(|entry| entry.key == "checkpoint"), "{said}");
    assert_eq!(reader.metadata().num_row_groups(), 2);
    let bytes = |field: &Field| match field {
        Field::Bytes(bytes) => <[u8; 32]>::try_from(bytes.data()).unwrap(),
        field => panic!("{field:?}"),
    };
    let mut found = Map::new();
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let columns: Vec<[u8; 32]> = row.get_column_iter().map(|(_, field)| bytes(field)).collect();
        found.insert(columns[0], columns[1]);
    }
    assert_eq!(found, synthetic(300_000, 1));
}
