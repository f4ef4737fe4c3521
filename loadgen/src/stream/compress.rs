//! Compression of the messages, each by itself as tonic does it, at a stock server's cost.
//!
//! Owns: the choice of the encoding, and the frames in it. Must not: decode a message. Used on every feed's task.

use std::io::{self, Read};

use bytes::{BufMut, Bytes, BytesMut};
use tonic::codec::CompressionEncoding;

/// Bytes of a gRPC frame's header: the compression flag and the length.
pub(crate) const FRAME_HEADER_BYTES: usize = 5;

/// Which encoding a server sends its messages in.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// gzip or zstd, whichever the client accepts first, as a stock server; uncompressed if it accepts neither
    #[default]
    Stock,
    /// Uncompressed, whatever the client accepts
    None,
    /// gzip, whether or not the client accepts it
    Gzip,
    /// zstd, whether or not the client accepts it
    Zstd,
}

impl Compression {
    /// Returns the encoding for a client whose request has this header `grpc-accept-encoding`.
    pub(crate) fn for_client(self, accepts: &str) -> Option<CompressionEncoding> {
        match self {
            Self::Stock => accepts.split(',').find_map(|name| named(name.trim())),
            Self::None => None,
            Self::Gzip => Some(CompressionEncoding::Gzip),
            Self::Zstd => Some(CompressionEncoding::Zstd),
        }
    }
}

/// Returns the encoding of this name.
pub(crate) fn named(name: &str) -> Option<CompressionEncoding> {
    match name {
        "gzip" => Some(CompressionEncoding::Gzip),
        "zstd" => Some(CompressionEncoding::Zstd),
        _ => None,
    }
}

/// Returns whole uncompressed frames with the message of each compressed.
pub(crate) fn compressed(mut frames: Bytes, encoding: CompressionEncoding) -> io::Result<Bytes> {
    let mut out = BytesMut::with_capacity(frames.len());
    while !frames.is_empty() {
        let length = u32::from_be_bytes([frames[1], frames[2], frames[3], frames[4]]) as usize;
        let message = frames.split_to(FRAME_HEADER_BYTES + length).slice(FRAME_HEADER_BYTES..);
        let header = out.len();
        out.put_bytes(1, FRAME_HEADER_BYTES);
        match encoding {
            CompressionEncoding::Gzip => {
                copy(flate2::read::GzEncoder::new(&message[..], flate2::Compression::new(6)), &mut out)?;
            }
            _ => {
                let level = zstd::DEFAULT_COMPRESSION_LEVEL;
                copy(zstd::stream::read::Encoder::new(&message[..], level)?, &mut out)?;
            }
        }
        let length = u32::try_from(out.len() - header - FRAME_HEADER_BYTES).expect("an update is far below 4 GiB");
        out[header + 1..header + FRAME_HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    }
    Ok(out.freeze())
}

fn copy(mut from: impl Read, to: &mut BytesMut) -> io::Result<u64> {
    io::copy(&mut from, &mut to.writer())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_encoding_that_the_client_accepts_is_taken() {
        let (gzip, zstd) = (Some(CompressionEncoding::Gzip), Some(CompressionEncoding::Zstd));
        for (accepts, encoding) in [("", None), ("identity", None), ("zstd,gzip,identity", zstd), ("br, gzip", gzip)] {
            assert_eq!(Compression::Stock.for_client(accepts), encoding, "{accepts}");
        }
        assert_eq!((Compression::Zstd.for_client(""), Compression::None.for_client("zstd")), (zstd, None));
    }

    #[test]
    fn each_frame_is_compressed_by_itself() {
        let messages = [&b""[..], &[7; 1000], &b"solkv"[..]];
        let mut frames = BytesMut::new();
        for message in messages {
            frames.put_u8(0);
            frames.put_u32(message.len() as u32);
            frames.put_slice(message);
        }
        for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
            let mut sent = compressed(frames.clone().freeze(), encoding).unwrap();
            for message in messages {
                assert_eq!(sent[0], 1, "the flag of a compressed message");
                let length = u32::from_be_bytes(sent[1..5].try_into().unwrap()) as usize;
                let one = sent.split_to(5 + length).slice(5..);
                let mut read = Vec::new();
                match encoding {
                    CompressionEncoding::Gzip => flate2::read::GzDecoder::new(&one[..]).read_to_end(&mut read).unwrap(),
                    _ => zstd::stream::read::Decoder::new(&one[..]).unwrap().read_to_end(&mut read).unwrap(),
                };
                assert_eq!(read, message);
            }
            assert!(sent.is_empty());
        }
    }
}
