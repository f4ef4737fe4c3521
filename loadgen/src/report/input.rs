//! Result files, ready to be compared.
//!
//! Owns: which files make no report. Must not: judge the figures. Runs on the caller's thread.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::result::{self, Record};

/// The records of `files`, in the order given. A file without any is an error, and so is a run that is there twice.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for file in files {
        let read = result::read(file)?;
        ensure!(!read.is_empty(), "no result in it: file={}", file.display());
        for record in read {
            // A run counted twice would pass for a repeat that agrees perfectly.
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
