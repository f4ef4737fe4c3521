//! Compares every block of every file with its checksum: data, index and filters, and the partitions of both.
//!
//! Owns: a second, read-only opening of the store, with nothing cached. Must not: change anything. Runs on the thread
//! that asks for the scrub.
//!
//! A scan reads data blocks only, and RocksDB continues without a filter that it cannot read. `rocksdb_verify_checksum`
//! opens each file and reads all of its blocks but the partitions of filters. Those are read and checked when a file is
//! opened with pinned partitions, and stay pinned for the time of that file's check.

use std::ffi::CStr;
use std::path::Path;
use std::ptr;

use engine_api::{Error, ErrorKind, Result};
use rocksdb::{AsRawPtr as _, BlockBasedOptions, BlockBasedTablePinningTier, Cache, Options};

use crate::manifest::Keeper;
use crate::store::open_read_only;

/// Cache for the partitions of one file: they take 3 bytes per pair, and files hold 4 million pairs.
const CACHE_BYTES: usize = 64 << 20;
/// Number of files that the second opening keeps open in addition to the one being checked.
const OPEN_FILES_MAX: i32 = 64;
/// The number of bits does not matter: any number reads filters of every number.
const FILTER_BITS: f64 = 10.0;

/// Checks all files of the store in `dir`. Batches that are only in the log are replayed, which checks them, too.
///
/// # Errors
/// `DataDamaged` for a wrong checksum or a file that contradicts another, with RocksDB's message, which names the
/// place; `Reopen` for other failures of the check; any error of opening the store.
pub(crate) fn files(dir: &Path) -> Result<()> {
    // The filter is declared before the store, so that it is dropped after it.
    let (_filter, db) = open_read_only(dir, &mut options(), &*Keeper::check(dir)?)?;
    let mut message = ptr::null_mut();
    // SAFETY: `db` is open until the end of this function. A message is a C string that is ours to free.
    let failed = unsafe {
        librocksdb_sys::rocksdb_verify_checksum(db.as_raw_ptr(), &raw mut message);
        (!message.is_null()).then(|| {
            let text = CStr::from_ptr(message).to_string_lossy().into_owned();
            librocksdb_sys::rocksdb_free(message.cast());
            text
        })
    };
    failed.map_or(Ok(()), |reason| Err(refused(dir, &reason)))
}

fn refused(dir: &Path, reason: &str) -> Error {
    let kind = if reason.starts_with("Corruption") { ErrorKind::DataDamaged } else { ErrorKind::Reopen };
    Error::new(kind, format!("RocksDB cannot verify its files: dir={} reason={reason}", dir.display()))
}

fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
    table.set_bloom_filter(FILTER_BITS, false);
    table.set_partition_pinning_tier(BlockBasedTablePinningTier::All);
    let mut out = Options::default();
    out.set_block_based_table_factory(&table);
    out.set_max_open_files(OPEN_FILES_MAX);
    out
}
