//! Decoder of lz4 frames.
//!
//! Owns: the frame format, with its checksums; blocks are decoded by lz4_flex. Must not: know tar. Runs on the thread
//! `unpack`.
//!
//! This is a reader of frames of our own, because the one of lz4_flex takes a frame that was cut between two blocks for
//! a complete one.

use std::io::{self, BufRead as _, ErrorKind, Read};

use lz4_flex::block::decompress_into_with_dict;
use xxhash_rust::xxh32::{Xxh32, xxh32};

use super::decode::{Feed, cut};

/// First bytes of every frame.
pub(super) const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// First bytes of a file of `lz4 -l`, which has neither a length nor an end.
pub(super) const LEGACY_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];

/// First bytes of a frame to be skipped, of which the first byte may be anything from 0x50 to 0x5f.
pub(super) const SKIPPED_MAGIC: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

/// Farthest that a block refers back to earlier ones, in bytes.
const HISTORY_BYTES: usize = 64 << 10;

/// Decoder of a stream of lz4 frames.
pub(super) struct Lz4 {
    feed: Feed,
    frame: Option<Frame>,
    packed: Vec<u8>,
    /// Content before the current block that it may refer to, and that of the block.
    content: Vec<u8>,
    /// The part of `content` that is still to be handed on.
    from: usize,
    to: usize,
}

/// The frame that is being decoded.
struct Frame {
    is_linked: bool,
    has_block_sums: bool,
    /// Length in bytes according to the header.
    content_bytes: Option<u64>,
    /// Sum of the content so far, if the frame ends with a checksum.
    content_sum: Option<Xxh32>,
    block_bytes_max: usize,
    decoded_bytes: u64,
}

impl Lz4 {
    /// Decodes the frames of `feed`.
    pub(super) fn new(feed: Feed) -> Self {
        Self { feed, frame: None, packed: Vec::new(), content: Vec::new(), from: 0, to: 0 }
    }

    /// Begins the next frame. `false` at the end of the stream.
    fn begin_frame(&mut self) -> io::Result<bool> {
        if self.feed.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let mut magic = self.array::<4>()?;
        if magic[0] & 0xf0 == SKIPPED_MAGIC[0] {
            magic[0] = SKIPPED_MAGIC[0];
        }
        match magic {
            MAGIC => self.frame = Some(self.header()?),
            SKIPPED_MAGIC => {
                let length = u64::from(u32::from_le_bytes(self.array()?));
                let skipped = io::copy(&mut (&mut self.feed).take(length), &mut io::sink())?;
                if skipped < length {
                    return Err(cut("lz4"));
                }
            }
            LEGACY_MAGIC => {
                return Err(bad(
                    "lz4's legacy frames do not show where they end, and are not supported: pack the archive again without -l, as \
                     with: lz4 -d FILE | lz4 - NEW",
                ));
            }
            _ => return Err(bad("this is not the start of an lz4 frame")),
        }
        (self.from, self.to) = (0, 0);
        Ok(true)
    }

    fn header(&mut self) -> io::Result<Frame> {
        let mut header = self.array::<2>()?.to_vec();
        let [flags, block] = [header[0], header[1]];
        if flags & 0xc2 != 0x40 || block & 0x8f != 0 {
            return Err(bad("unknown version of lz4 frames"));
        }
        if flags & 1 != 0 {
            return Err(bad("the lz4 frame needs a dictionary"));
        }
        let content_bytes = if flags & 8 == 0 {
            None
        } else {
            let length = self.array::<8>()?;
            header.extend(length);
            Some(u64::from_le_bytes(length))
        };
        let [sum] = self.array()?;
        if sum != xxh32(&header, 0).to_le_bytes()[1] {
            return Err(bad("the lz4 frame's header has a wrong checksum"));
        }
        let block_bytes_max = match block >> 4 {
            4 => 64 << 10,
            5 => 256 << 10,
            6 => 1 << 20,
            7 => 4 << 20,
            _ => return Err(bad("unknown size of lz4 blocks")),
        };
        self.packed.resize(block_bytes_max, 0);
        self.content.resize(HISTORY_BYTES + block_bytes_max, 0);
        Ok(Frame {
            is_linked: flags & 0x20 == 0,
            has_block_sums: flags & 0x10 != 0,
            content_bytes,
            content_sum: (flags & 4 != 0).then(|| Xxh32::new(0)),
            block_bytes_max,
            decoded_bytes: 0,
        })
    }

    /// Decodes the next block of `frame`. Its end leaves no frame.
    fn next_block(&mut self, mut frame: Frame) -> io::Result<()> {
        let length = u32::from_le_bytes(self.array()?);
        if length == 0 {
            return self.end_frame(frame);
        }
        let is_packed = length >> 31 == 0;
        let length = (length & 0x7fff_ffff) as usize;
        if length > frame.block_bytes_max {
            return Err(bad("an lz4 block is larger than its frame allows"));
        }
        let mut packed = std::mem::take(&mut self.packed);
        self.exact(&mut packed[..length])?;
        if frame.has_block_sums && xxh32(&packed[..length], 0) != u32::from_le_bytes(self.array()?) {
            return Err(bad("an lz4 block has a wrong checksum"));
        }
        let kept = if frame.is_linked { self.to.min(HISTORY_BYTES) } else { 0 };
        self.content.copy_within(self.to - kept..self.to, 0);
        let (history, rest) = self.content.split_at_mut(kept);
        let decoded = if is_packed {
            let out = &mut rest[..frame.block_bytes_max];
            decompress_into_with_dict(&packed[..length], out, history).map_err(|error| bad(&error.to_string()))?
        } else {
            rest[..length].copy_from_slice(&packed[..length]);
            length
        };
        frame.decoded_bytes += decoded as u64;
        if let Some(sum) = &mut frame.content_sum {
            sum.update(&rest[..decoded]);
        }
        (self.from, self.to) = (kept, kept + decoded);
        self.packed = packed;
        self.frame = Some(frame);
        Ok(())
    }

    fn end_frame(&mut self, frame: Frame) -> io::Result<()> {
        if frame.content_bytes.is_some_and(|expected| expected != frame.decoded_bytes) {
            return Err(bad("the lz4 frame's length differs from the one in its header"));
        }
        if let Some(sum) = frame.content_sum
            && sum.digest() != u32::from_le_bytes(self.array()?)
        {
            return Err(bad("the lz4 frame's content has a wrong checksum"));
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.exact(&mut bytes)?;
        Ok(bytes)
    }

    fn exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.feed.read_exact(out).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof if !self.feed.state().has_failed() => cut("lz4"),
            _ => error,
        })
    }
}

impl Read for Lz4 {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.from == self.to && !out.is_empty() {
            match self.frame.take() {
                Some(frame) => self.next_block(frame)?,
                None if self.begin_frame()? => (),
                None => return Ok(0),
            }
        }
        let length = out.len().min(self.to - self.from);
        out[..length].copy_from_slice(&self.content[self.from..self.from + length]);
        self.from += length;
        Ok(length)
    }
}

fn bad(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}
