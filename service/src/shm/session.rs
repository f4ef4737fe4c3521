//! One client's session: its memory, its bell, and the answer to its request.
//!
//! Owns: the segment from the handshake until the client is gone. Must not: block, whatever the client does with the
//! shared objects. Thread: `shm-lookup`.
//!
//! The objects that both sides share, and why the client cannot stop the service through them:
//! - the segment: sealed against shrinking; every number in it is checked and every key copied;
//! - the bell: never read or written by the service, see [`super::bells`];
//! - the socket: each call on the service's end asks for itself not to block, and nothing is read from it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use engine_api::{Key, Value};
use memmap2::MmapRaw;
use prost::Message as _;
use proto::v1::GET_MANY_KEYS_MAX;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use rustix::thread::futex;
use shm_layout::{
    Hello, KEYS_MAX, Request, Response, SEGMENT_BYTES, STATUS_BYTES_MAX, Segment, VERSION, Wake, hello, op, status,
};

use super::bells;
use super::state::ShmState;
use crate::ask::refusal::{Cause, Refusal};
use crate::ask::wait::Wanted;
use crate::base::chain::Commitment;
use crate::base::slow::{Parts, Transport};
use crate::reading::{BatchReading, PIECE_KEYS, Reading};

// A client splits a request at one size, whichever way it goes.
const _: () = assert!(KEYS_MAX == GET_MANY_KEYS_MAX);

/// A client's session, from its greeting on.
pub(super) struct Session {
    id: u64,
    /// Id of the user that the client runs as.
    user: u32,
    segment: Segment,
    /// Keeps the segment's memory mapped.
    _memory: MmapRaw,
    /// The client's end closes it.
    socket: UnixStream,
    bell: OwnedFd,
    /// Number of the newest request that was answered; 0 before the first.
    answered: u64,
    /// A batch that is not answered yet.
    batch: Option<Asked>,
}

/// The work that [`Session::serve`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    Nothing,
    Answered,
    /// A batch was requested and waits for its turn.
    Batch,
}

/// A lookup that has no answer yet. Its keys lie in the segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    seq: u64,
    keys: usize,
    wanted: Wanted,
}

/// Buffers that the thread reuses for each request.
#[derive(Default)]
pub(super) struct Scratch {
    keys: Vec<Key>,
    values: Vec<Option<Value>>,
}

impl Session {
    /// Creates the segment and the bell and hands them to the client. `socket` must have passed [`deafen`](crate::net::discard::deafen).
    pub(super) fn start(id: u64, user: u32, socket: UnixStream, feed: Option<&OwnedFd>) -> io::Result<Self> {
        match Self::make() {
            Ok((memory, segment, bell, memfd)) => {
                let own = [memfd.as_fd(), bell.as_fd()];
                let fds: Vec<BorrowedFd<'_>> = own.into_iter().chain(feed.map(AsFd::as_fd)).collect();
                greet(socket.as_fd(), hello::OK, &fds)?;
                Ok(Self { id, user, segment, _memory: memory, socket, bell, answered: 0, batch: None })
            }
            Err(error) => {
                refuse(socket.as_fd(), hello::FAILED);
                Err(error)
            }
        }
    }

    fn make() -> io::Result<(MmapRaw, Segment, OwnedFd, File)> {
        let memfd = memfd_create("solkv-shm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, SEGMENT_BYTES as u64)?;
        // The first touch beyond the end of a file that shrank would raise SIGBUS.
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memfd = File::from(memfd);
        let memory = MmapRaw::map_raw(&memfd)?;
        let base = NonNull::new(memory.as_mut_ptr()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        // SAFETY: a fresh shared mapping of the sealed size, zero, kept together with the view; the service's only view
        // of it.
        let segment = unsafe { Segment::new(base) };
        Ok((memory, segment, bells::bell()?, memfd))
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Whether a request waits for an answer.
    pub(super) fn asked(&self) -> bool {
        self.batch.is_some() || self.segment.requested() != self.answered
    }

    /// Returns the number of keys of the batch that waits or is under way; `None` without one.
    pub(super) fn batch_keys(&self) -> Option<usize> {
        self.batch.map(|asked| asked.keys)
    }

    /// Looks for a request. Answers it at once unless it is a batch, which is recorded to wait for its turn.
    pub(super) fn serve(&mut self, reading: &mut Reading<'_>, scratch: &mut Scratch, state: &ShmState) -> Served {
        let seq = self.segment.requested();
        if seq == self.answered || self.batch.is_some() {
            return Served::Nothing;
        }
        let response = match read(seq, &self.segment.request()) {
            Err(status) => failed(status),
            Ok(None) => self.status(state),
            Ok(Some(asked)) if asked.keys > 1 => {
                self.batch = Some(asked);
                return Served::Batch;
            }
            Ok(Some(asked)) => {
                self.look_up(&asked, reading, scratch, state);
                return Served::Answered;
            }
        };
        self.answer(seq, response);
        Served::Answered
    }

    /// Copies the request that waits if it is a confirmed get. It waits on until [`Session::give`] or [`Session::serve`]
    /// answers it.
    pub(super) fn take_get(&self, scratch: &mut Scratch) -> Option<(Key, Asked)> {
        let seq = self.segment.requested();
        if seq == self.answered || self.batch.is_some() {
            return None;
        }
        let asked = read(seq, &self.segment.request()).ok().flatten()?;
        if asked.keys != 1 || asked.wanted.commitment != Commitment::Confirmed {
            return None;
        }
        self.segment.keys(1, &mut scratch.keys);
        scratch.keys.first().map(|key| (*key, asked))
    }

    /// Answers a lookup with the values that were found for it at `slot`.
    pub(super) fn give(
        &mut self,
        asked: &Asked,
        slot: Option<u64>,
        values: &[Option<Value>],
        spent: Parts,
        state: &ShmState,
    ) {
        let response = self.found(asked, slot, values);
        self.answer(asked.seq, response);
        report_slow(asked, response, spent, state);
    }

    /// Answers the waiting batch in one piece, because it has no more than [`PIECE_KEYS`] keys.
    pub(super) fn serve_short_batch(&mut self, reading: &mut Reading<'_>, scratch: &mut Scratch, state: &ShmState) {
        if let Some(asked) = self.batch.take() {
            debug_assert!(asked.keys <= PIECE_KEYS, "a long one is read in pieces");
            self.look_up(&asked, reading, scratch, state);
        }
    }

    /// Opens the state from which the batch is read. Returns false if that failed; the batch is then answered with the
    /// error.
    pub(super) fn begin_batch(&mut self, batches: &mut BatchReading<'_>) -> bool {
        let Some(asked) = self.batch else { return false };
        self.segment.keys(asked.keys, &mut batches.keys);
        let begun = batches.begin(asked.wanted.commitment);
        begun.map_err(|error| self.end_batch(error.into())).is_ok()
    }

    /// Reads the next piece of the batch. Returns true if it was the last, or failed; the batch is then answered.
    pub(super) fn piece_of_batch(&mut self, batches: &mut BatchReading<'_>, state: &ShmState) -> bool {
        match batches.piece() {
            Ok(false) => return false,
            Err(error) => self.end_batch(error.into()),
            Ok(true) => {
                if let Some(asked) = self.batch.take() {
                    self.give(&asked, batches.slot(), &batches.values, batches.spent(), state);
                }
            }
        }
        true
    }

    fn end_batch(&mut self, refusal: Refusal) {
        if let Some(asked) = self.batch.take() {
            self.answer(asked.seq, failed(code(&refusal)));
        }
    }

    /// Publishes an answer and wakes the client, if it sleeps.
    fn answer(&mut self, seq: u64, response: Response) {
        self.answered = seq;
        match self.segment.respond(seq, response) {
            Wake::Nobody => {}
            // Wakes one waiter, because a session has only one; a client that makes others harms only itself. The only
            // possible errors are those of a wrong address.
            Wake::Futex => _ = futex::wake(self.segment.futex(), futex::Flags::empty(), 1),
            // A full socket already holds enough wake-up bytes. The epoll reports a closed one.
            Wake::Socket => _ = send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        }
    }

    fn status(&self, state: &ShmState) -> Response {
        let encoded = state.status.response().encode_to_vec();
        if encoded.len() > STATUS_BYTES_MAX {
            return failed(status::FAILED);
        }
        self.segment.set_status_bytes(&encoded);
        Response { status: status::OK, count: encoded.len() as u32, ..Response::default() }
    }

    /// Reads the keys of a request from one state, and answers it.
    fn look_up(&mut self, asked: &Asked, reading: &mut Reading<'_>, scratch: &mut Scratch, state: &ShmState) {
        let Scratch { keys, values } = scratch;
        self.segment.keys(asked.keys, keys);
        values.clear();
        values.resize(keys.len(), None);
        match reading.get_into(keys, values, asked.wanted.commitment) {
            Ok(slot) => self.give(asked, slot, values, reading.spent(), state),
            Err(error) => self.answer(asked.seq, failed(code(&error.into()))),
        }
    }

    /// Returns the answer to a request whose values were read at `slot`. If `slot` is too old for the request, the
    /// answer is SLOT_NOT_REACHED.
    fn found(&self, asked: &Asked, slot: Option<u64>, values: &[Option<Value>]) -> Response {
        let reached =
            Response { has_slot: slot.is_some().into(), slot: slot.unwrap_or_default(), ..Response::default() };
        if !asked.wanted.is_in(slot) {
            return Response { status: status::SLOT_NOT_REACHED, ..reached };
        }
        self.segment.set_values(values);
        Response { status: status::OK, count: values.len() as u32, ..reached }
    }
}

/// Logs a lookup if it was slow. Its time is the sum of the parts, because the time at which the client wrote the request is
/// unknown; so the time that a batch waits between its pieces does not count.
fn report_slow(asked: &Asked, response: Response, spent: Parts, state: &ShmState) {
    let (slow, total_ns) = (&state.lookups.slow, spent.sum_ns());
    if response.status == status::OK && slow.is_slow(total_ns) {
        slow.report(Transport::Shm, asked.keys, asked.wanted.commitment, total_ns, spent);
    }
}

/// Reads the request with this number: a lookup, or `None` for the status.
///
/// # Errors
/// The reason to refuse it, one of [`status`].
fn read(seq: u64, request: &Request) -> Result<Option<Asked>, u32> {
    if request.version != VERSION {
        return Err(status::VERSION);
    }
    let keys = request.count as usize;
    match (request.op, Commitment::from_wire(request.commitment)) {
        (op::STATUS, _) => Ok(None),
        (op::GET, Some(commitment)) if keys <= KEYS_MAX => {
            // On the wire, 0 means that the request names no slot.
            let min_context_slot = Some(request.min_context_slot).filter(|slot| *slot > 0);
            Ok(Some(Asked { seq, keys, wanted: Wanted::new(commitment, min_context_slot, None) }))
        }
        _ => Err(status::BAD_REQUEST),
    }
}

fn failed(status: u32) -> Response {
    Response { status, ..Response::default() }
}

/// Returns shared memory's code for a refusal.
fn code(refusal: &Refusal) -> u32 {
    match refusal.cause {
        Cause::Invalid | Cause::NotFound | Cause::OutOfRange | Cause::Unauthenticated => status::BAD_REQUEST,
        Cause::NotOffered => status::COMMITMENT,
        Cause::NotReached => status::SLOT_NOT_REACHED,
        Cause::Full | Cause::Unavailable | Cause::Overdue => status::UNAVAILABLE,
        Cause::Damaged | Cause::Internal => status::FAILED,
    }
}

/// Sends the reason why there is no session. A client that is gone by then needs no answer.
pub(super) fn refuse(socket: BorrowedFd<'_>, status: u32) {
    if let Err(error) = greet(socket, status, &[]) {
        tracing::debug!(%error, "a refused shared-memory client did not wait for the answer");
    }
}

fn greet(socket: BorrowedFd<'_>, status: u32, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("no space for descriptors"));
    }
    let bytes = Hello::new(status).to_bytes();
    // The empty buffer of a new socket takes a whole greeting.
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("a greeting was cut")) }
}
