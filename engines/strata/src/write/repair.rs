//! Repair of a store that does not open or has unreadable pages. Readable records stay, and every loss is reported by
//! name.
//!
//! Owns: the treatment of damage. Must not: remove any file that was not taken over; it gets another name instead. Runs
//! on the thread that asks for it, with nobody else in the directory.
//!
//! 1. Use the manifest. If it cannot be read or is older than the segments, rebuild one from their footers
//!    ([`rebuild`]).
//! 2. Read every page of every segment that it names. Write a damaged segment again without the damaged parts
//!    ([`salvage`]).
//! 3. Read the WAL up to the first batch that is lost. Write its batches as a run.
//! 4. Record the losses ([`lost`]), then write one manifest that names all of this, then set aside the unused files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Repaired, Result, Value};

use crate::file::{shown, sync_dir};
use crate::format::footer::Origin;
use crate::format::manifest::Manifest;
use crate::format::secret::WalKey;
use crate::format::wal::{self, Position};
use crate::read::sections::{is_damage, salvage_footer};
use crate::storage::Storage;
use crate::write::directory::{
    Own, is_beyond, is_foreign, is_of_another_store, is_superseded, misnamed, newest_unnamed, own_files, unless_damaged,
};
use crate::write::lost;
use crate::write::rebuild::{Rebuilt, rebuild};
use crate::write::salvage::{Salvaged, salvage};
use crate::write::segment_writer::{Room, SegmentWriter};

/// Number of records of the WAL that are held in memory before they become a run: about 16 MiB, because a repair may
/// run under the memory cap of the service.
const TAIL_RECORDS_MAX: usize = 1 << 17;
/// A key and its new value; `None` deletes the key.
type Op = (Key, Option<Value>);

/// Suffix of the name of a file that is not used any more.
const SET_ASIDE: &str = ".set-aside";

/// Repairs the store as far as possible. Nobody may have it open.
///
/// # Errors
/// As [`StrataEngine::repair`](crate::StrataEngine::repair).
pub(crate) fn repair(storage: &Arc<dyn Storage>) -> Result<Repaired> {
    let mut report = Repaired::default();
    let mut aside = Vec::new();
    let (manifest, rebuilt) = match stored(storage)? {
        Ok(manifest) => (manifest, false),
        Err(why) => {
            let Rebuilt { manifest, unused } = rebuild(storage, why, &mut report)?;
            aside.extend(unused);
            (manifest, true)
        }
    };
    let mut repair = Repair { storage, manifest, rebuilt, aside, report };
    repair.reserve_numbers()?;
    repair.segments()?;
    repair.wal()?;
    repair.report.checkpoint = repair.manifest.checkpoint.clone();
    if !repair.report.findings.is_empty() {
        repair.install()?;
    }
    Ok(repair.report)
}

/// Result of reading the WAL.
#[derive(Default)]
struct Ended {
    /// Message about the damage at which reading stopped; `None` if all files were read.
    broken: Option<String>,
    /// Batches that are in no file, and files that cannot be read at all.
    gaps: Vec<String>,
    /// Files that cannot be checked to belong to the store, because the manifest with the salts is gone.
    unchecked: Vec<String>,
}

/// State of a repair in progress.
struct Repair<'a> {
    storage: &'a Arc<dyn Storage>,
    manifest: Manifest,
    /// Whether the manifest was rebuilt from footers. Then the WAL's own records are the only source about the WAL.
    rebuilt: bool,
    aside: Vec<String>,
    report: Repaired,
}

/// The manifest that a store has, or the reason why it cannot be used.
type Stored = std::result::Result<Manifest, String>;

fn stored(storage: &Arc<dyn Storage>) -> Result<Stored> {
    let manifest = match Manifest::read(&**storage) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return Ok(Err("manifest is missing".to_owned())),
        Err(error) if is_damage(&error) => return Ok(Err(error.to_string())),
        Err(error) => return Err(error),
    };
    if let Some(why) = is_of_another_store(&**storage, &manifest)?.or(is_superseded(&**storage, &manifest)?) {
        return Ok(Err(why));
    }
    let Some(newest) = newest_unnamed(&**storage, &manifest, salvage_footer)? else {
        return Ok(Ok(manifest));
    };
    let repair = Repair { storage, manifest, rebuilt: false, aside: Vec::new(), report: Repaired::default() };
    let files = repair.wal_files()?;
    let (last, _) = repair.end_of_wal(&files)?;
    // If the WAL is damaged, a segment left by a crash may have the batches that it lacks.
    let ahead = newest.is_ahead(&**storage, last);
    Ok(ahead.map_or(Ok(repair.manifest), Err))
}

impl Repair<'_> {
    /// Raises the next number above that of every file, so that no new file overwrites one. Sets files of another store
    /// aside.
    fn reserve_numbers(&mut self) -> Result<()> {
        let storage = &**self.storage;
        let newest = self.manifest.runs.iter().flatten().map(|info| info.id).max();
        let known = self.manifest.next_id.max(newest.unwrap_or(0));
        for own in own_files(storage)? {
            let beyond = is_beyond(storage, known, own);
            if beyond.is_none() {
                self.manifest.next_id = self.manifest.next_id.max(own.id() + 1);
            }
            let why = match beyond {
                None if !self.rebuilt => self.is_of_others(own)?,
                beyond => beyond,
            };
            if let Some(why) = why {
                self.report.findings.push(format!("{why}: set aside"));
                self.aside.push(own.name());
            }
        }
        Ok(())
    }

    /// Returns a message if a file cannot be of the store that the manifest describes: it is foreign, or the store does
    /// not use it and it cannot be read, so that every opening would fail at it.
    fn is_of_others(&self, own: Own) -> Result<Option<String>> {
        let failed = match is_foreign(&**self.storage, &self.manifest, own) {
            Err(failed) if is_damage(&failed) => failed,
            known => return known,
        };
        let is_named = self.manifest.runs.iter().flatten().any(|info| Own::Segment(info.id) == own);
        match own {
            Own::Segment(_) if is_named => Ok(None),
            Own::Wal(id) if id >= self.manifest.wal_floor => Ok(None),
            Own::Segment(_) | Own::Wal(_) => {
                Ok(Some(format!("a file that the store does not use cannot be read: {failed}")))
            }
        }
    }

    fn new_id(&mut self) -> u64 {
        self.manifest.next_id += 1;
        self.manifest.next_id - 1
    }

    /// Replaces every segment that is not wholly readable by one of its readable records.
    fn segments(&mut self) -> Result<()> {
        let base = self.manifest.runs.len() - 1;
        for run in 0..self.manifest.runs.len() {
            let mut kept = Vec::new();
            for info in std::mem::take(&mut self.manifest.runs[run]) {
                let otherwise = Origin {
                    seed: self.manifest.seed,
                    // A manifest rebuilt from footers takes a segment of the base for newer than deltas of its batch,
                    // so the base gets batch 0.
                    batch: if run == base { 0 } else { self.manifest.batch },
                    base: run == base,
                    checkpoint: self.manifest.checkpoint.clone(),
                    part: false,
                    merged: None,
                };
                let id = self.new_id();
                let Salvaged { written, lost, why } = match salvage(self.storage, &info, &otherwise, id)? {
                    None => {
                        kept.push(info);
                        continue;
                    }
                    Some(salvaged) => salvaged,
                };
                self.report.findings.push(why);
                // An older run may have older records of these keys, which become visible now.
                let older = if run == base { "" } else { ", or are older than they were" };
                self.report.lost.extend(lost.into_iter().map(|range| format!("{range}: keys are missing{older}")));
                kept.extend(written);
                self.aside.push(Own::Segment(info.id).name());
            }
            self.manifest.runs[run] = kept;
        }
        // A delta run that has lost all of its segments is no run any more.
        let base = self.manifest.runs.pop().unwrap_or_default();
        self.manifest.runs.retain(|run| !run.is_empty());
        self.manifest.runs.push(base);
        Ok(())
    }

    /// Returns the WAL files that may have batches beyond those in the runs.
    fn wal_files(&self) -> Result<Vec<u64>> {
        let own = own_files(&**self.storage)?.into_iter().filter(|own| !self.aside.contains(&own.name()));
        let wals = own.filter_map(|own| match own {
            Own::Wal(id) if id >= self.manifest.wal_floor => Some(id),
            _ => None,
        });
        Ok(wals.collect())
    }

    /// Reads the WAL as far as possible. If anything in the store was wrong, its batches become runs.
    fn wal(&mut self) -> Result<()> {
        let files = self.wal_files()?;
        let (last, ended) = self.end_of_wal(&files)?;
        self.refuse_misnamed(last)?;
        if ended.broken.is_none() && self.report.findings.is_empty() {
            return Ok(());
        }
        let (mut runs, mut tail) = (Vec::new(), BTreeMap::new());
        let mut complete = (self.manifest.batch, self.manifest.checkpoint.clone());
        let storage = self.storage;
        let seed = self.manifest.seed;
        let mut next_id = self.manifest.next_id;
        let mut write = |tail: &mut BTreeMap<Key, Option<Value>>, (batch, checkpoint): (u64, Checkpoint)| {
            if !runs.is_empty() {
                // As in a replay: the run stands for those before it too.
                sync_dir(&**storage)?;
            }
            let mut writer = SegmentWriter::create(
                storage,
                next_id,
                &Origin { seed, batch, checkpoint, ..Origin::default() },
                Room::alone(),
            )?;
            next_id += 1;
            tail.iter().try_for_each(|(key, value)| writer.push(key, value.as_ref()))?;
            tail.clear();
            runs.insert(0, vec![writer.finish_alone()?]);
            Result::Ok(())
        };
        let from = self.manifest.batch;
        let ended = self.read_wal(&files, &mut |batch, checkpoint, ops| {
            tail.extend(ops);
            complete = (batch, checkpoint);
            if tail.len() >= TAIL_RECORDS_MAX { write(&mut tail, complete.clone()) } else { Ok(()) }
        })?;
        if !tail.is_empty() {
            write(&mut tail, complete.clone())?;
        }
        if complete.0 > from {
            let (batches, seq) = (complete.0 - from, complete.1.seq);
            self.report
                .findings
                .push(format!("recovered from the WAL: batches={batches} last={} seq={seq}", complete.0));
        }
        self.report.lost.extend(ended.gaps);
        let unchecked =
            |file| format!("file={file} cannot be checked to be this store's, because the manifest is lost");
        self.report.findings.extend(ended.unchecked.into_iter().map(unchecked));
        if let Some(why) = ended.broken {
            self.report.findings.push(why);
            self.report.lost.push(format!("batches from {} on, which were in the WAL", complete.0 + 1));
        }
        self.manifest.next_id = next_id;
        (self.manifest.batch, self.manifest.checkpoint) = complete;
        self.manifest.runs.splice(0..0, runs);
        self.aside.extend(files.into_iter().map(wal::name));
        Ok(())
    }

    /// Refuses the repair if a WAL file only needs its former name back, because then nothing is lost.
    fn refuse_misnamed(&self, last: u64) -> Result<()> {
        // Without the manifest the store's salts are unknown.
        let renamed = if self.rebuilt { None } else { misnamed(&**self.storage, &self.manifest)? };
        let why = renamed.and_then(|renamed| renamed.is_ahead(&**self.storage, last));
        why.map_or(Ok(()), |why| Err(Error::new(ErrorKind::FixInput, why)))
    }

    /// Reads the WAL for its last batch.
    fn end_of_wal(&self, files: &[u64]) -> Result<(u64, Ended)> {
        let mut last = self.manifest.batch;
        let ended = self.read_wal(files, &mut |batch, _, _| {
            last = batch;
            Ok(())
        })?;
        Ok((last, ended))
    }

    /// Passes the batches after those in the runs to `take`.
    fn read_wal(&self, files: &[u64], take: &mut dyn FnMut(u64, Checkpoint, Vec<Op>) -> Result<()>) -> Result<Ended> {
        let mut ended = Ended::default();
        let mut position = Position::behind(self.manifest.batch);
        for id in files {
            let known = position.next;
            let (salt, from) = match self.rebuilt {
                false => (self.manifest.wal_key.salt(*id), position),
                // Every WAL file begins with a record that strata wrote, so its salt is the file's. The first batches
                // may be in the runs already, because a run may have been written of a part of a file.
                true => match unless_damaged(wal::begins_with(&**self.storage, *id))? {
                    Some((salt, batch)) => {
                        ended.unchecked.push(shown(&**self.storage, &wal::name(*id)));
                        (salt, Position { next: batch, end: None })
                    }
                    None => {
                        if unless_damaged(wal::begins_torn(&**self.storage, *id).map(Some))?.unwrap_or(true) {
                            let shown = shown(&**self.storage, &wal::name(*id));
                            ended
                                .gaps
                                .push(format!("file={shown}: what it holds, because its first record is not whole"));
                        }
                        continue;
                    }
                },
            };
            if from.next > known {
                let missing = format!("{known} to {}", from.next - 1);
                ended.gaps.push(format!("batches {missing}: no file has them, unless they were empty"));
            }
            let mut refused = false;
            let replayed = wal::replay(&**self.storage, (&salt, *id), from, |batch, found| match batch < known {
                true => Ok(()),
                false => take(batch, found.checkpoint, found.ops).inspect_err(|_| refused = true),
            });
            position = match replayed {
                // An error of `take` says nothing about the file.
                Err(error) if !refused && is_damage(&error) => {
                    ended.broken = Some(error.to_string());
                    return Ok(ended);
                }
                replayed => replayed?,
            };
            position.next = position.next.max(known);
        }
        Ok(ended)
    }

    /// Makes all of it durable, then sets the unused files aside.
    fn install(&mut self) -> Result<()> {
        let storage = &**self.storage;
        if self.rebuilt {
            self.manifest.wal_key = WalKey::random()?;
        }
        self.manifest.wal_floor = self.manifest.next_id;
        // The merge begins anew with every delta, because the deltas may hold records that the base has lost.
        self.manifest.merge_at = [0; 32];
        self.manifest.joined_at = vec![[0; 32]; self.manifest.runs.len() - 1];
        // Record the losses before the store can open again.
        lost::add(storage, &self.report.lost)?;
        sync_dir(storage)?;
        self.manifest.write(storage)?;
        let mut taken: BTreeSet<String> = storage
            .list()
            .map_err(|e| {
                Error::io(format!("cannot list the store's directory: dir={} reason={e}", storage.shown()), e)
            })?
            .into_iter()
            .collect();
        for name in &self.aside {
            let to = free_name(name, &taken);
            taken.insert(to.clone());
            match storage.rename(name, &to) {
                Ok(()) => self.report.findings.push(format!("file={} is not used any more", shown(storage, &to))),
                // The file is a segment that was missing already.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io(format!("cannot rename file={} reason={e}", shown(storage, name)), e)),
            }
        }
        sync_dir(storage)
    }
}

/// Returns the name under which `name` is set aside. A number is added if an earlier repair has taken the plain name.
fn free_name(name: &str, taken: &BTreeSet<String>) -> String {
    let first = format!("{name}{SET_ASIDE}");
    let numbered = (2..).map(|number| format!("{first}-{number}"));
    std::iter::once(first.clone()).chain(numbered).find(|to| !taken.contains(to)).unwrap_or(first)
}
