//! The derived store `values`: the keys of a value.
//!
//! Owns: the open derived store, the pages of an answer, and the rules of their cursors. Must not: look into the map: an entry
//! says all.
//!
//! Answers are exact at the slot that they name. The derived store stops where a slot ends, and a request waits until the store
//! has all that the map had when it was asked.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::Guard;
use bytesize::ByteSize;
use derived::values::{self, Differences, NAME, Place};
use derived::{Origin, Position};
use engine_api::{Engine, Reader, Value};
use engines::{EngineArgs, OpenMode};
use solana::ChainCheckpoint;

use super::follower::{Part, Target};
use super::views::{Asked, Basis, Cursor, Keys, Read, Views};
use super::{Context, DerivedError, Followed, State, check_follows};
use crate::base::chain::{Base, Commitment};
use crate::base::published::Published;
use crate::base::{lock, stop};
use crate::overlay::patch::{Patch, Patches};
use crate::overlay::{Known, Overlay};
use crate::reading::LookupError;

/// Largest number of keys in one message: 320 KB.
pub(crate) const KEYS_MAX: usize = 10_000;

/// Maximum number of calls of several messages under way: each holds a view, which pins files of the store.
pub(crate) const VIEWS_MAX: u64 = 16;

/// Wait before a view is opened again that was older than the newest final slot.
const REACH_AGAIN: Duration = Duration::from_millis(5);

/// Handle to the derived store. Clones share it.
#[derive(Clone)]
pub(crate) struct Values {
    inner: Arc<Inner>,
}

struct Inner {
    /// The store; `None` if it cannot be opened, and once stopped.
    engine: Mutex<Option<Arc<Box<dyn Engine>>>>,
    followed: Followed,
    overlay: Arc<Overlay>,
    /// Readers; `None` if the store cannot be opened.
    views: Option<Views>,
}

/// A call that takes the keys of a value page by page, all from one view.
pub(crate) struct Walk {
    inner: Arc<Inner>,
    id: u64,
    asked: Asked,
    /// Number of keys that are still wanted.
    left: u64,
    /// Whether the first page was read.
    is_open: bool,
    /// When the wait for the store ends.
    deadline: Instant,
    is_over: bool,
}

/// The state of the service with which a view is read.
struct Reading {
    published: Arc<Published>,
    overlay: Arc<Overlay>,
    patches: Patches,
}

/// The writer of the store.
struct Applier(Arc<Box<dyn Engine>>);

impl Target for Applier {
    const NAME: &'static str = NAME;

    fn commit(&mut self, part: &Part<'_>, to: &Position) -> engine_api::Result<()> {
        let mut changes = part.changes().map(|(_, change)| (change.key, change.old, change.new));
        values::apply(&**self.0, &mut changes, part.seq, to)
    }
}

impl Values {
    /// Opens the derived store of the map in `context`; `None` if there is none. A store that cannot be used is no error: its
    /// requests are refused, with the reason.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    pub(crate) fn start(context: &Context, memory_bytes: u64) -> io::Result<Option<Self>> {
        if !Self::is_there(&context.dir) {
            return Ok(None);
        }
        let opened = open(context, memory_bytes);
        let engine = opened.as_ref().ok().map(|(applier, ..)| Arc::clone(&applier.0));
        let followed = Followed::start(opened, context)?;
        let (published, overlay) = (Arc::clone(&context.published), Arc::clone(&context.overlay));
        let reading: Arc<dyn Read> = Arc::new(Reading { published, overlay, patches: Patches::default() });
        let views = engine.as_ref().map(|engine| Views::start(engine, &reading)).transpose()?;
        let overlay = Arc::clone(&context.overlay);
        Ok(Some(Self { inner: Arc::new(Inner { engine: Mutex::new(engine), followed, overlay, views }) }))
    }

    /// Whether the map in `dir` has a derived store.
    pub(crate) fn is_there(dir: &Path) -> bool {
        derived::dir(dir, NAME).exists()
    }

    /// Returns the state at this moment.
    pub(crate) fn state(&self) -> State {
        self.inner.followed.state()
    }

    /// Returns the number of changes of the map that the store has still to take; `None` if it never will.
    pub(crate) fn lag(&self) -> Option<u64> {
        self.inner.followed.lag()
    }

    /// Returns the keys of a value, up to `limit` and those after a cursor, once the store has all that the map has now. Waits for
    /// that as long as `wait`. All pages are of one view.
    ///
    /// # Errors
    /// The store has not caught up with its map, or cannot be used.
    pub(crate) async fn keys_of(
        &self,
        value: Value,
        cursor: Option<Cursor>,
        limit: u64,
        commitment: Commitment,
        wait: Duration,
    ) -> Result<Walk, DerivedError> {
        let deadline = Instant::now() + wait;
        let basis = self.inner.reach(commitment, deadline).await?;
        let id = self.inner.views.as_ref().map_or(0, Views::next_id);
        let asked = Asked { value, basis, cursor, limit: 0, goes_on: false };
        Ok(Walk { inner: Arc::clone(&self.inner), id, asked, left: limit, is_open: false, deadline, is_over: false })
    }

    /// Returns the store, for a test that holds it back.
    #[cfg(test)]
    pub(super) fn engine(&self) -> Arc<Box<dyn Engine>> {
        Arc::clone(lock(&self.inner.engine).as_ref().expect("an open store"))
    }

    /// Tells the store to take no more changes.
    pub(super) fn end(&self) {
        self.inner.followed.end();
    }

    /// Ends the threads and closes the store.
    ///
    /// # Errors
    /// The names of the threads that have not ended at `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        let engine = lock(&self.inner.engine).take();
        let views = self.inner.views.as_ref().map_or(Ok(()), |views| views.stop(deadline));
        let ended = self.inner.followed.stop(deadline).and(views);
        if let Some(engine) = engine.and_then(Arc::into_inner)
            && let Err(failed) = engine.close()
        {
            tracing::error!(error = %failed, derived = NAME, "the derived store was not closed in good order: the feed has what it lacks");
        }
        ended
    }
}

impl Inner {
    /// Returns the newest state of the map, once the store has it.
    async fn reach(&self, commitment: Commitment, deadline: Instant) -> Result<Basis, DerivedError> {
        let view = match commitment {
            Commitment::Processed => Some(self.overlay.processed().ok_or(LookupError::NotFollowed)?.view()),
            Commitment::Confirmed | Commitment::Finalized => None,
        };
        if view.as_ref().is_some_and(|view| view.overflowed) {
            return Err(LookupError::Overflowed.into());
        }
        let published = &self.followed.published;
        let checkpoint = Guard::into_inner(published.checkpoint());
        // During a heal both stay at the slot before it.
        if !published.is_healing() {
            self.followed.reach(checkpoint.seq, deadline.saturating_duration_since(Instant::now())).await?;
        }
        Ok(Basis { commitment, view, checkpoint })
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state().fmt(f)
    }
}

impl Walk {
    /// Returns the next page; `None` after the last one. If the limit ends the answer before the last key, the last page has a
    /// cursor.
    ///
    /// # Errors
    /// The view was given up, or the cursor is of another store; errors of the engine.
    pub(crate) async fn next(&mut self) -> Result<Option<Keys>, DerivedError> {
        if self.is_over {
            return Ok(None);
        }
        let Some(views) = &self.inner.views else { return Err(DerivedError::Stopped) };
        let limit = self.left.min(KEYS_MAX as u64);
        self.asked.limit = limit as usize;
        self.asked.goes_on = self.left > limit;
        let keys = loop {
            match views.read(self.id, !self.is_open, self.asked.clone()).await {
                // The store had all that the map had; meanwhile a later slot has become final.
                Err(DerivedError::Behind) if Instant::now() < self.deadline => {
                    tokio::time::sleep(REACH_AGAIN).await;
                    self.asked.basis = self.inner.reach(self.asked.basis.commitment, self.deadline).await?;
                }
                Err(DerivedError::Stopped) if self.inner.followed.is_over() => {
                    let text = "the derived store was removed or built again meanwhile: begin without a cursor";
                    return Err(DerivedError::OutOfRange(text.to_owned()));
                }
                keys => break keys.map_err(|error| self.inner.followed.failed(NAME, error))?,
            }
        };
        self.left -= limit;
        self.is_open = true;
        // The view that was opened has all that it needs of the banks.
        self.asked.basis.view = None;
        self.is_over = keys.cursor.is_none() || self.left == 0;
        self.asked.cursor = keys.cursor;
        Ok(Some(keys))
    }
}

impl Walk {
    /// Whether the view is kept for another page.
    pub(crate) fn goes_on(&self) -> bool {
        self.is_open && !self.is_over
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if let Some(views) = self.inner.views.as_ref().filter(|_| self.asked.goes_on && !self.is_over) {
            views.close(self.id);
        }
    }
}

impl Read for Reading {
    fn begin(&self, reader: &mut dyn Reader, asked: &Asked) -> Result<Arc<Patch>, DerivedError> {
        let at = reader.checkpoint()?;
        let position = Position::read(&at)?;
        if !position.is_whole && !self.published.is_healing() {
            return Err(DerivedError::Behind);
        }
        if !position.is_whole {
            let text = "the derived store is between two slots: try again later";
            return Err(DerivedError::Unavailable(text.to_owned()));
        }
        let Basis { commitment, view, checkpoint } = &asked.basis;
        // A slot that changes nothing has no end in the feed. So with every change of the map the store is at its slot. Which
        // block that is does not matter otherwise: the root is of the same chain.
        let of_slot = position.slot.map(|slot| ChainCheckpoint { slot: Some(slot), ..ChainCheckpoint::default() });
        let now = self.published.checkpoint();
        let of_map = [&**now, checkpoint].into_iter().find(|map| map.seq == at.seq).copied();
        let map = of_map.or(of_slot).unwrap_or_default();
        match (commitment, view) {
            (Commitment::Processed, Some(view)) => {
                let base = map.slot.map(|slot| Base { slot, blockhash: map.blockhash });
                Ok(self.patches.processed(&self.overlay, view, base).ok_or(LookupError::Overflowed)?)
            }
            (Commitment::Finalized, _) => {
                let patch = self.patches.finalized(&self.overlay, &map).ok_or(LookupError::NotFinal)?;
                if patch.slot > map.slot { Err(DerivedError::Behind) } else { Ok(patch) }
            }
            _ => Ok(Arc::new(Patch::none(map.slot))),
        }
    }

    fn page(&self, reader: &mut dyn Reader, patch: &Patch, asked: &Asked) -> Result<Keys, DerivedError> {
        let position = Position::read(&reader.checkpoint()?)?;
        let of = position.index.wrapping_add(values::tag(&position.secret, &asked.value));
        let place = |cursor| place(&cursor, of).ok_or(DerivedError::OtherCursor);
        let after = asked.cursor.map(place).transpose()?;
        let differences = Differences {
            is_changed: &|key| patch.value(key) != Known::Nothing,
            keys: &mut patch.keys_of(&asked.value).into_iter(),
        };
        let page =
            values::page(reader, &position.secret, &asked.value, after.as_ref(), asked.limit, Some(differences))?;
        let cursor = page.more.map(|place| self::cursor(of, &place));
        Ok(Keys { keys: page.keys, slot: patch.slot, cursor })
    }
}

/// Checks that the feed leads on from a store that was just built.
///
/// # Errors
/// It does not, or there is no store; errors of the engine.
pub(super) fn check(context: &Context, made: &Path) -> engine_api::Result<()> {
    let engine = engines::open_read_only(made, Some(ByteSize::b(engines::MEMORY_MIN)))?;
    let at = engine.checkpoint()?;
    check_follows(at.seq, &Position::read(&at)?, &context.checkpoint()?, &context.feed)?;
    engine.close()
}

/// Opens the derived store and checks that the feed leads on from it. Returns it with its position and its seq.
fn open(context: &Context, memory_bytes: u64) -> engine_api::Result<(Applier, Position, u64)> {
    let place = derived::dir(&context.dir, NAME);
    let args = EngineArgs { memory: Some(ByteSize::b(memory_bytes)), ..EngineArgs::default() };
    let options = engines::options_for(&place, &args)?;
    let engine = engines::open_on(&place, &options, OpenMode::Existing, &derived::terms(NAME))?;
    let at = engine.checkpoint()?;
    let position = Position::read(&at)?;
    check_follows(at.seq, &position, &context.checkpoint()?, &context.feed)?;
    // From now on the feed tells how far the store is: slots that change nothing move the map's checkpoint alone.
    let position = Position { origin: Origin::Feed(context.feed.id()), ..position };
    if at != position.write(at.seq) {
        values::apply(&*engine, &mut std::iter::empty(), at.seq, &position)?;
    }
    Ok((Applier(Arc::new(engine)), position, at.seq))
}

/// Returns the cursor of a place. `of` is a number of the store and the value.
fn cursor(of: u64, place: &Place) -> Cursor {
    let mut cursor = [0; 24];
    cursor[..8].copy_from_slice(&of.to_le_bytes());
    cursor[8..].copy_from_slice(place);
    cursor
}

/// Returns the place that a cursor names; `None` for one of another store or value.
fn place(cursor: &Cursor, of: u64) -> Option<Place> {
    let (head, place) = cursor.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*head) == of).then(|| place.try_into().ok())?
}
