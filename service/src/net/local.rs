//! Connections of the Unix socket, whose clients may pass descriptors along with their bytes.
//!
//! Owns: such a connection from its acceptance to its closing. Must not: receive a descriptor, or drop one. Closing the
//! last copy of some blocks, for example of a TCP socket that lingers. Threads: the network edge; `local-close` closes
//! sockets that hold anything.
//!
//! Bytes are looked at before they are read. The kernel says then whether descriptors came with them, and keeps these
//! in the socket. Such a connection ends, and its socket is closed elsewhere, with all that it holds. So are the sockets
//! of clients that were refused or cut before all their bytes were read.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::sockopt::set_socket_oobinline;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recv, recvmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

use super::discard::{Discard, deafen};

/// Maximum number of bytes that are read at once. They are looked at first, and memory that was never written is cleared for
/// that: a larger piece would cost more than another read.
const READ_BYTES: usize = 16 * 1024;

/// A connection; see the head of the file.
pub(super) struct Local {
    stream: ManuallyDrop<UnixStream>,
    discard: Discard,
}

impl Local {
    /// Takes over a connection of which nothing has been read.
    pub(super) fn new(stream: UnixStream, discard: Discard) -> Self {
        // A byte out of band would be passed over here and dropped by the next read, with its descriptors. No socket
        // refuses the option.
        set_socket_oobinline(&stream, true).ok();
        Self { stream: ManuallyDrop::new(stream), discard }
    }

    /// Returns the id of the user that the client runs as; `None` if the socket is gone.
    pub(super) fn user(&self) -> Option<u32> {
        self.stream.peer_cred().ok().map(|peer| peer.uid())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        let stream = unsafe { ManuallyDrop::take(&mut self.stream) };
        // An error means that the runtime does not know the socket, which no client can cause.
        let Ok(socket) = stream.into_std() else { return };
        if !deafen(&socket).is_ok_and(|is_empty| is_empty) {
            self.discard.put(socket);
        }
    }
}

/// Reads bytes that no descriptor came with. Only this thread reads, so that the bytes are those that were looked at.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
    let mut none = RecvAncillaryBuffer::default();
    let seen = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut none, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        tracing::warn!("a client of the Unix socket is cut: it passed descriptors, which no correct client does");
        return Err(io::Error::new(ErrorKind::InvalidData, "the client passed descriptors"));
    }
    let (read, _) = recv(stream, &mut into[..seen.bytes], RecvFlags::DONTWAIT)?;
    Ok(read)
}

impl AsyncRead for Local {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let into = buffer.initialize_unfilled_to(buffer.remaining().min(READ_BYTES));
            match self.stream.try_io(Interest::READABLE, || receive(&self.stream, into)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => {
                    buffer.advance(read?);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Local {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as Theirs;
    use std::time::{Duration, Instant};

    use rustix::net::SendFlags;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::discard::tests::pass_lingering;
    use super::*;

    /// How long a descriptor lingers, in the thread that drops it.
    const LINGER: Duration = Duration::from_secs(20);

    fn pair(discard: &Discard) -> (Local, Theirs) {
        let (ours, theirs) = Theirs::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Local::new(UnixStream::from_std(ours).unwrap(), discard.clone()), theirs)
    }

    #[tokio::test]
    async fn a_connection_passes_bytes_in_both_directions_to_its_end() {
        let (mut ours, mut theirs) = pair(&Discard::start().unwrap());
        let sent: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let expected = sent.clone();
        let client = std::thread::spawn(move || {
            theirs.write_all(&sent).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            std::io::read_to_string(theirs).unwrap()
        });
        let mut received = Vec::new();
        ours.read_to_end(&mut received).await.unwrap();
        assert!(received == expected, "bytes={}", received.len());
        ours.write_all(b"answer").await.unwrap();
        drop(ours);
        assert_eq!(client.join().unwrap(), "answer");
    }

    #[tokio::test]
    async fn a_client_that_passes_descriptors_is_cut_and_nobody_waits_for_them() {
        let (discard, begun) = (Discard::start().unwrap(), Instant::now());
        let mut kept = Vec::new();
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            for (before, is_read) in [("", true), ("PRI", true), ("PRI", false), ("", false)] {
                let (mut ours, mut theirs) = pair(&discard);
                theirs.write_all(before.as_bytes()).unwrap();
                kept.push(pass_lingering(&theirs, LINGER, flags));
                theirs.write_all(b"more").unwrap();
                drop(theirs);
                let mut received = Vec::new();
                if is_read {
                    let error = ours.read_to_end(&mut received).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidData, "{flags:?}");
                }
                assert!(before.as_bytes().starts_with(&received), "{flags:?} {received:?}");
                drop(ours);
            }
        }
        assert!(begun.elapsed() < LINGER / 2, "{:?}", begun.elapsed());
    }
}
