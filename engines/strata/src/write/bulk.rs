//! Bulk loading of sorted input straight into the base run, and copies of a store.
//!
//! Owns: the choice between the base run and the WAL for a load, and the content of a copy. Runs on the caller's
//! thread, under the writer lock.

use std::path::Path;
use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, PAIR_BYTES, Result, Value};
use engine_kit::is_final;

use crate::file::sync_dir;
use crate::format::secret::WalKey;
use crate::format::wal::BATCH_OPS_MAX;
use crate::read::segment;
use crate::read::version::{Run, Version};
use crate::storage::DirStorage;
use crate::write::commits::Writer;
use crate::write::lost;
use crate::write::output::{origin_of, write_pairs};
use crate::write::shared::Shared;

/// Loads sorted pairs into the base run, or commits them if the store has keys at or above the first one.
pub(crate) fn load_sorted(shared: &Shared, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.check()?;
    if let Some(at) = pairs.windows(2).position(|two| two[0].0 >= two[1].0) {
        return Err(Error::new(ErrorKind::FixInput, format!("keys do not ascend: at={} of={}", at + 1, pairs.len())));
    }
    let mut writer = shared.commits.writer()?;
    shared.commits.drain(&mut writer)?;
    let last = shared.common.newest.load().version.last_key();
    let Some((first, _)) = pairs.first() else { return shared.commits.commit(&mut writer, &[], checkpoint, true) };
    if last.is_some_and(|last| *first <= last) {
        // A load that was interrupted repeats this chunk: all or part of it is in the store already.
        return overwrite(shared, &mut writer, pairs, checkpoint);
    }
    // No batch has a record in a loaded segment, so its origin is batch 0.
    let written = write_pairs(shared, pairs, &origin_of(shared, 0, true, checkpoint))?;
    shared.common.counters.committed_bytes.add(pairs.len() as u64 * PAIR_BYTES);
    let mut manifest = shared.runs.lock();
    let mut version = Version::clone(&shared.common.newest.load().version);
    version.base = Arc::new(Run::new([version.base.segments(), &written].concat()));
    shared
        .runs
        .install(
            &mut manifest,
            version,
            |manifest| manifest.checkpoint = checkpoint.clone(),
            |visible| visible.checkpoint = checkpoint.clone(),
        )
        .map_err(|e| if is_final(&e) { shared.common.poison(e) } else { e })
}

/// Copies the newest state into the new directory `dir`. Segments are linked where the file system allows it, because
/// they never change. Commits wait only for the memtable's flush, because the version that is held keeps its files
/// while they are linked.
pub(crate) fn copy_store(shared: &Shared, dir: &Path) -> Result<()> {
    let copy_failed =
        |e: std::io::Error| Error::io(format!("cannot copy into the snapshot: dir={} reason={e}", dir.display()), e);
    let target = DirStorage::open(dir).map_err(copy_failed)?;
    let (now, mut copy) = {
        let mut writer = shared.commits.writer()?;
        shared.commits.drain(&mut writer)?;
        // The writer lock is held until both are taken, so nothing is committed. Only a merge could come between, and
        // the install lock keeps it out.
        let manifest = shared.runs.lock();
        (shared.common.newest.load_full(), manifest.clone())
    };
    for found in now.version.segments() {
        shared.common.storage.link_or_copy(&segment::name(found.info.id), dir).map_err(copy_failed)?;
    }
    copy.checkpoint = now.checkpoint.clone();
    // The copy gets a WAL key of its own, because its holder must not know the salts of this store's WAL files.
    copy.wal_key = WalKey::random()?;
    // The copy's WAL starts with a new number, above every number that was given.
    copy.next_id = shared.runs.new_id() + 1;
    copy.wal_floor = copy.next_id;
    // The copy lacks the same data that repairs of this store gave up.
    lost::copy(&*shared.common.storage, &target)?;
    sync_dir(&target)?;
    copy.write(&target)
}

/// Commits pairs in batches that are small enough. All but the last keep the old checkpoint, because the new one holds
/// only once all pairs are in the store. A repeated load finds its pairs there already.
fn overwrite(shared: &Shared, writer: &mut Writer, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
    let before = shared.common.newest.load().checkpoint.clone();
    let mut parts = pairs.chunks(BATCH_OPS_MAX).peekable();
    while let Some(part) = parts.next() {
        let ops: Vec<_> = part.iter().map(|(key, value)| (*key, Some(*value))).collect();
        let at = if parts.peek().is_some() { &before } else { checkpoint };
        shared.commits.commit(writer, &ops, at, true)?;
    }
    Ok(())
}
