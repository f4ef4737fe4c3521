//! Any bytes in the memory that a client shares with the service: the service continues answering, and other clients
//! notice nothing.
//!
//! Owns: a service without a stream, a client that follows the protocol and one that does not. Must not: know how the
//! service reads. Threads: this one, and the service's `shm-lookup`.

#![no_main]

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine_api::{Durability, Engine as _};
use engine_latency::{Latency, Measured};
use engines::{EngineKind, EngineOptions, OpenMode};
use libfuzzer_sys::fuzz_target;
use memmap2::MmapRaw;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use service::ingest;
use service::{Handles, Overlay, Pulses, ReadinessSettings, ShmServer, ShmState, SocketAccess};
use shm_layout::{Hello, Request, Response, SEGMENT_BYTES, Segment, VERSION, op, status};
use solana::ChainCheckpoint;
use tempfile::TempDir;

struct World {
    rude: Client,
    polite: Client,
    _server: ShmServer,
    _temp: TempDir,
}

struct Client {
    segment: Segment,
    memory: MmapRaw,
    _socket: UnixStream,
    bell: OwnedFd,
    seq: u64,
}

// SAFETY: the mapping belongs to the process, not to a thread, and the mutex around it lets one thread in at a time.
unsafe impl Send for World {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// Size of the part to fuzz. The presence bits, values and keys after it are only copied, never interpreted.
const HEADER_BYTES: usize = 128;

fuzz_target!(|bytes: &[u8]| {
    let mut world = WORLD.lock().expect("a panic ends the process");
    let world = world.get_or_insert_with(|| world_of().expect("a service can be started"));
    for header in bytes.chunks(HEADER_BYTES) {
        world.rude.scribble(header);
        world.rude.ring();
    }
    let request = Request { version: VERSION, op: op::GET, count: 1, ..Request::default() };
    let right = Response { status: status::OK, count: 1, has_slot: 1, slot: 7, ..Response::default() };
    assert_eq!(world.polite.ask(request, &[[1; 32]]), right, "another client's answer");
    assert_eq!(world.polite.segment.value(0), Some([7; 32]));
});

impl Client {
    /// Overwrites the start of the segment, including the service's own cache line, as a client could.
    fn scribble(&mut self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping. The service may read at the same time, as atomics or by volatile copies; its
            // reaction to a byte that changes under it is the subject of this test.
            unsafe { self.memory.as_mut_ptr().add(at).write_volatile(*byte) };
        }
    }

    fn ring(&self) {
        let _heard = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn ask(&mut self, request: Request, keys: &[[u8; 32]]) -> Response {
        self.seq += 1;
        if self.segment.send(self.seq, request, keys) {
            self.ring();
        }
        let asked = Instant::now();
        while !self.segment.answered(self.seq) {
            std::thread::yield_now();
            assert!(asked.elapsed().as_secs() < 10, "no answer: request={request:?}");
        }
        self.segment.response()
    }
}

fn world_of() -> anyhow::Result<World> {
    let temp = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = EngineOptions::new(EngineKind::Redb);
    let engine = engines::open(&temp.path().join("store"), &options, OpenMode::Create)?;
    let engine = Arc::new(Measured::new(engine, Latency::new("redb"), "ingest"));
    let checkpoint = ChainCheckpoint { seq: 1, slot: Some(7), ..ChainCheckpoint::default() };
    let mut txn = engine.begin()?;
    txn.put(&[1; 32], &[7; 32])?;
    txn.commit(&checkpoint.write(), Durability::Synced)?;
    let path = temp.path().join("shm.sock");
    let overlay = Overlay::new(&checkpoint, false, false);
    let handles = Handles::new("redb", &ingest::State::new(checkpoint, overlay, ReadinessSettings::default()));
    let Handles { lookups, status, shm_sessions: sessions, .. } = handles;
    let (state, pulses) = (ShmState { lookups, status, sessions }, Pulses::default());
    let server = ShmServer::start(&path, &SocketAccess::OWNER, Arc::clone(&engine), state, &pulses, None)?;
    Ok(World { rude: connect(&path)?, polite: connect(&path)?, _server: server, _temp: temp })
}

fn connect(path: &Path) -> anyhow::Result<Client> {
    let socket = UnixStream::connect(path)?;
    let mut bytes = [0u8; size_of::<Hello>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty())?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let Ok([memfd, bell]) = <[OwnedFd; 2]>::try_from(fds) else {
        anyhow::bail!("a session comes with two descriptors")
    };
    let memory = MmapRaw::map_raw(&std::fs::File::from(memfd))?;
    assert_eq!(memory.len(), SEGMENT_BYTES);
    // SAFETY: a shared mapping of the whole segment, kept together with the view.
    let segment = unsafe { Segment::new(NonNull::new(memory.as_mut_ptr()).expect("a mapping is not at 0")) };
    Ok(Client { segment, memory, _socket: socket, bell, seq: 0 })
}
