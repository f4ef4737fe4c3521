//! The packing of an archive: zstd, lz4, gzip or none, with agave's parameters.
//!
//! Owns: the compressors. Must not: know the contents. Runs on the thread that writes the archive.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

/// Bytes collected before a write to the file. A compressor hands out pieces of a few bytes to 128 KiB.
const BUFFER_BYTES: usize = 1 << 20;
/// Level at which agave compresses, because a snapshot must not keep a validator waiting.
const ZSTD_LEVEL: i32 = 1;
/// Logarithm of zstd's window, which is 512 KiB at that level.
const ZSTD_WINDOW_LOG: u32 = 19;

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
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
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

    /// Ends the packed stream and returns the file, to which every byte was written.
    pub(super) fn finish(self) -> io::Result<File> {
        let file = match self {
            Self::Zst(encoder) => encoder.finish()?,
            Self::Lz4(encoder) => encoder.finish().map_err(io::Error::other)?,
            Self::Gz(encoder) => encoder.finish()?,
            Self::None(file) => file,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
