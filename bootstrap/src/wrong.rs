//! Mistakes that a new attempt cannot cure: contradictory arguments, options of another engine, a limit that is too
//! small.
//!
//! Owns: the error type by which `cli` tells these from all others. Must not: be used for errors of a store, a file or
//! a disk, because those may be gone at the next attempt.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

use anyhow::{Error, Result};
use engine_api::Code;
use engines::{EngineArgs, EngineOptions};

/// The same command would fail each time. Its exit code is 2, after which a service manager does not restart it.
#[derive(Debug)]
pub struct Wrong {
    message: String,
    cause: Box<dyn StdError + Send + Sync>,
}

impl Wrong {
    /// Makes an error of `message`, which has to name the way out.
    pub(crate) fn error(code: Code, message: impl Into<String>) -> Error {
        Error::new(Self { message: message.into(), cause: code.into() })
    }

    /// Makes an error with the code and the message of `cause`.
    fn of(cause: engine_api::Error) -> Error {
        Error::new(Self { message: cause.to_string(), cause: cause.into() })
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Wrong {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.cause)
    }
}

/// Resolves the engine's options for the store in `dir`, which may not exist yet.
///
/// # Errors
/// [`Wrong`] for an option of another engine, a value that no engine takes, and an engine that this build lacks. An
/// unreadable or damaged marker gives an error of its own kind.
pub(crate) fn options_for(dir: &Path, args: &EngineArgs) -> Result<EngineOptions> {
    // Errors of the directory itself come from here, so that they do not become `Wrong`.
    engines::inspect(dir)?;
    let options = engines::options_for(dir, args).map_err(Wrong::of)?;
    engines::refuse_unless_compiled(options.engine).map_err(Wrong::of)?;
    Ok(options)
}
