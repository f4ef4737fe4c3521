//! The directory of a store: the names of its entries, its creation, and the durability of its own name.
//!
//! Owns: the mode of a new directory, and which entry is the engine's. Must not: know an engine, or interpret a file.
//! Runs on the thread that opens or copies the store.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind as Io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use engine_api::{Error, Result};

use crate::checked;

/// Name of the engine's own directory within the store's.
pub const DATA: &str = "data";

/// Name of the directory within the store's in which a service keeps slots of the stream until the store is loaded. It
/// may be there before the store.
pub const SPOOL: &str = "spool";

/// Place within a store's directory of the copy of its map that a derived store is built of.
pub const DERIVED_COPY: &str = "derived/values.map";

/// Name of the file within the store's directory in which a service notes that the store's chain was contradicted. The
/// copies of a store have the same values, so they keep the file.
pub const CONTRADICTION: &str = "contradiction.toml";

/// Mode of a new store's directory, which is for its owner alone: others could otherwise open the lock file or the
/// pairs.
const DIR_MODE: u32 = 0o700;

/// Returns the names in `dir`; empty if it is missing.
pub(crate) fn names(dir: &Path) -> Result<BTreeSet<String>> {
    listed(dir, "directory", &[Io::NotFound])
}

/// Returns the names of the engine's files; empty if their directory is missing.
pub(crate) fn names_of_files(dir: &Path) -> Result<BTreeSet<String>> {
    listed(&dir.join(DATA), "files", &[Io::NotFound, Io::NotADirectory])
}

/// Returns the names in `dir`, which messages call the store's `role`; empty if an error says that it is `missing`.
fn listed(dir: &Path, role: &str, missing: &[Io]) -> Result<BTreeSet<String>> {
    let failed =
        |e: std::io::Error| Error::io(format!("cannot list the store's {role}: dir={} reason={e}", dir.display()), e);
    let entries = match fs::read_dir(dir) {
        Err(e) if missing.contains(&e.kind()) => return Ok(BTreeSet::new()),
        entries => entries.map_err(failed)?,
    };
    entries.map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns the real path of a directory or file that may not exist yet: its nearest existing ancestor with all links
/// resolved, and the remaining names.
pub fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in path.ancestors() {
        if let (Ok(real), Ok(below)) = (above.canonicalize(), path.strip_prefix(above)) {
            return if below.as_os_str().is_empty() { real } else { real.join(below) };
        }
    }
    path
}

/// Creates the directory of a store if it is missing, and makes its name durable.
pub(crate) fn create_dir(dir: &Path) -> Result<()> {
    let create = || {
        if dir.is_dir() {
            return Ok(());
        }
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent)?;
        }
        match new_dir(dir) {
            // Another process has just made it.
            Err(e) if e.kind() == Io::AlreadyExists && dir.is_dir() => Ok(()),
            made => made,
        }
    };
    create()
        .map_err(|e| Error::io(format!("cannot create the store's directory: dir={} reason={e}", dir.display()), e))?;
    sync_parent(dir)
}

/// Creates the directory of a store. An existing one would keep its mode, because an operator may have set it.
pub(crate) fn new_dir(dir: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(dir)
}

/// Makes the name of `dir` itself durable in the directory above it.
pub(crate) fn sync_parent(dir: &Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::io(format!("cannot sync the directory above the store: dir={} reason={e}", dir.display()), e)
    };
    match dir.canonicalize().map_err(failed)?.parent() {
        // A parent that may be entered but not read cannot be synced by this process.
        Some(parent) => match checked::sync_dir(parent) {
            Err(e) if e.kind() != Io::PermissionDenied => Err(failed(e)),
            _ => Ok(()),
        },
        None => Ok(()),
    }
}
