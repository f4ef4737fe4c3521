//! Requests, whichever protocol they come by: each gets an answer or a refusal.
//!
//! Owns: the state that a request may ask for and the wait for it ([`wait`]), the shares of places and bytes that clients hold
//! ([`places`], [`budget`]), and the reasons to refuse a request ([`refusal`]). Must not: know a protocol: none of its types,
//! codes or encodings. A room that speaks one decodes a request, asks here and encodes the outcome. Threads: the network
//! edge; `shm-lookup` has its own readers, and takes commitments, slots and refusals from here.

mod account;
pub(crate) mod budget;
pub(crate) mod derived;
pub(crate) mod door;
pub(crate) mod places;
pub(crate) mod refusal;
pub(crate) mod wait;

use std::net::SocketAddr;
use std::sync::Arc;

use engine_api::{Key, Value};

use crate::base::figure::count;
use crate::base::slow::Transport;
use crate::derive::Derived;
use crate::lookups::{Answer, GET_MANY_QUEUE_KEYS, Lookups, Origin, counted_keys};
use crate::net::Access;
use crate::net::figures::{Figures, Place};
use crate::net::limit::Seat;
use crate::overlay::Overlay;
use budget::{Budget, Peer};
use places::Taking;
use refusal::{Cause, Refusal};
use wait::Wanted;

/// Handle for the protocols of the network edge. Clones share its places and its budget.
#[derive(Clone)]
pub struct Ask {
    lookups: Lookups,
    overlay: Arc<Overlay>,
    budget: Arc<Budget>,
    derived: Derived,
}

impl Ask {
    pub fn new(lookups: Lookups, overlay: Arc<Overlay>, net: Arc<Figures>) -> Self {
        Self { lookups, overlay, budget: Budget::new(net), derived: Derived::default() }
    }

    /// Returns the handle with the derived stores of the map.
    pub(crate) fn with_derived(self, derived: Derived) -> Self {
        Self { derived, ..self }
    }

    /// Returns the state that the requests of a new connection share. `from` is the client's address on the network.
    pub(crate) fn peer(&self, transport: Transport, from: Option<SocketAddr>, seat: &Arc<Seat>) -> Arc<Peer> {
        Peer::new(Arc::clone(&self.budget), transport, from, Arc::clone(seat))
    }

    /// Looks up the value of one key, once the state holds the slot that the request names.
    ///
    /// # Errors
    /// Any refusal of a lookup; [`Cause::NotReached`] where the slot does not come in time.
    pub(crate) async fn get(&self, key: Key, wanted: &Wanted, peer: &Arc<Peer>) -> Result<Answer, Refusal> {
        let mut origin = self.origin(peer);
        // Most requests name no slot, and no clock is read for them.
        if wanted.names_a_slot() {
            origin.slot_wait_ns = self.wait(wanted, 1, peer, origin.asked).await?;
        }
        let answer = self.lookups.get(key, wanted.commitment, origin).await?;
        wanted.check(answer.slot)?;
        Ok(answer)
    }

    /// Looks up the values of `keys`, all from one state, as [`Ask::get`] does.
    ///
    /// # Errors
    /// As [`Ask::get`]; [`Cause::Full`] also where too many keys are under way.
    pub(crate) async fn get_many(
        &self,
        keys: Vec<Key>,
        wanted: &Wanted,
        peer: &Arc<Peer>,
    ) -> Result<Answer<Vec<Option<Value>>>, Refusal> {
        let mut origin = self.origin(peer);
        if wanted.names_a_slot() {
            origin.slot_wait_ns = self.wait(wanted, keys.len(), peer, origin.asked).await?;
        }
        if let Some(answer) = self.lookups.get_many_here(&keys, wanted.commitment, &origin) {
            wanted.check(answer.slot)?;
            return Ok(answer);
        }
        let _place = Taking::new(peer, Place::BatchKeys, counted_keys(keys.len()) as u64, GET_MANY_QUEUE_KEYS as u64)?;
        let answer = self.lookups.get_many(keys, wanted.commitment, origin).await?;
        wanted.check(answer.slot)?;
        Ok(answer)
    }

    /// Waits for the slot of a request that was decoded at `asked`. Returns the time that this took, in ns.
    async fn wait(&self, wanted: &Wanted, keys: usize, peer: &Arc<Peer>, asked: u64) -> Result<u64, Refusal> {
        wait::until(&self.overlay, wanted, keys, peer).await?;
        Ok(self.lookups.elapsed_ns(asked))
    }

    fn origin(&self, peer: &Peer) -> Origin {
        // The address of the state that a connection's requests share serves as the connection's identifier.
        let connection = std::ptr::from_ref(peer).addr();
        Origin { transport: peer.transport, connection, asked: self.lookups.clock(), slot_wait_ns: 0 }
    }
}

impl Peer {
    /// Admits a request: checks the token of a client of the network, then settles the connection, so that only clients
    /// that may make requests use up the room. `how` says how the protocol takes a token.
    ///
    /// # Errors
    /// The token is missing or unknown, or the connection has no room.
    pub(crate) fn admit(&self, access: &Access, token: Option<&[u8]>, how: &str) -> Result<(), Refusal> {
        if let Some(tokens) = access.tokens.as_ref().filter(|_| self.from.is_some())
            && !token.is_some_and(|token| tokens.knows(token))
        {
            count(&self.seat.figures().unauthenticated, 1);
            return Err(match token {
                None => Refusal::new(Cause::Unauthenticated, format!("a bearer token is required: {how}")),
                Some(_) => Refusal::new(
                    Cause::Unauthenticated,
                    "the bearer token is not among those of the service's bearer_token_file",
                ),
            });
        }
        Ok(self.seat.settle()?)
    }
}

/// Refuses a request that names a map. There is one map so far, and it has no name.
///
/// # Errors
/// [`Cause::NotFound`].
pub(crate) fn refuse_other_map(name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Ok(());
    }
    let message = "no such map: this service has one, whose name is empty: leave `map` out";
    Err(Refusal::new(Cause::NotFound, message))
}
