//! What the WAL holds behind the runs, brought back: into one memtable, or, where that would be more than memory is set
//! aside for, into runs that are written while the WAL is read.
//!
//! Owns: FORMAT.md's "Recovery", steps 3 to 5. Runs on the thread that opens the store.

use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Result};

use crate::budget::Budget;
use crate::engine::{Accept, FROZEN_MAX};
use crate::file::{shown, sync_dir};
use crate::format::footer::Origin;
use crate::format::manifest::Manifest;
use crate::format::wal::{self, End, Position};
use crate::read::lookup::Reads;
use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::read::visible::Frozen;
use crate::storage::Storage;
use crate::write::directory::Survey;
use crate::write::mem::Mem;
use crate::write::writer::{Room, SegmentWriter};

/// What was replayed.
pub(crate) struct Replayed {
    /// Number of the last batch.
    pub(crate) batch: u64,
    pub(crate) checkpoint: Checkpoint,
    /// Its memtable, where it fits into one: it keeps its files until it is flushed.
    pub(crate) frozen: Option<Arc<Frozen>>,
}

/// What a replay writes to.
pub(crate) struct Replay<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) budget: &'a Arc<Budget>,
    pub(crate) reads: &'a Arc<Reads>,
    /// Records of a memtable.
    pub(crate) mem_records: usize,
    /// The next file's number.
    pub(crate) next_id: u64,
    pub(crate) accept: Accept<'a>,
}

/// What was read of the WAL.
struct Read {
    /// Number of the last batch.
    batch: u64,
    checkpoint: Checkpoint,
    /// The records that are in no run; where there are runs, they are in the newest.
    tail: Tail,
    /// Where each file ended.
    ends: Vec<(u64, End)>,
}

/// The records that are not in a run yet.
struct Tail {
    mem: Arc<Mem>,
    length: usize,
}

impl Replay<'_> {
    /// Replays the WAL files that were found, in the order of their numbers. Records that do not fit into the memtables
    /// that this memory allows, because the store was written with more, become delta runs of `version`, and `manifest`
    /// says so: nothing is left of these files then.
    ///
    /// # Errors
    /// `DataDamaged`: a WAL is damaged, or the manifest is older than a segment. What `accept` says of where it ends.
    pub(crate) fn run(&mut self, found: &Survey, manifest: &mut Manifest, version: &mut Version) -> Result<Replayed> {
        let wals = &found.wals[..];
        let (capacity, fits) = self.capacity(wals)?;
        if !fits {
            // A run that is written of the WAL must not outlive it: batches that are in a run alone, which no manifest
            // names, are taken for those of a newer manifest.
            let (last, ends) = self.ends(wals, manifest)?;
            self.refuse_older(found, last)?;
            self.flush(&ends)?;
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
                // No manifest names them, so that a store that cannot be opened does not grow with each try.
                runs.iter().flat_map(|run| run.segments()).for_each(|segment| segment.retire());
                return Err(failed);
            }
        };
        self.end(wals, read, &runs, manifest, version)
    }

    /// The last batch of these files, and where each of them ends.
    fn ends(&self, wals: &[u64], manifest: &Manifest) -> Result<(u64, Vec<(u64, End)>)> {
        let mut position = Position::behind(manifest.batch);
        let mut ends = Vec::new();
        for id in wals {
            let salt = manifest.wal_key.salt(*id);
            position = wal::replay(&**self.storage, (&salt, *id), position, |_, _| Ok(()))?;
            ends.extend(position.end.clone().map(|end| (*id, end)));
        }
        Ok((position.next - 1, ends))
    }

    /// Makes durable what was read of the files.
    fn flush(&self, ends: &[(u64, End)]) -> Result<()> {
        ends.iter().try_for_each(|(id, end)| wal::flush(&**self.storage, *id, end))
    }

    /// An error where a segment, or a WAL file with another name, has a batch beyond those that were recovered.
    fn refuse_older(&self, found: &Survey, batch: u64) -> Result<()> {
        let why = found.newest.as_ref().and_then(|newest| newest.is_ahead(&**self.storage, batch));
        let why = why.map(|why| format!("{why}: put the newer manifest back, or run bootstrap repair"));
        let renamed = || found.misnamed.as_ref().and_then(|renamed| renamed.is_ahead(&**self.storage, batch));
        why.or_else(renamed)
            .map_or(Ok(()), |why| Err(Error::new(ErrorKind::DataDamaged, format!("{why}; nothing was changed"))))
    }

    /// Reads the files; what does not fit into the memtable of the tail is in `runs`, newest first.
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
                        // A part of this batch is in it, and perhaps not all: the run stands for the one before.
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

    /// Makes durable what was read. After an error the manifest may name the runs all the same: they stay.
    fn end(
        &mut self,
        wals: &[u64],
        Read { batch, checkpoint, tail, ends }: Read,
        runs: &[Arc<Run>],
        manifest: &mut Manifest,
        version: &mut Version,
    ) -> Result<Replayed> {
        if runs.is_empty() {
            // What was replayed may still be on its way to the device: a synced batch in the next file stands on all
            // of it.
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
        // One that stays is removed by the next opening.
        wals.iter().for_each(|id| drop(self.storage.remove(&wal::name(*id))));
        Ok(Replayed { batch, checkpoint, frozen: None })
    }

    /// Records that the memtable of a replay takes: what the files may hold, at least one memtable and at most as many
    /// as there are when a commit waits. And whether that is all that they may hold.
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
        Origin { seed: self.reads.seed, batch, base: false, checkpoint: checkpoint.clone() }
    }

    /// Writes the records as a run, which no manifest names yet.
    fn write(&mut self, tail: &Tail, origin: &Origin) -> Result<Arc<Run>> {
        let mut segments = Vec::new();
        if tail.length > 0 {
            let room = Room::of(tail.length as u64, self.budget, None);
            let mut writer = SegmentWriter::create(self.storage, self.next_id, origin, room)?;
            self.next_id += 1;
            tail.mem.sorted(tail.length)?.try_for_each(|(key, value)| writer.push(&key, value.as_ref()))?;
            segments.push(Segment::open(self.storage, writer.finish()?.info, self.budget, self.reads)?);
        }
        Ok(Arc::new(Run::new(segments)))
    }
}
