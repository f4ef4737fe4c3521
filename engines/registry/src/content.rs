//! The meaning of a store's pairs and the state of its load, as the marker records them.
//!
//! Owns: their form in the marker. Must not: interpret a meaning; its words belong to the programs that write pairs.
//! Does no I/O.

use serde::{Deserialize, Serialize};

/// Bytes with which the entries of a derived store begin that are asked for together.
pub const DERIVED_PREFIX_BYTES: u32 = 16;

/// Meaning of a store's pairs. A field that is `None` is unknown, and is taken from the first program that states it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holds {
    /// Kind of the value under a key, such as `account-owner`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extract: Option<String>,
    /// Programs whose accounts are the keys, or `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub programs: Option<Vec<String>>,
    /// Name that the operator gives to the chain of the pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Name of the derived store that this is; `None` for a map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub derived: Option<String>,
}

impl Holds {
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the number of leading bytes that filters and scans of the store are made for.
    pub(crate) fn prefix_bytes(&self) -> u32 {
        if self.derived.is_some() { DERIVED_PREFIX_BYTES } else { 32 }
    }
}

/// Progress of the load that fills a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadState {
    /// The load was begun and has not finished. The store holds a part of its source.
    Loading,
    /// The load has finished. The store holds all of its source.
    Complete,
}

/// The load that fills or has filled a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub state: LoadState,
    /// Source that the load reads: the number in its checkpoints, in hex.
    pub source: String,
    /// Result of the load; `None` until it is complete, and if an earlier version has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
}

impl Load {
    /// Builds a load that has no result yet.
    pub fn new(state: LoadState, source: impl Into<String>) -> Self {
        Self { state, source: source.into(), loaded: None }
    }
}

/// Result of a complete load. It describes the store for as long as the store has this seq.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Seq of the load's last commit.
    pub seq: u64,
    /// Number of pairs in the store.
    pub pairs: u64,
    /// Digest of the pairs; `None` unless one run has loaded all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Slot of the chain that the source was a state of. `None` if it was not one of a chain, and if an earlier version has
    /// loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u64>,
}

impl Loaded {
    /// Describes how a store with these pairs and this digest differs from the loaded one; `None` if it does not.
    pub fn difference(&self, pairs: u64, digest: &str) -> Option<String> {
        if self.pairs != pairs {
            return Some(format!("pairs={pairs} loaded_pairs={}", self.pairs));
        }
        let loaded = self.digest.as_ref().filter(|loaded| *loaded != digest)?;
        Some(format!("digest={digest} loaded_digest={loaded}"))
    }
}
