//! Result files, read and ready to be compared.
//!
//! Owns: which files make no report, and the names of engines. Must not: judge the figures. Runs on the caller's
//! thread.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::result::{self, Record};

/// Reads the records of `files` in the given order, and names their engines. Repeats are counted on from one file to the next,
/// because runs of two files took no turns. A file without records is an error, and so is a run that appears twice.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Vec<Record>> {
    let mut read: Vec<Vec<Record>> = Vec::new();
    for file in files {
        let records = read_one(file)?;
        let known = || read.iter().flatten();
        records.iter().try_for_each(|record| refuse_known(record, known(), file))?;
        read.push(records);
    }
    let mut first = 0;
    for records in &mut read {
        records.iter_mut().for_each(|record| record.repeat = record.repeat.saturating_add(first));
        first = records.iter().map(|record| record.repeat.saturating_add(1)).max().unwrap_or(first);
    }
    let mut records: Vec<Record> = read.into_iter().flatten().collect();
    name_engines(&mut records.iter_mut().collect::<Vec<_>>());
    Ok(records)
}

/// Reads the records of one file, and leaves the engines' labels as names. A file without records is an error, and so is a run that
/// appears twice.
pub(crate) fn read_one(file: &Path) -> Result<Vec<Record>> {
    let mut records = result::read(file)?;
    // Older files have the mean of each batch, once for each of its keys: it is not the latency of any of them.
    let is_mean = |op: &str| op.starts_with("read_") && op.ends_with("_per_item");
    records.iter_mut().for_each(|record| record.curves.retain(|curve| !is_mean(&curve.op)));
    ensure!(!records.is_empty(), "no result in it: file={}", file.display());
    for (at, record) in records.iter().enumerate() {
        refuse_known(record, records[..at].iter(), file)?;
    }
    Ok(records)
}

/// Refuses a run that is among the others: counted twice, it would look like a repeat that agrees perfectly.
fn refuse_known<'a>(record: &Record, mut others: impl Iterator<Item = &'a Record>, file: &Path) -> Result<()> {
    ensure!(
        !others.any(|other| other == record),
        "a run is there twice: file={} scenario={} engine={} repeat={}",
        file.display(),
        record.scenario,
        record.engine,
        record.repeat
    );
    Ok(())
}

/// Names each engine by its label. If a label stands for several sets of options, the name is the whole engine line.
/// Runs with different options are not repeats of each other.
pub(crate) fn name_engines(records: &mut [&mut Record]) {
    let mut lines: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for record in records.iter() {
        lines.entry(record.engine.clone()).or_default().extend(record.engine_line.clone());
    }
    for record in records {
        if lines.get(&record.engine).is_some_and(|lines| lines.len() > 1) {
            record.engine = record.engine_line.clone().unwrap_or_else(|| record.engine.clone());
        }
    }
}
