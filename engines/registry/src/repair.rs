//! Making a store whole again that is damaged.
//!
//! Owns: the lock while it is done, and which engines can. Threads: none of its own.

use std::path::Path;

use bytesize::ByteSize;
use engine_api::{Checkpoint, Error, ErrorKind, Result};

use crate::lock::DirLock;
use crate::marker::{self, Identity};
use crate::memory::MEMORY_MIN;
use crate::options::{EngineKind, EngineOptions};
use crate::process;
use crate::read_only;
use crate::standing;
use crate::store::{DATA, no_store};

/// What a repair has found and done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What was wrong and what was done about it, a line each. Empty: all was in order, and nothing was changed.
    pub findings: Vec<String>,
    /// What is lost or may be, a line each.
    pub lost: Vec<String>,
    /// Where the store stands now, but for what is lost.
    pub checkpoint: Checkpoint,
}

/// Makes the store in `dir` whole again, as far as its engine can: strata alone.
///
/// # Errors
/// `FixInput`: there is no store, its files are gone, or its engine has no repair. `DataDamaged`: the store stands before
/// its marker, and none of the files is there that hold the newest changes. `Retry`: it is open somewhere. The engine's.
pub fn repair(dir: &Path) -> Result<Repaired> {
    let Some(known) = marker::read(dir)? else { return Err(no_store(dir)) };
    if standing::names(dir)?.is_empty() {
        // There is nothing to make whole, and an empty store is what repairing would make.
        standing::check_files(dir, &known)?;
    }
    let _lock = DirLock::take(dir)?;
    process::raise_open_files();
    let data = dir.join(DATA);
    let mut repaired = by_engine(known.engine, &data)?;
    // The log may hold more than the files that a repair goes by.
    let memory = Some(ByteSize::b(MEMORY_MIN));
    let options = EngineOptions { profile: known.profile, memory, ..EngineOptions::new(known.engine) };
    repaired.checkpoint = read_only::open_engine(&data, &options)?.checkpoint()?;
    let found = repaired.checkpoint.seq;
    let missing = known.seq.filter(|seq| found < *seq);
    if let Some(seq) = missing {
        if repaired.findings.is_empty() {
            // The last record of a log may be torn without any fault, so that the engine finds none. Or a repair was cut
            // before it came to the marker.
            if !standing::has_log(dir, known.engine)? {
                standing::check_seq(dir, &known, found)?;
            }
            let ends = format!("the store ends with seq={found}, and its marker says seq={seq}");
            repaired.findings.push(format!("the newest changes are cut off or damaged: {ends}"));
        }
        let changes = format!("the changes from seq={} to seq={seq}", found + 1);
        remember(known.engine, &data, &changes)?;
        repaired.lost.push(changes);
    }
    if missing.is_some() {
        // Whoever repairs a store takes it as it is from now on.
        marker::write(dir, &Identity { seq: Some(found), ..known })?;
    }
    Ok(repaired)
}

/// How many things repairs have named that the store in `dir` has lost, or may have. Keys that are lost are answered as
/// absent, or with the value before. What it was stands in the store, a line each.
///
/// # Errors
/// Those of reading.
pub fn lost(dir: &Path) -> Result<u64> {
    match marker::read(dir)?.map(|known| known.engine) {
        #[cfg(feature = "strata")]
        Some(EngineKind::Strata) => Ok(engine_strata::StrataEngine::lost(&dir.join(DATA))?.len() as u64),
        _ => Ok(0),
    }
}

/// Writes down in the store what is lost, before the marker stops refusing it.
#[cfg_attr(not(feature = "strata"), allow(unused_variables, reason = "only strata is repaired"))]
fn remember(engine: EngineKind, data: &Path, lost: &str) -> Result<()> {
    match engine {
        #[cfg(feature = "strata")]
        EngineKind::Strata => engine_strata::StrataEngine::remember_lost(data, lost),
        _ => Ok(()),
    }
}

fn by_engine(engine: EngineKind, data: &Path) -> Result<Repaired> {
    match engine {
        #[cfg(feature = "strata")]
        EngineKind::Strata => {
            let engine_strata::Repaired { findings, lost, checkpoint } = engine_strata::StrataEngine::repair(data)?;
            Ok(Repaired { findings, lost, checkpoint })
        }
        engine => Err(Error::new(
            ErrorKind::FixInput,
            format!(
                "engine={engine} cannot be repaired by this build, which repairs strata alone: dir={}: go back to a copy, or \
                 load the store anew",
                data.display()
            ),
        )),
    }
}
