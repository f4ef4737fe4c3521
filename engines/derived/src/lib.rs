//! Stores that are derived from a map, beside it in `DIR/derived/NAME`: stores of any engine that serves, whose entries follow
//! from the map's pairs.
//!
//! Owns: the entries of [`values`], which finds the keys of a value, and of [`history`], which has the values of the past; the
//! [`Position`] of a derived store; the secret that its entries are hashed with. Must not: follow a feed or load a store, which `service` and `bootstrap` do; put a
//! secret into anything that is shown. Runs on the caller's thread.

pub mod history;
mod position;
mod secret;
pub mod values;

use std::path::{Path, PathBuf};

use engines::{Holds, LoadTerm, Terms};

pub use position::{Origin, Position};
pub use secret::Secret;

/// Directory within a map's directory that has its derived stores.
pub const DERIVED: &str = "derived";

/// Bytes of a hash, with which the keys of one value's entries begin.
pub const PREFIX_BYTES: usize = engines::DERIVED_PREFIX_BYTES as usize;

/// Returns the directory of the derived store `name` of the map in `map`.
pub fn dir(map: &Path, name: &str) -> PathBuf {
    map.join(DERIVED).join(name)
}

/// Returns the terms on which the derived store `name` is opened.
pub fn terms(name: &str) -> Terms {
    Terms { holds: Holds { derived: Some(name.to_owned()), ..Holds::default() }, load: LoadTerm::Finished }
}
