//! A copy of a store that is itself a store: made under another name, and renamed once all of it is on the device.
//!
//! Owns: the copy's directory from its first file to its name. Must not: know an engine; what is linked and what is
//! copied is the engine's own affair. Runs on the thread that asks for the copy.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use engine_api::{Engine, Error, ErrorKind, Result};

use crate::checked;
use crate::marker::{self, Identity};
use crate::store::{DATA, new_dir, sync_parent};

/// Writes the newest commit of `engine`, whose store is in `store`, to `dir`, which is missing or empty. A crash leaves
/// `dir` as it was and `DIR.partial`, which is not a store; a failure removes that too.
///
/// # Errors
/// `FixInput`: something is at `dir` or `DIR.partial`, or one directory is inside the other; else the engine's and the
/// file system's.
pub(crate) fn write(engine: &dyn Engine, identity: &Identity, store: &Path, dir: &Path) -> Result<()> {
    refuse_nested(store, dir)?;
    refuse_unless_empty(dir)?;
    let partial = partial(dir)?;
    let shown = partial.display();
    new_dir(&partial).map_err(|e| match e.kind() {
        Io::AlreadyExists => Error::new(
            ErrorKind::FixInput,
            format!("a copy to this place was cut short or is under way: dir={shown}: remove it if none is"),
        ),
        _ => Error::io(format!("cannot make the copy's directory: dir={shown} reason={e}"), e),
    })?;
    let made = fill(engine, identity, &partial).and_then(|()| {
        fs::rename(&partial, dir).map_err(|e| {
            Error::io(format!("cannot give the copy its name: from={shown} to={} reason={e}", dir.display()), e)
        })
    });
    if made.is_err() {
        // Half a copy is of no use; the first error is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    made.and_then(|()| sync_parent(dir))
}

fn fill(engine: &dyn Engine, identity: &Identity, partial: &Path) -> Result<()> {
    let data = partial.join(DATA);
    // Before the copy, which holds the newest commit: it stands there or after it.
    let seq = engine.checkpoint()?.seq;
    engine.snapshot(&data)?;
    sync_tree(&data).map_err(|e| Error::io(format!("cannot sync the copy: dir={} reason={e}", data.display()), e))?;
    // Last and synced with its directory: what has a marker is whole, whatever its directory is called.
    marker::write(partial, &identity.clone().at(seq))
}

/// Refuses a copy inside its store, which would go wherever the store goes, also when it is removed; and a store inside
/// the copy.
pub fn refuse_nested(store: &Path, dir: &Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::io(format!("cannot resolve the store's directory: dir={} reason={e}", store.display()), e)
    };
    let (store, place) = (store.canonicalize().map_err(failed)?, resolved(dir));
    if !place.starts_with(&store) && !store.starts_with(&place) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::FixInput,
        format!(
            "a store and its copy need directories of their own: store={} copy={}: name a directory beside the store",
            store.display(),
            place.display()
        ),
    ))
}

/// Where `dir` will be: the nearest directory above it that exists, without links, and the names below that one.
fn resolved(dir: &Path) -> PathBuf {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    for above in dir.ancestors() {
        if let (Ok(real), Ok(below)) = (above.canonicalize(), dir.strip_prefix(above)) {
            return real.join(below);
        }
    }
    dir
}

fn refuse_unless_empty(dir: &Path) -> Result<()> {
    let found = match fs::read_dir(dir) {
        Err(e) if e.kind() == Io::NotFound => return Ok(()),
        Err(e) if e.kind() == Io::NotADirectory => Some("it is a file".to_owned()),
        Err(e) => {
            return Err(Error::io(format!("cannot look at the copy's place: dir={} reason={e}", dir.display()), e));
        }
        Ok(mut entries) => entries.next().map(|entry| match entry {
            Ok(entry) => format!("it holds {}", entry.file_name().to_string_lossy()),
            Err(e) => format!("it cannot be listed: {e}"),
        }),
    };
    match found {
        None => Ok(()),
        Some(why) => Err(Error::new(
            ErrorKind::FixInput,
            format!("a copy needs a missing or empty directory: dir={} reason={why}: name another", dir.display()),
        )),
    }
}

/// `DIR.partial`, beside `dir` so that the rename stays within one file system.
fn partial(dir: &Path) -> Result<PathBuf> {
    let name = dir.file_name().ok_or_else(|| {
        Error::new(ErrorKind::FixInput, format!("not the name of a directory: dir={}: name another", dir.display()))
    })?;
    let mut name = OsString::from(name);
    name.push(".partial");
    Ok(dir.with_file_name(name))
}

/// Makes every file and name below `dir` durable: engines differ in what they have synced of a copy.
fn sync_tree(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    checked::sync_dir(dir)
}
