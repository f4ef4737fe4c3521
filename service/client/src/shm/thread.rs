//! A thread that waits on shared memory: it sleeps in futex(2) until the service wakes it.
//!
//! Owns: the session of a blocking client. Must not: need an async runtime. Threads: the caller's.

use std::cell::RefCell;
use std::ops::DerefMut;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use shm_layout::Waits;

use super::{Lost, Seat, Session};
use crate::error::{Error, Result};

/// A call that sleeps checks after this time whether the service is still there, because a killed service wakes nobody.
/// The time then doubles up to [`LOOK_MAX`]. Most answers come sooner.
const LOOK_MIN: Duration = Duration::from_millis(1);

/// Longest time between two checks of [`LOOK_MIN`].
const LOOK_MAX: Duration = Duration::from_millis(100);

/// The seat of one thread. Its waits block, so a call's future is ready when it is first polled: see [`run`].
#[derive(Default)]
pub(crate) struct Thread(RefCell<Option<Session>>);

/// Runs a call from a [`Thread`] to its end.
pub(crate) fn run<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(Error::failed("a call that blocks did not wait for its answer")),
    }
}

impl AsMut<Self> for Session {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Seat for Thread {
    type Link = Session;

    async fn take(&self, _deadline: Instant) -> Result<impl DerefMut<Target = Option<Session>>> {
        Ok(self.0.borrow_mut())
    }

    async fn connect(path: &Path, spin: Duration, deadline: Instant) -> Result<Session> {
        Session::connect(path, spin, deadline)
    }

    async fn sleep(session: &mut Session, deadline: Instant) -> Result<(), Lost> {
        let mut look = LOOK_MIN;
        while !session.wait(Waits::Futex) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Lost::Late);
            }
            if !session.sleep(left.min(look)) {
                look = LOOK_MAX.min(look * 2);
                if session.is_gone() && !session.answered() {
                    return Err(Lost::Gone);
                }
            }
        }
        Ok(())
    }

    async fn pause(time: Duration) {
        std::thread::sleep(time);
    }
}
