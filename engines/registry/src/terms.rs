//! The requirements of a program that opens a store: the meaning of the pairs, and the state of the load.
//!
//! Owns: comparing them with those that the marker records, and the refusals. Must not: interpret a meaning; its words
//! belong to the programs that write pairs. Does no I/O, except to name the process that holds the directory.

use std::path::Path;

use engine_api::{Code, Error, ErrorKind, Result};

use crate::content::{Holds, Load, LoadState};
use crate::hold;
use crate::marker::{Identity, MARKER};

/// Longest name of a cluster in bytes, because names are shown on one line with others.
const NAME_BYTES_MAX: usize = 64;

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
        let (is_there, known, asked) = (known.is_some(), known.unwrap_or(&unknown), &self.holds);
        // Programs that state nothing look at any store. All others would take entries for pairs of a map, or the reverse.
        if is_there && *self != Self::default() && known.derived != asked.derived {
            let kind =
                |derived: Option<&String>| derived.map_or("a map".to_owned(), |name| format!("derived store {name}"));
            let (held, wanted) = (kind(known.derived.as_ref()), kind(asked.derived.as_ref()));
            return Err(Error::wrong(
                Code::OtherMap,
                format!(
                    "the directory has {held}, asked for {wanted}: dir={}: name the map's directory",
                    dir.display()
                ),
            ));
        }
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
        let programs = known.programs.clone().or_else(|| asked.programs.clone());
        Ok(Holds { extract, programs, cluster, derived: asked.derived.clone().or_else(|| known.derived.clone()) })
    }
}

/// Refuses a name that an operator could not read back: empty, too long, or with invisible characters.
fn check_name(what: &str, name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let plain = name.trim() == name && !name.chars().any(char::is_control);
    if plain && (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::wrong(
        Code::Arguments,
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
        (Some(known), Some(asked)) if known != asked => Err(Error::wrong(
            Code::OtherMap,
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
        )
        .with_code(Code::Loading),
        _ => Error::wrong(
            Code::Loading,
            format!(
                "the load of this store has not finished: dir={dir_shown} source={source}: continue with {} --resume, or \
                 remove the directory and load again",
                program::called("bootstrap")
            ),
        ),
    }
}
