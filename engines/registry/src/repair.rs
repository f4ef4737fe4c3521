//! Making a store whole again that is damaged.
//!
//! Owns: the lock while it is done, and which engines can. Threads: none of its own.

use std::path::Path;

use engine_api::{Error, ErrorKind, Result};

use crate::lock::DirLock;
use crate::marker;
use crate::options::EngineKind;
use crate::store::{DATA, no_store};

/// What a repair has found and done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What was wrong and what was done about it, a line each. Empty: all was in order, and nothing was changed.
    pub findings: Vec<String>,
    /// What is lost or may be, a line each.
    pub lost: Vec<String>,
    /// The number of the newest change that the store stands for now, but for what is lost.
    pub seq: u64,
}

/// Makes the store in `dir` whole again, as far as its engine can: strata alone.
///
/// # Errors
/// `FixInput`: there is no store, or its engine has no repair. `Retry`: it is open somewhere. The engine's.
pub fn repair(dir: &Path) -> Result<Repaired> {
    let Some(known) = marker::read(dir)? else { return Err(no_store(dir)) };
    let _lock = DirLock::take(dir)?;
    crate::store::raise_open_files();
    by_engine(known.engine, &dir.join(DATA))
}

fn by_engine(engine: EngineKind, data: &Path) -> Result<Repaired> {
    match engine {
        #[cfg(feature = "strata")]
        EngineKind::Strata => {
            let engine_strata::Repaired { findings, lost, checkpoint } = engine_strata::StrataEngine::repair(data)?;
            Ok(Repaired { findings, lost, seq: checkpoint.seq })
        }
        engine => Err(Error::new(
            ErrorKind::FixInput,
            format!(
                "engine={engine} cannot be repaired by this build: dir={}: go back to a copy, or load the store anew",
                data.display()
            ),
        )),
    }
}
