//! The place of an open store's files: whether their names still lead to the files that the engine has open.
//!
//! Owns: the refusal of commits into files that were removed or replaced, which a B-tree would go on writing to until it is
//! closed, and nobody would find again. Must not: look at the content of a file. Runs on the thread that writes.

use std::fs::{self, Metadata};
use std::io::ErrorKind as Io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use engine_api::{Error, ErrorKind, Result};

use crate::directory::DATA;
use crate::list::EngineKind;

/// Device and number of a file.
type Id = (u64, u64);

/// The engine's directory and its main file, as they were when the store was opened.
pub(crate) struct Place {
    data: (PathBuf, Id),
    /// The number is `None` for engines that replace their main file.
    main: (PathBuf, Option<Id>),
}

impl Place {
    /// Notes where the files of the store in `dir` are, which has just been opened.
    ///
    /// # Errors
    /// I/O errors of looking at them.
    pub(crate) fn of(dir: &Path, engine: EngineKind) -> Result<Self> {
        let descriptor = engine.descriptor();
        let data = dir.join(DATA);
        let main = data.join(descriptor.main_file);
        let look = |path: &Path| {
            fs::metadata(path)
                .map(|found| id(&found))
                .map_err(|e| Error::io(format!("cannot look at file={} reason={e}", path.display()), e))
        };
        let (data_id, main_id) = (look(&data)?, look(&main)?);
        // An engine without logs has all of its pairs in that one file.
        let is_kept = descriptor.log_ending.is_none();
        Ok(Self { data: (data, data_id), main: (main, is_kept.then_some(main_id)) })
    }

    /// Checks that the files are still there. It costs two calls of the kernel.
    ///
    /// # Errors
    /// `FixInput` if the directory or the main file was removed, or another one is in its place. If a look at either
    /// fails for another reason, the engine meets the same trouble, and says more.
    pub(crate) fn check(&self) -> Result<()> {
        let (data, main) = (&self.data, &self.main);
        for (path, id_then) in [(&data.0, Some(data.1)), (&main.0, main.1)] {
            let found = match fs::metadata(path) {
                Ok(found) if id_then.is_none_or(|then| then == id(&found)) => continue,
                Ok(_) => "another one is in its place",
                Err(e) if [Io::NotFound, Io::NotADirectory].contains(&e.kind()) => "it is gone",
                Err(_) => continue,
            };
            let message = format!(
                "the store's files were moved or removed while it is open: file={}: {found}: nothing more is committed, \
                 because it would be lost at the next start: put the files back and start again, or restore a snapshot",
                path.display()
            );
            return Err(Error::new(ErrorKind::FixInput, message));
        }
        Ok(())
    }
}

fn id(found: &Metadata) -> Id {
    (found.dev(), found.ino())
}
