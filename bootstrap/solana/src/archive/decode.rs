//! The feed of the decoders, and zstd: several frames one after the other are one stream, and a cut is an error.
//!
//! Owns: the reading of packed bytes ([`Feed`]), and the limit of zstd's window. Must not: know tar. Runs on the thread
//! `unpack`.

use std::io::{self, BufRead, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zstd::stream::raw::{DParameter, Decoder, Operation};

use super::lz4;
use super::name::Packing;

/// Packed bytes read at a time: enough that a system call costs nothing next to unpacking them.
const FEED_BYTES: usize = 256 << 10;

/// Logarithm of [`WINDOW_BYTES_MAX`] to base 2, the form in which libzstd takes a limit.
const WINDOW_LOG_MAX: u32 = 27;

/// Largest window of a zstd frame, as of the program `zstd -d`. Validators use 512 KiB to 8 MiB; a frame may ask for
/// terabytes.
pub(super) const WINDOW_BYTES_MAX: u64 = 1 << WINDOW_LOG_MAX;

/// Most bytes of a zstd frame's header.
const ZSTD_HEADER_BYTES: usize = 18;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The packed bytes of an archive, buffered for its decoder.
pub(super) struct Feed {
    inner: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// The part of `buffer` that is still to be used.
    from: usize,
    to: usize,
    state: FeedState,
}

/// State of a [`Feed`] that can be asked for while a decoder owns the feed.
#[derive(Clone)]
pub(super) struct FeedState {
    count: Arc<AtomicU64>,
    has_failed: Arc<AtomicBool>,
}

impl FeedState {
    /// Returns the number of bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether reading has failed. If not, an error of the decoder is about the bytes.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

impl Feed {
    /// Buffers `inner`, and keeps `count` at the number of bytes read from it.
    pub(super) fn new(inner: Box<dyn Read + Send>, count: Arc<AtomicU64>) -> Self {
        let state = FeedState { count, has_failed: Arc::default() };
        Self { inner, buffer: vec![0; FEED_BYTES], from: 0, to: 0, state }
    }

    /// Returns the state, which is kept up to date.
    pub(super) fn state(&self) -> FeedState {
        self.state.clone()
    }

    /// Recognizes the packing from the first bytes; `None` for a frame to be skipped, which zstd and lz4 have alike.
    /// Everything unknown is taken for a tar file, whose first bytes are a name.
    pub(super) fn packing(&mut self) -> io::Result<Option<Packing>> {
        let first = self.at_least(ZSTD_MAGIC.len())?;
        Ok(Some(match first {
            _ if first.starts_with(&ZSTD_MAGIC) => Packing::Zstd,
            _ if first.starts_with(&lz4::MAGIC) || first.starts_with(&lz4::LEGACY_MAGIC) => Packing::Lz4,
            _ if first.starts_with(&GZIP_MAGIC) => Packing::Gzip,
            [skipped, rest @ ..] if skipped & 0xf0 == 0x50 && rest.starts_with(&lz4::SKIPPED_MAGIC[1..]) => {
                return Ok(None);
            }
            _ => Packing::None,
        }))
    }

    /// Returns the bytes that come next: `bytes` of them or more, unless the stream ends before.
    fn at_least(&mut self, bytes: usize) -> io::Result<&[u8]> {
        if self.to - self.from < bytes {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            while self.to < bytes && self.read_more()? > 0 {}
        }
        Ok(&self.buffer[self.from..self.to])
    }

    fn read_more(&mut self) -> io::Result<usize> {
        loop {
            match self.inner.read(&mut self.buffer[self.to..]) {
                Ok(read) => {
                    self.to += read;
                    self.state.count.fetch_add(read as u64, Ordering::Relaxed);
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => {
                    self.state.has_failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }
}

impl Read for Feed {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Feed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            self.read_more()?;
        }
        Ok(&self.buffer[self.from..self.to])
    }

    fn consume(&mut self, bytes: usize) {
        self.from += bytes;
    }
}

/// Decoder of a stream of zstd frames.
pub(super) struct Zstd {
    feed: Feed,
    decoder: Decoder<'static>,
    window_bytes_max: u64,
    is_in_frame: bool,
}

impl Zstd {
    /// Decodes the frames of `feed`. A frame with a larger window than `window_bytes_max`, or than [`WINDOW_BYTES_MAX`],
    /// is an error.
    pub(super) fn new(feed: Feed, window_bytes_max: u64) -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
        Ok(Self { feed, decoder, window_bytes_max: window_bytes_max.min(WINDOW_BYTES_MAX), is_in_frame: false })
    }

    /// Begins the next frame. `false` at the end of the stream.
    fn begin_frame(&mut self) -> io::Result<bool> {
        let header = self.feed.at_least(ZSTD_HEADER_BYTES)?;
        if header.is_empty() {
            return Ok(false);
        }
        let limit_bytes = self.window_bytes_max;
        if let Some(window) = zstd_window(header).filter(|window| *window > limit_bytes) {
            let text = format!(
                "the zstd window is too large: window_bytes={window} limit_bytes={limit_bytes}: unpack the archive \
                 first, as with: zstd -d --long=31 FILE"
            );
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        self.decoder.reinit()?;
        self.is_in_frame = true;
        Ok(true)
    }
}

impl Read for Zstd {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while !out.is_empty() && (self.is_in_frame || self.begin_frame()?) {
            let packed = self.feed.fill_buf()?;
            let has_ended = packed.is_empty();
            let status = self.decoder.run_on_buffers(packed, out)?;
            self.feed.consume(status.bytes_read);
            self.is_in_frame = status.remaining > 0;
            if status.bytes_written > 0 {
                return Ok(status.bytes_written);
            }
            if has_ended && self.is_in_frame {
                return Err(cut("zstd"));
            }
        }
        Ok(0)
    }
}

/// Returns the error for a stream that ends within a frame.
pub(super) fn cut(packing: &str) -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, format!("the {packing} data are cut short: get the archive again"))
}

/// Returns the window that a zstd frame's header asks for, in bytes (RFC 8878, 3.1.1.1). `None` for a frame to be
/// skipped, and for bytes that are no whole header.
fn zstd_window(header: &[u8]) -> Option<u64> {
    let rest = header.strip_prefix(&ZSTD_MAGIC)?;
    let (descriptor, rest) = rest.split_first()?;
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let window = u64::from(*rest.first()?);
        let base = 1 << (10 + (window >> 3));
        return Some(base + base / 8 * (window & 7));
    }
    // The whole content is the window.
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_bytes = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let mut content = [0; 8];
    content[..content_bytes].copy_from_slice(rest.get(dictionary_bytes..dictionary_bytes + content_bytes)?);
    let added = if content_bytes == 2 { 256 } else { 0 };
    Some(u64::from_le_bytes(content).saturating_add(added))
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write as _};

    use super::*;

    /// Returns its bytes one at a time, as the slowest pipe does.
    struct Slow(Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let length = out.len().min(1);
            self.0.read(&mut out[..length])
        }
    }

    fn feed(bytes: &[u8]) -> Feed {
        Feed::new(Box::new(Cursor::new(bytes.to_vec())), Arc::default())
    }

    fn unpack(packing: Packing, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let run = |feed: Feed| -> io::Result<Vec<u8>> {
            let mut out = Vec::new();
            match packing {
                Packing::Zstd => Zstd::new(feed, u64::MAX)?.read_to_end(&mut out)?,
                Packing::Lz4 => lz4::Lz4::new(feed).read_to_end(&mut out)?,
                Packing::None | Packing::Gzip => unreachable!("not decoded here"),
            };
            Ok(out)
        };
        let slow = run(Feed::new(Box::new(Slow(Cursor::new(bytes.to_vec()))), Arc::default()));
        let fast = run(feed(bytes));
        match (&slow, &fast) {
            (Ok(slow), Ok(fast)) => assert!(slow == fast),
            (Err(slow), Err(fast)) => assert_eq!(slow.to_string(), fast.to_string()),
            _ => panic!("{slow:?} {fast:?}"),
        }
        fast
    }

    fn lz4_frame(bytes: &[u8]) -> Vec<u8> {
        let info = lz4_flex::frame::FrameInfo::new()
            .block_size(lz4_flex::frame::BlockSize::Max64KB)
            .block_mode(lz4_flex::frame::BlockMode::Linked)
            .block_checksums(true)
            .content_checksum(true);
        let mut packed = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    /// Numbers, which pack into something, but not into nothing.
    fn content() -> Vec<u8> {
        (0..60_000u32).flat_map(|number| (number / 3 * 77).to_le_bytes()).collect()
    }

    #[test]
    fn several_frames_are_one_stream_and_every_cut_is_an_error() {
        let content = content();
        let (first, second) = content.split_at(content.len() / 3);
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
        for (packing, parts) in [
            (Packing::Zstd, [zstd(first), zstd(&[]), zstd(second)]),
            (Packing::Lz4, [lz4_frame(first), lz4_frame(&[]), lz4_frame(second)]),
        ] {
            let packed = parts.concat();
            assert!(unpack(packing, &packed).unwrap() == content, "{packing}");
            assert!(unpack(packing, &parts[0]).unwrap() == first, "{packing}");
            let between = [0, parts[0].len(), parts[0].len() + parts[1].len()];
            for cut in (0..packed.len()).step_by(1009).chain(packed.len() - 20..packed.len()) {
                assert_eq!(unpack(packing, &packed[..cut]).is_ok(), between.contains(&cut), "{packing} cut={cut}");
            }
            let garbage = [&packed[..], b"garbage that is no frame"].concat();
            assert!(unpack(packing, &garbage).is_err(), "{packing}");
        }
        // A frame to be skipped, as pzstd writes them.
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(first)].concat();
        assert!(unpack(Packing::Zstd, &skipped).unwrap() == first);
    }

    #[test]
    fn a_cut_between_two_blocks_of_lz4_is_an_error() {
        let packed = lz4_frame(&content());
        // After the frame's header come a length and a checksum with each block.
        let mut at = 7;
        let mut blocks = 0;
        loop {
            let length = u32::from_le_bytes(*packed[at..].first_chunk().unwrap()) & 0x7fff_ffff;
            assert!(unpack(Packing::Lz4, &packed[..at]).is_err(), "at={at}");
            if length == 0 {
                break;
            }
            blocks += 1;
            at += 4 + length as usize + 4;
        }
        assert!(blocks > 2);
    }

    #[test]
    fn too_large_a_window_is_refused_with_its_size() {
        let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        packed.write_all(&content()).unwrap();
        let mut packed = packed.finish().unwrap();
        assert_eq!(packed[4] & 0x20, 0, "a frame with a window of its own");
        // The largest window that is allowed, and the next ones.
        for (descriptor, window) in [(17 << 3, None), ((17 << 3) + 1, Some(144u64 << 20)), (0xff, Some(15u64 << 38))] {
            packed[5] = descriptor;
            let outcome = unpack(Packing::Zstd, &packed);
            match window {
                None => assert!(outcome.unwrap() == content()),
                Some(window) => {
                    let error = outcome.unwrap_err().to_string();
                    assert!(error.contains(&format!("window_bytes={window} limit_bytes=134217728")), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_smaller_limit_of_the_window_holds_for_every_frame() {
        let packed = |log: u32| {
            let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            packed.window_log(log).unwrap();
            packed.write_all(&content()).unwrap();
            packed.finish().unwrap()
        };
        let read = |packed: &[u8]| Zstd::new(feed(packed), 8 << 20).unwrap().read_to_end(&mut Vec::new());
        let (within, beyond) = (packed(23), packed(24));
        assert_eq!(read(&within).unwrap(), content().len());
        for packed in [beyond.clone(), [within, beyond].concat()] {
            let error = read(&packed).unwrap_err().to_string();
            assert!(error.contains("window_bytes=16777216 limit_bytes=8388608"), "{error}");
        }
    }

    #[test]
    fn windows_of_single_segments_are_their_contents() {
        let header = |descriptor: u8, rest: &[u8]| zstd_window(&[&ZSTD_MAGIC[..], &[descriptor], rest].concat());
        assert_eq!(header(0x20, &[7]), Some(7));
        assert_eq!(header(0x63, &[0, 0, 0, 0, 1, 1]), Some(513));
        assert_eq!(header(0xa1, &[9, 0, 0, 0, 8]), Some(8 << 24));
        assert_eq!(header(0xe0, &[255; 8]), Some(u64::MAX));
        assert_eq!(header(0xe0, &[255; 7]), None);
        assert_eq!(header(0x00, &[]), None);
        assert_eq!(zstd_window(b"\x50\x2a\x4d\x18"), None);
    }

    #[test]
    fn the_first_bytes_tell_the_packing() {
        let cases = [
            (zstd::encode_all(&b"x"[..], 1).unwrap(), Some(Packing::Zstd)),
            (lz4_frame(b"x"), Some(Packing::Lz4)),
            (vec![0x02, 0x21, 0x4c, 0x18], Some(Packing::Lz4)),
            (vec![0x1f, 0x8b, 8, 0], Some(Packing::Gzip)),
            (vec![0x5f, 0x2a, 0x4d, 0x18, 0, 0, 0, 0], None),
            (b"version".to_vec(), Some(Packing::None)),
            (b"P*".to_vec(), Some(Packing::None)),
            (vec![], Some(Packing::None)),
        ];
        for (bytes, packing) in cases {
            let mut feed = feed(&bytes);
            assert_eq!(feed.packing().unwrap(), packing);
            let mut again = Vec::new();
            feed.read_to_end(&mut again).unwrap();
            assert_eq!(again, bytes);
            assert_eq!(feed.state().offset(), bytes.len() as u64);
        }
    }
}
