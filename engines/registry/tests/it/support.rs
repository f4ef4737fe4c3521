//! A store's files as the tests look at them: what they hold, and copies of them as a kill leaves them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// Every name below `dir`, what is in it, and when it was changed.
pub(crate) fn contents(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Option<Vec<u8>>)> {
    let mut found = BTreeMap::new();
    let changed = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    found.insert(dir.to_owned(), (changed(dir), None));
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path.clone(), (changed(&path), Some(bytes)));
        }
    }
    found
}

/// As a kill leaves it: a copy of the files while the store is open. A file that the engine removes meanwhile was not part of
/// that state: then the copy is made again.
pub(crate) fn copy_as_killed(from: &Path, to: &Path) {
    loop {
        match copy_files(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir_all(to).unwrap(),
            copied => return copied.unwrap(),
        }
    }
}

pub(crate) fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            copy_files(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}
