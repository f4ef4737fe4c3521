//! Preparation for later commits: the next WAL file, the next memtable, and the writeback of the present WAL.
//!
//! Owns: the WAL files that wait to be written or overwritten. Must not: decide when a memtable is full. A commit asks
//! under the writer lock; `strata-flush` does the work, even in the middle of a flush.
//!
//! A commit that begins the next WAL file first flushes the present one, because recovery takes a batch of the next
//! file as proof that every batch of this one is durable. That flush is short: most of the bytes are already with the
//! device, and the next file and memtable exist.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_api::{ErrorKind, Result};

use crate::budget::Share;
use crate::format::wal::{self, Wal};
use crate::memtable::Mem;
use crate::storage::StorageFile;
use crate::write::merge::is_final;
use crate::write::shared::{Shared, Writer};

/// Number of WAL bytes after which the device is asked to write them. The rest then takes the flush at the end of a
/// file a few milliseconds, and one request a megabyte costs nothing compared with the records.
const WRITE_OUT_BYTES: u64 = 1 << 20;

/// Requests to `strata-flush`, and their results.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Whether the next WAL file and memtable are wanted.
    wanted: bool,
    ready: Option<Ready>,
    /// A range of the WAL file that the device should begin to write.
    write_out: Option<WriteOut>,
}

/// The next WAL file and memtable, both empty.
pub(crate) struct Ready {
    pub(crate) wal: Wal,
    pub(crate) mem: Arc<Mem>,
    /// Memory of the empty memtable. Its entries are counted with the memtables.
    _share: Share,
}

struct WriteOut {
    file: Arc<dyn StorageFile>,
    from: u64,
    to: u64,
}

impl Ahead {
    /// Whether `strata-flush` has a request to work on.
    pub(crate) fn is_asked(&self) -> bool {
        self.write_out.is_some() || (self.wanted && self.ready.is_none())
    }

    /// Takes the next file and memtable, if they are ready, and withdraws all requests.
    pub(crate) fn take(&mut self) -> Option<Ready> {
        self.wanted = false;
        self.write_out = None;
        self.ready.take()
    }
}

impl Shared {
    /// Requests the next WAL file and memtable once half of a memtable or of a WAL file is used, and the writeback of
    /// the WAL after each [`WRITE_OUT_BYTES`].
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
            // Extend an earlier request that was not begun, so that its bytes are written too.
            let from = work.ahead.write_out.take().map_or(writer.written_out, |before| before.from);
            work.ahead.write_out = Some(WriteOut { file: writer.wal.file(), from, to: written });
            writer.written_out = written;
        }
        drop(work);
        self.flush_wake.notify_one();
    }

    /// Works on the requests to prepare for later commits.
    pub(crate) fn work_ahead(&self) {
        let (write_out, wanted) = {
            let mut work = self.work.lock();
            let wanted = work.ahead.wanted && work.ahead.ready.is_none();
            // If this fails, the commit makes its own file and memtable, and deals with a shortage of descriptors
            // there.
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
        // ORDERING: Relaxed: each number is given once; the manifest orders the files.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let spare = self.work.lock().spare.pop();
        // `begin_behind` sets the last durable batch when the file is begun.
        match Wal::create(&*self.storage, &self.wal_key, id, spare.as_deref(), 0) {
            Ok(wal) => Ok(Ready { wal, mem, _share }),
            // The name may or may not be durable, and a flush of the directory is not tried again.
            Err(failed) if is_final(&failed) => Err(self.poison(failed)),
            Err(failed) => {
                // The spare file was not touched, unless somebody has removed it.
                self.work.lock().spare.extend(spare.filter(|_| failed.kind() != ErrorKind::FixInput));
                Err(failed)
            }
        }
    }

    /// Removes the WAL files that wait to be written or overwritten. Returns whether there were any.
    pub(crate) fn remove_spares(&self) -> bool {
        let (ready, spare) = {
            let mut work = self.work.lock();
            (work.ahead.take(), std::mem::take(&mut work.spare))
        };
        // The next opening removes a file that stays.
        let names: Vec<String> = spare.into_iter().chain(ready.map(|ready| wal::name(ready.wal.id()))).collect();
        names.iter().for_each(|name| drop(self.storage.remove(name)));
        !names.is_empty()
    }
}
