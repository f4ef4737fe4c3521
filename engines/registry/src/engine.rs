//! The engine in a store's directory: the options that it gets, its opening for reading alone, and the remedies for
//! damage.
//!
//! Owns: the options that a store remembers. Must not: check the directory or take its lock. Runs on the thread that
//! opens the store.

use std::path::Path;

use engine_api::{Engine, Error, ErrorKind, Result};

use crate::list::EngineKind;
use crate::marker::Identity;
use crate::options::EngineOptions;

/// Adds the options that the store remembers or the profile implies.
pub(crate) fn effective(options: &EngineOptions, known: Option<&Identity>) -> EngineOptions {
    let mut options = options.clone();
    if options.takes("bloom") && options.bloom.is_none() {
        options.bloom = match known {
            // The filter may also be none, if that was chosen for this profile.
            Some(known) if known.bloom > 0 || known.profile == options.profile => Some(known.bloom),
            _ => Some(options.share().bloom_bits),
        };
    }
    options
}

/// Opens the engine whose files are in `data` for reading alone.
pub(crate) fn open_engine(data: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    (options.engine.descriptor().open_read_only)(data, &options.settings())
}

/// Adds the possible remedies to the error of an engine that cannot open its damaged files.
pub(crate) fn with_way_out(dir: &Path, engine: EngineKind, error: Error) -> Error {
    let said = error.to_string();
    if error.kind() != ErrorKind::DataDamaged
        || engine.descriptor().repair.is_none()
        || said.contains("bootstrap repair")
    {
        return error;
    }
    let way_out = format!(
        "restore a snapshot, or try `bootstrap repair --dir {}`, which keeps all that can be read",
        dir.display()
    );
    Error::with_source(ErrorKind::DataDamaged, format!("{said}: {way_out}"), error)
}
