//! The traits: [`Engine`], [`Reader`], and [`WriteTxn`].
//!
//! All are object-safe, because the registry hands out `Box<dyn Engine>`. An indirect call costs about 2 ns, where
//! operations take 200 ns and more. No method may exist that only one engine can implement.

use std::ops::ControlFlow;
use std::path::Path;

use crate::{Checkpoint, Durability, Error, ErrorKind, Key, Result, Value};

/// Callback that receives the pairs of a scan. Returning `Break` ends the scan early.
pub type Visitor<'a> = dyn FnMut(&Key, &Value) -> ControlFlow<()> + 'a;

/// An open store.
///
/// Threads share it by reference. At most one [`WriteTxn`] exists at a time: a second [`Engine::begin`] waits for the
/// first transaction to end, so a thread must never begin twice.
pub trait Engine: Send + Sync {
    /// Returns the engine's name with its main options: the `engine` label of metrics, and the name in tables. It is in
    /// lower case with underscores.
    fn label(&self) -> &'static str;

    /// Opens a reader on a snapshot of the newest committed batch.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Opens the engine's write transaction. Dropping it without a commit leaves no trace.
    ///
    /// # Errors
    /// [`ErrorKind::Reopen`] once a commit has failed in a way that leaves the disk's state unknown.
    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>>;

    /// Returns the checkpoint of the newest committed batch; the default value in a new store.
    fn checkpoint(&self) -> Result<Checkpoint>;

    /// Returns sizes and engine-specific figures. Cheap enough to call once a second.
    fn stats(&self) -> Result<Stats>;

    /// Writes a consistent copy of the newest committed state into `dir`, which must not exist yet. The copy
    /// opens as a store of the same engine.
    fn snapshot(&self, dir: &Path) -> Result<()>;

    /// Loads sorted pairs through the engine's fastest path: appends `pairs`, strictly ascending and all greater than
    /// every key in the store, and then records `checkpoint`. Everything is flushed to the device before this returns.
    ///
    /// After a crash the store has either this checkpoint and the whole chunk, or the older checkpoint. In the second
    /// case loading the same chunk again is safe: it leads to the same state even if the engine already holds the
    /// chunk.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] if the keys do not ascend, or the checkpoint is longer than [`Checkpoint::BYTES_MAX`]
    /// allows. Nothing was loaded then.
    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()>;

    /// Completes background work after a load (a full compaction, a flush), so that reads are measured on the state
    /// that they will have for months. May take minutes. Engines without such work return at once.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Reads data that lookups will need into memory, in the order of the files, as far as there is room for it. Calls
    /// `go_on` at the beginning and after every piece, which decides how it continues. Readers and the writer continue
    /// meanwhile. An engine that keeps no such data in memory returns at once and never calls.
    ///
    /// # Errors
    /// The first error of a read. Data that cannot be read are left out, unless there are many of them. The store stays
    /// usable: a lookup that needs the same data reports the error itself.
    fn warm_up(&self, _go_on: &mut dyn FnMut(Warmed) -> Pace) -> Result<()> {
        Ok(())
    }

    /// Reads everything that is stored, checks it as far as the engine's format allows, and returns the number of
    /// pairs. Takes as long as reading the whole store. No reader or writer may be open meanwhile, because the scrub
    /// would leave out the data that they hold.
    ///
    /// The default is [`scrub_by_scan`]. That is all an engine can check if its reads verify checksums themselves.
    ///
    /// # Errors
    /// [`ErrorKind::DataDamaged`], which names the damaged place where the engine can.
    fn scrub(&mut self) -> Result<u64> {
        scrub_by_scan(&mut *self.reader()?)
    }

    /// Flushes everything committed to the device and closes the store.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Answer of a lookup that does not wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// The snapshot holds the key, with this value.
    Found(Value),
    /// The snapshot does not hold the key.
    Absent,
    /// Memory does not tell: [`Reader::get`] would read the device.
    WouldRead,
}

/// A snapshot to read from. It sees exactly the batches up to one commit, each of them whole.
pub trait Reader {
    /// Returns the value of `key`, or `None` if the key is absent.
    fn get(&mut self, key: &Key) -> Result<Option<Value>>;

    /// Looks `key` up as [`Reader::get`] does, if that takes no read of the device, and waits for nothing. The default is
    /// that of an engine that cannot tell ([`Descriptor::answers_from_memory`]).
    ///
    /// [`Descriptor::answers_from_memory`]: crate::Descriptor::answers_from_memory
    fn get_resident(&mut self, _key: &Key) -> Resident {
        Resident::WouldRead
    }

    /// Looks up every `keys[i]` into `values[i]`, all of them in the same snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] when the two lengths differ.
    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()>;

    /// Visits every pair whose key is `first` or greater, exactly once and in ascending key order, until `visit`
    /// breaks. Finds `first` without reading the pairs before it.
    ///
    /// A callback and not an iterator, because an engine's cursor borrows from its transaction.
    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()>;

    /// Visits the pairs from `first` on whose keys begin with the same `prefix_bytes` bytes as `first`, 32 at most, in
    /// ascending key order, until `visit` breaks. In a store that was made for such prefixes
    /// ([`Settings::prefix_bytes`]) it reads the device only where such a key may be.
    ///
    /// [`Settings::prefix_bytes`]: crate::Settings::prefix_bytes
    fn scan_prefix(&mut self, first: &Key, prefix_bytes: usize, visit: &mut Visitor<'_>) -> Result<()> {
        self.scan_from(first, &mut |key, value| match key[..prefix_bytes] == first[..prefix_bytes] {
            true => visit(key, value),
            false => ControlFlow::Break(()),
        })
    }

    /// Visits every pair exactly once in ascending key order, until `visit` breaks.
    fn scan(&mut self, visit: &mut Visitor<'_>) -> Result<()> {
        self.scan_from(&[0; 32], visit)
    }

    /// Returns the checkpoint of the commit that this snapshot shows.
    fn checkpoint(&mut self) -> Result<Checkpoint>;

    /// Moves the snapshot to the newest commit. Costs between tens of nanoseconds and a microsecond.
    fn refresh(&mut self) -> Result<()>;
}

/// An open write transaction of the engine. Puts go straight into the engine, so that timing a put times real work.
///
/// After any method has failed, drop the transaction and begin a new one.
pub trait WriteTxn {
    /// Returns the value of `key` as this transaction sees it, its own writes included.
    fn get(&mut self, key: &Key) -> Result<Option<Value>>;

    /// Sets `key` to `value`, whether or not the key exists.
    fn put(&mut self, key: &Key, value: &Value) -> Result<()>;

    /// Removes `key`; removing an absent key is not an error.
    fn delete(&mut self, key: &Key) -> Result<()>;

    /// Applies the batch and `checkpoint` atomically.
    ///
    /// # Errors
    /// - [`ErrorKind::FreeSpace`]: nothing of the batch was applied. A new transaction may be begun once there is
    ///   space.
    /// - [`ErrorKind::Retry`]: nothing of the batch was applied, because descriptors or memory were lacking for several
    ///   seconds, or merges that it waits for have failed for as long.
    /// - [`ErrorKind::Reopen`]: it is not known whether the batch is durable. The engine refuses further writes, and
    ///   only opening the store again tells. Never retry the commit itself.
    /// - [`ErrorKind::FixInput`]: the checkpoint is longer than [`Checkpoint::BYTES_MAX`] allows. Nothing of the batch
    ///   was applied.
    fn commit(self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()>;
}

/// How an [`Engine::warm_up`] continues after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It reads the next piece.
    On,
    /// It lets the reads under way end, and asks again before the next piece.
    Drain,
    /// It reads nothing more, and returns.
    Stop,
}

/// How far an [`Engine::warm_up`] has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Number of bytes of the data.
    pub store_bytes: u64,
    /// Number of bytes of the data for which there is room: fewer than `store_bytes` if there is not enough for all.
    pub room_bytes: u64,
    /// Number of bytes that had room and were missing at the beginning.
    pub missing_bytes: u64,
    /// Missing bytes that are not read yet, including those whose read failed. Bytes that a lookup has read meanwhile, or
    /// whose file was replaced, no longer count.
    pub left_bytes: u64,
    /// Number of the missing bytes that were read so far.
    pub read_bytes: u64,
}

/// Figures that an engine reports about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Number of pairs. Exact if the engine counts them, otherwise an estimate, which may count a changed key twice.
    pub pairs_estimate: u64,
    /// Bytes that the store occupies on disk: allocated blocks and not file lengths, because a file may be sparse.
    pub disk_bytes: u64,
    /// Engine-specific figures as `(name, value)`. Names are in snake_case and end with the unit.
    pub details: Vec<(&'static str, u64)>,
}

/// Checks that `keys` and `values` are of the same length. Every [`Reader::get_many`] begins with this.
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

/// Reads every pair and returns their number. Each read has to succeed, the keys have to ascend, and the checkpoint has
/// to be readable.
///
/// # Errors
/// Any error of a read; [`ErrorKind::DataDamaged`] if the keys do not ascend.
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
