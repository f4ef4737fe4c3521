//! A store's files as tests look at them: what they hold, and copies of them as a kill leaves them.
//!
//! Owns: reading and copying of whole directories. Must not: know which file is whose.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// Every name below `dir`, when it was changed, and what is in it: `None` for what is no file, such as a directory, or the
/// socket of a service that was killed.
///
/// # Panics
/// A file that goes meanwhile, or cannot be read.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Option<Vec<u8>>)> {
    let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).expect("a file that stays");
    let mut found = BTreeMap::from([(dir.to_owned(), (changed(dir), None))]);
    for entry in fs::read_dir(dir).expect("a directory that stays") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = path.is_file().then(|| fs::read(&path).expect("a file that stays"));
            found.insert(path.clone(), (changed(&path), bytes));
        }
    }
    found
}

/// A copy of the files while the store is open, as a kill leaves them. A file that the engine removes meanwhile was not part
/// of that state: then the copy is made again.
///
/// # Panics
/// The file system's errors.
pub fn copy_as_killed(from: &Path, to: &Path) {
    loop {
        match copy(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir_all(to).expect("removed"),
            copied => return copied.expect("copied"),
        }
    }
}

/// A copy of the directory, which `to` must not be yet.
///
/// # Errors
/// The file system's.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}
