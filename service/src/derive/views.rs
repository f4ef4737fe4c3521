//! The threads `keys-of-N`, which read the keys of values, and the views that they hold for calls of several messages.
//!
//! Owns: the views, and when one is given up: a view pins files of the store. Must not: read entries. A view belongs to the thread
//! that opened it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use engine_api::{Engine, Key, Reader, Value};
use solana::ChainCheckpoint;
use tokio::sync::oneshot;

use super::DerivedError;
use crate::base::chain::Commitment;
use crate::base::{lock, stop};
use crate::overlay::patch::Patch;
use crate::overlay::view;

/// Number of threads: one may wait for the disk while the other works.
const THREADS: u64 = 2;

/// Longest life of a view.
const VIEW_TIME: Duration = Duration::from_secs(60);

/// Maximum number of keys that differ from the map on disk, in a view that is kept: with their banks 5 MB each.
const PATCH_KEYS_MAX: usize = 1 << 15;

/// The way out with more.
const TOO_UNSETTLED: &str = "too much differs from the map on disk for an answer of several messages: ask for at most 10,000 \
                             keys a request, or at confirmed";

/// Interval at which views that are too old are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keys of a value, as of one slot.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) keys: Vec<Key>,
    /// The newest slot that is completely in the data read.
    pub(crate) slot: Option<u64>,
    /// Where to go on, if there are more.
    pub(crate) cursor: Option<Cursor>,
}

/// Bytes by which a client goes on after an answer: the derived store, and the last key's place in it.
pub(crate) type Cursor = [u8; 24];

/// The state of the map that a request asks for: the store has to have the changes of `checkpoint`, or more.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    pub(super) commitment: Commitment,
    /// The processed fork; `None` at other commitments. Loaded before the checkpoint.
    pub(super) view: Option<Arc<view::View>>,
    pub(super) checkpoint: Arc<ChainCheckpoint>,
}

/// A page that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) value: Value,
    pub(super) basis: Basis,
    pub(super) cursor: Option<Cursor>,
    pub(super) limit: usize,
    /// Whether the next page is asked for as well, if there is one.
    pub(super) goes_on: bool,
}

/// The way to read an open view.
pub(super) trait Read: Send + Sync {
    /// Returns the map at the commitment asked for, as of a view that was just opened.
    fn begin(&self, reader: &mut dyn Reader, asked: &Asked) -> Result<Arc<Patch>, DerivedError>;

    /// Returns a page of the view.
    fn page(&self, reader: &mut dyn Reader, patch: &Patch, asked: &Asked) -> Result<Keys, DerivedError>;
}

/// A view of the store, and of the map at the commitment of its call.
struct View<'a> {
    reader: Box<dyn Reader + 'a>,
    patch: Arc<Patch>,
    opened: Instant,
}

type Reply = oneshot::Sender<Result<Keys, DerivedError>>;

enum Job {
    /// Reads a page with the view `id`, which is opened first if `opens`. Keeps the view if there are more keys.
    Read {
        id: u64,
        opens: bool,
        asked: Asked,
        reply: Reply,
    },
    Close {
        id: u64,
    },
}

/// Handle to the threads `keys-of-N`.
pub(super) struct Views {
    /// The jobs of each thread; none once stopped. `ask::places` bounds their number.
    queues: Mutex<Vec<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ids: AtomicU64,
}

impl Views {
    /// Starts the threads for a store.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    pub(super) fn start(engine: &Arc<Box<dyn Engine>>, read: &Arc<dyn Read>) -> io::Result<Self> {
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for n in 0..THREADS {
            let (sender, jobs) = unbounded();
            queues.push(sender);
            let (engine, read) = (Arc::clone(engine), Arc::clone(read));
            let run = move || work(&**engine, &jobs, &*read);
            threads.push(std::thread::Builder::new().name(format!("keys-of-{n}")).spawn(run)?);
        }
        Ok(Self { queues: Mutex::new(queues), threads: Mutex::new(threads), ids: AtomicU64::new(0) })
    }

    /// Returns the id of a new view, which the first page opens.
    pub(super) fn next_id(&self) -> u64 {
        // ORDERING: Relaxed: only the number counts.
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Reads a page with a view.
    ///
    /// # Errors
    /// The view was given up; those of reading.
    pub(super) async fn read(&self, id: u64, opens: bool, asked: Asked) -> Result<Keys, DerivedError> {
        let (reply, answer) = oneshot::channel();
        if !self.send(id, Job::Read { id, opens, asked, reply }) {
            return Err(DerivedError::Stopped);
        }
        answer.await.unwrap_or(Err(DerivedError::Stopped))
    }

    /// Gives up the view of a call that has ended.
    pub(super) fn close(&self, id: u64) {
        self.send(id, Job::Close { id });
    }

    fn send(&self, id: u64, job: Job) -> bool {
        lock(&self.queues).get((id % THREADS) as usize).is_some_and(|queue| queue.send(job).is_ok())
    }

    /// Refuses further work, waits for the queued one until `deadline`, and ends the threads.
    ///
    /// # Errors
    /// The names of the threads that have not ended.
    pub(super) fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        lock(&self.queues).clear();
        stop::join_all(std::mem::take(&mut *lock(&self.threads)), deadline)
    }
}

/// The work of one thread.
fn work(engine: &dyn Engine, jobs: &Receiver<Job>, read: &dyn Read) {
    let mut views: HashMap<u64, View<'_>> = HashMap::new();
    loop {
        match jobs.recv_timeout(LOOK_EVERY) {
            Ok(Job::Read { id, opens, asked, reply }) => {
                let open = || {
                    let mut reader = engine.reader()?;
                    let patch = read.begin(&mut *reader, &asked)?;
                    Ok(View { reader, patch, opened: Instant::now() })
                };
                let view = if opens { open() } else { views.remove(&id).ok_or(DerivedError::ViewEnded) };
                let keys = view.and_then(|mut view| {
                    let keys = read.page(&mut *view.reader, &view.patch, &asked)?;
                    // A call of one message needs it no more.
                    if asked.goes_on && keys.cursor.is_some() {
                        if view.patch.len() > PATCH_KEYS_MAX {
                            return Err(DerivedError::Unavailable(TOO_UNSETTLED.to_owned()));
                        }
                        views.insert(id, view);
                    }
                    Ok(keys)
                });
                // A caller that is gone has closed its view, or will.
                reply.send(keys).ok();
            }
            Ok(Job::Close { id }) => drop(views.remove(&id)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        views.retain(|_, view| view.opened.elapsed() < VIEW_TIME);
    }
}
