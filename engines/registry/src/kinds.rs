//! Facts about an engine that a program needs before it opens a store, or when a store is damaged.
//!
//! Owns: these facts, taken from the engines that are in this build. Threads: none of its own.

use engine_api::{Engine, Result};

use crate::list::{EngineKind, compiled};

/// Scrubs a store whose pages have checksums that no read compares (redb), and refuses it if one differs. Otherwise a
/// copy of wrong data would have right checksums.
///
/// # Errors
/// `DataDamaged` naming the damaged place; any other error of the scrub.
pub fn check_before_copy(kind: EngineKind, engine: &mut dyn Engine) -> Result<()> {
    if kind.descriptor().has_checksums && !kind.descriptor().checks_reads {
        engine.scrub()?;
    }
    Ok(())
}

/// Whether a panic of the calling thread becomes an error of an engine.
pub fn catches_panics() -> bool {
    compiled().iter().any(|engine| (engine.descriptor().catches_panics)())
}

/// Makes this process explain a memory fault that ends it: the message names the open LMDB store and says how to
/// continue. LMDB reads through a map, so reading a damaged file can only fail by a signal. The process ends with
/// `exit_code`, or by the signal's default action if that is `None`. Call this once, before a store is opened.
pub fn explain_faults(exit_code: Option<u8>) {
    for engine in compiled() {
        if let Some(explain) = engine.descriptor().explain_faults {
            explain(exit_code);
        }
    }
}
