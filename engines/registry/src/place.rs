//! The place of an open store's files: whether their names still lead to the files that the engine has open.
//!
//! Owns: the refusal of commits into files that were removed or replaced, which a B-tree would go on writing to until it is
//! closed, and which no opening would find again. Must not: look at the content of a file. Runs on the thread that writes.

use std::fs::{self, Metadata};
use std::io::ErrorKind as Io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use engine_api::{Code, Error, Result};

use crate::directory::DATA;
use crate::list::EngineKind;

/// A file or directory that every name of the store's pairs leads through, as it was when the store was opened.
pub(crate) struct Place {
    path: PathBuf,
    id: Id,
}

/// Device and number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64, u64);

impl Id {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self(found.dev(), found.ino())
    }
}

impl Place {
    /// Notes where the files of the store in `dir` are, which has just been opened: the main file of an engine that has all of
    /// its pairs in it, and the directory of one that replaces its files.
    ///
    /// # Errors
    /// I/O errors of looking there.
    pub(crate) fn of(dir: &Path, engine: EngineKind) -> Result<Self> {
        let descriptor = engine.descriptor();
        let data = dir.join(DATA);
        let has_one_file = descriptor.log_ending.is_none();
        let path = if has_one_file { data.join(descriptor.main_file) } else { data };
        let failed = |e| Error::io(format!("cannot look at file={} reason={e}", path.display()), e);
        let id = Id::of(&fs::metadata(&path).map_err(failed)?);
        Ok(Self { path, id })
    }

    /// Checks that the files are still there. It costs one call of the kernel.
    ///
    /// # Errors
    /// `FixInput` if they are gone, or others are in their place. If the look fails for another reason, the engine meets
    /// the same trouble, and says more.
    pub(crate) fn check(&self) -> Result<()> {
        let found = match fs::metadata(&self.path) {
            Ok(found) if self.id == Id::of(&found) => return Ok(()),
            Ok(_) => "another one is in its place",
            Err(e) if [Io::NotFound, Io::NotADirectory].contains(&e.kind()) => "it is gone",
            Err(_) => return Ok(()),
        };
        let message = format!(
            "the store's files were moved or removed while it is open: file={}: {found}: nothing more is committed, because \
             it would be lost at the next start: put the files back and start again, or restore a snapshot",
            self.path.display()
        );
        Err(Error::wrong(Code::Directory, message))
    }
}
