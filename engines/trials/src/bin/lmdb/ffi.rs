//! LMDB as a C library, the few calls that the program needs, and an environment over them.
//!
//! Owns: every call of C. The declarations hold for 0.9.x and for the development branch alike. Used from one thread.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use anyhow::{Result, bail};
#[cfg(feature = "lmdb-master")]
use lmdb_master_sys as _;
#[cfg(feature = "lmdb-rkv")]
use lmdb_sys as _;
use solkv_engine_trials::Bytes32;

#[cfg(not(any(feature = "lmdb-rkv", feature = "lmdb-master", feature = "lmdb-source")))]
compile_error!("choose an LMDB: --features lmdb-rkv, lmdb-master or lmdb-source");

/// Flags of `mdb_env_open` and `mdb_env_set_flags`.
pub(crate) const NOSYNC: c_uint = 0x1_0000;
pub(crate) const RDONLY: c_uint = 0x2_0000;
pub(crate) const NOMETASYNC: c_uint = 0x4_0000;
pub(crate) const WRITEMAP: c_uint = 0x8_0000;
pub(crate) const MAPASYNC: c_uint = 0x10_0000;
pub(crate) const NOTLS: c_uint = 0x20_0000;
pub(crate) const NOLOCK: c_uint = 0x40_0000;
pub(crate) const NORDAHEAD: c_uint = 0x80_0000;
pub(crate) const NOMEMINIT: c_uint = 0x100_0000;
/// Flag of `mdb_dbi_open`: creates the table if it is missing.
const CREATE: c_uint = 0x4_0000;
/// Flags of `mdb_dbi_open`: a key has many values, all of one size.
const DUPSORT: c_uint = 0x04;
const DUPFIXED: c_uint = 0x10;
/// Flags of `mdb_put` and `mdb_cursor_put`.
const RESERVE: c_uint = 0x1_0000;
const APPEND: c_uint = 0x2_0000;
const APPENDDUP: c_uint = 0x4_0000;
const NOTFOUND: c_int = -30798;
/// Operations of `mdb_cursor_get`, by the numbers of LMDB's `MDB_cursor_op`.
const FIRST: c_uint = 0;
const GET_BOTH_RANGE: c_uint = 3;
const NEXT: c_uint = 8;
/// Bytes of a key that are the key of its duplicates.
const PREFIX: usize = 2;

#[repr(C)]
struct Val {
    size: usize,
    data: *mut c_void,
}

/// The figures of an environment, which LMDB calls `MDB_envinfo`.
#[repr(C)]
struct Info {
    address: *mut c_void,
    map_bytes: usize,
    last_page: usize,
    last_txn: usize,
    readers_max: c_uint,
    readers: c_uint,
}

impl Default for Info {
    fn default() -> Self {
        Self { address: ptr::null_mut(), map_bytes: 0, last_page: 0, last_txn: 0, readers_max: 0, readers: 0 }
    }
}

/// The figures of a table, which LMDB calls `MDB_stat`.
#[repr(C)]
#[derive(Default)]
struct Stat {
    page_bytes: c_uint,
    depth: c_uint,
    branch_pages: usize,
    leaf_pages: usize,
    overflow_pages: usize,
    entries: usize,
}

#[repr(C)]
struct RawEnv([u8; 0]);
#[repr(C)]
struct RawTxn([u8; 0]);
#[repr(C)]
struct RawCursor([u8; 0]);

unsafe extern "C" {
    fn mdb_version(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) -> *const c_char;
    fn mdb_strerror(code: c_int) -> *const c_char;
    fn mdb_env_create(env: *mut *mut RawEnv) -> c_int;
    fn mdb_env_open(env: *mut RawEnv, path: *const c_char, flags: c_uint, mode: libc::mode_t) -> c_int;
    fn mdb_env_sync(env: *mut RawEnv, force: c_int) -> c_int;
    fn mdb_env_close(env: *mut RawEnv);
    fn mdb_env_info(env: *mut RawEnv, info: *mut Info) -> c_int;
    fn mdb_env_set_mapsize(env: *mut RawEnv, bytes: usize) -> c_int;
    fn mdb_env_set_maxdbs(env: *mut RawEnv, tables: c_uint) -> c_int;
    fn mdb_txn_begin(env: *mut RawEnv, parent: *mut RawTxn, flags: c_uint, txn: *mut *mut RawTxn) -> c_int;
    fn mdb_txn_commit(txn: *mut RawTxn) -> c_int;
    fn mdb_txn_abort(txn: *mut RawTxn);
    fn mdb_dbi_open(txn: *mut RawTxn, name: *const c_char, flags: c_uint, table: *mut c_uint) -> c_int;
    fn mdb_stat(txn: *mut RawTxn, table: c_uint, stat: *mut Stat) -> c_int;
    fn mdb_set_compare(
        txn: *mut RawTxn,
        table: c_uint,
        compare: unsafe extern "C" fn(*const Val, *const Val) -> c_int,
    ) -> c_int;
    fn mdb_get(txn: *mut RawTxn, table: c_uint, key: *mut Val, value: *mut Val) -> c_int;
    fn mdb_put(txn: *mut RawTxn, table: c_uint, key: *mut Val, value: *mut Val, flags: c_uint) -> c_int;
    fn mdb_cursor_open(txn: *mut RawTxn, table: c_uint, cursor: *mut *mut RawCursor) -> c_int;
    fn mdb_cursor_close(cursor: *mut RawCursor);
    fn mdb_cursor_get(cursor: *mut RawCursor, key: *mut Val, value: *mut Val, step: c_uint) -> c_int;
    fn mdb_cursor_put(cursor: *mut RawCursor, key: *mut Val, value: *mut Val, flags: c_uint) -> c_int;
}

fn check(code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: LMDB returns a C string that is never freed, whatever the code.
    let text = unsafe { CStr::from_ptr(mdb_strerror(code)) };
    bail!("LMDB failed: {}", text.to_string_lossy())
}

/// Compares two keys by words in place of bytes. A key of another length, such as the name of a table, is compared as
/// LMDB does.
unsafe extern "C" fn compare_words(left: *const Val, right: *const Val) -> c_int {
    // SAFETY: LMDB gives two values whose bytes are there for the call.
    let (left, right) = unsafe {
        let bytes = |of: *const Val| std::slice::from_raw_parts((*of).data.cast::<u8>(), (*of).size);
        (bytes(left), bytes(right))
    };
    let word = |of: &[u8]| of.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    (word(left).cmp(&word(right)).then_with(|| left.cmp(right))) as c_int
}

fn val(bytes: &[u8]) -> Val {
    Val { size: bytes.len(), data: bytes.as_ptr().cast_mut().cast() }
}

/// The version that is linked.
pub(crate) fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three places for the three numbers.
    unsafe { mdb_version(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("{major}.{minor}.{patch}")
}

/// How a pair is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum How {
    /// `mdb_put`, as the engine does.
    Put,
    /// `mdb_put` with `MDB_RESERVE`: the value is written where it stays.
    Reserve,
    /// `mdb_cursor_put` through one cursor for the whole commit.
    Cursor,
    /// `mdb_cursor_put` with `MDB_APPEND`: the keys ascend and are greater than all others.
    Append,
}

/// An open environment with the engine's table of pairs.
pub(crate) struct Env {
    env: *mut RawEnv,
    pairs: c_uint,
}

impl Env {
    pub(crate) fn open(dir: &Path, flags: c_uint, map_bytes: usize) -> Result<Self> {
        Self::open_table(dir, flags, map_bytes, 0)
    }

    /// Opens an environment whose table has the pairs as duplicates of [`PREFIX`].
    pub(crate) fn open_dups(dir: &Path, flags: c_uint, map_bytes: usize) -> Result<Self> {
        Self::open_table(dir, flags, map_bytes, DUPSORT | DUPFIXED)
    }

    fn open_table(dir: &Path, flags: c_uint, map_bytes: usize, table: c_uint) -> Result<Self> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let mut env = ptr::null_mut();
        // SAFETY: a place for the new environment.
        check(unsafe { mdb_env_create(&raw mut env) })?;
        let mut opened = Self { env, pairs: 0 };
        // SAFETY: the environment was created and is not open yet.
        check(unsafe { mdb_env_set_mapsize(env, map_bytes) })?;
        // SAFETY: as above.
        check(unsafe { mdb_env_set_maxdbs(env, 2) })?;
        // SAFETY: as above; `path` outlives the call.
        check(unsafe { mdb_env_open(env, path.as_ptr(), flags, 0o600) })?;
        let read_only = flags & RDONLY;
        let txn = opened.begin(read_only)?;
        let create = if read_only == 0 { CREATE } else { 0 };
        let mut pairs = 0;
        // SAFETY: the transaction is open, and the only one.
        check(unsafe { mdb_dbi_open(txn.txn, c"pairs".as_ptr(), create | table, &raw mut pairs) })?;
        txn.commit()?;
        opened.pairs = pairs;
        Ok(opened)
    }

    pub(crate) fn read(&self) -> Result<Txn<'_>> {
        self.begin(RDONLY)
    }

    pub(crate) fn write(&self) -> Result<Txn<'_>> {
        self.begin(0)
    }

    /// Flushes everything, whatever the flags.
    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: the environment is open.
        check(unsafe { mdb_env_sync(self.env, 1) })
    }

    fn begin(&self, flags: c_uint) -> Result<Txn<'_>> {
        let mut txn = ptr::null_mut();
        // SAFETY: the environment is open, and this program has one write transaction at a time.
        check(unsafe { mdb_txn_begin(self.env, ptr::null_mut(), flags, &raw mut txn) })?;
        Ok(Txn { env: self, txn })
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        // SAFETY: every transaction borrows from the environment, so none is left.
        unsafe { mdb_env_close(self.env) };
    }
}

/// An open transaction, which is aborted on drop.
pub(crate) struct Txn<'e> {
    env: &'e Env,
    txn: *mut RawTxn,
}

impl Txn<'_> {
    /// Whether the key is there. Reads its value.
    pub(crate) fn get(&self, key: &Bytes32) -> Result<bool> {
        let (mut key, mut value) = (val(key), val(&[]));
        // SAFETY: the transaction is open; LMDB only reads the key.
        match unsafe { mdb_get(self.txn, self.env.pairs, &raw mut key, &raw mut value) } {
            NOTFOUND => Ok(false),
            code => {
                check(code)?;
                // SAFETY: LMDB says that so many bytes are there, until the transaction ends.
                let bytes = unsafe { std::slice::from_raw_parts(value.data.cast::<u8>(), value.size) };
                std::hint::black_box(bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
                Ok(true)
            }
        }
    }

    /// Whether the pair is there, in a table of duplicates.
    pub(crate) fn get_dup(&self, key: &Bytes32) -> Result<bool> {
        let cursor = self.cursor()?;
        let (prefix, rest) = key.split_at(PREFIX);
        let (mut name, mut value) = (val(prefix), val(rest));
        // SAFETY: the cursor is open; LMDB only reads the bytes it is given.
        match unsafe { mdb_cursor_get(cursor.cursor, &raw mut name, &raw mut value, GET_BOTH_RANGE) } {
            NOTFOUND => Ok(false),
            code => {
                check(code)?;
                // SAFETY: LMDB says that so many bytes are there, until the transaction ends.
                let bytes = unsafe { std::slice::from_raw_parts(value.data.cast::<u8>(), value.size) };
                std::hint::black_box(bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
                Ok(bytes.starts_with(rest))
            }
        }
    }

    /// Appends a pair to a table of duplicates.
    pub(crate) fn append_dup(&self, key: &Bytes32, value: &Bytes32) -> Result<()> {
        let (prefix, rest) = key.split_at(PREFIX);
        let pair = [rest, value].concat();
        let (mut name, mut value) = (val(prefix), val(&pair));
        // SAFETY: the transaction is open, and both values outlive the call.
        check(unsafe { mdb_put(self.txn, self.env.pairs, &raw mut name, &raw mut value, APPENDDUP) })
    }

    /// Gives LMDB a comparison that is made for keys of 32 bytes.
    pub(crate) fn compare_words(&self) -> Result<()> {
        // SAFETY: the transaction is open, and its table was not read before. The comparison has the order of LMDB's own.
        check(unsafe { mdb_set_compare(self.txn, self.env.pairs, compare_words) })
    }

    /// Returns the bytes of the file that are in use for each pair.
    pub(crate) fn bytes_a_pair(&self) -> Result<f64> {
        let mut stat = Stat::default();
        // SAFETY: the transaction is open; a place for the figures.
        check(unsafe { mdb_stat(self.txn, self.env.pairs, &raw mut stat) })?;
        let mut info = Info::default();
        // SAFETY: the environment is open; a place for the figures.
        check(unsafe { mdb_env_info(self.env.env, &raw mut info) })?;
        Ok((info.last_page + 1) as f64 * f64::from(stat.page_bytes) / stat.entries as f64)
    }

    /// Puts each key, with itself as the value.
    pub(crate) fn put_all(&mut self, keys: &[Bytes32], how: How) -> Result<()> {
        let cursor = match how {
            How::Put | How::Reserve => None,
            How::Cursor | How::Append => Some(self.cursor()?),
        };
        for key in keys {
            let (mut name, mut value) = (val(key), val(key));
            match &cursor {
                Some(cursor) => {
                    let flags = if how == How::Append { APPEND } else { 0 };
                    // SAFETY: the cursor's transaction is open, and both values outlive the call.
                    check(unsafe { mdb_cursor_put(cursor.cursor, &raw mut name, &raw mut value, flags) })?;
                }
                None => {
                    let flags = if how == How::Reserve { RESERVE } else { 0 };
                    // SAFETY: as above.
                    check(unsafe { mdb_put(self.txn, self.env.pairs, &raw mut name, &raw mut value, flags) })?;
                    if how == How::Reserve {
                        // SAFETY: LMDB has made room for a value of this length at this place, until the next put.
                        unsafe { ptr::copy_nonoverlapping(key.as_ptr(), value.data.cast(), key.len()) };
                    }
                }
            }
        }
        Ok(())
    }

    /// Visits every pair in key order.
    pub(crate) fn scan(&self, mut visit: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let cursor = self.cursor()?;
        let mut step = FIRST;
        loop {
            let (mut key, mut value) = (val(&[]), val(&[]));
            // SAFETY: the cursor is open, with places for what it finds.
            match unsafe { mdb_cursor_get(cursor.cursor, &raw mut key, &raw mut value, step) } {
                NOTFOUND => return Ok(()),
                code => check(code)?,
            }
            // SAFETY: LMDB says that so many bytes are there, until the transaction ends.
            let bytes = |of: &Val| unsafe { std::slice::from_raw_parts(of.data.cast::<u8>(), of.size) };
            visit(bytes(&key), bytes(&value));
            step = NEXT;
        }
    }

    pub(crate) fn commit(self) -> Result<()> {
        let txn = self.txn;
        std::mem::forget(self);
        // SAFETY: the transaction is open, and forgotten above, so that nothing ends it twice.
        check(unsafe { mdb_txn_commit(txn) })
    }

    fn cursor(&self) -> Result<Cursor<'_>> {
        let mut cursor = ptr::null_mut();
        // SAFETY: the transaction is open.
        check(unsafe { mdb_cursor_open(self.txn, self.env.pairs, &raw mut cursor) })?;
        Ok(Cursor { cursor, _txn: self })
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is open: `commit` forgets it.
        unsafe { mdb_txn_abort(self.txn) };
    }
}

struct Cursor<'t> {
    cursor: *mut RawCursor,
    _txn: &'t Txn<'t>,
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: the cursor is open, and so is its transaction, which it borrows.
        unsafe { mdb_cursor_close(self.cursor) };
    }
}
