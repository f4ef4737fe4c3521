//! The runs of an open store: the manifest that names them, the numbers of its files, and their replacement.
//!
//! Owns: which segments a manifest names, the removal of the others, and the lock `install`, the third in the order of
//! `write/shared.rs`. It is held during a change of the runs (a flush, a merge, a load, a division of the memory), one
//! at a time, and guards the manifest. Must not: write a segment, or decide which runs are merged. Runs on the threads
//! that flush, merge, load, and divide the memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use engine_api::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::file::sync_dir;
use crate::format::manifest::Manifest;
use crate::read::segment::Segment;
use crate::read::version::Version;
use crate::read::visible::Visible;
use crate::write::common::Common;
use crate::write::garbage::Garbage;
use crate::write::plan::{debt, pressure_of};

/// The runs, as far as they can be replaced.
pub(crate) struct Runs {
    common: Arc<Common>,
    install: Mutex<Manifest>,
    /// Number of the next new file.
    next_id: AtomicU64,
    /// How strongly commits are slowed because merges lag, measured at the newest change of the runs: see
    /// `write/plan.rs`.
    pressure: AtomicU32,
    /// Versions and memtables that were replaced.
    pub(crate) garbage: Garbage,
}

impl Runs {
    /// Makes the runs of a store that was recovered; `next_id` is the number of its next new file.
    pub(crate) fn new(common: &Arc<Common>, manifest: Manifest, next_id: u64) -> Self {
        Self {
            common: Arc::clone(common),
            install: Mutex::new(manifest),
            next_id: AtomicU64::new(next_id),
            pressure: AtomicU32::new(pressure_of(&common.newest.load())),
            garbage: Garbage::default(),
        }
    }

    /// Takes the lock `install`, under which the runs are changed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Manifest> {
        self.install.lock()
    }

    /// Returns a number for a new file. Each number is given once.
    pub(crate) fn new_id(&self) -> u64 {
        // ORDERING: Relaxed: each number is given once; the manifest orders the files.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns how far merges lag.
    pub(crate) fn pressure(&self) -> u32 {
        // ORDERING: Relaxed: a measurement, which is as good a moment later.
        self.pressure.load(Ordering::Relaxed)
    }

    /// Replaces segments of the version by those in `others`, which maps their numbers and differs in memory alone.
    pub(crate) fn replace_segments(&self, others: &BTreeMap<u64, Arc<Segment>>) {
        let _install = self.install.lock();
        let before = Arc::clone(&self.common.newest.load().version);
        let version = Arc::new(before.with(others));
        self.common.newest.publish(|visible| visible.version = version);
        self.garbage.hold(before as _, None);
    }

    /// Measures how far merges lag, for commits and for the statistics.
    fn measure(&self) {
        let now = self.common.newest.load();
        // ORDERING: Relaxed: as in `pressure`.
        self.pressure.store(pressure_of(&now), Ordering::Relaxed);
        self.common.counters.runs_most.raise(now.version.deltas.len() as u64);
        self.common.counters.debt_most_percent.raise(debt(&now).percent());
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
        // ORDERING: Relaxed: as in `new_id`.
        next.next_id = self.next_id.load(Ordering::Relaxed);
        version.describe(&mut next);
        to_manifest(&mut next);
        let before = Arc::clone(&self.common.newest.load().version);
        let ids = |version: &Version| version.segments().map(|segment| segment.info.id).collect::<BTreeSet<u64>>();
        if let Err(failed) = sync_dir(&*self.common.storage).and_then(|()| next.write(&*self.common.storage)) {
            // If the new manifest is in place after all, its segments must stay; the next opening decides.
            let nothing_begun = failed.kind() == ErrorKind::Retry;
            if !nothing_begun && !matches!(Manifest::read(&*self.common.storage), Ok(Some(found)) if found == *manifest)
            {
                // Writing ends, also if only space was lacking to make the manifest's name durable.
                return Err(Error::with_source(ErrorKind::Reopen, failed.to_string(), failed));
            }
            let known = ids(&before);
            version.segments().filter(|segment| !known.contains(&segment.info.id)).for_each(|segment| segment.retire());
            return Err(failed);
        }
        let kept = ids(&version);
        *manifest = next;
        self.common.newest.publish(|visible| {
            visible.version = Arc::new(version);
            to_visible(visible);
        });
        self.measure();
        before.segments().filter(|segment| !kept.contains(&segment.info.id)).for_each(|segment| segment.retire());
        self.garbage.hold(before, None);
        Ok(())
    }
}
