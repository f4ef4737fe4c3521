//! One client's session: its memory, its doorbell, and the answer to its request.
//!
//! Owns: the segment from the handshake until the client is gone. Must not: block. Thread: `shm-lookup`.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use engine_api::{ErrorKind, Key, Value};
use memmap2::MmapRaw;
use prost::Message as _;
use proto::shm::{Hello, Request, Response, SEGMENT_BYTES, STATUS_BYTES_MAX, Segment, VERSION, hello, op, status};
use proto::v1::{Commitment, GET_MANY_KEYS_MAX};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::lookups::LookupError;
use crate::overlay;
use crate::reading::{Reading, Spent};
use crate::rpc::status_response;
use crate::slow::{Parts, Slow, Transport};
use crate::status::Shared;

/// A client and its segment.
pub(super) struct Session {
    segment: Segment,
    /// Keeps the segment's memory.
    _memory: MmapRaw,
    /// Ends with the client.
    socket: UnixStream,
    doorbell: OwnedFd,
    /// The newest request that was answered.
    answered: u64,
}

/// Buffers of the thread, used again and again.
#[derive(Default)]
pub(super) struct Scratch {
    keys: Vec<Key>,
    values: Vec<Option<Value>>,
}

impl Session {
    /// Makes the memory and hands it over.
    pub(super) fn start(socket: UnixStream, service_doorbell: &OwnedFd, feed: Option<&OwnedFd>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        match Self::make() {
            Ok((memory, segment, doorbell, memfd)) => {
                let own = [memfd.as_fd(), service_doorbell.as_fd(), doorbell.as_fd()];
                let fds: Vec<BorrowedFd<'_>> = own.into_iter().chain(feed.map(AsFd::as_fd)).collect();
                greet(socket.as_fd(), hello::OK, &fds)?;
                Ok(Self { segment, _memory: memory, socket, doorbell, answered: 0 })
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
        // A file that shrinks under a mapping kills whoever touches the rest.
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memfd = File::from(memfd);
        let memory = MmapRaw::map_raw(&memfd)?;
        let base = NonNull::new(memory.as_mut_ptr()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        // SAFETY: a fresh shared mapping of the sealed size, zero, kept beside the view; the service's only view of it.
        let segment = unsafe { Segment::new(base) };
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok((memory, segment, doorbell, memfd))
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Whether a request waits.
    pub(super) fn asked(&self) -> bool {
        self.segment.requested() != self.answered
    }

    /// Answers the request that waits, if one does.
    pub(super) fn serve(
        &mut self,
        reading: &mut Reading<'_>,
        scratch: &mut Scratch,
        shared: &Shared,
        label: &str,
    ) -> bool {
        let seq = self.segment.requested();
        if seq == self.answered {
            return false;
        }
        let request = self.segment.request();
        let response = match refusal(&request) {
            Some(status) => Response { status, ..Response::default() },
            None if request.op == op::STATUS => self.status(shared, label),
            None => self.look_up(&request, reading, scratch),
        };
        let looked_up = response.status == status::OK && request.op == op::GET;
        self.answered = seq;
        if self.segment.respond(seq, response) {
            ring(&self.doorbell);
        }
        let Spent { overlay_ns, read_ns } = reading.spent();
        if looked_up && shared.slow.is_slow(overlay_ns + read_ns) {
            let parts = Parts { overlay_ns, read_ns, ..Parts::default() };
            let (keys, commitment) = (scratch.keys.len(), commitment(request.commitment));
            shared.slow.report(&Slow { transport: Transport::Shm, keys, commitment, total_ns: parts.sum_ns(), parts });
        }
        true
    }

    fn status(&self, shared: &Shared, label: &str) -> Response {
        let encoded = status_response(label, shared).encode_to_vec();
        if encoded.len() > STATUS_BYTES_MAX {
            return Response { status: status::FAILED, ..Response::default() };
        }
        self.segment.set_status_bytes(&encoded);
        Response { status: status::OK, count: encoded.len() as u32, ..Response::default() }
    }

    fn look_up(&self, request: &Request, reading: &mut Reading<'_>, scratch: &mut Scratch) -> Response {
        let Scratch { keys, values } = scratch;
        self.segment.keys(request.count as usize, keys);
        values.clear();
        values.resize(keys.len(), None);
        let slot = match reading.get_into(keys, values, commitment(request.commitment)) {
            Ok(slot) => slot,
            Err(error) => return Response { status: failure(&error), ..Response::default() },
        };
        let reached =
            Response { has_slot: slot.is_some().into(), slot: slot.unwrap_or_default(), ..Response::default() };
        // A confirmed slot 0 asks for nothing.
        if request.min_context_slot > 0 && slot.is_none_or(|slot| slot < request.min_context_slot) {
            return Response { status: status::SLOT_NOT_REACHED, ..reached };
        }
        self.segment.set_values(values);
        Response { status: status::OK, count: values.len() as u32, ..reached }
    }
}

/// What is wrong with a request; one of [`status`].
fn refusal(request: &Request) -> Option<u32> {
    if request.version != VERSION {
        return Some(status::VERSION);
    }
    let commitment = Commitment::try_from(request.commitment);
    match (request.op, commitment) {
        (op::STATUS, _) => None,
        (op::GET, Ok(_)) if request.count as usize > GET_MANY_KEYS_MAX => Some(status::BAD_REQUEST),
        (op::GET, Ok(_)) => None,
        _ => Some(status::BAD_REQUEST),
    }
}

/// What [`refusal`] has let pass.
fn commitment(wire: i32) -> overlay::Commitment {
    match Commitment::try_from(wire) {
        Ok(Commitment::Processed) => overlay::Commitment::Processed,
        Ok(Commitment::Finalized) => overlay::Commitment::Finalized,
        Ok(Commitment::Unspecified | Commitment::Confirmed) | Err(_) => overlay::Commitment::Confirmed,
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

/// Says why there is no session. A client that is gone meanwhile needs no answer.
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
    // A fresh socket's buffer takes a greeting whole.
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("a greeting was cut")) }
}

/// Rings a doorbell. It fails when it has been rung 2^64 times unheard, which says all there is to say.
pub(super) fn ring(doorbell: &OwnedFd) {
    let _heard = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// Takes all rings so far.
pub(super) fn quiet(doorbell: &OwnedFd) {
    // Nothing to take is fine as well.
    let _rings = rustix::io::read(doorbell, &mut [0u8; 8]);
}
