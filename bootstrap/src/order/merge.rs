//! The external merge sort: runs sorted in memory, then merged through a heap. Bounded whatever the keys are.
//!
//! Threads: `sort` sorts and writes one run while the caller collects the next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result, anyhow, ensure};
use engine_api::Key;

use super::{Chunker, Each, OnDuplicate, decode, encode};
use crate::limits::{RECORD_BYTES, RUN_BUFFER_BYTES, RUN_RECORDS, RUNS_MAX, SORT_BUFFERS};
use crate::source::Record;

/// Writes sorted runs; returns their number.
pub(super) fn spill(dir: &Path, each: &mut Each<'_>) -> Result<usize> {
    std::thread::scope(|scope| {
        // Two buffers go round: without room in between, neither thread is ever more than one run ahead.
        let (to_sort, unsorted) = sync_channel::<Vec<Record>>(0);
        let (give_back, spare) = sync_channel::<Vec<Record>>(1);
        let sorter = std::thread::Builder::new().name("sort".to_owned()).spawn_scoped(scope, move || {
            let mut runs = 0;
            for mut records in unsorted {
                ensure!(runs < RUNS_MAX, "too many pairs to sort: runs={runs} records_per_run={RUN_RECORDS}");
                write_run(dir, runs, &mut records)?;
                runs += 1;
                // Nobody waits for the last buffers.
                give_back.send(records).ok();
            }
            Ok(runs)
        })?;
        let mut buffers_made = 1;
        let mut records: Vec<Record> = Vec::with_capacity(RUN_RECORDS);
        let collected = each(&mut |record| {
            records.push(record);
            if records.len() == RUN_RECORDS {
                let next = if buffers_made < SORT_BUFFERS { Some(Vec::with_capacity(RUN_RECORDS)) } else { None };
                buffers_made += usize::from(next.is_some());
                let full = std::mem::take(&mut records);
                let sent = to_sort.send(full).is_ok();
                records = match next {
                    Some(next) => next,
                    None if sent => spare.recv().unwrap_or_default(),
                    None => Vec::new(),
                };
                ensure!(sent && records.capacity() > 0, "the sorting thread has ended");
            }
            Ok(())
        });
        if collected.is_ok() && !records.is_empty() {
            to_sort.send(records).ok();
        }
        drop(to_sort);
        spare.try_iter().for_each(drop);
        let runs = sorter.join().map_err(|_| anyhow!("the sorting thread panicked"))?;
        // What the sorting thread says is the cause of what the collector met.
        let runs = runs?;
        collected.map(|()| runs)
    })
}

/// The next record of a run. The greatest of a heap is the smallest key, of equal ones the first in the source.
struct Head {
    /// The key's first eight bytes, which nearly always decide.
    prefix: u64,
    record: Record,
    run: usize,
}

impl Head {
    fn new(record: Record, run: usize) -> Self {
        Self { prefix: prefix(&record.1), record, run }
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = || other.record.1.cmp(&self.record.1);
        other.prefix.cmp(&self.prefix).then_with(by_key).then_with(|| other.record.0.cmp(&self.record.0))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

fn prefix(key: &Key) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| key[i]))
}

/// Merges the runs, all copies of a key together.
pub(super) fn for_each(dir: &Path, runs: usize, rule: OnDuplicate, chunker: &mut Chunker<'_>) -> Result<()> {
    let mut readers = Vec::with_capacity(runs);
    let mut heap: BinaryHeap<Head> = BinaryHeap::with_capacity(runs);
    for run in 0..runs {
        let path = path(dir, run);
        let file = File::open(&path).with_context(|| format!("cannot open file={}", path.display()))?;
        let mut reader = BufReader::with_capacity(RUN_BUFFER_BYTES, file);
        if let Some(record) = next(&mut reader, &path)? {
            heap.push(Head::new(record, run));
        }
        readers.push((reader, path));
    }
    let mut held: Option<Record> = None;
    while let Some(mut first) = heap.peek_mut() {
        let record = first.record;
        let (reader, path) = &mut readers[first.run];
        match next(reader, path)? {
            Some(next) => *first = Head::new(next, first.run),
            None => drop(PeekMut::pop(first)),
        }
        match held.replace(record) {
            Some(last) if last.1 == record.1 => chunker.duplicate(&last, &record, rule)?,
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
    let by_rest = |a: &Record, b: &Record| a.1.cmp(&b.1).then(a.0.cmp(&b.0));
    records.sort_unstable_by(|a, b| prefix(&a.1).cmp(&prefix(&b.1)).then_with(|| by_rest(a, b)));
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
