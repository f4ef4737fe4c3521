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

use engine_api::{ErrorKind, Key, Value};
use memmap2::MmapRaw;
use prost::Message as _;
use proto::v1::{Commitment, GET_MANY_KEYS_MAX};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use rustix::thread::futex;
use shm_layout::{
    Hello, KEYS_MAX, Request, Response, SEGMENT_BYTES, STATUS_BYTES_MAX, Segment, VERSION, Wake, hello, op, status,
};

use super::bells;
use super::state::ShmState;
use crate::base::chain;
use crate::base::slow::{Parts, Slow, Transport};
use crate::lookups::LookupError;
use crate::reading::{BatchReading, PIECE_KEYS, Reading, Spent};

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
    /// Number and request of a batch that is not answered yet.
    batch: Option<(u64, Request)>,
}

/// The work that [`Session::serve`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    Nothing,
    Answered,
    /// A batch was requested and waits for its turn.
    Batch,
}

/// A copy of a confirmed get that has no answer yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) key: Key,
    seq: u64,
    request: Request,
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
        self.batch.map(|(_, request)| request.count as usize)
    }

    /// Looks for a request. Answers it at once unless it is a batch, which is recorded to wait for its turn.
    pub(super) fn serve(&mut self, reading: &mut Reading<'_>, scratch: &mut Scratch, state: &ShmState) -> Served {
        let seq = self.segment.requested();
        if seq == self.answered || self.batch.is_some() {
            return Served::Nothing;
        }
        let request = self.segment.request();
        let response = match refusal(&request) {
            Some(status) => Response { status, ..Response::default() },
            None if request.op == op::STATUS => self.status(state),
            None if request.count > 1 => {
                self.batch = Some((seq, request));
                return Served::Batch;
            }
            None => return self.look_up(seq, &request, reading, scratch, state),
        };
        self.answer(seq, response);
        Served::Answered
    }

    /// Copies the request that waits if it is a confirmed get. It waits on until [`Session::give`] or [`Session::serve`]
    /// answers it.
    pub(super) fn take_get(&self, scratch: &mut Scratch) -> Option<Taken> {
        let seq = self.segment.requested();
        if seq == self.answered || self.batch.is_some() {
            return None;
        }
        let request = self.segment.request();
        let is_one = request.op == op::GET && request.count == 1 && refusal(&request).is_none();
        if !is_one || commitment(request.commitment) != chain::Commitment::Confirmed {
            return None;
        }
        self.segment.keys(1, &mut scratch.keys);
        scratch.keys.first().map(|key| Taken { key: *key, seq, request })
    }

    /// Answers a get that was taken, with the value that was found for it at `slot`.
    pub(super) fn give(
        &mut self,
        taken: &Taken,
        slot: Option<u64>,
        value: Option<Value>,
        spent: Spent,
        state: &ShmState,
    ) {
        let response = self.found(&taken.request, slot, &[value]);
        self.answer(taken.seq, response);
        report_slow(&taken.request, response, spent, state);
    }

    /// Answers the waiting batch in one piece, because it has no more than [`PIECE_KEYS`] keys.
    pub(super) fn serve_short_batch(&mut self, reading: &mut Reading<'_>, scratch: &mut Scratch, state: &ShmState) {
        if let Some((seq, request)) = self.batch.take() {
            debug_assert!(request.count as usize <= PIECE_KEYS, "a long one is read in pieces");
            self.look_up(seq, &request, reading, scratch, state);
        }
    }

    /// Opens the state from which the batch is read. Returns false if that failed; the batch is then answered with the
    /// error.
    pub(super) fn begin_batch(&mut self, batches: &mut BatchReading<'_>) -> bool {
        let Some((_, request)) = self.batch else { return false };
        self.segment.keys(request.count as usize, &mut batches.keys);
        let begun = batches.begin(commitment(request.commitment));
        begun.map_err(|error| self.end_batch(&error)).is_ok()
    }

    /// Reads the next piece of the batch. Returns true if it was the last, or failed; the batch is then answered.
    pub(super) fn piece_of_batch(&mut self, batches: &mut BatchReading<'_>, state: &ShmState) -> bool {
        match batches.piece() {
            Ok(false) => return false,
            Err(error) => self.end_batch(&error),
            Ok(true) => {
                if let Some((seq, request)) = self.batch.take() {
                    let response = self.found(&request, batches.slot(), &batches.values);
                    self.answer(seq, response);
                    report_slow(&request, response, batches.spent(), state);
                }
            }
        }
        true
    }

    fn end_batch(&mut self, error: &LookupError) {
        if let Some((seq, _)) = self.batch.take() {
            self.answer(seq, Response { status: failure(error), ..Response::default() });
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
            return Response { status: status::FAILED, ..Response::default() };
        }
        self.segment.set_status_bytes(&encoded);
        Response { status: status::OK, count: encoded.len() as u32, ..Response::default() }
    }

    /// Reads the keys of a request from one state, and answers it.
    fn look_up(
        &mut self,
        seq: u64,
        request: &Request,
        reading: &mut Reading<'_>,
        scratch: &mut Scratch,
        state: &ShmState,
    ) -> Served {
        let Scratch { keys, values } = scratch;
        self.segment.keys(request.count as usize, keys);
        values.clear();
        values.resize(keys.len(), None);
        let response = match reading.get_into(keys, values, commitment(request.commitment)) {
            Ok(slot) => self.found(request, slot, values),
            Err(error) => Response { status: failure(&error), ..Response::default() },
        };
        self.answer(seq, response);
        report_slow(request, response, reading.spent(), state);
        Served::Answered
    }

    /// Returns the answer to a request whose values were read at `slot`. If `slot` is too old for the request, the
    /// answer is SLOT_NOT_REACHED.
    fn found(&self, request: &Request, slot: Option<u64>, values: &[Option<Value>]) -> Response {
        let reached =
            Response { has_slot: slot.is_some().into(), slot: slot.unwrap_or_default(), ..Response::default() };
        // On the wire, 0 means that the request names no slot.
        if request.min_context_slot > 0 && slot.is_none_or(|slot| slot < request.min_context_slot) {
            return Response { status: status::SLOT_NOT_REACHED, ..reached };
        }
        self.segment.set_values(values);
        Response { status: status::OK, count: values.len() as u32, ..reached }
    }
}

/// Logs a lookup if it was slow. The time that a batch waits between its pieces does not count: see [`Slow`].
fn report_slow(request: &Request, response: Response, spent: Spent, state: &ShmState) {
    let Spent { overlay_ns, read_ns } = spent;
    if response.status == status::OK && state.lookups.slow.is_slow(overlay_ns + read_ns) {
        let parts = Parts { overlay_ns, read_ns, ..Parts::default() };
        let (keys, commitment) = (request.count as usize, commitment(request.commitment));
        state.lookups.slow.report(&Slow {
            transport: Transport::Shm,
            keys,
            commitment,
            total_ns: parts.sum_ns(),
            parts,
        });
    }
}

/// Returns the reason to refuse a request, one of [`status`]; `None` if it is acceptable.
fn refusal(request: &Request) -> Option<u32> {
    if request.version != VERSION {
        return Some(status::VERSION);
    }
    let commitment = Commitment::try_from(request.commitment);
    match (request.op, commitment) {
        (op::STATUS, _) => None,
        (op::GET, Ok(_)) if request.count as usize > KEYS_MAX => Some(status::BAD_REQUEST),
        (op::GET, Ok(_)) => None,
        _ => Some(status::BAD_REQUEST),
    }
}

/// Converts a commitment that [`refusal`] has accepted.
fn commitment(wire: i32) -> chain::Commitment {
    match Commitment::try_from(wire) {
        Ok(Commitment::Processed) => chain::Commitment::Processed,
        Ok(Commitment::Finalized) => chain::Commitment::Finalized,
        Ok(Commitment::Unspecified | Commitment::Confirmed) | Err(_) => chain::Commitment::Confirmed,
    }
}

fn failure(error: &LookupError) -> u32 {
    let error = match error {
        LookupError::Engine(error) => error,
        LookupError::NotFollowed => return status::COMMITMENT,
        _ => return status::UNAVAILABLE,
    };
    tracing::error!(%error, kind = ?error.kind(), "a lookup failed");
    match error.kind() {
        ErrorKind::Retry | ErrorKind::FreeSpace | ErrorKind::Reopen => status::UNAVAILABLE,
        ErrorKind::DataDamaged | ErrorKind::FixInput | ErrorKind::Internal => status::FAILED,
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
