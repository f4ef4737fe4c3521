//! Closing Unix sockets that hold unread data, without waiting for anything in the data.
//!
//! Owns: the threads `local-close`, one for each socket that clients connect to. Must not: close such a
//! socket on a thread that serves others. It may hold descriptors, and closing the last copy of one may block, for
//! example a TCP socket that lingers. A listener may hold connections with such data, which nobody has accepted.
//! Threads: `shm-lookup` and the network edge hand sockets over.
//!
//! The kernel does not linger for a thread that is ending. So a short-lived thread takes a copy of the table of
//! descriptors. The sockets are then closed in the process's table, where they are not the last copies, and the end of
//! that thread closes the last ones. A kernel before 5.9 refuses the copy: closing may then block, and once
//! [`WAITING_MAX`] sockets wait, nobody else is let in until it ends.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use nix::libc;

/// Number of waiting sockets at which nobody else is let in. The thread closes all that wait at once. Connections that
/// are open then may still end, so that more can wait, but not more than were open.
const WAITING_MAX: usize = 64;

/// A handle of the thread that closes sockets; see the head of the file. The thread ends once the last clone is dropped
/// and all is closed.
#[derive(Clone, Debug)]
pub(crate) struct Discard {
    sockets: Sender<OwnedFd>,
    /// Number of sockets that are not closed yet.
    waiting: Arc<AtomicUsize>,
}

impl Discard {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (sockets, received) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let left = Arc::clone(&waiting);
        Builder::new().name("local-close".to_owned()).spawn(move || close_all(&received, &left))?;
        Ok(Self { sockets, waiting })
    }

    /// Closes a socket or a listener on the other thread.
    pub(crate) fn put(&self, socket: impl Into<OwnedFd>) {
        // ORDERING: Relaxed, here and below: the count guards no memory.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // An error means that the thread has panicked, which ends the process.
        let _ended = self.sockets.send(socket.into());
    }

    /// Whether another client may be let in. Never waits.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < WAITING_MAX
    }
}

/// Shuts down reading from a client. Returns true if nothing waits in the socket, and then nothing ever will, so that
/// closing it never blocks.
///
/// # Errors
/// The socket is none that can be read.
pub(crate) fn deafen(socket: &UnixStream) -> io::Result<bool> {
    socket.shutdown(Shutdown::Read)?;
    Ok(rustix::io::ioctl_fionread(socket)? == 0)
}

fn close_all(received: &Receiver<OwnedFd>, waiting: &AtomicUsize) {
    while let Ok(first) = received.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(received.try_iter()).collect();
        let (count, last) = (batch.len(), batch.iter().map(|socket| socket.as_raw_fd().cast_unsigned()).max());
        let last = last.unwrap_or_default();
        let (copied, has_copy) = channel();
        let (closed, is_closed) = channel();
        let keep_until_closed = move || {
            let has_own = copy_descriptors_up_to(last).is_ok();
            // An error of either call means that `close_all` has ended.
            let _ended = copied.send(has_own).map(|()| is_closed.recv());
        };
        let started = Builder::new().name("local-close".to_owned()).spawn(keep_until_closed).is_ok();
        if !(started && has_copy.recv().is_ok_and(|has_own| has_own)) {
            tracing::debug!("sockets that hold data are closed without a copy: this may take long");
        }
        drop(batch);
        // An error means that there is no such thread.
        let _none: Result<(), _> = closed.send(());
        waiting.fetch_sub(count, Ordering::Relaxed);
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
pub(crate) mod tests {
    use std::io::{IoSlice, Read as _, Write as _};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Longer than any test may take: a socket that lingers for as long is not waited for.
    const LONG: Duration = Duration::from_secs(3600);

    /// Sends a byte, and with it the last copy of a TCP socket that lingers for `linger`. Returns the other end of the
    /// TCP connection, which must stay open and unread.
    pub(crate) fn pass_lingering(theirs: &UnixStream, linger: Duration, flags: SendFlags) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (unread, _) = listener.accept().unwrap();
        set_socket_linger(&lingers, Some(linger)).unwrap();
        // Until the other end takes nothing more.
        lingers.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        while lingers.write(&[0; 1 << 16]).is_ok() {}
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [lingers.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(theirs, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
        unread
    }

    #[test]
    fn a_descriptor_that_lingers_delays_no_other_socket() {
        let discard = Discard::start().unwrap();
        let mut kept = Vec::new();
        for _ in 0..3 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let unread = pass_lingering(&theirs, LONG, SendFlags::empty());
            assert!(discard.has_room() && !deafen(&ours).unwrap());
            discard.put(ours);
            theirs.set_read_timeout(Some(LONG / 60)).unwrap();
            // The next one is closed after this one.
            let read = (&theirs).read(&mut [0]);
            assert!(read.as_ref().is_ok_and(|read| *read == 0) || is_reset(&read), "not closed: {read:?}");
            kept.push((unread, theirs));
        }
    }

    #[test]
    fn nobody_is_let_in_while_too_many_sockets_wait() {
        let (sockets, received) = channel();
        let discard = Discard { sockets, waiting: Arc::default() };
        for _ in 0..WAITING_MAX {
            assert!(discard.has_room());
            discard.put(UnixStream::pair().unwrap().0);
        }
        assert!(!discard.has_room());
        let left = Arc::clone(&discard.waiting);
        drop(discard);
        close_all(&received, &left);
        assert_eq!(left.load(Ordering::Relaxed), 0);
    }

    fn is_reset(read: &io::Result<usize>) -> bool {
        read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    }
}
