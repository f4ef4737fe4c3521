//! Changes of the runs: durable first, then visible.
//!
//! Owns: which segments are named by a manifest, and what becomes of the others. Runs on the thread that merges or
//! loads, under the install lock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_api::Result;

use crate::engine::Shared;
use crate::file::sync_dir;
use crate::filter::PLANES;
use crate::footer::SegmentInfo;
use crate::manifest::Manifest;
use crate::segment::Segment;
use crate::version::Version;
use crate::visible::Visible;

impl Shared {
    /// Opens a segment that was just written.
    pub(crate) fn open_segment(&self, info: SegmentInfo) -> Result<Arc<Segment>> {
        let segment = Segment::open(&self.storage, info, &self.budget, &self.reads)?;
        (1..PLANES).try_for_each(|plane| segment.load_plane(plane, &self.budget, 0))?;
        if self.budget.left_bytes() >= segment.page_bytes().saturating_add(self.pages_beside_bytes) {
            segment.make_resident(&self.budget);
        }
        // What was just written was in the page cache: readers should not have to fetch it again. Reading it back also
        // checks that it can be read.
        segment.fill()?;
        Ok(segment)
    }

    /// A number for a new file.
    pub(crate) fn new_id(&self) -> u64 {
        // ORDERING: Relaxed: as in `rotate`.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes `version` the store's: durable first, then visible. `change` adjusts the manifest and what readers see.
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
        to_manifest(&mut next);
        let before = Arc::clone(&self.visible.load().version);
        let ids = |version: &Version| version.segments().map(|segment| segment.info.id).collect::<BTreeSet<u64>>();
        if let Err(failed) = sync_dir(&*self.storage).and_then(|()| next.write(&*self.storage)) {
            // Where the new manifest is in place after all, its segments must stay; the next opening decides.
            if !matches!(Manifest::read(&*self.storage), Ok(Some(found)) if found == *manifest) {
                return Err(failed);
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
        before.segments().filter(|segment| !kept.contains(&segment.info.id)).for_each(|segment| segment.retire());
        drop(before);
        self.load_missing_planes()
    }

    /// Loads planes for which there was no memory while old segments were still held. What is freed here serves the
    /// next change.
    fn load_missing_planes(&self) -> Result<()> {
        let version = Arc::clone(&self.visible.load().version);
        for plane in 0..PLANES {
            version.segments().try_for_each(|segment| segment.load_plane(plane, &self.budget, 0))?;
        }
        Ok(())
    }
}
