//! Record of the data that repairs have given up. It is kept in the store, because a lost key is answered as absent, or
//! with its value before, and nothing else would ever say so again.
//!
//! Owns: the file `LOST` (FORMAT.md, "Lost"). Must not: decide whether data is lost, or ever forget it; the operator
//! removes the file. Runs on the threads that repair, open and copy a store.

use std::collections::HashSet;

use engine_api::Result;

use crate::file::{read_whole, replace};
use crate::storage::Storage;

/// Name of the file, which has a line for each loss.
pub(crate) const NAME: &str = "LOST";

/// Largest number of lines, less than 4 MiB. More ranges tell nobody more, and the file is read whole at each opening.
const LINES_MAX: usize = 10_000;

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

/// Adds these lines durably, or their number if they are too many. A line that is there already is not added again, because an interrupted repair reports the
/// same losses when it is repeated.
///
/// # Errors
/// I/O errors of reading and writing, which name the file.
pub(crate) fn add(storage: &dyn Storage, lost: &[String]) -> Result<()> {
    let before = read(storage)?;
    let known: HashSet<&String> = before.iter().collect();
    let new: Vec<&String> = lost.iter().filter(|line| !known.contains(line)).collect();
    let room = LINES_MAX.saturating_sub(before.len() + 1);
    let more = new.len().saturating_sub(room);
    let rest =
        (more > 0).then(|| format!("{more} more ranges or batches, which only the repair's own output has named"));
    let all = before.iter().chain(new.into_iter().take(room)).chain(rest.iter());
    let text: String = all.map(|line| format!("{line}\n")).collect();
    if lost.is_empty() { Ok(()) } else { replace(storage, NAME, text.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty::FaultyStorage;

    #[test]
    fn losses_without_number_stay_readable_and_are_counted() {
        let storage = FaultyStorage::default();
        let lines = |from: usize, to: usize| (from..to).map(|n| format!("range {n:0200}")).collect::<Vec<_>>();
        add(&storage, &lines(0, 3)).unwrap();
        add(&storage, &lines(0, 400_000)).unwrap();
        let read = read(&storage).unwrap();
        assert_eq!(read.len(), LINES_MAX);
        assert_eq!(read[..3], lines(0, 3));
        let more = 400_000 - (LINES_MAX - 1);
        assert!(read[LINES_MAX - 1].starts_with(&format!("{more} more")), "{}", read[LINES_MAX - 1]);
    }
}
