//! The working directory of an audit: its lock, the copy of a live store, and the sorted archive.
//!
//! Owns: these files, also those that a killed audit has left. Must not: touch a file that no audit has made, or a copy
//! that the service may still be writing. Runs on the main thread.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind as Io, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};

use crate::admin::backup;
use crate::base::failed::Failed;

/// File that marks the directory and is locked while an audit runs.
const LOCK: &str = "LOCK";
/// Content of the lock file.
const MARK: &str = "the working directory of an audit\n";
/// Directory of the sorted archive.
const SORT: &str = "sort";
/// Beginning of a copy's name; a number follows.
const COPY: &str = "copy-";
/// End of a copy's name while it is made.
const PARTIAL: &str = ".partial";
/// Mode of the directory, whose copy holds the store's pairs.
const DIR_MODE: u32 = 0o700;

/// A working directory, locked while it exists.
pub(super) struct Workplace {
    dir: PathBuf,
    /// Released by the closing of the file.
    _lock: File,
}

impl Workplace {
    /// Makes `dir`, or takes over one that an earlier audit has left.
    ///
    /// # Errors
    /// [`Failed::wrong`] if the directory holds other files; another audit uses it; I/O errors.
    pub(super) fn open(dir: &Path) -> Result<Self, Failed> {
        let dir = std::path::absolute(dir).with_context(|| format!("cannot name dir={}", dir.display()))?;
        let failed =
            || format!("cannot make the working directory: dir={}: name another with --work-dir", dir.display());
        match fs::DirBuilder::new().mode(DIR_MODE).create(&dir) {
            Err(error) if error.kind() != Io::AlreadyExists => return Err(anyhow!(error).context(failed()).into()),
            _ => {}
        }
        let path = dir.join(LOCK);
        if !is_marked(&path) && names(&dir)?.iter().any(|name| name != LOCK) {
            return Err(Failed::wrong(anyhow!(
                "the working directory holds other files: dir={}: name an empty one with --work-dir",
                dir.display()
            )));
        }
        let mut lock =
            File::options().create(true).truncate(false).read(true).write(true).open(&path).with_context(failed)?;
        let in_use = || anyhow!("another audit is running: work_dir={}: wait for its end", dir.display());
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use().into()),
            Err(TryLockError::Error(error)) => return Err(anyhow!(error).context(failed()).into()),
        }
        // The audit that held the lock a moment ago may have removed the file.
        let same = fs::metadata(&path).ok().zip(lock.metadata().ok()).is_some_and(|(a, b)| a.ino() == b.ino());
        if !same {
            return Err(in_use().into());
        }
        lock.set_len(0).and_then(|()| lock.write_all(MARK.as_bytes())).with_context(failed)?;
        Ok(Self { dir, _lock: lock })
    }

    /// Directory for the sorted archive.
    pub(super) fn sort_dir(&self) -> PathBuf {
        self.dir.join(SORT)
    }

    /// Has the running service copy its store. Returns the copy's directory, or `None` if no service runs.
    ///
    /// # Errors
    /// The service cannot be reached or refuses; I/O errors of removing an earlier copy.
    pub(super) fn copy(&self, store: &Path) -> Result<Option<PathBuf>> {
        self.remove(|name| is_copy(name) && !name.ends_with(PARTIAL))?;
        // The service may still be making a copy for an audit that was killed. Its name stays free.
        let taken = names(&self.dir)?;
        let is_free = |name: &String| !taken.iter().any(|other| other.strip_suffix(PARTIAL) == Some(name));
        let free = (1..).map(|number: u64| format!("{COPY}{number}")).find(is_free);
        let copy = self.dir.join(free.unwrap_or_default());
        let made = backup::by_service(store, &copy)?;
        // The service makes one copy at a time, so no other one is under way now.
        self.remove(|name| is_copy(name) && name.ends_with(PARTIAL))?;
        Ok(made.then_some(copy))
    }

    /// Removes the copy, and the directory unless a sorted archive is kept in it.
    pub(super) fn clean(self) {
        let removed = self.remove(|name| is_copy(name) && !name.ends_with(PARTIAL)).and_then(|()| {
            if names(&self.dir)?.iter().all(|name| name == LOCK) {
                fs::remove_file(self.dir.join(LOCK))?;
                fs::remove_dir(&self.dir)?;
            }
            Ok(())
        });
        if let Err(error) = removed {
            let dir = self.dir.display();
            program::tell!("cannot clean up: {error:#}: the next audit does, or remove work_dir={dir} by hand");
        }
    }

    fn remove(&self, is_gone: impl Fn(&str) -> bool) -> Result<()> {
        for name in names(&self.dir)?.into_iter().filter(|name| is_gone(name)) {
            let path = self.dir.join(name);
            fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove an audit's copy: dir={}", path.display()))?;
        }
        Ok(())
    }
}

fn is_copy(name: &str) -> bool {
    let number = name.strip_suffix(PARTIAL).unwrap_or(name).strip_prefix(COPY);
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

fn is_marked(lock: &Path) -> bool {
    fs::read(lock).is_ok_and(|content| content == MARK.as_bytes())
}

/// Returns the names of the directory's entries. A name that is not UTF-8 is shown with replacement characters, and is
/// none of an audit's.
fn names(dir: &Path) -> Result<Vec<String>> {
    let list = || -> std::io::Result<Vec<String>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    list().map_err(|error| anyhow!(error).context(format!("cannot list dir={}", dir.display())))
}
