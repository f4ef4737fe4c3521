//! Preparation for later commits: the next WAL file, the next memtable, the writeback of the present WAL, and the order
//! of the present memtable.
//!
//! Owns: when and how the next file and memtable are made. Must not: decide when a memtable is full. A commit asks under
//! the writer lock; `strata-flush` does the work, even in the middle of a flush.
//!
//! A commit that begins the next WAL file first flushes the present one, because recovery takes a batch of the next
//! file as proof that every batch of this one is durable. That flush is short: most of the bytes are already with the
//! device, and the next file and memtable exist.

use std::sync::Arc;

use engine_api::{ErrorKind, Result};
use engine_kit::is_final;

use crate::format::wal::Wal;
use crate::memtable::{Mem, ORDER_BYTES};
use crate::write::commits::{Commits, Writer};
use crate::write::mailbox::{Ready, WriteOut};

/// Number of WAL bytes after which the device is asked to write them. The rest then takes the flush at the end of a
/// file a few milliseconds, and one request a megabyte costs nothing compared with the records.
const WRITE_OUT_BYTES: u64 = 1 << 20;

/// Number of entries after which `strata-flush` takes them into the order of their keys. A scan that comes before does it
/// itself, in some 130 us for so many.
const ARRANGE_ENTRIES: usize = 4096;

impl Commits {
    /// Requests the next WAL file and memtable once half of a memtable or of a WAL file is used, the writeback of the
    /// WAL after each [`WRITE_OUT_BYTES`], and the order of the memtable after each [`ARRANGE_ENTRIES`].
    pub(super) fn look_ahead(&self, writer: &mut Writer, length: usize, capacity: usize) {
        let written = writer.wal.bytes();
        let half_used = length >= capacity / 2 || written >= self.common.sizes.wal_bytes / 2;
        let prepares = half_used && !writer.prepares;
        let writes_out = written >= writer.written_out + WRITE_OUT_BYTES;
        let arranges = length >= writer.arranged + ARRANGE_ENTRIES;
        if !prepares && !writes_out && !arranges {
            return;
        }
        let mut requests = self.common.mailbox.lock();
        if arranges {
            (writer.arranged, requests.ahead.arranges) = (length, true);
        }
        if prepares {
            (writer.prepares, requests.ahead.wanted) = (true, true);
        }
        if writes_out {
            // Extend an earlier request that was not begun, so that its bytes are written too.
            let from = requests.ahead.write_out.take().map_or(writer.written_out, |before| before.from);
            requests.ahead.write_out = Some(WriteOut { file: writer.wal.file(), from, to: written });
            writer.written_out = written;
        }
        drop(requests);
        self.common.mailbox.wake_flush.notify_one();
    }

    /// Works on the requests to prepare for later commits.
    pub(crate) fn work_ahead(&self) {
        let (write_out, wanted, arranges) = {
            let mut requests = self.common.mailbox.lock();
            let wanted = requests.ahead.wanted && requests.ahead.ready.is_none();
            // If this fails, the commit makes its own file and memtable, and deals with a shortage of descriptors
            // there.
            requests.ahead.wanted = false;
            (requests.ahead.write_out.take(), wanted, std::mem::take(&mut requests.ahead.arranges))
        };
        if let Some(WriteOut { file, from, to }) = write_out {
            file.start_writeback(from, to - from);
        }
        if wanted && let Ok(ready) = self.prepare() {
            self.common.mailbox.lock().ahead.ready = Some(ready);
        }
        if arranges {
            let now = self.common.newest.load_full();
            let _work = self.memory.reads.budget.take_for_work(now.length as u64 * ORDER_BYTES);
            // For want of memory the rest waits for the next request.
            now.active.arrange_and_merge(now.length).ok();
        }
    }

    fn prepare(&self) -> Result<Ready> {
        let mem = Arc::new(Mem::new(self.common.newest.load().usual_mem_records() as usize)?);
        let _share = self.memory.reads.budget.take_for_work(mem.bytes(0));
        // `begin_behind` sets the last durable batch when the file is begun.
        Ok(Ready { wal: self.create_wal(0)?, mem, _share })
    }

    /// Creates a WAL file, or takes one that waits to be overwritten. Every batch up to `flushed` must be durable.
    pub(super) fn create_wal(&self, flushed: u64) -> Result<Wal> {
        loop {
            let id = self.runs.new_id();
            let spare = self.common.mailbox.lock().spare.pop();
            match Wal::create(&*self.common.storage, &self.wal_key, id, spare.as_deref(), flushed) {
                Ok(wal) => return Ok(wal),
                // The name may or may not be durable, and a flush of the directory is not tried again.
                Err(failed) if is_final(&failed) => return Err(self.common.poison(failed)),
                // Somebody has removed the spare file.
                Err(failed) if spare.is_some() && failed.kind() == ErrorKind::FixInput => {}
                Err(failed) => {
                    // The spare file was not touched.
                    self.common.mailbox.lock().spare.extend(spare);
                    return Err(failed);
                }
            }
        }
    }
}
