//! The two tables of the store: their names, their opening, and the reads of one entry.
//!
//! Owns: the names, and the key of the checkpoint. Must not: scan a table, or change one after its creation. Runs on
//! the thread of the transaction.

use std::path::Path;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result, Value};
use lmdb::{Database, DatabaseFlags, Environment, Transaction};

use crate::error;

/// Key of the encoded checkpoint in the meta table.
pub(crate) const CHECKPOINT: &[u8; 10] = b"checkpoint";

pub(crate) const PAIRS_TABLE: &str = "pairs";
const META_TABLE: &str = "meta";

/// Opens the two tables. Creates both in one transaction if the file is new.
pub(crate) fn open_tables(env: &Environment, dir: &Path) -> Result<(Database, Database)> {
    let failed = |e| error::lmdb(&format!("cannot open the LMDB store's tables: dir={}", dir.display()), e);
    if env.stat().map_err(failed)?.entries() == 0 {
        let txn = env.begin_rw_txn().map_err(failed)?;
        // SAFETY: no other transaction of this environment opens tables, because it is not shared yet.
        let tables = unsafe {
            let pairs = txn.create_db(Some(PAIRS_TABLE), DatabaseFlags::empty()).map_err(failed)?;
            (pairs, txn.create_db(Some(META_TABLE), DatabaseFlags::empty()).map_err(failed)?)
        };
        txn.commit().map_err(failed)?;
        return Ok(tables);
    }
    let open = |name| match env.open_db(Some(name)) {
        Err(e @ (lmdb::Error::NotFound | lmdb::Error::Incompatible)) => Err(Error::with_source(
            ErrorKind::FixInput,
            format!("the LMDB file is not a store of this engine: dir={} missing_table={name}", dir.display()),
            e,
        )),
        opened => opened.map_err(failed),
    };
    Ok((open(PAIRS_TABLE)?, open(META_TABLE)?))
}

/// Returns the value of `key` in `pairs`, copied out of the map.
pub(crate) fn get<T: Transaction>(txn: &T, pairs: Database, key: &Key) -> Result<Option<Value>> {
    const WHAT: &str = "LMDB get failed";
    match txn.get(pairs, key) {
        Ok(value) => value.try_into().map(Some).map_err(|_| error::wrong_length(WHAT, value.len())),
        Err(lmdb::Error::NotFound) => Ok(None),
        Err(e) => Err(error::lmdb(WHAT, e)),
    }
}

/// Returns the checkpoint of the state that `txn` sees; the default value in a new store.
pub(crate) fn read_checkpoint<T: Transaction>(txn: &T, meta: Database) -> Result<Checkpoint> {
    match txn.get(meta, CHECKPOINT) {
        Ok(bytes) => Checkpoint::decode(bytes),
        Err(lmdb::Error::NotFound) => Ok(Checkpoint::default()),
        Err(e) => Err(error::lmdb("cannot read the LMDB store's checkpoint", e)),
    }
}
