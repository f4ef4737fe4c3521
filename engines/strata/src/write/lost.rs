//! What repairs have given up: it is remembered in the store, because a key that is lost is answered as absent, or with
//! the value before, and nothing else would ever say so again.
//!
//! Owns: the file `LOST` (FORMAT.md, "Lost"). Must not: decide what is lost, or ever forget it; the operator removes the
//! file. Runs on the threads that repair, open and copy a store.

use engine_api::Result;

use crate::file::{read_whole, replace};
use crate::storage::Storage;

/// The file: a line for each thing that was lost.
pub(crate) const NAME: &str = "LOST";

/// What is lost, a line each; nothing without the file. A file without a line was emptied: something is lost all the same.
///
/// # Errors
/// Those of reading, naming the file.
pub(crate) fn read(storage: &dyn Storage) -> Result<Vec<String>> {
    let Some(bytes) = read_whole(storage, NAME)? else { return Ok(Vec::new()) };
    let lines: Vec<String> = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
    Ok(if lines.is_empty() {
        vec![format!("something that is not known any more, because {NAME} is empty")]
    } else {
        lines
    })
}

/// Adds these lines to those that are there, durably. One that is there already is not added again: a repair that was cut
/// says the same when it is repeated.
///
/// # Errors
/// Those of reading and writing, naming the file.
pub(crate) fn add(storage: &dyn Storage, lost: &[String]) -> Result<()> {
    let before = read(storage)?;
    let new = lost.iter().filter(|line| !before.contains(line));
    let all: String = before.iter().chain(new).map(|line| format!("{line}\n")).collect();
    if lost.is_empty() { Ok(()) } else { replace(storage, NAME, all.as_bytes()) }
}
