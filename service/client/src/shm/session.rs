//! A session in shared memory: the handshake, a request, its answer.
//!
//! Owns: the mapping of the service's memory on this side. Must not: wait for a deadline or connect again; the module above
//! does that. Thread: the caller's, one at a time.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, socket_with,
};
use rustix::thread::futex;
use shm_layout::{Hello, Request, Response, SEGMENT_BYTES, Segment, VERSION, Waits, hello, op, status};

use super::spin::Spin;
use crate::error::{Error, ErrorKind, Result};
use crate::{Key, Status, Value};

/// A connected session with a service.
pub(crate) struct Session {
    segment: Segment,
    /// Keeps the segment's memory mapped.
    _memory: MmapRaw,
    /// The socket of the handshake. The service's end closes it; wake-up bytes arrive on it for [`Waits::Socket`].
    pub(crate) socket: UnixStream,
    /// The eventfd whose write wakes the service.
    bell: OwnedFd,
    /// The memfd of the feed's ring; `None` if the service has no feed.
    ring: Option<OwnedFd>,
    /// Number of the newest request sent; 0 before the first.
    seq: u64,
    spin: Spin,
    /// For how long the newest wait polled.
    polled_for: Duration,
}

impl Session {
    /// Connects and takes over the session's memory. Blocks until `deadline` at most. Later waits poll for at most
    /// `spin`.
    pub(crate) fn connect(path: &Path, spin: Duration, deadline: Instant) -> Result<Self> {
        let at = |what: &str, error: &dyn std::fmt::Display| {
            Error::unavailable(format!("{what}: {error}; is the service running? shm={}", path.display()))
        };
        let socket = dial(path, deadline).map_err(|error| at("cannot connect", &error))?;
        let (hello, fds) = receive(&socket).map_err(|error| at("the service does not greet", &error))?;
        if (hello.version, hello.segment_bytes) != (VERSION, SEGMENT_BYTES as u64) {
            let (what, theirs) = ("the service speaks another version of shared memory", hello.version);
            return Err(Error::new(ErrorKind::Refused, format!("{what}: ours={VERSION} service={theirs}")));
        }
        match hello.status {
            hello::OK => {}
            hello::FULL => {
                let why = "the service has its maximum of shared-memory clients, of this user or in total";
                return Err(Error::new(ErrorKind::RetryLater, why));
            }
            _ => return Err(Error::failed("the service could not make a session: see its log")),
        }
        let mut fds = fds.into_iter();
        let (Some(memfd), Some(bell)) = (fds.next(), fds.next()) else {
            return Err(Error::failed("a greeting without its descriptors"));
        };
        Self::map(memfd, socket, bell, fds.next(), Spin::new(spin))
            .map_err(|error| Error::failed(format!("cannot take over the session's memory: {error}")))
    }

    fn map(memfd: OwnedFd, socket: UnixStream, bell: OwnedFd, ring: Option<OwnedFd>, spin: Spin) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let (memory, base) = map(memfd, SEGMENT_BYTES, |file| MmapRaw::map_raw(file))?;
        // SAFETY: a shared mapping of the whole segment, which the service made zero and sealed against shrinking, kept
        // together with the view; this process's only view of it.
        let segment = unsafe { Segment::new(base) };
        Ok(Self { segment, _memory: memory, socket, bell, ring, seq: 0, spin, polled_for: Duration::ZERO })
    }

    /// Gives up the session's requests, for a client that only follows the feed: returns the socket and the ring.
    pub(crate) fn into_feed(self) -> (UnixStream, Option<OwnedFd>) {
        (self.socket, self.ring)
    }

    /// Sends a request. The one before must be [`Session::answered`], because all requests use the same memory.
    pub(crate) fn send(&mut self, request: Request, keys: &[Key]) {
        self.seq += 1;
        if self.segment.send(self.seq, request, keys) {
            // The write fails only when the bell's counter is at its limit of 2^64. The service then wakes by its own
            // timer.
            let _heard = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether the newest request is answered.
    pub(crate) fn answered(&self) -> bool {
        self.segment.answered(self.seq)
    }

    /// Whether the newest request is answered; polls for the answer first where that helps.
    pub(crate) fn polled(&mut self) -> bool {
        if self.answered() {
            return true;
        }
        self.polled_for = self.spin.next();
        let took = look(self.polled_for, || self.answered());
        took.inspect(|took| self.spin.spun(*took)).is_some()
    }

    /// Begins a sleep, after polling in vain. Returns the time where it must be measured.
    pub(crate) fn begin_sleep(&self) -> Option<Instant> {
        self.spin.is_on().then(Instant::now)
    }

    /// Ends a sleep that began at `started` and brought the answer.
    pub(crate) fn end_sleep(&mut self, started: Option<Instant>) {
        self.stop_waiting();
        match started {
            Some(started) if self.polled_for.is_zero() => self.spin.slept(started.elapsed()),
            Some(started) => self.spin.spun(self.polled_for + started.elapsed()),
            None => {}
        }
    }

    /// Asks the service to wake this side in the way `how` for the answer. Returns true if the answer is there already,
    /// so that no wake-up is needed.
    pub(crate) fn wait(&self, how: Waits) -> bool {
        self.segment.wait(self.seq, how)
    }

    /// Sleeps until the service wakes this side, which must have asked for it with [`Waits::Futex`], for at most
    /// `time`. Returns false if all of `time` has passed.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let Some(unanswered) = self.segment.unanswered(self.seq) else { return true };
        // A duration that does not fit into a timespec is as good as no limit.
        let time = Timespec::try_from(time).ok();
        let slept = futex::wait(self.segment.futex(), futex::Flags::empty(), unanswered, time.as_ref());
        slept != Err(rustix::io::Errno::TIMEDOUT)
    }

    /// Ends a wait: the service need not wake this side any longer.
    pub(crate) fn stop_waiting(&self) {
        self.segment.stop_waiting();
    }

    /// Whether the service has closed the session.
    pub(crate) fn is_gone(&self) -> bool {
        // The end of the connection (POLLHUP) is reported without being asked for.
        is_ready(&self.socket, PollFlags::empty())
    }

    /// Returns the answer if it is a good one, or `None` if the slot asked for is not reached and the caller should ask
    /// again.
    pub(crate) fn outcome(&self, request: &Request) -> Result<Option<Response>> {
        let response = self.segment.response();
        match response.status {
            status::OK if request.op == op::STATUS || response.count == request.count => Ok(Some(response)),
            status::SLOT_NOT_REACHED => Ok(None),
            status::COMMITMENT => {
                Err(Error::new(ErrorKind::Refused, "the service does not follow processed slots: ask at confirmed"))
            }
            status::VERSION => Err(Error::new(ErrorKind::Refused, "the service speaks another version")),
            status::BAD_REQUEST => Err(Error::bad_input("the service does not know this request")),
            status::UNAVAILABLE => {
                Err(Error::unavailable("no answer now: nothing is known to be final yet, or see the service's log"))
            }
            _ => Err(Error::failed(format!("the service failed: status={}; see its log", response.status))),
        }
    }

    /// Appends the values of a good answer to `into`.
    pub(crate) fn values(&self, response: &Response, into: &mut Vec<Option<Value>>) {
        into.extend((0..response.count as usize).map(|index| self.segment.value(index)));
    }

    /// Returns the value of a good answer to a request for one key.
    pub(crate) fn value(&self) -> Option<Value> {
        self.segment.value(0)
    }

    /// Decodes the status in a good answer.
    pub(crate) fn status(&self, response: &Response) -> Result<Status> {
        Status::decode(&self.segment.status_bytes(response.count))
    }
}

/// Looks between two readings of the clock, which costs as much as several looks.
const LOOKS: usize = 16;

/// Looks for up to `spin` whether `found`. If it was, returns the time that this took, as of the last reading of the
/// clock.
pub(crate) fn look(spin: Duration, found: impl Fn() -> bool) -> Option<Duration> {
    if spin.is_zero() {
        return None;
    }
    let (started, mut took) = (Instant::now(), Duration::ZERO);
    while took <= spin {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if found() {
                return Some(took);
            }
        }
        took = started.elapsed();
    }
    None
}

/// Whether a socket of the service has one of these events, or has ended.
pub(crate) fn is_ready(socket: &UnixStream, events: PollFlags) -> bool {
    let mut fds = [PollFd::new(socket, events)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Maps memory that the service handed over, and returns its first byte.
pub(crate) fn map(
    memfd: OwnedFd,
    bytes: usize,
    mapped: impl FnOnce(&File) -> io::Result<MmapRaw>,
) -> io::Result<(MmapRaw, NonNull<u8>)> {
    let memfd = File::from(memfd);
    // The first touch beyond a shorter file would raise SIGBUS.
    if memfd.metadata()?.len() < bytes as u64 {
        return Err(io::Error::other("it is too small"));
    }
    let memory = mapped(&memfd)?;
    let base = NonNull::new(memory.as_mut_ptr()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
    Ok((memory, base))
}

/// Connects a socket whose reads end by `deadline`, as does the wait for a service that does not accept.
fn dial(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A timeout of zero would mean no limit.
    let left = Some(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    set_socket_timeout(&socket, Timeout::Send, left)?;
    set_socket_timeout(&socket, Timeout::Recv, left)?;
    connect(&socket, &address)?;
    Ok(socket.into())
}

fn receive(socket: &UnixStream) -> io::Result<(Hello, Vec<OwnedFd>)> {
    let mut bytes = [0u8; size_of::<Hello>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got?.bytes,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let hello = if got == bytes.len() { Hello::from_bytes(&bytes) } else { None };
    let hello = hello.ok_or_else(|| io::Error::other(format!("not a greeting of shared memory: bytes={got}")))?;
    Ok((hello, fds))
}
