//! No space left: on the device, and within a size that the engine was configured with.
//!
//! The device is a small tmpfs, for which the process must be allowed to mount. Without that permission a child process
//! is used whose files may not grow beyond a limit. The output says which way was used.

use std::path::{Path, PathBuf};
use std::process::Command;

use engine_api::{Checkpoint, Durability, Engine, Error, ErrorKind};

use crate::agent::{Agent, say};
use crate::support::{
    Change, Map, apply, assert_holds, commit, describe, key, mark, must, temp_dir, try_commit, value,
};
use crate::{Ability, Store, able};

/// Size of the device: twice the free space that an engine may require before it begins a batch (64 MiB).
const DEVICE_MIB: u64 = 128;
const GROWN_MIB: u64 = 384;
const FILE_LIMIT_KIB: u64 = 8 << 10;
/// Number of changes in a batch that runs out of space although there was enough when it began.
const LARGE_BATCH: u64 = 50_000;
const CHANGES: u64 = 1000;
/// Number of batches whose pairs, of 64 bytes each, take twice the device's size. An engine that accepts them all does
/// not write them to the device.
const DEVICE_BATCHES: u64 = 2 * DEVICE_MIB * (1 << 20) / (64 * CHANGES);
/// Number of batches after which a store with the smallest configured size counts as unlimited.
const SIZE_BATCHES: u64 = 400;

/// On a full device the error has its kind, everything committed is still readable, and writing works again once there
/// is space.
pub fn full_disk_loses_nothing(store: &dyn Store) {
    let dir = temp_dir();
    match able(Ability::Root, Tmpfs::mount(&dir.path().join("device"))) {
        Some(device) => on_a_full_device(store, &device),
        None => with_limited_files(store, dir.path()),
    }
}

/// Other programs take the space while a transaction is open, after every check that an engine makes at its beginning.
pub fn disk_filled_by_others_loses_nothing(store: &dyn Store) {
    let dir = temp_dir();
    let Some(device) = able(Ability::Root, Tmpfs::mount(&dir.path().join("device"))) else {
        // A test must not fill a device that it shares. A limit on file sizes causes the same error.
        return with_limited_files(store, dir.path());
    };
    let home = device.path.join("store");
    let engine = must("create", store.open(&home));
    commit(&*engine, &batch(1), 1, Durability::Synced);
    let mut map: Map = batch(1).into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let ballast = device.path.join("ballast");
    let outcome = engine.begin().and_then(|mut txn| {
        take_all_space(&ballast);
        (0..LARGE_BATCH).try_for_each(|i| txn.put(&key(1 << 40 | i), &value(i)))?;
        txn.commit(&mark(2), Durability::Synced)
    });
    let failed = outcome.as_ref().err().map(Error::kind);
    println!("a batch on a device filled by others: {:?}", outcome.as_ref().map_err(describe));
    std::fs::remove_file(&ballast).expect("it was just written");
    let large: Vec<Change> = (0..LARGE_BATCH).map(|i| (key(1 << 40 | i), Some(value(i)))).collect();
    match failed {
        None => {
            apply(&mut map, &large);
            go_on(store, &home, engine, map, 2);
        }
        Some(ErrorKind::FreeSpace) => go_on(store, &home, engine, map, 1),
        Some(ErrorKind::Reopen) => {
            drop(engine);
            let engine = must("open with space again", store.open(&home));
            if must("checkpoint", engine.checkpoint()).seq == 2 {
                apply(&mut map, &large);
            }
            write_more(&*engine, &mut map, 3);
        }
        Some(kind) => panic!("a full device must be FreeSpace or Reopen, not {kind:?}"),
    }
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
    let (acked, error) = fill(&*engine, DEVICE_BATCHES, &mut map, |seq| say(format_args!("acked {seq}")));
    let error = error.expect("more was written than the files may hold");
    if error.kind() == ErrorKind::FreeSpace {
        assert_holds(&*engine, &map, &mark(acked));
    }
    say(format_args!("ended {}", describe(&error)));
    // The store is not closed, because closing may fail under the limit, and the supervisor checks the files that a
    // lost process leaves.
    std::process::exit(0);
}

fn on_a_full_device(store: &dyn Store, device: &Tmpfs) {
    let dir = device.path.join("store");
    let engine = must("create", store.open(&dir));
    let mut map = Map::new();
    let (acked, error) = fill(&*engine, DEVICE_BATCHES, &mut map, |_| ());
    let error = error.unwrap_or_else(|| panic!("{acked} batches fitted on {DEVICE_MIB} MiB"));
    println!("device is full after {acked} batches: {}", describe(&error));
    assert!(acked > 0, "not even one batch fitted: {}", describe(&error));
    match error.kind() {
        ErrorKind::FreeSpace => {
            assert_holds(&*engine, &map, &mark(acked));
            device.grow();
            go_on(store, &dir, engine, map, acked);
        }
        ErrorKind::Reopen => {
            let again = engine.begin().err().map(|error| error.kind());
            assert_eq!(again, Some(ErrorKind::Reopen), "writes are refused until the store is opened again");
            drop(engine);
            device.grow();
            reopened(store, &dir, map, acked, true);
        }
        _ => panic!("a full device must be FreeSpace or Reopen: {}", describe(&error)),
    }
}

fn with_limited_files(store: &dyn Store, dir: &Path) {
    let dir = dir.join("store");
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

/// Checks a store after there is space again. The open store accepts a batch, or returns `Reopen` because its
/// background work had failed meanwhile for lack of space. Then opening it again must be enough.
fn go_on(store: &dyn Store, dir: &Path, engine: Box<dyn Engine>, mut map: Map, last: u64) {
    let change = [(key(u64::MAX), Some(value(last)))];
    let outcome = try_commit(&*engine, &change, last + 1, Durability::Synced);
    let done = match &outcome {
        Ok(()) => {
            must("close", engine.close());
            last + 1
        }
        Err(error) => {
            println!("with space again: {}", describe(error));
            assert_eq!(error.kind(), ErrorKind::Reopen, "{}", describe(error));
            drop(engine);
            last
        }
    };
    let engine = must("reopen with space again", store.open(dir));
    let seq = must("checkpoint", engine.checkpoint()).seq;
    assert!(seq == last + 1 || seq == done, "seq={seq} last={last} done={done}");
    if seq == last + 1 {
        apply(&mut map, &change);
    }
    assert_holds(&*engine, &map, &mark(seq));
    write_more(&*engine, &mut map, seq + 1);
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

fn take_all_space(ballast: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(ballast).expect("there is space for an empty file");
    let block = [0u8; 64 << 10];
    while file.write_all(&block).is_ok() {}
}

/// A small file system of its own, unmounted when dropped.
struct Tmpfs {
    path: PathBuf,
}

impl Tmpfs {
    fn mount(path: &Path) -> Result<Self, String> {
        std::fs::create_dir(path).expect("the directory is below a temporary one");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={DEVICE_MIB}m"), "tmpfs"]).arg(path))?;
        Ok(Self { path: path.to_owned() })
    }

    fn grow(&self) {
        run(Command::new("mount").args(["-o", &format!("remount,size={GROWN_MIB}m")]).arg(&self.path))
            .expect("what could be mounted can be remounted");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazy, because a failing test may still have files open below.
        if let Err(reason) = run(Command::new("umount").arg("--lazy").arg(&self.path)) {
            eprintln!("a tmpfs is left mounted: path={} {reason}", self.path.display());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?} did not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
