//! The WAL: one record a batch, each with its checkpoint and a checksum, in files of their own.
//!
//! Owns: its bytes (FORMAT.md, "WAL"), writing at the end, replaying from the start. Must not: know the memtable.
//!
//! Files are overwritten in place once their memtable is in a run: the device's metadata does not change then, and a
//! flush is one write. What an older use left behind is told from a record by the file's number in it.

use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result, Value};

use crate::file::shown;
use crate::storage::{Storage, StorageFile};

pub(crate) const HEADER_BYTES: usize = 32;
const OP_BYTES: usize = 65;
const PUT: u8 = 1;
const DELETE: u8 = 2;
/// The longest record that is believed: a length beyond it is a torn header.
const RECORD_BYTES_MAX: u64 = 2 << 30;

/// A WAL file that is being written.
pub(crate) struct Wal {
    file: Arc<dyn StorageFile>,
    shown: String,
    id: u64,
    offset: u64,
    buffer: Vec<u8>,
}

/// A batch as it was written.
pub(crate) struct Batch {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) ops: Vec<(Key, Option<Value>)>,
}

/// The name of a WAL file.
pub(crate) fn name(id: u64) -> String {
    format!("{id:012}.wal")
}

impl Wal {
    /// A new file, or `spare` under a new name.
    pub(crate) fn create(storage: &dyn Storage, id: u64, spare: Option<String>) -> Result<Self> {
        let own = name(id);
        let make = || {
            let file = match &spare {
                Some(spare) => {
                    storage.rename(spare, &own)?;
                    storage.open_write(&own)?
                }
                None => storage.create(&own)?,
            };
            storage.sync_dir()?;
            std::io::Result::Ok(file)
        };
        let shown = shown(storage, &own);
        let file = make().map_err(|e| Error::io(format!("cannot create file={shown} reason={e}"), e))?;
        Ok(Self { file, shown, id, offset: 0, buffer: Vec::new() })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Appends a batch, not flushed. After an error the record is not there: the next one takes its place.
    pub(crate) fn append(&mut self, batch: u64, checkpoint: &Checkpoint, ops: &[(Key, Option<Value>)]) -> Result<()> {
        encode(&mut self.buffer, self.id, batch, checkpoint, ops);
        self.file
            .write_at(&self.buffer, self.offset)
            .map_err(|e| Error::io(format!("cannot write file={} offset={} reason={e}", self.shown, self.offset), e))?;
        self.offset += self.buffer.len() as u64;
        Ok(())
    }

    /// Flushes what was appended. Never tried again: see [`ErrorKind::Reopen`].
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| {
            Error::with_source(ErrorKind::Reopen, format!("cannot flush file={} reason={e}", self.shown), e)
        })
    }
}

/// Replays the batches of a WAL file, the first of which is `next`, up to the first that is not whole or not the next.
pub(crate) fn replay(
    storage: &dyn Storage,
    id: u64,
    next: u64,
    take: impl FnMut(u64, Batch) -> Result<()>,
) -> Result<u64> {
    let shown = shown(storage, &name(id));
    let opened = storage.open(&name(id), false);
    let file = opened.map_err(|e| Error::io(format!("cannot read file={shown} reason={e}"), e))?;
    replay_file(&*file, &shown, id, next, take)
}

/// The same on an open file.
pub(crate) fn replay_file(
    file: &dyn StorageFile,
    shown: &str,
    id: u64,
    mut next: u64,
    mut take: impl FnMut(u64, Batch) -> Result<()>,
) -> Result<u64> {
    let cannot_read = |e| Error::io(format!("cannot read file={shown} reason={e}"), e);
    let length = file.len_bytes().map_err(cannot_read)?;
    let mut offset = 0;
    let mut bytes = Vec::new();
    while offset + HEADER_BYTES as u64 <= length {
        let mut header = [0; HEADER_BYTES];
        file.read_at(&mut header, offset).map_err(cannot_read)?;
        let body = u64::from(u32::from_le_bytes(std::array::from_fn(|i| header[4 + i])));
        if body > RECORD_BYTES_MAX || offset + HEADER_BYTES as u64 + body > length {
            break;
        }
        bytes.clear();
        bytes.extend_from_slice(&header);
        bytes.resize(HEADER_BYTES + body as usize, 0);
        file.read_at(&mut bytes[HEADER_BYTES..], offset + HEADER_BYTES as u64).map_err(cannot_read)?;
        let Some(batch) = decode(&bytes, id, next) else { break };
        take(next, batch)?;
        next += 1;
        offset += bytes.len() as u64;
    }
    Ok(next)
}

/// Puts the record of a batch into `out`.
pub(crate) fn encode(out: &mut Vec<u8>, id: u64, batch: u64, checkpoint: &Checkpoint, ops: &[(Key, Option<Value>)]) {
    out.clear();
    out.extend_from_slice(&[0; 4]);
    let body = Checkpoint::BYTES + ops.len() * OP_BYTES;
    out.extend_from_slice(&(body as u32).to_le_bytes());
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&batch.to_le_bytes());
    out.extend_from_slice(&(ops.len() as u64).to_le_bytes());
    out.extend_from_slice(&checkpoint.encode());
    for (key, value) in ops {
        out.push(if value.is_some() { PUT } else { DELETE });
        out.extend_from_slice(key);
        out.extend_from_slice(&value.unwrap_or([0; 32]));
    }
    let crc = crc32c::crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The batch, if these bytes are batch `number` of file `id`.
fn decode(bytes: &[u8], id: u64, number: u64) -> Option<Batch> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let crc = u32::from_le_bytes(*bytes.first_chunk()?);
    if crc != crc32c::crc32c(&bytes[4..]) || word(8)? != id || word(16)? != number {
        return None;
    }
    let body = &bytes[HEADER_BYTES..];
    let (checkpoint, ops) = body.split_at_checked(Checkpoint::BYTES)?;
    if ops.len() as u64 != word(24)?.checked_mul(OP_BYTES as u64)? {
        return None;
    }
    let op = |op: &[u8]| {
        let key = op[1..33].first_chunk().copied()?;
        match op[0] {
            PUT => Some((key, Some(op[33..65].first_chunk().copied()?))),
            DELETE => Some((key, None)),
            _ => None,
        }
    };
    let ops = ops.chunks_exact(OP_BYTES).map(op).collect::<Option<Vec<_>>>()?;
    Some(Batch { checkpoint: Checkpoint::decode(checkpoint).ok()?, ops })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::storage::DirStorage;

    /// Replays `bytes` as if they were file `id`.
    fn replayed(bytes: &[u8], id: u64, next: u64) -> (u64, Vec<usize>) {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(name(id)), bytes).expect("written");
        let storage = DirStorage::open(dir.path()).expect("opened");
        let mut seen = Vec::new();
        let end = replay(&storage, id, next, |_, batch| {
            seen.push(batch.ops.len());
            Ok(())
        });
        (end.expect("readable"), seen)
    }

    #[test]
    fn replay_ends_at_the_first_record_that_is_not_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut wal = Wal::create(&DirStorage::open(dir.path()).expect("opened"), 3, None).expect("created");
        let ops = |n: usize| (0..n).map(|i| ([i as u8; 32], (i % 2 == 0).then_some([7; 32]))).collect::<Vec<_>>();
        let mut ends = Vec::new();
        for n in 1..5 {
            wal.append(10 + n as u64, &Checkpoint::default(), &ops(n)).expect("written");
            ends.push(wal.bytes());
        }
        let whole = fs::read(dir.path().join(name(3))).expect("readable");
        assert_eq!(replayed(&whole, 3, 11), (15, vec![1, 2, 3, 4]));
        assert_eq!(replayed(&whole, 3, 12), (12, vec![]), "another number is not the next");
        assert_eq!(replayed(&whole, 4, 11), (11, vec![]), "another file's records are not its own");
        for cut in 0..whole.len() {
            let expected = ends.iter().filter(|end| **end <= cut as u64).count();
            assert_eq!(replayed(&whole[..cut], 3, 11).1.len(), expected, "cut={cut}");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x10;
            let before = ends.iter().filter(|end| **end <= at as u64).count();
            assert_eq!(replayed(&flipped, 3, 11).1.len(), before, "byte={at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_batch_or_nothing(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&bytes, 1, 1);
            if bytes.len() >= HEADER_BYTES {
                bytes[8..16].copy_from_slice(&1u64.to_le_bytes());
                bytes[16..24].copy_from_slice(&1u64.to_le_bytes());
                let crc = crc32c::crc32c(&bytes[4..]);
                bytes[..4].copy_from_slice(&crc.to_le_bytes());
                let _ = decode(&bytes, 1, 1);
            }
        }
    }
}
