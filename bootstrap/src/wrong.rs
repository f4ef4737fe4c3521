//! What no other attempt can mend: arguments that do not go together, options of another engine, a limit that is too small.
//!
//! Owns: the type by which `cli` tells it from every other error. Must not: stand for what a store, a file or a disk says,
//! because those may be others at the next attempt.

use std::fmt;
use std::path::Path;

use anyhow::{Error, Result};
use engine_api::words;
use engines::{EngineArgs, EngineOptions};

/// The same command will fail each time. Its exit code is 2, after which a service manager does not start it again.
#[derive(Debug)]
pub(crate) struct Wrong(String);

impl Wrong {
    /// An error of `message`, which names the way out.
    pub(crate) fn error(message: impl Into<String>) -> Error {
        Error::new(Self(message.into()))
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// The engine's options for the store in `dir`, new or not.
///
/// # Errors
/// [`Wrong`] for an option of another engine, a value that no engine takes, and an engine that this build lacks; the
/// directory's own.
pub(crate) fn options_for(dir: &Path, args: &EngineArgs) -> Result<EngineOptions> {
    // What the directory has to say comes from here.
    engines::inspect(dir)?;
    let options = engines::options_for(dir, args).map_err(|error| Wrong::error(words(&error)))?;
    engines::refuse_unless_compiled(options.engine).map_err(|error| Wrong::error(words(&error)))?;
    Ok(options)
}
