//! The reader: a pinned RocksDB snapshot, and the read options that name it.

use std::ops::ControlFlow;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Reader, Result, Value, Visitor, one_slot_per_key};
use rocksdb::{ColumnFamily, DB, DEFAULT_COLUMN_FAMILY_NAME, ReadOptions, Snapshot};

use crate::settings::PUBKEY_BYTES;
use crate::{CHECKPOINT_KEY, FIRST_PAIR, error};

/// Bytes that a scan of the whole store reads ahead: 2 MiB keep any device busy.
const SCAN_READAHEAD_BYTES: usize = 2 << 20;

pub(crate) struct RocksdbReader<'e> {
    db: &'e DB,
    // The options hold a bare pointer to the snapshot. So they are changed before a snapshot is dropped, and dropped
    // first.
    options: ReadOptions,
    snapshot: Snapshot<'e>,
    /// Leading bytes of a key that filters know.
    prefix_bytes: u32,
}

impl<'e> RocksdbReader<'e> {
    pub(crate) fn new(db: &'e DB, prefix_bytes: u32) -> Self {
        let snapshot = db.snapshot();
        let mut options = ReadOptions::default();
        options.set_snapshot(&snapshot);
        Self { db, options, snapshot, prefix_bytes }
    }
}

impl Reader for RocksdbReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        get(self.db, key, &self.options)
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        one_slot_per_key(keys, values)?;
        let found = self.db.batched_multi_get_cf_opt(pairs_family(self.db)?, keys, false, &self.options);
        for (value, found) in values.iter_mut().zip(found) {
            let found = found.map_err(|e| error::rocks("RocksDB cannot read", e))?;
            *value = found.map(|bytes| error::bytes32(&bytes, "value")).transpose()?;
        }
        Ok(())
    }

    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        scan_from(self.db, options, first, visit)
    }

    fn scan_prefix(&mut self, first: &Key, prefix_bytes: usize, visit: &mut Visitor<'_>) -> Result<()> {
        let within = &mut |key: &Key, value: &Value| match key[..prefix_bytes] == first[..prefix_bytes] {
            true => visit(key, value),
            false => ControlFlow::Break(()),
        };
        if self.prefix_bytes == PUBKEY_BYTES || prefix_bytes < self.prefix_bytes as usize {
            return self.scan_from(first, within);
        }
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        options.set_prefix_same_as_start(true);
        scan(self.db, options, first, within)
    }

    fn checkpoint(&mut self) -> Result<Checkpoint> {
        checkpoint(self.db, &self.options)
    }

    fn refresh(&mut self) -> Result<()> {
        // Every commit increases the sequence number. If it is unchanged, this saves the mutex of the list of
        // snapshots.
        if self.db.latest_sequence_number() != self.snapshot.sequence_number() {
            let snapshot = self.db.snapshot();
            self.options.set_snapshot(&snapshot);
            self.snapshot = snapshot;
        }
        Ok(())
    }
}

pub(crate) fn get(db: &DB, key: &Key, options: &ReadOptions) -> Result<Option<Value>> {
    match db.get_pinned_opt(key, options) {
        Ok(None) => Ok(None),
        Ok(Some(bytes)) => error::bytes32(&bytes, "value").map(Some),
        Err(e) => Err(error::rocks("RocksDB cannot read", e)),
    }
}

pub(crate) fn checkpoint(db: &DB, options: &ReadOptions) -> Result<Checkpoint> {
    match db.get_pinned_opt(CHECKPOINT_KEY, options) {
        Ok(None) => Ok(Checkpoint::default()),
        Ok(Some(bytes)) => Checkpoint::decode(&bytes),
        Err(e) => Err(error::rocks("RocksDB cannot read the checkpoint", e)),
    }
}

/// Visits the pairs from `first` on. Puts nothing into the block cache, which is for lookups.
pub(crate) fn scan_from(db: &DB, mut options: ReadOptions, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
    options.fill_cache(false);
    // Otherwise a store with prefixes would skip files in which no key has the first key's prefix.
    options.set_total_order_seek(true);
    // A scan from any other key may be a short range: RocksDB's own read-ahead grows with sequential reads.
    if *first == FIRST_PAIR {
        options.set_readahead_size(SCAN_READAHEAD_BYTES);
    }
    scan(db, options, first, visit)
}

fn scan(db: &DB, options: ReadOptions, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
    let mut iterator = db.raw_iterator_opt(options);
    iterator.seek(first);
    while let Some((key, value)) = iterator.item() {
        let (key, value) = (error::bytes32(key, "key")?, error::bytes32(value, "value")?);
        if visit(&key, &value) == ControlFlow::Break(()) {
            return Ok(());
        }
        iterator.next();
    }
    iterator.status().map_err(|e| error::rocks("RocksDB cannot scan", e))
}

fn pairs_family(db: &DB) -> Result<&ColumnFamily> {
    db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME)
        .ok_or_else(|| Error::new(ErrorKind::Internal, "RocksDB store was opened without its column family"))
}
