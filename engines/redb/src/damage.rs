//! Turns redb's panics over damaged pages into errors.
//!
//! Owns: catching these panics. redb checks the kind and the lengths of a page by assertions, so a flipped bit ends the
//! thread that reads the page. A service would be restarted forever, and a program would end without naming a remedy.
//! Must not: use data after a panic; a writer is poisoned then. Runs on the caller's thread.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use engine_api::{Error, ErrorKind, Result};

thread_local! {
    /// Whether a panic of this thread becomes an error of the engine.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread becomes an error of the engine.
pub(crate) fn catches_panics() -> bool {
    CATCHES.get()
}

/// Calls redb and turns its panic into an error. Data that `call` has changed must not be used after an error.
///
/// # Errors
/// Any error of `call`; `DataDamaged` after a panic.
pub(crate) fn caught<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = CATCHES.replace(true);
    // Nothing that the closure borrows is used again: redb's own locks are poisoned and refuse, and every caller
    // returns the error.
    let outcome = catch_unwind(AssertUnwindSafe(call));
    match (outcome, CATCHES.replace(before)) {
        (Ok(outcome), _) => outcome,
        // Not redb has panicked, but what it called through `uncaught`.
        (Err(panic), false) => resume_unwind(panic),
        (Err(panic), true) => Err(damaged(what, &*panic)),
    }
}

/// Calls code that is not redb's from within [`caught`]. Its panic is passed on.
pub(crate) fn uncaught<T>(call: impl FnOnce() -> T) -> T {
    let before = CATCHES.replace(false);
    let outcome = call();
    CATCHES.set(before);
    outcome
}

/// Builds the error that reports a panic of redb.
fn damaged(what: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let reason = text.and_then(|text| text.lines().next()).unwrap_or("unknown");
    Error::new(ErrorKind::DataDamaged, format!("{what}: redb found a page that cannot be right: reason={reason:?}"))
        .with_way_out("restore a snapshot, or load the store again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_redb_becomes_an_error_and_one_of_its_visitor_is_passed_on() {
        let redb = caught("reads", || -> Result<()> { panic!("a page, caught={}", catches_panics()) });
        let redb = redb.unwrap_err();
        assert!(redb.kind() == ErrorKind::DataDamaged && redb.to_string().contains("caught=true"), "{redb}");
        assert!(!catches_panics());
        let visitor = || {
            caught("scans", || {
                uncaught(|| assert!(catches_panics(), "a visitor panics, as its own panics are not caught"));
                Ok(())
            })
        };
        assert!(catch_unwind(visitor).is_err());
        assert!(!catches_panics());
    }
}
