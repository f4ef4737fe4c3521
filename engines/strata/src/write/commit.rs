//! Commits: the WAL, the memtable, and the wait for a memtable that is not flushed yet.
//!
//! Owns: the order in which a batch becomes durable and visible. Runs on the thread of the transaction, under the
//! writer lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result, Value};
use parking_lot::MutexGuard;

use crate::engine::{FROZEN_MAX, Shared, Writer};
use crate::format::wal::{self, Wal};
use crate::read::visible::{Frozen, Visible};
use crate::write::mem::Mem;
use crate::write::merge::{RUNS_MAX, is_final};
use crate::write::plan::like_sized;

/// How long a commit waits for a want of descriptors or memory to pass, and how long before it asks first.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

impl Shared {
    /// The writer lock, unless writing is refused.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let writer = self.writer.lock();
        self.refuse_if_poisoned()?;
        let shown = || self.storage.shown();
        let free = self
            .storage
            .free_bytes()
            .map_err(|e| Error::io(format!("cannot ask for the free space: dir={}", shown()), e))?;
        if free < self.reserve_bytes {
            return Err(Error::new(
                ErrorKind::FreeSpace,
                format!(
                    "not enough free disk to write: dir={} free_bytes={free} reserve_bytes={}",
                    shown(),
                    self.reserve_bytes
                ),
            ));
        }
        Ok(writer)
    }

    pub(crate) fn refuse_if_poisoned(&self) -> Result<()> {
        // ORDERING: Relaxed: the flag carries nothing but itself.
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Reopen,
                format!("an earlier write failed, close and open the store again: dir={}", self.storage.shown()),
            ));
        }
        Ok(())
    }

    /// From here on writes are refused: what is on disk is not known.
    pub(crate) fn poison(&self, error: Error) -> Error {
        // ORDERING: Relaxed: see above.
        self.poisoned.store(true, Ordering::Relaxed);
        match error.kind() {
            ErrorKind::Reopen => error,
            _ => Error::with_source(ErrorKind::Reopen, "a write failed: close and open the store again", error),
        }
    }

    /// Commits one batch of distinct keys.
    pub(crate) fn commit(
        &self,
        writer: &mut Writer,
        ops: &[(Key, Option<Value>)],
        checkpoint: &Checkpoint,
        synced: bool,
    ) -> Result<()> {
        checkpoint.check()?;
        wal::refuse_too_large(ops.len())?;
        let now = self.visible.load_full();
        if now.length + ops.len() > now.active.capacity() || writer.wal.bytes() > self.sizes.wal_bytes {
            self.rotate(writer, ops.len())?;
        }
        let batch = writer.batch + 1;
        writer.wal.append(batch, checkpoint, ops).map_err(|e| match e.kind() {
            // The record is cut short and will be overwritten: nothing of it was applied.
            ErrorKind::FreeSpace => e,
            _ => self.poison(e),
        })?;
        if synced {
            writer.wal.sync().map_err(|e| self.poison(e))?;
        }
        writer.batch = batch;
        self.counters.committed(ops.len(), writer.wal.last_bytes());
        let now = self.visible.load();
        let (active, length) = (Arc::clone(&now.active), now.length);
        for (index, (key, value)) in ops.iter().enumerate() {
            active.append(length + index, self.reads.seed.hash(key), key, *value);
        }
        self.publish(|visible| {
            visible.length = length + ops.len();
            visible.checkpoint = checkpoint.clone();
        });
        Ok(())
    }

    /// Replaces what readers see.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Visible)) {
        let _one = self.publish.lock();
        let mut next = Visible::clone(&self.visible.load());
        change(&mut next);
        self.visible.store(Arc::new(next));
    }

    /// Freezes the active memtable and starts a new one, with room for `records`. Waits while too many are frozen.
    fn rotate(&self, writer: &mut Writer, records: usize) -> Result<()> {
        self.wait_for_flush(FROZEN_MAX - 1)?;
        self.wait_for_merge()?;
        let active = Arc::new(Mem::new(records.max(self.sizes.mem_records))?);
        // The next file stands on all of this one.
        writer.wal.sync().map_err(|e| self.poison(e))?;
        let wal = self.next_wal(writer)?;
        let old = std::mem::replace(&mut writer.wal, wal);
        let batch = writer.batch;
        self.publish(|visible| {
            let mem = std::mem::replace(&mut visible.active, active);
            let (length, checkpoint) = (visible.length, visible.checkpoint.clone());
            visible.frozen.insert(0, Arc::new(Frozen { mem, length, wal_id: old.id(), batch, checkpoint }));
            visible.length = 0;
        });
        let _work = self.work.lock();
        self.wake.notify_all();
        Ok(())
    }

    /// The file that the next batches are written to. A want of descriptors or memory is waited for.
    fn next_wal(&self, writer: &Writer) -> Result<Wal> {
        let since = Instant::now();
        let mut pause = PAUSE;
        loop {
            // ORDERING: Relaxed: a number that is given once; the manifest orders files.
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let spare = self.work.lock().spare.pop();
            match Wal::create(&*self.storage, writer.wal.key(), id, spare.as_deref(), writer.batch) {
                Ok(wal) => return Ok(wal),
                Err(failed) if is_final(&failed) => return Err(self.poison(failed)),
                Err(failed) if failed.kind() != ErrorKind::Retry || since.elapsed() >= PATIENCE => return Err(failed),
                // It was not touched.
                Err(_) => self.work.lock().spare.extend(spare),
            }
            std::thread::sleep(pause);
            self.counters.stalled(pause);
            pause *= 2;
        }
    }

    /// Removes the WAL files that wait to be overwritten.
    pub(crate) fn remove_spares(&self) {
        let mut work = self.work.lock();
        // One that stays is removed by the next opening.
        work.spare.drain(..).for_each(|name| drop(self.storage.remove(&name)));
    }

    /// Brings everything that is committed into runs.
    pub(crate) fn drain(&self, writer: &mut Writer) -> Result<()> {
        // Also for batches that changed nothing: their checkpoints must not be replayed behind a newer one.
        if writer.wal.bytes() > 0 {
            self.rotate(writer, 0)?;
        }
        self.wait_for_flush(0)
    }

    /// Waits until at most `most` memtables are frozen; gives up with the merging thread's error.
    fn wait_for_flush(&self, most: usize) -> Result<()> {
        if self.visible.load().frozen.len() <= most {
            return Ok(());
        }
        let since = Instant::now();
        let waited = self.wait_until_flushed(most);
        self.counters.stalled(since.elapsed());
        waited
    }

    fn wait_until_flushed(&self, most: usize) -> Result<()> {
        let since = Instant::now();
        let mut work = self.work.lock();
        // A failure of before is tried again once: space may have been freed meanwhile.
        let mut rounds = None;
        while self.visible.load().frozen.len() > most {
            work.check_alive()?;
            if let (Some((kind, why)), Some(before)) = (&work.failed, rounds)
                && work.rounds > before
                && (*kind != ErrorKind::Retry || since.elapsed() >= PATIENCE)
            {
                return Err(Error::new(*kind, why.clone()));
            }
            rounds.get_or_insert(work.rounds);
            self.wake.notify_all();
            self.done.wait(&mut work);
        }
        Ok(())
    }

    /// Waits while there are too many delta runs for another one; gives up where merging has failed.
    fn wait_for_merge(&self) -> Result<()> {
        if self.visible.load().version.deltas.len() < RUNS_MAX {
            return Ok(());
        }
        let since = Instant::now();
        let waited = self.wait_until_merged(since);
        self.counters.stalled(since.elapsed());
        waited
    }

    fn wait_until_merged(&self, since: Instant) -> Result<()> {
        let mut work = self.work.lock();
        loop {
            let now = self.visible.load();
            let deltas = &now.version.deltas;
            // Where nothing can be merged, because too many runs cannot be read, waiting would not help.
            if deltas.len() < RUNS_MAX || like_sized(deltas, now.active.capacity() as u64).is_none() {
                return Ok(());
            }
            work.check_alive()?;
            self.refuse_if_poisoned()?;
            if let Some((kind, why)) = &work.merge_failed
                && (*kind == ErrorKind::FreeSpace || since.elapsed() >= PATIENCE)
            {
                return Err(Error::new(*kind, why.clone()));
            }
            self.wake.notify_all();
            self.done.wait(&mut work);
        }
    }
}
