//! The kinds of server that a stream can be like: their orders and words.
//!
//! Owns: these words. Must not: send anything. Used on every feed's task.

use tonic::Status;

/// Kind of server that a stream is like.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Like {
    /// A stock server: the content of a slot comes before its status
    #[default]
    Yellowstone,
    /// richat: at confirmed, CONFIRMED comes before the content, and in every thousandth slot an update comes after the block
    /// meta; a lost from_slot is INVALID_ARGUMENT
    Richat,
    /// LaserStream: a replay begins with the statuses of all its slots; a lost from_slot is DATA_LOSS
    Laserstream,
}

impl Like {
    /// Returns the refusal of a replay from a slot that is older than the oldest one, `first`.
    pub(crate) fn too_old(self, from: u64, first: u64) -> Status {
        match self {
            Self::Yellowstone => {
                Status::out_of_range(format!("broadcast from {from} is not available, last available: {first}"))
            }
            Self::Richat => Status::invalid_argument(format!("failed to get replay position for slot {from}")),
            Self::Laserstream => Status::data_loss(format!("slot {from} is not in the replay window")),
        }
    }

    /// Returns the refusal of a replay from a slot that is not there yet. A server that has no slot yet gives it, too.
    pub(crate) fn not_yet(self, from: u64) -> Status {
        match self {
            Self::Richat => self.too_old(from, from),
            Self::Yellowstone | Self::Laserstream => Status::internal("failed to get replay response"),
        }
    }

    /// Returns the end of a subscription that reads too slowly.
    pub(crate) fn lagged(self) -> Status {
        match self {
            Self::Richat => Status::data_loss("lagged"),
            Self::Yellowstone | Self::Laserstream => Status::internal("lagged to send an update"),
        }
    }

    /// Whether a slot's own commitment is told before its content.
    pub(crate) fn confirms_first(self) -> bool {
        self == Self::Richat
    }

    /// Whether an update of this confirmed slot comes after the block meta.
    pub(crate) fn has_late_update(self, slot: u64) -> bool {
        self == Self::Richat && slot % 1000 == 500
    }

    /// Whether a replay begins with the statuses of all its slots.
    pub(crate) fn replays_statuses_first(self) -> bool {
        self == Self::Laserstream
    }
}
