//! Recovery: runs from the manifest, and later batches from the WAL.
//!
//! Owns: FORMAT.md's "Recovery". Runs on the thread that opens the store.

use std::sync::Arc;

use engine_api::Result;

use crate::budget::Budget;
use crate::format::manifest::Manifest;
use crate::format::wal::Wal;
use crate::memtable::Mem;
use crate::read::lookup::Reads;
use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::read::visible::Visible;
use crate::sizes::mem_bytes;
use crate::storage::Storage;
use crate::write::at_once::at_once;
use crate::write::directory::{remove_obsolete, survey};
use crate::write::replay::{Accept, Replay, Replayed};
use crate::{Sizes, StrataOptions};

/// The recovered state that the store continues from.
pub(crate) struct Recovered {
    pub(crate) visible: Visible,
    pub(crate) wal: Wal,
    /// Number of the last batch that was recovered.
    pub(crate) batch: u64,
    pub(crate) manifest: Manifest,
    pub(crate) reads: Arc<Reads>,
    pub(crate) next_id: u64,
}

/// Recovers the runs from the manifest and later batches from the WAL. Files that nothing needs are removed after the
/// whole store proved to be in a state that a crash can leave and `accept` has accepted the checkpoint.
pub(crate) fn recover(
    storage: &Arc<dyn Storage>,
    options: &StrataOptions,
    sizes: Sizes,
    mut manifest: Manifest,
    accept: Accept<'_>,
) -> Result<Recovered> {
    let mem_records = sizes.mem_records;
    let budget = Budget::new(options.memory_bytes.saturating_sub(mem_bytes(options)));
    let reads = Arc::new(Reads::new(manifest.seed, &budget));
    let mut version = open_version(storage, &manifest, &budget, &reads)?;
    let mut found = survey(&**storage, &manifest)?;
    let next_id = manifest.next_id.max(found.highest + 1);
    let mut replay = Replay { storage, budget: &budget, reads: &reads, mem_records, next_id, accept };
    let Replayed { batch, checkpoint, frozen } = replay.run(&mut found, &mut manifest, &mut version)?;
    let next_id = replay.next_id;
    let wal = Wal::create(&**storage, &manifest.wal_key, next_id, None, batch)?;
    remove_obsolete(&**storage, &mut found)?;
    // The replayed memtable is frozen at once, before a new active one.
    let visible = Visible {
        active: Arc::new(Mem::new(version.usual_mem_records(mem_records as u64) as usize)?),
        length: 0,
        frozen: frozen.into_iter().collect(),
        version: Arc::new(version),
        checkpoint,
        mem_records: mem_records as u64,
    };
    Ok(Recovered { visible, wal, batch, manifest, reads, next_id: next_id + 1 })
}

/// Opens all runs. Their filters are read once the store is open.
fn open_version(
    storage: &Arc<dyn Storage>,
    manifest: &Manifest,
    budget: &Arc<Budget>,
    reads: &Arc<Reads>,
) -> Result<Version> {
    let in_base = |run: usize| run + 1 == manifest.runs.len();
    let all = manifest.runs.iter().enumerate().flat_map(|(run, infos)| infos.iter().map(move |info| (run, info)));
    let opened = at_once(all.collect(), |(run, info)| Segment::open(storage, *info, in_base(run), budget, reads));
    let (mut opened, mut runs) = (opened.into_iter(), Vec::new());
    // The base is the last run and has no beginning.
    let joined = manifest.joined_at.iter().copied().chain(std::iter::once([0; 32]));
    for (run, joined_at) in manifest.runs.iter().zip(joined) {
        let segments = opened.by_ref().take(run.len()).collect::<Result<_>>()?;
        runs.push(Arc::new(Run::joining(segments, joined_at)));
    }
    let base = runs.pop().unwrap_or_default();
    Ok(Version { deltas: runs, base, merge_at: manifest.merge_at })
}
