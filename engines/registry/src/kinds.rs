//! Facts about an engine that a program needs before it opens a store, or when a store is damaged.
//!
//! Owns: these facts, taken from the engines that are in this build. Threads: none of its own.

use engine_api::{Engine, Result};

use crate::options::{EngineKind, EngineOptions};
use crate::store;

impl EngineKind {
    /// Whether [`repair`](crate::repair) can make a damaged store of this engine sound again.
    pub fn has_repair(self) -> bool {
        self == Self::Strata
    }

    /// Whether each read is compared with a checksum. redb has checksums but compares them only in a scrub, and LMDB
    /// has none.
    pub fn checks_reads(self) -> bool {
        matches!(self, Self::Rocksdb | Self::Strata)
    }

    /// Whether a scrub compares the stored data with checksums.
    pub fn has_checksums(self) -> bool {
        self != Self::Lmdb
    }
}

impl EngineOptions {
    /// Returns the bytes that a store leaves free on its disk. With less free space it accepts no writes. 0 for an
    /// engine that is not in this build.
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

/// Scrubs a store whose pages have checksums that no read compares (redb), and refuses it if one differs: data copied
/// from it would seem sound afterwards, and be wrong.
///
/// # Errors
/// `DataDamaged` naming the damaged place; any other error of the scrub.
pub fn check_before_copy(kind: EngineKind, engine: &mut dyn Engine) -> Result<()> {
    if kind.has_checksums() && !kind.checks_reads() {
        engine.scrub()?;
    }
    Ok(())
}

/// Makes this process explain a memory fault that ends it: the message names the open LMDB store and says how to go on.
/// LMDB reads through a map, so reading a damaged file can only fail by a signal. The process ends with `exit_code`, or
/// by the signal's default action if that is `None`. Call this once, before a store is opened.
pub fn explain_faults(exit_code: Option<u8>) {
    #[cfg(feature = "lmdb")]
    engine_lmdb::explain_faults(exit_code);
    #[cfg(not(feature = "lmdb"))]
    let _ = exit_code;
}
