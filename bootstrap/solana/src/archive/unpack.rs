//! [`Unpacked`]: an archive's unpacked bytes, made by a thread of their own while the caller works on earlier ones.
//!
//! Owns: the thread `unpack`, the buffers between it and the reading thread, and the choice of the decoder. Must not:
//! know tar, or hold more than its buffers and the decoder's window.
//!
//! The thread ends with the stream, with an error, or as soon as [`Unpacked`] is dropped and it gets to hand over a
//! buffer. Nobody waits for it when reading stops early, because it may be waiting for a server or for standard input.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::decode::{Feed, Zstd};
use super::error::{Error, Within};
use super::gzip::Gzip;
use super::lz4::Lz4;
use super::name::Packing;

/// Bytes of one buffer. Handing one over costs two wake-ups of some microseconds; a megabyte takes some hundred to
/// unpack.
const BUFFER_BYTES: usize = 1 << 20;

/// Number of buffers: one is filled and one is read, and two in between even out the difference of single megabytes.
const BUFFERS: usize = 4;

/// Time between two calls of the function that is told about waiting, so that a signal is seen soon.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// An archive's unpacked bytes, in order.
pub(super) struct Unpacked {
    full: Receiver<Message>,
    empty: SyncSender<Vec<u8>>,
    buffer: Vec<u8>,
    /// The part of `buffer` that is still to be read.
    from: usize,
    to: usize,
    has_ended: bool,
    archive: String,
    thread: Option<JoinHandle<()>>,
}

/// Message from the thread that unpacks.
enum Message {
    /// A buffer and the number of its bytes that are filled.
    Bytes(Vec<u8>, usize),
    End,
    Failed(Error),
}

impl Unpacked {
    /// Starts to unpack `packed`, the bytes of the archive `archive`. Without a packing, the first bytes show it.
    /// `count` is kept at the number of packed bytes read so far. A zstd window above `window_bytes_max` is an error of
    /// the stream.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        archive: &str,
        packed: Box<dyn Read + Send>,
        packing: Option<Packing>,
        count: Arc<AtomicU64>,
        window_bytes_max: u64,
    ) -> io::Result<Self> {
        let (full_in, full) = sync_channel(BUFFERS + 1);
        let (empty, empty_out) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            // There is room for all of them.
            let _ = empty.try_send(vec![0; BUFFER_BYTES]);
        }
        let work = Work { archive: archive.to_owned(), window_bytes_max, full: full_in, empty: empty_out };
        let run = move || work.run(Feed::new(packed, count), packing);
        let thread = thread::Builder::new().name("unpack".to_owned()).spawn(run)?;
        Ok(Self {
            full,
            empty,
            buffer: Vec::new(),
            from: 0,
            to: 0,
            has_ended: false,
            archive: archive.to_owned(),
            thread: Some(thread),
        })
    }

    /// Returns the bytes that come next, at least one, unless the stream has ended. Calls `waiting` every
    /// [`LOOK_EVERY`] until they come.
    ///
    /// # Errors
    /// The packed bytes cannot be read or unpacked; errors of `waiting`.
    pub(super) fn fill(&mut self, waiting: &mut dyn FnMut() -> Result<(), Error>) -> Result<&[u8], Error> {
        while self.from == self.to && !self.has_ended {
            match self.full.recv_timeout(LOOK_EVERY) {
                Err(RecvTimeoutError::Timeout) => waiting()?,
                Ok(Message::Bytes(buffer, filled)) => {
                    let used = std::mem::replace(&mut self.buffer, buffer);
                    (self.from, self.to) = (0, filled);
                    if !used.is_empty() {
                        // Fails only when the thread has ended, which needs no more buffers.
                        let _ = self.empty.send(used);
                    }
                }
                Ok(Message::End) => {
                    self.has_ended = true;
                    self.join()?;
                }
                Ok(Message::Failed(error)) => {
                    self.has_ended = true;
                    return Err(error);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.has_ended = true;
                    self.join()?;
                }
            }
        }
        Ok(&self.buffer[self.from..self.to])
    }

    /// Marks as read the first `bytes` of the bytes that come next.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Waits for the thread, which has said its last.
    fn join(&mut self) -> Result<(), Error> {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(Error::Io {
                archive: self.archive.clone(),
                offset: 0,
                within: Within::default(),
                source: io::Error::other("the thread that unpacks has panicked"),
            }),
        }
    }
}

/// The work of the thread `unpack`.
struct Work {
    archive: String,
    window_bytes_max: u64,
    full: SyncSender<Message>,
    empty: Receiver<Vec<u8>>,
}

impl Work {
    /// Unpacks the whole stream. A failed send means that the reader has gone.
    fn run(self, mut feed: Feed, packing: Option<Packing>) {
        let state = feed.state();
        let (packing, is_other) = match feed.packing() {
            Ok(found) => {
                let is_other = packing.zip(found).is_some_and(|(named, found)| named != found);
                (packing.or(found).unwrap_or(Packing::Zstd), is_other)
            }
            Err(source) => {
                let (archive, within) = (self.archive.clone(), Within::default());
                let error = Error::Io { archive, offset: state.offset(), within, source };
                let _ = self.full.send(Message::Failed(error));
                return;
            }
        };
        let failed = |source: io::Error| {
            let (archive, offset, within) = (self.archive.clone(), state.offset(), Within::default());
            if state.has_failed() {
                Error::Io { archive, offset, within, source }
            } else {
                let source = if is_other { other_bytes(packing, &source) } else { source };
                Error::Unpack { archive, packing, offset, within, source }
            }
        };
        let last =
            match decoder(feed, packing, self.window_bytes_max).and_then(|mut unpacked| self.pump(&mut *unpacked)) {
                Ok(()) => Message::End,
                Err(source) => Message::Failed(failed(source)),
            };
        let _ = self.full.send(last);
    }

    /// Hands over buffer after buffer, until the stream ends or the reader has gone.
    fn pump(&self, unpacked: &mut dyn Read) -> io::Result<()> {
        while let Ok(mut buffer) = self.empty.recv() {
            let mut filled = 0;
            let mut outcome = Ok(false);
            while filled < buffer.len() && matches!(outcome, Ok(false)) {
                match unpacked.read(&mut buffer[filled..]) {
                    Ok(0) => outcome = Ok(true),
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                    Err(error) => outcome = Err(error),
                }
            }
            if filled > 0 && self.full.send(Message::Bytes(buffer, filled)).is_err() {
                return Ok(());
            }
            if outcome? {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Explains an error of unpacking where the first bytes are not of the packing that the archive's name says.
fn other_bytes(packing: Packing, source: &io::Error) -> io::Error {
    let text = format!(
        "the file is not packed by {packing}, although its name says so, and may be an error page of a server: look at it, and \
         download it again: {source}"
    );
    io::Error::new(source.kind(), text)
}

fn decoder(feed: Feed, packing: Packing, window_bytes_max: u64) -> io::Result<Box<dyn Read>> {
    Ok(match packing {
        Packing::None => Box::new(feed),
        Packing::Gzip => Box::new(Gzip::new(feed)),
        Packing::Lz4 => Box::new(Lz4::new(feed)),
        Packing::Zstd => Box::new(Zstd::new(feed, window_bytes_max)?),
    })
}
