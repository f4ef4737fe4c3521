//! The ground of the service: plain types and rules that every other room uses.
//!
//! Owns: the chain's types, figures, the published slot, lists, pulses, stops, exit codes, how a setting and a label are
//! declared, how a job that blocks is waited for, and how a mutex is locked. Must not: use another room of the service.
//! Any thread.

pub(crate) mod base58;
pub(crate) mod chain;
pub(crate) mod failed;
pub(crate) mod figure;
pub(crate) mod label;
pub(crate) mod list;
pub(crate) mod plausible;
pub(crate) mod published;
pub(crate) mod pulse;
pub(crate) mod setting;
pub(crate) mod slow;
pub(crate) mod stop;
pub(crate) mod views;

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::{JoinError, spawn_blocking};

/// Runs a job on the blocking pool and returns its result. A job that has not begun when the runtime ends is given up, and
/// this does not return then: the task that waits here ends with the runtime.
pub(crate) async fn blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(job).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        // Only a test gets here: a panic ends the program.
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_given_up)) => pending().await,
    }
}

/// Locks a mutex. That it is poisoned is of no concern: the panic that poisons it ends the program, other than in a test.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
