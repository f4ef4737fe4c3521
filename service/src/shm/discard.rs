//! Closing sockets that hold unread data, without waiting for anything in the data.
//!
//! Owns: the thread `shm-close`. Must not: close such a socket on the thread that answers lookups. It may hold
//! descriptors, and closing the last copy of one may block, for example a TCP socket that lingers. Threads: `shm-lookup`
//! hands sockets over.
//!
//! The kernel does not linger for a thread that is ending. So a short-lived thread takes a copy of the table of
//! descriptors. The sockets are then closed in the process's table, where they are not the last copies, and the end of
//! that thread closes the last ones. A kernel before 5.9 refuses the copy: closing may then block, and once
//! [`WAITING_MAX`] sockets wait, nobody else is let in until it ends.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::Builder;

use nix::libc;

/// Maximum number of sockets that wait to be closed. The thread closes all that wait at once, so more would not help.
const WAITING_MAX: usize = 64;

/// The thread that closes sockets; see the head of the file. It ends once this is dropped.
pub(super) struct Discard {
    sockets: SyncSender<UnixStream>,
    /// A socket for which there was no room.
    left: Option<UnixStream>,
}

impl Discard {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub(super) fn start() -> io::Result<Self> {
        let (sockets, waiting) = sync_channel(WAITING_MAX);
        Builder::new().name("shm-close".to_owned()).spawn(move || close_all(&waiting))?;
        Ok(Self { sockets, left: None })
    }

    /// Closes a socket on the other thread. Call it only while [`Discard::has_room`].
    pub(super) fn put(&mut self, socket: UnixStream) {
        if let Err(TrySendError::Full(socket) | TrySendError::Disconnected(socket)) = self.sockets.try_send(socket) {
            self.left = Some(socket);
        }
    }

    /// Whether one more socket can be taken. Never waits.
    pub(super) fn has_room(&mut self) -> bool {
        if let Some(socket) = self.left.take() {
            self.put(socket);
        }
        self.left.is_none()
    }
}

fn close_all(waiting: &Receiver<UnixStream>) {
    while let Ok(first) = waiting.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(waiting.try_iter()).collect();
        let last = batch.iter().map(|socket| socket.as_raw_fd().cast_unsigned()).max().unwrap_or_default();
        let (copied, has_copy) = channel();
        let (closed, is_closed) = channel();
        let keep_until_closed = move || {
            let has_own = copy_descriptors_up_to(last).is_ok();
            // An error of either call means that `close_all` has ended.
            let _ended = copied.send(has_own).map(|()| is_closed.recv());
        };
        let started = Builder::new().name("shm-close".to_owned()).spawn(keep_until_closed).is_ok();
        if !(started && has_copy.recv().is_ok_and(|has_own| has_own)) {
            tracing::debug!("sockets that hold data are closed without a copy: this may take long");
        }
        drop(batch);
        // An error means that there is no such thread.
        let _none: Result<(), _> = closed.send(());
    }
}

/// Gives the calling thread its own table of descriptors, which holds copies of those up to `last` alone.
fn copy_descriptors_up_to(last: u32) -> io::Result<()> {
    // SAFETY: the call takes three numbers. The thread that makes it uses no descriptor afterwards, so it does not
    // matter that its table lacks some.
    match unsafe { libc::syscall(libc::SYS_close_range, last + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read as _, Write as _};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Longer than any test may take: a socket that lingers for as long is not waited for.
    const LONG: Duration = Duration::from_secs(3600);

    /// Returns the service's end of a socket that holds the last copy of a TCP socket which lingers, the client's end,
    /// and the other end of the TCP connection, which must stay open and unread.
    fn lingering() -> (UnixStream, UnixStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (unread, _) = listener.accept().unwrap();
        set_socket_linger(&lingers, Some(LONG)).unwrap();
        lingers.set_nonblocking(true).unwrap();
        while lingers.write(&[0; 1 << 16]).is_ok() {}
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [lingers.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&theirs, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        (ours, theirs, unread)
    }

    #[test]
    fn a_descriptor_that_lingers_delays_no_other_socket() {
        let mut discard = Discard::start().unwrap();
        let (kept, clients): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                let (ours, theirs, unread) = lingering();
                assert!(discard.has_room());
                discard.put(ours);
                theirs.set_read_timeout(Some(LONG / 60)).unwrap();
                // The next one is closed after this one.
                let read = (&theirs).read(&mut [0]);
                assert!(read.as_ref().is_ok_and(|read| *read == 0) || is_reset(&read), "not closed: {read:?}");
                (unread, theirs)
            })
            .unzip();
        drop((kept, clients));
    }

    fn is_reset(read: &io::Result<usize>) -> bool {
        read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    }
}
