//! No space left: for the files of a process, and within a size that the engine was configured with.
//!
//! The files of a child process may not grow beyond a limit, for which it needs no rights. The torture fills a disk, also
//! while the disk reports free space.

use std::path::Path;

use engine_api::{Checkpoint, Durability, Engine, Error, ErrorKind};

use crate::Store;
use crate::agent::{Agent, say};
use crate::support::{
    Change, Map, apply, assert_holds, commit, describe, key, mark, must, temp_dir, try_commit, value,
};

/// Less than each engine writes into one file.
const FILE_LIMIT_KIB: u64 = 4 << 10;
const CHANGES: u64 = 1000;
/// Number of batches whose pairs, of 64 bytes each, take sixteen times as much. An engine that accepts them all does not
/// write them.
const LIMIT_BATCHES: u64 = 16 * FILE_LIMIT_KIB * 1024 / (64 * CHANGES);
/// Number of batches after which a store with the smallest configured size counts as unlimited.
const SIZE_BATCHES: u64 = 400;

/// Without space the error has its kind, everything committed is still readable, and writing works again once there is
/// space.
pub fn full_files_lose_nothing(store: &dyn Store) {
    let temp = temp_dir();
    let dir = temp.path().join("store");
    let agent = Agent::start(store, "fill", &dir, Some(FILE_LIMIT_KIB));
    let (mut acked, mut ended) = (0, None);
    while let Some(line) = agent.next_line() {
        match line.split_once(' ') {
            Some(("acked", seq)) => acked = seq.parse().expect("agents say numbers"),
            Some(("ended", how)) => ended = Some(how.to_owned()),
            _ => {}
        }
    }
    let ended = ended.expect("the agent says how it ended, or has said on standard error why not");
    println!("files are full after {acked} batches: {ended}");
    let reopen = ended.starts_with("kind=Reopen");
    assert!(reopen || ended.starts_with("kind=FreeSpace"), "a full device must be FreeSpace or Reopen: {ended}");
    let map = (1..=acked).fold(Map::new(), |mut map, seq| {
        apply(&mut map, &batch(seq));
        map
    });
    reopened(store, &dir, map, acked, reopen);
}

/// The smallest configured size becomes full, and nothing is lost. An engine that grows by itself takes all batches.
pub fn full_size_loses_nothing(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open_small(dir.path()));
    let mut map = Map::new();
    let (acked, error) = fill(&*engine, SIZE_BATCHES, &mut map, |_| ());
    if let Some(error) = error {
        println!("size is full after {acked} batches: {}", describe(&error));
        assert_eq!(error.kind(), ErrorKind::FreeSpace, "{}", describe(&error));
    } else {
        println!("no size was reached in {acked} batches");
    }
    assert_holds(&*engine, &map, &mark(acked));
    must("close", engine.close());
    let engine = must("reopen with the ordinary size", store.open(dir.path()));
    assert_holds(&*engine, &map, &mark(acked));
    write_more(&*engine, &mut map, acked + 1);
}

/// Runs the agent whose files are limited: it reports `acked SEQ`, and at the end its error.
pub(crate) fn agent(store: &dyn Store, dir: &Path) {
    let engine = must("create", store.open(dir));
    let mut map = Map::new();
    let (acked, error) = fill(&*engine, LIMIT_BATCHES, &mut map, |seq| say(format_args!("acked {seq}")));
    let error = error.expect("more was written than the files may hold");
    if error.kind() == ErrorKind::FreeSpace {
        assert_holds(&*engine, &map, &mark(acked));
    }
    say(format_args!("ended {}", describe(&error)));
    // The store is not closed, because closing may fail under the limit, and the supervisor checks the files that a
    // lost process leaves.
    std::process::exit(0);
}

/// Opens the store after its process or handle was given up, and compares. With `unknown`, the failed batch may have
/// become durable.
fn reopened(store: &dyn Store, dir: &Path, mut map: Map, mut acked: u64, unknown: bool) {
    let engine = must("open with space again", store.open(dir));
    if unknown && must("checkpoint", engine.checkpoint()).seq == acked + 1 {
        acked += 1;
        apply(&mut map, &batch(acked));
    }
    let checkpoint = if acked == 0 { Checkpoint::default() } else { mark(acked) };
    assert_holds(&*engine, &map, &checkpoint);
    write_more(&*engine, &mut map, acked + 1);
}

/// Commits batches until one fails or `batches` are done. `map` receives the acknowledged ones.
fn fill(engine: &dyn Engine, batches: u64, map: &mut Map, mut acked: impl FnMut(u64)) -> (u64, Option<Error>) {
    for seq in 1..=batches {
        let changes = batch(seq);
        if let Err(error) = try_commit(engine, &changes, seq, Durability::Synced) {
            return (seq - 1, Some(error));
        }
        apply(map, &changes);
        acked(seq);
    }
    (batches, None)
}

fn write_more(engine: &dyn Engine, map: &mut Map, seq: u64) {
    let changes = [(key(u64::MAX), Some(value(seq)))];
    commit(engine, &changes, seq, Durability::Synced);
    apply(map, &changes);
    assert_holds(engine, map, &mark(seq));
}

fn batch(seq: u64) -> Vec<Change> {
    (seq * CHANGES..(seq + 1) * CHANGES).map(|i| (key(i), Some(value(i)))).collect()
}
