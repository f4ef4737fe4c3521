//! The two tables of the store: their names, and the reads and changes that need nothing but a transaction.
//!
//! Owns: the names, and the key of the checkpoint. Must not: begin or commit a transaction. Runs on the thread of the
//! transaction.

use std::ops::Bound;

use engine_api::{Checkpoint, Key, Result, Value};
use redb::{ReadOnlyTable, ReadTransaction, TableDefinition, WriteTransaction};

use crate::error;

pub(crate) type Bytes32 = &'static [u8; 32];
pub(crate) type PairsReadOnly = ReadOnlyTable<Bytes32, Bytes32>;

pub(crate) const PAIRS: TableDefinition<'static, Bytes32, Bytes32> = TableDefinition::new("pairs");
pub(crate) const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
/// Key of the encoded checkpoint in `meta`.
const CHECKPOINT: &str = "checkpoint";

/// Returns the checkpoint of the state that `txn` sees; the default value in a new store.
pub(crate) fn read_checkpoint(txn: &ReadTransaction) -> Result<Checkpoint> {
    const WHAT: &str = "cannot read the redb store's checkpoint";
    let meta = txn.open_table(META).map_err(|e| error::table(WHAT, e))?;
    match meta.get(CHECKPOINT).map_err(|e| error::storage(WHAT, e))? {
        Some(bytes) => Checkpoint::decode(bytes.value()),
        None => Ok(Checkpoint::default()),
    }
}

/// Appends pairs through a cursor at the table's end. This is about three times as fast as inserts, and leaves stay
/// full.
///
/// # Errors
/// `FixInput` if a key is not greater than the one before it, or than the last key in the store.
pub(crate) fn append<'p>(txn: &WriteTransaction, pairs: impl IntoIterator<Item = (&'p Key, &'p Value)>) -> Result<()> {
    const WHAT: &str = "redb sorted load failed";
    let mut table = txn.open_table(PAIRS).map_err(|e| error::table(WHAT, e))?;
    let mut cursor = table.upper_bound_mut(Bound::<Bytes32>::Unbounded).map_err(|e| error::storage(WHAT, e))?;
    for (key, value) in pairs {
        cursor.insert_before(key, value).map_err(|e| error::cursor(WHAT, e))?;
    }
    cursor.close().map_err(|e| error::storage(WHAT, e))
}

pub(crate) fn put_checkpoint(txn: &WriteTransaction, checkpoint: &Checkpoint) -> Result<()> {
    const WHAT: &str = "redb cannot write the checkpoint";
    let encoded = checkpoint.encode()?;
    let mut meta = txn.open_table(META).map_err(|e| error::table(WHAT, e))?;
    meta.insert(CHECKPOINT, encoded.as_slice()).map(drop).map_err(|e| error::storage(WHAT, e))
}
