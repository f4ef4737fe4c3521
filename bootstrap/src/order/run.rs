//! A file of a spill: one sorted run, in blocks that each carry a checksum.
//!
//! Owns: the format and its checks. A header names the spill and the run, and the file's length follows from the number
//! of records. So a file that was cut, emptied, removed or swapped is reported before anything of the spill is used. A
//! block's checksum covers its place, so a block that was changed or moved is reported before its records are used.
//! Blocks at the start of a run may be given back to the file system. The file then has a hole after its header, and
//! its length stays. Threads: `write` writes, `order` reads, and the main thread combines runs and gives blocks back.

use std::fs::File;
use std::io::{self, ErrorKind as Io, Read as _, Write as _};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, ensure};
use engine_api::Key;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::layout::{BLOCK_BYTES, BLOCK_RECORDS, CHECKSUM_BYTES, RECORD_BYTES};
use crate::source::Record;

/// Bytes of the position in the source, with which a record begins.
const POSITION_BYTES: usize = 8;
/// Number of bytes collected before a write. The device begins with them at once, so larger writes gain nothing.
const WRITE_BYTES: usize = 1 << 20;
/// Largest piece of a run to read at a time. Larger ones gain nothing on a flash drive.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// Bytes announced at a time. The kernel takes no more of them than a device's readahead, which is 128 KiB by default.
const ANNOUNCED_BYTES: usize = 128 << 10;
/// The unit in which the kernel reads and writes files.
const PAGE_BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"solkvrun";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
/// The initial value of a record that [`Reader::next`] overwrites.
pub(super) const NO_RECORD: Record = (0, [0; 32], [0; 32]);

/// A run as the manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Number of the run, unique within its spill.
    pub(crate) number: u32,
    /// Number of records in the run, from its first one on.
    pub(crate) records: u64,
    /// Number of records at the start that are not needed any more. The blocks that hold no others may be gone.
    #[serde(default)]
    pub(crate) taken: u64,
}

impl Run {
    /// A run of which every record is needed.
    pub(crate) fn whole(number: u32, records: u64) -> Self {
        Self { number, records, taken: 0 }
    }

    /// Returns the number of records that are still needed.
    pub(crate) fn left(self) -> u64 {
        self.records - self.taken
    }

    pub(crate) fn name(self) -> String {
        format!("run-{:05}", self.number)
    }

    fn bytes(self) -> u64 {
        let blocks = self.records.div_ceil(BLOCK_RECORDS);
        HEADER_BYTES as u64 + self.records * RECORD_BYTES as u64 + blocks * CHECKSUM_BYTES as u64
    }

    /// Returns the offset in the file at which this block begins.
    fn offset(block: u64) -> u64 {
        HEADER_BYTES as u64 + block * BLOCK_BYTES as u64
    }

    /// Gives the blocks back to the file system that hold none but taken records. The header stays, because it tells
    /// that a spill has made the file.
    ///
    /// # Errors
    /// I/O errors of opening the file or giving its blocks back, naming it.
    pub(crate) fn give_back(self, dir: &Path) -> Result<()> {
        let bytes = Self::offset(self.taken / BLOCK_RECORDS) - HEADER_BYTES as u64;
        if bytes == 0 {
            return Ok(());
        }
        let path = dir.join(self.name());
        let given = File::options().write(true).open(&path).and_then(|file| punch(&file, HEADER_BYTES as u64, bytes));
        given.with_context(|| format!("cannot give a part back to the file system: file={}", path.display()))
    }

    fn header(self, spill: u64) -> [u8; HEADER_BYTES] {
        let mut out = [0u8; HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.number.to_le_bytes());
        out[16..24].copy_from_slice(&spill.to_le_bytes());
        out[24..32].copy_from_slice(&self.records.to_le_bytes());
        let checksum = xxh3_64(&out[..32]);
        out[32..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Checksum of a block. It covers the block's place as well: the spill, the run, and the block's number.
    fn checksum(self, spill: u64, block: u64, records: &[u8]) -> u64 {
        let mut place = [0u8; 20];
        place[..8].copy_from_slice(&spill.to_le_bytes());
        place[8..12].copy_from_slice(&self.number.to_le_bytes());
        place[12..].copy_from_slice(&block.to_le_bytes());
        xxh3_64_with_seed(records, xxh3_64(&place))
    }
}

/// Error for a damaged file of a spill, with the file and the way out.
pub(crate) fn damaged(path: &Path, reason: &str) -> Error {
    anyhow!(
        "a file of the spill is damaged: file={} reason={reason}: remove dir={}, and the next start (a load of \
         bootstrap with --resume) makes the spill again; the store's content stays",
        path.display(),
        path.parent().unwrap_or(Path::new("")).display()
    )
}

/// Makes a range of a file a hole. The file keeps its length.
///
/// # Errors
/// I/O errors: those of [`has_no_holes`] and others.
pub(crate) fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| fallocate(file, flags, offset, bytes))?)
}

/// Whether [`punch`] has failed because the file system cannot make holes.
pub(crate) fn has_no_holes(error: &io::Error) -> bool {
    [Some(Errno::OPNOTSUPP), Some(Errno::NOSYS)].contains(&Errno::from_io_error(error))
}

/// Whether a spill has made the file: it begins like a run, or was cut short at its beginning.
pub(crate) fn is_run(path: &Path) -> bool {
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut first));
    // A loss of power can leave zeros in place of a header.
    let is_begun = first.starts_with(&MAGIC) || MAGIC.starts_with(&first) || first.iter().all(|byte| *byte == 0);
    read.is_ok() && is_begun
}

/// Writer of the file of one run.
pub(crate) struct Writer {
    path: PathBuf,
    file: File,
    spill: u64,
    run: Run,
    /// Bytes that are not written yet. The last block of them may be incomplete.
    pending: Vec<u8>,
    /// Start of the last block in `pending`.
    block_at: usize,
    /// Number of records pushed so far, buffered ones included.
    records: u64,
    /// Number of bytes written to the file.
    written_bytes: u64,
}

impl Writer {
    /// Creates the file of `run` in `dir`, replacing the file of an earlier attempt.
    ///
    /// # Errors
    /// I/O errors of creating or writing the file, naming it.
    pub(crate) fn create(dir: &Path, spill: u64, run: Run) -> Result<Self> {
        let path = dir.join(run.name());
        let file = File::create(&path).with_context(|| format!("cannot create file={}", path.display()))?;
        let mut pending = Vec::with_capacity(WRITE_BYTES + BLOCK_BYTES);
        pending.extend_from_slice(&run.header(spill));
        let mut writer = Self { path, file, spill, run, pending, block_at: 0, records: 0, written_bytes: 0 };
        writer.write()?;
        Ok(writer)
    }

    /// Appends a record.
    ///
    /// # Errors
    /// I/O errors of writing, naming the file.
    pub(crate) fn push(&mut self, record: &Record) -> Result<()> {
        self.pending.extend_from_slice(&encode(record));
        self.records += 1;
        if self.records.is_multiple_of(BLOCK_RECORDS) { self.end_block() } else { Ok(()) }
    }

    /// Writes the rest of the file, which is not flushed.
    ///
    /// # Errors
    /// I/O errors of writing, naming the file; another number of records than announced.
    pub(crate) fn end(mut self) -> Result<Ended> {
        if self.pending.len() > self.block_at {
            self.end_block()?;
        }
        self.write()?;
        let Self { path, file, run, records, .. } = self;
        let (number, expected) = (run.number, run.records);
        ensure!(records == expected, "run={number} has records={records} expected={expected}: file={}", path.display());
        Ok(Ended { path, file, run })
    }

    fn end_block(&mut self) -> Result<()> {
        let block = (self.records - 1) / BLOCK_RECORDS;
        let checksum = self.run.checksum(self.spill, block, &self.pending[self.block_at..]);
        self.pending.extend_from_slice(&checksum.to_le_bytes());
        self.block_at = self.pending.len();
        if self.block_at < WRITE_BYTES { Ok(()) } else { self.write() }
    }

    /// Writes the collected bytes, and makes the device begin with them. A flush that finds nothing begun takes three
    /// times as long as all of this.
    fn write(&mut self) -> Result<()> {
        self.file.write_all(&self.pending).with_context(|| format!("cannot write file={}", self.path.display()))?;
        let begun = self.written_bytes;
        self.written_bytes += self.pending.len() as u64;
        // With this advice the kernel starts to write what it would otherwise drop. It drops only pages that are
        // written already.
        advise(&self.file, begun, self.written_bytes, Advice::DontNeed);
        self.pending.clear();
        self.block_at = 0;
        Ok(())
    }
}

/// A run's file with all of its records, not flushed.
pub(crate) struct Ended {
    path: PathBuf,
    file: File,
    run: Run,
}

impl Ended {
    /// Flushes the file. Its name becomes durable with the manifest that lists it.
    ///
    /// # Errors
    /// I/O errors of flushing, naming the file.
    pub(crate) fn flush(self) -> Result<Run> {
        self.file.sync_data().with_context(|| format!("cannot write file={}", self.path.display()))?;
        Ok(self.run)
    }
}

/// Reads a run's file in pieces of several blocks. While the records of one piece are taken, the kernel reads the next
/// one. The kernel's own readahead is off, because it reads megabytes of each run: under a memory limit it drops most
/// of them before they are used, and reads them again.
pub(crate) struct Reader {
    path: PathBuf,
    file: File,
    spill: u64,
    run: Run,
    /// Number of records in the blocks up to the current one, that one included.
    read: u64,
    /// Largest number of blocks in a piece.
    piece_blocks: usize,
    /// Offset in the file of the piece after this one.
    next_piece: u64,
    /// Whole blocks with their checksums.
    piece: Vec<u8>,
    /// Place in `piece` of the next record.
    at: usize,
    /// Place in `piece` after the last record of the current block.
    block_end: usize,
}

impl Reader {
    /// Opens the file of `run`, checks its length and header, and goes to its first record that is needed. `bytes` is
    /// the memory for a piece of it, which has at least one block.
    ///
    /// # Errors
    /// A file that is missing or is not that run, or a damaged block, named with the way out; I/O errors of opening or
    /// reading it.
    pub(crate) fn open(dir: &Path, spill: u64, run: Run, bytes: usize) -> Result<Self> {
        let path = dir.join(run.name());
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == Io::NotFound => return Err(damaged(&path, "it is missing")),
            Err(error) => return Err(error).with_context(|| format!("cannot open file={}", path.display())),
        };
        let length = file.metadata().with_context(|| format!("cannot look at file={}", path.display()))?.len();
        if length != run.bytes() {
            return Err(damaged(&path, &format!("bytes={length} expected={}", run.bytes())));
        }
        // A refusal of advice costs time and nothing else, here and below.
        fadvise(&file, 0, None, Advice::Random).ok();
        let mut header = [0u8; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).with_context(|| format!("cannot read file={}", path.display()))?;
        if header != run.header(spill) {
            return Err(damaged(&path, "its header is that of another run, or changed"));
        }
        let begun = run.taken / BLOCK_RECORDS;
        let mut reader = Self {
            path,
            file,
            spill,
            run,
            read: begun * BLOCK_RECORDS,
            piece_blocks: (bytes.min(PIECE_BYTES_MAX) / BLOCK_BYTES).max(1),
            next_piece: Run::offset(begun),
            piece: Vec::new(),
            at: 0,
            block_end: 0,
        };
        // The first of the remaining blocks may begin with taken records.
        let mut taken = NO_RECORD;
        for _ in 0..run.taken % BLOCK_RECORDS {
            reader.next(&mut taken)?;
        }
        Ok(reader)
    }

    /// Copies the next record to `into`; returns `false` after the last.
    ///
    /// # Errors
    /// A damaged block, named with file, offset and the way out; I/O errors of reading.
    pub(crate) fn next(&mut self, into: &mut Record) -> Result<bool> {
        if self.at == self.block_end && !self.next_block()? {
            return Ok(false);
        }
        *into = decode(&self.piece[self.at..self.at + RECORD_BYTES]);
        self.at += RECORD_BYTES;
        // Many other runs have their turn before this one again, so the processor cannot know by itself.
        prefetch(&self.piece, self.at + RECORD_BYTES);
        prefetch(&self.piece, self.at + 2 * RECORD_BYTES - 1);
        Ok(true)
    }

    /// Returns the key of the next record, and reads its block if necessary; `None` after the last record.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub(crate) fn next_key(&mut self) -> Result<Option<&Key>> {
        if self.at == self.block_end && !self.next_block()? {
            return Ok(None);
        }
        Ok(self.piece[self.at + POSITION_BYTES..].first_chunk())
    }

    /// Returns the next record, if [`Reader::next_key`] has returned its key; `None` after the last.
    pub(crate) fn peek(&self) -> Option<Record> {
        (self.at < self.block_end).then(|| decode(&self.piece[self.at..self.at + RECORD_BYTES]))
    }

    /// Goes to the next block and checks it; `false` after the last.
    fn next_block(&mut self) -> Result<bool> {
        let records = (self.run.records - self.read).min(BLOCK_RECORDS);
        if records == 0 {
            return Ok(false);
        }
        let block = self.read / BLOCK_RECORDS;
        let mut start = self.block_end + CHECKSUM_BYTES;
        if start >= self.piece.len() {
            self.read_piece()?;
            start = 0;
        }
        let (body, rest) = self.piece[start..].split_at(records as usize * RECORD_BYTES);
        if !rest.starts_with(&self.run.checksum(self.spill, block, body).to_le_bytes()) {
            return Err(damaged(&self.path, &format!("checksum offset={}", Run::offset(block))));
        }
        (self.at, self.block_end) = (start, start + body.len());
        self.read += records;
        Ok(true)
    }

    /// Reads the next piece, and makes the kernel begin with the one after it.
    fn read_piece(&mut self) -> Result<()> {
        let piece_bytes = (self.piece_blocks * BLOCK_BYTES) as u64;
        let (offset, length) = (self.next_piece, self.run.bytes());
        self.piece.resize((length - offset).min(piece_bytes) as usize, 0);
        match self.file.read_exact_at(&mut self.piece, offset) {
            Ok(()) => {}
            Err(error) if error.kind() == Io::UnexpectedEof => return Err(damaged(&self.path, "it was cut short")),
            Err(error) => return Err(error).with_context(|| format!("cannot read file={}", self.path.display())),
        }
        self.next_piece = offset + self.piece.len() as u64;
        // The page cache has a copy of this piece, which is not needed.
        advise(&self.file, offset, self.next_piece, Advice::DontNeed);
        let end = length.min(self.next_piece + piece_bytes);
        for start in (self.next_piece..end).step_by(ANNOUNCED_BYTES) {
            let bytes = NonZeroU64::new((end - start).min(ANNOUNCED_BYTES as u64));
            fadvise(&self.file, start, bytes, Advice::WillNeed).ok();
        }
        Ok(())
    }
}

/// Gives the kernel advice on the pages from that of `start` to the last one that ends before `end`. A refusal costs
/// time and nothing else.
fn advise(file: &File, start: u64, end: u64, advice: Advice) {
    let first_byte = |offset: u64| offset / PAGE_BYTES * PAGE_BYTES;
    if let Some(bytes) = NonZeroU64::new(first_byte(end) - first_byte(start)) {
        fadvise(file, first_byte(start), Some(bytes), advice).ok();
    }
}

/// Fetches the cache line of a byte, which is needed soon. Does nothing beyond the end, or on other processors.
#[inline]
fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(byte) = bytes.get(at) {
        // SAFETY: a prefetch does not access memory as the program sees it, and every x86-64 processor has it.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(byte).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}

fn encode(record: &Record) -> [u8; RECORD_BYTES] {
    let mut out = [0u8; RECORD_BYTES];
    out[..8].copy_from_slice(&record.0.to_le_bytes());
    out[8..40].copy_from_slice(&record.1);
    out[40..].copy_from_slice(&record.2);
    out
}

fn decode(bytes: &[u8]) -> Record {
    let position = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    (position, std::array::from_fn(|i| bytes[8 + i]), std::array::from_fn(|i| bytes[40 + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const SPILL: u64 = 77;

    fn write(dir: &Path, spill: u64, number: u32, records: u64) -> Run {
        let mut writer = Writer::create(dir, spill, Run::whole(number, records)).unwrap();
        for position in 0..records {
            writer.push(&(position, [position as u8; 32], [number as u8; 32])).unwrap();
        }
        writer.end().unwrap().flush().unwrap()
    }

    /// Reads all records that are needed, and returns the number of the run's records.
    fn read(dir: &Path, run: Run) -> Result<u64> {
        read_in_pieces(dir, run, 1)
    }

    /// Reads all records with this memory for a piece.
    fn read_in_pieces(dir: &Path, run: Run, bytes: usize) -> Result<u64> {
        let mut reader = Reader::open(dir, SPILL, run, bytes)?;
        let (mut records, mut record) = (run.taken, NO_RECORD);
        while reader.next(&mut record)? {
            assert_eq!(record, (records, [records as u8; 32], [run.number as u8; 32]));
            records += 1;
        }
        assert!(reader.piece.capacity() <= bytes.max(BLOCK_BYTES), "{} of {bytes}", reader.piece.capacity());
        Ok(records)
    }

    #[test]
    fn whole_runs_of_any_length_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        for records in [0, 1, 511, 512, 513, 1024, 1500] {
            let run = write(dir.path(), SPILL, records as u32, records);
            for blocks in [1, 2, 3] {
                // A part of a block has no use.
                let bytes = blocks * BLOCK_BYTES + BLOCK_BYTES / 2;
                assert_eq!(read_in_pieces(dir.path(), run, bytes).unwrap(), records);
            }
            assert_eq!(fs::metadata(dir.path().join(run.name())).unwrap().len(), run.bytes());
        }
    }

    #[test]
    fn a_run_is_read_on_from_any_record_after_the_blocks_before_it_were_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let run = write(dir.path(), SPILL, 1, 1500);
        let path = dir.path().join(run.name());
        for taken in [0, 1, 511, 512, 513, 1023, 1024, 1100, 1499, 1500] {
            let run = Run { taken, ..run };
            run.give_back(dir.path()).unwrap();
            assert_eq!(read(dir.path(), run).unwrap(), 1500, "{taken}");
            assert!(is_run(&path) && fs::metadata(&path).unwrap().len() == run.bytes(), "{taken}");
        }
        // A block that was given back is refused by name, as any damaged block is.
        let error = read(dir.path(), Run { taken: 511, ..run }).unwrap_err().to_string();
        assert!(error.contains("checksum offset=40") && error.contains("--resume"), "{error}");
        // The blocks take no space any more, except for the pages that they share with others.
        let empty = probe::disk_bytes(dir.path());
        assert!(empty < run.bytes() / 2, "{empty} of {}", run.bytes());
    }

    #[test]
    fn every_flipped_bit_every_cut_and_every_other_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let run = write(dir.path(), SPILL, 1, 600);
        let path = dir.path().join(run.name());
        let bytes = fs::read(&path).unwrap();
        let refused = |what: &str| {
            let error = format!("{:#}", read(dir.path(), run).unwrap_err());
            assert!(
                error.contains(&format!("file={}", path.display())) && error.contains("--resume"),
                "{what}: {error}"
            );
        };
        for at in (0..bytes.len()).step_by(97).chain(bytes.len() - 8..bytes.len()).chain(0..HEADER_BYTES) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, flipped).unwrap();
            refused(&format!("flipped {at}"));
        }
        for keep in [0, 8, HEADER_BYTES, HEADER_BYTES + 72, bytes.len() - 72, bytes.len() - 1] {
            fs::write(&path, &bytes[..keep]).unwrap();
            refused(&format!("cut {keep}"));
        }
        fs::write(&path, [&bytes[..], &[0; 72]].concat()).unwrap();
        refused("longer");
        fs::remove_file(&path).unwrap();
        refused("removed");
        // The same records under another number, then in a run of another spill.
        let other = write(dir.path(), SPILL, 2, 600);
        fs::rename(dir.path().join(other.name()), &path).unwrap();
        refused("swapped");
        write(dir.path(), SPILL + 1, 1, 600);
        refused("another spill's");
        // A block of one run at the place of another run's.
        let (one, two) = (write(dir.path(), SPILL, 1, 1024), write(dir.path(), SPILL, 2, 1024));
        let (mut mixed, second) = (fs::read(&path).unwrap(), fs::read(dir.path().join(two.name())).unwrap());
        mixed[HEADER_BYTES..HEADER_BYTES + BLOCK_BYTES]
            .copy_from_slice(&second[HEADER_BYTES..HEADER_BYTES + BLOCK_BYTES]);
        fs::write(&path, mixed).unwrap();
        assert!(format!("{:#}", read(dir.path(), one).unwrap_err()).contains("checksum offset=40"));
    }
}
