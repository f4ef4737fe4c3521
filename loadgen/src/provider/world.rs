//! The provider's chain and its state: the current act, the slots to send now, and who is refused and why.
//!
//! Owns: these answers. Must not: send anything. Read and changed under one lock, by the provider's thread and by its
//! caller.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tonic::Status;
use tonic::metadata::MetadataMap;

/// Time for which a restarted server knows of no slot.
const RESTART: Duration = Duration::from_secs(3);

/// Behaviour of the server, as the script sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Sends every slot as soon as it exists.
    Serves,
    /// Keeps connections and sends only pings.
    Pings,
    /// Ends connections and lets nobody in, as while it is down.
    Down,
    /// Ends connections and refuses subscriptions, as after a plan has run out.
    Refuses,
    /// Sends every slot this many slots late.
    Lags(u64),
    /// Withholds the next slot from the existing connections. Later ones get it.
    Loses,
    /// Sends many small updates, each in a frame of its own.
    Small,
    /// Restarts: ends connections, then knows of no slot for a moment.
    Restarts,
    /// Sends only the confirmation of each slot.
    Confirms,
    /// Sends only the block meta of each slot.
    Metas,
    /// Sends the chain's first slots again and again.
    Repeats,
    /// Sends every slot, and with each the confirmation of a slot that is far ahead.
    Boasts,
    /// Ends connections, then sends another chain with higher slots, whatever is asked for.
    Foreign,
    /// Sends every slot as if made at the beginning of 1970.
    Ancient,
    /// Ends connections, then sends every slot with another parent than the chain has.
    Lies,
}

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
    pub(super) start_slot: u64,
    pub(super) slot_ms: u64,
    pub(super) replay_slots: u64,
    pub(super) started: Instant,
    pub(super) started_unix_ms: u64,
    /// Number that is raised to end every subscription.
    pub(super) generation: u64,
    pub(super) restarted: Option<Instant>,
    /// Withheld slot, and the number of the newest subscription that does not get it.
    pub(super) lost: Option<(u64, u64)>,
    /// Name and value of the header that requests have to carry.
    pub(super) required: Option<(String, String)>,
    /// Headers of the newest subscription.
    pub(super) headers: Vec<(String, String)>,
    pub(super) subscriptions: u64,
    pub(super) sent: u64,
}

impl World {
    /// Returns the newest slot. The first one exists from the start.
    pub(super) fn tip(&self) -> u64 {
        self.start_slot + self.started.elapsed().as_millis() as u64 / self.slot_ms
    }

    pub(super) fn created_unix_ms(&self, slot: u64) -> u64 {
        self.started_unix_ms + slot.saturating_sub(self.start_slot) * self.slot_ms
    }

    /// Returns the newest slot that may be sent now, if any.
    pub(super) fn sends_through(&self) -> Option<u64> {
        match self.act {
            Act::Lags(slots) => Some(self.tip().saturating_sub(slots)),
            Act::Pings | Act::Down | Act::Refuses | Act::Repeats => None,
            _ => Some(self.tip()),
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

    /// Returns the error for a client that may not subscribe now.
    pub(super) fn refusal(&self, from_slot: Option<u64>) -> Option<Status> {
        match (self.act, from_slot) {
            (Act::Down, _) => Some(Status::unavailable("server is shutting down try again later")),
            (Act::Refuses, _) => Some(Status::permission_denied("your plan has run out")),
            (_, Some(_)) if self.is_starting() => Some(Status::internal("failed to get replay response")),
            (_, Some(from)) if from > self.tip() => Some(Status::internal("failed to get replay response")),
            (_, Some(from)) if from < self.first_available() => {
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

pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
