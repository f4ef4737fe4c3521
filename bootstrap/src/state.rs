//! `bootstrap.toml` in the store's directory: the source of a load, and whether the load has ended.
//!
//! Owns: that file, and the content of the load's entry in the store's marker. Must not: say how far a load has come,
//! because only the engine's checkpoint does. Runs on the main thread.

use std::path::Path;

use anyhow::{Result, bail};
use engines::LoadState;
use engines::checked::{self, Found};
use serde::{Deserialize, Serialize};
use solana::archive::Listing;

use crate::identity::{Stamp, hex};
use crate::out::tell;
use crate::rank::Order;

const FILE: &str = "bootstrap.toml";

/// Identity and outcome of a load: the content of the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// The source as messages name it, such as `file=PATH`.
    pub(crate) source: String,
    /// Id of the source and its order in hex, the same as in the checkpoint.
    pub(crate) source_id: String,
    /// Number of records in the source, duplicates included.
    pub(crate) records: u64,
    /// Number of distinct pairs loaded. `None` until the load is complete.
    pub(crate) pairs: Option<u64>,
    /// Slot of the pairs (--slot).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u64>,
    /// Order of the load. `None` for a migration, and in the file of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<Order>,
    /// Digest in hex of the records of a file or of standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// Stamp of the source's file when it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stamp: Option<Stamp>,
    /// List of files in the manifest of the archives that the pairs are from; that of another source says nothing.
    #[serde(default, skip_serializing_if = "Listing::is_compared")]
    pub(crate) listing: Listing,
}

impl State {
    /// Reads the state file; `None` if there is none.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, or belongs to another load, with the way out.
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
            Ok(state) if is_of_another_load(dir, &state)? => {
                "it belongs to another load than the store does".to_owned()
            }
            Ok(state) => return Ok(Some(state)),
            Err(reason) => reason,
        };
        let shown = path.display();
        bail!(
            "the load's own file is damaged: file={shown} reason={reason}: the pairs are not in it, and no service needs it; \
             put it back from a copy, or remove it: --resume then compares the source by the number in the store's marker"
        )
    }

    /// Reads the state file for a command that only looks at the store. If the file is damaged, prints that and
    /// continues without it.
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

/// Whether the load of the store in `dir` is complete; `None` if nothing was loaded. The marker decides. If it has no
/// entry for a load, the state file does.
pub(crate) fn is_complete(dir: &Path) -> Result<Option<bool>> {
    let load = engines::inspect(dir)?.and_then(|known| known.load);
    Ok(match load {
        Some(load) => Some(load.state == LoadState::Complete),
        None => State::read(dir)?.map(|state| state.pairs.is_some()),
    })
}

/// Builds the marker's entry for a load.
pub(crate) fn load_of(state: LoadState, source_id: u64) -> engines::Load {
    engines::Load::new(state, hex(source_id))
}

/// Whether the marker of a complete load names another source. During a load this is no contradiction, because the two
/// files are written one after the other.
fn is_of_another_load(dir: &Path, state: &State) -> Result<bool> {
    let load = engines::inspect(dir)?.and_then(|known| known.load);
    Ok(load.is_some_and(|load| load.state == LoadState::Complete && load.source != state.source_id))
}
