//! A store's files as tests compare them: their content, and copies of them as a kill leaves them.
//!
//! Owns: reading and copying whole directories. Must not: know which file belongs to whom.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// Returns every path below `dir` with its time of change and its content. The content is `None` if the path is not a
/// regular file, such as a directory or the socket of a service that was killed.
///
/// # Panics
/// If a file disappears meanwhile, or cannot be read.
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

/// Copies the files of an open store, as a kill would leave them. If the engine removes a file meanwhile, that file was
/// not part of the state, and the copy is made again.
///
/// # Panics
/// On any other I/O error.
pub fn copy_as_killed(from: &Path, to: &Path) {
    loop {
        match copy(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir_all(to).expect("removed"),
            copied => return copied.expect("copied"),
        }
    }
}

/// Copies the directory `from` to `to`, which must not exist yet.
///
/// # Errors
/// I/O errors of creating, listing or copying.
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
