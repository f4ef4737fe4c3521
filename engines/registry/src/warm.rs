//! Warm-up of an engine that reads its files through the kernel's page cache.
//!
//! Owns: the choice of files, and whether there is room for them. Must not: read a file on which a lock ends when any
//! descriptor of it is closed. Runs on the caller's thread.

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::{Error, ErrorKind, Result, Warmed};

/// Reads the files in `dir` that have one of these endings into the page cache, as far as they are not there. Does nothing if
/// the files are larger than `room_bytes`: reads for lookups would drop pages that were read here, and the other way round.
///
/// # Errors
/// Errors of listing or reading the files.
pub(crate) fn read_in(
    dir: &Path,
    endings: &[&str],
    room_bytes: u64,
    go_on: &mut dyn FnMut(Warmed) -> bool,
) -> Result<()> {
    if endings.is_empty() {
        return Ok(());
    }
    let (files, bytes) = files(dir, endings)
        .map_err(|e| Error::io(format!("cannot list the engine's files: dir={} reason={e}", dir.display()), e))?;
    let missing_bytes = if bytes > room_bytes { 0 } else { probe::missing_bytes(&files) };
    let mut warmed = Warmed { read_bytes: 0, missing_bytes };
    if missing_bytes == 0 || !go_on(warmed) {
        return Ok(());
    }
    let read = probe::read_missing(&files, &mut |missed| {
        warmed.read_bytes += missed;
        go_on(warmed)
    });
    read.map_err(|e| Error::with_source(ErrorKind::Retry, format!("{e:#}"), e))
}

/// Returns the files in `dir` that have one of these endings, and their size on disk in bytes. Files that vanish meanwhile are
/// left out.
fn files(dir: &Path, endings: &[&str]) -> std::io::Result<(Vec<PathBuf>, u64)> {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if endings.iter().any(|ending| name.to_string_lossy().ends_with(ending))
            && let Ok(file) = entry.metadata()
        {
            // A file may be longer than its blocks, and its holes take no room on disk but do in the page cache.
            bytes += file.len();
            files.push(entry.path());
        }
    }
    Ok((files, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 4 << 20;

    #[test]
    fn files_are_read_in_if_there_is_room_for_all_of_them() {
        let dir = tempfile::tempdir_in(".").unwrap();
        for name in ["one.sst", "other.sst", "LOCK"] {
            fs::write(dir.path().join(name), vec![1; BYTES as usize / 2]).unwrap();
        }
        probe::drop_page_cache(dir.path()).unwrap();
        let read = |endings: &[&str], room_bytes, calls_max: u32| {
            let (mut calls, mut last) = (0, Warmed::default());
            let go_on = &mut |now| {
                (calls, last) = (calls + 1, now);
                calls < calls_max
            };
            read_in(dir.path(), endings, room_bytes, go_on).unwrap();
            (last.read_bytes, last.missing_bytes, probe::page_cache_bytes(dir.path()))
        };
        assert_eq!(read(&[".sst"], BYTES - 1, u32::MAX), (0, 0, 0), "no room");
        assert_eq!(read(&[], u64::MAX, u32::MAX), (0, 0, 0), "an engine that reads past the page cache");
        assert_eq!(read(&[".sst"], BYTES, 1), (0, BYTES, 0), "told to end before the first piece");
        assert_eq!(read(&[".sst"], BYTES, u32::MAX), (BYTES, BYTES, BYTES));
    }
}
