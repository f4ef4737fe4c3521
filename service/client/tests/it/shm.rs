//! Reads over memory that a service made here hands over: answers that come late, a slot that is not reached, a service
//! that goes away. Needs no gRPC.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::Duration;

use memmap2::MmapRaw;
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use shm_layout::{Hello, KEYS_MAX, Response, SEGMENT_BYTES, Segment, hello, op, status};
use solkv_client::{Answer, Builder, ErrorKind, ReadOptions, blocking};

/// The end of one request, and a pause before it.
#[derive(Clone, Copy)]
enum Act {
    Answer(Duration),
    NotReached,
    Leave,
}

/// Serves one session after another, each by its list of acts, and then answers everything.
fn serve(sessions: Vec<Vec<Act>>) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shm.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let last = std::iter::repeat(vec![]);
    std::thread::spawn(move || {
        for acts in sessions.into_iter().chain(last) {
            session(&listener.accept().unwrap().0, &acts);
        }
    });
    (dir, path)
}

fn session(socket: &UnixStream, acts: &[Act]) {
    let memfd = rustix::fs::memfd_create("segment", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, SEGMENT_BYTES as u64).unwrap();
    let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let fds = [memfd.as_fd(), bell.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let greeting = Hello::new(hello::OK).to_bytes();
    sendmsg(socket, &[IoSlice::new(&greeting)], &mut control, SendFlags::empty()).unwrap();
    let memory = MmapRaw::map_raw(&std::fs::File::from(memfd)).unwrap();
    // SAFETY: a shared mapping of the whole segment, zero and of this size for as long as it is used; the only view here.
    let segment = unsafe { Segment::new(NonNull::new(memory.as_mut_ptr()).unwrap()) };
    let (mut done, mut keys) = (0, Vec::new());
    while rustix::net::recv(socket, &mut [0; 1], rustix::net::RecvFlags::DONTWAIT) != Ok((0, 0)) {
        let seq = segment.requested();
        if seq == done {
            std::thread::yield_now();
            continue;
        }
        let request = segment.request();
        let outcome = match acts.get(done as usize).copied().unwrap_or(Act::Answer(Duration::ZERO)) {
            Act::Leave => return,
            Act::NotReached => status::SLOT_NOT_REACHED,
            Act::Answer(pause) => {
                std::thread::sleep(pause);
                status::OK
            }
        };
        segment.keys(request.count as usize, &mut keys);
        // Keys that begin with 0 are absent; the others are their own values.
        segment.set_values(&keys.iter().map(|key| (key[0] > 0).then_some(*key)).collect::<Vec<_>>());
        // The tag 0x0a is the engine's, 0x30 says whether the service is ready.
        let answer = b"\x0a\x06strata\x30\x01";
        let count = if request.op == op::STATUS { answer.len() as u32 } else { request.count };
        if request.op == op::STATUS {
            segment.set_status_bytes(answer);
        }
        // The client looks at its socket and at the memory by itself after a while: nobody wakes it here.
        segment.respond(seq, Response { status: outcome, count, has_slot: 1, reserved: 0, slot: 7 });
        done = seq;
    }
}

fn client(path: &std::path::Path, spin: Duration) -> blocking::Client {
    Builder::new(&format!("shm://{}", path.display())).unwrap().spin(spin).connect_blocking().unwrap()
}

#[test]
fn values_and_the_status_come_as_they_were_written() {
    let (_dir, path) = serve(vec![]);
    for spin in [Duration::ZERO, Duration::from_millis(1)] {
        let mut client = client(&path, spin);
        assert_eq!(client.get(&[3; 32]).unwrap(), Answer { value: Some([3; 32]), slot: Some(7) });
        assert_eq!(client.get(&[0; 32]).unwrap(), Answer { value: None, slot: Some(7) });
        for count in [0, 1, 9, KEYS_MAX, KEYS_MAX + 1] {
            let keys: Vec<_> = (0..count).map(|index| [(index % 3) as u8; 32]).collect();
            let values = keys.iter().map(|key| (key[0] > 0).then_some(*key)).collect();
            assert!(client.get_many(&keys).unwrap() == Answer { value: values, slot: Some(7) }, "count={count}");
        }
        let status = client.status().unwrap();
        assert_eq!((status.engine.as_str(), status.ready, status.lag_ms), ("strata", true, None));
    }
}

#[test]
fn a_read_is_sent_once_more_and_not_twice() {
    let (_dir, path) = serve(vec![vec![Act::Leave], vec![]]);
    let mut once = client(&path, Duration::ZERO);
    assert_eq!(once.get(&[3; 32]).unwrap().value, Some([3; 32]));
    let (_dir, path) = serve(vec![vec![Act::Leave], vec![Act::Leave]]);
    let mut twice = client(&path, Duration::ZERO);
    assert_eq!(twice.get(&[3; 32]).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(twice.get(&[3; 32]).unwrap().value, Some([3; 32]), "the next call connects again");
}

#[test]
fn a_late_answer_is_not_that_of_the_next_request() {
    let (_dir, path) = serve(vec![vec![Act::Answer(Duration::from_millis(200))]]);
    let mut client = client(&path, Duration::ZERO);
    let short = ReadOptions { deadline: Some(Duration::from_millis(20)), ..ReadOptions::default() };
    assert_eq!(client.get_with(&[3; 32], short).unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(client.get(&[4; 32]).unwrap().value, Some([4; 32]));
}

#[test]
fn a_slot_is_waited_for_until_the_deadline() {
    let (_dir, path) = serve(vec![vec![Act::NotReached, Act::NotReached]]);
    let mut client = client(&path, Duration::ZERO);
    let options = ReadOptions { min_context_slot: Some(7), ..ReadOptions::default() };
    assert_eq!(client.get_with(&[3; 32], options).unwrap().value, Some([3; 32]));
    let (_dir, path) = serve(vec![vec![Act::NotReached; 100_000]]);
    let mut client = self::client(&path, Duration::ZERO);
    let options = ReadOptions { deadline: Some(Duration::from_millis(20)), ..options };
    let late = client.get_with(&[3; 32], options).unwrap_err();
    assert!(late.kind() == ErrorKind::Refused && late.to_string().contains("min_context_slot=7"), "{late}");
}

#[cfg(not(feature = "grpc"))]
#[test]
fn a_transport_that_is_left_out_is_named() {
    let refused = blocking::Client::connect("unix:///s").err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::BadInput);
    assert!(refused.to_string().contains("feature grpc"), "{refused}");
}
