//! Checks that a load fits on the disk, before it begins and again once its source has been read.
//!
//! Owns: which bytes each disk must have free. The sizes of stores and spills are those of `limits`. Must not: create
//! anything. Runs on the main thread.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use engine_api::Code;

use crate::args::LoadArgs;
use crate::limits;
use crate::order::{Ordered, comes_in, is_spilled};
use crate::setup::Setup;

/// The directories of a load and the bytes that their files take.
struct Places {
    store: PathBuf,
    work: PathBuf,
    store_bytes: u64,
    spill_bytes: u64,
    /// Whether both are on one disk.
    share: bool,
}

impl Places {
    fn of(args: &LoadArgs, setup: &Setup) -> Self {
        // The disk of a directory that is missing is that of the nearest one above it, and a relative path may end
        // before that.
        let absolute = |dir: &Path| std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let (store, work) = (absolute(&args.dir), absolute(&setup.work.path));
        let (store_bytes, spill_bytes) = (probe::disk_bytes(&store), probe::disk_bytes(&work));
        let share = probe::is_same_disk(&store, &work);
        Self { store, work, store_bytes, spill_bytes, share }
    }

    /// Returns the bytes that a store and its spill take at their peak, if both are on one disk.
    fn peak_bytes(&self, store_bytes: u64, spill_bytes: u64) -> u64 {
        // A spill that is made anew holds all records, also those that the store has already.
        let anew_bytes = if spill_bytes == 0 || is_spilled(&self.work) { 0 } else { self.store_bytes };
        limits::peak_bytes(store_bytes, spill_bytes.saturating_add(anew_bytes))
    }
}

/// Refuses a load that will not fit on the disk. Bytes that an earlier run has written count as available. The check
/// assumes that the spill can be given back, because that is tried only once there is a spill.
pub(crate) fn check(args: &LoadArgs, setup: &Setup) -> Result<()> {
    let Some(records) = setup.source.count_hint()?.or_else(|| setup.source.packed_count_hint()) else {
        return check_store(args, setup, &Places::of(args, setup), 0);
    };
    let store_bytes = limits::store_bytes(setup.options.engine, setup.order, records);
    let is_unspilled = comes_in(&setup.source, setup.order);
    let spill_bytes = if is_unspilled { 0 } else { limits::spill_bytes(records, &setup.buffers) };
    let now = Places::of(args, setup);
    if now.share {
        let peak_bytes = now.peak_bytes(store_bytes, spill_bytes);
        return check_store(args, setup, &now, peak_bytes.saturating_sub(now.spill_bytes));
    }
    // A complete spill does not grow, and neither does one of which a part was given back.
    let spill_left = if is_spilled(&now.work) { 0 } else { spill_bytes.saturating_sub(now.spill_bytes) };
    probe::check_disk(&now.work, spill_left)?;
    check_store(args, setup, &now, store_bytes)
}

/// Checks the disk space again once the source has been read, because only then is the number of pairs in a packed
/// file, a pipe or a CSV known. The spill is on disk by now. As it is given back, the store takes its place.
pub(crate) fn check_after_reading(args: &LoadArgs, setup: &Setup, ordered: &Ordered) -> Result<()> {
    let store_bytes = limits::store_bytes(setup.options.engine, setup.order, ordered.records);
    let now = Places::of(args, setup);
    let mut bytes = store_bytes;
    if now.share && ordered.gives_back() {
        bytes = bytes.saturating_sub(now.spill_bytes).saturating_add(limits::twice_bytes(store_bytes));
    }
    check_store(args, setup, &now, bytes)
        .with_context(|| format!("the source has been read, and its spill is kept: {}", args.way_on()))
}

/// Refuses the load if the disk has no room for a store's directory of `bytes`, for the spool, and for the engine's
/// reserve. The reserve counts because the engine refuses writes that would reduce it.
fn check_store(args: &LoadArgs, setup: &Setup, now: &Places, bytes: u64) -> Result<()> {
    let beside_bytes = args.beside_bytes;
    if bytes == 0 && beside_bytes == 0 {
        return Ok(());
    }
    let left_bytes = bytes.saturating_add(beside_bytes).saturating_sub(now.store_bytes);
    let needed_bytes = left_bytes.saturating_add(setup.options.disk_reserve_bytes());
    if beside_bytes == 0 {
        return probe::check_disk(&now.store, needed_bytes).context(Code::Space);
    }
    let free_bytes = probe::space(&now.store)?.free_bytes;
    ensure!(
        free_bytes >= needed_bytes,
        anyhow!(
            "not enough disk for the load and the spool beside it: dir={} free_bytes={free_bytes} \
             needed_bytes={needed_bytes} (an estimate) spool_max_bytes={beside_bytes} of them: free space, or lower \
             spool_max_bytes",
            now.store.display()
        )
        .context(Code::Space)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spill_that_is_made_anew_needs_room_beside_what_the_store_has() {
        let dir = tempfile::tempdir().unwrap();
        let now = |store_bytes| Places {
            store: dir.path().join("store"),
            work: dir.path().join("work"),
            store_bytes,
            spill_bytes: 0,
            share: true,
        };
        let (store_bytes, spill_bytes) = (19 << 30, 21 << 30);
        let fresh = now(0).peak_bytes(store_bytes, spill_bytes);
        assert_eq!(fresh, limits::peak_bytes(store_bytes, spill_bytes));
        assert_eq!(now(17 << 30).peak_bytes(store_bytes, spill_bytes), fresh + (17 << 30));
        assert_eq!(now(17 << 30).peak_bytes(store_bytes, 0), store_bytes, "nothing is spilled");
    }
}
