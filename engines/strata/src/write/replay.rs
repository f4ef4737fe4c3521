//! Replay of the WAL's batches that are not in the runs. They go into one memtable or, if that would exceed the memory
//! for memtables, into runs that are written while the WAL is read.
//!
//! Owns: FORMAT.md's "Recovery", steps 3 to 6. Runs on the thread that opens the store.

use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result, Value};

use crate::budget::Budget;
use crate::file::{shown, sync_dir};
use crate::format::footer::Origin;
use crate::format::manifest::Manifest;
use crate::format::wal::{self, End, Position};
use crate::memtable::Mem;
use crate::read::lookup::Reads;
use crate::read::segment::{self, Segment};
use crate::read::version::{Run, Version};
use crate::read::visible::Frozen;
use crate::sizes::FROZEN_MAX;
use crate::storage::Storage;
use crate::write::directory::{Survey, remove_obsolete};
use crate::write::segment_writer::{Room, SegmentWriter};
use crate::write::unnamed::Unnamed;

/// Checks whether the store may stand at a checkpoint; an error refuses the opening.
pub(crate) type Accept<'a> = &'a dyn Fn(&Checkpoint) -> Result<()>;

/// Result of a replay of the WAL.
pub(crate) struct Replayed {
    /// Number of the last batch.
    pub(crate) batch: u64,
    pub(crate) checkpoint: Checkpoint,
    /// Memtable of the replayed batches; `None` if they are in runs. The WAL files stay until it is flushed.
    pub(crate) frozen: Option<Arc<Frozen>>,
}

/// Resources of a replay of the WAL.
pub(crate) struct Replay<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) budget: &'a Arc<Budget>,
    pub(crate) reads: &'a Arc<Reads>,
    /// Number of records in a memtable of this store.
    pub(crate) mem_records: usize,
    /// Number for the next new file.
    pub(crate) next_id: u64,
    pub(crate) accept: Accept<'a>,
}

/// The last batch of the WAL, and the end of each of its files.
struct Ends {
    /// Number of the last batch.
    batch: u64,
    checkpoint: Checkpoint,
    /// End of each file that was read.
    files: Vec<(u64, End)>,
}

/// The records that are not in a run yet.
struct Tail {
    mem: Arc<Mem>,
    length: usize,
}

impl Replay<'_> {
    /// Replays the WAL files of the survey in order of their numbers. Records that do not fit into the memtables that
    /// the memory allows, because the store was written with more memory, become delta runs of `version`. `manifest`
    /// then names these runs, and the WAL files are removed.
    ///
    /// # Errors
    /// `DataDamaged`: a WAL is damaged, a segment or a WAL file shows that the manifest is older, or a WAL file was
    /// renamed; the error of `accept`; I/O errors.
    pub(crate) fn run(
        &mut self,
        found: &mut Survey,
        manifest: &mut Manifest,
        version: &mut Version,
    ) -> Result<Replayed> {
        let wals = &found.wals.clone()[..];
        let (capacity, fits) = self.capacity(wals)?;
        if !fits {
            // Flush the WAL before any run is written of it. Otherwise a run could outlive its batches: no manifest
            // names that run, and the next opening would take it as proof of a newer manifest.
            let ends = read_all(&**self.storage, wals, manifest, |_, _, _| Ok(()))?;
            self.refuse(found, &ends)?;
            self.flush(&ends.files)?;
            // Remove the runs of an opening that was cut here, because the disk may have no room for both.
            remove_obsolete(&**self.storage, found)?;
        }
        // After an error these runs are removed, so that a store that cannot be opened does not grow with each attempt.
        let mut runs = Vec::new();
        let (ends, tail) = self.read(wals, manifest, capacity, &mut runs)?;
        self.refuse(found, &ends)?;
        self.end(wals, ends, tail, runs, manifest, version)
    }

    /// Makes the records durable that were read of the files.
    fn flush(&self, ends: &[(u64, End)]) -> Result<()> {
        ends.iter().try_for_each(|(id, end)| wal::flush(&**self.storage, *id, end))
    }

    /// Refuses the store if a segment, or a WAL file with another name, has a later batch than the last one recovered,
    /// or if its checkpoint is not accepted.
    fn refuse(&self, found: &Survey, Ends { batch, checkpoint, .. }: &Ends) -> Result<()> {
        let batch = *batch;
        if let Some(why) = found.newest.as_ref().and_then(|newest| newest.is_ahead(&**self.storage, batch)) {
            let way_out = "put the newer manifest back, or run bootstrap repair; nothing was changed";
            return Err(Error::new(ErrorKind::DataDamaged, why).with_way_out(way_out));
        }
        let why = found.misnamed.as_ref().and_then(|renamed| renamed.is_ahead(&**self.storage, batch));
        why.map_or(Ok(()), |why| Err(Error::new(ErrorKind::DataDamaged, format!("{why}; nothing was changed"))))?;
        (self.accept)(checkpoint)
    }

    /// Reads the files. Records that do not fit into the last memtable go into `runs`, newest first. The newest run has
    /// the records of that memtable too.
    fn read(
        &mut self,
        wals: &[u64],
        manifest: &Manifest,
        capacity: usize,
        runs: &mut Vec<Unnamed>,
    ) -> Result<(Ends, Tail)> {
        let mut tail = Tail { mem: Arc::new(Mem::new(capacity)?), length: 0 };
        let ends = read_all(&**self.storage, wals, manifest, |batch, before, ops| {
            for (key, value) in ops {
                if tail.length == capacity {
                    // The run may hold only a part of this batch, so it stands for the batch before.
                    self.write(&tail, (batch - 1, before), true, runs)?;
                    tail = Tail { mem: Arc::new(Mem::new(capacity)?), length: 0 };
                }
                tail.mem.append(tail.length, self.reads.seed.hash(key), key, *value);
                tail.length += 1;
            }
            Ok(())
        })?;
        if !runs.is_empty() {
            self.write(&tail, (ends.batch, &ends.checkpoint), false, runs)?;
        }
        Ok((ends, tail))
    }

    /// Makes the replayed batches durable. After an error the manifest may name the runs all the same, so they stay.
    fn end(
        &mut self,
        wals: &[u64],
        Ends { batch, checkpoint, files }: Ends,
        tail: Tail,
        runs: Vec<Unnamed>,
        manifest: &mut Manifest,
        version: &mut Version,
    ) -> Result<Replayed> {
        if runs.is_empty() {
            // Replayed records may not have reached the device yet. A synced batch in the next file is proof that all
            // of them are durable, so flush them first.
            self.flush(&files)?;
            let (mem, newest) = (tail.mem, checkpoint.clone());
            let frozen = wals
                .last()
                .map(|last| Arc::new(Frozen { mem, length: tail.length, wal_id: *last, batch, checkpoint: newest }));
            return Ok(Replayed { batch, checkpoint, frozen });
        }
        let merge_at = version.merge_at;
        version.deltas.splice(0..0, runs.into_iter().map(|run| Arc::new(Run::joining(run.keep(), merge_at))));
        version.describe(manifest);
        manifest.wal_floor = wals.last().map_or(manifest.wal_floor, |last| last + 1);
        (manifest.batch, manifest.checkpoint, manifest.next_id) = (batch, checkpoint.clone(), self.next_id);
        sync_dir(&**self.storage)?;
        manifest.write(&**self.storage)?;
        // The next opening removes a file that stays.
        wals.iter().for_each(|id| drop(self.storage.remove(&wal::name(*id))));
        Ok(Replayed { batch, checkpoint, frozen: None })
    }

    /// Returns the number of records that the memtable of a replay takes: as many as the files may hold, and at most as
    /// many as the memtables that there are when a commit waits. Also returns whether all records of the files fit.
    fn capacity(&self, wals: &[u64]) -> Result<(usize, bool)> {
        let mut records = 0;
        for id in wals {
            let name = wal::name(*id);
            let length = self.storage.open(&name, false).and_then(|file| file.len_bytes());
            records +=
                wal::records_max(length.map_err(|e| {
                    Error::io(format!("cannot read file={} reason={e}", shown(&**self.storage, &name)), e)
                })?);
        }
        let most = (FROZEN_MAX + 1) * self.mem_records;
        let records = usize::try_from(records).unwrap_or(usize::MAX);
        Ok((records.min(most), records <= most))
    }

    /// Writes the records as the newest of `runs`, which then stand for a batch and its checkpoint. All but the last one are
    /// marked as parts: see [`Origin`].
    fn write(
        &mut self,
        tail: &Tail,
        (batch, checkpoint): (u64, &Checkpoint),
        part: bool,
        runs: &mut Vec<Unnamed>,
    ) -> Result<()> {
        let mut run = Unnamed::default();
        runs.first().map_or(Ok(()), |before| before.make_names_durable(&**self.storage))?;
        if tail.length > 0 {
            let room = Room::of(1, tail.length as u64, self.budget, None);
            let checkpoint = checkpoint.clone();
            let origin = Origin { seed: self.reads.seed, batch, checkpoint, part, ..Origin::default() };
            let mut writer = SegmentWriter::create(self.storage, self.next_id, &origin, room)?;
            self.next_id += 1;
            tail.mem
                .ascending(tail.length, &[0; 32])?
                .try_for_each(|(key, value)| writer.push(&key, value.as_ref()))?;
            let info = writer.finish_alone()?;
            let opened = Segment::open(self.storage, info, false, self.budget, self.reads);
            // No manifest names it; the next opening removes it if it stays.
            run.0.push(opened.inspect_err(|_| drop(self.storage.remove(&segment::name(info.id))))?);
        }
        runs.insert(0, run);
        Ok(())
    }
}

/// Reads these files to their ends. `take` gets the number of each batch, the checkpoint before it, and its changes.
fn read_all(
    storage: &dyn Storage,
    wals: &[u64],
    manifest: &Manifest,
    mut take: impl FnMut(u64, &Checkpoint, &[(Key, Option<Value>)]) -> Result<()>,
) -> Result<Ends> {
    let mut checkpoint = manifest.checkpoint.clone();
    let mut position = Position::behind(manifest.batch);
    let mut files = Vec::new();
    for id in wals {
        let salt = manifest.wal_key.salt(*id);
        position = wal::replay(storage, (&salt, *id), position, |batch, replayed| {
            take(batch, &checkpoint, &replayed.ops)?;
            checkpoint = replayed.checkpoint;
            Ok(())
        })?;
        files.extend(position.end.clone().map(|end| (*id, end)));
    }
    Ok(Ends { batch: position.next - 1, checkpoint, files })
}
