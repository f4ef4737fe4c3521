//! Lookups: on the thread that asks where memory answers, else a pool of `lookup-N` OS threads, fed by one bounded queue of
//! gets and one of batches.
//!
//! Owns: the queues and the threads. Must not: know gRPC, or block the caller. The order in which a thread answers
//! belongs to `worker`, and reading the state to `reading`. Threads: [`Lookups`] is used on the network edge; each
//! reader stays on its `lookup-N` thread.

mod here;
mod queue;
mod worker;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError, bounded};
use engine_api::{Key, Value};
use engine_latency::{Latency, Measured};
use tokio::sync::oneshot;

use crate::base::chain::Commitment;
use crate::base::figure::count;
use crate::base::pulse::Pulses;
use crate::base::setting::{HOUR, settings};
use crate::base::slow::Transport;
use crate::base::stop;
pub(crate) use crate::reading::{Answer, LookupError, LookupFigures, LookupState};
pub(crate) use here::HERE_KEYS_MAX;
use here::Here;
use queue::{Batch, BatchQueue};
use worker::{Get, Worker};

/// Maximum number of gets that wait for a thread. A lookup that reads from a device takes 100 us, so a full queue is
/// about 100 ms of work. A later request is better served by an immediate answer that the service is busy.
pub(crate) const LOOKUP_QUEUE: usize = 1024;

/// Maximum number of keys in `get_many` requests that are queued or running, over all connections: they hold about 20 MB.
/// `ask::places` grants one connection a part of them.
pub(crate) const GET_MANY_QUEUE_KEYS: usize = 320_000;

/// Number of keys for which a smaller batch counts, because each batch takes memory of its own. So there are 1000 at most.
const BATCH_COUNTED_KEYS_MIN: usize = 320;

/// Number of threads by default. From memory two answer all requests that the network threads can bring.
const THREADS: usize = 2;

/// Number of threads by default for a store that is larger than the memory, on an engine whose `get_many` waits for one
/// read of the device after another. TRIED.md has the rates.
const THREADS_WAITING: usize = 16;

/// Maximum number of threads: no machine has as many cores for them, so more would only wait for one another.
const THREADS_MAX: u32 = 256;

/// How often an idle reader is moved to the newest commit. While it holds its snapshot, LMDB and redb keep every page
/// freed since. This bounds those pages to the commits of 200 ms.
pub(crate) const IDLE_REFRESH: Duration = Duration::from_millis(200);

/// Label under which lookups are recorded.
const SOURCE: &str = "rpc";

settings! {
    /// How lookups read the engine, and which of them are logged.
    pub struct LookupSettings from LookupGiven {
        /// A lookup that takes this long is logged with its cause, without its keys; 0s means never; for a store
        /// whose device is slower than that [default: 10ms]
        #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[serde(with = "crate::base::setting::duration")]
        slow_request: Duration = Duration::from_millis(10), within Duration::ZERO..=HOUR;
        /// Threads that read the engine for lookups; for more cores, or a device that answers more reads at once
        /// [default: 2, or 16 for a store of RocksDB, LMDB or redb that is larger than the memory]
        #[arg(value_name = "N", value_parser = bootstrap::count::<u32>)]
        #[serde(deserialize_with = "crate::base::setting::count")]
        lookup_threads: u32, within 1..=THREADS_MAX;
    }
}

/// Origin of a request, and the time that it spent before it was queued.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// Transport that the request came in by.
    pub transport: Transport,
    /// Number that tells the batches of one connection from those of others; any number will do.
    pub connection: usize,
    /// When the request was decoded, as a reading of [`Lookups::clock`].
    pub asked: u64,
    /// Time that the request waited for its minimum slot, in ns.
    pub slot_wait_ns: u64,
}

/// Returns the default number of threads for a store of this size in a process with this memory. `in_turn` says that
/// the engine's `get_many` waits for one read of the device after another.
pub(crate) fn default_threads(in_turn: bool, store_bytes: u64, memory_bytes: u64) -> usize {
    if in_turn && store_bytes > memory_bytes { THREADS_WAITING } else { THREADS }
}

/// Returns the number of keys for which a batch counts.
pub(crate) fn counted_keys(keys: usize) -> usize {
    keys.max(BATCH_COUNTED_KEYS_MIN)
}

/// Handle to the pool. Clones share the pool.
#[derive(Clone)]
pub struct Lookups {
    gets: Sender<Get>,
    batches: Arc<BatchQueue>,
    here: Arc<Here>,
    figures: Arc<LookupFigures>,
    latency: Arc<Latency>,
}

/// Threads of the pool. Dropping this tells them to end; [`LookupThreads::join`] also waits for them.
pub struct LookupThreads {
    /// Nothing is ever sent on this channel: dropping the sender tells the threads to end.
    signal: Option<Sender<Infallible>>,
    batches: Arc<BatchQueue>,
    here: Arc<Here>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for LookupThreads {
    fn drop(&mut self) {
        self.signal = None;
        self.batches.close();
        self.here.close();
    }
}

impl Lookups {
    /// Starts the pool with `threads` threads, at least one.
    ///
    /// # Errors
    /// I/O errors of starting a thread; the threads already started end.
    pub fn start(
        engine: Arc<Measured>,
        threads: usize,
        state: &LookupState,
        pulses: &Pulses,
    ) -> io::Result<(Self, LookupThreads)> {
        let (gets, taken) = bounded(LOOKUP_QUEUE);
        let (signal, stopped) = bounded(0);
        let batches = Arc::new(BatchQueue::new());
        let here = Arc::new(Here::new(&engine, state));
        let mut pool = LookupThreads {
            signal: Some(signal),
            batches: Arc::clone(&batches),
            here: Arc::clone(&here),
            threads: Vec::new(),
        };
        for n in 0..threads.max(1) {
            let (engine, state) = (Arc::clone(&engine), state.clone());
            let (taken, batches, stopped) = (taken.clone(), Arc::clone(&batches), stopped.clone());
            let name = format!("lookup-{n}");
            let pulse = pulses.add(name.as_str());
            let run = move || Worker::new(&engine, &state, &taken, &batches, &stopped, &pulse).run();
            pool.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        let latency = Arc::clone(engine.latency());
        Ok((Self { gets, batches, here, figures: Arc::clone(&state.figures), latency }, pool))
    }

    /// Returns the current reading of the clock that `Origin::asked` uses.
    pub fn clock(&self) -> u64 {
        self.latency.clock().raw()
    }

    /// Returns the time since a reading of [`Lookups::clock`], in ns.
    pub fn elapsed_ns(&self, since: u64) -> u64 {
        self.latency.clock().delta_as_nanos(since, self.clock())
    }

    /// Looks up the value of one key. Dropping the future while the request is queued cancels it.
    ///
    /// # Errors
    /// Any kind of `LookupError`.
    pub async fn get(&self, key: Key, commitment: Commitment, origin: Origin) -> Result<Answer, LookupError> {
        let mut value = None;
        let keys = std::slice::from_ref(&key);
        if let Some(slot) = self.here.get_into(keys, std::slice::from_mut(&mut value), commitment, &origin) {
            return Ok(Answer { value, slot });
        }
        let (reply, answer) = oneshot::channel();
        let get = Get { key, commitment, origin, reply };
        self.counted(self.gets.try_send(get).map_err(|error| match error {
            TrySendError::Full(_) => LookupError::Busy,
            TrySendError::Disconnected(_) => LookupError::Stopped,
        }))?;
        answer.await.unwrap_or(Err(LookupError::Stopped))
    }

    /// Looks up the values of `keys` here and now, all from one state, in their order. `None` if that takes the pool.
    pub(crate) fn get_many_here(
        &self,
        keys: &[Key],
        commitment: Commitment,
        origin: &Origin,
    ) -> Option<Answer<Vec<Option<Value>>>> {
        let mut value = vec![None; keys.len().min(HERE_KEYS_MAX)];
        let slot = self.here.get_into(keys, &mut value, commitment, origin)?;
        Some(Answer { value, slot })
    }

    /// Looks up the values of `keys`, all from one state, in their order. Dropping the future cancels the remaining
    /// work.
    ///
    /// # Errors
    /// Any kind of `LookupError`; busy also while such requests of `GET_MANY_QUEUE_KEYS` keys are queued or running.
    pub async fn get_many(
        &self,
        keys: Vec<Key>,
        commitment: Commitment,
        origin: Origin,
    ) -> Result<Answer<Vec<Option<Value>>>, LookupError> {
        let (reply, answer) = oneshot::channel();
        self.counted(self.batches.push(Batch::new(keys, commitment, origin, reply)))?;
        answer.await.unwrap_or(Err(LookupError::Stopped))
    }

    /// Waits until a thread has opened the newest state of the store: from then on lookups are answered. No key is looked
    /// up.
    ///
    /// # Errors
    /// Any kind of `LookupError` that opening the state can meet.
    pub async fn probe(&self) -> Result<(), LookupError> {
        self.get_many(Vec::new(), Commitment::Confirmed, Origin::default()).await.map(drop)
    }

    /// Counts a request that found its queue full.
    fn counted(&self, queued: Result<(), LookupError>) -> Result<(), LookupError> {
        if let Err(LookupError::Busy) = queued {
            count(&self.figures.refused, 1);
        }
        queued
    }
}

impl LookupThreads {
    /// Ends the threads and waits for them until `deadline`. Each finishes the piece that it is reading; requests still
    /// queued get `LookupError::Stopped`. Afterwards no reader holds the engine, unless a thread did not end.
    ///
    /// # Errors
    /// The names of the threads that have not ended.
    pub fn join(mut self, deadline: Instant) -> Result<(), stop::Stuck> {
        let threads = std::mem::take(&mut self.threads);
        drop(self);
        stop::join_all(threads, deadline)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytesize::ByteSize;
    use engine_api::{Durability, Engine};
    use engine_latency::Latency;
    use engines::{EngineOptions, OpenMode};
    use solana::ChainCheckpoint;
    use tempfile::TempDir;

    use super::*;
    use crate::ingest;
    use crate::ingest::ReadinessSettings;
    use crate::overlay::Overlay;
    use crate::pages::handles::Handles;

    /// A pool on a store with key `[1; 32]` at slot 7, of an engine in this build.
    pub(crate) struct Pool {
        pub(crate) engine: Arc<Measured>,
        pub(crate) handles: Handles,
        pub(crate) lookups: Lookups,
        pub(crate) threads: LookupThreads,
        pub(crate) dir: TempDir,
    }

    impl Pool {
        pub(crate) fn start() -> Self {
            Self::with_overlay(false, false)
        }

        /// Starts a pool with lookups on the thread that asks, where memory answers.
        fn from_memory() -> Self {
            Self::with(false, false, true)
        }

        /// Starts a pool of a service that follows processed slots, or whose engine takes in finalized slots only.
        pub(crate) fn with_overlay(processed: bool, engine_is_final: bool) -> Self {
            Self::with(processed, engine_is_final, false)
        }

        fn with(processed: bool, engine_is_final: bool, answers_from_memory: bool) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let kind = *engines::compiled().last().expect("a build has an engine");
            let options = EngineOptions { memory: Some(ByteSize::mib(64)), ..EngineOptions::new(kind) };
            let engine = engines::open(&dir.path().join("store"), &options, OpenMode::Create).unwrap();
            let engine = Arc::new(Measured::new(engine, Latency::new(options.label()), "ingest"));
            let overlay = Overlay::new(&ChainCheckpoint::default(), processed, engine_is_final);
            let state = ingest::State::new(ChainCheckpoint::default(), overlay, ReadinessSettings::default());
            let mut handles = Handles::new("redb", &state);
            handles.lookups.answers_from_memory = answers_from_memory;
            commit(&engine, &handles.lookups, [1; 32], 7);
            let (lookups, threads) =
                Lookups::start(Arc::clone(&engine), 2, &handles.lookups, &Pulses::default()).unwrap();
            Self { engine, handles, lookups, threads, dir }
        }
    }

    /// A deadline that only a hang can reach.
    pub(crate) fn later() -> Instant {
        Instant::now() + Duration::from_secs(100)
    }

    pub(crate) fn commit(engine: &Measured, state: &LookupState, key: Key, slot: u64) {
        let checkpoint = ChainCheckpoint { seq: slot, slot: Some(slot), ..ChainCheckpoint::default() };
        let mut txn = engine.begin().unwrap();
        txn.put(&key, &[slot as u8; 32]).unwrap();
        txn.commit(&checkpoint.write(), Durability::Buffered).unwrap();
        state.published.publish(checkpoint);
        state.overlay.published(checkpoint.slot);
    }

    #[tokio::test]
    async fn answers_follow_commits_and_carry_their_slot() {
        for pool in [Pool::start(), Pool::from_memory()] {
            for slot in 8..40u8 {
                let key = [slot; 32];
                assert_eq!(pool.lookups.get(key, Commitment::Confirmed, Origin::default()).await.unwrap().value, None);
                commit(&pool.engine, &pool.handles.lookups, key, u64::from(slot));
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
    }

    #[tokio::test]
    async fn an_answer_between_a_commit_and_its_publication_names_the_commits_slot() {
        for pool in [Pool::start(), Pool::from_memory()] {
            let many = || pool.lookups.get_many(vec![[1; 32], [2; 32]], Commitment::Confirmed, Origin::default());
            for slot in 8..40u8 {
                // Move both readers to the previous commit.
                pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await.unwrap();
                many().await.unwrap();
                let checkpoint =
                    ChainCheckpoint { seq: slot.into(), slot: Some(slot.into()), ..ChainCheckpoint::default() };
                pool.handles.lookups.published.committing();
                let mut txn = pool.engine.begin().unwrap();
                txn.put(&[1; 32], &[slot; 32]).unwrap();
                txn.commit(&checkpoint.write(), Durability::Buffered).unwrap();
                for published in [false, true] {
                    if published {
                        pool.handles.lookups.published.publish(checkpoint);
                    }
                    let one = pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await.unwrap();
                    let expected = Answer { value: Some([slot; 32]), slot: Some(slot.into()) };
                    assert_eq!(one, expected, "published={published}");
                    let found = many().await.unwrap();
                    assert_eq!((found.value[0], found.slot), (expected.value, expected.slot), "published={published}");
                }
            }
        }
    }

    #[test]
    fn a_lookup_that_memory_answers_is_answered_on_the_thread_that_asks() {
        let pool = Pool::from_memory();
        let (keys, origin) = ([[1; 32], [2; 32]], Origin::default());
        let here = |commitment| pool.lookups.get_many_here(&keys, commitment, &origin);
        let from_memory = pool.engine.label() == "strata";
        let expected = Answer { value: vec![Some([7; 32]), None], slot: Some(7) };
        assert_eq!(here(Commitment::Confirmed), from_memory.then_some(expected));
        assert_eq!(here(Commitment::Finalized), None, "the ingest holds its lock");
        assert_eq!(here(Commitment::Processed), None, "the pool refuses what is not followed");
        let many = |keys| pool.lookups.get_many_here(&vec![[1; 32]; keys], Commitment::Confirmed, &origin);
        assert_eq!(many(HERE_KEYS_MAX).is_some(), from_memory);
        assert_eq!(many(HERE_KEYS_MAX + 1), None);
        let lookups = pool.lookups.clone();
        pool.threads.join(later()).unwrap();
        assert_eq!(lookups.get_many_here(&keys, Commitment::Confirmed, &origin), None, "the pool has ended");
    }

    #[tokio::test]
    async fn joining_frees_the_engine_while_handles_remain() {
        let pool = Pool::from_memory();
        pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await.unwrap();
        pool.threads.join(later()).unwrap();
        assert!(matches!(
            pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await,
            Err(LookupError::Stopped)
        ));
        let Ok(engine) = Arc::try_unwrap(pool.engine) else { panic!("the engine is still held") };
        Box::new(engine).close().unwrap();
    }
}
