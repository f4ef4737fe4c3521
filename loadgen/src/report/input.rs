//! Result files read back: one [`Record`] a line.
//!
//! Owns: what is refused, and the words that say where. Must not: judge the figures. Runs on the caller's thread.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::result::{Record, SCHEMA_VERSION};

/// All that is asked of a line before its format is known.
#[derive(Deserialize)]
struct Versioned {
    schema: u32,
}

/// The records of `files`, in the order given. A run that is there twice is an error.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for file in files {
        for record in read(file)? {
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

/// The records of `file`; a file without any is an error.
fn read(file: &Path) -> Result<Vec<Record>> {
    let name = file.display();
    let reader = BufReader::new(File::open(file).with_context(|| format!("cannot read results: file={name}"))?);
    let mut records = Vec::new();
    for (at, line) in reader.lines().enumerate() {
        let at = at + 1;
        let line = line.with_context(|| format!("cannot read results: file={name} line={at}"))?;
        if line.trim().is_empty() {
            continue;
        }
        records.push(parse(&line).with_context(|| format!("not a result: file={name} line={at}"))?);
    }
    ensure!(!records.is_empty(), "no result in it: file={name}");
    Ok(records)
}

fn parse(line: &str) -> Result<Record> {
    let Versioned { schema } = serde_json::from_str(line)?;
    if schema > SCHEMA_VERSION {
        bail!("written with schema {schema}, and this loadgen reads up to {SCHEMA_VERSION}: use a newer loadgen");
    }
    Ok(serde_json::from_str(line)?)
}
