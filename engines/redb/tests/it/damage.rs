//! A call that meets a damaged page returns an error, whichever page it is; redb itself panics over some of them.

use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use conformance::numbered::{at, commit, key};
use engine_api::{Durability, Engine, ErrorKind, Result};
use solkv_engine_redb::{FILE_NAME, RedbEngine};

use super::{OPTIONS, open};

const PAIRS: u64 = 2000;
const PAGE_BYTES: u64 = 4096;

/// Does everything that a start, lookups and a digest of the store do.
fn look(engine: &RedbEngine) -> Result<()> {
    engine.checkpoint()?;
    engine.stats()?;
    let mut reader = engine.reader()?;
    for index in 0..PAIRS {
        reader.get(&key(index))?;
    }
    reader.scan(&mut |_, _| ControlFlow::Continue(()))
}

/// Opens the store and uses it in every way, including a copy and an update.
fn live(dir: &Path) -> Result<()> {
    let engine = RedbEngine::open(dir, &OPTIONS)?;
    let (read, copy) = (look(&engine), dir.join("copy"));
    let copied = engine.snapshot(&copy);
    assert_eq!(copied.is_ok(), copy.exists(), "half a copy is removed");
    let write = || -> Result<()> {
        let mut txn = engine.begin()?;
        for index in 0..PAIRS {
            txn.put(&key(index), &key(index))?;
        }
        txn.commit(&at(PAIRS + 1), Durability::Synced)
    };
    let written = write();
    read.and(copied).and(written).and(Box::new(engine).close())
}

#[test]
fn damage_on_any_page_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    commit(&engine, 0, PAIRS, Durability::Synced);
    Box::new(engine).close().unwrap();
    let whole = fs::read(dir.path().join(FILE_NAME)).unwrap();
    let mut damaged = 0;
    for page in 0..(whole.len() as u64 / PAGE_BYTES).min(96) {
        let hurt = tempfile::tempdir().unwrap();
        let path = hurt.path().join(FILE_NAME);
        fs::write(&path, &whole).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0xff; 300], page * PAGE_BYTES).unwrap();
        let looked = RedbEngine::open_read_only(hurt.path(), &OPTIONS).and_then(|engine| look(&engine));
        for outcome in [looked, live(hurt.path())] {
            damaged += u32::from(outcome.is_err_and(|error| error.kind() == ErrorKind::DataDamaged));
        }
    }
    assert!(damaged > 4, "{damaged} pages");
}
