//! Tests of a session's segment with the client's and the service's side in one process.

use super::*;

/// Heap memory in place of a mapping, for both sides in one process.
struct Memory(Box<std::cell::UnsafeCell<Layout>>);

impl Memory {
    fn new() -> Self {
        // SAFETY: all-zero bytes are a Layout.
        Self(unsafe { Box::<std::cell::UnsafeCell<Layout>>::new_zeroed().assume_init() })
    }

    fn segment(&self) -> Segment {
        // SAFETY: the memory outlives the views of these tests and is never moved.
        unsafe { Segment::new(NonNull::new(self.0.get().cast()).expect("a box is not null")) }
    }
}

#[test]
fn an_answer_is_what_was_written_for_its_number() {
    let memory = Memory::new();
    let (client, service) = (memory.segment(), memory.segment());
    let keys: Vec<[u8; 32]> = (0..KEYS_MAX).map(|n| [n as u8; 32]).collect();
    let request = Request { version: VERSION, op: op::GET, count: keys.len() as u32, ..Request::default() };
    assert!(!client.send(1, request, &keys));
    assert!(!client.answered(1));
    let mut read = Vec::new();
    service.keys(service.request().count as usize, &mut read);
    assert_eq!((service.requested(), service.request(), &read), (1, request, &keys));
    let values: Vec<Option<[u8; 32]>> = keys.iter().map(|key| (key[0] % 3 > 0).then_some(*key)).collect();
    service.set_values(&values);
    let response = Response { count: request.count, has_slot: 1, slot: 7, ..Response::default() };
    assert_eq!(service.respond(1, response), Wake::Nobody);
    assert!(client.answered(1));
    assert_eq!(client.response(), response);
    assert_eq!((0..keys.len()).map(|index| client.value(index)).collect::<Vec<_>>(), values);
}

#[test]
fn who_sleeps_is_woken_in_the_way_it_asked_for() {
    let memory = Memory::new();
    let (client, service) = (memory.segment(), memory.segment());
    service.fall_asleep();
    sleep_fence();
    assert!(client.send(1, Request::default(), &[]));
    service.wake_up();
    assert!(!client.wait(1, Waits::Futex));
    assert_eq!(service.respond(1, Response::default()), Wake::Futex);
    assert!(client.wait(1, Waits::Socket));
    assert!(!client.send(2, Request::default(), &[]));
    assert_eq!(service.respond(2, Response::default()), Wake::Socket);
    client.stop_waiting();
    assert!(!client.send(3, Request::default(), &[]));
    assert_eq!(service.respond(3, Response::default()), Wake::Nobody);
}

#[test]
fn the_word_to_sleep_at_changes_with_the_answer() {
    let memory = Memory::new();
    let (client, service) = (memory.segment(), memory.segment());
    client.send(1, Request::default(), &[]);
    let unanswered = client.unanswered(1).expect("no answer yet");
    let word = || {
        // ORDERING: Relaxed: one thread.
        client.futex().load(Ordering::Relaxed)
    };
    assert_eq!(word(), unanswered);
    service.respond(1, Response::default());
    assert_ne!(word(), unanswered);
    assert_eq!(client.unanswered(1), None);
}

#[test]
fn a_count_beyond_the_place_is_cut_and_a_greeting_of_others_is_none() {
    let memory = Memory::new();
    let (client, service) = (memory.segment(), memory.segment());
    let mut keys = Vec::new();
    service.keys(usize::MAX, &mut keys);
    assert_eq!(keys.len(), KEYS_MAX);
    assert_eq!(client.status_bytes(u32::MAX).len(), STATUS_BYTES_MAX);
    let hello = Hello::new(hello::FULL);
    assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
    assert_eq!(Hello::from_bytes(&[0; 24]), None);
}
