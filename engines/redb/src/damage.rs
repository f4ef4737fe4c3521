//! Turns redb's panics over damaged pages into errors.
//!
//! Owns: this border. redb checks a page's kind and lengths by assertions, so that a flipped bit ends the thread that reads
//! it: a service would be started again for ever, and a program end without a word of what to do. Must not: go on after a
//! panic; what was read is not used, and a writer is poisoned. Runs on the caller's thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine_api::{Error, ErrorKind, Result};

/// Calls redb, and makes an error of its panic. What `call` has changed must not be used after an error.
///
/// # Errors
/// Those of `call`; `DataDamaged` after a panic.
pub(crate) fn caught<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Nothing of what the closure borrows is used again: redb's own locks are poisoned and refuse, and every caller hands
    // the error on.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(damaged(what, &*panic)))
}

/// The error after a panic of redb.
pub(crate) fn damaged(what: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let reason = text.and_then(|text| text.lines().next()).unwrap_or("unknown");
    Error::new(
        ErrorKind::DataDamaged,
        format!(
            "{what}: redb found a page that cannot be right: reason={reason:?}: restore a snapshot, or load the store again"
        ),
    )
}
