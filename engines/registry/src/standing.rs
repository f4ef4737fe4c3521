//! Checks that the engine's files match the marker: they exist, belong to its engine, and have reached its seq.
//!
//! Owns: these refusals. An engine creates a new store if it finds none. So without them a directory whose files are
//! gone would be opened as an empty map. Files are gone, for example, if a device is not mounted. Must not: change
//! anything. Runs on the thread that opens the store.

use std::fs;
use std::io::ErrorKind as Io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use engine_api::{Code, Error, ErrorKind, Result};

use crate::directory::{DATA, names_of_files};
use crate::engine::open_engine;
use crate::list::{EngineKind, compiled};
use crate::marker::{Identity, MARKER};
use crate::options::EngineOptions;
use crate::process;

const WAYS_OUT: &str =
    "mount or put back what belongs there, restore a snapshot, or remove the directory and load again";

/// Whether `dir` holds the files of a store of `engine`. One remaining part is enough, if the engine itself reports
/// which ones are missing.
///
/// # Errors
/// I/O errors of listing or looking at the files.
pub(crate) fn has_files(dir: &Path, engine: EngineKind) -> Result<bool> {
    let engine = engine.descriptor();
    let is_part = |name: &String| engine.part_endings.iter().any(|ending| name.ends_with(ending));
    if !engine.part_endings.is_empty() && names_of_files(dir)?.iter().any(is_part) {
        return Ok(true);
    }
    let path = dir.join(DATA).join(engine.main_file);
    match fs::metadata(&path) {
        Ok(found) => Ok(found.len() > 0),
        Err(e) if [Io::NotFound, Io::NotADirectory].contains(&e.kind()) => Ok(false),
        Err(e) => Err(Error::io(format!("cannot look at file={} reason={e}", path.display()), e)),
    }
}

/// Builds the error for a directory without a marker.
pub(crate) fn no_store(dir: &Path) -> Error {
    let shown = dir.display();
    match names_of_files(dir) {
        Ok(names) if !names.is_empty() => Error::wrong(
            Code::StoreFiles,
            format!(
                "the store's marker is missing: file={shown}/{MARKER} beside {DATA}: put it back from a copy, or restore a \
                 snapshot"
            ),
        ),
        _ => {
            let bootstrap = program::called("bootstrap");
            let message = format!("there is no store: dir={shown}: create it with {bootstrap}, or correct the path");
            Error::wrong(Code::NoStore, message)
        }
    }
}

/// Refuses a directory that contains a pipe or a device: opening it by the name of a file would wait for the pipe's
/// other end, or read without end.
///
/// # Errors
/// `FixInput` naming the pipe or device.
pub(crate) fn check_kinds(dir: &Path) -> Result<()> {
    for place in [dir.to_owned(), dir.join(DATA)] {
        for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
            let kind = fs::metadata(entry.path()).map(|found| found.file_type());
            if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_block_device()) {
                let file = entry.path();
                let message =
                    format!("a pipe or a device is in a store's directory: file={}: move it away", file.display());
                return Err(Error::wrong(Code::Directory, message));
            }
        }
    }
    Ok(())
}

/// Refuses a directory whose files are gone, or belong to another engine than the marker names.
///
/// # Errors
/// `FixInput` naming the missing or foreign file; I/O errors of looking at the files.
pub(crate) fn check_files(dir: &Path, known: &Identity) -> Result<()> {
    let (held, shown) = (known.engine, dir.display());
    for other in compiled().iter().copied().filter(|other| *other != held) {
        if has_files(dir, other)? {
            return Err(Error::wrong(
                Code::StoreFiles,
                format!(
                    "the marker names engine={held}, and the files are those of engine={other}: dir={shown} \
                     marker={MARKER} file={DATA}/{}: put the marker back, or restore a snapshot",
                    other.descriptor().main_file
                ),
            ));
        }
    }
    if known.seq.is_none() || has_files(dir, held)? {
        return Ok(());
    }
    Err(Error::wrong(
        Code::StoreFiles,
        format!(
            "the store's files are gone: dir={shown} engine={held} missing_or_empty={DATA}/{}: {WAYS_OUT}",
            held.descriptor().main_file
        ),
    ))
}

/// Refuses a store that has no file for its newest batches and lacks such batches. A copy may have no such file and be
/// complete. Opens the store for reading alone, because opening it for writing would create a new file.
///
/// # Errors
/// Any error of [`check_seq`], or of opening the engine.
pub(crate) fn check_without_log(dir: &Path, options: &EngineOptions, known: &Identity) -> Result<()> {
    let engine = known.engine.descriptor();
    let Some(ending) = engine.log_ending.filter(|_| known.seq.is_some_and(|seq| seq > 0)) else { return Ok(()) };
    // An engine that cannot be opened for reading alone has its seq checked once it is open.
    if engine.open_read_only.is_none() || names_of_files(dir)?.iter().any(|name| name.ends_with(ending)) {
        return Ok(());
    }
    process::raise_open_files();
    let engine = open_engine(&dir.join(DATA), options, &known.holds)?;
    check_seq(dir, known, engine.checkpoint()?.seq)
}

/// Whether a store below its marker's seq may have lost only its newest batches: the files for them are here, or a
/// repair has set them aside. Otherwise a part of the directory may not be mounted.
///
/// # Errors
/// I/O errors of listing the files.
pub(crate) fn has_log(dir: &Path, engine: EngineKind) -> Result<bool> {
    let Some(ending) = engine.descriptor().log_ending else { return Ok(false) };
    let aside = format!("{ending}.set-aside");
    Ok(names_of_files(dir)?.iter().any(|name| name.ends_with(ending) || name.contains(&aside)))
}

/// Refuses a store whose seq is below the one at which it was last closed or its load was completed. The message offers
/// a repair if strata's log is there, because then only the newest changes may be gone. Without a log anything may be
/// gone.
///
/// # Errors
/// `DataDamaged` naming both seqs.
pub(crate) fn check_seq(dir: &Path, known: &Identity, found: u64) -> Result<()> {
    let can_be_repaired = || known.engine.descriptor().repair.is_some() && has_log(dir, known.engine).unwrap_or(false);
    let Some(seq) = known.seq.filter(|seq| found < *seq) else { return Ok(()) };
    let repair = match can_be_repaired() {
        true => format!("; {} repair continues without the lost changes", program::called("bootstrap")),
        false => String::new(),
    };
    let message = format!(
        "the store has lost changes: dir={} seq={found} marker_seq={seq}: files in {DATA} are missing or older than the \
         marker",
        dir.display()
    );
    let error = Error::new(ErrorKind::DataDamaged, message).with_code(Code::StoreFiles);
    Err(error.with_way_out(&format!("{WAYS_OUT}{repair}")))
}
