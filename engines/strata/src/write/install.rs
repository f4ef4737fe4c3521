//! Changes of the runs: durable first, then visible.
//!
//! Owns: which segments a manifest names, and the removal of the others. Runs on the threads that flush, merge and
//! load, under the install lock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_api::{Checkpoint, Error, ErrorKind, Result};

use crate::file::sync_dir;
use crate::format::footer::Origin;
use crate::format::manifest::Manifest;
use crate::format::page::PAGE_RECORDS_MIN;
use crate::huge::map_huge;
use crate::read::segment::{self, Kept, Segment};
use crate::read::version::Version;
use crate::read::visible::Visible;
use crate::storage::PAGE_BYTES;
use crate::write::limits::pressure_of;
use crate::write::plan::debt;
use crate::write::shared::Shared;
use crate::write::writer::{SegmentWriter, Written};

/// Turns the error of opening a new segment into one that may be retried: no manifest names the segment, so it can be
/// written again.
fn unread(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Reopen => Error::with_source(ErrorKind::Retry, error.to_string(), error),
        _ => error,
    }
}

impl Shared {
    /// Completes a segment and opens it. Its directory, and the planes for which there is room, stay in memory.
    pub(crate) fn complete(&self, writer: SegmentWriter) -> Result<Arc<Segment>> {
        self.make_room(writer.index_bytes());
        let Written { footer, index, kept } = writer.finish(&self.reads)?;
        let name = segment::name(footer.info.id);
        let segment = Segment::written(&self.storage, footer, index, &self.reads).map_err(|e| {
            // No manifest names it; the next opening removes it if it stays.
            self.storage.remove(&name).ok();
            unread(e)
        })?;
        if let Some(pages) = kept {
            segment.adopt_pages(pages);
        }
        self.counters.segment(segment.file_bytes());
        Ok(segment)
    }

    /// Returns room for the pages of a segment of `records`, if memory is available to keep them. Readers then need not
    /// fetch the pages that a merge has rewritten.
    pub(crate) fn room_for_pages(&self, records: u64) -> Option<Kept> {
        // ORDERING: Relaxed: see `balance`.
        if !self.keeps_pages.load(Ordering::Relaxed) {
            return None;
        }
        let bytes = records.div_ceil(PAGE_RECORDS_MIN as u64) * PAGE_BYTES as u64;
        let share = self.budget.take(bytes, self.work_left_bytes())?;
        // If mapping fails, pages are read when they are asked for.
        map_huge(bytes as usize).ok().map(|map| Kept { map, share })
    }

    /// Origin of the records of a segment that is written now.
    pub(crate) fn origin(&self, batch: u64, base: bool, checkpoint: &Checkpoint) -> Origin {
        Origin { seed: self.reads.seed, batch, base, checkpoint: checkpoint.clone(), part: false }
    }

    /// Returns a number for a new file. Each number is given once.
    pub(crate) fn new_id(&self) -> u64 {
        // ORDERING: Relaxed: as in `rotate`.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Measures how far merges lag, for commits and for the statistics.
    fn measure(&self) {
        let now = self.visible.load();
        // ORDERING: Relaxed: a measurement, which is as good a moment later.
        self.pressure.store(pressure_of(&now), Ordering::Relaxed);
        self.counters.shape(now.version.deltas.len() as u64, debt(&now).percent());
    }

    /// Makes `version` the store's: durable first, then visible. `to_manifest` and `to_visible` make further changes of
    /// the manifest and of the state that readers see.
    pub(crate) fn install(
        &self,
        manifest: &mut Manifest,
        version: Version,
        to_manifest: impl FnOnce(&mut Manifest),
        to_visible: impl FnOnce(&mut Visible),
    ) -> Result<()> {
        let mut next = manifest.clone();
        // ORDERING: Relaxed: as in `rotate`.
        next.next_id = self.next_id.load(Ordering::Relaxed);
        next.runs = version.runs().map(|run| run.segments().iter().map(|segment| segment.info).collect()).collect();
        next.merged_below = version.merged_below;
        to_manifest(&mut next);
        let before = Arc::clone(&self.visible.load().version);
        let ids = |version: &Version| version.segments().map(|segment| segment.info.id).collect::<BTreeSet<u64>>();
        if let Err(failed) = sync_dir(&*self.storage).and_then(|()| next.write(&*self.storage)) {
            // If the new manifest is in place after all, its segments must stay; the next opening decides.
            let nothing_begun = failed.kind() == ErrorKind::Retry;
            if !nothing_begun && !matches!(Manifest::read(&*self.storage), Ok(Some(found)) if found == *manifest) {
                // Writing ends, also if only space was lacking to make the manifest's name durable.
                return Err(Error::with_source(ErrorKind::Reopen, failed.to_string(), failed));
            }
            let known = ids(&before);
            version.segments().filter(|segment| !known.contains(&segment.info.id)).for_each(|segment| segment.retire());
            return Err(failed);
        }
        let kept = ids(&version);
        *manifest = next;
        self.publish(|visible| {
            visible.version = Arc::new(version);
            to_visible(visible);
        });
        self.measure();
        before.segments().filter(|segment| !kept.contains(&segment.info.id)).for_each(|segment| segment.retire());
        self.garbage.hold(before, None);
        Ok(())
    }
}
