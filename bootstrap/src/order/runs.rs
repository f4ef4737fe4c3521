//! Sorts buffers of records and writes each of them as a run.
//!
//! Owns: when a run is flushed, and when the manifest names it. Must not: put a run into the manifest that is not
//! durable. Threads: `sort` computes the order of a buffer; meanwhile `write` writes the buffer before it.

use std::sync::mpsc::{Receiver, SyncSender};

use anyhow::{Context as _, Result, anyhow, ensure};
use engine_api::Code;

use super::run::{Ended, Run, Writer};
use super::sort::Sorted;
use super::work::{Manifest, Work};
use crate::identity::Content;
use crate::layout::SPILLED_RECORD_BYTES;
use crate::rank::Rank;
use crate::source::{Place, Record, Told};

/// Records on their way to a run, with the entries that the manifest gets once they are durable.
pub(super) struct Batch<R> {
    pub(super) records: R,
    pub(super) place: Place,
    pub(super) content: Content,
    /// Facts that are known only at the end of the source. Present with its last records.
    pub(super) end: Option<Told>,
}

/// Sorts batches until there are no more, or until the receiver of the sorted ones is gone.
pub(super) fn sort_batches(rank: Rank, unsorted: Receiver<Batch<Vec<Record>>>, to_write: SyncSender<Batch<Sorted>>) {
    for Batch { records, place, content, end } in unsorted {
        let sorted = Batch { records: Sorted::of(records, rank), place, content, end };
        if to_write.send(sorted).is_err() {
            return;
        }
    }
}

/// Writes each batch as a run, and after it the manifest that names the run. A run is flushed only when the next batch
/// has arrived. By then the device has written most of it, and the flush is short.
pub(super) fn write_runs(
    work: &mut Work,
    mut manifest: Manifest,
    sorted: Receiver<Batch<Sorted>>,
    give_back: SyncSender<Vec<Record>>,
) -> Result<Manifest> {
    let mut unflushed: Option<Batch<Ended>> = None;
    for Batch { records, place, content, end } in sorted {
        work.create()?;
        if let Some(before) = unflushed.take() {
            keep(before, work, &mut manifest)?;
        }
        check_space(work, records.len() as u64)?;
        let run = write_run(work, &manifest, &records)?;
        unflushed = Some(Batch { records: run, place, content, end });
        let mut buffer = records.into_records();
        buffer.clear();
        // The last buffers have no receiver.
        give_back.send(buffer).ok();
    }
    if let Some(last) = unflushed {
        keep(last, work, &mut manifest)?;
    }
    Ok(manifest)
}

/// Refuses to begin a run that the disk has no room for. The number of records in a pipe is not known before it has
/// been read, so no check at the beginning can cover it. A file system that does not state its size, such as ramfs, is
/// not checked.
fn check_space(work: &Work, records: u64) -> Result<()> {
    let dir = work.dir();
    let probe::Space { free_bytes, total_bytes } = probe::space(dir)?;
    let needed_bytes = records.saturating_mul(SPILLED_RECORD_BYTES);
    ensure!(
        total_bytes == 0 || free_bytes >= needed_bytes,
        anyhow!(
            "not enough disk for the next part of the spill: dir={} free_bytes={free_bytes} needed_bytes={needed_bytes}: free \
             space, or give a load or an audit a directory on another disk with --work-dir",
            dir.display()
        )
        .context(Code::Space)
    );
    Ok(())
}

/// Writes a run with a number of its own, and does not flush it. The manifest must name all earlier runs.
fn write_run(work: &Work, manifest: &Manifest, records: &Sorted) -> Result<Ended> {
    let number = manifest.runs.iter().map(|run| run.number).max().map_or(0, |number| number + 1);
    let run = Run::whole(number, records.len() as u64);
    let mut writer = Writer::create(work.dir(), manifest.spill()?, run)?;
    records.try_for_each(|record| writer.push(record))?;
    writer.end()
}

/// Flushes a run, and writes the manifest that names it.
fn keep(written: Batch<Ended>, work: &Work, manifest: &mut Manifest) -> Result<()> {
    let Batch { records: run, place, content, end } = written;
    manifest.runs.push(run.flush()?);
    manifest.records = content.records();
    manifest.place = place;
    // One write of the manifest names the last run, the spill's completeness and the facts from the end of the source.
    // The last run may end between two borders, where no chain of digests ends, so only a complete spill may have it.
    // And a complete spill is never read again for the facts.
    let complete = end.is_some();
    manifest.complete = complete;
    manifest.told = end.unwrap_or_default();
    manifest.content = format!("{:016x}", if complete { content.digest() } else { content.chain() });
    work.write(manifest).context("cannot write the manifest of the spill")
}
