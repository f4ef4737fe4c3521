//! A file that redb may write to without changing it. Written blocks stay in memory and cover those of the file.
//!
//! Owns: the written blocks. Must not: write to the file. Threads share it by a lock, as redb demands of a backend.
//!
//! redb repairs a file whose writer was killed, and checks only a file that it may repair. Both rewrite headers and the
//! allocator's state but no page of pairs, so the written blocks stay few.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use parking_lot::RwLock;
use redb::StorageBackend;

/// Size in bytes of a written block.
const BLOCK_BYTES: usize = 4096;

type Block = Box<[u8; BLOCK_BYTES]>;

#[derive(Debug)]
pub(crate) struct Shadow {
    file: File,
    /// Length of the file at opening. Bytes past it come from written blocks, or are zeros.
    file_bytes: u64,
    written: RwLock<Written>,
}

#[derive(Debug)]
struct Written {
    bytes: u64,
    blocks: HashMap<u64, Block>,
}

impl Shadow {
    /// Opens the file for reading, with no written blocks yet.
    ///
    /// # Errors
    /// I/O errors of opening the file or reading its length.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { file, file_bytes: bytes, written: RwLock::new(Written { bytes, blocks: HashMap::new() }) })
    }

    /// Reads the file's bytes from `offset` on, and zeros past its end.
    fn read_file(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let held = self.file_bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        self.file.read_exact_at(&mut out[..held], offset)?;
        out[held..].fill(0);
        Ok(())
    }
}

impl StorageBackend for Shadow {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.read().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.read();
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= written.bytes);
        end.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        self.read_file(offset, out)?;
        for part in parts(offset, out.len()) {
            if let Some(block) = written.blocks.get(&part.block) {
                out[part.at..part.at + part.bytes].copy_from_slice(&block[part.from..part.from + part.bytes]);
            }
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut written = self.written.write();
        let old = written.bytes;
        written.bytes = bytes;
        if bytes < old {
            // Bytes that are cut off must read as zeros if the file grows again.
            let whole = bytes.div_ceil(BLOCK_BYTES as u64)..old.div_ceil(BLOCK_BYTES as u64);
            whole.for_each(|block| drop(written.blocks.insert(block, Box::new([0; BLOCK_BYTES]))));
            let kept = (bytes % BLOCK_BYTES as u64) as usize;
            if kept > 0 {
                let block = bytes / BLOCK_BYTES as u64;
                self.block(&mut written, block)?[kept..].fill(0);
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written.write();
        for part in parts(offset, data.len()) {
            let block = self.block(&mut written, part.block)?;
            block[part.from..part.from + part.bytes].copy_from_slice(&data[part.at..part.at + part.bytes]);
        }
        Ok(())
    }
}

impl Shadow {
    /// Returns a block to write to. A new one begins with the file's bytes.
    fn block<'w>(&self, written: &'w mut Written, block: u64) -> io::Result<&'w mut Block> {
        match written.blocks.entry(block) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(vacant) => {
                let mut bytes = Box::new([0; BLOCK_BYTES]);
                self.read_file(block * BLOCK_BYTES as u64, &mut bytes[..])?;
                Ok(vacant.insert(bytes))
            }
        }
    }
}

/// The part of a range of bytes that lies in one block.
struct Part {
    block: u64,
    /// Offset in the block at which the part begins.
    from: usize,
    /// Offset in the caller's bytes at which the part begins.
    at: usize,
    bytes: usize,
}

fn parts(offset: u64, bytes: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let here = offset + at as u64;
        let from = (here % BLOCK_BYTES as u64) as usize;
        let part = Part { block: here / BLOCK_BYTES as u64, from, at, bytes: (BLOCK_BYTES - from).min(bytes - at) };
        at += part.bytes;
        (part.bytes > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a plain vector: reads, writes, growth and cuts at odd places.
    #[test]
    fn what_is_written_is_read_and_the_file_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut expected: Vec<u8> = (0..3 * BLOCK_BYTES + 100).map(|at| at as u8).collect();
        std::fs::write(&path, &expected).unwrap();
        let before = expected.clone();
        let shadow = Shadow::open(&path).unwrap();
        let matches = |expected: &[u8]| {
            assert_eq!(shadow.len().unwrap(), expected.len() as u64);
            for (from, to) in [(0, expected.len()), (7, 9), (expected.len() / 3, expected.len())] {
                let mut out = vec![0xaa; to - from];
                shadow.read(from as u64, &mut out).unwrap();
                assert!(out == expected[from..to], "{from}..{to}");
            }
        };
        matches(&expected);
        for (offset, bytes) in [(5, 10), (BLOCK_BYTES - 3, 2 * BLOCK_BYTES), (3 * BLOCK_BYTES, 100)] {
            shadow.write(offset as u64, &vec![0xee; bytes]).unwrap();
            expected[offset..offset + bytes].fill(0xee);
            matches(&expected);
        }
        for bytes in [2 * BLOCK_BYTES + 17, 5 * BLOCK_BYTES, 9, 3 * BLOCK_BYTES + 1] {
            shadow.set_len(bytes as u64).unwrap();
            expected.resize(bytes, 0);
            matches(&expected);
        }
        assert!(shadow.read(expected.len() as u64, &mut [0]).is_err());
        assert!(std::fs::read(&path).unwrap() == before);
    }
}
