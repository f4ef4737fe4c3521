//! A copy of the whole map for a subscriber that starts with one.
//!
//! Owns: the `feed-snapshot-N` threads, one a snapshot, each with a reader of the engine. Must not: outlive
//! [`Snapshots::stop`], or hold a reader for one that does not take what it is sent.
//!
//! A reader that stays open keeps what LMDB and redb have freed since, so the number of snapshots under way and the
//! time that each may wait for its subscriber are bounded.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use engine_api::{Key, Value};
use engine_latency::Measured;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Filter;

/// Snapshots under way at a time: each is a scan of the whole store, and two already fill what a device reads.
pub const SNAPSHOTS_MAX: usize = 2;

/// Pairs of one message: 64 KiB, large enough that a message costs little, small enough to be held sixteen at a time.
const PAIRS_PER_MESSAGE: usize = 1024;

/// What comes of a snapshot, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Pairs, 64 bytes each, key and value.
    Pairs(Vec<u8>),
    /// All pairs were sent: the map after the change of this seq.
    End {
        /// The newest change in it.
        seq: u64,
        /// The last slot wholly in it.
        slot: Option<u64>,
        /// Pairs sent.
        pairs: u64,
    },
    /// The engine failed.
    Failed(String),
}

/// The snapshots under way.
#[derive(Clone)]
pub struct Snapshots {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    stop: AtomicBool,
}

struct State {
    /// `None` once stopped.
    engine: Option<Arc<Measured>>,
    threads: Vec<JoinHandle<()>>,
    started: u64,
}

/// Why no snapshot is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// [`SNAPSHOTS_MAX`] are under way.
    Busy,
    /// The service is shutting down, or no thread could be started.
    Stopped,
}

impl Snapshots {
    /// None yet, of `engine`.
    pub fn new(engine: Arc<Measured>) -> Self {
        let state = State { engine: Some(engine), threads: Vec::new(), started: 0 };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), stop: AtomicBool::new(false) }) }
    }

    /// Starts one; its parts come through `parts`. A receiver that takes nothing for `stall_timeout` ends it, as a
    /// dropped one does. To be called on a tokio thread.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn start(&self, filter: Filter, parts: mpsc::Sender<Part>, stall_timeout: Duration) -> Result<(), Refused> {
        let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = state.engine.clone() else { return Err(Refused::Stopped) };
        state.threads.retain(|thread| !thread.is_finished());
        if state.threads.len() >= SNAPSHOTS_MAX {
            return Err(Refused::Busy);
        }
        state.started += 1;
        let (inner, net) = (Arc::clone(&self.inner), Handle::current());
        let name = format!("feed-snapshot-{}", state.started);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let send = |part| {
                // ORDERING: Relaxed: only a flag, the join orders everything else.
                !inner.stop.load(Ordering::Relaxed)
                    && net.block_on(async {
                        matches!(tokio::time::timeout(stall_timeout, parts.send(part)).await, Ok(Ok(())))
                    })
            };
            if let Err(error) = copy(&engine, &filter, send) {
                tracing::error!(%error, "a snapshot for a subscriber failed");
                send(Part::Failed(error.to_string()));
            }
        });
        match thread {
            Ok(thread) => {
                state.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "cannot start a thread for a snapshot");
                Err(Refused::Stopped)
            }
        }
    }

    /// Ends those under way and waits for them. After it none holds the engine.
    pub fn stop(&self) {
        // ORDERING: Relaxed: see the load.
        self.inner.stop.store(true, Ordering::Relaxed);
        let threads = {
            let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.engine = None;
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a snapshot's thread panicked");
            }
        }
    }
}

/// Sends every pair that passes, until `send` says that nobody takes them.
fn copy(engine: &Measured, filter: &Filter, send: impl Fn(Part) -> bool) -> engine_api::Result<()> {
    // Not the measured reader: a scan of hours is no latency of a lookup.
    let mut reader = engine.inner().reader()?;
    let checkpoint = reader.checkpoint()?;
    let (mut packed, mut pairs) = (Vec::with_capacity(PAIRS_PER_MESSAGE * 64), 0);
    let mut taken = true;
    let mut visit = |key: &Key, value: &Value| {
        if filter.passes_pair(key, value) {
            packed.extend_from_slice(key);
            packed.extend_from_slice(value);
            pairs += 1;
        }
        if packed.len() == PAIRS_PER_MESSAGE * 64 {
            let full = std::mem::replace(&mut packed, Vec::with_capacity(PAIRS_PER_MESSAGE * 64));
            taken = send(Part::Pairs(full));
        }
        if taken { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    reader.scan(&mut visit)?;
    if taken && (packed.is_empty() || send(Part::Pairs(packed))) {
        send(Part::End { seq: checkpoint.seq, slot: checkpoint.slot, pairs });
    }
    Ok(())
}
