//! Lookups: a pool of `lookup-N` OS threads with one reader each, fed by one bounded queue.
//!
//! Owns: the queue and the threads. Must not: know gRPC, or block the caller; what a lookup reads is `reading`'s.
//! Threads: [`Lookups`] is used on the network edge; readers live and die on their `lookup-N` thread.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use engine_api::{Error, Key, Value};
use engine_latency::{Latency, Measured};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::overlay::Commitment;
use crate::pulse::Pulse;
use crate::reading::Reading;
use crate::slow::{Parts, Slow, Transport};
use crate::status::{Shared, count};

/// Requests that may wait for a thread. At the 100 us of a lookup that reads from a device, a full queue is about
/// 100 ms of work: whoever comes after that is better served by an answer at once that says so.
pub const LOOKUP_QUEUE: usize = 1024;

/// `get_many` requests queued or running. At 10,000 keys each 32 hold about 20 MB, where a queue full of them
/// would hold over 600.
pub const GET_MANY_QUEUE: usize = 32;

/// An idle reader still holds its snapshot, and with it LMDB and redb keep every page freed since; moving it
/// this often bounds what they keep to the commits of 200 ms.
pub(crate) const IDLE_REFRESH: Duration = Duration::from_millis(200);

/// The source under which lookups are recorded.
const SOURCE: &str = "rpc";

/// An answer and the slot it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T = Option<Value>> {
    /// `None` when the map holds no such key; for `get_many` one of these a key, in the order asked.
    pub value: T,
    /// The newest slot wholly in what was read: for confirmed the last one applied, for processed the tip of the fork,
    /// for finalized the last final one. Never newer than what was read; `None` before the first.
    pub slot: Option<u64>,
}

/// Where a request comes from and what became of its time before it was queued.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// What it came in by.
    pub transport: Transport,
    /// When it was decoded, by [`Lookups::clock`].
    pub asked: u64,
    /// What it has waited for a slot, in ns.
    pub slot_wait_ns: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum LookupError {
    /// The queue is full: nothing was read, try again later.
    Busy,
    /// The service is shutting down.
    Stopped,
    /// Processed slots are not followed.
    NotFollowed,
    /// Too much is known of processed slots to keep it.
    Overflowed,
    /// What was changed after the finalized slot is not known yet.
    NotFinal,
    /// The engine failed.
    Engine(Error),
}

/// A handle on the pool. Clones share it.
#[derive(Clone)]
pub struct Lookups {
    queue: Sender<Request>,
    many: Arc<Semaphore>,
    shared: Arc<Shared>,
    latency: Arc<Latency>,
}

/// The threads of the pool. Dropping it tells them to end, [`LookupThreads::join`] also waits.
pub struct LookupThreads {
    /// Nothing is ever sent: dropping it is the signal.
    stop: Sender<Infallible>,
    threads: Vec<JoinHandle<()>>,
}

impl Lookups {
    /// Starts `threads` (at least one) threads.
    ///
    /// # Errors
    /// Those of starting a thread; the threads already started end.
    pub fn start(engine: Arc<Measured>, threads: usize, shared: Arc<Shared>) -> io::Result<(Self, LookupThreads)> {
        let (queue, requests) = bounded(LOOKUP_QUEUE);
        let (stop, stopped) = bounded(0);
        let mut pool = LookupThreads { stop, threads: Vec::new() };
        for n in 0..threads.max(1) {
            let (engine, shared) = (Arc::clone(&engine), Arc::clone(&shared));
            let (requests, stopped) = (requests.clone(), stopped.clone());
            let name = format!("lookup-{n}");
            let pulse = shared.pulses.add(name.as_str());
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(move || run(&engine, &shared, &requests, &stopped, &pulse))?;
            pool.threads.push(thread);
        }
        let (many, latency) = (Arc::new(Semaphore::new(GET_MANY_QUEUE)), Arc::clone(engine.latency()));
        Ok((Self { queue, many, shared, latency }, pool))
    }

    /// The time now, for [`Origin::asked`].
    pub fn clock(&self) -> u64 {
        self.latency.clock().raw()
    }

    /// The ns since a reading of [`Lookups::clock`].
    pub fn elapsed_ns(&self, since: u64) -> u64 {
        self.latency.clock().delta_as_nanos(since, self.clock())
    }

    /// The value of one key. Dropping the future while the request is queued takes its work away.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn get(&self, key: Key, commitment: Commitment, origin: Origin) -> Result<Answer, LookupError> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(Request::Lookup { commitment, origin, asked: Asked::Get { key, reply } })?;
        answer.await.unwrap_or(Err(LookupError::Stopped))
    }

    /// The values of `keys`, all from one state, in their order.
    ///
    /// # Errors
    /// See [`LookupError`]; busy also with [`GET_MANY_QUEUE`] such requests under way.
    pub async fn get_many(
        &self,
        keys: Vec<Key>,
        commitment: Commitment,
        origin: Origin,
    ) -> Result<Answer<Vec<Option<Value>>>, LookupError> {
        let Ok(permit) = Arc::clone(&self.many).try_acquire_owned() else {
            count(&self.shared.counters.lookups_refused, 1);
            return Err(LookupError::Busy);
        };
        let (reply, answer) = oneshot::channel();
        let asked = Asked::GetMany { keys, reply, _permit: permit };
        self.enqueue(Request::Lookup { commitment, origin, asked })?;
        answer.await.unwrap_or(Err(LookupError::Stopped))
    }

    /// Waits until a thread has opened the newest state of the store: from then on lookups are answered. Counted as
    /// nothing.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn probe(&self) -> Result<(), LookupError> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(Request::Probe { reply })?;
        answer.await.unwrap_or(Err(LookupError::Stopped))
    }

    fn enqueue(&self, request: Request) -> Result<(), LookupError> {
        self.queue.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => {
                count(&self.shared.counters.lookups_refused, 1);
                LookupError::Busy
            }
            TrySendError::Disconnected(_) => LookupError::Stopped,
        })
    }
}

impl LookupThreads {
    /// Ends the threads and waits: each finishes the request it is at, what is still queued gets
    /// [`LookupError::Stopped`]. After it no reader holds the engine any more.
    pub fn join(self) {
        drop(self.stop);
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or("lookup").to_owned();
            if thread.join().is_err() {
                tracing::error!(thread = name, "a lookup thread panicked");
            }
        }
    }
}

enum Request {
    Lookup { commitment: Commitment, origin: Origin, asked: Asked },
    Probe { reply: oneshot::Sender<Result<(), LookupError>> },
}

enum Asked {
    Get {
        key: Key,
        reply: oneshot::Sender<Result<Answer, LookupError>>,
    },
    GetMany {
        keys: Vec<Key>,
        reply: oneshot::Sender<Result<Answer<Vec<Option<Value>>>, LookupError>>,
        /// Travels with the keys, so that a request given up on counts until its memory is freed.
        _permit: OwnedSemaphorePermit,
    },
}

fn run(
    engine: &Measured,
    shared: &Shared,
    requests: &Receiver<Request>,
    stopped: &Receiver<Infallible>,
    pulse: &Pulse,
) {
    let mut reading = Reading::new(engine, shared, SOURCE);
    loop {
        pulse.beat();
        crossbeam_channel::select_biased! {
            recv(stopped) -> _ => return,
            recv(requests) -> request => match request {
                Ok(Request::Lookup { commitment, origin, asked }) => {
                    serve(&mut reading, shared, engine.latency(), (commitment, origin), asked);
                }
                Ok(Request::Probe { reply }) => {
                    let _gone = reply.send(reading.probe());
                }
                Err(_) => return,
            },
            default(IDLE_REFRESH) => reading.refresh_idle(),
        }
    }
}

/// Answers one, unless nobody waits any more: then the deadline passed while it was queued.
fn serve(
    reading: &mut Reading<'_>,
    shared: &Shared,
    latency: &Latency,
    (commitment, origin): (Commitment, Origin),
    asked: Asked,
) {
    let taken = latency.clock().raw();
    let (answered, keys) = match asked {
        Asked::Get { reply, .. } if reply.is_closed() => return,
        Asked::GetMany { reply, .. } if reply.is_closed() => return,
        Asked::Get { key, reply } => {
            let answer = reading.get(&key, commitment);
            let answered = answer.is_ok();
            let _gone = reply.send(answer);
            (answered, 1)
        }
        Asked::GetMany { keys, reply, _permit } => {
            let answer = reading.get_many(&keys, commitment);
            let answered = answer.is_ok();
            let _gone = reply.send(answer);
            (answered, keys.len())
        }
    };
    let total_ns = latency.clock().delta_as_nanos(origin.asked, latency.clock().raw());
    if answered && shared.slow.is_slow(total_ns) {
        let (slot_wait_ns, spent) = (origin.slot_wait_ns, reading.spent());
        let queue_ns = latency.clock().delta_as_nanos(origin.asked, taken).saturating_sub(slot_wait_ns);
        let parts = Parts { slot_wait_ns, queue_ns, overlay_ns: spent.overlay_ns, read_ns: spent.read_ns };
        shared.slow.report(&Slow { transport: origin.transport, keys, commitment, total_ns, parts });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytesize::ByteSize;
    use engine_api::{Checkpoint, Durability, Engine};
    use engine_latency::Latency;
    use engines::{EngineOptions, OpenMode};
    use tempfile::TempDir;

    use super::*;
    use crate::overlay::Overlay;

    /// A store of an engine in this build with key `[1; 32]` at slot 7, and its pool.
    pub(crate) struct Pool {
        pub(crate) engine: Arc<Measured>,
        pub(crate) shared: Arc<Shared>,
        pub(crate) lookups: Lookups,
        pub(crate) threads: LookupThreads,
        pub(crate) dir: TempDir,
    }

    impl Pool {
        pub(crate) fn start() -> Self {
            Self::with_overlay(false, false)
        }

        /// One of a service that follows processed slots, or whose engine takes in finalized slots only.
        pub(crate) fn with_overlay(processed: bool, engine_is_final: bool) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let kind = *engines::compiled().last().expect("a build has an engine");
            let options = EngineOptions { memory: Some(ByteSize::mib(64)), ..EngineOptions::new(kind) };
            let engine = engines::open(&dir.path().join("store"), &options, OpenMode::Create).unwrap();
            let engine = Arc::new(Measured::new(engine, Latency::new(options.label()), "ingest"));
            let overlay = Overlay::new(&Checkpoint::default(), processed, engine_is_final);
            let shared = Shared::with_overlay(Checkpoint::default(), overlay);
            commit(&engine, &shared, [1; 32], 7);
            let (lookups, threads) = Lookups::start(Arc::clone(&engine), 2, Arc::clone(&shared)).unwrap();
            Self { engine, shared, lookups, threads, dir }
        }
    }

    pub(crate) fn commit(engine: &Measured, shared: &Shared, key: Key, slot: u64) {
        let checkpoint = Checkpoint { seq: slot, slot: Some(slot), ..Checkpoint::default() };
        let mut txn = engine.begin().unwrap();
        txn.put(&key, &[slot as u8; 32]).unwrap();
        txn.commit(&checkpoint, Durability::Buffered).unwrap();
        shared.checkpoint.store(Arc::new(checkpoint));
        shared.overlay.published(checkpoint.slot);
    }

    #[tokio::test]
    async fn answers_follow_commits_and_carry_their_slot() {
        let pool = Pool::start();
        for slot in 8..40u8 {
            let key = [slot; 32];
            assert_eq!(pool.lookups.get(key, Commitment::Confirmed, Origin::default()).await.unwrap().value, None);
            commit(&pool.engine, &pool.shared, key, u64::from(slot));
            let expected = Answer { value: Some(key), slot: Some(u64::from(slot)) };
            assert_eq!(pool.lookups.get(key, Commitment::Confirmed, Origin::default()).await.unwrap(), expected);
        }
        let many = pool
            .lookups
            .get_many(vec![[1; 32], [0; 32], [9; 32]], Commitment::Confirmed, Origin::default())
            .await
            .unwrap();
        assert_eq!(many, Answer { value: vec![Some([7; 32]), None, Some([9; 32])], slot: Some(39) });
    }

    #[tokio::test]
    async fn joining_frees_the_engine_while_handles_remain() {
        let pool = Pool::start();
        pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await.unwrap();
        pool.threads.join();
        assert!(matches!(
            pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await,
            Err(LookupError::Stopped)
        ));
        let Ok(engine) = Arc::try_unwrap(pool.engine) else { panic!("the engine is still held") };
        Box::new(engine).close().unwrap();
    }

    #[tokio::test]
    async fn too_many_get_many_are_refused() {
        let pool = Pool::start();
        let all = Arc::clone(&pool.lookups.many).try_acquire_many_owned(GET_MANY_QUEUE as u32).unwrap();
        assert!(matches!(
            pool.lookups.get_many(vec![[1; 32]], Commitment::Confirmed, Origin::default()).await,
            Err(LookupError::Busy)
        ));
        drop(all);
        pool.lookups.get_many(vec![[1; 32]], Commitment::Confirmed, Origin::default()).await.unwrap();
    }
}
