//! Requests to the derived stores: the keys of a value, and the past.
//!
//! Owns: their shares of places, and the wait for the slot that they name. Must not: read a store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Key, Value};

use super::Ask;
use super::budget::Peer;
use super::places::Taking;
use super::refusal::{Cause, Refusal};
use super::wait::{self, Wanted};
use crate::base::chain::Commitment;
use crate::derive::{Cursor, DerivedError, History, HistoryCursor, Keys, Past, Pasts, REQUESTS_MAX, VIEWS_MAX, Walk};
use crate::net::figures::Place;

/// The way to the store that finds the keys of a value.
const NO_VALUES: &str =
    "the map has no derived store `values`: build it with bootstrap derive --dir DIR, also while the service runs";

/// The way to the past.
const NO_HISTORY: &str = "this service keeps no past: start it with history_slots or history_bytes";

/// An answer of keys, message by message.
pub(crate) struct KeysAnswer {
    walk: Walk,
    wanted: Wanted,
    peer: Arc<Peer>,
    _place: Taking,
    /// For the view, if there is more than one message.
    view: Option<Taking>,
}

impl KeysAnswer {
    /// Returns the next message; `None` after the last one.
    ///
    /// # Errors
    /// [`Cause::OutOfRange`] once the answer has taken too long, or with a cursor of another store; [`Cause::NotReached`];
    /// [`Cause::Full`] where too many answers have several messages.
    pub(crate) async fn next(&mut self) -> Result<Option<Keys>, Refusal> {
        let keys = self.walk.next().await?;
        if let Some(keys) = &keys {
            self.wanted.check(keys.slot)?;
        }
        if self.walk.goes_on() && self.view.is_none() {
            self.view = Some(Taking::new(&self.peer, Place::Views, 1, VIEWS_MAX)?);
        }
        Ok(keys)
    }
}

impl Ask {
    /// Returns up to `limit` keys of a value, those after a cursor, once the map holds the slot that the request names and the
    /// derived store all that the map has. All are of one state.
    ///
    /// # Errors
    /// There is no derived store, or it cannot answer; [`Cause::NotReached`] where the slot does not come in time; [`Cause::Full`].
    pub(crate) async fn keys_of(
        &self,
        value: Value,
        cursor: Option<Cursor>,
        limit: u64,
        wanted: &Wanted,
        peer: &Arc<Peer>,
    ) -> Result<KeysAnswer, Refusal> {
        let missing = || match self.derived.is_changing() {
            true => DerivedError::Unavailable("the derived store is added or removed right now: try again".to_owned()),
            false => DerivedError::NotThere(NO_VALUES),
        };
        let values = self.derived.values().ok_or_else(missing)?;
        let (place, time) = self.begin(wanted, peer).await?;
        let walk = values.keys_of(value, cursor, limit, wanted.commitment, time).await?;
        Ok(KeysAnswer { walk, wanted: *wanted, peer: Arc::clone(peer), _place: place, view: None })
    }

    /// Returns the value that a key had at the slot that the request names, once the map has reached it.
    ///
    /// # Errors
    /// The service keeps no past, or it cannot answer; [`Cause::OutOfRange`] for a slot that is not kept; [`Cause::NotReached`];
    /// [`Cause::Full`].
    pub(crate) async fn get_at(&self, key: Key, slot: u64, wanted: &Wanted, peer: &Arc<Peer>) -> Result<Past, Refusal> {
        let history = self.history()?;
        let (_place, time) = self.begin(wanted, peer).await?;
        let past = history.at(key, slot, wanted.commitment, time).await?;
        wanted.check(past.slot)?;
        Ok(past)
    }

    /// Returns up to `limit` changes of a key, newest first, those before a cursor.
    ///
    /// # Errors
    /// As [`Ask::get_at`]; at processed; [`Cause::OutOfRange`] for a cursor whose change is no longer kept.
    pub(crate) async fn changes(
        &self,
        key: Key,
        cursor: Option<HistoryCursor>,
        limit: usize,
        wanted: &Wanted,
        peer: &Arc<Peer>,
    ) -> Result<Pasts, Refusal> {
        let history = self.history()?;
        if wanted.commitment == Commitment::Processed {
            let text = "the changes of a key are told once they are confirmed: ask at confirmed or finalized";
            return Err(Refusal::new(Cause::NotOffered, text));
        }
        let (_place, time) = self.begin(wanted, peer).await?;
        Ok(history.changes(key, cursor, limit, wanted.commitment, time).await?)
    }

    fn history(&self) -> Result<&History, Refusal> {
        Ok(self.derived.history().ok_or(DerivedError::NotThere(NO_HISTORY))?)
    }

    /// Takes a place, once the map holds the slot that the request names. Returns it with the time that is left of the wait.
    async fn begin(&self, wanted: &Wanted, peer: &Arc<Peer>) -> Result<(Taking, Duration), Refusal> {
        let begun = Instant::now();
        if wanted.names_a_slot() {
            wait::until(&self.overlay, wanted, 1, peer).await?;
        }
        let place = Taking::new(peer, Place::Derived, 1, REQUESTS_MAX)?;
        Ok((place, wanted.time().saturating_sub(begun.elapsed())))
    }
}
