//! A thread that waits on shared memory: it sleeps in futex(2) until the service wakes it.
//!
//! Owns: the session of a blocking client. Must not: need an async runtime. Threads: the caller's.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shm_layout::{Response, Waits};

use super::session::Session;
use super::{Call, Lost, Step, add, batches, nothing, one};
use crate::error::Result;
use crate::{Answer, Builder, Key, Read, Status, Value};

/// A call that sleeps checks after this time whether the service is still there, because a killed service wakes nobody.
/// The time then doubles up to [`LOOK_MAX`]. Most answers come sooner.
const LOOK_MIN: Duration = Duration::from_millis(1);

/// Longest time between two checks of [`LOOK_MIN`].
const LOOK_MAX: Duration = Duration::from_millis(100);

/// The session of one thread, which is connected again after the service went away.
pub(crate) struct Thread {
    path: PathBuf,
    spin: Duration,
    session: Option<Session>,
}

impl Thread {
    pub(crate) fn connect(path: &Path, settings: &Builder) -> Result<Self> {
        let session = Session::connect(path, settings.spin, Instant::now() + settings.deadline)?;
        Ok(Self { path: path.to_owned(), spin: settings.spin, session: Some(session) })
    }

    pub(crate) fn get(&mut self, key: &Key, read: Read) -> Result<Answer<Option<Value>>> {
        self.call(Call::get(std::slice::from_ref(key), read), one)
    }

    pub(crate) fn get_many(&mut self, keys: &[Key], read: Read) -> Result<Answer<Vec<Option<Value>>>> {
        let mut all = nothing(keys.len());
        for batch in batches(keys) {
            self.call(Call::get(batch, read), |session, response| add(&mut all, session, response))?;
        }
        Ok(all)
    }

    pub(crate) fn status(&mut self, limit: Duration) -> Result<Status> {
        self.call(Call::status(limit), Session::status)?
    }

    fn call<T>(&mut self, mut call: Call<'_>, take: impl FnOnce(&Session, &Response) -> T) -> Result<T> {
        loop {
            let step = call.step(self.session.as_mut())?;
            match (step, &mut self.session) {
                (Step::Take(response), Some(session)) => return Ok(take(session, &response)),
                (Step::Sleep, Some(session)) => {
                    if let Err(lost) = sleep(session, call.deadline) {
                        if matches!(lost, Lost::Gone) {
                            self.session = None;
                        }
                        call.lost(&lost)?;
                    }
                }
                (Step::Pause(time), _) => std::thread::sleep(time),
                // The steps above come only where there is a session.
                (_, session) => match Session::connect(&self.path, self.spin, call.deadline) {
                    Ok(connected) => *session = Some(connected),
                    Err(error) => std::thread::sleep(call.backoff.after(error, call.deadline)?),
                },
            }
        }
    }
}

fn sleep(session: &mut Session, deadline: Instant) -> Result<(), Lost> {
    let started = session.begin_sleep();
    let mut look = LOOK_MIN;
    while !session.wait(Waits::Futex) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            session.stop_waiting();
            return Err(Lost::Late);
        }
        if !session.sleep(left.min(look)) {
            look = LOOK_MAX.min(look * 2);
            if session.is_gone() && !session.answered() {
                return Err(Lost::Gone);
            }
        }
    }
    session.end_sleep(started);
    Ok(())
}
