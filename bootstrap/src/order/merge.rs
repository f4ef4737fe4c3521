//! The external merge sort: runs sorted in memory, then merged through a heap. Bounded whatever the keys are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use engine_api::Key;

use super::{Chunker, Each, OnDuplicate, decode, encode};
use crate::limits::{RECORD_BYTES, RUN_BUFFER_BYTES, RUN_RECORDS, RUNS_MAX};
use crate::source::Record;

/// Writes sorted runs; returns their number.
pub(super) fn spill(dir: &Path, each: &mut Each<'_>) -> Result<usize> {
    let mut runs = 0;
    let mut records: Vec<Record> = Vec::new();
    each(&mut |record| {
        records.push(record);
        if records.len() == RUN_RECORDS {
            write_run(dir, runs, &mut records)?;
            runs += 1;
            ensure!(runs < RUNS_MAX, "too many pairs to sort: runs={runs} records_per_run={RUN_RECORDS}");
        }
        Ok(())
    })?;
    if !records.is_empty() {
        write_run(dir, runs, &mut records)?;
        runs += 1;
    }
    Ok(runs)
}

/// The next record of a run, smallest first: key, source position, run, value.
type Head = Reverse<(Key, u64, usize, [u8; 32])>;

/// Merges the runs, all copies of a key together.
pub(super) fn for_each(dir: &Path, runs: usize, rule: OnDuplicate, chunker: &mut Chunker<'_, '_>) -> Result<()> {
    let mut readers = Vec::with_capacity(runs);
    let mut heap: BinaryHeap<Head> = BinaryHeap::with_capacity(runs);
    for run in 0..runs {
        let path = path(dir, run);
        let file = File::open(&path).with_context(|| format!("cannot open file={}", path.display()))?;
        let mut reader = BufReader::with_capacity(RUN_BUFFER_BYTES, file);
        if let Some((position, key, value)) = next(&mut reader, &path)? {
            heap.push(Reverse((key, position, run, value)));
        }
        readers.push((reader, path));
    }
    let mut held: Option<Record> = None;
    while let Some(Reverse((key, position, run, value))) = heap.pop() {
        let (reader, path) = &mut readers[run];
        if let Some((position, key, value)) = next(reader, path)? {
            heap.push(Reverse((key, position, run, value)));
        }
        let record = (position, key, value);
        match held.replace(record) {
            Some(last) if last.1 == key => chunker.duplicate(&last, &record, rule)?,
            Some(last) if !chunker.push(last.1, last.2)? => return Ok(()),
            _ => {}
        }
    }
    if let Some((_, key, value)) = held {
        chunker.push(key, value)?;
    }
    Ok(())
}

fn path(dir: &Path, run: usize) -> PathBuf {
    dir.join(format!("run-{run:03}"))
}

fn write_run(dir: &Path, run: usize, records: &mut Vec<Record>) -> Result<()> {
    records.sort_unstable_by_key(|record| (record.1, record.0));
    let path = path(dir, run);
    let write = || {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        for record in records.iter() {
            file.write_all(&encode(record))?;
        }
        file.into_inner().map_err(|e| e.into_error())?.sync_data()
    };
    write().with_context(|| format!("cannot write file={}", path.display()))?;
    records.clear();
    Ok(())
}

fn next(reader: &mut impl Read, path: &Path) -> Result<Option<Record>> {
    let mut bytes = [0u8; RECORD_BYTES];
    match reader.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(decode(&bytes))),
        // The manifest vouches for whole runs, so a short read is the end.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read file={}", path.display())),
    }
}
