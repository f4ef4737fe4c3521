//! Copies a store to a directory that is itself a store. The copy is made under another name, and renamed once all of
//! it is on the device.
//!
//! Owns: the copy's directory from its first file to its final name. Must not: know an engine, which decides itself
//! whether it links or copies a file. Runs on the thread that asks for the copy.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use engine_api::{Engine, Error, ErrorKind, Result};

use crate::checked::{self, Found};
use crate::directory::{CONTRADICTION, DATA, new_dir, sync_parent};
use crate::lock;
use crate::marker::{self, Identity};

/// Writes the newest commit of `engine`, whose store is in `store`, to `dir`, which must be missing or empty. A crash
/// leaves `dir` unchanged and a directory `DIR.partial`, which is not a store. A failure removes that directory, too.
///
/// # Errors
/// `FixInput` if something is at `dir` or `DIR.partial`, or one directory is inside the other; otherwise errors of the
/// engine's snapshot and I/O errors.
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
    let made = fill(engine, identity, store, &partial).and_then(|()| {
        fs::rename(&partial, dir).map_err(|e| {
            Error::io(format!("cannot give the copy its name: from={shown} to={} reason={e}", dir.display()), e)
        })
    });
    if made.is_err() {
        // A partial copy is of no use. The first error is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    made.and_then(|()| sync_parent(dir))
}

/// Copies the contradiction of the store in `from`, if one is noted, to its copy in `to`. A damaged file stays damaged.
///
/// # Errors
/// I/O errors, with the file.
pub fn copy_contradiction(from: &Path, to: &Path) -> Result<()> {
    noted(from)?.map_or(Ok(()), |text| checked::write(&to.join(CONTRADICTION), &text))
}

/// Returns the text of a store's contradiction, if one is noted. A damaged file has none.
fn noted(store: &Path) -> Result<Option<String>> {
    Ok(checked::read(&store.join(CONTRADICTION))?.map(|found| match found {
        Found::Whole(text) => text,
        Found::Unchecked(_) | Found::Damaged => String::new(),
    }))
}

fn fill(engine: &dyn Engine, identity: &Identity, store: &Path, partial: &Path) -> Result<()> {
    let data = partial.join(DATA);
    // Read before the copy is made, and after it: a service that decides a contradiction meanwhile removes the file,
    // and the copied commit may be one from before.
    let before = noted(store)?;
    // Read before the copy is made: the copy holds the newest commit, so its seq is this one or a later one.
    let seq = engine.checkpoint()?.seq;
    engine.snapshot(&data)?;
    sync_tree(&data).map_err(|e| Error::io(format!("cannot sync the copy: dir={} reason={e}", data.display()), e))?;
    if let Some(text) = before.or(noted(store)?) {
        checked::write(&partial.join(CONTRADICTION), &text)?;
    }
    lock::make(partial)?;
    // The marker is written last, and is synced with its directory. So a directory with a marker is complete, whatever
    // its name is.
    marker::write(partial, &identity.clone().at(seq))
}

/// Refuses a copy inside its store, because it would be moved or removed with the store; and a store inside the copy.
///
/// # Errors
/// `FixInput` if one directory is inside the other; I/O errors of resolving the store's directory.
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

/// Returns the future path of `dir`: the nearest directory above it that exists, without links, and the names below
/// that one.
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

/// Returns the path `DIR.partial`. It is next to `dir`, so that the rename stays within one file system.
fn partial(dir: &Path) -> Result<PathBuf> {
    let name = dir.file_name().ok_or_else(|| {
        Error::new(ErrorKind::FixInput, format!("not the name of a directory: dir={}: name another", dir.display()))
    })?;
    let mut name = OsString::from(name);
    name.push(".partial");
    Ok(dir.with_file_name(name))
}

/// Makes every file and name below `dir` durable, because engines differ in which parts of a copy they sync.
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
