//! What a program has to know of an engine before it opens a store, or when one is damaged.
//!
//! Owns: these answers, from the engines that are in this build. Threads: none of its own.

use engine_api::{Engine, Result};

use crate::options::{EngineKind, EngineOptions};
use crate::store;

impl EngineKind {
    /// Whether [`repair`](crate::repair) can make a damaged store of this engine whole again.
    pub fn has_repair(self) -> bool {
        self == Self::Strata
    }

    /// Whether each read compares what it reads with a checksum. redb has checksums and compares them in a scrub alone; LMDB
    /// has none.
    pub fn checks_reads(self) -> bool {
        matches!(self, Self::Rocksdb | Self::Strata)
    }

    /// Whether a scrub compares what is stored with checksums.
    pub fn has_checksums(self) -> bool {
        self != Self::Lmdb
    }
}

impl EngineOptions {
    /// Bytes that a store leaves free on its disk: with less it takes no writes.
    pub fn disk_reserve_bytes(&self) -> u64 {
        match self.engine {
            #[cfg(feature = "rocksdb")]
            EngineKind::Rocksdb => store::rocksdb_options(self).disk_reserve_bytes,
            #[cfg(feature = "lmdb")]
            EngineKind::Lmdb => engine_lmdb::LmdbOptions::default().disk_reserve_bytes,
            #[cfg(feature = "redb")]
            EngineKind::Redb => engine_redb::RedbOptions::default().disk_reserve_bytes,
            #[cfg(feature = "strata")]
            EngineKind::Strata => store::strata_options(self).reserve_bytes(),
            #[allow(unreachable_patterns, reason = "the arm for engines left out of the build")]
            _ => 0,
        }
    }
}

/// Refuses a store whose pages have checksums that no read compares (redb), where any of them differs: whatever is
/// copied from it would be sound afterwards, and wrong.
///
/// # Errors
/// `DataDamaged` naming what is damaged.
pub fn check_before_copy(kind: EngineKind, engine: &mut dyn Engine) -> Result<()> {
    if kind.has_checksums() && !kind.checks_reads() {
        engine.scrub()?;
    }
    Ok(())
}

/// Has this process say which store is open, and what to do, when a memory fault ends it: LMDB reads through a map, where a
/// damaged file cannot fail in another way. It ends with `exit_code`, or by the signal's default action. To be called once,
/// before a store is opened.
pub fn explain_faults(exit_code: Option<u8>) {
    #[cfg(feature = "lmdb")]
    engine_lmdb::explain_faults(exit_code);
    #[cfg(not(feature = "lmdb"))]
    let _ = exit_code;
}
