//! Reads over shared memory: a request is sent until it is answered, over a new session if the service went away.
//!
//! Owns: the one retry of a read, the batches, the choice between polling and sleeping. Must not: know how its caller
//! sleeps; a [`Seat`] does. Threads: the caller's.

pub(crate) mod ring;
mod session;
mod spin;
#[cfg(feature = "grpc")]
pub(crate) mod task;
pub(crate) mod thread;

use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shm_layout::{KEYS_MAX, Request, Response, VERSION, op};

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::{Answer, Builder, Key, Read, Status, Value};
pub(crate) use session::Session;

/// Pause between two requests of a read whose slot is not reached yet: a fraction of a slot's 400 ms.
const SLOT_PAUSE: Duration = Duration::from_millis(2);

/// Reasons why an exchange gave no answer.
pub(crate) enum Lost {
    /// The service has closed the session.
    Gone,
    /// The deadline passed. The answer may still come, and the next request waits for it first.
    Late,
}

/// Where a session is kept, and how its user sleeps: a thread in futex(2), or a task.
pub(crate) trait Seat: Default {
    /// A session, with what its user sleeps at.
    type Link: AsMut<Session>;

    /// Returns the place of the session for one exchange; it is empty before the first.
    async fn take(&self, deadline: Instant) -> Result<impl DerefMut<Target = Option<Self::Link>>>;

    async fn connect(path: &Path, spin: Duration, deadline: Instant) -> Result<Self::Link>;

    /// Sleeps until the newest request is answered.
    async fn sleep(link: &mut Self::Link, deadline: Instant) -> Result<(), Lost>;

    async fn pause(time: Duration);
}

/// The session of a client, which is connected again after the service went away.
pub(crate) struct Shm<S> {
    path: PathBuf,
    spin: Duration,
    seat: S,
}

impl<S: Seat> Shm<S> {
    pub(crate) async fn connect(path: &Path, settings: &Builder) -> Result<Self> {
        let shm = Self { path: path.to_owned(), spin: settings.spin, seat: S::default() };
        let deadline = Instant::now() + settings.deadline;
        let link = S::connect(path, settings.spin, deadline).await?;
        *shm.seat.take(deadline).await? = Some(link);
        Ok(shm)
    }

    pub(crate) async fn get(&self, key: &Key, read: Read) -> Result<Answer<Option<Value>>> {
        let take = |session: &Session, response: &Response| Ok(Answer { value: session.value(), slot: slot(response) });
        self.call(&request(1, read), std::slice::from_ref(key), read.deadline, take).await
    }

    pub(crate) async fn get_many(&self, keys: &[Key], read: Read) -> Result<Answer<Vec<Option<Value>>>> {
        let (mut value, mut rest, mut oldest) = (Vec::with_capacity(keys.len()), keys, None::<Option<u64>>);
        loop {
            let (batch, more) = rest.split_at(rest.len().min(KEYS_MAX));
            let take = |session: &Session, response: &Response| {
                session.values(response, &mut value);
                Ok(slot(response))
            };
            let slot = self.call(&request(batch.len(), read), batch, read.deadline, take).await?;
            oldest = Some(oldest.map_or(slot, |oldest| oldest.min(slot)));
            if more.is_empty() {
                return Ok(Answer { value, slot: oldest.flatten() });
            }
            rest = more;
        }
    }

    pub(crate) async fn status(&self, limit: Duration) -> Result<Status> {
        let request = Request { version: VERSION, op: op::STATUS, ..Request::default() };
        self.call(&request, &[], Instant::now() + limit, Session::status).await
    }

    /// Sends a request until it is answered.
    async fn call<T>(
        &self,
        request: &Request,
        keys: &[Key],
        deadline: Instant,
        take: impl FnOnce(&Session, &Response) -> Result<T>,
    ) -> Result<T> {
        let (mut backoff, mut resent, mut behind) = (Backoff::new(), false, false);
        loop {
            let pause = {
                let mut link = self.seat.take(deadline).await?;
                let connected = match &mut *link {
                    Some(connected) => Ok(connected),
                    None => S::connect(&self.path, self.spin, deadline).await.map(|connected| link.insert(connected)),
                };
                match connected {
                    Err(error) => backoff.after(error, deadline)?,
                    Ok(connected) => match exchange::<S>(connected, request, keys, deadline).await {
                        Ok(()) => match connected.as_mut().outcome(request)? {
                            Some(response) => return take(connected.as_mut(), &response),
                            None if Instant::now() + SLOT_PAUSE >= deadline => return Err(not_reached(request)),
                            None => {
                                behind = true;
                                SLOT_PAUSE
                            }
                        },
                        // That the slot is not reached says more than that the next answer did not come in time.
                        Err(Lost::Late) if behind => return Err(not_reached(request)),
                        Err(Lost::Late) => return Err(Error::deadline()),
                        Err(Lost::Gone) => {
                            *link = None;
                            if resent {
                                return Err(Error::unavailable("the service went away twice during one call"));
                            }
                            resent = true;
                            continue;
                        }
                    },
                }
            };
            // The session is released: other calls need not wait for this slot.
            S::pause(pause).await;
        }
    }
}

async fn exchange<S: Seat>(link: &mut S::Link, request: &Request, keys: &[Key], deadline: Instant) -> Result<(), Lost> {
    // A call that gave up or was dropped may have left its request in the segment: wait until it is answered.
    wait::<S>(link, deadline).await?;
    link.as_mut().send(*request, keys);
    wait::<S>(link, deadline).await
}

/// Waits until the newest request is answered. It polls first where that helps, then sleeps until it is woken or the
/// service is gone.
async fn wait<S: Seat>(link: &mut S::Link, deadline: Instant) -> Result<(), Lost> {
    let session = link.as_mut();
    if session.answered() {
        return Ok(());
    }
    let spin = session.spin.next();
    if let Some(took) = session.look(spin) {
        session.spin.spun(took);
        return Ok(());
    }
    let started = session.spin.is_on().then(Instant::now);
    let outcome = S::sleep(link, deadline).await;
    let session = link.as_mut();
    session.stop_waiting();
    if let (Ok(()), Some(started)) = (&outcome, started) {
        match spin.is_zero() {
            true => session.spin.slept(started.elapsed()),
            false => session.spin.spun(spin + started.elapsed()),
        }
    }
    outcome
}

/// Returns a request for `count` keys, without the keys.
fn request(count: usize, read: Read) -> Request {
    Request {
        version: VERSION,
        op: op::GET,
        count: count as u32,
        commitment: read.commitment as i32,
        min_context_slot: read.min_context_slot.unwrap_or_default(),
    }
}

/// Returns the slot of a good answer; `None` if the service has applied none yet.
fn slot(response: &Response) -> Option<u64> {
    (response.has_slot != 0).then_some(response.slot)
}

fn not_reached(request: &Request) -> Error {
    let asked = request.min_context_slot;
    Error::new(ErrorKind::Refused, format!("slot not reached within the deadline: min_context_slot={asked}"))
}
