//! The provider's chain and what has become of it: which act is on, what is sent now, who is refused and why.
//!
//! Owns: these answers. Must not: send anything. Read and changed under one lock, by the provider's thread and by whoever
//! directs it.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tonic::Status;
use tonic::metadata::MetadataMap;

/// How long a server that was restarted knows of no slot.
const RESTART: Duration = Duration::from_secs(3);

/// What the server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Sends every slot once it is there.
    Serves,
    /// Keeps connections and sends pings alone.
    Pings,
    /// Ends connections and lets nobody in, as while it is down.
    Down,
    /// Ends connections and refuses subscriptions, as after a plan has run out.
    Refuses,
    /// Sends every slot this many slots late.
    Lags(u64),
    /// Keeps the next slot from the connections that there are; later ones get it.
    Loses,
    /// Sends many small updates, each in a frame of its own.
    Small,
    /// Restarts: ends connections, then knows of no slot for a moment.
    Restarts,
    /// Sends of each slot its confirmation alone.
    Confirms,
    /// Sends of each slot its block meta alone.
    Metas,
    /// Sends the chain's first slots again and again.
    Repeats,
    /// Sends every slot, and with each a confirmation of one that is far ahead.
    Boasts,
    /// Ends connections, then sends another chain with higher slots, whatever is asked for.
    Foreign,
    /// Sends every slot as if made at the begin of 1970.
    Ancient,
}

/// What the server has done so far.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Figures {
    /// What it does now.
    pub act: Act,
    /// Newest slot of the chain.
    pub tip: u64,
    /// Newest slot of which, and of each before it, all was sent.
    pub sent: u64,
    /// How old that slot is, in ms.
    pub sent_age_ms: u64,
    /// A slot was kept to itself and not been sent since.
    pub lost: bool,
    /// Subscriptions accepted.
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
    /// Raised to end every subscription.
    pub(super) generation: u64,
    pub(super) restarted: Option<Instant>,
    /// A slot, and the newest subscription that does not get it.
    pub(super) lost: Option<(u64, u64)>,
    /// The header that requests have to carry.
    pub(super) required: Option<(String, String)>,
    /// The headers of the newest subscription.
    pub(super) headers: Vec<(String, String)>,
    pub(super) subscriptions: u64,
    pub(super) sent: u64,
}

impl World {
    /// The newest slot. The first one is there from the start.
    pub(super) fn tip(&self) -> u64 {
        self.start_slot + self.started.elapsed().as_millis() as u64 / self.slot_ms
    }

    pub(super) fn created_unix_ms(&self, slot: u64) -> u64 {
        self.started_unix_ms + slot.saturating_sub(self.start_slot) * self.slot_ms
    }

    /// The newest slot that is sent now, if any is.
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

    /// Why nobody may subscribe now.
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
