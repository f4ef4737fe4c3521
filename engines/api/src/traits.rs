//! The traits: [`Engine`], [`Reader`], [`WriteTxn`], and [`BulkLoad`] for sorted input.
//!
//! All object-safe: the registry hands out `Box<dyn Engine>`; an indirect call costs about 2 ns against
//! operations of 200 ns and up. Nothing that only one engine can do enters here.

use std::ops::ControlFlow;
use std::path::Path;

use crate::{Checkpoint, Durability, Error, ErrorKind, Key, Result, Value};

/// Receives the pairs of a scan; `Break` ends it early.
pub type Visitor<'a> = dyn FnMut(&Key, &Value) -> ControlFlow<()> + 'a;

/// An open store.
///
/// Shared between threads by reference. At most one [`WriteTxn`] exists at a time: a second [`Engine::begin`]
/// waits for the first to end, so a thread must never begin twice.
pub trait Engine: Send + Sync {
    /// The label of every metric and table row: `rocksdb`, `rocksdb_bloom`, `lmdb`, `redb`.
    fn label(&self) -> &'static str;

    /// Opens a reader on the newest committed batch.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Opens the engine's write transaction. Dropping it without a commit leaves no trace.
    ///
    /// # Errors
    /// [`ErrorKind::Reopen`] once a commit has failed in a way that leaves the disk's state unknown.
    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>>;

    /// The checkpoint of the newest committed batch; the default value in a new store.
    fn checkpoint(&self) -> Result<Checkpoint>;

    /// Sizes and engine-specific figures, cheap enough to call once a second.
    fn stats(&self) -> Result<Stats>;

    /// Writes a consistent copy of the newest committed state into `dir`, which must not exist yet. The copy
    /// opens as a store of the same engine.
    fn snapshot(&self, dir: &Path) -> Result<()>;

    /// The engine's path for sorted input, where it has one.
    fn bulk(&self) -> Option<&dyn BulkLoad>;

    /// Settles background work after a load (a full compaction, a flush) so that reads are measured on the
    /// state they will have for months. May take minutes. Engines with nothing to settle return at once.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Reads everything that is stored and checks whatever the engine's format lets it check; returns the pairs. Takes
    /// as long as reading the store does. Without readers or a writer beside it: what they hold would be left out.
    ///
    /// The default is [`scrub_by_scan`], which is all there is to check where reads verify checksums themselves.
    ///
    /// # Errors
    /// [`ErrorKind::DataDamaged`], naming the place where the engine can.
    fn scrub(&mut self) -> Result<u64> {
        scrub_by_scan(&mut *self.reader()?)
    }

    /// Flushes everything committed to the device and closes.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A snapshot to read from: sees exactly the batches up to one commit, whole.
pub trait Reader {
    /// The value of `key`, or `None` when absent.
    fn get(&mut self, key: &Key) -> Result<Option<Value>>;

    /// Looks up `keys[i]` into `values[i]`, all from the same snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] when the two lengths differ.
    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()>;

    /// Visits every pair whose key is `first` or greater exactly once in ascending key order, until `visit` breaks. Finds
    /// `first` without reading the pairs before it.
    ///
    /// Push-style because an engine's cursor borrows from its transaction.
    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()>;

    /// Visits every pair exactly once in ascending key order, until `visit` breaks.
    fn scan(&mut self, visit: &mut Visitor<'_>) -> Result<()> {
        self.scan_from(&[0; 32], visit)
    }

    /// The checkpoint this snapshot stands for.
    fn checkpoint(&mut self) -> Result<Checkpoint>;

    /// Moves the snapshot to the newest commit. Cheap: tens of nanoseconds to a microsecond.
    fn refresh(&mut self) -> Result<()>;
}

/// The engine's own open write transaction. Puts go straight into the engine, so timing one times real work.
///
/// After any method has failed, drop it: the only way on is a new transaction.
pub trait WriteTxn {
    /// The value of `key` as this transaction sees it, its own writes included.
    fn get(&mut self, key: &Key) -> Result<Option<Value>>;

    /// Sets `key` to `value`.
    fn put(&mut self, key: &Key, value: &Value) -> Result<()>;

    /// Removes `key`; removing an absent key is not an error.
    fn delete(&mut self, key: &Key) -> Result<()>;

    /// Applies the batch and `checkpoint` atomically.
    ///
    /// # Errors
    /// [`ErrorKind::FreeSpace`]: nothing of the batch was applied, a new transaction may be begun once there is
    /// space. [`ErrorKind::Retry`]: the same for a want of descriptors or memory that did not pass within seconds.
    /// [`ErrorKind::Reopen`]: it is not known whether the batch is durable; the engine refuses further writes, and only
    /// opening the store again tells. Never retry the commit itself. [`ErrorKind::FixInput`]: the checkpoint is longer
    /// than [`Checkpoint::BYTES_MAX`] allows; nothing of the batch was applied.
    fn commit(self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()>;
}

/// Loading sorted pairs through the engine's fastest path.
pub trait BulkLoad {
    /// Appends `pairs`, strictly ascending and all greater than every key in the store, and then records
    /// `checkpoint`. Synced before it returns.
    ///
    /// After a crash the chunk is there with its checkpoint, or the older checkpoint is returned and loading
    /// the same chunk again is safe: it converges to the same state even where the engine already took it in.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] when the keys do not ascend, or the checkpoint is longer than [`Checkpoint::BYTES_MAX`]
    /// allows: nothing was loaded.
    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()>;
}

/// What an engine says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Number of pairs: exact for LMDB and redb, an estimate for RocksDB.
    pub pairs_estimate: u64,
    /// Bytes the store occupies on disk (allocated blocks, not file lengths: LMDB's file is sparse).
    pub disk_bytes: u64,
    /// Engine-specific figures as `(name, value)`, snake_case with the unit last.
    pub details: Vec<(&'static str, u64)>,
}

/// What every [`Reader::get_many`] checks first.
///
/// # Errors
/// [`ErrorKind::FixInput`] when the two lengths differ.
pub fn one_slot_per_key(keys: &[Key], values: &[Option<Value>]) -> Result<()> {
    if keys.len() != values.len() {
        return Err(Error::new(
            ErrorKind::FixInput,
            format!("get_many needs one slot per key: keys={} values={}", keys.len(), values.len()),
        ));
    }
    Ok(())
}

/// Reads every pair: each read has to succeed, the keys have to ascend and the checkpoint has to be readable. Returns the
/// pairs.
///
/// # Errors
/// Those of the reads; [`ErrorKind::DataDamaged`] when the keys do not ascend.
pub fn scrub_by_scan(reader: &mut dyn Reader) -> Result<u64> {
    reader.checkpoint()?;
    let (mut pairs, mut last, mut ascending) = (0, None, true);
    reader.scan(&mut |key, _| {
        ascending = last.is_none_or(|last| last < *key);
        pairs += 1;
        last = Some(*key);
        if ascending { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if !ascending {
        return Err(Error::new(ErrorKind::DataDamaged, format!("keys do not ascend: pair={pairs}")));
    }
    Ok(pairs)
}

/// [`Reader::get_many`] for an engine that has nothing better than one get after another.
pub fn get_many_by_get<R: Reader + ?Sized>(reader: &mut R, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
    one_slot_per_key(keys, values)?;
    for (key, value) in keys.iter().zip(values) {
        *value = reader.get(key)?;
    }
    Ok(())
}
