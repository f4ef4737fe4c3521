//! The change from one WAL file and memtable to the next.
//!
//! Owns: when a memtable is frozen, and that its WAL file is durable by then. Runs on the thread of the transaction,
//! under the writer lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{ErrorKind, Result};

use crate::format::wal::Wal;
use crate::memtable::Mem;
use crate::read::visible::Frozen;
use crate::sizes::FROZEN_MAX;
use crate::write::commits::waits::PATIENCE;
use crate::write::commits::{Commits, Writer};
use crate::write::mailbox::Ready;

/// First pause of a commit after a shortage of descriptors or memory; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(1);

impl Commits {
    /// Freezes the active memtable and starts a new one with room for `records`. Waits while too many memtables are
    /// frozen, and while merges lag too far.
    pub(super) fn rotate(&self, writer: &mut Writer, records: usize) -> Result<()> {
        self.wait_for_flush(FROZEN_MAX - 1)?;
        self.hold()?;
        self.freeze(writer, records)
    }

    /// Writes everything that is committed as runs, and waits for it.
    pub(crate) fn drain(&self, writer: &mut Writer) -> Result<()> {
        // Rotate even for batches that changed nothing, because their checkpoints must not be replayed over a newer
        // one.
        if writer.wal.bytes() > 0 {
            self.rotate(writer, 0)?;
        }
        self.wait_for_flush(0)
    }

    /// Freezes the active memtable and starts a new one with an empty WAL file, not an overwritten one. Returns the
    /// last batch before it.
    pub(crate) fn begin_anew(&self, writer: &mut Writer) -> Result<u64> {
        self.common.remove_spares();
        if writer.wal.bytes() > 0 {
            self.wait_for_flush(FROZEN_MAX - 1)?;
            // The flush just waited for has kept its file to be overwritten.
            self.common.remove_spares();
            self.freeze(writer, 0)?;
        }
        Ok(writer.batch)
    }

    fn freeze(&self, writer: &mut Writer, records: usize) -> Result<()> {
        let since = Instant::now();
        // Flush this WAL before the next one exists: recovery takes the first record of a WAL as proof that every
        // earlier batch is durable.
        writer.wal.sync().map_err(|e| self.common.poison(e))?;
        let ready = self.common.mailbox.lock().ahead.take();
        let (mem, wal) = self.next(writer, ready, records)?;
        let old = std::mem::replace(&mut writer.wal, wal);
        (writer.written_out, writer.arranged, writer.prepares) = (0, 0, false);
        let batch = writer.batch;
        self.common.newest.publish(|visible| {
            let mem = std::mem::replace(&mut visible.active, mem);
            let (length, checkpoint) = (visible.length, visible.checkpoint.clone());
            visible.frozen.insert(0, Arc::new(Frozen { mem, length, wal_id: old.id(), batch, checkpoint }));
            visible.length = 0;
        });
        self.common.counters.rotations.add(since.elapsed());
        self.common.mailbox.lock().filled_at = Some(Instant::now());
        self.common.mailbox.wake_flush.notify_all();
        Ok(())
    }

    /// Returns the memtable and the WAL file for the next batches: the prepared ones, if they are usable, otherwise new
    /// ones.
    fn next(&self, writer: &Writer, ready: Option<Ready>, records: usize) -> Result<(Arc<Mem>, Wal)> {
        let (mem, mut wal) = ready.map_or((None, None), |ready| (Some(ready.mem), Some(ready.wal)));
        // Files are replayed in the order of their numbers, so a prepared file with a lower number than the present one
        // cannot be used. The flush of the present file finds it and keeps it to be overwritten.
        wal.take_if(|wal| wal.id() < writer.wal.id());
        let mem = match mem.filter(|mem| mem.capacity() >= records) {
            Some(mem) => mem,
            None => Arc::new(Mem::new(records.max(self.common.newest.load().usual_mem_records() as usize))?),
        };
        let mut wal = match wal {
            Some(wal) => wal,
            None => self.next_wal(writer)?,
        };
        wal.begin_behind(writer.batch);
        Ok((mem, wal))
    }

    /// Creates the next WAL file. Waits while descriptors or memory are short.
    fn next_wal(&self, writer: &Writer) -> Result<Wal> {
        let since = Instant::now();
        let mut pause = PAUSE;
        loop {
            match self.create_wal(writer.batch) {
                Err(failed) if failed.kind() == ErrorKind::Retry && since.elapsed() < PATIENCE => {}
                created => return created,
            }
            std::thread::sleep(pause);
            self.common.counters.stalls.add(pause);
            pause *= 2;
        }
    }
}
