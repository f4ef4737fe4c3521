//! The spool against a model, and after every cut and every flipped bit.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::tempdir;

use super::fuzzing::slot;
use super::{FILE, Origin, Reader, SpoolFigures, Writer, look, remove, source_of};
use crate::base::chain::{Base, WholeSlot};

const ROOM: u64 = 1 << 30;

fn origin() -> Origin {
    Origin { base: Base { slot: 10, blockhash: [10; 32] }, meaning: "account-owner exact".to_owned() }
}

fn open(dir: &Path) -> (Writer, Arc<SpoolFigures>) {
    let figures = Arc::new(SpoolFigures::default());
    (Writer::open(dir, &origin(), ROOM, Arc::clone(&figures)).unwrap(), figures)
}

fn read(dir: &Path, until: u64) -> Vec<WholeSlot> {
    let mut reader = Reader::open(dir).unwrap();
    std::iter::from_fn(|| reader.next(until).unwrap()).collect()
}

/// Writes `count` slots, each after a skipped one, and returns them.
fn written(dir: &Path, count: u64) -> Vec<WholeSlot> {
    let (mut writer, _) = open(dir);
    let slots: Vec<_> = (0..count).map(|n| slot(12 + 2 * n, 10 + 2 * n)).collect();
    slots.iter().for_each(|slot| writer.append(slot).unwrap());
    writer.flush().unwrap();
    slots
}

#[test]
fn a_reader_sees_flushed_slots_alone() {
    let temp = tempdir().unwrap();
    let (mut writer, figures) = open(temp.path());
    writer.append(&slot(11, 10)).unwrap();
    assert!(read(temp.path(), figures.flushed_bytes()).is_empty());
    writer.flush().unwrap();
    assert_eq!(read(temp.path(), figures.flushed_bytes()), [slot(11, 10)]);
    let mut reader = Reader::open(temp.path()).unwrap();
    assert!(reader.pass(figures.flushed_bytes()).unwrap());
    assert_eq!((reader.last().slot, reader.next(figures.flushed_bytes()).unwrap()), (11, None));
}

#[test]
fn a_slot_that_is_no_child_of_the_last_one_and_one_without_room_are_refused() {
    let temp = tempdir().unwrap();
    let figures = Arc::new(SpoolFigures::default());
    let mut writer = Writer::open(temp.path(), &origin(), 1000, Arc::clone(&figures)).unwrap();
    assert!(writer.append(&slot(12, 11)).unwrap_err().0.contains("the spool ends at slot=10"));
    let mut number = 10;
    let full = loop {
        match writer.append(&slot(number + 1, number)) {
            Ok(()) => number += 1,
            Err(full) => break full.0,
        }
    };
    assert!(full.contains("spool_max_bytes=1000") && number > 11, "{full} number={number}");
    writer.flush().unwrap();
    assert!(figures.flushed_bytes() <= 1000);
    assert_eq!(read(temp.path(), figures.flushed_bytes()).last().unwrap().slot, number);
}

#[test]
fn the_provider_of_each_slot_is_kept() {
    let temp = tempdir().unwrap();
    let (mut writer, figures) = open(temp.path());
    for (number, source) in [(11, 0), (12, source_of("http://a")), (13, source_of("http://b"))] {
        writer.set_source(source);
        writer.append(&slot(number, number - 1)).unwrap();
    }
    writer.flush().unwrap();
    let mut reader = Reader::open(temp.path()).unwrap();
    let mut sources = Vec::new();
    while reader.next(figures.flushed_bytes()).unwrap().is_some() {
        sources.push(reader.source());
    }
    assert_eq!(sources, [0, source_of("http://a"), source_of("http://b")]);
}

#[test]
fn one_process_writes_and_other_values_are_refused() {
    let temp = tempdir().unwrap();
    let first = open(temp.path());
    let again = Writer::open(temp.path(), &origin(), ROOM, Arc::default());
    assert!(again.unwrap_err().to_string().contains("another process"));
    assert!(remove(temp.path()).unwrap_err().to_string().contains("another process"));
    drop(first);
    let other = Origin { meaning: "token-mint exact".to_owned(), ..origin() };
    let refused = Writer::open(temp.path(), &other, ROOM, Arc::default()).unwrap_err().to_string();
    assert!(refused.contains("token-mint exact") && refused.contains("account-owner exact"), "{refused}");
}

#[test]
fn a_file_cut_at_any_byte_keeps_its_whole_slots_and_goes_on() {
    let temp = tempdir().unwrap();
    let slots = written(temp.path(), 4);
    let file = temp.path().join(FILE);
    let whole = fs::read(&file).unwrap();
    let mut kept_before = 0;
    for len in 0..whole.len() {
        fs::write(&file, &whole[..len]).unwrap();
        let (mut writer, figures) = open(temp.path());
        let kept = read(temp.path(), figures.flushed_bytes());
        assert!(kept.len() >= kept_before && kept.len() < slots.len(), "len={len}");
        assert_eq!(kept, slots[..kept.len()], "len={len}");
        kept_before = kept.len();
        writer.append(&slots[kept.len()]).unwrap();
        writer.flush().unwrap();
        assert_eq!(read(temp.path(), figures.flushed_bytes()), slots[..=kept.len()], "len={len}");
    }
    assert_eq!(kept_before, slots.len() - 1);
}

#[test]
fn no_flipped_bit_passes() {
    let temp = tempdir().unwrap();
    let slots = written(temp.path(), 3);
    let file = temp.path().join(FILE);
    let whole = fs::read(&file).unwrap();
    let header_bytes = origin().encode().len();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, &bytes).unwrap();
        let found = look(temp.path());
        if bit / 8 < header_bytes {
            assert!(found.unwrap_err().to_string().contains("remove its directory"), "bit={bit}");
            continue;
        }
        let found = found.unwrap().unwrap();
        assert!(found.slots < slots.len() as u64, "bit={bit}");
        assert_eq!(read(temp.path(), found.bytes), slots[..found.slots as usize], "bit={bit}");
    }
}

#[test]
fn arbitrary_bytes_do_no_harm() {
    let temp = tempdir().unwrap();
    for seed in 0..200u64 {
        let bytes: Vec<u8> = (0..300).map(|n: u64| (n.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect();
        super::fuzzing::file(&bytes, &temp.path().join("spool"));
    }
}

#[derive(Clone, Debug)]
enum Act {
    Append,
    Flush,
    /// The process ends; every byte it wrote stays.
    Reopen,
    /// The machine loses power: only the flushed bytes and this many others stay.
    Crash(u16),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Append),
        2 => Just(Act::Flush),
        1 => Just(Act::Reopen),
        1 => any::<u16>().prop_map(Act::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_flushed_is_read_after_any_crash(acts in proptest::collection::vec(act(), 1..60)) {
        let temp = tempdir().unwrap();
        let file = temp.path().join(FILE);
        let (mut writer, mut figures) = open(temp.path());
        let (mut appended, mut flushed) = (Vec::new(), 0);
        for act in acts {
            match act {
                Act::Append => {
                    let last = writer.last().slot;
                    appended.push(slot(last + 1, last));
                    writer.append(appended.last().unwrap()).unwrap();
                }
                Act::Flush => {
                    writer.flush().unwrap();
                    flushed = appended.len();
                }
                Act::Reopen | Act::Crash(_) => {
                    let flushed_bytes = figures.flushed_bytes();
                    drop(writer);
                    if let Act::Crash(more) = act {
                        let len_bytes = fs::metadata(&file).unwrap().len();
                        let kept = (flushed_bytes + u64::from(more) % 300).min(len_bytes);
                        fs::File::options().write(true).open(&file).unwrap().set_len(kept).unwrap();
                    }
                    (writer, figures) = open(temp.path());
                    let read = read(temp.path(), figures.flushed_bytes());
                    prop_assert!(read.len() >= flushed);
                    prop_assert_eq!(&read, &appended[..read.len()]);
                    appended.truncate(read.len());
                    flushed = appended.len();
                }
            }
        }
        prop_assert_eq!(read(temp.path(), figures.flushed_bytes()), &appended[..flushed]);
    }
}
