//! Keys, values, checkpoints and the comparisons that the topics share.
//!
//! Owns: the naming of pairs by small numbers. Must not: hide an error; everything unexpected panics with the engine's
//! own message.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::ControlFlow;

use engine_api::{Checkpoint, Durability, Engine, Error, ErrorKind, Key, Reader, Resident, Result, Value};
use engine_kit::Rng;

/// The whole content of a store.
pub(crate) type Map = BTreeMap<Key, Value>;

/// One change: a put, or a delete for `None`.
pub(crate) type Change = (Key, Option<Value>);

/// Returns a key that is unrelated in order to those of neighbouring numbers.
pub(crate) fn key(number: u64) -> Key {
    words(number, 0x6b65_7900)
}

pub(crate) fn value(number: u64) -> Value {
    words(number, 0x7661_6c75_6500)
}

/// Returns a key that ascends with its number, for sorted input.
pub(crate) fn ascending_key(number: u64) -> Key {
    let mut out = key(number);
    out[..8].copy_from_slice(&number.to_be_bytes());
    out
}

/// Lengths of the bytes in successive checkpoints, which grow and shrink from one to the next.
const MARK_BYTES: [usize; 7] = [96, 0, Checkpoint::BYTES_MAX, 1, 500, 1023, 17];

/// Returns a checkpoint whose bytes, and their length, depend on `seq`.
pub(crate) fn mark(seq: u64) -> Checkpoint {
    mark_of(seq, MARK_BYTES[(seq % MARK_BYTES.len() as u64) as usize])
}

/// Returns a checkpoint with `length` bytes, which depend on `seq`.
pub(crate) fn mark_of(seq: u64, length: usize) -> Checkpoint {
    let mut rng = Rng::new(seq ^ 0x6d61_726b);
    let bytes: Vec<u8> = std::iter::repeat_with(|| rng.next() as u8).take(length).collect();
    Checkpoint::new(seq, &bytes)
}

/// Returns the result's value, or panics with the error's kind, message and causes.
#[track_caller]
pub(crate) fn must<T>(what: impl Display, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {}", describe(&error)),
    }
}

/// Returns the error of `result`, or panics if there is none or its kind is not `kind`.
#[track_caller]
pub(crate) fn must_fail<T>(what: impl Display, kind: ErrorKind, result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("{what}: succeeded, expected kind={kind:?}"),
        Err(error) if error.kind() == kind => error,
        Err(error) => panic!("{what}: expected kind={kind:?}, got {}", describe(&error)),
    }
}

pub(crate) fn describe(error: &Error) -> String {
    format!("kind={:?} {}", error.kind(), engine_api::words(error))
}

/// Applies `changes` as one batch.
#[track_caller]
pub(crate) fn commit(engine: &dyn Engine, changes: &[Change], seq: u64, durability: Durability) {
    must(format_args!("commit seq={seq}"), try_commit(engine, changes, seq, durability));
}

pub(crate) fn try_commit(engine: &dyn Engine, changes: &[Change], seq: u64, durability: Durability) -> Result<()> {
    let mut txn = engine.begin()?;
    for (key, value) in changes {
        match value {
            Some(value) => txn.put(key, value)?,
            None => txn.delete(key)?,
        }
    }
    txn.commit(&mark(seq), durability)
}

pub(crate) fn apply(map: &mut Map, changes: &[Change]) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(*key, *value),
            None => map.remove(key),
        };
    }
}

#[track_caller]
pub(crate) fn reader(engine: &dyn Engine) -> Box<dyn Reader + '_> {
    must("open a reader", engine.reader())
}

/// Returns all pairs that a reader sees, after checking that the keys ascend strictly.
#[track_caller]
pub(crate) fn scan(reader: &mut dyn Reader) -> Map {
    let mut map = Map::new();
    let mut last = None;
    let outcome = reader.scan(&mut |key, value| {
        assert!(last < Some(*key), "scan does not ascend: last={last:?} next={key:?}");
        last = Some(*key);
        map.insert(*key, *value);
        ControlFlow::Continue(())
    });
    must("scan", outcome);
    map
}

/// Gets a key, and asserts that memory, where it tells, tells the same.
#[track_caller]
pub(crate) fn get(reader: &mut dyn Reader, key: &Key) -> Option<Value> {
    let resident = reader.get_resident(key);
    let value = must("get", reader.get(key));
    let expected = value.map_or(Resident::Absent, Resident::Found);
    assert!([Resident::WouldRead, expected].contains(&resident), "memory tells {resident:?}, and get {value:?}");
    value
}

/// Asserts the content and the checkpoint of the newest commit, by both checkpoints, a scan, and gets of some keys.
#[track_caller]
pub(crate) fn assert_holds(engine: &dyn Engine, expected: &Map, checkpoint: &Checkpoint) {
    let mut reader = reader(engine);
    assert_eq!(must("engine checkpoint", engine.checkpoint()), *checkpoint, "{}", engine.label());
    assert_eq!(must("reader checkpoint", reader.checkpoint()), *checkpoint, "{}", engine.label());
    let found = scan(&mut *reader);
    assert_equal_maps(engine.label(), &found, expected);
    for (key, value) in expected.iter().step_by((expected.len() / 64).max(1)) {
        assert_eq!(get(&mut *reader, key), Some(*value), "{}", engine.label());
    }
}

/// Asserts that two maps are equal. Prints only the first difference, because the maps may have thousands of pairs.
#[track_caller]
pub(crate) fn assert_equal_maps(label: &str, found: &Map, expected: &Map) {
    let missing = expected.iter().find(|(key, value)| found.get(*key) != Some(*value));
    let extra = found.keys().find(|key| !expected.contains_key(*key));
    assert!(
        missing.is_none() && extra.is_none(),
        "{label}: pairs={} expected={} first_missing_or_wrong={missing:?} first_extra={extra:?}",
        found.len(),
        expected.len()
    );
}

pub(crate) fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("the temporary directory is writable, or no test can run")
}

fn words(number: u64, salt: u64) -> [u8; 32] {
    let mut rng = Rng::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ salt);
    let mut out = [0u8; 32];
    out.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_be_bytes()));
    out
}
