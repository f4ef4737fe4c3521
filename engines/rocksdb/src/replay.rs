//! Checks that the batches that RocksDB replays from its logs follow each other: a gap ends the replay.
//!
//! Owns: RocksDB's WAL filter, and the sequence number that comes next. Must not: change a batch or a file. Runs on the
//! thread that opens the store, while RocksDB replays.
//!
//! RocksDB takes zeros at the end of a batch for space that was allocated ahead, and continues with the next block of
//! the log without an error (`log_reader.cc`, `kZeroType`). It also continues with the next log if one ends between two
//! batches. After a power loss either can be a hole: pages of a log reach the device in any order, so a batch may be
//! lost while later ones are there. Without this filter a store would hold the later batches and their checkpoint, and
//! not those in the hole.
//!
//! Every batch carries the sequence number of its first entry, which shows the gap. A hole at a log's beginning shows
//! as zeros in place of its first header.

use std::ffi::{OsStr, c_char, c_int, c_uchar, c_ulonglong, c_void};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;

use librocksdb_sys as ffi;
use rocksdb::{AsRawPtr as _, Options};

use crate::frame;

/// Size of a batch's header in a log: the sequence number of its first entry (8 bytes) and the number of its entries
/// (4), both little-endian (RocksDB's `db/write_batch.cc`).
const HEADER_BYTES: usize = 12;
/// Largest gap that is accepted. A batch of one entry holds only a checkpoint, which a later one replaces, so a gap of
/// one loses nothing. Earlier versions left such a gap in the log if a file of a sorted load was ingested while a
/// reader was open. Now a load flushes everything first.
const HARMLESS_GAP: u64 = 1;

/// State of the replay so far.
struct Replayed {
    /// Newest sequence number that the manifest records, if it has one. It limits where the first batch may begin. It
    /// says nothing about later batches, because it may be newer than the oldest log.
    last_sequence: Option<u64>,
    /// Sequence number that the next batch must begin with; `None` before the first batch.
    next: Option<u64>,
    /// Number of the log that is being replayed.
    log: Option<u64>,
}

impl Replayed {
    fn new(last_sequence: Option<u64>) -> Self {
        Self { last_sequence, next: None, log: None }
    }

    /// Whether a batch may be the first one that RocksDB finds in the log at `path`. A log that cannot be read is left
    /// to RocksDB.
    fn begins(&mut self, log: u64, path: &Path) -> bool {
        self.log.replace(log) == Some(log) || !begins_with_zeros(path).unwrap_or(false)
    }

    /// Whether the batch with this header may follow the batches replayed so far.
    fn follows(&mut self, header: [u8; HEADER_BYTES]) -> bool {
        let [s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3] = header;
        let first = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let entries = u64::from(u32::from_le_bytes([c0, c1, c2, c3]));
        if entries == 0 {
            // This is RocksDB's own mark at the start of a log: the end of the replay of earlier logs. The next batch
            // may begin later, because the manifest may record greater numbers than that.
            return true;
        }
        let next = self.next.or(self.last_sequence.map(|last| last.saturating_add(1)));
        if next.is_some_and(|next| first > next.saturating_add(HARMLESS_GAP)) {
            return false;
        }
        self.next = self.next.max(Some(first.saturating_add(entries)));
        true
    }
}

fn begins_with_zeros(log: &Path) -> io::Result<bool> {
    let mut header = [0; frame::HEADER_BYTES];
    File::open(log)?.read_exact(&mut header)?;
    Ok(header == [0; frame::HEADER_BYTES])
}

/// WAL filter of one opened store.
pub(crate) struct Filter(NonNull<ffi::rocksdb_walfilter_t>);

// SAFETY: RocksDB calls the filter only while it opens the store, on the thread that opens it. After that the filter is
// only destroyed, which any thread may do.
unsafe impl Send for Filter {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Filter {}

impl Filter {
    /// Makes a replay with these options end before the first gap. `last_sequence` is the newest sequence number that
    /// the manifest records. The filter has to outlive the store that is opened with the options.
    pub(crate) fn set(options: &mut Options, last_sequence: Option<u64>) -> Self {
        let replayed = Box::new(Replayed::new(last_sequence));
        // SAFETY: the callbacks and the destructor fit the state, which is a `Box<Replayed>`. RocksDB calls the
        // destructor once, when the filter is destroyed. No callback is needed for the column families' log numbers.
        let filter = unsafe {
            ffi::rocksdb_walfilter_create(
                Box::into_raw(replayed).cast::<c_void>(),
                Some(destroy),
                None,
                Some(batch_found),
                Some(name),
            )
        };
        // SAFETY: both pointers are to living objects, and the caller keeps the filter longer than the store.
        unsafe { ffi::rocksdb_options_set_wal_filter(options.as_raw_ptr(), filter) };
        Self(NonNull::new(filter).expect("RocksDB makes a filter with C++'s new, which does not return null"))
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: the filter was made by `set`, is destroyed once, and no store uses it any more.
        unsafe { ffi::rocksdb_walfilter_destroy(self.0.as_ptr()) };
    }
}

unsafe extern "C" fn destroy(state: *mut c_void) {
    // SAFETY: `set` has made `state` from a box, and it is given back once.
    drop(unsafe { Box::from_raw(state.cast::<Replayed>()) });
}

unsafe extern "C" fn batch_found(
    state: *mut c_void,
    log_number: c_ulonglong,
    log_file_name: *const c_char,
    log_file_name_len: usize,
    batch: *const ffi::rocksdb_writebatch_t,
    _new_batch: *mut ffi::rocksdb_writebatch_t,
    _batch_changed: *mut c_uchar,
) -> c_int {
    // SAFETY: `set` has made `state` from a box, and RocksDB replays on one thread.
    let replayed = unsafe { &mut *state.cast::<Replayed>() };
    // SAFETY: these bytes are the name of the log's file, which RocksDB lends for the time of this call.
    let log = unsafe { slice::from_raw_parts(log_file_name.cast::<u8>(), log_file_name_len) };
    let begins = replayed.begins(log_number, Path::new(OsStr::from_bytes(log)));
    let mut bytes = 0;
    // SAFETY: RocksDB lends the batch for the time of this call. The call reads its representation and changes nothing.
    let data = unsafe { ffi::rocksdb_writebatch_data(batch.cast_mut(), &raw mut bytes) };
    // SAFETY: `data` and `bytes` are the batch's representation, which lives as long as the batch.
    let batch = unsafe { slice::from_raw_parts(data.cast::<u8>(), bytes) };
    // RocksDB has refused shorter batches already.
    let follows = begins && batch.first_chunk().is_some_and(|header| replayed.follows(*header));
    // Treated like a batch whose checksum is wrong: the replay ends before it, and continues with a later log only if
    // that fits.
    let verdict =
        if follows { ffi::rocksdb_wal_filter_continue_processing } else { ffi::rocksdb_wal_filter_corrupted_record };
    verdict as c_int
}

unsafe extern "C" fn name(_: *mut c_void) -> *const c_char {
    c"solkv: a gap in the log".as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns for each batch, given as its first sequence number and its number of entries, whether it is replayed.
    fn replayed<const N: usize>(last_sequence: Option<u64>, batches: [(u64, u32); N]) -> [bool; N] {
        let mut replayed = Replayed::new(last_sequence);
        batches.map(|(first, entries)| {
            let mut header = [0; HEADER_BYTES];
            header[..8].copy_from_slice(&first.to_le_bytes());
            header[8..].copy_from_slice(&entries.to_le_bytes());
            replayed.follows(header)
        })
    }

    #[test]
    fn batches_follow_each_other_and_the_manifest() {
        assert_eq!(replayed(None, [(7, 3), (10, 5), (15, 1)]), [true; 3]);
        assert_eq!(replayed(Some(6), [(7, 3), (10, 5)]), [true; 2]);
        assert_eq!(replayed(Some(100), [(7, 3), (10, 5)]), [true; 2], "the manifest may be newer than the log");
        assert_eq!(replayed(Some(6), [(9, 3)]), [false], "the log's beginning is gone");
    }

    #[test]
    fn a_gap_is_one_whatever_the_manifest_says() {
        assert_eq!(replayed(Some(100), [(7, 3), (12, 5)]), [true, false]);
        assert_eq!(replayed(None, [(7, 3), (11, 5)]), [true; 2], "a checkpoint alone");
        assert_eq!(replayed(Some(20), [(10, 0), (21, 5), (26, 1)]), [true; 3], "a mark says nothing");
    }
}
