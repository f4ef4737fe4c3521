//! The derived store `values`, which finds the keys of a value: it follows the feed of its map.
//!
//! Owns: the open derived store, its state, and the threads `derived`, which follows, and `keys-of-N`, which read. Must not:
//! hold up the map: whatever happens here, the service goes on, and only requests for keys of a value are refused. One that
//! cannot follow, because the feed no longer has the changes that it lacks, has to be built again.
//!
//! Answers are exact at the slot that they name. The derived store stops where a slot ends, and a request waits until the store
//! has all that the map had when it was asked.

mod follower;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use derived::values::{self, NAME, Place};
use derived::{Origin, Position};
use engine_api::{Checkpoint, Code, Engine, Key, Value};
use engines::{EngineArgs, EngineOptions, OpenMode};
use tokio::sync::watch;
use tracing::{error, info};

use crate::base::published::Published;
use crate::base::{lock, stop};
use crate::feed::{Feed, Pool};
use follower::Follower;

/// Largest number of keys in one answer: 320 KB.
pub(crate) const KEYS_MAX: usize = 10_000;

/// Maximum number of requests for keys of a value under way. Each may hold an answer of [`KEYS_MAX`] keys, 80 MB together.
pub(crate) const KEYS_OF_MAX: u64 = 256;

/// Number of threads that read: one may wait for the disk while the other works.
const READ_THREADS: usize = 2;

/// Part of the engine's memory that a derived store gets: its entries are read page by page, and most of its memory are filters.
const MEMORY_SHARE: u64 = 4;

/// The state of a derived store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has every change up to this one. `waits` says why it does not take the next ones.
    Follows { seq: u64, waits: Option<String> },
    /// It cannot be used until it is built again, for this reason.
    Broken(String),
}

/// Why a value's keys are not answered.
#[derive(Debug)]
pub(crate) enum KeysError {
    /// The map has no derived store.
    NotThere,
    /// The cursor is not of this derived store, or of none.
    OtherCursor,
    /// The derived store cannot answer now, or not at all, in words.
    Unavailable(String),
    /// The service is shutting down.
    Stopped,
    Engine(engine_api::Error),
}

impl From<engine_api::Error> for KeysError {
    fn from(error: engine_api::Error) -> Self {
        Self::Engine(error)
    }
}

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

/// Handle to the derived store. Clones share it.
#[derive(Clone)]
pub(crate) struct Values {
    inner: Arc<Inner>,
}

struct Inner {
    /// The store; `None` if it cannot be opened, and once stopped.
    engine: Mutex<Option<Arc<Box<dyn Engine>>>>,
    state: Arc<watch::Sender<State>>,
    published: Arc<Published>,
    pool: Pool,
    follower: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Values {
    /// Opens the derived store of the map in `dir`, which stands at `map`, and follows the feed; `None` if there is none. A
    /// store that cannot be used is no error: its requests are refused, with the reason. A commit of it has at most `changes_max`
    /// changes of the map.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    pub(crate) fn start(
        dir: &Path,
        memory_bytes: u64,
        changes_max: usize,
        map: &Checkpoint,
        feed: &Arc<Feed>,
        published: &Arc<Published>,
    ) -> io::Result<Option<Self>> {
        if !is_there(dir) {
            return Ok(None);
        }
        let (engine, follower, state) = match open(dir, memory_bytes, map, feed) {
            Err(reason) => (None, None, Arc::new(watch::Sender::new(broken(reason.to_string())))),
            Ok((engine, position, seq)) => {
                info!(derived = NAME, seq, slot = position.slot, "the derived store is open");
                let state = Arc::new(watch::Sender::new(State::Follows { seq, waits: None }));
                let (engine, feed) = (Arc::new(engine), Arc::clone(feed));
                let follow = Follower::new(Arc::clone(&engine), (position, seq), changes_max, feed, Arc::clone(&state));
                let thread = std::thread::Builder::new().name("derived".to_owned()).spawn(move || follow.run())?;
                (Some(engine), Some(thread), state)
            }
        };
        let pool = Pool::start("keys-of", READ_THREADS)?;
        let (engine, follower) = (Mutex::new(engine), Mutex::new(follower));
        let published = Arc::clone(published);
        Ok(Some(Self { inner: Arc::new(Inner { engine, state, published, pool, follower }) }))
    }

    /// Returns the state at this moment.
    pub(crate) fn state(&self) -> State {
        self.inner.state.borrow().clone()
    }

    /// Returns the number of changes of the map that the store has still to take; `None` if it never will.
    pub(crate) fn lag(&self) -> Option<u64> {
        match *self.inner.state.borrow() {
            State::Follows { seq, .. } => Some(self.inner.published.checkpoint().seq.saturating_sub(seq)),
            State::Broken(_) => None,
        }
    }

    /// Returns up to `limit` keys of a value, those after a cursor, once the store has all that the map has now. Waits for that
    /// as long as `wait`.
    ///
    /// # Errors
    /// Those of [`KeysError`] but `NotThere`.
    pub(crate) async fn keys_of(
        &self,
        value: Value,
        cursor: Option<Cursor>,
        limit: usize,
        wait: Duration,
    ) -> Result<Keys, KeysError> {
        // During a heal both stay at the slot before it.
        if !self.inner.published.is_healing() {
            self.reach(self.inner.published.checkpoint().seq, wait).await?;
        }
        let inner = Arc::clone(&self.inner);
        let read = move || inner.read(&value, cursor, limit);
        self.inner.pool.run(read).await.unwrap_or(Err(KeysError::Stopped))
    }

    /// Waits until the store has the change `seq`.
    async fn reach(&self, seq: u64, wait: Duration) -> Result<(), KeysError> {
        let mut state = self.inner.state.subscribe();
        let is_there = |state: &State| !matches!(state, State::Follows { seq: at, .. } if *at < seq);
        let reached = tokio::time::timeout(wait, state.wait_for(is_there)).await;
        let now = match reached {
            Ok(Err(_)) => return Err(KeysError::Stopped),
            Ok(Ok(now)) => now.clone(),
            Err(_) => self.state(),
        };
        match now {
            State::Broken(reason) => Err(KeysError::Unavailable(reason)),
            State::Follows { seq: at, waits } if at < seq => {
                let why = waits.map_or_else(String::new, |why| format!(": {why}"));
                let text = format!("the derived store is behind its map: seq={at} map_seq={seq}{why}: try again later");
                Err(KeysError::Unavailable(text))
            }
            State::Follows { .. } => Ok(()),
        }
    }

    /// Ends the threads and closes the store. The feed must be closed before.
    ///
    /// # Errors
    /// The names of the threads that have not ended at `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        let engine = lock(&self.inner.engine).take();
        let follower = lock(&self.inner.follower).take();
        let ended = stop::join_all(follower, deadline).and(self.inner.pool.stop(deadline));
        if let Some(engine) = engine.and_then(Arc::into_inner)
            && let Err(failed) = engine.close()
        {
            error!(error = %failed, derived = NAME, "the derived store was not closed in good order: the feed has what it lacks");
        }
        ended
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state().fmt(f)
    }
}

impl Inner {
    fn read(&self, value: &Value, cursor: Option<Cursor>, limit: usize) -> Result<Keys, KeysError> {
        let engine = lock(&self.engine).clone().ok_or(KeysError::Stopped)?;
        let mut reader = engine.reader()?;
        let at = reader.checkpoint()?;
        let position = Position::read(&at)?;
        let place = |cursor| place(&cursor, position.index).ok_or(KeysError::OtherCursor);
        let after = cursor.map(place).transpose()?;
        if !position.is_whole {
            let text = "the derived store is between two slots: try again later";
            return Err(KeysError::Unavailable(text.to_owned()));
        }
        let page = values::page(&mut *reader, &position.secret, value, after.as_ref(), limit)?;
        // A slot that changes nothing has no end in the feed. So with every change of the map the store is at its slot.
        let now = self.published.checkpoint();
        let slot = if now.seq == at.seq { now.slot } else { position.slot };
        let cursor = page.more.map(|place| self::cursor(position.index, &place));
        Ok(Keys { keys: page.keys, slot, cursor })
    }
}

/// Returns the options of the map's engine, and the memory of the derived store in bytes, which is a part of the memory that the
/// map's engine would have without it.
pub(crate) fn divide(options: EngineOptions, dir: &Path) -> (EngineOptions, u64) {
    let cache_bytes = options.division().cache_bytes;
    let part_bytes = (cache_bytes / MEMORY_SHARE).max(engines::MEMORY_MIN.min(cache_bytes / 2));
    match is_there(dir) && cache_bytes > 0 {
        true => (EngineOptions { memory: Some(ByteSize::b(cache_bytes - part_bytes)), ..options }, part_bytes),
        false => (options, engines::MEMORY_MIN),
    }
}

/// Whether the map in `dir` has a derived store.
pub(crate) fn is_there(dir: &Path) -> bool {
    derived::dir(dir, NAME).exists()
}

/// Opens the derived store and checks that the feed leads on from it. Returns it with its position and its seq.
fn open(
    dir: &Path,
    memory_bytes: u64,
    map: &Checkpoint,
    feed: &Feed,
) -> engine_api::Result<(Box<dyn Engine>, Position, u64)> {
    let place = derived::dir(dir, NAME);
    let args = EngineArgs { memory: Some(ByteSize::b(memory_bytes)), ..EngineArgs::default() };
    let options = engines::options_for(&place, &args)?;
    let engine = engines::open_on(&place, &options, OpenMode::Existing, &derived::terms(NAME))?;
    let at = engine.checkpoint()?;
    let position = Position::read(&at)?;
    check_follows(&at, &position, map, feed)?;
    // From now on the feed tells how far the store is: slots that change nothing move the map's checkpoint alone.
    let position = Position { origin: Origin::Feed(feed.id()), ..position };
    if at != position.write(at.seq) {
        values::apply(&*engine, &mut std::iter::empty(), at.seq, &position)?;
    }
    Ok((engine, position, at.seq))
}

/// Checks that the feed has every change between the derived store and its map.
fn check_follows(at: &Checkpoint, position: &Position, map: &Checkpoint, feed: &Feed) -> engine_api::Result<()> {
    let wrong = match &position.origin {
        Origin::Map(of) if of == map => None,
        Origin::Map(_) => Some("it was built of another state of the map".to_owned()),
        Origin::Feed(id) if *id != feed.id() => Some("it follows another feed".to_owned()),
        Origin::Feed(_) if at.seq > map.seq => {
            Some(format!("it is ahead of the map: seq={} map_seq={}", at.seq, map.seq))
        }
        Origin::Feed(_) if at.seq + 1 < feed.oldest_seq() => {
            Some(format!("the feed no longer has its next change: seq={} oldest_seq={}", at.seq, feed.oldest_seq()))
        }
        Origin::Feed(_) => None,
    };
    match wrong {
        None => Ok(()),
        Some(why) => Err(engine_api::Error::new(engine_api::ErrorKind::FixInput, why).with_code(Code::Derived)),
    }
}

/// Returns the state of a store that cannot be used, and logs the reason.
fn broken(reason: String) -> State {
    let way_out = "stop the service and build it again with bootstrap derive --dir DIR, or remove it with --drop";
    error!(derived = NAME, reason, "the derived store cannot be used: the map is not touched by that; {way_out}");
    State::Broken(format!("the derived store {NAME} cannot be used: {reason}: {way_out}"))
}

fn cursor(index: u64, place: &Place) -> Cursor {
    let mut cursor = [0; 24];
    cursor[..8].copy_from_slice(&index.to_le_bytes());
    cursor[8..].copy_from_slice(place);
    cursor
}

/// Returns the place that a cursor of the store `index` names; `None` for one of another store.
fn place(cursor: &Cursor, index: u64) -> Option<Place> {
    let (head, place) = cursor.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*head) == index).then(|| place.try_into().ok())?
}
