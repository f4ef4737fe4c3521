//! The provider's state: the current act, the slots of its own chain, the slot that is withheld, and who is refused and
//! why.
//!
//! Owns: these answers. Must not: send anything. Read and changed under one lock, by the provider's thread and by its
//! caller.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tonic::Status;
use tonic::metadata::MetadataMap;
use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use super::act::{Act, LAGS_SLOTS};
use super::messages::unix_ms;

/// Time for which a restarted server knows of no slot.
const RESTART: Duration = Duration::from_secs(3);
/// Number of slots that are sent again and again under `repeats`, and of messages of them at most.
const REPEATED_SLOTS: u64 = 5;
const REPEATED_MESSAGES_MAX: usize = 1000;

/// Figures of the server so far.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Figures {
    pub act: Act,
    /// Newest slot of the chain.
    pub tip: u64,
    /// Newest slot that was sent whole, as was each slot before it.
    pub sent: u64,
    /// Age of that slot in ms.
    pub sent_age_ms: u64,
    /// Whether a slot was withheld and not sent since.
    pub lost: bool,
    /// Number of subscriptions accepted so far.
    pub subscriptions: u64,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) act: Act,
    /// Whether the provider makes its own chain. Otherwise its slots come from another server.
    pub(super) is_own: bool,
    pub(super) start_slot: u64,
    pub(super) slot_ms: u64,
    pub(super) replay_slots: u64,
    pub(super) started: Instant,
    pub(super) started_unix_ms: u64,
    /// Number that is raised to end every subscription.
    pub(super) generation: u64,
    pub(super) restarted: Option<Instant>,
    pub(super) lost: Option<Picked>,
    pub(super) forked: Option<Picked>,
    /// Newest slot that any subscription has come to.
    pub(super) newest: u64,
    /// Messages of the first slots that were sent.
    pub(super) remembered: Vec<SubscribeUpdate>,
    pub(super) first_slot: Option<u64>,
    /// Name and value of the header that requests have to carry.
    pub(super) required: Option<(String, String)>,
    /// Headers of the newest subscription.
    pub(super) headers: Vec<(String, String)>,
    pub(super) subscriptions: u64,
    pub(super) sent: u64,
}

/// A slot that is withheld or forks: the first one after `after`.
#[derive(Debug)]
pub(super) struct Picked {
    after: u64,
    slot: Option<u64>,
    /// Number of the newest subscription that this is for.
    through: u64,
}

impl Picked {
    /// Whether it is this slot, on the subscription of this number.
    fn is(&mut self, slot: u64, subscription: u64) -> bool {
        if slot > self.after {
            self.slot.get_or_insert(slot);
        }
        self.slot == Some(slot) && subscription <= self.through
    }
}

impl World {
    /// The state at the start: the provider serves a chain of its own that begins at `start_slot`, or passes on one.
    pub(super) fn new(start_slot: u64, slot_ms: u64, is_own: bool) -> Self {
        Self {
            act: Act::Serves,
            is_own,
            start_slot,
            slot_ms,
            replay_slots: 1000,
            started: Instant::now(),
            started_unix_ms: unix_ms(),
            generation: 0,
            restarted: None,
            lost: None,
            forked: None,
            newest: 0,
            remembered: Vec::new(),
            first_slot: None,
            required: None,
            headers: Vec::new(),
            subscriptions: 0,
            sent: start_slot - 1,
        }
    }

    /// Starts `act`, which ends the current one.
    pub(super) fn begin(&mut self, act: Act) {
        self.act = act;
        self.generation += u64::from(act.ends_connections());
        let next = |through| Some(Picked { after: self.newest, slot: None, through });
        match act {
            Act::Restarts => self.restarted = Some(Instant::now()),
            Act::Loses => self.lost = next(self.subscriptions),
            Act::Withholds => self.lost = next(u64::MAX),
            Act::Forks => self.forked = next(u64::MAX),
            _ => {}
        }
    }

    /// Returns the current act for a subscription of this generation. `None` if it has to end.
    pub(super) fn act_for(&self, generation: u64) -> Option<Act> {
        (self.generation == generation).then_some(self.act)
    }

    /// Returns the newest slot of the own chain. The first one exists from the start.
    pub(super) fn tip(&self) -> u64 {
        self.start_slot + self.started.elapsed().as_millis() as u64 / self.slot_ms
    }

    pub(super) fn created_unix_ms(&self, slot: u64) -> u64 {
        self.started_unix_ms + slot.saturating_sub(self.start_slot) * self.slot_ms
    }

    /// Returns when a slot of the own chain was made. `None` if it does not exist yet.
    pub(super) fn created_unix_ms_of(&self, slot: u64) -> Option<u64> {
        (slot <= self.tip()).then(|| self.created_unix_ms(slot))
    }

    /// Whether a message may be sent now.
    pub(super) fn lets_go(&self, update: &SubscribeUpdate) -> bool {
        let created_at = update.created_at.unwrap_or_default();
        let created_unix_ms = created_at.seconds as u64 * 1000 + created_at.nanos as u64 / 1_000_000;
        match self.act {
            Act::Lags => created_unix_ms + LAGS_SLOTS * self.slot_ms <= unix_ms(),
            act => !act.holds(),
        }
    }

    /// Whether a slot is withheld from the subscription of this number, and whether it forks.
    pub(super) fn picks(&mut self, slot: u64, subscription: u64) -> (bool, bool) {
        self.newest = self.newest.max(slot);
        let is = |picked: &mut Option<Picked>| picked.as_mut().is_some_and(|picked| picked.is(slot, subscription));
        (is(&mut self.lost), is(&mut self.forked))
    }

    /// Keeps a message that was sent if it is one of the first slots.
    pub(super) fn remember(&mut self, slot: u64, update: &SubscribeUpdate) {
        let first_slot = *self.first_slot.get_or_insert(slot);
        let is_early = (first_slot..first_slot + REPEATED_SLOTS).contains(&slot);
        if is_early && self.remembered.len() < REPEATED_MESSAGES_MAX {
            self.remembered.push(update.clone());
        }
    }

    /// Notes that a slot was sent whole.
    pub(super) fn has_sent(&mut self, slot: u64) {
        if self.sent + 1 == slot {
            self.sent = slot;
        }
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            act: self.act,
            tip: self.tip(),
            sent: self.sent,
            sent_age_ms: unix_ms().saturating_sub(self.created_unix_ms(self.sent)),
            lost: self.lost.as_ref().is_some_and(|lost| self.sent < lost.slot.unwrap_or(lost.after + 1)),
            subscriptions: self.subscriptions,
        }
    }

    pub(super) fn is_starting(&self) -> bool {
        self.restarted.is_some_and(|at| at.elapsed() < RESTART)
    }

    pub(super) fn first_available(&self) -> u64 {
        self.tip().saturating_sub(self.replay_slots - 1).max(self.start_slot)
    }

    pub(super) fn check_token(&self, headers: &MetadataMap) -> Result<(), Status> {
        let Some((name, value)) = &self.required else { return Ok(()) };
        let given = headers.get(name.as_str()).is_some_and(|given| given.as_bytes() == value.as_bytes());
        if given { Ok(()) } else { Err(Status::unauthenticated("No valid auth token")) }
    }

    /// Returns the error for a client that may not subscribe now. A server that is followed checks the slot itself.
    pub(super) fn refusal(&self, from_slot: Option<u64>) -> Option<Status> {
        match (self.act, from_slot) {
            (Act::Down, _) => Some(Status::unavailable("server is shutting down try again later")),
            (Act::Refuses, _) => Some(Status::permission_denied("your plan has run out")),
            (_, Some(_)) if self.is_starting() => Some(Status::internal("failed to get replay response")),
            (_, Some(from)) if self.is_own && from > self.tip() => {
                Some(Status::internal("failed to get replay response"))
            }
            (_, Some(from)) if self.is_own && from < self.first_available() => {
                let first = self.first_available();
                Some(Status::out_of_range(format!("broadcast from {from} is not available, last available: {first}")))
            }
            _ => None,
        }
    }
}

pub(super) fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
