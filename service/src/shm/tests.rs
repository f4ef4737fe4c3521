//! The wire with a client that breaks its rules, on a real store.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use engine_latency::Op;
use memmap2::MmapRaw;
use prost::Message as _;
use proto::v1::{Commitment, GET_MANY_KEYS_MAX, StatusResponse};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg};
use shm_layout::{Hello, Request, Response, SEGMENT_BYTES, Segment, VERSION, hello, op, status};

use super::room::SESSIONS_PER_USER;
use super::*;
use crate::lookups::tests::{Pool, commit, later};
use crate::net::discard::tests::pass_lingering;
use crate::pages::handles::Handles;

struct Raw {
    segment: Segment,
    _memory: MmapRaw,
    socket: UnixStream,
    bell: OwnedFd,
    seq: u64,
}

/// Connects; returns the greeting, and the session if there is one.
fn connect(path: &Path) -> (Hello, Option<Raw>) {
    greeted(UnixStream::connect(path).unwrap())
}

fn greeted(socket: UnixStream) -> (Hello, Option<Raw>) {
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
    let Ok([memfd, bell]) = <[OwnedFd; 2]>::try_from(fds) else { return (hello, None) };
    let memfd = std::fs::File::from(memfd);
    assert_eq!(memfd.metadata().unwrap().len(), SEGMENT_BYTES as u64);
    assert!(memfd.set_len(0).is_err(), "the memory is sealed");
    let memory = MmapRaw::map_raw(&memfd).unwrap();
    // SAFETY: a shared mapping of the whole segment, kept together with the view, the only one of this side.
    let segment = unsafe { Segment::new(NonNull::new(memory.as_mut_ptr()).unwrap()) };
    (hello, Some(Raw { segment, _memory: memory, socket, bell, seq: 0 }))
}

impl Raw {
    fn send(&mut self, request: Request, keys: &[[u8; 32]]) {
        self.seq += 1;
        if self.segment.send(self.seq, request, keys) {
            bells::ring_own(&self.bell);
        }
    }

    fn answer(&self) -> Option<Response> {
        self.segment.answered(self.seq).then(|| self.segment.response())
    }

    fn ask(&mut self, request: Request, keys: &[[u8; 32]]) -> Response {
        self.send(request, keys);
        loop {
            match self.answer() {
                Some(response) => return response,
                None => std::thread::yield_now(),
            }
        }
    }
}

fn get(count: usize) -> Request {
    Request { version: VERSION, op: op::GET, count: count as u32, ..Request::default() }
}

fn state(pool: &Pool) -> ShmState {
    let Handles { lookups, status, shm_sessions: sessions, .. } = pool.handles.clone();
    ShmState { lookups, status, sessions }
}

fn start(pool: &Pool) -> (ShmServer, std::path::PathBuf) {
    let path = pool.dir.path().join("shm.sock");
    let (engine, pulses) = (Arc::clone(&pool.engine), Pulses::default());
    let server = ShmServer::start(&path, &SocketAccess::OWNER, engine, state(pool), &pulses, None).unwrap();
    (server, path)
}

/// Runs `test` with a server that does nothing by itself: the test takes its turns.
fn by_hand(test: impl FnOnce(&Pool, &mut Server<'_>, &dyn Fn(&mut Server<'_>) -> Raw)) {
    let pool = Pool::start();
    let path = pool.dir.path().join("shm.sock");
    let (listener, _file) = UdsListener::bind(&path, &SocketAccess::OWNER).unwrap().into_parts();
    let own = bells::bell().unwrap();
    let bells = Bells::new(&own, &listener).unwrap();
    let state = state(&pool);
    let mut server = Server::new(listener, bells, Discard::start().unwrap(), &pool.engine, &state, None);
    let join = |server: &mut Server<'_>| {
        let socket = UnixStream::connect(&path).unwrap();
        server.look_around(Some(Duration::ZERO));
        greeted(socket).1.unwrap()
    };
    test(&pool, &mut server, &join);
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
    server.join(later()).unwrap();
    assert!(!path.exists());
    pool.threads.join(later()).unwrap();
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
    server.join(later()).unwrap();
}

#[test]
fn one_client_too_many_is_refused_until_another_leaves() {
    let pool = Pool::start();
    let (server, path) = start(&pool);
    let mut clients: Vec<Raw> = (0..SESSIONS_PER_USER).map(|_| connect(&path).1.unwrap()).collect();
    let (greeting, session) = connect(&path);
    assert_eq!((greeting, session.is_none()), (Hello::new(hello::FULL), true));
    drop(clients.pop());
    // The server notices the end at its next check.
    while connect(&path).1.is_none() {
        std::thread::yield_now();
    }
    let request = Request { version: VERSION, op: op::GET, count: 1, ..Request::default() };
    for client in &mut clients {
        assert_eq!(client.ask(request, &[[1; 32]]).status, status::OK);
    }
    // ORDERING: Relaxed: a statistic.
    assert!(pool.handles.shm_sessions.load(Ordering::Relaxed) >= clients.len() as u64);
    server.join(later()).unwrap();
    assert_eq!(pool.handles.shm_sessions.load(Ordering::Relaxed), 0);
}

#[test]
fn a_get_waits_for_one_piece_at_most_and_no_batch_mixes_two_states() {
    by_hand(|pool, server, join| {
        let (mut hogs, mut other) = ([join(server), join(server)], join(server));
        let (keys, mut slot, mut slots, mut turns) = (vec![[1; 32]; GET_MANY_KEYS_MAX], 7, Vec::new(), 0);
        hogs.iter_mut().for_each(|hog| hog.send(get(keys.len()), &keys));
        while slots.len() < 10 {
            turns += 1;
            slot += 1;
            commit(&pool.engine, &pool.handles.lookups, [1; 32], slot);
            other.send(get(1), &[[1; 32]]);
            assert!(server.serve());
            // Answered within this turn, which reads at most one piece, and from the newest state.
            assert_eq!((other.answer().unwrap().slot, other.segment.value(0)), (slot, Some([slot as u8; 32])));
            for hog in &mut hogs {
                let Some(response) = hog.answer() else { continue };
                let whole = Some([response.slot as u8; 32]);
                assert_eq!((response.status, response.count as usize), (status::OK, keys.len()));
                assert!((0..keys.len()).all(|index| hog.segment.value(index) == whole), "slot={}", response.slot);
                slots.push(response.slot);
                hog.send(get(keys.len()), &keys);
            }
        }
        let pieces = GET_MANY_KEYS_MAX.div_ceil(PIECE_KEYS);
        assert_eq!(turns, 10 * pieces, "a piece a turn");
        assert!(slots.is_sorted() && slots.windows(2).all(|two| two[0] < two[1]), "{slots:?}");
    });
}

#[test]
fn a_batch_of_one_piece_does_not_wait_for_a_long_one() {
    by_hand(|_, server, join| {
        let (mut hogs, mut other) = ([join(server), join(server)], join(server));
        let keys = vec![[1; 32]; GET_MANY_KEYS_MAX];
        hogs.iter_mut().for_each(|hog| hog.send(get(keys.len()), &keys));
        for _ in 0..100 {
            other.send(get(PIECE_KEYS), &keys[..PIECE_KEYS]);
            let turns = (0..).take_while(|_| server.serve() && other.answer().is_none()).count();
            assert!(turns <= hogs.len(), "each of the others has a turn at most: turns={turns}");
            for hog in &mut hogs {
                if hog.answer().is_some() {
                    hog.send(get(keys.len()), &keys);
                }
            }
        }
    });
}

#[test]
fn a_client_that_goes_in_the_middle_of_its_batch_leaves_the_turn_to_others() {
    by_hand(|_, server, join| {
        let (mut first, mut second) = (join(server), join(server));
        let keys = vec![[1; 32]; GET_MANY_KEYS_MAX];
        first.send(get(keys.len()), &keys);
        second.send(get(keys.len()), &keys);
        assert!(server.serve());
        // The client keeps its bell, which would continue ringing.
        let bell = first.bell.try_clone().unwrap();
        drop(first);
        bells::ring_own(&bell);
        server.look_around(Some(Duration::ZERO));
        assert_eq!((server.sessions.len(), server.under_way, server.waiting), (1, None, 1));
        let turns = (0..).take_while(|_| second.answer().is_none() && server.serve()).count();
        assert_eq!(turns, GET_MANY_KEYS_MAX.div_ceil(PIECE_KEYS));
        bells::ring_own(&bell);
        let heard = server.bells.wait(Some(Duration::ZERO));
        assert!(heard.rings == 0 && heard.gone.is_empty(), "a bell of nobody is not heard");
    });
}

#[test]
fn gets_that_are_looked_up_together_go_each_to_its_own_session() {
    by_hand(|pool, server, join| {
        let mut clients: Vec<Raw> = (0..6).map(|_| join(server)).collect();
        commit(&pool.engine, &pool.handles.lookups, [2; 32], 8);
        let requests = [
            (get(1), [1; 32]),
            (get(1), [2; 32]),
            (get(1), [3; 32]),
            (Request { min_context_slot: 9, ..get(1) }, [1; 32]),
            (Request { commitment: Commitment::Processed.into(), ..get(1) }, [1; 32]),
            (Request { version: VERSION + 1, ..get(1) }, [1; 32]),
        ];
        for (client, (request, key)) in clients.iter_mut().zip(requests) {
            client.send(request, &[key]);
        }
        server.reading.pretend_cold();
        let before = pool.engine.latency().snapshot();
        assert!(server.serve());
        let read = pool.engine.latency().snapshot().since(&before);
        assert_eq!(read.get(SOURCE, Op::GetMany).map_or(0, |series| series.len()), 1);
        assert!(read.get(SOURCE, Op::ReadPositive).is_none_or(|series| series.is_empty()));
        let answers: Vec<_> = clients.iter().map(|client| client.answer().unwrap()).collect();
        let found = |at: usize| (answers[at].status, answers[at].slot, clients[at].segment.value(0));
        assert_eq!(found(0), (status::OK, 8, Some([7; 32])));
        assert_eq!(found(1), (status::OK, 8, Some([8; 32])));
        assert_eq!(found(2), (status::OK, 8, None));
        assert_eq!((answers[3].status, answers[3].slot), (status::SLOT_NOT_REACHED, 8));
        assert_eq!([answers[4].status, answers[5].status], [status::COMMITMENT, status::VERSION]);
        assert!(!server.serve(), "nothing is answered twice");
    });
}

#[test]
fn a_client_that_sends_is_refused_and_one_that_rings_does_no_more_than_wake() {
    by_hand(|_, server, join| {
        let mut rude = UnixStream::connect(server.listener.local_addr().unwrap().as_pathname().unwrap()).unwrap();
        rude.write_all(&[0; 1000]).unwrap();
        server.look_around(Some(Duration::ZERO));
        assert!(server.sessions.is_empty());
        // Another thread closes it unread, which resets the connection; there was no greeting.
        assert!(rude.read_to_end(&mut Vec::new()).unwrap_or_default() == 0);
        let polite = join(server);
        (&polite.socket).write_all(&[0]).unwrap_err();
        (0..1000).for_each(|_| bells::ring_own(&polite.bell));
        assert_eq!(server.bells.wait(Some(Duration::ZERO)).rings, 1, "however often it rings, it is one event");
        assert!(!server.serve());
        assert_eq!(server.bells.wait(Some(Duration::ZERO)).rings, 0);
    });
}

#[test]
fn clients_that_send_delay_nobody_who_comes_after_them() {
    by_hand(|_, server, _| {
        let path = server.listener.local_addr().unwrap();
        let connect = || UnixStream::connect_addr(&path).unwrap();
        // Fewer than may wait to be closed, so that the number of turns does not depend on the closing thread.
        let rude: Vec<UnixStream> = (0..15 * ACCEPTS_A_LOOK).map(|_| connect()).collect();
        rude.iter().for_each(|mut socket| socket.write_all(&[0]).unwrap());
        let polite = connect();
        for _ in 0..15 {
            server.look_around(Some(Duration::ZERO));
            assert!(server.sessions.is_empty() && server.accept_at.is_none(), "nobody pauses for them");
        }
        server.look_around(Some(Duration::ZERO));
        assert!(greeted(polite).1.is_some(), "let in at its turn");
    });
}

#[test]
fn the_end_waits_for_no_descriptor_of_a_client_that_nobody_accepted() {
    const LINGER: Duration = Duration::from_secs(20);
    let pool = Pool::start();
    let path = pool.dir.path().join("shm.sock");
    let (listener, _file) = UdsListener::bind(&path, &SocketAccess::OWNER).unwrap().into_parts();
    let bells = Bells::new(&bells::bell().unwrap(), &listener).unwrap();
    let (state, discard) = (state(&pool), Discard::start().unwrap());
    let server = Server::new(listener, bells, discard, &pool.engine, &state, None);
    let mut client = UnixStream::connect(&path).unwrap();
    let _unread = pass_lingering(&client, LINGER, SendFlags::empty());
    let begun = Instant::now();
    server.end();
    assert!(begun.elapsed() < LINGER / 2, "{:?}", begun.elapsed());
    client.set_read_timeout(Some(LINGER * 5)).unwrap();
    let read = client.read(&mut [0]);
    assert!(
        read.as_ref().map_or_else(|error| error.kind() == io::ErrorKind::ConnectionReset, |read| *read == 0),
        "{read:?}"
    );
}
