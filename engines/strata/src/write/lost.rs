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
/// End of the last line if there are more losses; a number precedes it.
const MORE: &str = " more losses at least, which only the output of a repair has named";

/// Returns the losses, a line each; none if there is no file. A file without a line was emptied, which still means that
/// something is lost.
///
/// # Errors
/// I/O errors of reading, which name the file.
pub(crate) fn read(storage: &dyn Storage) -> Result<Vec<String>> {
    let Some(bytes) = read_whole(storage, NAME)? else { return Ok(Vec::new()) };
    let lines: Vec<String> = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
    Ok(if lines.is_empty() { vec![format!("an unknown loss, because {NAME} is empty")] } else { lines })
}

/// Adds these lines durably. A line that is there already is not added again, because an interrupted repair reports the
/// same losses when it is repeated. If there are too many lines, the last one tells how many more there are at least.
///
/// # Errors
/// I/O errors of reading and writing, which name the file.
pub(crate) fn add(storage: &dyn Storage, lost: &[String]) -> Result<()> {
    if lost.is_empty() {
        return Ok(());
    }
    let mut lines = read(storage)?;
    let counted = lines.last().and_then(|line| line.strip_suffix(MORE)?.parse::<usize>().ok());
    lines.truncate(lines.len() - usize::from(counted.is_some()));
    let known: HashSet<&String> = lines.iter().collect();
    let new: Vec<String> = lost.iter().filter(|line| !known.contains(line)).cloned().collect();
    lines.extend(new);
    let more = lines.len().saturating_sub(LINES_MAX - 1).max(counted.unwrap_or(0));
    if more > 1 {
        lines.truncate(LINES_MAX - 1);
        lines.push(format!("{more}{MORE}"));
    }
    write(storage, &lines)
}

/// Copies the losses of a store to its copy.
///
/// # Errors
/// As [`add`].
pub(crate) fn copy(from: &dyn Storage, to: &dyn Storage) -> Result<()> {
    let lines = read(from)?;
    if lines.is_empty() { Ok(()) } else { write(to, &lines) }
}

fn write(storage: &dyn Storage, lines: &[String]) -> Result<()> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    replace(storage, NAME, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::DirStorage;

    #[test]
    fn losses_without_number_stay_readable_and_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let storage = DirStorage::existing(dir.path());
        let lines = |from: usize, to: usize| (from..to).map(|n| format!("range {n:0200}")).collect::<Vec<_>>();
        add(&storage, &lines(0, 3)).unwrap();
        // A repair that is interrupted names them again.
        for _ in 0..2 {
            add(&storage, &lines(0, 400_000)).unwrap();
        }
        let lost = read(&storage).unwrap();
        assert_eq!(lost.len(), LINES_MAX);
        assert_eq!(lost[..LINES_MAX - 1], lines(0, LINES_MAX - 1));
        let more = 400_000 - (LINES_MAX - 1);
        assert_eq!(lost[LINES_MAX - 1], format!("{more}{MORE}"));
        let dir = tempfile::tempdir().unwrap();
        let other = DirStorage::existing(dir.path());
        copy(&storage, &other).unwrap();
        assert_eq!(read(&other).unwrap(), lost);
    }
}
