//! What is made before a commit needs it: the next WAL file, the next memtable, and the WAL's bytes on the device.
//!
//! Owns: the files that wait to be written or overwritten. Must not: decide when a memtable is full. A commit asks under the
//! writer lock; the work is done on `strata-flush`, also in the midst of a flush.
//!
//! A commit that begins the next WAL file flushes the one before, because a batch of the next file stands on all of it.
//! Most of its bytes are with the device by then, and file and memtable are there: the flush is short.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_api::Result;

use crate::budget::Share;
use crate::engine::{Shared, Writer};
use crate::format::wal::{self, Wal};
use crate::storage::StorageFile;
use crate::write::mem::Mem;
use crate::write::merge::is_final;

/// Bytes of the WAL after which the device is asked to write them: what is left for the flush at the end of a file takes it
/// a few milliseconds, and a request a megabyte costs nothing beside the records.
const WRITE_OUT_BYTES: u64 = 1 << 20;

/// What is asked for and what is ready.
#[derive(Default)]
pub(crate) struct Ahead {
    /// The next WAL file and memtable are wanted.
    wanted: bool,
    ready: Option<Ready>,
    /// Bytes of a WAL file that the device should write.
    write_out: Option<WriteOut>,
}

/// The next WAL file and memtable.
pub(crate) struct Ready {
    pub(crate) wal: Wal,
    pub(crate) mem: Arc<Mem>,
    /// What the empty memtable takes; its entries are counted with the memtables.
    _share: Share,
}

struct WriteOut {
    file: Arc<dyn StorageFile>,
    from: u64,
    to: u64,
}

impl Ahead {
    /// Whether `strata-flush` has something to do here.
    pub(crate) fn is_asked(&self) -> bool {
        self.write_out.is_some() || (self.wanted && self.ready.is_none())
    }

    /// The next file and memtable, if they are there; nothing is wanted any more.
    pub(crate) fn take(&mut self) -> Option<Ready> {
        self.wanted = false;
        self.write_out = None;
        self.ready.take()
    }
}

impl Shared {
    /// Asks for what the next commits will need, once half of a memtable or of a WAL file is used.
    pub(crate) fn look_ahead(&self, writer: &mut Writer, length: usize, capacity: usize) {
        let written = writer.wal.bytes();
        let half_used = length >= capacity / 2 || written >= self.sizes.wal_bytes / 2;
        let prepares = half_used && !writer.prepares;
        let writes_out = written >= writer.written_out + WRITE_OUT_BYTES;
        if !prepares && !writes_out {
            return;
        }
        let mut work = self.work.lock();
        if prepares {
            (writer.prepares, work.ahead.wanted) = (true, true);
        }
        if writes_out {
            // What was asked for before and not begun is asked for together with this.
            let from = work.ahead.write_out.take().map_or(writer.written_out, |before| before.from);
            work.ahead.write_out = Some(WriteOut { file: writer.wal.file(), from, to: written });
            writer.written_out = written;
        }
        drop(work);
        self.flush_wake.notify_one();
    }

    /// Does what was asked for.
    pub(crate) fn work_ahead(&self) {
        let (write_out, wanted) = {
            let mut work = self.work.lock();
            let wanted = work.ahead.wanted && work.ahead.ready.is_none();
            // Without it, the commit makes its own: a want of descriptors is met there.
            work.ahead.wanted = false;
            (work.ahead.write_out.take(), wanted)
        };
        if let Some(WriteOut { file, from, to }) = write_out {
            file.start_writeback(from, to - from);
        }
        if wanted && let Ok(ready) = self.prepare() {
            self.work.lock().ahead.ready = Some(ready);
        }
    }

    fn prepare(&self) -> Result<Ready> {
        let mem = Arc::new(Mem::new(self.sizes.mem_records)?);
        let _share = self.budget.take_for_work(mem.bytes(0));
        // ORDERING: Relaxed: a number that is given once; the manifest orders files.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let spare = self.work.lock().spare.pop();
        // The last batch that is durable is told when the file is begun.
        match Wal::create(&*self.storage, &self.wal_key, id, spare.as_deref(), 0) {
            Ok(wal) => Ok(Ready { wal, mem, _share }),
            // Its name may be durable or not: a flush of the directory is not tried again.
            Err(failed) if is_final(&failed) => Err(self.poison(failed)),
            Err(failed) => {
                // It was not touched.
                self.work.lock().spare.extend(spare);
                Err(failed)
            }
        }
    }

    /// Removes the WAL files that wait to be written or overwritten.
    pub(crate) fn remove_spares(&self) {
        let (ready, spare) = {
            let mut work = self.work.lock();
            (work.ahead.take(), std::mem::take(&mut work.spare))
        };
        // One that stays is removed by the next opening.
        spare
            .iter()
            .chain(ready.map(|ready| wal::name(ready.wal.id())).iter())
            .for_each(|name| drop(self.storage.remove(name)));
    }
}
