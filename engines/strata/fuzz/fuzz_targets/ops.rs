//! Operations on a store on a disk that fails, compared with a map.
//!
//! Owns: the model, which is the content after each batch. Must not: know files. The operations run on one thread,
//! while the store's own threads run.

#![no_main]

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/it/faulty.rs"]
mod faulty;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/it/support.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::Arbitrary;
use engine_api::{Durability, Engine, ErrorKind, Key, Reader, Result, Value};
use libfuzzer_sys::fuzz_target;
use solkv_engine_strata::StrataEngine;

use faulty::{Fault, FaultyStorage};
use support::{Map, OPTIONS, all, apply, at};

/// Upper bound on the number of operations: more of them only make an input slow.
const OPS_MAX: usize = 200;

#[derive(Arbitrary, Debug)]
enum Op {
    Put(u8, u8),
    Delete(u8),
    /// Number of pairs of any order of magnitude: more than a page, more than a memtable.
    Fill(u8),
    Commit(bool),
    Get(u8),
    Scan,
    /// Takes a snapshot and keeps it, after comparing the one kept before.
    Pin,
    Settle,
    Break(Failing, u8),
    Mend,
    Reopen,
    PowerLoss(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Failing {
    Changes,
    Read,
    Sync,
    Space,
}

/// The contents that the store may have.
struct Model {
    /// The content after each batch that may still be there, by its seq.
    states: BTreeMap<u64, Map>,
    /// Number of the batch that readers see.
    visible: u64,
    /// Number of the last batch that must survive a power loss.
    durable: u64,
    /// The last number given to a batch, successful or not.
    attempted: u64,
    /// Changes that are not committed yet.
    changes: Vec<(Key, Option<Value>)>,
    fault: Fault,
    /// Whether a fault occurred since the store was opened, so that writes may be refused.
    faulted: bool,
}

/// Returns one of 128 keys far from each other, or of 128 keys that differ only in their last byte.
fn key(n: u8) -> Key {
    if n < 128 {
        return support::key(u64::from(n));
    }
    let mut key = [7; 32];
    key[31] = n;
    key
}

impl Model {
    fn new() -> Self {
        let states = BTreeMap::from([(0, Map::new())]);
        Self { states, visible: 0, durable: 0, attempted: 0, changes: Vec::new(), fault: Fault::None, faulted: false }
    }

    fn map(&self) -> &Map {
        &self.states[&self.visible]
    }

    /// Unwraps a read, which must succeed unless reads fail.
    fn read<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Ok(read) => Some(read),
            Err(error) => {
                assert!(matches!(self.fault, Fault::ReadAt(_)), "{error}");
                None
            }
        }
    }

    fn set(&mut self, disk: &FaultyStorage, fault: Fault) {
        disk.set(fault);
        self.fault = fault;
        self.faulted |= fault != Fault::None;
    }

    fn commit(&mut self, engine: &StrataEngine, synced: bool) {
        self.attempted += 1;
        let changes = std::mem::take(&mut self.changes);
        let mut next = self.map().clone();
        apply(&mut next, &changes);
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        match support::try_commit(engine, &changes, self.attempted, durability) {
            Ok(()) => {
                self.visible = self.attempted;
                self.states.insert(self.visible, next);
                if synced {
                    self.durable = self.visible;
                }
            }
            Err(error) => {
                assert!(self.faulted, "{error}");
                if error.kind() == ErrorKind::Reopen && self.states.keys().next_back() == Some(&self.visible) {
                    // The record may be there; the next opening shows whether it is.
                    self.states.insert(self.attempted, next);
                }
            }
        }
    }

    fn settle(&mut self, engine: &StrataEngine) {
        match engine.settle() {
            Ok(()) => self.durable = self.visible,
            Err(error) => assert!(self.faulted, "{error}"),
        }
    }

    /// Checks the content of an opened store, which must be one of the states.
    fn opened(&mut self, engine: &StrataEngine) {
        let checkpoint = engine.checkpoint().expect("in memory");
        assert_eq!(checkpoint, at(checkpoint.seq), "a checkpoint is whole");
        assert!(checkpoint.seq >= self.durable, "found={checkpoint:?} durable={}", self.durable);
        self.visible = checkpoint.seq;
        self.states.retain(|seq, _| *seq <= checkpoint.seq);
        assert!(self.states.contains_key(&checkpoint.seq), "found={checkpoint:?}, which was never acknowledged");
        self.faulted = false;
        assert!(all(engine).expect("readable") == *self.map(), "another content at {checkpoint:?}");
    }
}

/// Runs operations up to and including one that closes the store, and returns that one.
fn session(
    engine: &StrataEngine,
    disk: &FaultyStorage,
    model: &mut Model,
    ops: &mut std::vec::IntoIter<Op>,
) -> Option<Op> {
    let mut pinned: Option<(Box<dyn Reader + '_>, Map)> = None;
    for op in ops {
        match op {
            Op::Put(n, value) => model.changes.push((key(n), Some([value; 32]))),
            Op::Delete(n) => model.changes.push((key(n), None)),
            Op::Fill(magnitude) => {
                let pair = |n: u64| (support::key(n), Some(support::value(n)));
                model.changes.extend((0..1 << (magnitude % 15)).map(pair));
            }
            Op::Commit(synced) => model.commit(engine, synced),
            Op::Get(n) => {
                let mut reader = engine.reader().expect("in memory");
                if let Some(found) = model.read(reader.get(&key(n))) {
                    assert_eq!(found, model.map().get(&key(n)).copied(), "key={n}");
                }
            }
            Op::Scan => {
                if let Some(found) = model.read(all(engine)) {
                    assert!(found == *model.map(), "a scan differs");
                }
            }
            Op::Pin => {
                check_pinned(&mut pinned, model);
                pinned = Some((engine.reader().expect("in memory"), model.map().clone()));
            }
            Op::Settle => model.settle(engine),
            Op::Break(failing, count) => {
                let count = u64::from(count) + 1;
                let fault = match failing {
                    Failing::Changes => Fault::CrashAt(count),
                    Failing::Read => Fault::ReadAt(count),
                    Failing::Sync => Fault::SyncAt(count),
                    Failing::Space => Fault::FullAt(count << 12),
                };
                model.set(disk, fault);
            }
            Op::Mend => model.set(disk, Fault::None),
            Op::Reopen | Op::PowerLoss(_) => {
                check_pinned(&mut pinned, model);
                return Some(op);
            }
        }
    }
    check_pinned(&mut pinned, model);
    None
}

/// Checks that a kept snapshot still holds its content from the time when it was taken.
fn check_pinned(pinned: &mut Option<(Box<dyn Reader + '_>, Map)>, model: &Model) {
    let Some((reader, map)) = pinned else { return };
    for n in 0..=255 {
        if let Some(found) = model.read(reader.get(&key(n))) {
            assert_eq!(found, map.get(&key(n)).copied(), "pinned key={n}");
        }
    }
}

fuzz_target!(|ops: Vec<Op>| {
    let mut disk = FaultyStorage::default();
    let mut model = Model::new();
    let mut ops: Vec<Op> = ops;
    ops.truncate(OPS_MAX);
    let mut ops = ops.into_iter();
    loop {
        model.set(&disk, Fault::None);
        let engine = StrataEngine::open_on(Arc::new(disk.clone()), &OPTIONS).expect("a disk without a fault");
        model.opened(&engine);
        match session(&engine, &disk, &mut model, &mut ops) {
            None => break,
            Some(Op::PowerLoss(seed)) => {
                // The power fails wherever the merging thread is.
                let left = disk.after_crash(u64::from(seed));
                drop(engine);
                disk = left;
            }
            Some(_) => drop(engine),
        }
    }
});
