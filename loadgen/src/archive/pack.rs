//! The packing of an archive: zstd, lz4, gzip or none, with agave's parameters.
//!
//! Owns: the compressors. Must not: know the contents. Runs on the thread that writes the archive.

use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

/// Bytes collected before a write to the file. A compressor hands out pieces of a few bytes to 128 KiB.
const BUFFER_BYTES: usize = 1 << 20;
/// Level at which agave compresses, because a snapshot must not keep a validator waiting.
const ZSTD_LEVEL: i32 = 1;
/// Logarithm of zstd's window, which is 512 KiB at that level.
const ZSTD_WINDOW_LOG: u32 = 19;

/// Bytes to which Firedancer fills up each frame, and first bytes of the frame to be skipped that does it.
const FRAME_ALIGN: u64 = 4096;
const SKIPPED_MAGIC: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

/// How an archive is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    /// zstd at level 1 with a window of 512 KiB, without a checksum: agave's own choice
    Zst,
    /// lz4 in linked blocks of 64 KiB with checksums, as agave writes it on request
    Lz4,
    /// gzip, as older validators wrote it
    Gz,
    /// Not at all: a bare tar
    None,
}

impl Packing {
    /// Returns the end of the archive's name.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Zst => ".tar.zst",
            Self::Lz4 => ".tar.lz4",
            Self::Gz => ".tar.gz",
            Self::None => ".tar",
        }
    }
}

/// A file that is packed while it is written.
pub(super) enum Packer {
    Zst(Box<zstd::Encoder<'static, BufWriter<File>>>),
    Lz4(Box<FrameEncoder<BufWriter<File>>>),
    Gz(Box<GzEncoder<BufWriter<File>>>),
    None(BufWriter<File>),
}

impl Packer {
    pub(super) fn new(packing: Packing, file: File) -> io::Result<Self> {
        Self::on(packing, BufWriter::with_capacity(BUFFER_BYTES, file))
    }

    fn on(packing: Packing, file: BufWriter<File>) -> io::Result<Self> {
        Ok(match packing {
            Packing::Zst => {
                let mut encoder = zstd::Encoder::new(file, ZSTD_LEVEL)?;
                encoder.window_log(ZSTD_WINDOW_LOG)?;
                Self::Zst(Box::new(encoder))
            }
            Packing::Lz4 => {
                let info = FrameInfo::new()
                    .block_size(BlockSize::Max64KB)
                    .block_mode(BlockMode::Linked)
                    .block_checksums(true)
                    .content_checksum(true);
                Self::Lz4(Box::new(FrameEncoder::with_frame_info(info, file)))
            }
            Packing::Gz => Self::Gz(Box::new(GzEncoder::new(file, Compression::fast()))),
            Packing::None => Self::None(file),
        })
    }

    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Zst(encoder) => encoder.write_all(bytes),
            Self::Lz4(encoder) => encoder.write_all(bytes),
            Self::Gz(encoder) => encoder.write_all(bytes),
            Self::None(file) => file.write_all(bytes),
        }
    }

    /// Ends the frame, and begins the next one. That of zstd is filled up as Firedancer does it.
    pub(super) fn next_frame(self) -> io::Result<Self> {
        let (packing, mut file) = self.end()?;
        if packing == Packing::Zst {
            let begin = file.stream_position()? + 8;
            let skipped = begin.next_multiple_of(FRAME_ALIGN) - begin;
            file.write_all(&SKIPPED_MAGIC)?;
            file.write_all(&(skipped as u32).to_le_bytes())?;
            file.write_all(&vec![0; skipped as usize])?;
        }
        Self::on(packing, file)
    }

    /// Ends the packed stream and returns the file, to which every byte was written.
    pub(super) fn finish(self) -> io::Result<File> {
        self.end()?.1.into_inner().map_err(io::IntoInnerError::into_error)
    }

    fn end(self) -> io::Result<(Packing, BufWriter<File>)> {
        Ok(match self {
            Self::Zst(encoder) => (Packing::Zst, encoder.finish()?),
            Self::Lz4(encoder) => (Packing::Lz4, encoder.finish().map_err(io::Error::other)?),
            Self::Gz(encoder) => (Packing::Gz, encoder.finish()?),
            Self::None(file) => (Packing::None, file),
        })
    }
}
