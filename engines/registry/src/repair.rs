//! Making a store whole again that is damaged.
//!
//! Owns: the lock while it is done, and which engines can. Threads: none of its own.

use std::path::Path;

use engine_api::{Error, ErrorKind, Result};

use crate::lock::DirLock;
use crate::marker;
use crate::options::EngineKind;
use crate::standing;
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
/// `FixInput`: there is no store, its files are gone, or its engine has no repair. `DataDamaged`: nothing is damaged, and
/// the store stands before its marker. `Retry`: it is open somewhere. The engine's.
pub fn repair(dir: &Path) -> Result<Repaired> {
    let Some(known) = marker::read(dir)? else { return Err(no_store(dir)) };
    if standing::names(dir)?.is_empty() {
        // There is nothing to make whole, and an empty store is what repairing would make.
        standing::check_files(dir, &known)?;
    }
    let _lock = DirLock::take(dir)?;
    crate::store::raise_open_files();
    let mut repaired = by_engine(known.engine, &dir.join(DATA))?;
    let (Some(seq), false) = (known.seq.filter(|seq| repaired.seq < *seq), repaired.findings.is_empty()) else {
        standing::check_seq(dir, &known, repaired.seq)?;
        return Ok(repaired);
    };
    repaired.lost.push(format!("the changes from seq={} to seq={seq}", repaired.seq + 1));
    // Whoever repairs a store takes it as it is from now on.
    marker::write(dir, &known.at(repaired.seq))?;
    Ok(repaired)
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
