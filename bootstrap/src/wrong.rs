//! Mistakes that a new attempt cannot cure: contradictory arguments, options of another engine, a limit that is too
//! small.
//!
//! Owns: the error type by which `cli` tells these from all others. Must not: be used for errors of a store, a file or
//! a disk, because those may be gone at the next attempt.

use std::fmt;
use std::path::Path;

use anyhow::{Error, Result};
use engine_api::words;
use engines::{EngineArgs, EngineOptions};

/// The same command would fail each time. Its exit code is 2, after which a service manager does not restart it.
#[derive(Debug)]
pub struct Wrong(String);

impl Wrong {
    /// Makes an error of `message`, which has to name the way out.
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

/// Resolves the engine's options for the store in `dir`, which may not exist yet.
///
/// # Errors
/// [`Wrong`] for an option of another engine, a value that no engine takes, and an engine that this build lacks. An
/// unreadable or damaged marker gives an error of its own kind.
pub(crate) fn options_for(dir: &Path, args: &EngineArgs) -> Result<EngineOptions> {
    // Errors of the directory itself come from here, so that they do not become `Wrong`.
    engines::inspect(dir)?;
    let options = engines::options_for(dir, args).map_err(|error| Wrong::error(words(&error)))?;
    engines::refuse_unless_compiled(options.engine).map_err(|error| Wrong::error(words(&error)))?;
    Ok(options)
}
