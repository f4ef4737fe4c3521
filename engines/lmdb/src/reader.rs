//! The reader: one read transaction, which `reset` and `renew` move to a newer snapshot.
//!
//! Runs on the thread that opened it.

use std::ops::ControlFlow;
use std::ptr;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Reader, Result, Value, Visitor, one_slot_per_key};
use engine_kit::KeyOrder;
use lmdb::{Cursor, RoCursor, RoTransaction, Transaction};
use lmdb_sys::{MDB_NEXT, MDB_NOTFOUND, MDB_SET_RANGE, MDB_SUCCESS, MDB_val};

use crate::ahead::Ahead;
use crate::error;
use crate::pages::{page_bytes, used_bytes};
use crate::store::Store;
use crate::tables::{PAIRS_TABLE, get, read_checkpoint};

pub(crate) struct LmdbReader<'e> {
    store: &'e Store,
    /// Commit count of the store before the snapshot was taken. The snapshot is at least that new.
    commits_seen: u64,
    /// `None` only after a refresh has failed.
    txn: Option<RoTransaction<'e>>,
    order: KeyOrder,
}

impl<'e> LmdbReader<'e> {
    pub(crate) fn open(store: &'e Store) -> Result<Self> {
        let commits_seen = store.commits.count();
        let txn = store.env.begin_ro_txn().map_err(|e| error::lmdb("LMDB cannot begin a read", e))?;
        Ok(Self { store, commits_seen, txn: Some(txn), order: KeyOrder::default() })
    }

    fn txn(&self) -> Result<&RoTransaction<'e>> {
        self.txn.as_ref().ok_or_else(failed_refresh)
    }
}

fn failed_refresh() -> Error {
    Error::new(ErrorKind::Reopen, "this LMDB reader failed to refresh: close the process and open again")
}

impl Reader for LmdbReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        get(self.txn()?, self.store.pairs, key)
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        one_slot_per_key(keys, values)?;
        // Not `self.txn()`, because that would borrow `order` as well.
        let txn = self.txn.as_ref().ok_or_else(failed_refresh)?;
        for at in self.order.of(keys) {
            values[at] = get(txn, self.store.pairs, &keys[at])?;
        }
        Ok(())
    }

    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
        const WHAT: &str = "LMDB scan failed";
        let txn = self.txn()?;
        let cursor = txn.open_ro_cursor(self.store.pairs).map_err(|e| error::lmdb(WHAT, e))?;
        let mut leaves = Leaves::new(self.store)?;
        let mut pair = step(&cursor, first, MDB_SET_RANGE)?;
        while let Some((key, value)) = pair {
            leaves.at(txn, self.store, key);
            if let ControlFlow::Break(()) = visit(key, value) {
                break;
            }
            pair = step(&cursor, first, MDB_NEXT)?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint> {
        read_checkpoint(self.txn()?, self.store.meta)
    }

    fn refresh(&mut self) -> Result<()> {
        let commits = self.store.commits.count();
        if commits == self.commits_seen && self.txn.is_some() {
            return Ok(());
        }
        // A transaction that could not be renewed is gone. Beginning a new one returns the reason.
        let renewed = match self.txn.take().map(RoTransaction::reset) {
            Some(inactive) => inactive.renew(),
            None => self.store.env.begin_ro_txn(),
        };
        self.txn = Some(renewed.map_err(|e| error::lmdb("LMDB cannot renew a read", e))?);
        self.commits_seen = commits;
        Ok(())
    }
}

/// Moves the cursor and returns the pair at its new position, which lies in the map. The iterator of lmdb-rkv is not
/// used, because it makes slices from lengths that a damaged page contains.
fn step<'t>(cursor: &RoCursor<'t>, first: &Key, step: u32) -> Result<Option<(&'t Key, &'t Value)>> {
    const WHAT: &str = "LMDB scan failed";
    let mut key = MDB_val { mv_size: first.len(), mv_data: first.as_ptr().cast_mut().cast() };
    let mut value = MDB_val { mv_size: 0, mv_data: ptr::null_mut() };
    // SAFETY: the cursor is open, and LMDB only reads the key.
    match unsafe { lmdb_sys::mdb_cursor_get(cursor.cursor(), &raw mut key, &raw mut value, step) } {
        MDB_SUCCESS => {}
        MDB_NOTFOUND => return Ok(None),
        code => return Err(error::lmdb(WHAT, lmdb::Error::from_err_code(code))),
    }
    Ok(Some((array(&key, WHAT)?, array(&value, WHAT)?)))
}

/// Returns the 32 bytes that LMDB points at. They lie in the map, which stays in place for as long as the transaction.
fn array<'t>(found: &MDB_val, what: &str) -> Result<&'t [u8; 32]> {
    let data = found.mv_data.cast::<[u8; 32]>();
    if found.mv_size != 32 || data.is_null() {
        return Err(error::wrong_length(what, found.mv_size));
    }
    // SAFETY: 32 bytes in the map of the caller's transaction; a byte array needs no alignment.
    Ok(unsafe { &*data })
}

/// Counts the leaves that a scan reads. From the second one on it announces the next leaves.
struct Leaves<'t> {
    page_bytes: usize,
    used_bytes: u64,
    /// Number of the memory page that holds the newest pair.
    page: usize,
    visited: u64,
    ahead: Option<Ahead<'t>>,
}

impl<'t> Leaves<'t> {
    fn new(store: &Store) -> Result<Self> {
        let (page_bytes, used_bytes) = (page_bytes(&store.env)?, used_bytes(&store.env)?);
        Ok(Self { page_bytes, used_bytes, page: 0, visited: 0, ahead: None })
    }

    /// Notes the position of the scan. `key` is the newest pair's key and lies in the map.
    fn at<T: Transaction>(&mut self, txn: &'t T, store: &Store, key: &'t [u8]) {
        let page = key.as_ptr().addr() / self.page_bytes;
        if page == self.page {
            return;
        }
        self.page = page;
        self.visited += 1;
        // The walk starts at the second leaf, because most ranges end within their first one.
        if self.visited == 2 {
            self.ahead = Ahead::new(txn, store.main, PAIRS_TABLE, key, self.page_bytes, self.used_bytes);
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.at_leaf();
        }
    }
}
