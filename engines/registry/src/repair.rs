//! Makes a damaged store sound again.
//!
//! Owns: the lock during a repair, and the choice of the engine's repair. Threads: none of its own.

use std::path::Path;

use bytesize::ByteSize;
use engine_api::{Code, Error, Repaired, Result};

use crate::directory::{DATA, names_of_files};
use crate::engine::{effective, open_engine};
use crate::list::EngineKind;
use crate::lock::DirLock;
use crate::marker::{self, Identity};
use crate::memory::MEMORY_MIN;
use crate::options::EngineOptions;
use crate::process;
use crate::standing;

/// Makes the store in `dir` sound again, as far as its engine can. Only strata can.
///
/// # Errors
/// `FixInput` if there is no store, its files are gone, or its engine has no repair; `DataDamaged` if the store has a
/// lower seq than its marker, and none of the files with the newest changes is there; `Retry` if a process has it open;
/// any error of the engine's repair.
pub fn repair(dir: &Path) -> Result<Repaired> {
    let Some(known) = marker::read(dir)? else { return Err(standing::no_store(dir)) };
    if names_of_files(dir)?.is_empty() {
        // Without files a repair would make an empty store, so refuse as an opening does.
        standing::check_files(dir, &known)?;
    }
    let _lock = DirLock::take(dir)?;
    process::raise_open_files();
    let data = dir.join(DATA);
    let repair = known.engine.descriptor().repair.ok_or_else(|| no_repair(known.engine, &data))?;
    let mut repaired = (repair.run)(&data)?;
    // An opening also replays the log, which may hold newer batches than the repair reports.
    let memory = Some(ByteSize::b(MEMORY_MIN));
    let options = EngineOptions { memory, ..EngineOptions::new(known.engine) };
    repaired.checkpoint = open_engine(&data, &effective(&options, Some(&known)), &known.holds)?.checkpoint()?;
    let found = repaired.checkpoint.seq;
    let missing = known.seq.filter(|seq| found < *seq);
    if let Some(seq) = missing {
        if repaired.findings.is_empty() {
            // The last record of a log may be torn without a detectable fault, so that the engine finds nothing. Or an
            // earlier repair was cut short before it wrote the marker.
            if !standing::has_log(dir, known.engine)? {
                standing::check_seq(dir, &known, found)?;
            }
            let ends = format!("the store ends with seq={found}, but its marker has seq={seq}");
            repaired.findings.push(format!("the newest changes are cut off or damaged: {ends}"));
        }
        let changes = format!("the changes from seq={} to seq={seq}", found + 1);
        (repair.remember_lost)(&data, &changes)?;
        repaired.lost.push(changes);
    }
    if missing.is_some() {
        // An operator who repairs a store accepts its state from now on.
        marker::write(dir, &Identity { seq: Some(found), ..known })?;
    }
    Ok(repaired)
}

/// Returns the number of losses that repairs of the store in `dir` have recorded. Lost keys are answered as absent, or
/// with an earlier value. The store has a file that describes each loss in a line.
///
/// # Errors
/// Any error of [`inspect`](crate::inspect), or of reading the list of losses.
pub fn lost(dir: &Path) -> Result<u64> {
    let repair = marker::read(dir)?.and_then(|known| known.engine.descriptor().repair);
    repair.map_or(Ok(0), |repair| Ok((repair.lost)(&dir.join(DATA))?.len() as u64))
}

fn no_repair(engine: EngineKind, data: &Path) -> Error {
    Error::wrong(
        Code::Engine,
        format!(
            "engine={engine} cannot be repaired by this build, which repairs only strata: dir={}: restore a copy, or \
             load the store again",
            data.display()
        ),
    )
}
