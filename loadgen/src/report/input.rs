//! Result files, read and ready to be compared.
//!
//! Owns: which files make no report, and the names of engines. Must not: judge the figures. Runs on the caller's
//! thread.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::result::{self, Record};

/// Reads the records of `files` in the given order, and names their engines. A file without records is an error, and so
/// is a run that appears twice.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Vec<Record>> {
    let mut records = read_each(files)?;
    name_engines(&mut records.iter_mut().collect::<Vec<_>>());
    Ok(records)
}

/// Reads the records as [`read_all`] does, but leaves the engines' labels as names.
pub(crate) fn read_each(files: &[PathBuf]) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for file in files {
        let read = result::read(file)?;
        ensure!(!read.is_empty(), "no result in it: file={}", file.display());
        for record in read {
            // A run counted twice would look like a repeat that agrees perfectly.
            ensure!(
                !records.contains(&record),
                "a run is there twice: file={} scenario={} engine={} repeat={}",
                file.display(),
                record.scenario,
                record.engine,
                record.repeat
            );
            records.push(record);
        }
    }
    Ok(records)
}

/// Names each engine by its label. If a label stands for several sets of options, the name is the whole engine line.
/// Runs with different options are not repeats of each other.
pub(crate) fn name_engines(records: &mut [&mut Record]) {
    let mut lines: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for record in records.iter() {
        lines.entry(record.engine.clone()).or_default().extend(record.engine_asked_for());
    }
    for record in records {
        if lines.get(&record.engine).is_some_and(|lines| lines.len() > 1) {
            record.engine = record.engine_asked_for().unwrap_or_else(|| record.engine.clone());
        }
    }
}
