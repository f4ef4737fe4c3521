//! Record of the data that repairs have given up. It is kept in the store, because a lost key is answered as absent, or
//! with its value before, and nothing else would ever say so again.
//!
//! Owns: the file `LOST` (FORMAT.md, "Lost"). Must not: decide whether data is lost, or ever forget it; the operator
//! removes the file. Runs on the threads that repair, open and copy a store.

use engine_api::Result;

use crate::file::{read_whole, replace};
use crate::storage::Storage;

/// Name of the file, which has a line for each loss.
pub(crate) const NAME: &str = "LOST";

/// Returns the losses, a line each; none if there is no file. A file without a line was emptied, which still means that
/// something is lost.
///
/// # Errors
/// I/O errors of reading, which name the file.
pub(crate) fn read(storage: &dyn Storage) -> Result<Vec<String>> {
    let Some(bytes) = read_whole(storage, NAME)? else { return Ok(Vec::new()) };
    let lines: Vec<String> = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
    Ok(if lines.is_empty() {
        vec![format!("something that is not known any more, because {NAME} is empty")]
    } else {
        lines
    })
}

/// Adds these lines durably. A line that is there already is not added again, because an interrupted repair reports the
/// same losses when it is repeated.
///
/// # Errors
/// I/O errors of reading and writing, which name the file.
pub(crate) fn add(storage: &dyn Storage, lost: &[String]) -> Result<()> {
    let before = read(storage)?;
    let new = lost.iter().filter(|line| !before.contains(line));
    let all: String = before.iter().chain(new).map(|line| format!("{line}\n")).collect();
    if lost.is_empty() { Ok(()) } else { replace(storage, NAME, all.as_bytes()) }
}
