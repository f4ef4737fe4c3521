//! The shared-memory wire: a memory layout through which two processes on one machine exchange requests and answers
//! without a system call in between.
//!
//! Owns: the layout of a session's segment and the handshake that hands it over; with [`Segment`], the one place that
//! touches those bytes. Must not: map memory, wait, or decide anything. Threads: one user of a session on each side;
//! [`Segment`] is not `Sync`.
//!
//! # A session
//! A client connects to the service's Unix socket and receives one [`Hello`] with two or three file descriptors
//! (`SCM_RIGHTS`): the session's segment (a sealed memfd of [`SEGMENT_BYTES`]), the session's bell (an eventfd), and
//! where the service has a feed, its [`ring`]. The client sends nothing on the socket, which serves as a life line: its
//! end tells each side that the other is gone. The kernel frees the memory with the last mapping, however a process
//! ends. Nothing has a name that could be left over.
//!
//! # A request
//! A session carries one request at a time. The client writes keys and [`Request`], then raises `request_seq`. The
//! service writes values and [`Response`], then raises `response_seq` to the same number. A side that is about to sleep
//! first sets its own flag (`client_waits`, `service_sleeps`). The other side then wakes it after raising its number.
//!
//! # Waking
//! A client wakes the service with a write to its session's bell. The service watches the bell edge-triggered and never
//! reads or writes it, because a client may change the mode of a descriptor that both hold, and fill or drain it. The
//! service wakes a client in the way that `client_waits` names ([`Waits`]): at the futex word that is the low half of
//! `response_seq`, or with a byte on the socket, sent with `MSG_DONTWAIT`. The service never waits for a socket that is
//! full.
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
//! The service never trusts the bytes that it reads here: it checks every number, and copies keys out before it uses
//! them.

// Other crates link this one.
#![warn(missing_docs)]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub mod ring;

/// Maximum number of keys of one request, the same as that of a GetMany over gRPC.
pub const KEYS_MAX: usize = 10_000;

/// Version of everything in this module. The service answers a request of another version with [`status::VERSION`].
pub const VERSION: u32 = 2;

/// First bytes of every [`Hello`], by which a client recognises the service.
pub const MAGIC: [u8; 8] = *b"solkvshm";

/// Size of a key and of a value, in bytes.
const ENTRY_BYTES: usize = 32;

/// Maximum length of an encoded StatusResponse, in bytes: it is written where the values of a GET would be.
pub const STATUS_BYTES_MAX: usize = KEYS_MAX * ENTRY_BYTES;

/// Operations that a client may ask for: the numbers of [`Request::op`].
pub mod op {
    /// Asks for the values of `count` keys.
    pub const GET: u32 = 1;
    /// Asks for the service's StatusResponse.
    pub const STATUS: u32 = 2;
}

/// How a request ended; the numbers of [`Response::status`].
pub mod status {
    /// The service has answered the request.
    pub const OK: u32 = 0;
    /// The request has another protocol version; the service looked at nothing else of it.
    pub const VERSION: u32 = 1;
    /// The request has an unknown op or commitment, or too many keys.
    pub const BAD_REQUEST: u32 = 2;
    /// The data read does not include `min_context_slot` yet: ask again. `slot` holds the slot reached.
    pub const SLOT_NOT_REACHED: u32 = 3;
    /// The service does not follow the commitment asked for.
    pub const COMMITMENT: u32 = 4;
    /// There is no answer now, but there may be one later: the engine failed in a way that may pass, or no slot of this
    /// commitment is known yet.
    pub const UNAVAILABLE: u32 = 5;
    /// The engine failed in a way that does not pass by itself; the service's log says how.
    pub const FAILED: u32 = 6;
}

/// How a handshake ended; the numbers of [`Hello::status`].
pub mod hello {
    /// The session is made and its descriptors came with the greeting.
    pub const OK: u32 = 0;
    /// The service has as many sessions as it allows, in all or for this user; come back later.
    pub const FULL: u32 = 1;
    /// The service could not create a session; its log says why.
    pub const FAILED: u32 = 2;
}

/// How the service wakes a sleeping client: the numbers of `client_waits`, where 0 means that the client is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Waits {
    /// By a futex wake at [`Segment::futex`].
    Futex = 1,
    /// By a byte on the socket, for a client whose thread waits for other descriptors as well.
    Socket = 2,
}

/// How the service must wake the client after an answer, as [`Segment::respond`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Wake nobody, because the client is awake.
    Nobody,
    /// Wake one waiter of [`Segment::futex`].
    Futex,
    /// Send one byte on the session's socket.
    Socket,
}

/// The greeting that the service sends on the socket when a client connects.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Always [`MAGIC`]; anything else is not a greeting.
    pub magic: [u8; 8],
    /// The service's [`VERSION`]; a client of another version must give up.
    pub version: u32,
    /// The handshake's outcome, one of [`hello`].
    pub status: u32,
    /// The service's [`SEGMENT_BYTES`], which must be equal to the client's.
    pub segment_bytes: u64,
}

/// A request, except for its keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The client's [`VERSION`]; the service answers another one with [`status::VERSION`].
    pub version: u32,
    /// The operation, one of [`op`].
    pub op: u32,
    /// Number of keys of a GET, at most [`KEYS_MAX`]; 0 for STATUS.
    pub count: u32,
    /// The commitment asked for, as a number of `solkv.v1.Commitment`.
    pub commitment: i32,
    /// As `min_context_slot` of GetRequest; 0 asks for no slot.
    pub min_context_slot: u64,
}

/// An answer, except for its values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The request's outcome, one of [`status`].
    pub status: u32,
    /// The request's `count` for GET, the length of the encoded status for STATUS, 0 for an error.
    pub count: u32,
    /// 1 if `slot` is valid, otherwise 0.
    pub has_slot: u32,
    /// Always 0; reserved for later versions.
    pub reserved: u32,
    /// The newest slot that is completely in the data read.
    pub slot: u64,
}

/// The part that the client writes, on a cache line of its own.
#[repr(C, align(64))]
struct ClientLine {
    request_seq: AtomicU64,
    client_waits: AtomicU32,
    _pad: u32,
    request: Request,
}

/// The part that the service writes, on a cache line of its own.
#[repr(C, align(64))]
struct ServiceLine {
    response_seq: AtomicU64,
    service_sleeps: AtomicU32,
    _pad: u32,
    response: Response,
}

#[repr(C)]
struct Layout {
    client: ClientLine,
    service: ServiceLine,
    present: [u8; PRESENT_BYTES],
    values: [[u8; ENTRY_BYTES]; KEYS_MAX],
    keys: [[u8; ENTRY_BYTES]; KEYS_MAX],
}

/// Size of the presence bits: one bit a key, up to a whole number of cache lines.
const PRESENT_BYTES: usize = KEYS_MAX.div_ceil(8).next_multiple_of(64);

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
    /// Returns a greeting of this version with a handshake's outcome, one of [`hello`].
    pub fn new(status: u32) -> Self {
        Self { magic: MAGIC, version: VERSION, status, segment_bytes: SEGMENT_BYTES as u64 }
    }

    /// Returns the greeting in the form in which it is sent.
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..12].copy_from_slice(&self.version.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.status.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.segment_bytes.to_ne_bytes());
        bytes
    }

    /// Decodes a received greeting. Returns `None` if the magic bytes are wrong. It checks neither the version nor the
    /// segment's size.
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

/// Access to a mapped segment. All data is copied in and out. References are made only to the atomics, never to memory
/// that another process can write.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<Layout>,
    /// Keeps `Segment` from being `Sync`: apart from the atomics, each side's part has one writer and no lock.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: the segment is plain memory without thread affinity; `!Sync` keeps it with one thread at a time.
unsafe impl Send for Segment {}

impl Segment {
    /// Wraps a mapped segment.
    ///
    /// # Safety
    /// `base` is the start of a mapping of at least [`SEGMENT_BYTES`]: readable and writable, page aligned, shared with
    /// the other side, and zero when it was created. The mapping outlives this `Segment` and cannot shrink. No other
    /// `Segment` of the same side exists.
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

    /// Client: writes request `seq` and publishes it. Returns true if the service sleeps, so that the caller must ring
    /// the bell.
    ///
    /// # Panics
    /// Panics on more than [`KEYS_MAX`] keys; the caller splits larger requests.
    pub fn send(&self, seq: u64, request: Request, keys: &[[u8; 32]]) -> bool {
        assert!(keys.len() <= KEYS_MAX, "a request is split by its caller");
        // SAFETY: both places are in bounds and this side is their only writer.
        unsafe {
            let to = (&raw mut (*self.base.as_ptr()).keys).cast::<[u8; 32]>();
            to.copy_from_nonoverlapping(keys.as_ptr(), keys.len());
            (&raw mut (*self.client()).request).write(request);
        }
        // ORDERING: Release pairs with the Acquire of `requested`: a service that sees the number sees keys and
        // request.
        self.request_seq().store(seq, Ordering::Release);
        // ORDERING: SeqCst fence pairs with the one in `sleep_fence`: either the service sees this number after it, or
        // this side sees here that the service sleeps.
        fence(Ordering::SeqCst);
        // ORDERING: Relaxed: ordered by the fence.
        self.service_sleeps().load(Ordering::Relaxed) != 0
    }

    /// Client: returns whether request `seq` is answered.
    pub fn answered(&self, seq: u64) -> bool {
        // ORDERING: Acquire pairs with the Release of `respond`.
        self.response_seq().load(Ordering::Acquire) == seq
    }

    /// Client: asks to be woken for the answer to `seq`. Returns true if the answer is there already.
    pub fn wait(&self, seq: u64, how: Waits) -> bool {
        // ORDERING: Relaxed: ordered by the fence.
        self.client_waits().store(how as u32, Ordering::Relaxed);
        // ORDERING: SeqCst fence pairs with the one in `respond`: either this side sees the answer, or the service sees
        // that it waits.
        fence(Ordering::SeqCst);
        self.answered(seq)
    }

    /// Client: returns the value of [`Segment::futex`] as long as request `seq` has no answer; `None` once it has one.
    pub fn unanswered(&self, seq: u64) -> Option<u32> {
        // ORDERING: Acquire: as in `answered`.
        let found = self.response_seq().load(Ordering::Acquire);
        (found != seq).then_some(found as u32)
    }

    /// Returns the futex word at which a client sleeps: the low half of `response_seq`, which changes with each answer.
    pub fn futex(&self) -> &AtomicU32 {
        let half = if cfg!(target_endian = "big") { 1 } else { 0 };
        let word = std::ptr::from_ref(self.response_seq()).cast::<AtomicU32>();
        // SAFETY: both halves of an aligned u64 in bounds are aligned; the futex calls alone read it by this reference.
        unsafe { &*word.add(half) }
    }

    /// Client: withdraws the wish to be woken.
    pub fn stop_waiting(&self) {
        // ORDERING: Relaxed: at worst one wake too many.
        self.client_waits().store(0, Ordering::Relaxed);
    }

    /// Client: returns the answer. Call it once [`Segment::answered`] has returned true.
    pub fn response(&self) -> Response {
        // SAFETY: in bounds; the service does not write it before the next request.
        unsafe { (&raw const (*self.service()).response).read() }
    }

    /// Client: returns value `index` of the answer, or `None` if that key is absent.
    ///
    /// # Panics
    /// Panics if `index` is [`KEYS_MAX`] or more.
    pub fn value(&self, index: usize) -> Option<[u8; 32]> {
        assert!(index < KEYS_MAX, "no such value: index={index}");
        // SAFETY: in bounds; the service does not write them before the next request.
        unsafe {
            let present = (&raw const (*self.base.as_ptr()).present).cast::<u8>().add(index / 8).read();
            let value = (&raw const (*self.base.as_ptr()).values).cast::<[u8; 32]>().add(index);
            (present >> (index % 8) & 1 == 1).then(|| value.read())
        }
    }

    /// Client: returns the encoded status: `count` bytes, or [`STATUS_BYTES_MAX`] if that is less.
    pub fn status_bytes(&self, count: u32) -> Vec<u8> {
        let mut bytes = vec![0; (count as usize).min(STATUS_BYTES_MAX)];
        // SAFETY: both ends hold that many; the service does not write them before the next request.
        unsafe {
            let from = (&raw const (*self.base.as_ptr()).values).cast::<u8>();
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
        }
        bytes
    }

    /// Service: returns the number of the newest request.
    pub fn requested(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `send`.
        self.request_seq().load(Ordering::Acquire)
    }

    /// Service: returns the newest request as the client wrote it, unchecked.
    pub fn request(&self) -> Request {
        // SAFETY: in bounds; any bytes are a Request. If a client writes at the same time, the result is nonsense, and
        // the service checks it like any other request.
        unsafe { (&raw const (*self.client()).request).read_volatile() }
    }

    /// Service: copies `count` keys into `into`, at most [`KEYS_MAX`].
    pub fn keys(&self, count: usize, into: &mut Vec<[u8; 32]>) {
        into.clear();
        into.resize(count.min(KEYS_MAX), [0; 32]);
        // SAFETY: both ends hold that many; any bytes are a key.
        unsafe {
            let from = (&raw const (*self.base.as_ptr()).keys).cast::<[u8; 32]>();
            from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len());
        }
    }

    /// Service: writes the values of an answer, one for each key in the request's order.
    ///
    /// # Panics
    /// Panics on more than [`KEYS_MAX`] values.
    pub fn set_values(&self, values: &[Option<[u8; 32]>]) {
        assert!(values.len() <= KEYS_MAX, "checked where the request was read");
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

    /// Service: writes an encoded status, truncated to [`STATUS_BYTES_MAX`].
    pub fn set_status_bytes(&self, bytes: &[u8]) {
        // SAFETY: in bounds by the minimum, and this side is their only writer.
        unsafe {
            let to = (&raw mut (*self.base.as_ptr()).values).cast::<u8>();
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(STATUS_BYTES_MAX));
        }
    }

    /// Service: publishes the answer to request `seq`, and returns how to wake the client. A client that writes an
    /// unknown number into `client_waits` is not woken, which harms only itself.
    pub fn respond(&self, seq: u64, response: Response) -> Wake {
        // SAFETY: in bounds, and this side is its only writer.
        unsafe { (&raw mut (*self.service()).response).write(response) };
        // ORDERING: Release pairs with the Acquire of `answered`: a client that sees the number sees response and
        // values.
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

    /// Service: announces that it is about to sleep. After it has done so for all its clients, and after
    /// [`sleep_fence`], the service must look at [`Segment::requested`] of each client once more.
    pub fn fall_asleep(&self) {
        // ORDERING: Relaxed: ordered by `sleep_fence`.
        self.service_sleeps().store(1, Ordering::Relaxed);
    }

    /// Service: withdraws the announcement of [`Segment::fall_asleep`].
    pub fn wake_up(&self) {
        // ORDERING: Relaxed: at worst one ring too many.
        self.service_sleeps().store(0, Ordering::Relaxed);
    }
}

/// Memory fence that the service must pass between [`Segment::fall_asleep`] and its last look at the requests.
pub fn sleep_fence() {
    // ORDERING: SeqCst fence pairs with the one in `Segment::send`.
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
