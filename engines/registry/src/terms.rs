//! What the pairs of a store mean and how far its load has come, as the marker keeps them, and what a program that
//! opens the store asks of both.
//!
//! Owns: the comparison and its refusals. Must not: know what a meaning is; the words are those of the programs that
//! write pairs. Does no I/O.

use std::path::Path;

use engine_api::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::hold;
use crate::marker::{Identity, MARKER};

/// A name is shown on one line among others.
const NAME_BYTES_MAX: usize = 64;

/// What the pairs of a store mean. A field that is `None` is not known, and is taken from the first program that says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holds {
    /// What the value under a key is, such as `account-owner`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extract: Option<String>,
    /// The programs whose accounts are keys, or `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub programs: Option<Vec<String>>,
    /// The operator's name for the chain that the pairs come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

impl Holds {
    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// How far the load that fills a store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadState {
    /// It was begun. The store holds a part of its source.
    Loading,
    /// The store holds all of its source.
    Complete,
}

/// The load that fills or has filled a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// How far it has come.
    pub state: LoadState,
    /// Which source it reads: the number in its checkpoints, as hex.
    pub source: String,
    /// What it has loaded; `None` until it is complete, and where an earlier version has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
}

impl Load {
    /// A load of which nothing is known but its source.
    pub fn new(state: LoadState, source: impl Into<String>) -> Self {
        Self { state, source: source.into(), loaded: None }
    }
}

/// What a complete load has left in the store, for as long as the store stands at that seq.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// The seq of the load's last commit.
    pub seq: u64,
    /// Pairs in the store.
    pub pairs: u64,
    /// Their digest, where one run has loaded all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl Loaded {
    /// How a store that holds these pairs, with this digest, differs from what was loaded; `None` where it does not.
    pub fn difference(&self, pairs: u64, digest: &str) -> Option<String> {
        if self.pairs != pairs {
            return Some(format!("pairs={pairs} loaded_pairs={}", self.pairs));
        }
        let loaded = self.digest.as_ref().filter(|loaded| *loaded != digest)?;
        Some(format!("digest={digest} loaded_digest={loaded}"))
    }
}

/// What a load must be for a store to be opened, and what opening makes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadTerm {
    /// As it is.
    #[default]
    Any,
    /// A load that has not finished is refused.
    Finished,
    /// This program loads. A store without an unfinished load is marked as loading from this source, its number as hex;
    /// one that is loading stays as it is. [`mark_load`](crate::mark_load) says what comes after.
    Loading(String),
}

/// What a program that opens a store says about it. The default says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// What the pairs mean: kept by a store that does not know, refused by one that holds something else.
    pub holds: Holds,
    /// What its load must be.
    pub load: LoadTerm,
}

impl Terms {
    /// What the marker is to say after opening.
    ///
    /// # Errors
    /// `FixInput`: the store holds something else, or its load has not finished.
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
        let way_out = "leave the setting out to go on with what the store holds, or name another directory";
        let extract = one(dir, "extract", known.extract.as_ref(), asked.extract.as_ref(), way_out)?;
        let joined = |programs: &Vec<String>| programs.join(",");
        let (held, wanted) = (known.programs.as_ref().map(joined), asked.programs.as_ref().map(joined));
        one(dir, "programs", held.as_ref(), wanted.as_ref(), "name another directory, or load this store again")?;
        let way_out = format!(
            "correct the setting, or file={} where the store's is wrong, and remove the checksum in its first line",
            dir.join(MARKER).display()
        );
        let cluster = one(dir, "cluster", known.cluster.as_ref(), asked.cluster.as_ref(), &way_out)?;
        Ok(Holds { extract, programs: known.programs.clone().or_else(|| asked.programs.clone()), cluster })
    }
}

/// Refuses a name that an operator could not read back: empty, long, or with characters that do not show.
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

/// What is known, or what is asked for where nothing is.
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
/// Why nobody but a load opens the store.
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
                "the load of this store has not finished: dir={dir_shown} source={source}: go on with bootstrap --resume, or \
                 remove the directory and load again"
            ),
        ),
    }
}
