//! Standard input or a named pipe, read by a thread of its own.
//!
//! Owns: that thread. Must not: keep a signal waiting for a writer that never comes. Threads: `input` opens the pipe
//! and reads a few pieces ahead. It ends with the pipe or with the process, because nothing can wake it earlier. The
//! thread that reads the source takes the pieces, and checks for a signal while it waits for one.

use std::fs::File;
use std::io::{self, BufRead, ErrorKind as Io, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::signal::{self, Stopped};

/// Bytes of a piece: the default capacity of a pipe.
const PIECE_BYTES: usize = 64 << 10;
/// Largest number of pieces read ahead, 1 MiB: enough that neither side waits for the other's pauses.
const PIECES_AHEAD: usize = 16;
/// Time between two checks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether `path` names standard input.
pub(super) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Reader of a pipe's bytes. An empty piece marks the end.
pub(super) struct Pipe {
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Pipe {
    /// Begins to read `path`, or standard input if it is `-`. The pipe is opened once, and only here: when an end is
    /// closed, the writer thinks that its reader is gone.
    pub(super) fn start(path: &Path) -> Result<Self> {
        let (sender, pieces) = sync_channel(PIECES_AHEAD);
        let path = path.to_owned();
        thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || pump(path, &sender))
            .context("cannot start the thread that reads the input")?;
        Ok(Self { pieces, piece: Vec::new(), at: 0, ended: false })
    }

    fn next(&mut self) -> io::Result<()> {
        loop {
            match self.pieces.recv_timeout(LOOK_EVERY) {
                Ok(piece) => {
                    (self.piece, self.at) = (piece?, 0);
                    self.ended = self.piece.is_empty();
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) if signal::is_asked() => return Err(io::Error::other(Stopped)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the reading thread has ended")),
            }
        }
    }
}

impl BufRead for Pipe {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.piece.len() && !self.ended {
            self.next()?;
        }
        Ok(&self.piece[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = self.fill_buf()?;
        let bytes = filled.read(buffer)?;
        self.consume(bytes);
        Ok(bytes)
    }
}

/// Reads pieces and sends them, until the end of the input, an error, or a dropped receiver.
fn pump(path: PathBuf, pieces: &SyncSender<io::Result<Vec<u8>>>) {
    let opened: io::Result<Box<dyn Read>> = if is_stdin(&path) {
        Ok(Box::new(io::stdin().lock()))
    } else {
        File::open(path).map(|file| Box::new(file) as _)
    };
    let mut input = match opened {
        Ok(input) => input,
        Err(error) => {
            pieces.send(Err(error)).ok();
            return;
        }
    };
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let read = match input.read(&mut piece) {
            Err(error) if error.kind() == Io::Interrupted => continue,
            read => read.map(|bytes| {
                piece.truncate(bytes);
                piece
            }),
        };
        let is_last = read.as_ref().map_or(true, Vec::is_empty);
        if pieces.send(read).is_err() || is_last {
            return;
        }
    }
}
