//! How much of RocksDB's manifest has to be there: remembered beside it, and compared before it is opened.
//!
//! Owns: the file `SOLKV-MANIFEST` in RocksDB's directory, and the reading of the manifest's frame. Must not: know what a
//! record of the manifest says, or change any file of RocksDB's. Runs on the thread that opens, loads or closes the
//! store, and on RocksDB's own threads after each flush and compaction.
//!
//! RocksDB takes the first record that is not whole for the manifest's end, because a crash can cut the newest one.
//! A manifest that the device has damaged looks the same, and the opening then removes every file that the lost records
//! named. What tells both apart is the length that was flushed once: up to there all records have to be whole.
//! RocksDB removes a log only after it has told of the flush, so the length is known before its pairs are in
//! sorted files alone.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::{Error, ErrorKind, Result};
use librocksdb_sys as ffi;
use parking_lot::Mutex;
use rocksdb::{AsRawPtr as _, Options};

const CURRENT: &str = "CURRENT";
const FILE: &str = "SOLKV-MANIFEST";
const TEMPORARY: &str = "SOLKV-MANIFEST.tmp";
const PREFIX: &str = "MANIFEST-";

/// The frame of RocksDB's logs: blocks of this length, which no fragment of a record crosses.
const BLOCK_BYTES: usize = 32 << 10;
/// Before each fragment: its checksum (4 bytes), its length (2), and which part of a record it is (1).
const HEADER_BYTES: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// A length of a manifest, up to which its records are whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    /// The number in the manifest's name.
    number: u64,
    bytes: u64,
}

/// Keeps the known length of the manifest in `dir`.
pub(crate) struct Keeper {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Known,
    /// A flush has failed, and is not tried again.
    failed: bool,
}

impl Keeper {
    /// Compares the manifest with what is known of it. Changes nothing.
    ///
    /// # Errors
    /// `DataDamaged` naming the file: opening the store would remove what is no longer named.
    pub(crate) fn check(dir: &Path) -> Result<Arc<Self>> {
        let path = dir.join(CURRENT);
        let state = match current(dir) {
            Ok(number) => State { known: compare(dir, number)?, failed: false },
            // A new store, or one of which RocksDB itself says what is wrong.
            Err(e) if [Io::NotFound, Io::NotADirectory, Io::InvalidData].contains(&e.kind()) => State::default(),
            Err(e) => return Err(Error::io(format!("cannot read file={} reason={e}", path.display()), e)),
        };
        Ok(Arc::new(Self { dir: dir.to_owned(), state: Mutex::new(state) }))
    }

    /// Flushes the manifest's whole records and remembers how far they go.
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

    /// Remembers the length in another directory, which holds a copy of the store that nobody has open.
    pub(crate) fn keep_copy(dir: &Path) -> Result<()> {
        Self { dir: dir.to_owned(), state: Mutex::default() }.keep()
    }

    /// Lets RocksDB call [`Keeper::keep`] after each flush, each compaction and each file that it takes in.
    pub(crate) fn listen(self: &Arc<Self>, options: &mut Options) {
        let state = Arc::into_raw(Arc::clone(self)).cast_mut().cast::<c_void>();
        // SAFETY: the callbacks and the destructor fit the state, which is an `Arc<Keeper>`. RocksDB calls the destructor
        // once, when the last copy of the options is gone. Every callback has to be there: RocksDB does not look.
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
    // SAFETY: `state` is what `listen` has made of an `Arc`, and is given back once.
    drop(unsafe { Arc::from_raw(state.cast::<Keeper>()) });
}

unsafe extern "C" fn keep_after<Info>(state: *mut c_void, _: *mut ffi::rocksdb_t, _: *const Info) {
    // SAFETY: `state` is what `listen` has made of an `Arc`, which is not given back while RocksDB calls.
    let keeper = unsafe { &*state.cast::<Keeper>() };
    // Nobody to tell: the older length holds as well, and the next load, settling or closing meets the same error.
    keeper.keep().ok();
}

unsafe extern "C" fn ignore<Info>(_: *mut c_void, _: *mut ffi::rocksdb_t, _: *const Info) {}

unsafe extern "C" fn ignore_part<Info>(_: *mut c_void, _: *const Info) {}

unsafe extern "C" fn ignore_error(_: *mut c_void, _: u32, _: *mut ffi::rocksdb_status_ptr_t) {}

/// The number of the manifest in force. `InvalidData` where `CURRENT` names none.
fn current(dir: &Path) -> io::Result<u64> {
    let text = fs::read(dir.join(CURRENT))?;
    let number = str::from_utf8(&text).ok().and_then(|text| text.trim_end().strip_prefix(PREFIX)?.parse().ok());
    number.ok_or_else(|| io::Error::from(Io::InvalidData))
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{number:06}"))
}

/// The length up to which the manifest is whole, if that is far enough.
fn compare(dir: &Path, number: u64) -> Result<Known> {
    let path = path_of(dir, number);
    let remembered = remembered(dir)
        .map_err(|e| Error::io(format!("cannot read file={} reason={e}", dir.join(FILE).display()), e))?;
    let found = File::open(&path).and_then(|mut file| Ok((whole_bytes(&mut file, 0)?, file.metadata()?.len())));
    let (bytes, file_bytes) = found.map_err(|e| match e.kind() {
        Io::NotFound => Error::new(
            ErrorKind::DataDamaged,
            format!(
                "RocksDB's manifest is missing: file={}: restore a snapshot, or load the store anew",
                path.display()
            ),
        ),
        _ => Error::io(format!("cannot read file={} reason={e}", path.display()), e),
    })?;
    let known_bytes = match remembered {
        // A crash came after a new manifest was begun and before its length was remembered.
        Some(known) if known.number < number => 0,
        Some(known) if known.number == number => known.bytes,
        Some(known) => return Err(older(&path, &path_of(dir, known.number))),
        // A store of an earlier version: there is no telling a crash from damage.
        None => file_bytes,
    };
    if bytes < known_bytes {
        return Err(damaged(&path, bytes, known_bytes));
    }
    Ok(Known { number, bytes })
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

/// The greatest length that was remembered; `None` where there is none, or it cannot be read.
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

/// Makes the manifest durable up to its last whole record, and then says so. `failed`: a flush has failed.
fn keep(dir: &Path, known: Known, failed: &mut bool) -> io::Result<Known> {
    let (number, mut file) = open_current(dir)?;
    let from = if number == known.number { known.bytes } else { 0 };
    let now = Known { number, bytes: whole_bytes(&mut file, from)? };
    if now == known && dir.join(FILE).exists() {
        return Ok(known);
    }
    // RocksDB may be in the middle of writing or flushing what was just read.
    file.sync_data().inspect_err(|_| *failed = true)?;
    let text = format!("{PREFIX}{number:06} {}", now.bytes);
    let mut temporary = File::create(dir.join(TEMPORARY))?;
    writeln!(temporary, "{text} {:08x}", crc32c::crc32c(text.as_bytes()))?;
    temporary.sync_all().inspect_err(|_| *failed = true)?;
    // Whether the new name lasts does not matter: the older length holds as well.
    fs::rename(dir.join(TEMPORARY), dir.join(FILE))?;
    Ok(now)
}

/// The manifest in force, which RocksDB may replace meanwhile.
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

/// Where the last whole record of `file` ends, from `from` on, where one has ended before.
fn whole_bytes(file: &mut File, from: u64) -> io::Result<u64> {
    let start = from - from % BLOCK_BYTES as u64;
    file.seek(SeekFrom::Start(start))?;
    let (mut end, mut open) = (from, false);
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    for number in 0u64.. {
        block.clear();
        (&mut *file).take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        let at = start + number * BLOCK_BYTES as u64;
        let skip = usize::try_from(from.saturating_sub(at)).unwrap_or(BLOCK_BYTES).min(block.len());
        let mut fragments = Fragments { block: &block, at: skip };
        while let Some(kind) = fragments.next_kind() {
            open = match (kind, open) {
                (FULL, false) | (LAST, true) => false,
                (FIRST, false) | (MIDDLE, true) => true,
                _ => return Ok(end),
            };
            if !open {
                end = at + fragments.at as u64;
            }
        }
        if block.len() < BLOCK_BYTES || !fragments.is_at_end() {
            break;
        }
    }
    Ok(end)
}

/// The fragments of a block, up to the first one that is not whole: which part of its record each one is.
struct Fragments<'b> {
    block: &'b [u8],
    at: usize,
}

impl Fragments<'_> {
    /// Whether all of a full block was read: what is too short for a header is zeros.
    fn is_at_end(&self) -> bool {
        let rest = &self.block[self.at..];
        rest.len() < HEADER_BYTES && rest.iter().all(|byte| *byte == 0)
    }

    /// Which part of its record the next fragment is. `None`: there is none, or it is not whole.
    fn next_kind(&mut self) -> Option<u8> {
        let (header, rest) = self.block.get(self.at..)?.split_first_chunk::<HEADER_BYTES>()?;
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let payload = rest.get(..length)?;
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[6..]), payload);
        // RocksDB stores a checksum masked.
        let masked = checksum.rotate_right(15).wrapping_add(0xa282_ead8);
        if u32::from_le_bytes([header[0], header[1], header[2], header[3]]) != masked {
            return None;
        }
        self.at += HEADER_BYTES + length;
        Some(header[6])
    }
}
