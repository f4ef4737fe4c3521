//! Replay of the WAL's batches that are not in the runs. They go into one memtable or, if that would exceed the memory
//! for memtables, into runs that are written while the WAL is read.
//!
//! Owns: FORMAT.md's "Recovery", steps 3 to 6. Runs on the thread that opens the store.

use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Result};

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
    /// Number of the last batch, and its checkpoint.
    batch: u64,
    checkpoint: Checkpoint,
    ends: Vec<(u64, End)>,
}

/// Result of reading the WAL.
struct Read {
    /// Number of the last batch.
    batch: u64,
    checkpoint: Checkpoint,
    /// Records that are in no run yet. If any runs were written, the newest of them holds these too.
    tail: Tail,
    /// End of each file that was read.
    ends: Vec<(u64, End)>,
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
            let Ends { batch, checkpoint, ends } = self.ends(wals, manifest)?;
            self.refuse_older(found, batch)?;
            (self.accept)(&checkpoint)?;
            self.flush(&ends)?;
            // Remove the runs of an opening that was cut here, because the disk may have no room for both.
            remove_obsolete(&**self.storage, found)?;
        }
        let mut runs = Vec::new();
        let read = self.read(wals, manifest, capacity, &mut runs);
        let taken = |read: Read| {
            self.refuse_older(found, read.batch)?;
            (self.accept)(&read.checkpoint).map(|()| read)
        };
        let read = match read.and_then(taken) {
            Ok(read) => read,
            Err(failed) => {
                // No manifest names these runs. Retire them, so that a store that cannot be opened does not grow with
                // each attempt.
                runs.iter().flat_map(|run| run.segments()).for_each(|segment| segment.retire());
                return Err(failed);
            }
        };
        self.end(wals, read, &runs, manifest, version)
    }

    /// Reads these files for where they end.
    fn ends(&self, wals: &[u64], manifest: &Manifest) -> Result<Ends> {
        let mut position = Position::behind(manifest.batch);
        let mut checkpoint = manifest.checkpoint.clone();
        let mut ends = Vec::new();
        for id in wals {
            let salt = manifest.wal_key.salt(*id);
            position = wal::replay(&**self.storage, (&salt, *id), position, |_, replayed| {
                checkpoint = replayed.checkpoint;
                Ok(())
            })?;
            ends.extend(position.end.clone().map(|end| (*id, end)));
        }
        Ok(Ends { batch: position.next - 1, checkpoint, ends })
    }

    /// Makes the records durable that were read of the files.
    fn flush(&self, ends: &[(u64, End)]) -> Result<()> {
        ends.iter().try_for_each(|(id, end)| wal::flush(&**self.storage, *id, end))
    }

    /// Refuses the store if a segment, or a WAL file with another name, has a later batch than `batch`, the last one
    /// recovered.
    fn refuse_older(&self, found: &Survey, batch: u64) -> Result<()> {
        let why = found.newest.as_ref().and_then(|newest| newest.is_ahead(&**self.storage, batch));
        let why = why.map(|why| format!("{why}: put the newer manifest back, or run bootstrap repair"));
        let renamed = || found.misnamed.as_ref().and_then(|renamed| renamed.is_ahead(&**self.storage, batch));
        why.or_else(renamed)
            .map_or(Ok(()), |why| Err(Error::new(ErrorKind::DataDamaged, format!("{why}; nothing was changed"))))
    }

    /// Reads the files. Records that do not fit into the last memtable go into `runs`, newest first.
    fn read(&mut self, wals: &[u64], manifest: &Manifest, capacity: usize, runs: &mut Vec<Arc<Run>>) -> Result<Read> {
        let mut checkpoint = manifest.checkpoint.clone();
        let mut position = Position::behind(manifest.batch);
        let mut tail = Tail { mem: Arc::new(Mem::new(capacity)?), length: 0 };
        let mut ends = Vec::new();
        for id in wals {
            let salt = manifest.wal_key.salt(*id);
            position = wal::replay(&**self.storage, (&salt, *id), position, |batch, replayed| {
                let before = std::mem::replace(&mut checkpoint, replayed.checkpoint);
                for (key, value) in &replayed.ops {
                    if tail.length == capacity {
                        // The run may hold only a part of this batch, so it stands for the batch before.
                        runs.insert(0, self.write(&tail, &self.origin(batch - 1, &before))?);
                        tail = Tail { mem: Arc::new(Mem::new(capacity)?), length: 0 };
                    }
                    tail.mem.append(tail.length, self.reads.seed.hash(key), key, *value);
                    tail.length += 1;
                }
                Ok(())
            })?;
            ends.extend(position.end.clone().map(|end| (*id, end)));
        }
        if !runs.is_empty() {
            runs.insert(0, self.write(&tail, &self.origin(position.next - 1, &checkpoint))?);
        }
        Ok(Read { batch: position.next - 1, checkpoint, tail, ends })
    }

    /// Makes the replayed batches durable. After an error the manifest may name the runs all the same, so they stay.
    fn end(
        &mut self,
        wals: &[u64],
        Read { batch, checkpoint, tail, ends }: Read,
        runs: &[Arc<Run>],
        manifest: &mut Manifest,
        version: &mut Version,
    ) -> Result<Replayed> {
        if runs.is_empty() {
            // Replayed records may not have reached the device yet. A synced batch in the next file is proof that all
            // of them are durable, so flush them first.
            self.flush(&ends)?;
            let (mem, newest) = (tail.mem, checkpoint.clone());
            let frozen = wals
                .last()
                .map(|last| Arc::new(Frozen { mem, length: tail.length, wal_id: *last, batch, checkpoint: newest }));
            return Ok(Replayed { batch, checkpoint, frozen });
        }
        version.deltas.splice(0..0, runs.iter().cloned());
        manifest.runs = version.runs().map(|run| run.segments().iter().map(|segment| segment.info).collect()).collect();
        manifest.wal_floor = wals.last().map_or(manifest.wal_floor, |last| last + 1);
        (manifest.batch, manifest.checkpoint, manifest.next_id) = (batch, checkpoint.clone(), self.next_id);
        sync_dir(&**self.storage)?;
        manifest.write(&**self.storage)?;
        // The next opening removes a file that stays.
        wals.iter().for_each(|id| drop(self.storage.remove(&wal::name(*id))));
        Ok(Replayed { batch, checkpoint, frozen: None })
    }

    /// Returns the number of records that the memtable of a replay takes: as many as the files may hold, at least one
    /// memtable, and at most as many memtables as there are when a commit waits. Also returns whether all records of
    /// the files fit.
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
        Ok((records.clamp(self.mem_records, most), records <= most))
    }

    fn origin(&self, batch: u64, checkpoint: &Checkpoint) -> Origin {
        Origin { seed: self.reads.seed, batch, checkpoint: checkpoint.clone(), ..Origin::default() }
    }

    /// Writes the records as a run that no manifest names yet.
    fn write(&mut self, tail: &Tail, origin: &Origin) -> Result<Arc<Run>> {
        let mut segments = Vec::new();
        if tail.length > 0 {
            let room = Room::of(tail.length as u64, self.budget, None);
            let mut writer = SegmentWriter::create(self.storage, self.next_id, origin, room)?;
            self.next_id += 1;
            tail.mem.sorted(tail.length)?.try_for_each(|(key, value)| writer.push(&key, value.as_ref()))?;
            let info = writer.finish_alone()?;
            let opened = Segment::open(self.storage, info, false, self.budget, self.reads);
            // No manifest names it; the next opening removes it if it stays.
            segments.push(opened.inspect_err(|_| drop(self.storage.remove(&segment::name(info.id))))?);
        }
        Ok(Arc::new(Run::new(segments)))
    }
}
