//! The meaning of a store's pairs and the state of its load, which the marker records, and the requirements of a
//! program that opens the store.
//!
//! Owns: comparing both, and the refusals. Must not: interpret a meaning; its words belong to the programs that write
//! pairs. Does no I/O, except to name the process that holds the directory.

use std::path::Path;

use engine_api::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::hold;
use crate::marker::{Identity, MARKER};

/// Longest name of a cluster in bytes, because names are shown on one line with others.
const NAME_BYTES_MAX: usize = 64;

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
}

impl Holds {
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
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

/// Required state of a store's load, and the change that opening makes to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadTerm {
    /// Any state is accepted and left unchanged.
    #[default]
    Any,
    /// A store whose load has not finished is refused.
    Finished,
    /// This program loads the store. A store without an unfinished load is marked as loading from this source, a number
    /// in hex. A store that is loading stays unchanged. [`mark_load`](crate::mark_load) records the progress after
    /// that.
    Loading(String),
}

/// Statements of a program about the store that it opens. The default states nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Meaning of the pairs. A store that does not know it records it; a store with another meaning is refused.
    pub holds: Holds,
    /// Required state of the load.
    pub load: LoadTerm,
}

impl Terms {
    /// Compares the terms with the marker, and returns the meaning and the load that the marker must have after
    /// opening.
    ///
    /// # Errors
    /// `FixInput` if the store has another meaning, or its load has not finished; `Retry` if another process is loading
    /// it now.
    pub(crate) fn meet(&self, dir: &Path, known: Option<&Identity>) -> Result<(Holds, Option<Load>)> {
        let holds = self.holds(dir, known.map(|known| &known.holds))?;
        let load = known.and_then(|known| known.load.clone());
        let unfinished = load.as_ref().filter(|load| load.state == LoadState::Loading);
        let load = match (&self.load, unfinished) {
            (LoadTerm::Finished, Some(unfinished)) => return Err(not_finished(dir, &unfinished.source)),
            (LoadTerm::Loading(source), None) => Some(Load::new(LoadState::Loading, source)),
            (LoadTerm::Any | LoadTerm::Finished | LoadTerm::Loading(_), _) => load,
        };
        Ok((holds, load))
    }

    fn holds(&self, dir: &Path, known: Option<&Holds>) -> Result<Holds> {
        let unknown = Holds::default();
        let (known, asked) = (known.unwrap_or(&unknown), &self.holds);
        check_name("cluster", asked.cluster.as_deref())?;
        let way_out = "leave the setting out to use the store's own, or name another directory";
        let extract = one(dir, "extract", known.extract.as_ref(), asked.extract.as_ref(), way_out)?;
        let joined = |programs: &Vec<String>| programs.join(",");
        let (held, wanted) = (known.programs.as_ref().map(joined), asked.programs.as_ref().map(joined));
        one(dir, "programs", held.as_ref(), wanted.as_ref(), "name another directory, or load this store again")?;
        let way_out = format!(
            "correct the setting; or, if the store's own is wrong, correct file={} and remove the checksum in its first line",
            dir.join(MARKER).display()
        );
        let cluster = one(dir, "cluster", known.cluster.as_ref(), asked.cluster.as_ref(), &way_out)?;
        Ok(Holds { extract, programs: known.programs.clone().or_else(|| asked.programs.clone()), cluster })
    }
}

/// Refuses a name that an operator could not read back: empty, too long, or with invisible characters.
fn check_name(what: &str, name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let plain = name.trim() == name && !name.chars().any(char::is_control);
    if plain && (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::FixInput,
        format!(
            "not a name: {what}={name:?}: give 1 to {NAME_BYTES_MAX} bytes without control characters or spaces around \
             them, such as mainnet"
        ),
    ))
}

/// Returns the known text, or the requested one if none is known. Refuses a difference between the two.
fn one(
    dir: &Path,
    what: &str,
    known: Option<&String>,
    asked: Option<&String>,
    way_out: &str,
) -> Result<Option<String>> {
    match (known, asked) {
        (Some(known), Some(asked)) if known != asked => Err(Error::new(
            ErrorKind::FixInput,
            format!("the store holds {what}={known}, asked for {what}={asked}: dir={}: {way_out}", dir.display()),
        )),
        (Some(known), _) => Ok(Some(known.clone())),
        (None, asked) => Ok(asked.cloned()),
    }
}
/// Builds the error for a store that only a load may open.
fn not_finished(dir: &Path, source: &str) -> Error {
    let (dir_shown, own) = (dir.display(), std::process::id().to_string());
    match hold::holder(dir) {
        Ok(Some(pid)) if pid != own => Error::new(
            ErrorKind::Retry,
            format!("the load of this store is under way: dir={dir_shown} source={source} pid={pid}: wait for its end"),
        ),
        _ => Error::new(
            ErrorKind::FixInput,
            format!(
                "the load of this store has not finished: dir={dir_shown} source={source}: continue with bootstrap --resume, or \
                 remove the directory and load again"
            ),
        ),
    }
}
