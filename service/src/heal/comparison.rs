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
use bootstrap::audit::{Archived, Contents, Store, Undo};
use bootstrap::{Seen, Stop};
use bytesize::ByteSize;
use engine_api::{Engine, Key, Value};
use engine_latency::Measured;

use super::archives::{Archives, Found};
use super::heal_dir;
use super::newest::Newest;
use crate::chain::Base;
use crate::config::Config;
use crate::creation::Shown;
use crate::ingest::healing::{DifferenceWriter, Differences};

const DIR_MODE: u32 = 0o700;

/// The work of the thread `heal`.
pub(super) struct Comparison {
    pub(super) engine: Arc<Measured>,
    pub(super) config: Config,
    pub(super) found: Found,
    /// The changes of the store that are taken back; `None` for a full archive.
    pub(super) newest: Option<Arc<Newest>>,
    pub(super) seen: Seen,
    pub(super) stop: Stop,
}

impl Comparison {
    /// Finds the differences, and the blockhash that the archive names for its slot; all zeros if it names none.
    ///
    /// # Errors
    /// An archive that cannot be read to its end, or has no pairs; errors of the engine and of writing; the stop.
    pub(super) fn run(self) -> Result<(Differences, [u8; 32])> {
        let (slot, extract) = (self.found.slot, self.config.stream.extract);
        let archived = match &self.found.archives {
            Archives::Full(full) => Archived::open(Path::new(full), None, extract, None)?,
            Archives::Both { full, incremental } => {
                Archived::open(Path::new(full), Some(Path::new(incremental)), extract, None)?
            }
            Archives::Incremental { incremental, .. } => Archived::open_incremental(Path::new(incremental), extract)?,
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
        let cache_bytes = self.config.engine.division().cache_bytes;
        let store = Store {
            engine,
            dir: &self.config.store.dir,
            memory: (cache_bytes > 0).then(|| ByteSize::b(cache_bytes)),
            undo,
            sort_dir: dir.join("sorted"),
            skip_disk_check: false,
            stop: &self.stop,
        };
        let mut take = |key: &Key, new: Option<&Value>, old: Option<&Value>| {
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
        let estimate = engine.stats()?.pairs_estimate;
        ensure!(pairs > 0 || estimate == 0, "the archive has no pairs, but the store has: stored_pairs={estimate}");
        Ok((differences, blockhash))
    }
}

/// Joins the stream's block of the archive's slot and the blockhash that the archive names. Either may be unknown, unless
/// the store `is_contradicted`: then both have to name the block that the store goes to.
///
/// # Errors
/// They are of two chains, or one that has to be known is not.
pub(super) fn joined(stream: Base, archive: [u8; 32], is_contradicted: bool) -> Result<Base> {
    let known = |blockhash: [u8; 32]| (blockhash != [0; 32]).then_some(blockhash);
    let (told, named) = (known(stream.blockhash), known(archive));
    if let (Some(told), Some(named)) = (told, named) {
        ensure!(
            told == named,
            "the archive is of another chain than the stream: slot={} archive_blockhash={} stream_blockhash={}",
            stream.slot,
            bs58::encode(named).into_string(),
            bs58::encode(told).into_string()
        );
    } else {
        ensure!(
            !is_contradicted,
            "the archive and the stream do not both name the block of slot={}, and a provider has contradicted the store",
            stream.slot
        );
    }
    Ok(Base { blockhash: told.or(named).unwrap_or_default(), ..stream })
}

/// Describes how far the comparison is that has begun at `begun`.
pub(super) fn progress(slot: u64, shown: &Shown, begun: Instant) -> String {
    let (read, pairs, kept) = (shown.read(begun), shown.load.pairs(), shown.kept());
    format!("comparing with the archive of slot={slot}: read {read}, compared_pairs={pairs}; {kept}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contradicted_store_goes_to_a_block_that_archive_and_stream_both_name() {
        let stream = |hash| Base { slot: 5, blockhash: [hash; 32] };
        for (told, named, plain, contradicted) in [
            (1, 1, Some(1), Some(1)),
            (1, 0, Some(1), None),
            (0, 1, Some(1), None),
            (0, 0, Some(0), None),
            (1, 2, None, None),
        ] {
            let joined = |is_contradicted| joined(stream(told), [named; 32], is_contradicted).ok();
            assert_eq!(
                [joined(false), joined(true)],
                [plain, contradicted].map(|hash| hash.map(stream)),
                "{told} {named}"
            );
        }
    }
}
