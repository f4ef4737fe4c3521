//! Compares a store with Solana's snapshot archives: for `service audit`, and for a service that brings its store to the
//! slot of an archive.
//!
//! Owns: the archives, the comparison, and the lines that name keys. Must not: write to the store, or read the feed,
//! which is the service's. Threads: see `side_by_side`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use bytesize::ByteSize;
use engine_api::Engine;
use solana::Extract;

use crate::order::{WorkDir, spilled_records};
use crate::paths::beside;
use crate::scan::open_to_scan;
use crate::seen::Seen;
use crate::served;
pub use crate::side_by_side::Contents;
use crate::side_by_side::{Compared, Differs, SideBySide};
pub use crate::sides::Counts;
use crate::sides::{base58, base58_or_nothing};
use crate::signal::Stop;
pub use crate::source::OtherChain;
use crate::source::{Archives, Source};
pub use crate::undo::{TooManyKeys, Undo};
use crate::verify;

/// Archives that were opened, of a slot that is known.
pub struct Archived {
    source: Source,
    slot: u64,
}

/// The store that is compared, and the means for it.
pub struct Store<'a> {
    /// The open store. Nobody may write to it meanwhile.
    pub engine: &'a dyn Engine,
    /// Directory of the store, whose marker names the engine.
    pub dir: &'a Path,
    /// Memory of the engine, if the user has named one.
    pub memory: Option<ByteSize>,
    /// The store's changes after the archive's slot, which are taken back first.
    pub undo: &'a Undo,
    /// Directory in which the archive is sorted: 73 bytes for each version of an account. An interrupted comparison
    /// leaves the sorted part there for the next one.
    pub sort_dir: PathBuf,
    /// Whether to sort even where the disk looks too small.
    pub skip_disk_check: bool,
    /// Ends the comparison with an error.
    pub stop: &'a Stop,
}

impl Store<'_> {
    fn work(&self) -> WorkDir {
        WorkDir { is_default: true, ..WorkDir::named(&self.sort_dir) }
    }
}

/// Returns the default working directory of an audit of the store in `dir`, which is next to the store.
pub fn work_dir(dir: &Path) -> PathBuf {
    beside(dir, ".audit")
}

/// Says how the next comparison with the same archives begins, after one that sorted them in `sort_dir` was stopped.
pub fn next_start(sort_dir: &Path) -> &'static str {
    verify::next_start(spilled_records(sort_dir).is_some())
}

/// Returns seq and slot of the store that a running service has open in `dir`; `None` if no service runs.
///
/// # Errors
/// The service cannot be reached, or does not answer.
pub fn service_at(dir: &Path) -> Result<Option<(u64, Option<u64>)>> {
    Ok(served::ask(dir)?.map(|served| (served.seq, served.slot)))
}

/// Opens the store in `dir` to read all of it, with an eighth of the process's memory unless `memory` is given.
///
/// # Errors
/// Another process has the store open for writing; errors of opening the engine.
pub fn open(dir: &Path, memory: Option<ByteSize>) -> Result<Box<dyn Engine>> {
    open_to_scan(dir, None, memory)
}

/// Result of a comparison, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Versions of accounts in the archives.
    pub records: u64,
    /// Pairs of the archive, which are the accounts that have a value, on this side; those of the store at the archive's
    /// slot on the other one.
    pub counts: Counts,
    /// Keys changed since the archive's slot whose newest value the store does not hold.
    pub lost_changes: u64,
}

impl Audited {
    /// Whether the store holds exactly the pairs of the archive, and the changes after it.
    pub fn is_equal(&self) -> bool {
        self.counts.unequal() + self.lost_changes == 0
    }
}

impl Archived {
    /// Opens the archives at `full`, and `incremental` on top of it: files, directories or URLs, as `bootstrap --input`
    /// takes them. `slot` is needed where their names do not tell it.
    ///
    /// # Errors
    /// [`Wrong`](crate::Wrong) for archives that do not belong together, or whose slot is unknown or another one; an
    /// archive that cannot be opened.
    pub fn open(full: &Path, incremental: Option<&Path>, extract: Extract, slot: Option<u64>) -> Result<Self> {
        let mut archives = Archives::new(full, incremental, Some(extract), &Seen::default())?;
        let slot = archives.fix_slot(slot)?;
        Ok(Self { source: Source::Archives(archives), slot })
    }

    /// Slot of the newest archive.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Has reading end with [`OtherChain`] as soon as the newest archive names another blockhash for its slot than the stream
    /// does.
    #[must_use]
    pub fn on_the_chain_of(mut self, stream_blockhash: [u8; 32]) -> Self {
        if let Source::Archives(archives) = &mut self.source {
            archives.fix_blockhash(stream_blockhash);
        }
        self
    }

    /// Compares the store, with the changes taken back, with the archives. Calls `name` with a line for each of the
    /// first keys that differ.
    ///
    /// # Errors
    /// Errors of reading and sorting the archives, naming the place; errors of scanning the store; the stop.
    pub fn compare(&self, store: &Store<'_>, name: &mut dyn FnMut(&str)) -> Result<Audited> {
        let Compared { records, counts, lost, .. } = self.side_by_side(store, &store.work()).compare(name)?;
        for one in &lost.named {
            let (expected, found) = (base58_or_nothing(one.expected.as_ref()), base58_or_nothing(one.found.as_ref()));
            name(&format!("lost change: key={} expected={expected} found={found}", base58(&one.key)));
        }
        Ok(Audited { records, counts, lost_changes: lost.count })
    }

    /// Calls `take` for every key whose value in the store differs from that in the archives, in ascending order, with
    /// both values. `seen` receives the progress. `take` is first called after the archives were read to their end.
    ///
    /// # Errors
    /// Those of [`Self::compare`].
    pub fn differences(&self, store: &Store<'_>, seen: &Seen, take: &mut Differs<'_>) -> Result<Contents> {
        let compared = self.side_by_side(store, &store.work()).differences(u64::MAX, seen, take)?;
        Ok(Contents { pairs: compared.counts.pairs, blockhash: compared.blockhash })
    }

    /// Opens an incremental archive without the full one: a file, a directory or a URL, whose name tells its slots.
    ///
    /// # Errors
    /// [`Wrong`](crate::Wrong) for another archive; an archive that cannot be opened.
    pub fn open_incremental(location: &Path, extract: Extract) -> Result<Self> {
        let mut archives = Archives::incremental(location, extract, &Seen::default())?;
        let slot = archives.fix_slot(None)?;
        Ok(Self { source: Source::Archives(archives), slot })
    }

    /// Calls `take` for every account whose value in the store differs from that in an incremental archive, which was
    /// opened without its full one. The order is ascending, and `take` gets both values.
    ///
    /// The archive has the newest version of each account that was written after its base, closed ones included. So if
    /// the store's slot lies between the base and the archive's slot, applying these differences brings the store to
    /// the archive's slot. Changes of the store that may be wrong can be taken back, if the store stood at the base or
    /// later before them: a key that only they changed has no version in the archive. This also holds for a store in which
    /// a heal to the archive's slot or an earlier one is incomplete, because the heal changed only accounts that were
    /// written after the store's slot.
    ///
    /// # Errors
    /// Those of [`Self::compare`].
    pub fn changes(&self, store: &Store<'_>, seen: &Seen, take: &mut Differs<'_>) -> Result<Contents> {
        self.side_by_side(store, &store.work()).changes(seen, take)
    }

    fn side_by_side<'a>(&'a self, store: &'a Store<'_>, work: &'a WorkDir) -> SideBySide<'a> {
        let Store { engine, dir, memory, undo, skip_disk_check, stop, .. } = *store;
        let (source, records) = (&self.source, None);
        SideBySide { source, seed: 0, records, engine, dir, memory, undo, work, skip_disk_check, stop }
    }
}
