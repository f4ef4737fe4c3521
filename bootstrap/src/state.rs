//! `bootstrap.toml` in the store's directory: which source a load reads and whether it has ended.
//!
//! Owns: that file. How far a load has come is the engine's checkpoint, never this file's word.

use std::path::Path;

use anyhow::{Result, bail};
use engines::LoadState;
use engines::checked::{self, Found};
use serde::{Deserialize, Serialize};

use crate::identity::Stamp;
use crate::order::Order;
use crate::out::tell;

const FILE: &str = "bootstrap.toml";

/// A load's identity and outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// The source in words.
    pub(crate) source: String,
    /// The source and its order as a number, as in the checkpoint.
    pub(crate) source_id: String,
    /// Records in the source, duplicates included.
    pub(crate) records: u64,
    /// Distinct pairs loaded; set when the load is complete.
    pub(crate) pairs: Option<u64>,
    /// The slot that the pairs were said to stand for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u64>,
    /// The order of the load; `None` for a migration, and in the file of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<Order>,
    /// The digest of a file's or standard input's records, as hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// What the file system said of the file when it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stamp: Option<Stamp>,
}

impl State {
    /// The load's file; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read, or its text is not what was written, with the way out.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        let parsed = match checked::read(&path)? {
            None => return Ok(None),
            Some(Found::Whole(text) | Found::Unchecked(text)) => {
                toml::from_str(&text).map_err(|error| error.message().lines().collect::<Vec<_>>().join(" "))
            }
            Some(Found::Damaged) => Err("its checksum differs".to_owned()),
        };
        let reason = match parsed {
            Ok(state) if is_of_another_load(dir, &state)? => "it is of another load than the store".to_owned(),
            Ok(state) => return Ok(Some(state)),
            Err(reason) => reason,
        };
        let shown = path.display();
        bail!(
            "the load's own file is damaged: file={shown} reason={reason}: the pairs are not in it, and no service needs it; \
             put it back from a copy, or remove it: --resume then compares the source by the number in the store's marker"
        )
    }

    /// The load's file; where it is damaged that is said, and whoever only looks at the store goes on without it.
    pub(crate) fn read_or_tell(dir: &Path) -> Option<Self> {
        Self::read(dir).unwrap_or_else(|error| {
            tell!("{error:#}");
            None
        })
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        Ok(checked::write(&dir.join(FILE), &toml::to_string(self)?)?)
    }
}

/// Whether the marker of a complete load names another source. While a load is under way the two are written one after the
/// other.
fn is_of_another_load(dir: &Path, state: &State) -> Result<bool> {
    let load = engines::inspect(dir)?.and_then(|known| known.load);
    Ok(load.is_some_and(|load| load.state == LoadState::Complete && load.source != state.source_id))
}
