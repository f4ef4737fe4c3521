//! The state that the engine's threads share: commits, runs and memory, each with the lock that guards it.
//!
//! Owns: the order of locks, and how the parts are put together after an opening. Must not: have functions for the work of
//! the store; they are those of the parts, or of the files that use this one. Shared between threads by reference.
//!
//! # Locks, in the order they may be taken
//!
//! | | lock | of | held | guards |
//! |---|---|---|---|---|
//! | 1 | `writer` | [`Commits`] | by the one write transaction | the WAL and the active memtable |
//! | 2 | `balancing` | [`Memory`] | during a division of the memory, one at a time | the shares of all holders |
//! | 3 | `install` | [`Runs`] | during a change of the runs, one at a time | the manifest |
//! | 4 | `publish` | `Newest` (`read/visible.rs`) | for a few instructions, by a holder of `writer` or `install` | the newest state |
//! | 5 | `mailbox` | `Mailbox` | for a few instructions, never during an access to a disk | the requests between threads |
//!
//! Readers load the newest state without a lock and keep it. Each memtable has a lock for its order, which is taken last,
//! by scans and by `strata-flush`. A part uses only parts below it: commits use memory and
//! runs, memory uses runs, and all of them use [`Common`], which has locks 4 and 5.

use std::sync::Arc;

use engine_kit::Poison;

use crate::StrataOptions;
use crate::read::visible::Newest;
use crate::sizes::{Sizes, reserve_bytes};
use crate::storage::Storage;
use crate::write::commits::Commits;
use crate::write::common::Common;
use crate::write::counters::Counters;
use crate::write::mailbox::Mailbox;
use crate::write::memory::Memory;
use crate::write::recover::Recovered;
use crate::write::runs::Runs;

/// State that the engine's threads share.
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) commits: Commits,
}

impl Shared {
    /// Builds the state of a store that was recovered; repairs have recorded `lost` losses of it.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        options: &StrataOptions,
        sizes: Sizes,
        found: Recovered,
        lost: u64,
    ) -> Self {
        let Recovered { visible, wal, batch, manifest, reads, next_id } = found;
        let common = Arc::new(Common {
            poison: Poison::new("strata", storage.shown()),
            storage,
            newest: Newest::new(visible),
            mailbox: Mailbox::default(),
            counters: Counters::default(),
            sizes,
            reserve_bytes: reserve_bytes(options, &sizes),
            lost,
        });
        let wal_key = manifest.wal_key;
        let runs = Arc::new(Runs::new(&common, manifest, next_id));
        let memory = Arc::new(Memory::new(&common, &runs, reads, options));
        let commits = Commits::new(&common, &runs, &memory, wal_key, (wal, batch));
        Self { common, runs, memory, commits }
    }
}
