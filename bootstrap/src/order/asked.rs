//! Options of a load that its spill keeps, because a load that is stopped while it reads has no store yet to keep them.
//!
//! Owns: which options these are. Must not: keep options that hold for one start alone, such as memory and the engine's
//! own settings. Runs on the main thread.

use engines::{EngineKind, Profile};
use serde::{Deserialize, Serialize};

use crate::rank::Order;

/// The options as they were given, by hand or by an earlier start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<EngineKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bloom: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Profile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<Order>,
    /// Slot of the source that the spill names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u64>,
}

impl Asked {
    /// Whether no option was given.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
