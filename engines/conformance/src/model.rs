//! Random operations on the engine and on a `BTreeMap`, compared after each. A failure is shrunk to its shortest form.

use std::ops::ControlFlow;

use engine_api::{Checkpoint, Durability, Engine, Key};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::Store;
use crate::support::{
    Change, Map, apply, ascending_key, assert_holds, commit, describe, key, mark, must, reader, temp_dir, value,
};

const CASES: u32 = 24;
const STEPS: usize = 40;
/// Number of keys: few, so that steps change each other's keys.
const KEYS: u64 = 24;

/// The engine equals the model after every step.
pub fn random_operations_equal_the_model(store: &dyn Store) {
    // Each case makes a store on disk, so both numbers are small. The report of a failure contains its seed.
    let config = Config { cases: CASES, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    let steps = prop::collection::vec(step(), 1..STEPS);
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        run(store, &steps);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{}: {failure}", store.name());
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Commits one batch; `true` means synced.
    Commit(Vec<(u64, Option<u64>)>, bool),
    /// Makes the same changes as a batch, and drops the transaction before its commit.
    Abort(Vec<(u64, Option<u64>)>),
    /// Loads this many pairs through the sorted path, with keys above all existing ones.
    Bulk(u64),
    /// Closes and opens the store; `false` drops it without closing.
    Reopen(bool),
    /// Makes a copy, and continues with the copy.
    MoveToCopy,
    /// Scans from this key and ends after this many pairs.
    PartialScan(u64, usize),
    Settle,
}

struct State {
    seq: u64,
    map: Map,
    /// Number of keys that the sorted path has used.
    loaded: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0..KEYS, prop::option::weighted(0.7, 0..1000u64));
    let changes = prop::collection::vec(change, 0..20);
    prop_oneof![
        12 => (changes.clone(), prop::bool::weighted(0.2)).prop_map(|(changes, synced)| Step::Commit(changes, synced)),
        3 => changes.prop_map(Step::Abort),
        2 => (1..50u64).prop_map(Step::Bulk),
        1 => any::<bool>().prop_map(Step::Reopen),
        1 => Just(Step::MoveToCopy),
        2 => (0..2 * KEYS, 1..30usize).prop_map(|(from, count)| Step::PartialScan(from, count)),
        1 => Just(Step::Settle),
    ]
}

fn run(store: &dyn Store, steps: &[Step]) {
    let dir = temp_dir();
    let mut home = dir.path().join("0");
    let mut engine = must("create", store.open(&home));
    let mut state = State { seq: 0, map: Map::new(), loaded: 0 };
    for (number, step) in (1..).zip(steps) {
        match step {
            Step::Reopen(close) => {
                if *close {
                    must("close", engine.close());
                } else {
                    drop(engine);
                }
                engine = must("reopen", store.open(&home));
            }
            Step::MoveToCopy => {
                home = dir.path().join(number.to_string());
                must("snapshot", engine.snapshot(&home));
                drop(engine);
                engine = must("open the copy", store.open(&home));
            }
            step => apply_step(&*engine, step, &mut state),
        }
        let checkpoint = if state.seq == 0 { Checkpoint::default() } else { mark(state.seq) };
        assert_holds(&*engine, &state.map, &checkpoint);
        for absent in (0..KEYS).map(low_key).filter(|key| !state.map.contains_key(key)) {
            assert_eq!(must("get", reader(&*engine).get(&absent)), None);
        }
    }
}

fn apply_step(engine: &dyn Engine, step: &Step, state: &mut State) {
    match step {
        Step::Commit(changes, synced) => {
            state.seq += 1;
            let changes = resolve(changes);
            let durability = if *synced { Durability::Synced } else { Durability::Buffered };
            commit(engine, &changes, state.seq, durability);
            apply(&mut state.map, &changes);
        }
        Step::Abort(changes) => {
            let mut txn = must("begin", engine.begin());
            let mut seen = state.map.clone();
            for change in resolve(changes) {
                match change.1 {
                    Some(value) => must("put", txn.put(&change.0, &value)),
                    None => must("delete", txn.delete(&change.0)),
                }
                apply(&mut seen, &[change]);
                assert_eq!(must("get in a transaction", txn.get(&change.0)), seen.get(&change.0).copied());
            }
        }
        Step::Bulk(count) => {
            state.seq += 1;
            let numbers = state.loaded..state.loaded + count;
            let pairs: Vec<_> = numbers.map(|i| (above(i), value(i))).collect();
            if let Err(error) = engine.load_sorted(&pairs, &mark(state.seq)) {
                panic!("load_sorted count={count}: {}", describe(&error));
            }
            state.loaded += count;
            state.map.extend(pairs);
        }
        Step::PartialScan(from, count) => {
            // Keys that are stored now and then, keys that never are, and the sorted path's keys.
            let first = if *from < KEYS + KEYS / 2 { low_key(*from) } else { above(from - KEYS) };
            let mut seen = Map::new();
            let outcome = reader(engine).scan_from(&first, &mut |key, value| {
                seen.insert(*key, *value);
                if seen.len() == *count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            must("scan", outcome);
            let expected: Map = state.map.range(first..).take(*count).map(|(key, value)| (*key, *value)).collect();
            assert!(seen == expected, "a scan of {count} pairs from {first:x?} differs");
        }
        Step::Settle => must("settle", engine.settle()),
        Step::Reopen(_) | Step::MoveToCopy => unreachable!("these replace the engine and are done by the caller"),
    }
}

fn low_key(number: u64) -> Key {
    let mut out = key(number);
    out[0] &= 0x7f;
    out
}

/// Returns a key that ascends with its number and is greater than any [`low_key`].
fn above(number: u64) -> Key {
    let mut out = ascending_key(number);
    out[0] = 0xff;
    out
}

fn resolve(changes: &[(u64, Option<u64>)]) -> Vec<Change> {
    changes.iter().map(|(number, change)| (low_key(*number), change.map(value))).collect()
}
