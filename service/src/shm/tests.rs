//! The wire as a client without manners uses it, on a real store.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use memmap2::MmapRaw;
use prost::Message as _;
use proto::shm::{Hello, Request, Response, SEGMENT_BYTES, Segment, VERSION, hello, op, status};
use proto::v1::{Commitment, GET_MANY_KEYS_MAX, StatusResponse};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::*;
use crate::lookups::tests::Pool;

struct Raw {
    segment: Segment,
    _memory: MmapRaw,
    _socket: UnixStream,
    service_doorbell: OwnedFd,
    seq: u64,
}

/// The greeting, and the session when there is one.
fn connect(path: &Path) -> (Hello, Option<Raw>) {
    let socket = UnixStream::connect(path).unwrap();
    let mut bytes = [0u8; size_of::<Hello>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    assert_eq!(recvmsg(&socket, &mut into, &mut control, RecvFlags::empty()).unwrap().bytes, size_of::<Hello>());
    let mut fds = Vec::new();
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(received) = message else { panic!("not descriptors") };
        fds.extend(received);
    }
    let hello = Hello::from_bytes(&bytes).unwrap();
    let Ok([memfd, service_doorbell, _doorbell]) = <[OwnedFd; 3]>::try_from(fds) else { return (hello, None) };
    let memfd = std::fs::File::from(memfd);
    assert_eq!(memfd.metadata().unwrap().len(), SEGMENT_BYTES as u64);
    assert!(memfd.set_len(0).is_err(), "the memory is sealed");
    let memory = MmapRaw::map_raw(&memfd).unwrap();
    // SAFETY: a shared mapping of the whole segment, kept beside the view, the only one of this side.
    let segment = unsafe { Segment::new(NonNull::new(memory.as_mut_ptr()).unwrap()) };
    (hello, Some(Raw { segment, _memory: memory, _socket: socket, service_doorbell, seq: 0 }))
}

impl Raw {
    fn ask(&mut self, request: Request, keys: &[[u8; 32]]) -> Response {
        self.seq += 1;
        if self.segment.send(self.seq, request, keys) {
            session::ring(&self.service_doorbell);
        }
        while !self.segment.answered(self.seq) {
            std::thread::yield_now();
        }
        self.segment.response()
    }
}

fn start(pool: &Pool) -> (ShmServer, std::path::PathBuf) {
    let path = pool.dir.path().join("shm.sock");
    let server = ShmServer::start(&path, Arc::clone(&pool.engine), Arc::clone(&pool.shared), "redb", None).unwrap();
    (server, path)
}

#[test]
fn every_bad_request_has_its_status_and_the_session_goes_on() {
    let pool = Pool::start();
    let (server, path) = start(&pool);
    let mut client = connect(&path).1.unwrap();
    let good = Request { version: VERSION, op: op::GET, count: 1, ..Request::default() };
    for (request, expected) in [
        (Request { version: VERSION + 1, ..good }, status::VERSION),
        (Request { op: 0, ..good }, status::BAD_REQUEST),
        (Request { op: u32::MAX, ..good }, status::BAD_REQUEST),
        (Request { count: GET_MANY_KEYS_MAX as u32 + 1, ..good }, status::BAD_REQUEST),
        (Request { count: u32::MAX, ..good }, status::BAD_REQUEST),
        (Request { commitment: -1, ..good }, status::BAD_REQUEST),
        (Request { commitment: Commitment::Processed.into(), ..good }, status::COMMITMENT),
        (Request { commitment: Commitment::Finalized.into(), ..good }, status::UNAVAILABLE),
        (Request { min_context_slot: 8, ..good }, status::SLOT_NOT_REACHED),
        (Request { min_context_slot: u64::MAX, ..good }, status::SLOT_NOT_REACHED),
    ] {
        let response = client.ask(request, &[[1; 32]]);
        assert_eq!((response.status, response.count), (expected, 0), "{request:?}");
        let response = client.ask(Request { min_context_slot: 7, ..good }, &[[1; 32]]);
        let right = Response { status: status::OK, count: 1, has_slot: 1, slot: 7, ..Response::default() };
        assert_eq!((response, client.segment.value(0)), (right, Some([7; 32])), "after {request:?}");
    }
    let response = client.ask(Request { version: VERSION, op: op::STATUS, ..Request::default() }, &[]);
    let told = StatusResponse::decode(&client.segment.status_bytes(response.count)[..]).unwrap();
    assert_eq!((response.status, told.engine.as_str()), (status::OK, "redb"));
    server.join();
    assert!(!path.exists());
    pool.threads.join();
    assert!(Arc::try_unwrap(pool.engine).is_ok(), "no reader holds the engine");
}

#[test]
fn the_largest_batch_keeps_its_order() {
    let pool = Pool::start();
    let (server, path) = start(&pool);
    let mut client = connect(&path).1.unwrap();
    let keys: Vec<[u8; 32]> = (0..GET_MANY_KEYS_MAX).map(|n| [(n % 3) as u8; 32]).collect();
    let request = Request { version: VERSION, op: op::GET, count: keys.len() as u32, ..Request::default() };
    let response = client.ask(request, &keys);
    assert_eq!((response.status, response.count), (status::OK, keys.len() as u32));
    for index in 0..keys.len() {
        assert_eq!(client.segment.value(index), (index % 3 == 1).then_some([7; 32]), "index={index}");
    }
    server.join();
}

#[test]
fn one_client_too_many_is_refused_until_another_leaves() {
    let pool = Pool::start();
    let (server, path) = start(&pool);
    let mut clients: Vec<Raw> = (0..SESSIONS_MAX).map(|_| connect(&path).1.unwrap()).collect();
    let (greeting, session) = connect(&path);
    assert_eq!((greeting, session.is_none()), (Hello::new(hello::FULL), true));
    drop(clients.pop());
    // Its end is seen with the next look around.
    while connect(&path).1.is_none() {
        std::thread::yield_now();
    }
    let request = Request { version: VERSION, op: op::GET, count: 1, ..Request::default() };
    for client in &mut clients {
        assert_eq!(client.ask(request, &[[1; 32]]).status, status::OK);
    }
    // ORDERING: Relaxed: a statistic.
    assert!(pool.shared.shm_sessions.load(Ordering::Relaxed) >= clients.len() as u64);
    server.join();
    assert_eq!(pool.shared.shm_sessions.load(Ordering::Relaxed), 0);
}
