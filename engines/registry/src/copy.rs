//! Copies a store to a directory that is itself a store. The copy is made under another name, and renamed once all of
//! it is on the device.
//!
//! Owns: the copy's directory from its first file to its final name. Must not: know an engine, which decides itself
//! whether it links or copies a file. Runs on the thread that asks for the copy.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use engine_api::{Code, Engine, Error, ErrorKind, Result};

use crate::checked::{self, Found};
use crate::directory::{CONTRADICTION, DATA, DERIVED_COPY, names, new_dir, resolved, sync_parent};
use crate::hold::holder;
use crate::list::EngineKind;
use crate::lock::{self, DirLock, LOCK};
use crate::marker::{self, Identity, MARKER_TEMPORARY};
use crate::options::EngineOptions;

/// Entries, beside the lock, of a copy that was cut short; RocksDB has `data.tmp` while it copies. The marker is not among
/// them: a directory with one is a whole store. The lock is the first file that a copy makes, and the last one that is
/// removed.
const CUT_SHORT: [&str; 5] = [DATA, "data.tmp", CONTRADICTION, "contradiction.tmp", MARKER_TEMPORARY];

/// Writes the newest commit of `engine`, whose store is in `store`, to `dir`, which must be missing or empty. A crash
/// leaves `dir` unchanged and a directory `DIR.partial`, which is not a store and which the next copy to `dir` removes. A
/// failure removes that directory, too.
///
/// # Errors
/// `FixInput` if something is at `dir`, or one directory is inside the other; any error of [`remove_cut_short`];
/// `FreeSpace` if there is no room for the copy; otherwise errors of the engine's snapshot and I/O errors.
pub(crate) fn write(engine: &dyn Engine, identity: &Identity, store: &Path, dir: &Path) -> Result<()> {
    refuse_nested(store, dir)?;
    refuse_unless_empty(dir)?;
    remove_cut_short(dir)?;
    refuse_without_room(engine, identity.engine, store, dir)?;
    let partial = partial(dir)?;
    let shown = partial.display();
    partial.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| new_dir(&partial)).map_err(|e| {
        match e.kind() {
            Io::AlreadyExists => under_way(&partial),
            _ => Error::io(format!("cannot make the copy's directory: dir={shown} reason={e}"), e),
        }
    })?;
    // Held until the copy has its name: no process will finish a copy whose directory is not locked.
    let _lock = DirLock::take(&partial).map_err(|e| explain_lock(e, &partial))?;
    let made = fill(engine, identity, store, &partial).and_then(|()| {
        fs::rename(&partial, dir).map_err(|e| {
            Error::io(format!("cannot give the copy its name: from={shown} to={} reason={e}", dir.display()), e)
        })
    });
    if made.is_err() {
        // A partial copy is of no use. The first error is the one to report.
        let _ = remove(&partial);
    }
    made.and_then(|()| sync_parent(dir))
}

/// Removes the rest of a copy to `dir` that was cut short, and returns its directory; `None` if there is none.
///
/// # Errors
/// `Retry` if the copy is under way; `FixInput` if `DIR.partial` is not such a rest, or is a whole
/// store; I/O errors of looking at it or removing it.
pub fn remove_cut_short(dir: &Path) -> Result<Option<PathBuf>> {
    let partial = partial(dir)?;
    if fs::symlink_metadata(&partial).is_err_and(|e| e.kind() == Io::NotFound) {
        return Ok(None);
    }
    if holder(&partial)?.is_some() {
        return Err(under_way(&partial));
    }
    // Looked at before the lock is taken, because that would make a file in a directory of somebody else.
    let found = names(&partial)?;
    let is_locked = found.contains(LOCK) && lock::is_ours(&partial);
    if let Some(name) = found.iter().find(|name| !is_locked || *name != LOCK && !CUT_SHORT.contains(&name.as_str())) {
        let message = format!(
            "no copy that was cut short has left this: dir={} entry={name}: move it away, or name another place",
            partial.display()
        );
        return Err(Error::wrong(Code::Directory, message));
    }
    let lock = DirLock::take(&partial).map_err(|e| explain_lock(e, &partial))?;
    remove(&partial).map_err(|e| {
        Error::io(format!("cannot remove a copy that was cut short: dir={} reason={e}", partial.display()), e)
    })?;
    drop(lock);
    Ok(Some(partial))
}

/// Refuses a copy that its disk has no room for, before it fills the disk.
fn refuse_without_room(engine: &dyn Engine, kind: EngineKind, store: &Path, dir: &Path) -> Result<()> {
    let pairs = engine.stats()?.pairs_estimate;
    let needed_bytes = copy_bytes(kind, probe::is_same_disk(store, dir), probe::disk_bytes(&store.join(DATA)), pairs);
    match probe::space(dir) {
        Ok(space) if space.free_bytes < needed_bytes => {
            let message = format!(
                "not enough free disk for a copy: dir={} free_bytes={} needed_bytes={needed_bytes}: free space, or name a \
                 place on another disk",
                dir.display(),
                space.free_bytes
            );
            Err(Error::new(ErrorKind::FreeSpace, message))
        }
        // A place that cannot be asked is tried.
        _ => Ok(()),
    }
}

/// Returns the free space that a copy needs, `near` its store on one disk or not: none for links. An engine that copies pair by
/// pair writes no more than a load in key order takes. On the store's own disk its reserve is left free, too.
fn copy_bytes(kind: EngineKind, near: bool, store_bytes: u64, pairs: u64) -> u64 {
    let descriptor = kind.descriptor();
    match (descriptor.links_copies, near) {
        (true, true) => 0,
        (true, false) => store_bytes,
        (false, _) => {
            let reserve_bytes = if near { EngineOptions::new(kind).disk_reserve_bytes() } else { 0 };
            store_bytes.min(pairs.saturating_mul(descriptor.pair_bytes.sorted)) + reserve_bytes
        }
    }
}

/// Removes the directory of a copy whose lock is held. The lock file goes last, so that the rest of a removal which is
/// killed is recognised.
fn remove(partial: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(partial)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == LOCK => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_file(partial.join(LOCK))?;
    fs::remove_dir(partial)
}

/// Builds the error for a copy that another process makes.
fn under_way(partial: &Path) -> Error {
    let message = format!("a copy to this place is under way: dir={}: wait for its end", partial.display());
    Error::new(ErrorKind::Retry, message).with_code(Code::Lock)
}

fn explain_lock(error: Error, partial: &Path) -> Error {
    if error.kind() == ErrorKind::Retry { under_way(partial) } else { error }
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
    // The marker is written last, and is synced with its directory. So a directory with a marker is complete, whatever
    // its name is.
    marker::write(partial, &identity.clone().at(seq))
}

/// Refuses a copy inside its store, because it would be moved or removed with the store, other than the one that a derived store
/// is built of; and a store inside the copy.
///
/// # Errors
/// `FixInput` if one directory is inside the other; I/O errors of resolving the store's directory.
pub fn refuse_nested(store: &Path, dir: &Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::io(format!("cannot resolve the store's directory: dir={} reason={e}", store.display()), e)
    };
    let (store, place) = (store.canonicalize().map_err(failed)?, resolved(dir));
    let is_aside = !place.starts_with(&store) && !store.starts_with(&place);
    if is_aside || place == store.join(DERIVED_COPY) {
        return Ok(());
    }
    Err(Error::wrong(
        Code::Directory,
        format!(
            "a store and its copy need directories of their own: store={} copy={}: name a directory beside the store",
            store.display(),
            place.display()
        ),
    ))
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
        Some(why) => Err(Error::wrong(
            Code::Directory,
            format!("a copy needs a missing or empty directory: dir={} reason={why}: name another", dir.display()),
        )),
    }
}

/// Returns the path `DIR.partial`. It is next to `dir`, so that the rename stays within one file system.
fn partial(dir: &Path) -> Result<PathBuf> {
    let name = dir.file_name().ok_or_else(|| {
        Error::wrong(Code::Directory, format!("not the name of a directory: dir={}: name another", dir.display()))
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

#[cfg(all(test, feature = "strata", feature = "lmdb"))]
mod tests {
    use super::*;

    #[test]
    fn a_copy_needs_no_room_for_links_and_leaves_the_reserve_of_its_store() {
        let reserve_bytes = EngineOptions::new(EngineKind::Lmdb).disk_reserve_bytes();
        assert!(reserve_bytes > 0);
        assert_eq!(copy_bytes(EngineKind::Strata, true, 1 << 40, 1 << 30), 0);
        assert_eq!(copy_bytes(EngineKind::Strata, false, 1 << 40, 1 << 30), 1 << 40);
        assert_eq!(copy_bytes(EngineKind::Lmdb, true, 1 << 40, 100), 9000 + reserve_bytes, "free pages are not copied");
        assert_eq!(copy_bytes(EngineKind::Lmdb, false, 8000, 100), 8000);
    }
}
