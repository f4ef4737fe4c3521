//! The WAL: one record a batch, with its checkpoint and a checksum, in a sequence of files.
//!
//! Owns: its bytes (FORMAT.md, "WAL"), appending, and replay from the start. Must not: know the memtable.
//!
//! A file is overwritten in place once its memtable is in a run. The file system's metadata does not change then, so a
//! flush is one write. Records of an earlier use are told apart by the file's salt. Every record of this use has the
//! salt, and nobody who only chooses keys and values can know it.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result, Value};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::file::{io_error, shown};
use crate::format::secret::{SALT_BYTES, Salt, WalKey};
use crate::storage::{Storage, StorageFile};

/// Header of a record. The checkpoint and the operations follow it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    /// CRC32C of the rest of the record.
    crc: U32,
    /// Number of bytes that follow this header.
    body_bytes: U32,
    /// Salt of this use of the file.
    salt: Salt,
    /// Number of the WAL file.
    file: U64,
    /// Number of the batch, consecutive over all files.
    batch: U64,
    /// The last batch that was durable when this record was written.
    flushed: U64,
    ops: U64,
}

/// One change of a batch.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Op {
    kind: u8,
    key: Key,
    value: Value,
}

/// Range of a checkpoint's encoded length, which the checkpoint itself states.
const CHECKPOINT_BYTES: RangeInclusive<u64> = Checkpoint::ENCODED_MIN as u64..=Checkpoint::ENCODED_MAX as u64;
pub(crate) const HEADER_BYTES: usize = size_of::<Header>();
const OP_BYTES: usize = size_of::<Op>();
const SALT_AT: usize = offset_of!(Header, salt);
const PUT: u8 = 1;
const DELETE: u8 = 2;
/// Largest number of changes in a batch: as many as the largest memtable holds, 65 MiB in the WAL.
pub(crate) const BATCH_OPS_MAX: usize = 1 << 20;
/// Longest body that is believed. A greater length means a torn header.
const BODY_BYTES_MAX: usize = Checkpoint::ENCODED_MAX + BATCH_OPS_MAX * OP_BYTES;
/// Largest record buffer that is kept for the next record. A larger one is freed, because no budget counts it.
const BUFFER_KEPT_BYTES: usize = 1 << 20;
/// Number of bytes read at once while searching for a later record.
const SEARCH_BYTES: usize = 1 << 20;

const _: () = {
    assert!(BODY_BYTES_MAX <= u32::MAX as usize);
    assert!(HEADER_BYTES == 56 && OP_BYTES == 65 && SALT_AT == 8 && offset_of!(Header, file) == 24);
    assert!(offset_of!(Header, batch) == 32 && offset_of!(Header, flushed) == 40 && offset_of!(Header, ops) == 48);
};

/// A WAL file that is being written.
pub(crate) struct Wal {
    file: Arc<dyn StorageFile>,
    shown: String,
    id: u64,
    salt: Salt,
    offset: u64,
    buffer: Vec<u8>,
    /// Length of the last record in bytes.
    last_bytes: u64,
    /// Number of the last batch that was appended.
    last: u64,
    /// Number of the last batch that is durable.
    flushed: u64,
}

/// A batch as the WAL holds it.
pub(crate) struct Batch {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) ops: Vec<(Key, Option<Value>)>,
}

/// How far a replay of the WAL has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of the batch that comes next.
    pub(crate) next: u64,
    /// End of the file that was replayed before it; `None` if the runs end before it.
    pub(crate) end: Option<End>,
}

impl Position {
    /// The position after `batch`, which is in the runs.
    pub(crate) fn behind(batch: u64) -> Self {
        Self { next: batch + 1, end: None }
    }
}

/// End of a file that was replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    file: String,
    /// Offset after the last whole record.
    offset: u64,
    /// Offset of the first record that may exist only in the page cache: no later record confirms that it was flushed.
    unsure: u64,
}

/// One use of a WAL file: the salt of its records, and the file's number during that use.
pub(crate) type Use<'a> = (&'a Salt, u64);

/// Returns the name of WAL file `id`.
pub(crate) fn name(id: u64) -> String {
    format!("{id:012}.wal")
}

impl Wal {
    /// Creates a new file, or renames `spare` and overwrites it. Every batch up to `flushed` must be durable elsewhere.
    pub(crate) fn create(
        storage: &dyn Storage,
        key: &WalKey,
        id: u64,
        spare: Option<&str>,
        flushed: u64,
    ) -> Result<Self> {
        let own = name(id);
        let shown = shown(storage, &own);
        let message = |e: &std::io::Error| format!("cannot create file={shown} reason={e}");
        let opened = match spare {
            Some(spare) => storage.open_write(spare),
            None => storage.create(&own),
        };
        // Nothing is changed yet, so a temporary shortage may be retried.
        let file = opened.map_err(|e| io_error(message(&e), e))?;
        spare.map_or(Ok(()), |spare| storage.rename(spare, &own)).map_err(|e| Error::io(message(&e), e))?;
        // The name may or may not be durable, whatever the reason, and a flush is not tried again.
        storage.sync_dir().map_err(|e| Error::with_source(ErrorKind::Reopen, message(&e), e))?;
        Ok(Self {
            file,
            shown,
            id,
            salt: key.salt(id),
            offset: 0,
            buffer: Vec::new(),
            last_bytes: 0,
            last: flushed,
            flushed,
        })
    }

    /// Raises the last batch that is durable elsewhere, for a file that was created before those batches were.
    pub(crate) fn begin_behind(&mut self, flushed: u64) {
        (self.last, self.flushed) = (flushed, flushed);
    }

    /// Returns a handle to the file, so that another thread can ask the device to write its bytes.
    pub(crate) fn file(&self) -> Arc<dyn StorageFile> {
        Arc::clone(&self.file)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Number of bytes appended so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Appends a batch without flushing it. After an error the record does not count: the next one takes its place.
    pub(crate) fn append(&mut self, batch: u64, checkpoint: &Checkpoint, ops: &[(Key, Option<Value>)]) -> Result<()> {
        encode(&mut self.buffer, (&self.salt, self.id), (batch, self.flushed), checkpoint, ops)?;
        self.file
            .write_at(&self.buffer, self.offset)
            .map_err(|e| Error::io(format!("cannot write file={} offset={} reason={e}", self.shown, self.offset), e))?;
        self.last_bytes = self.buffer.len() as u64;
        self.offset += self.last_bytes;
        self.last = batch;
        if self.buffer.capacity() > BUFFER_KEPT_BYTES {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    /// Length of the last record in bytes.
    pub(crate) fn last_bytes(&self) -> u64 {
        self.last_bytes
    }

    /// Flushes everything appended since the last flush, and asks the device for nothing if there is nothing. A failed
    /// flush is never tried again: see [`ErrorKind::Reopen`].
    pub(crate) fn sync(&mut self) -> Result<()> {
        if self.flushed == self.last {
            return Ok(());
        }
        self.file.sync_data().map_err(|e| {
            Error::with_source(ErrorKind::Reopen, format!("cannot flush file={} reason={e}", self.shown), e)
        })?;
        self.flushed = self.last;
        Ok(())
    }
}

/// Refuses a batch with so many changes that replay would not believe its record.
///
/// # Errors
/// `FixInput`: the batch has more than [`BATCH_OPS_MAX`] changes.
pub(crate) fn refuse_too_large(ops: usize) -> Result<()> {
    if ops <= BATCH_OPS_MAX {
        return Ok(());
    }
    let message = format!("batch is too large: ops={ops} ops_max={BATCH_OPS_MAX}: commit it in parts");
    Err(Error::new(ErrorKind::FixInput, message))
}

/// Whether a file belongs to another store: its first record is whole, but its salt is not the one that this store
/// gives a file of that number. Only a strata can have written the start of a file, whatever values strangers have
/// stored.
pub(crate) fn is_foreign(storage: &dyn Storage, key: &WalKey, id: u64) -> Result<bool> {
    let first = first(storage, id, |header| key.salt(header.file.get()) != header.salt)?;
    Ok(first.is_some())
}

/// Returns the number that a file of this store was written under, and its first batch, if the first record shows that
/// the file was renamed. `None` if the name is right or the record is of no use of this store.
pub(crate) fn is_misnamed(storage: &dyn Storage, key: &WalKey, id: u64) -> Result<Option<(u64, u64)>> {
    let first = first(storage, id, |header| header.file != id && key.salt(header.file.get()) == header.salt)?;
    Ok(first.map(|header| (header.file.get(), header.batch.get())))
}

/// Returns the salt and the first batch of file `id`, if the file begins with a whole record of that number.
pub(crate) fn begins_with(storage: &dyn Storage, id: u64) -> Result<Option<(Salt, u64)>> {
    let first = first(storage, id, |header| header.file == id)?;
    Ok(first.map(|header| (header.salt, header.batch.get())))
}

/// Whether a file has bytes but does not begin with a whole record of any store: damage, or a first record that was
/// being written.
pub(crate) fn begins_torn(storage: &dyn Storage, id: u64) -> Result<bool> {
    let failed = |e| io_error(format!("cannot read file={} reason={e}", shown(storage, &name(id))), e);
    let length = storage.open(&name(id), false).and_then(|file| file.len_bytes()).map_err(failed)?;
    Ok(length > 0 && first(storage, id, |_| true)?.is_none())
}

/// Returns the header of a file's first record, of any store and file, if `wanted` accepts it and the record is whole.
fn first(storage: &dyn Storage, id: u64, wanted: impl Fn(&Header) -> bool) -> Result<Option<Header>> {
    let read = || {
        let file = storage.open(&name(id), false)?;
        let length = file.len_bytes()?;
        let mut bytes = vec![0; HEADER_BYTES];
        if length < HEADER_BYTES as u64 {
            return Ok(None);
        }
        file.read_at(&mut bytes, 0)?;
        let header = Header::read_from_bytes(&bytes).ok().filter(wanted);
        let Some(header) = header else { return Ok(None) };
        read_record(&*file, 0, length, (&header.salt, header.file.get()), &mut bytes)
    };
    read().map_err(|e| io_error(format!("cannot read file={} reason={e}", shown(storage, &name(id))), e))
}

/// Upper bound on the number of changes, and so of memtable records, in a WAL file of this length.
pub(crate) fn records_max(length_bytes: u64) -> u64 {
    length_bytes / OP_BYTES as u64
}

/// Makes the replayed records of a file durable, up to `end`.
///
/// Records that an earlier process may have left unflushed, or whose flush has failed, are written once more. After a
/// failed flush the page cache still has them, takes them for durable, and would flush nothing.
pub(crate) fn flush(storage: &dyn Storage, id: u64, end: &End) -> Result<()> {
    let rewrite = || {
        let (from, to) = (storage.open(&name(id), false)?, storage.open_write(&name(id))?);
        let (mut at, mut bytes) = (end.unsure, Vec::new());
        while at < end.offset {
            bytes.resize(((end.offset - at) as usize).min(SEARCH_BYTES), 0);
            from.read_at(&mut bytes, at)?;
            to.write_at(&bytes, at)?;
            at += bytes.len() as u64;
        }
        to.sync_data()
    };
    rewrite().map_err(|e| Error::io(format!("cannot flush file={} reason={e}", shown(storage, &name(id))), e))
}

/// Replays the batches of a WAL file from this position up to the first record that is not whole, which was being
/// written when the process or the system ended.
///
/// # Errors
/// `DataDamaged` naming file and offset, if a later record shows that the missing batch was durable once; I/O errors of
/// reading; errors of `take`.
pub(crate) fn replay(
    storage: &dyn Storage,
    use_of: Use<'_>,
    from: Position,
    take: impl FnMut(u64, Batch) -> Result<()>,
) -> Result<Position> {
    let shown = shown(storage, &name(use_of.1));
    let opened = storage.open(&name(use_of.1), false);
    let file = opened.map_err(|e| io_error(format!("cannot read file={shown} reason={e}"), e))?;
    replay_file(&*file, &shown, use_of, from, take)
}

/// Replays the batches of an open file, as [`replay`] does.
///
/// # Errors
/// As [`replay`].
pub(crate) fn replay_file(
    file: &dyn StorageFile,
    shown: &str,
    use_of: Use<'_>,
    from: Position,
    mut take: impl FnMut(u64, Batch) -> Result<()>,
) -> Result<Position> {
    let cannot_read = |e| io_error(format!("cannot read file={shown} reason={e}"), e);
    let damaged = |file: &str, offset: u64, next: u64, why: String| {
        let message = format!("WAL is damaged: file={file} offset={offset} batch={next} was durable, as {why} shows");
        Error::new(ErrorKind::DataDamaged, message)
    };
    let mut next = from.next;
    let length = file.len_bytes().map_err(cannot_read)?;
    let mut offset = 0;
    let mut bytes = Vec::new();
    let mut unsure = VecDeque::new();
    loop {
        let Some(header) = read_record(file, offset, length, use_of, &mut bytes).map_err(cannot_read)? else { break };
        if offset == 0 && header.batch > next {
            // A file is begun only once every earlier batch is durable.
            let (file, end) = from.end.map_or((shown.to_owned(), 0), |end| (end.file, end.offset));
            return Err(damaged(&file, end, next, format!("batch={} at the start of file={shown}", header.batch)));
        }
        let Some(batch) = decode(&bytes).filter(|_| header.batch == next) else { break };
        take(next, batch)?;
        unsure.push_back((next, offset));
        while unsure.front().is_some_and(|(batch, _)| *batch <= header.flushed.get()) {
            unsure.pop_front();
        }
        next += 1;
        offset += bytes.len() as u64;
    }
    match find_later(file, (offset + 1, length), use_of, next).map_err(cannot_read)? {
        Some((at, batch)) => Err(damaged(shown, offset, next, format!("batch={batch} at offset={at}"))),
        None => {
            let unsure = unsure.front().map_or(offset, |(_, at)| *at);
            Ok(Position { next, end: Some(End { file: shown.to_owned(), offset, unsure }) })
        }
    }
}

/// Reads the record at `offset` into `bytes`. Returns its header if a whole record of this use is there.
fn read_record(
    file: &dyn StorageFile,
    offset: u64,
    length: u64,
    (salt, id): Use<'_>,
    bytes: &mut Vec<u8>,
) -> std::io::Result<Option<Header>> {
    if offset + HEADER_BYTES as u64 > length {
        return Ok(None);
    }
    bytes.resize(HEADER_BYTES, 0);
    file.read_at(bytes, offset)?;
    let Ok(header) = Header::read_from_bytes(bytes) else { return Ok(None) };
    if header.salt != *salt || header.file != id {
        return Ok(None);
    }
    let body = u64::from(header.body_bytes.get());
    let checkpoint = header.ops.get().checked_mul(OP_BYTES as u64).and_then(|ops| body.checked_sub(ops));
    if !checkpoint.is_some_and(|bytes| CHECKPOINT_BYTES.contains(&bytes))
        || body > BODY_BYTES_MAX as u64
        || offset + HEADER_BYTES as u64 + body > length
    {
        return Ok(None);
    }
    bytes.resize(HEADER_BYTES + body as usize, 0);
    file.read_at(&mut bytes[HEADER_BYTES..], offset + HEADER_BYTES as u64)?;
    Ok((header.crc == crc32c::crc32c(&bytes[4..])).then_some(header))
}

/// Searches these offsets for a whole record of this use that proves that batch `missing` was durable. Returns the
/// record's offset and batch.
fn find_later(
    file: &dyn StorageFile,
    (from, to): (u64, u64),
    use_of: Use<'_>,
    missing: u64,
) -> std::io::Result<Option<(u64, u64)>> {
    let wanted = use_of.0;
    let (mut at, mut window, mut record) = (from + SALT_AT as u64, Vec::new(), Vec::new());
    while at + SALT_BYTES as u64 <= to {
        window.resize(((to - at) as usize).min(SEARCH_BYTES), 0);
        file.read_at(&mut window, at)?;
        for (n, _) in window.windows(SALT_BYTES).enumerate().filter(|(_, bytes)| bytes == wanted) {
            let start = at + n as u64 - SALT_AT as u64;
            if let Some(header) = read_record(file, start, to, use_of, &mut record)?
                && header.batch > missing
                && header.flushed >= missing
            {
                return Ok(Some((start, header.batch.get())));
            }
        }
        at += (window.len() - (SALT_BYTES - 1)) as u64;
    }
    Ok(None)
}

/// Encodes the record of a batch into `out`. `flushed` is the last batch that is durable.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    (salt, file): Use<'_>,
    (batch, flushed): (u64, u64),
    checkpoint: &Checkpoint,
    ops: &[(Key, Option<Value>)],
) -> Result<()> {
    let checkpoint = checkpoint.encode()?;
    let header = Header {
        crc: U32::ZERO,
        body_bytes: ((checkpoint.len() + ops.len() * OP_BYTES) as u32).into(),
        salt: *salt,
        file: file.into(),
        batch: batch.into(),
        flushed: flushed.into(),
        ops: (ops.len() as u64).into(),
    };
    out.clear();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(&checkpoint);
    for (key, value) in ops {
        let kind = if value.is_some() { PUT } else { DELETE };
        out.extend_from_slice(Op { kind, key: *key, value: value.unwrap_or([0; 32]) }.as_bytes());
    }
    let crc = crc32c::crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Decodes a record whose checksum is right; `None` if its content is nothing that a writer writes.
fn decode(bytes: &[u8]) -> Option<Batch> {
    let (header, body) = Header::ref_from_prefix(bytes).ok()?;
    let (checkpoint, ops) = Checkpoint::decode_first(body).ok()?;
    let ops = <[Op]>::ref_from_bytes(ops).ok().filter(|ops| header.ops == ops.len() as u64)?;
    let change = |op: &Op| match op.kind {
        PUT => Some((op.key, Some(op.value))),
        DELETE => Some((op.key, None)),
        _ => None,
    };
    let ops = ops.iter().map(change).collect::<Option<Vec<_>>>()?;
    Some(Batch { checkpoint, ops })
}

#[cfg(test)]
#[path = "wal_tests.rs"]
mod tests;
