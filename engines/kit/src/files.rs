//! Files and directories of a store: their sizes, their durable names, and a copy that is complete or absent.
//!
//! Owns: the wording of the errors. Must not: open a file of a store. Runs on the caller's thread.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use engine_api::{Error, Result};

/// Creates the directory of a store, and those above it, unless it exists.
pub fn create_dir(dir: &Path) -> Result<()> {
    let failed =
        |e: io::Error| Error::io(format!("cannot create the store's directory: dir={} reason={e}", dir.display()), e);
    fs::create_dir_all(dir).map_err(failed)
}

/// Makes the names in `dir` durable.
pub fn sync_dir(dir: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::io(format!("cannot flush the directory: dir={} reason={e}", dir.display()), e);
    File::open(dir).and_then(|opened| opened.sync_all()).map_err(failed)
}

pub fn metadata(file: &Path) -> Result<Metadata> {
    fs::metadata(file).map_err(|e| Error::io(format!("cannot look at file={} reason={e}", file.display()), e))
}

/// Returns the bytes that a file takes on the device, which are fewer than its length if it has holes.
pub fn allocated_bytes(file: &Metadata) -> u64 {
    // st_blocks counts 512 bytes whatever the file system's block size is.
    file.blocks() * 512
}

/// Returns the allocated bytes of the files in `dir` and below.
pub fn disk_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += disk_bytes(&entry.path())?,
            Ok(found) => bytes += allocated_bytes(&found),
            // The engine has removed the file since it was listed.
            Err(e) if e.kind() == Io::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}

/// Returns the bytes that the file system of `dir` has free for this process.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(dir)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Creates the directory `dir`, has `copy` fill it, and makes its name durable. If anything fails, the directory is
/// removed, because a partial copy is of no use.
///
/// # Errors
/// `FixInput` if `dir` exists already, and the errors of `copy`.
pub fn copy_to_new(dir: &Path, copy: impl FnOnce() -> Result<()>) -> Result<()> {
    let refused = |e: io::Error| {
        let message = format!("snapshot needs a directory that does not exist yet: dir={} reason={e}", dir.display());
        Error::io(message, e)
    };
    fs::create_dir(dir).map_err(refused)?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let copied = copy().and_then(|()| sync_dir(parent));
    if copied.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(dir);
    }
    copied
}

#[cfg(test)]
mod tests {
    use engine_api::ErrorKind;

    use super::*;

    #[test]
    fn the_size_counts_subdirectories_and_no_holes() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("whole"), [1; 8192]).unwrap();
        File::create(dir.path().join("hole")).unwrap().set_len(1 << 30).unwrap();
        let bytes = disk_bytes(dir.path()).unwrap();
        assert!((8192..1 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_failed_copy_leaves_no_directory_and_an_existing_one_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("copy");
        let fail = || {
            fs::write(target.join("part"), b"half").unwrap();
            Err(Error::new(ErrorKind::FreeSpace, "full"))
        };
        assert_eq!(copy_to_new(&target, fail).unwrap_err().kind(), ErrorKind::FreeSpace);
        assert!(!target.exists());
        copy_to_new(&target, || Ok(())).unwrap();
        let refused = copy_to_new(&target, || unreachable!("the directory exists"));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::FixInput);
        assert!(target.exists());
    }
}
