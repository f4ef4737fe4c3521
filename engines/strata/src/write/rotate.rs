//! The change from one WAL file and memtable to the next.
//!
//! Owns: when a memtable is frozen, and that the file before is durable by then. Runs on the thread of the transaction,
//! under the writer lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine_api::{ErrorKind, Result};

use crate::engine::{FROZEN_MAX, Shared, Writer};
use crate::format::wal::Wal;
use crate::read::visible::Frozen;
use crate::write::ahead::Ready;
use crate::write::limits::PATIENCE;
use crate::write::mem::Mem;
use crate::write::merge::is_final;

/// How long a commit waits before it asks again where it has met a want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(1);

impl Shared {
    /// Freezes the active memtable and starts a new one, with room for `records`. Waits while too many are frozen, and
    /// while there is too much to be merged.
    pub(crate) fn rotate(&self, writer: &mut Writer, records: usize) -> Result<()> {
        self.wait_for_flush(FROZEN_MAX - 1)?;
        self.hold()?;
        self.freeze(writer, records)
    }

    /// Brings everything that is committed into runs.
    pub(crate) fn drain(&self, writer: &mut Writer) -> Result<()> {
        // Also for batches that changed nothing: their checkpoints must not be replayed behind a newer one.
        if writer.wal.bytes() > 0 {
            self.rotate(writer, 0)?;
        }
        self.wait_for_flush(0)
    }

    /// Freezes the active memtable and starts a new one, in a WAL file of no length; the last batch before it.
    pub(crate) fn begin_anew(&self, writer: &mut Writer) -> Result<u64> {
        self.remove_spares();
        if writer.wal.bytes() > 0 {
            self.wait_for_flush(FROZEN_MAX - 1)?;
            // The flush that was waited for has left its file to be overwritten.
            self.remove_spares();
            self.freeze(writer, 0)?;
        }
        Ok(writer.batch)
    }

    fn freeze(&self, writer: &mut Writer, records: usize) -> Result<()> {
        let since = Instant::now();
        // The next file stands on all of this one.
        writer.wal.sync().map_err(|e| self.poison(e))?;
        let ready = self.work.lock().ahead.take();
        let (mem, wal) = self.next(writer, ready, records)?;
        let old = std::mem::replace(&mut writer.wal, wal);
        (writer.written_out, writer.prepares) = (0, false);
        let batch = writer.batch;
        self.publish(|visible| {
            let mem = std::mem::replace(&mut visible.active, mem);
            let (length, checkpoint) = (visible.length, visible.checkpoint.clone());
            visible.frozen.insert(0, Arc::new(Frozen { mem, length, wal_id: old.id(), batch, checkpoint }));
            visible.length = 0;
        });
        self.counters.rotated(since.elapsed());
        let _work = self.work.lock();
        self.flush_wake.notify_all();
        Ok(())
    }

    /// The memtable and the file that the next batches are written to: those that are ready, as far as they can be used.
    fn next(&self, writer: &Writer, ready: Option<Ready>, records: usize) -> Result<(Arc<Mem>, Wal)> {
        let (mem, mut wal) = ready.map_or((None, None), |ready| (Some(ready.mem), Some(ready.wal)));
        // Files are replayed in the order of their numbers: one that was made before the present one comes too late. The
        // flush of the present one finds it and keeps it to be overwritten.
        wal.take_if(|wal| wal.id() < writer.wal.id());
        let mem = match mem.filter(|mem| mem.capacity() >= records) {
            Some(mem) => mem,
            None => Arc::new(Mem::new(records.max(self.sizes.mem_records))?),
        };
        let mut wal = match wal {
            Some(wal) => wal,
            None => self.next_wal(writer)?,
        };
        wal.begin_behind(writer.batch);
        Ok((mem, wal))
    }

    /// A new file. A want of descriptors or memory is waited for.
    fn next_wal(&self, writer: &Writer) -> Result<Wal> {
        let since = Instant::now();
        let mut pause = PAUSE;
        loop {
            // ORDERING: Relaxed: a number that is given once; the manifest orders files.
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let spare = self.work.lock().spare.pop();
            match Wal::create(&*self.storage, &self.wal_key, id, spare.as_deref(), writer.batch) {
                Ok(wal) => return Ok(wal),
                Err(failed) if is_final(&failed) => return Err(self.poison(failed)),
                Err(failed) => {
                    // It was not touched.
                    self.work.lock().spare.extend(spare);
                    if failed.kind() != ErrorKind::Retry || since.elapsed() >= PATIENCE {
                        return Err(failed);
                    }
                }
            }
            std::thread::sleep(pause);
            self.counters.stalled(pause);
            pause *= 2;
        }
    }
}
