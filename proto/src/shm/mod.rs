//! The shared-memory wire: what two processes on one machine read and write without a system call in between.
//!
//! Owns: the layout of a session's segment and the handshake that hands it over, and with [`Segment`] the one place
//! that touches those bytes. Must not: map memory, wait, or decide anything. Threads: one user of a session on each
//! side; [`Segment`] is not `Sync`.
//!
//! # A session
//! A client connects to the service's Unix socket and receives one [`Hello`] with two or three file descriptors
//! (`SCM_RIGHTS`): the session's segment (a sealed memfd of [`SEGMENT_BYTES`]), the session's bell (an eventfd), and
//! where the service has a feed, its [`ring`]. The client sends nothing on the socket: it is the life line. Its end tells
//! each side that the other is gone, and the kernel frees the memory with the last mapping, however a process ends:
//! nothing has a name that could be left behind.
//!
//! # A request
//! One at a time. The client writes keys and [`Request`], then raises `request_seq`; the service writes values and
//! [`Response`], then raises `response_seq` to the same number. Whoever is about to sleep says so in its own flag first
//! (`client_waits`, `service_sleeps`), and the other then wakes it after raising its number.
//!
//! # Waking
//! A client wakes the service with a write to its session's bell. The service watches the bell for edges and never reads
//! or writes it, because a client may change the mode of a descriptor that both hold, and fill or drain it.
//! The service wakes a client in the way that `client_waits` names ([`Waits`]): at the futex word that is the low half of
//! `response_seq`, or with a byte on the socket, sent with `MSG_DONTWAIT`. A socket that is full is not waited for.
//!
//! ```text
//! offset     bytes  written by
//!      0        64  client     request_seq u64, client_waits u32, then Request
//!     64        64  service    response_seq u64, service_sleeps u32, then Response
//!    128      1280  service    present: bit i % 8 of byte i / 8 is set when key i is present
//!   1408   320,000  service    values, 32 bytes a key in the request's order, zeros where the key is absent;
//!                              for STATUS the encoded StatusResponse
//! 321408   320,000  client     keys, 32 bytes each
//! ```
//!
//! The service never trusts what it reads here: numbers are checked, keys are copied out before they are used.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::v1::GET_MANY_KEYS_MAX;

pub mod ring;

/// Version of everything in this module. A service answers another one with [`status::VERSION`].
pub const VERSION: u32 = 2;

/// First bytes of a [`Hello`].
pub const MAGIC: [u8; 8] = *b"solkvshm";

/// Bytes of a key and of a value.
const ENTRY_BYTES: usize = 32;

/// Most bytes of an encoded StatusResponse: they share the place of the values.
pub const STATUS_BYTES_MAX: usize = GET_MANY_KEYS_MAX * ENTRY_BYTES;

/// What is asked for; the numbers of [`Request::op`].
pub mod op {
    /// The values of `count` keys.
    pub const GET: u32 = 1;
    /// What the service says of itself.
    pub const STATUS: u32 = 2;
}

/// How a request ended; the numbers of [`Response::status`].
pub mod status {
    /// Answered.
    pub const OK: u32 = 0;
    /// Another protocol version; nothing was looked at.
    pub const VERSION: u32 = 1;
    /// An unknown op or commitment, or too many keys.
    pub const BAD_REQUEST: u32 = 2;
    /// `min_context_slot` is not reached yet: ask again. `slot` is the one reached.
    pub const SLOT_NOT_REACHED: u32 = 3;
    /// The service does not follow this commitment.
    pub const COMMITMENT: u32 = 4;
    /// No answer now, which may pass: the engine's failure, or the commitment is not known yet.
    pub const UNAVAILABLE: u32 = 5;
    /// The engine failed; the service's log says how.
    pub const FAILED: u32 = 6;
}

/// How a handshake ended; the numbers of [`Hello::status`].
pub mod hello {
    /// The descriptors came along.
    pub const OK: u32 = 0;
    /// As many sessions as the service allows, in all or a user; come back later.
    pub const FULL: u32 = 1;
    /// The service could not make a session; its log says why.
    pub const FAILED: u32 = 2;
}

/// How a client that sleeps wants to be woken; the numbers of `client_waits`, where 0 is a client that is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Waits {
    /// At [`Segment::futex`].
    Futex = 1,
    /// By a byte on the socket, for a client whose thread waits for other descriptors as well.
    Socket = 2,
}

/// What the service owes a client after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The client is awake.
    Nobody,
    /// Wake one waiter of [`Segment::futex`].
    Futex,
    /// Send a byte.
    Socket,
}

/// The greeting on the socket, from the service.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// One of [`hello`].
    pub status: u32,
    /// [`SEGMENT_BYTES`] of the service.
    pub segment_bytes: u64,
}

/// A request, without its keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// One of [`op`].
    pub op: u32,
    /// Keys of a GET, at most [`GET_MANY_KEYS_MAX`]; 0 for STATUS.
    pub count: u32,
    /// A number of `solkv.v1.Commitment`.
    pub commitment: i32,
    /// As in GetRequest; 0 asks for none.
    pub min_context_slot: u64,
}

/// An answer, without its values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// One of [`status`].
    pub status: u32,
    /// The request's for GET, the encoded bytes for STATUS, 0 for an error.
    pub count: u32,
    /// 1 when `slot` means something.
    pub has_slot: u32,
    /// Always 0.
    pub reserved: u32,
    /// The newest slot that is wholly in what was read.
    pub slot: u64,
}

/// What the client writes, on a cache line of its own.
#[repr(C, align(64))]
struct ClientLine {
    request_seq: AtomicU64,
    client_waits: AtomicU32,
    _pad: u32,
    request: Request,
}

/// What the service writes, on a cache line of its own.
#[repr(C, align(64))]
struct ServiceLine {
    response_seq: AtomicU64,
    service_sleeps: AtomicU32,
    _pad: u32,
    response: Response,
}

/// The segment.
#[repr(C)]
struct Layout {
    client: ClientLine,
    service: ServiceLine,
    present: [u8; PRESENT_BYTES],
    values: [[u8; ENTRY_BYTES]; GET_MANY_KEYS_MAX],
    keys: [[u8; ENTRY_BYTES]; GET_MANY_KEYS_MAX],
}

/// A bit a key, up to a whole number of cache lines.
const PRESENT_BYTES: usize = GET_MANY_KEYS_MAX.div_ceil(8).next_multiple_of(64);

/// Size of a session's segment in bytes.
pub const SEGMENT_BYTES: usize = size_of::<Layout>();

const _: () = {
    assert!(size_of::<Hello>() == 24 && size_of::<Request>() == 24 && size_of::<Response>() == 24);
    assert!(size_of::<ClientLine>() == 64 && size_of::<ServiceLine>() == 64);
    assert!(std::mem::offset_of!(ClientLine, request) == 16 && std::mem::offset_of!(ServiceLine, response) == 16);
    assert!(std::mem::offset_of!(Layout, service) == 64 && std::mem::offset_of!(Layout, present) == 128);
    assert!(std::mem::offset_of!(Layout, values) == 1408 && std::mem::offset_of!(Layout, keys) == 321_408);
    assert!(SEGMENT_BYTES == 641_408 && SEGMENT_BYTES.is_multiple_of(64));
};

impl Hello {
    /// A greeting of this version.
    pub fn new(status: u32) -> Self {
        Self { magic: MAGIC, version: VERSION, status, segment_bytes: SEGMENT_BYTES as u64 }
    }

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..12].copy_from_slice(&self.version.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.status.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.segment_bytes.to_ne_bytes());
        bytes
    }

    /// As it was received; `None` when it is no greeting at all.
    pub fn from_bytes(bytes: &[u8; size_of::<Self>()]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (status, rest) = rest.split_first_chunk::<4>()?;
        let hello = Self {
            magic: *magic,
            version: u32::from_ne_bytes(*version),
            status: u32::from_ne_bytes(*status),
            segment_bytes: u64::from_ne_bytes(*rest.first_chunk::<8>()?),
        };
        (hello.magic == MAGIC).then_some(hello)
    }
}

/// A mapped segment. Everything is copied in and out: no reference into memory that another process can write is ever
/// made, but to the atomics.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<Layout>,
    /// Atomics aside, a side's part has one writer without a lock.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: the segment is plain memory without thread affinity; `!Sync` keeps it with one thread at a time.
unsafe impl Send for Segment {}

impl Segment {
    /// A view of a mapping.
    ///
    /// # Safety
    /// `base` is the start of a mapping of at least [`SEGMENT_BYTES`], readable and writable, page aligned, shared with
    /// the other side and zero when it was made, that outlives this view and cannot shrink; no other view of the same
    /// side exists.
    pub unsafe fn new(base: NonNull<u8>) -> Self {
        Self { base: base.cast(), _not_sync: PhantomData }
    }

    fn client(&self) -> *mut ClientLine {
        // SAFETY: `new` demands a mapping of the layout's size; no reference is made.
        unsafe { &raw mut (*self.base.as_ptr()).client }
    }

    fn service(&self) -> *mut ServiceLine {
        // SAFETY: as in `client`.
        unsafe { &raw mut (*self.base.as_ptr()).service }
    }

    fn request_seq(&self) -> &AtomicU64 {
        // SAFETY: in bounds and aligned; the other side touches it as an atomic only.
        unsafe { &(*self.client()).request_seq }
    }

    fn client_waits(&self) -> &AtomicU32 {
        // SAFETY: as in `request_seq`.
        unsafe { &(*self.client()).client_waits }
    }

    fn response_seq(&self) -> &AtomicU64 {
        // SAFETY: as in `request_seq`.
        unsafe { &(*self.service()).response_seq }
    }

    fn service_sleeps(&self) -> &AtomicU32 {
        // SAFETY: as in `request_seq`.
        unsafe { &(*self.service()).service_sleeps }
    }

    /// Client: writes request `seq` and publishes it. True when the service sleeps: ring the bell.
    ///
    /// # Panics
    /// On more than [`GET_MANY_KEYS_MAX`] keys, which the caller splits.
    pub fn send(&self, seq: u64, request: Request, keys: &[[u8; 32]]) -> bool {
        assert!(keys.len() <= GET_MANY_KEYS_MAX, "a request is split by its caller");
        // SAFETY: both places are in bounds and this side is their only writer.
        unsafe {
            let to = (&raw mut (*self.base.as_ptr()).keys).cast::<[u8; 32]>();
            to.copy_from_nonoverlapping(keys.as_ptr(), keys.len());
            (&raw mut (*self.client()).request).write(request);
        }
        // ORDERING: Release pairs with the Acquire of `requested`: who sees the number sees keys and request.
        self.request_seq().store(seq, Ordering::Release);
        // ORDERING: SeqCst fence pairs with the one in `fall_asleep`: either the service sees this number there, or it is
        // seen asleep here.
        fence(Ordering::SeqCst);
        // ORDERING: Relaxed: ordered by the fence.
        self.service_sleeps().load(Ordering::Relaxed) != 0
    }

    /// Client: whether request `seq` is answered.
    pub fn answered(&self, seq: u64) -> bool {
        // ORDERING: Acquire pairs with the Release of `respond`.
        self.response_seq().load(Ordering::Acquire) == seq
    }

    /// Client: asks to be woken for the answer to `seq`. True when it is there already.
    pub fn wait(&self, seq: u64, how: Waits) -> bool {
        // ORDERING: Relaxed: ordered by the fence.
        self.client_waits().store(how as u32, Ordering::Relaxed);
        // ORDERING: SeqCst fence pairs with the one in `respond`: either this side sees the answer, or the service sees
        // that it waits.
        fence(Ordering::SeqCst);
        self.answered(seq)
    }

    /// Client: what [`Segment::futex`] says while request `seq` has no answer; `None` once it has one.
    pub fn unanswered(&self, seq: u64) -> Option<u32> {
        // ORDERING: Acquire: as in `answered`.
        let found = self.response_seq().load(Ordering::Acquire);
        (found != seq).then_some(found as u32)
    }

    /// The word at which a client sleeps: the low half of `response_seq`, which changes with each answer.
    pub fn futex(&self) -> &AtomicU32 {
        let half = if cfg!(target_endian = "big") { 1 } else { 0 };
        let word = std::ptr::from_ref(self.response_seq()).cast::<AtomicU32>();
        // SAFETY: both halves of an aligned u64 in bounds are aligned; the futex calls alone read it by this reference.
        unsafe { &*word.add(half) }
    }

    /// Client: no longer waits.
    pub fn stop_waiting(&self) {
        // ORDERING: Relaxed: at worst one wake too many.
        self.client_waits().store(0, Ordering::Relaxed);
    }

    /// Client: the answer, once [`Segment::answered`].
    pub fn response(&self) -> Response {
        // SAFETY: in bounds; the service does not write it before the next request.
        unsafe { (&raw const (*self.service()).response).read() }
    }

    /// Client: value `index` of the answer.
    ///
    /// # Panics
    /// On an index of [`GET_MANY_KEYS_MAX`] or more.
    pub fn value(&self, index: usize) -> Option<[u8; 32]> {
        assert!(index < GET_MANY_KEYS_MAX, "no such value: index={index}");
        // SAFETY: in bounds; the service does not write them before the next request.
        unsafe {
            let present = (&raw const (*self.base.as_ptr()).present).cast::<u8>().add(index / 8).read();
            let value = (&raw const (*self.base.as_ptr()).values).cast::<[u8; 32]>().add(index);
            (present >> (index % 8) & 1 == 1).then(|| value.read())
        }
    }

    /// Client: the encoded status, `count` bytes of it or as many as there is place for.
    pub fn status_bytes(&self, count: u32) -> Vec<u8> {
        let mut bytes = vec![0; (count as usize).min(STATUS_BYTES_MAX)];
        // SAFETY: both ends hold that many; the service does not write them before the next request.
        unsafe {
            let from = (&raw const (*self.base.as_ptr()).values).cast::<u8>();
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
        }
        bytes
    }

    /// Service: the number of the newest request.
    pub fn requested(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `send`.
        self.request_seq().load(Ordering::Acquire)
    }

    /// Service: the newest request, as the client claims it.
    pub fn request(&self) -> Request {
        // SAFETY: in bounds; any bytes are a Request. A client that writes meanwhile gets nonsense, checked as any other.
        unsafe { (&raw const (*self.client()).request).read_volatile() }
    }

    /// Service: copies `count` keys out, at most as many as there is place for.
    pub fn keys(&self, count: usize, into: &mut Vec<[u8; 32]>) {
        into.clear();
        into.resize(count.min(GET_MANY_KEYS_MAX), [0; 32]);
        // SAFETY: both ends hold that many; any bytes are a key.
        unsafe {
            let from = (&raw const (*self.base.as_ptr()).keys).cast::<[u8; 32]>();
            from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len());
        }
    }

    /// Service: writes the values of an answer.
    ///
    /// # Panics
    /// On more than [`GET_MANY_KEYS_MAX`].
    pub fn set_values(&self, values: &[Option<[u8; 32]>]) {
        assert!(values.len() <= GET_MANY_KEYS_MAX, "checked where the request was read");
        // SAFETY: in bounds by the assert, and this side is their only writer.
        unsafe {
            let present = (&raw mut (*self.base.as_ptr()).present).cast::<u8>();
            let to = (&raw mut (*self.base.as_ptr()).values).cast::<[u8; 32]>();
            for (byte, chunk) in values.chunks(8).enumerate() {
                let mut bits = 0;
                for (bit, value) in chunk.iter().enumerate() {
                    bits |= u8::from(value.is_some()) << bit;
                    to.add(byte * 8 + bit).write(value.unwrap_or_default());
                }
                present.add(byte).write(bits);
            }
        }
    }

    /// Service: writes an encoded status, cut at [`STATUS_BYTES_MAX`].
    pub fn set_status_bytes(&self, bytes: &[u8]) {
        // SAFETY: in bounds by the minimum, and this side is their only writer.
        unsafe {
            let to = (&raw mut (*self.base.as_ptr()).values).cast::<u8>();
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(STATUS_BYTES_MAX));
        }
    }

    /// Service: publishes the answer to request `seq`, and says how the client has to be woken. A number of
    /// `client_waits` that means nothing is the client's own loss.
    pub fn respond(&self, seq: u64, response: Response) -> Wake {
        // SAFETY: in bounds, and this side is its only writer.
        unsafe { (&raw mut (*self.service()).response).write(response) };
        // ORDERING: Release pairs with the Acquire of `answered`: who sees the number sees response and values.
        self.response_seq().store(seq, Ordering::Release);
        // ORDERING: SeqCst fence pairs with the one in `wait`.
        fence(Ordering::SeqCst);
        // ORDERING: Relaxed: ordered by the fence.
        match self.client_waits().load(Ordering::Relaxed) {
            waits if waits == Waits::Futex as u32 => Wake::Futex,
            waits if waits == Waits::Socket as u32 => Wake::Socket,
            _ => Wake::Nobody,
        }
    }

    /// Service: says that it is about to sleep. After it has said so to all its clients, and after [`sleep_fence`], it
    /// looks at [`Segment::requested`] of each once more.
    pub fn fall_asleep(&self) {
        // ORDERING: Relaxed: ordered by `sleep_fence`.
        self.service_sleeps().store(1, Ordering::Relaxed);
    }

    /// Service: is awake.
    pub fn wake_up(&self) {
        // ORDERING: Relaxed: at worst one ring too many.
        self.service_sleeps().store(0, Ordering::Relaxed);
    }
}

/// Between [`Segment::fall_asleep`] and the last look at the requests.
pub fn sleep_fence() {
    // ORDERING: SeqCst fence pairs with the one in `Segment::send`.
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
