//! The comparison of the store with snapshot archives.
//!
//! Owns: which accounts are compared, and the file of the differences. Must not: write to the engine. Runs on the thread
//! `heal`, together with bootstrap's threads.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bootstrap::audit::{Archived, Contents, OtherChain, Store, Undo};
use bootstrap::{Seen, Stop};
use bytesize::ByteSize;
use engine_api::{Engine, Key, Value};
use engine_latency::Measured;

use super::archives::{Archives, Found};
use super::heal_dir;
use super::newest_changes::NewestChanges;
use crate::base::chain::Base;
use crate::config::Config;
use crate::creation::Shown;
use crate::ingest::healing::{DifferenceWriter, Differences};

const DIR_MODE: u32 = 0o700;

/// Number of keys of the store that a full archive may lack in any case.
const VANISHED_MAX: u64 = 1000;
/// A full archive may lack 1/`VANISHED_SHARE` of the store's keys. Few accounts are closed, so one that lacks more is of
/// another cluster, or the store is.
const VANISHED_SHARE: u64 = 2;

/// The work of the thread `heal`.
pub(super) struct Comparison {
    pub(super) engine: Arc<Measured>,
    pub(super) config: Config,
    pub(super) found: Found,
    /// The stream's block of the archive's slot.
    pub(super) to: Base,
    /// The changes of the store that are taken back; `None` for a full archive.
    pub(super) newest: Option<Arc<NewestChanges>>,
    pub(super) seen: Seen,
    pub(super) stop: Stop,
}

impl Comparison {
    /// Finds the differences, and the blockhash that the archive names for its slot; all zeros if it names none.
    ///
    /// # Errors
    /// [`OtherChain`]; an archive that cannot be read to its end, has no pairs, or lacks most keys of the store; errors of the
    /// engine and of writing; the stop.
    pub(super) fn run(self) -> Result<(Differences, [u8; 32])> {
        let (slot, extract) = (self.found.slot, self.config.stream.extract);
        let archived = match &self.found.archives {
            Archives::Full(full) => Archived::open(Path::new(full), None, extract, None)?,
            Archives::Both { full, incremental } => {
                Archived::open(Path::new(full), Some(Path::new(incremental)), extract, None)?
            }
            Archives::Incremental { incremental, .. } => Archived::open_incremental(Path::new(incremental), extract)?,
        };
        let archived = match known(self.to.blockhash) {
            Some(blockhash) => archived.on_the_chain_of(blockhash),
            None => archived,
        };
        ensure!(archived.slot() == slot, "the archive is of another slot: slot={} named_slot={slot}", archived.slot());
        let dir = heal_dir(&self.config.store.dir);
        let made = DirBuilder::new().recursive(true).mode(DIR_MODE).create(&dir);
        made.with_context(|| format!("cannot make dir={}", dir.display()))?;
        let mut writer = DifferenceWriter::create(&dir.join("differences"))?;
        // Not the measured engine, because a scan is no lookup.
        let engine: &dyn Engine = self.engine.inner();
        let nothing = Undo::nothing();
        let undo = self.newest.as_ref().map_or(&nothing, |newest| &newest.undo);
        let cache_bytes = self.config.engine.options().division().cache_bytes;
        let store = Store {
            engine,
            dir: &self.config.store.dir,
            memory: (cache_bytes > 0).then(|| ByteSize::b(cache_bytes)),
            undo,
            sort_dir: dir.join("sorted"),
            skip_disk_check: false,
            stop: &self.stop,
        };
        let (mut appeared, mut vanished) = (0u64, 0u64);
        let mut take = |key: &Key, new: Option<&Value>, old: Option<&Value>| {
            appeared += u64::from(old.is_none());
            vanished += u64::from(new.is_none());
            if !writer.push(key, old, new) {
                self.stop.ask();
            }
        };
        if matches!(self.found.archives, Archives::Incremental { .. }) {
            let changed = archived.changes(&store, &self.seen, &mut take);
            // An error of writing has stopped the lookups.
            let differences = writer.finish()?;
            return Ok((differences, changed?.blockhash));
        }
        let compared = archived.differences(&store, &self.seen, &mut take);
        // An error of writing has stopped the scan.
        let differences = writer.finish()?;
        let Contents { pairs, blockhash } = compared?;
        let stored = pairs + vanished - appeared;
        ensure!(pairs > 0 || stored == 0, "the archive has no pairs, but the store has: stored_pairs={stored}");
        check_vanished(vanished, stored)?;
        Ok((differences, blockhash))
    }
}

/// Refuses an archive that lacks so many of the store's keys.
fn check_vanished(vanished: u64, stored_pairs: u64) -> Result<()> {
    ensure!(
        vanished <= VANISHED_MAX.max(stored_pairs / VANISHED_SHARE),
        "the archive lacks most keys of the store: missing_keys={vanished} stored_pairs={stored_pairs}: it is of another \
         cluster, or the store is. If the archive is right, create a store from it"
    );
    Ok(())
}

/// Joins the stream's block of the archive's slot and the blockhash that the archive names. Either may be unknown.
///
/// # Errors
/// [`OtherChain`].
pub(super) fn joined(stream: Base, archive: [u8; 32]) -> Result<Base> {
    let (sent, named) = (known(stream.blockhash), known(archive));
    if let Some((stream_blockhash, archive)) = sent.zip(named).filter(|(sent, named)| sent != named) {
        return Err(OtherChain { slot: stream.slot, archive, stream: stream_blockhash }.into());
    }
    Ok(Base { blockhash: sent.or(named).unwrap_or_default(), ..stream })
}

/// Checks that the stream and the archive both name a block of the archive's slot. One source alone
/// does not change a store that a provider contradicts.
///
/// # Errors
/// One of them names none.
pub(super) fn both_named(stream: Base, archive: [u8; 32]) -> Result<()> {
    for (blockhash, source) in [(archive, "archive"), (stream.blockhash, "stream")] {
        ensure!(
            known(blockhash).is_some(),
            "a provider contradicts the store, and the {source} does not name the blockhash of slot={}",
            stream.slot
        );
    }
    Ok(())
}

/// Describes how far the comparison is that has begun at `begun`.
pub(super) fn progress(slot: u64, shown: &Shown, begun: Instant) -> String {
    let (read, pairs, kept) = (shown.read(begun), shown.load.now().pairs, shown.kept());
    format!("comparing with the archive of slot={slot}: read {read}, compared_pairs={pairs}; {kept}")
}

fn known(blockhash: [u8; 32]) -> Option<[u8; 32]> {
    (blockhash != [0; 32]).then_some(blockhash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_lacks_most_keys_is_refused() {
        for (vanished, stored, is_right) in
            [(1000, 1000, true), (1001, 1001, false), (1001, 2001, false), (1001, 2002, true), (350, 700, true)]
        {
            assert_eq!(check_vanished(vanished, stored).is_ok(), is_right, "{vanished} of {stored}");
        }
    }

    #[test]
    fn archive_and_stream_name_one_block_and_for_a_contradicted_store_both_do() {
        let stream = |hash| Base { slot: 5, blockhash: [hash; 32] };
        for (told, named, to, both) in [
            (1, 1, Some(1), true),
            (1, 0, Some(1), false),
            (0, 1, Some(1), false),
            (0, 0, Some(0), false),
            (1, 2, None, true),
        ] {
            assert_eq!(joined(stream(told), [named; 32]).ok(), to.map(stream), "{told} {named}");
            assert_eq!(both_named(stream(told), [named; 32]).is_ok(), both, "{told} {named}");
        }
    }
}
