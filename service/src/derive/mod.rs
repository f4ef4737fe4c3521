//! The derived stores of the map: `values` finds the keys of a value, `history` has the values of the past. Both follow the feed.
//!
//! Owns: the open derived stores, their states, and their threads: `derived` follows (one for each store), `keys-of-N` and
//! `history-N` read. Must not: hold up the map: whatever happens here, the service goes on, and only requests to a derived
//! store are refused. One that cannot follow, because the feed no longer has the changes that it lacks, has to be made anew.

mod follower;
mod history;
mod row;
mod settings;
#[cfg(test)]
mod tests;
mod values;
mod views;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use derived::{Origin, Position};
use engine_api::{Checkpoint, Code, Engine as _};
use engine_latency::Measured;
use engines::EngineOptions;
use tokio::sync::watch;
use tracing::error;

use crate::base::published::Published;
use crate::base::{lock, stop};
use crate::feed::{Feed, Hold};
use crate::overlay::Overlay;
use crate::reading::LookupError;
pub(crate) use history::{Cursor as HistoryCursor, HISTORY_MAX, History, Past, Pasts};
pub(crate) use settings::{DerivedGiven, DerivedSettings};
pub(crate) use values::{VIEWS_MAX, Values, Walk};
pub(crate) use views::{Cursor, Keys};

use follower::{End, Follower, Target};

/// Maximum number of requests to derived stores under way. Each may hold a message of [`KEYS_MAX`] keys or [`HISTORY_MAX`]
/// changes, 100 MB together.
pub(crate) const REQUESTS_MAX: u64 = 256;

/// Part of the engine's memory that each derived store gets: its entries are read page by page, and most of its memory are
/// filters.
const MEMORY_SHARE: u64 = 4;

/// Smallest memory of one store, in bytes: with it any engine opens a store and works.
const MEMORY_MIN: u64 = 16 << 20;

/// The state of a derived store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has every change up to this one. `waits` says why it does not take the next ones.
    Follows { seq: u64, waits: Option<String> },
    /// It cannot be used until it is made anew, for this reason.
    Broken(String),
}

/// Why a derived store does not answer.
#[derive(Debug)]
pub(crate) enum DerivedError {
    /// The map has no such derived store; the text tells how to get one.
    NotThere(&'static str),
    /// The cursor is not of this derived store, or of none.
    OtherCursor,
    /// The view was given up before the client took all that it asked for: go on with the last cursor.
    ViewEnded,
    /// The past or the store is not kept that far, in words.
    OutOfRange(String),
    /// The derived store cannot answer now, or not at all, in words.
    Unavailable(String),
    /// The store lacks the slot that has just become final, or the end of the one that it takes.
    Behind,
    /// The service is shutting down.
    Stopped,
    /// The commitment cannot be answered.
    Lookup(LookupError),
    Engine(engine_api::Error),
}

impl From<LookupError> for DerivedError {
    fn from(error: LookupError) -> Self {
        Self::Lookup(error)
    }
}

impl From<engine_api::Error> for DerivedError {
    fn from(error: engine_api::Error) -> Self {
        Self::Engine(error)
    }
}

/// The memory of derived stores, in bytes; `None` for one that is not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    values_bytes: Option<u64>,
    history_bytes: Option<u64>,
}

impl Memory {
    /// Returns the name and the memory of each derived store, in words.
    pub(crate) fn parts(&self) -> impl Iterator<Item = String> {
        let named = [(derived::values::NAME, self.values_bytes), (derived::history::NAME, self.history_bytes)];
        named.into_iter().filter_map(|(name, bytes)| Some(format!("{name}: {}", ByteSize::b(bytes?))))
    }
}

/// All that a derived store needs of its map.
pub(crate) struct Context {
    /// Directory of the map and its derived stores.
    pub(crate) dir: PathBuf,
    /// Only borrowed, because the service needs the engine alone to close it at its stop.
    pub(crate) map: Weak<Measured>,
    /// Maximum number of the map's changes in a commit of a derived store.
    pub(crate) changes_max: usize,
    pub(crate) feed: Arc<Feed>,
    pub(crate) published: Arc<Published>,
    pub(crate) overlay: Arc<Overlay>,
}

impl Context {
    /// Returns the checkpoint of the map's newest commit.
    fn checkpoint(&self) -> engine_api::Result<Checkpoint> {
        let stopped = || engine_api::Error::new(engine_api::ErrorKind::Retry, "the service is shutting down");
        self.map.upgrade().ok_or_else(stopped)?.checkpoint()
    }
}

/// Handle to the derived stores of a map. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Derived {
    /// `None` if there is none now: it may be added and removed while the service runs.
    values: Arc<Mutex<Option<Values>>>,
    history: Option<History>,
    /// For a store that is added later; `None` without a feed.
    added: Option<Arc<Added>>,
}

/// All that a derived store needs which is added while the service runs.
struct Added {
    context: Context,
    memory_bytes: u64,
    /// Held while a store is added or removed. Keeps the changes in the feed that a store lacks which is being built.
    change: Mutex<Option<Hold>>,
}

impl std::fmt::Debug for Derived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lags().fmt(f)
    }
}

impl Derived {
    /// Opens the derived stores of the map, and starts their threads. `options` are those of the map's engine.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    pub(crate) fn start(context: Context, settings: &DerivedSettings, options: EngineOptions) -> io::Result<Self> {
        clean(&context.dir);
        let (options, memory) = divide(options, &context.dir, settings.keeps_history());
        // One that is added later has no part of the memory before the next start.
        let values_bytes = memory.values_bytes.unwrap_or(engines::MEMORY_MIN).max(MEMORY_MIN);
        let values = Values::start(&context, values_bytes)?;
        let start = || History::start(&context, settings, &options, memory.history_bytes.unwrap_or(0));
        let history = settings.keeps_history().then(start).transpose()?;
        let added = Some(Arc::new(Added { context, memory_bytes: values_bytes, change: Mutex::default() }));
        Ok(Self { values: Arc::new(Mutex::new(values)), history, added })
    }

    /// Returns the derived store that finds the keys of a value, if there is one now.
    pub(crate) fn values(&self) -> Option<Values> {
        lock(&self.values).clone()
    }

    /// Returns the past, if it is kept.
    pub(crate) fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// Puts the derived store in `made` in the place of `values`, and follows it; or removes `values`, without another. Requests
    /// that read the store before end. Waits for files.
    ///
    /// # Errors
    /// Without a feed; threads that do not end; I/O errors. The new store cannot be used: `Ok` with its state.
    pub(crate) fn replace(&self, made: Option<&Path>) -> engine_api::Result<Option<State>> {
        let added = self.added()?;
        let mut change = lock(&added.change);
        // Kept until the new store follows; a store that cannot be used needs the changes no more.
        let _kept = change.take();
        let Added { context, memory_bytes, .. } = &**added;
        let place = derived::dir(&context.dir, derived::values::NAME);
        if let Some(made) = made {
            values::check(context, made)?;
        }
        // Not kept locked: requests ask for it meanwhile.
        let old = lock(&self.values).take();
        if let Some(old) = old {
            old.end();
            let internal =
                |stuck: stop::Stuck| engine_api::Error::new(engine_api::ErrorKind::Internal, stuck.to_string());
            old.stop(Instant::now() + stop::SHUTDOWN_TIMEOUT).map_err(internal)?;
        }
        // It loses its name first, so that a kill leaves no part of a store under it.
        let gone = place.with_extension(row::GONE);
        row::remove(&gone)?;
        if place.exists() {
            row::rename(&place, &gone)?;
        }
        let Some(made) = made else {
            row::remove(&gone)?;
            tracing::info!(dir = %place.display(), "the derived store is removed");
            return Ok(None);
        };
        row::rename(made, &place)?;
        let failed = |source| engine_api::Error::io("cannot start a thread of the derived store", source);
        let values = Values::start(context, *memory_bytes).map_err(failed)?;
        let state = values.as_ref().map(Values::state);
        *lock(&self.values) = values;
        row::remove(&gone)?;
        Ok(state)
    }

    /// Whether a store is put in the place of another one, or removed, at this moment.
    pub(crate) fn is_changing(&self) -> bool {
        self.added.as_ref().is_some_and(|added| matches!(added.change.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Keeps the changes from now on in the feed, for a store that is built of a copy of the map. Returns the id of the feed.
    ///
    /// # Errors
    /// `FixInput` without a feed.
    pub(crate) fn build(&self) -> engine_api::Result<u64> {
        let added = self.added()?;
        *lock(&added.change) = Some(added.context.feed.follow(added.context.published.checkpoint().seq));
        Ok(added.context.feed.id())
    }

    fn added(&self) -> engine_api::Result<&Arc<Added>> {
        let none = || {
            engine_api::Error::new(engine_api::ErrorKind::FixInput, "a derived store follows the feed: set feed = true")
        };
        self.added.as_ref().ok_or_else(none)
    }

    /// Returns the name and the lag of each derived store: the number of changes that it has still to take, or `None` if it
    /// never will.
    pub(crate) fn lags(&self) -> Vec<(&'static str, Option<u64>)> {
        let values = self.values().map(|values| (derived::values::NAME, values.lag()));
        let history = self.history.as_ref().map(|history| (derived::history::NAME, history.lag()));
        values.into_iter().chain(history).collect()
    }

    /// Ends all at any moment, as a kill does between two commits of the stores.
    #[cfg(test)]
    pub(crate) fn kill(self) {
        self.values().iter().for_each(Values::end);
        self.history().into_iter().for_each(History::end);
        self.stop(Instant::now() + stop::SHUTDOWN_TIMEOUT).expect("threads end");
    }

    /// Ends the threads and closes the stores. The feed must be closed before.
    ///
    /// # Errors
    /// The names of the threads that have not ended at `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        let values = self.values().map_or(Ok(()), |values| values.stop(deadline));
        values.and(self.history.as_ref().map_or(Ok(()), |history| history.stop(deadline)))
    }
}

/// A store that follows the feed: its state, and the thread that writes it.
struct Followed {
    state: Arc<watch::Sender<State>>,
    published: Arc<Published>,
    ends: watch::Sender<End>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Followed {
    /// Starts the thread for an open store, or keeps the reason why there is none.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    fn start<T: Target + 'static>(
        opened: Result<(T, Position, u64), engine_api::Error>,
        context: &Context,
    ) -> io::Result<Self> {
        let (ends, ending) = watch::channel(End::Not);
        let (state, thread) = match opened {
            Err(reason) => {
                let reason = broken(T::NAME, &reason.to_string(), is_for_good(&reason));
                (Arc::new(watch::Sender::new(State::Broken(reason))), None)
            }
            Ok((target, position, seq)) => {
                tracing::info!(derived = T::NAME, seq, slot = position.slot, "the derived store is open");
                let state = Arc::new(watch::Sender::new(State::Follows { seq, waits: None }));
                let feed = Arc::clone(&context.feed);
                let (at, shown) = ((position, seq), Arc::clone(&state));
                let follow = Follower::new(target, at, context.changes_max, feed, shown, ending);
                let thread = std::thread::Builder::new().name("derived".to_owned()).spawn(move || follow.run())?;
                (state, Some(thread))
            }
        };
        Ok(Self { state, published: Arc::clone(&context.published), ends, thread: Mutex::new(thread) })
    }

    /// Returns the state at this moment.
    fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Returns the number of changes of the map that the store has still to take; `None` if it never will.
    fn lag(&self) -> Option<u64> {
        match *self.state.borrow() {
            State::Follows { seq, .. } => Some(self.published.checkpoint().seq.saturating_sub(seq)),
            State::Broken(_) => None,
        }
    }

    /// Waits until the store has the change `seq`.
    async fn reach(&self, seq: u64, wait: Duration) -> Result<(), DerivedError> {
        let mut state = self.state.subscribe();
        let is_there = |state: &State| !matches!(state, State::Follows { seq: at, .. } if *at < seq);
        let reached = tokio::time::timeout(wait, state.wait_for(is_there)).await;
        let now = match reached {
            Ok(Err(_)) => return Err(DerivedError::Stopped),
            Ok(Ok(now)) => now.clone(),
            Err(_) => self.state(),
        };
        match now {
            State::Broken(reason) => Err(DerivedError::Unavailable(reason)),
            State::Follows { seq: at, waits } if at < seq => {
                let why = waits.map_or_else(String::new, |why| format!(": {why}"));
                let text = format!("the derived store is behind its map: seq={at} map_seq={seq}{why}: try again later");
                Err(DerivedError::Unavailable(text))
            }
            State::Follows { .. } => Ok(()),
        }
    }

    /// Tells the thread to end although the feed goes on.
    fn end(&self) {
        self.ends.send_replace(End::Now);
    }

    /// Whether the store goes, while the service goes on.
    fn is_over(&self) -> bool {
        *self.ends.borrow() == End::Now
    }

    /// Takes an error of reading the store. With damage the store is of no more use.
    fn failed(&self, name: &str, error: DerivedError) -> DerivedError {
        match error {
            DerivedError::Engine(failed) if failed.kind() == engine_api::ErrorKind::DataDamaged => {
                let reason = broken(name, &failed.to_string(), true);
                self.end();
                self.state.send_replace(State::Broken(reason.clone()));
                DerivedError::Unavailable(reason)
            }
            error => error,
        }
    }

    /// Ends the thread, and waits for it until `deadline`. It takes the rest of the feed first.
    ///
    /// # Errors
    /// The name of the thread that has not ended.
    fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        self.ends.send_if_modified(|end| *end == End::Not && std::mem::replace(end, End::WithRest) == End::Not);
        stop::join_all(lock(&self.thread).take(), deadline)
    }
}

/// Removes directories that killed programs have left: of stores that are not complete, and of those that had to go. One that
/// a process has open stays. One that cannot be removed is only disk space, and holds up nothing.
fn clean(dir: &Path) {
    let values = derived::dir(dir, derived::values::NAME);
    let rests = [values.with_extension(row::GONE), bootstrap::derived_partial(dir), bootstrap::derived_copy(dir)];
    for rest in rests.into_iter().filter(|rest| rest.exists()) {
        if engines::holder(&rest).is_ok_and(|holder| holder.is_none()) {
            match row::remove(&rest) {
                Ok(()) => tracing::info!(dir = %rest.display(), "removed the rest of a derived store"),
                Err(error) => tracing::warn!(%error, "the rest of a derived store takes space"),
            }
        }
    }
}

/// Returns the options of the map's engine, and the memory of derived stores, which is a part of the memory that the map's
/// engine would have without them.
pub(crate) fn divide(options: EngineOptions, dir: &Path, keeps_history: bool) -> (EngineOptions, Memory) {
    let cache_bytes = options.division().cache_bytes;
    let part = |is_there: bool| is_there.then_some(cache_bytes / MEMORY_SHARE);
    let parts = Memory { values_bytes: part(Values::is_there(dir)), history_bytes: part(keeps_history) };
    let taken_bytes = parts.values_bytes.unwrap_or(0) + parts.history_bytes.unwrap_or(0);
    // LMDB has no memory of its own.
    if taken_bytes == 0 {
        return (options, parts);
    }
    (EngineOptions { memory: Some(ByteSize::b(cache_bytes - taken_bytes)), ..options }, parts)
}

/// Checks that the feed has every change between the derived store and its map.
fn check_follows(seq: u64, position: &Position, map: &Checkpoint, feed: &Feed) -> engine_api::Result<()> {
    let wrong = match &position.origin {
        Origin::Map(of) if of == map => None,
        Origin::Map(_) => Some("it was built of another state of the map".to_owned()),
        Origin::Feed(id) if *id != feed.id() => Some("it follows another feed".to_owned()),
        Origin::Feed(_) if seq > map.seq => Some(format!("it is ahead of the map: seq={seq} map_seq={}", map.seq)),
        Origin::Feed(_) if seq + 1 < feed.oldest_seq() => {
            Some(format!("the feed no longer has its next change: seq={seq} oldest_seq={}", feed.oldest_seq()))
        }
        Origin::Feed(_) => None,
    };
    match wrong {
        None => Ok(()),
        Some(why) => Err(engine_api::Error::new(engine_api::ErrorKind::FixInput, why).with_code(Code::Derived)),
    }
}

/// Whether a store has to be made anew after this error: opening it again would not help.
fn is_for_good(error: &engine_api::Error) -> bool {
    use engine_api::ErrorKind::{DataDamaged, FixInput};
    matches!(error.kind(), FixInput | DataDamaged)
}

/// Returns the words for a store that cannot be used, and logs them.
fn broken(name: &str, reason: &str, is_for_good: bool) -> String {
    let way_out = match name == derived::values::NAME {
        _ if !is_for_good => "restart the service, which goes on where the store is, while the feed has its changes",
        true => "build it again with bootstrap derive --dir DIR, or remove it with --drop",
        false => {
            "stop the service and remove it with bootstrap derive --dir DIR --history --drop: it begins anew at the next start"
        }
    };
    error!(derived = name, reason, "the derived store cannot be used: the map is not touched by that; {way_out}");
    format!("the derived store {name} cannot be used: {reason}: {way_out}")
}
