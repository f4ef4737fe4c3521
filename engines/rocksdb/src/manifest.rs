//! The minimum length of RocksDB's manifest: recorded next to it, and compared before RocksDB opens it.
//!
//! Owns: the file `SOLKV-MANIFEST` in RocksDB's directory, and the last sequence number that the manifest records. Must
//! not: interpret any other part of the manifest's records, or change any file of RocksDB's. Runs on the thread that
//! opens, loads or closes the store, and on RocksDB's own threads after each flush and compaction.
//!
//! RocksDB takes the first record that is not whole for the manifest's end, because a crash can cut the newest one. A
//! manifest that the device has damaged looks the same, and the opening then removes every file that the lost records
//! named. The flushed length tells the two cases apart: up to it all records have to be whole. RocksDB removes a log
//! only after it has reported the flush. So the length is recorded while the log still has the pairs, before sorted
//! files are their only copy.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::{Error, ErrorKind, Result};
use librocksdb_sys as ffi;
use parking_lot::Mutex;
use rocksdb::{AsRawPtr as _, Options};

use crate::frame;

const CURRENT: &str = "CURRENT";
const FILE: &str = "SOLKV-MANIFEST";
const TEMPORARY: &str = "SOLKV-MANIFEST.tmp";
const PREFIX: &str = "MANIFEST-";

/// Fields that may precede the last sequence number in a record of the manifest, with the numbers from RocksDB's
/// `db/version_edit.h`.
mod tag {
    pub(super) const COMPARATOR: u64 = 1;
    pub(super) const LOG_NUMBER: u64 = 2;
    pub(super) const NEXT_FILE_NUMBER: u64 = 3;
    pub(super) const LAST_SEQUENCE: u64 = 4;
    pub(super) const PREV_LOG_NUMBER: u64 = 9;
    pub(super) const MIN_LOG_NUMBER_TO_KEEP: u64 = 10;
    pub(super) const MAX_COLUMN_FAMILY: u64 = 203;
    pub(super) const DB_ID: u64 = (1 << 13) + 1;
}

/// A manifest, and a length up to which its records are whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    /// Number in the manifest's file name.
    number: u64,
    bytes: u64,
}

/// Records the known length of the manifest in `dir`.
pub(crate) struct Keeper {
    dir: PathBuf,
    /// Newest sequence number that the manifest had when it was compared, before the store was opened; `None` if it had
    /// none.
    pub(crate) last_sequence: Option<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Known,
    /// Whether a flush has failed. It is not repeated then.
    failed: bool,
}

impl Keeper {
    /// Compares the manifest with its recorded length. Changes nothing.
    ///
    /// # Errors
    /// `DataDamaged` if the manifest is shorter, older or missing, because opening the store would remove files that it
    /// no longer names; I/O errors of reading. The message names the file.
    pub(crate) fn check(dir: &Path) -> Result<Arc<Self>> {
        let path = dir.join(CURRENT);
        let (known, last_sequence) = match current(dir) {
            Ok(number) => compare(dir, number)?,
            // A new store, or one that RocksDB itself will refuse with a reason.
            Err(e) if [Io::NotFound, Io::NotADirectory, Io::InvalidData].contains(&e.kind()) => Default::default(),
            Err(e) => return Err(Error::io(format!("cannot read file={} reason={e}", path.display()), e)),
        };
        Ok(Arc::new(Self { dir: dir.to_owned(), last_sequence, state: Mutex::new(State { known, failed: false }) }))
    }

    /// Flushes the manifest's whole records and records their length.
    pub(crate) fn keep(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.failed {
            return Err(Error::new(
                ErrorKind::Reopen,
                format!("the manifest could not be flushed earlier: dir={}: open again", self.dir.display()),
            ));
        }
        let State { known, failed } = &mut *state;
        *known = keep(&self.dir, *known, failed).map_err(|e| {
            let file = self.dir.join(FILE);
            Error::io(format!("cannot remember the manifest's length: file={} reason={e}", file.display()), e)
        })?;
        Ok(())
    }

    /// Records the length in another directory, which holds a copy of the store that nobody has open.
    pub(crate) fn keep_copy(dir: &Path) -> Result<()> {
        Self { dir: dir.to_owned(), last_sequence: None, state: Mutex::default() }.keep()
    }

    /// Registers [`Keeper::keep`] with RocksDB, to be called after each flush, each compaction and each ingested file.
    pub(crate) fn listen(self: &Arc<Self>, options: &mut Options) {
        let state = Arc::into_raw(Arc::clone(self)).cast_mut().cast::<c_void>();
        // SAFETY: the callbacks and the destructor fit the state, which is an `Arc<Keeper>`. RocksDB calls the
        // destructor once, when the last copy of the options is gone. No callback may be missing, because RocksDB does
        // not check for null.
        unsafe {
            let listener = ffi::rocksdb_eventlistener_create(
                state,
                Some(destroy),
                Some(ignore),
                Some(keep_after),
                Some(ignore),
                Some(keep_after),
                Some(ignore_part),
                Some(ignore_part),
                Some(keep_after),
                Some(ignore_error),
                Some(ignore_part),
                Some(ignore_part),
            );
            ffi::rocksdb_options_add_eventlistener(options.as_raw_ptr(), listener);
        }
    }
}

unsafe extern "C" fn destroy(state: *mut c_void) {
    // SAFETY: `listen` has made `state` from an `Arc`, and it is given back once.
    drop(unsafe { Arc::from_raw(state.cast::<Keeper>()) });
}

unsafe extern "C" fn keep_after<Info>(state: *mut c_void, _: *mut ffi::rocksdb_t, _: *const Info) {
    // SAFETY: `listen` has made `state` from an `Arc`, which is not given back while RocksDB calls.
    let keeper = unsafe { &*state.cast::<Keeper>() };
    // There is nobody to report to: the older length holds as well, and the next load, settling or closing meets the
    // same error.
    keeper.keep().ok();
}

unsafe extern "C" fn ignore<Info>(_: *mut c_void, _: *mut ffi::rocksdb_t, _: *const Info) {}

unsafe extern "C" fn ignore_part<Info>(_: *mut c_void, _: *const Info) {}

unsafe extern "C" fn ignore_error(_: *mut c_void, _: u32, _: *mut ffi::rocksdb_status_ptr_t) {}

/// Returns the number of the current manifest. `InvalidData` if `CURRENT` names none.
fn current(dir: &Path) -> io::Result<u64> {
    let text = fs::read(dir.join(CURRENT))?;
    let number = str::from_utf8(&text).ok().and_then(|text| text.trim_end().strip_prefix(PREFIX)?.parse().ok());
    number.ok_or_else(|| io::Error::from(Io::InvalidData))
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{number:06}"))
}

/// Returns the length up to which the manifest is whole, and the last sequence number in it. Refuses a manifest that is
/// not whole up to its recorded length.
fn compare(dir: &Path, number: u64) -> Result<(Known, Option<u64>)> {
    let path = path_of(dir, number);
    let remembered = remembered(dir)
        .map_err(|e| Error::io(format!("cannot read file={} reason={e}", dir.join(FILE).display()), e))?;
    let mut last = None;
    let found = File::open(&path).and_then(|mut file| {
        let bytes = frame::read(&mut file, 0, &mut |record| last = last.max(last_sequence(record)))?;
        Ok((bytes, file.metadata()?.len()))
    });
    let (bytes, file_bytes) = found.map_err(|e| match e.kind() {
        Io::NotFound => {
            Error::new(ErrorKind::DataDamaged, format!("RocksDB's manifest is missing: file={}", path.display()))
                .with_way_out("restore a snapshot, or load the store again")
        }
        _ => Error::io(format!("cannot read file={} reason={e}", path.display()), e),
    })?;
    let known_bytes = match remembered {
        // A crash came after a new manifest was begun and before its length was recorded.
        Some(known) if known.number < number => 0,
        Some(known) if known.number == number => known.bytes,
        Some(known) => return Err(older(&path, &path_of(dir, known.number))),
        // A store of an earlier version: there is no telling a crash from damage.
        None => file_bytes,
    };
    if bytes < known_bytes {
        return Err(damaged(&path, bytes, known_bytes));
    }
    Ok((Known { number, bytes }, last))
}

/// Returns the last sequence number in a record of the manifest. RocksDB writes that field before all fields about
/// files.
fn last_sequence(mut record: &[u8]) -> Option<u64> {
    loop {
        match varint(&mut record)? {
            tag::LAST_SEQUENCE => return varint(&mut record),
            tag::COMPARATOR | tag::DB_ID => {
                let length = usize::try_from(varint(&mut record)?).ok()?;
                record = record.get(length..)?;
            }
            tag::LOG_NUMBER
            | tag::NEXT_FILE_NUMBER
            | tag::PREV_LOG_NUMBER
            | tag::MIN_LOG_NUMBER_TO_KEEP
            | tag::MAX_COLUMN_FAMILY => drop(varint(&mut record)?),
            _ => return None,
        }
    }
}

/// Reads a number in groups of seven bits, the lowest group first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

const WAYS_OUT: &str = "opening the store would remove the files that it no longer names, so nothing was touched: restore a \
                        snapshot, or remove the directory and load again";

fn damaged(path: &Path, bytes: u64, known_bytes: u64) -> Error {
    Error::new(
        ErrorKind::DataDamaged,
        format!(
            "RocksDB's manifest is cut or damaged: file={} whole_bytes={bytes} known_bytes={known_bytes}: {WAYS_OUT}",
            path.display()
        ),
    )
}

fn older(path: &Path, known: &Path) -> Error {
    Error::new(
        ErrorKind::DataDamaged,
        format!(
            "RocksDB's {CURRENT} names an older manifest: file={} known={}: {WAYS_OUT}",
            path.display(),
            known.display()
        ),
    )
}

/// Returns the recorded length; `None` if nothing was recorded, or the record cannot be understood.
fn remembered(dir: &Path) -> io::Result<Option<Known>> {
    let text = match fs::read_to_string(dir.join(FILE)) {
        Ok(text) => text,
        Err(e) if [Io::NotFound, Io::InvalidData].contains(&e.kind()) => return Ok(None),
        Err(e) => return Err(e),
    };
    let parse = || {
        let (known, checksum) = text.trim_end().rsplit_once(' ')?;
        let (name, bytes) = known.split_once(' ')?;
        let sound = u32::from_str_radix(checksum, 16) == Ok(crc32c::crc32c(known.as_bytes()));
        let known = Known { number: name.strip_prefix(PREFIX)?.parse().ok()?, bytes: bytes.parse().ok()? };
        sound.then_some(known)
    };
    Ok(parse())
}

/// Flushes the manifest up to its last whole record, and then records that length. Sets `failed` if a flush fails.
fn keep(dir: &Path, known: Known, failed: &mut bool) -> io::Result<Known> {
    let (number, mut file) = open_current(dir)?;
    let from = if number == known.number { known.bytes } else { 0 };
    let now = Known { number, bytes: frame::read(&mut file, from, &mut |_| {})? };
    if now == known && dir.join(FILE).exists() {
        return Ok(known);
    }
    // RocksDB may be about to write or flush the records that were just read.
    file.sync_data().inspect_err(|_| *failed = true)?;
    let text = format!("{PREFIX}{number:06} {}", now.bytes);
    let mut temporary = File::create(dir.join(TEMPORARY))?;
    writeln!(temporary, "{text} {:08x}", crc32c::crc32c(text.as_bytes()))?;
    temporary.sync_all().inspect_err(|_| *failed = true)?;
    // The rename need not be durable, because the older length holds as well.
    fs::rename(dir.join(TEMPORARY), dir.join(FILE))?;
    Ok(now)
}

/// Opens the current manifest, which RocksDB may replace meanwhile.
fn open_current(dir: &Path) -> io::Result<(u64, File)> {
    loop {
        let number = current(dir)?;
        match File::open(path_of(dir, number)) {
            Ok(file) => return Ok((number, file)),
            Err(e) if e.kind() == Io::NotFound && current(dir)? != number => {}
            Err(e) => return Err(e),
        }
    }
}
