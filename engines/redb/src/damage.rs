//! Turns redb's panics over damaged pages into errors.
//!
//! Owns: catching these panics. redb checks the kind and the lengths of a page by assertions, so a flipped bit ends the
//! thread that reads the page. A service would be restarted forever, and a program would end without naming a remedy.
//! Must not: use data after a panic; a writer is poisoned then. Runs on the caller's thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine_api::{Error, ErrorKind, Result};

/// Calls redb and turns its panic into an error. Data that `call` has changed must not be used after an error.
///
/// # Errors
/// Any error of `call`; `DataDamaged` after a panic.
pub(crate) fn caught<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Nothing that the closure borrows is used again: redb's own locks are poisoned and refuse, and every caller
    // returns the error.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(damaged(what, &*panic)))
}

/// Builds the error that reports a panic of redb.
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
