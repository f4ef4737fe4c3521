//! Reads over shared memory: a request is sent until it is answered, over a new session if the service went away.
//!
//! Owns: the one retry of a read, and the steps of a call. Must not: wait; a [`thread`] sleeps, a `task` yields.
//! Threads: the caller's.

pub(crate) mod ring;
mod session;
mod spin;
#[cfg(feature = "grpc")]
pub(crate) mod task;
pub(crate) mod thread;

use std::time::{Duration, Instant};

use shm_layout::{KEYS_MAX, Request, Response, VERSION, op};

use self::session::Session;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::{Answer, Key, Read, Value};

/// Pause between two requests of a read whose slot is not reached yet: a fraction of a slot's 400 ms.
const SLOT_PAUSE: Duration = Duration::from_millis(2);

/// Reasons why an exchange gave no answer.
pub(crate) enum Lost {
    /// The service has closed the session.
    Gone,
    /// The deadline passed. The answer may still come, and the next request waits for it first.
    Late,
}

/// The next step of a call.
enum Step {
    /// Take the answer from the session.
    Take(Response),
    /// Connect, because there is no session.
    Connect,
    /// Sleep until the newest request of the session is answered.
    Sleep,
    /// Pause, without the session: other calls need not wait for this one's slot.
    Pause(Duration),
}

/// A request that is sent until it is answered.
struct Call<'a> {
    request: Request,
    keys: &'a [Key],
    deadline: Instant,
    backoff: Backoff,
    /// Whether the newest request of the session is this one.
    sent: bool,
    /// Whether a session was lost with the request.
    resent: bool,
    /// Whether the service has answered that the slot asked for is not reached.
    behind: bool,
}

impl<'a> Call<'a> {
    fn get(keys: &'a [Key], read: Read) -> Self {
        let request = Request {
            version: VERSION,
            op: op::GET,
            count: keys.len() as u32,
            commitment: read.commitment as i32,
            min_context_slot: read.min_context_slot.unwrap_or_default(),
        };
        Self::new(request, keys, read.deadline)
    }

    fn status(limit: Duration) -> Self {
        let request = Request { version: VERSION, op: op::STATUS, ..Request::default() };
        Self::new(request, &[], Instant::now() + limit)
    }

    fn new(request: Request, keys: &'a [Key], deadline: Instant) -> Self {
        Self { request, keys, deadline, backoff: Backoff::new(), sent: false, resent: false, behind: false }
    }

    /// Goes on for as long as there is nothing to wait for but an answer that comes while this polls.
    fn step(&mut self, session: Option<&mut Session>) -> Result<Step> {
        let Some(session) = session else { return Ok(Step::Connect) };
        // A call that gave up or was dropped may have left its request in the segment: it is answered first.
        if !session.polled() {
            return Ok(Step::Sleep);
        }
        if !self.sent {
            session.send(self.request, self.keys);
            self.sent = true;
            if !session.polled() {
                return Ok(Step::Sleep);
            }
        }
        if let Some(response) = session.outcome(&self.request)? {
            return Ok(Step::Take(response));
        }
        (self.sent, self.behind) = (false, true);
        if Instant::now() + SLOT_PAUSE < self.deadline { Ok(Step::Pause(SLOT_PAUSE)) } else { Err(self.late()) }
    }

    /// Records a sleep that ended without an answer. `Ok` means to connect and send the request once more.
    fn lost(&mut self, lost: &Lost) -> Result<()> {
        match lost {
            Lost::Late => Err(self.late()),
            Lost::Gone if self.resent => Err(Error::unavailable("the service went away twice during one call")),
            Lost::Gone => {
                (self.sent, self.resent) = (false, true);
                Ok(())
            }
        }
    }

    /// Returns the error of a deadline that has passed. That the slot is not reached says more than that the next answer
    /// did not come in time.
    fn late(&self) -> Error {
        let asked = self.request.min_context_slot;
        match self.behind {
            true => {
                let why = format!("slot not reached within the deadline: min_context_slot={asked}");
                Error::new(ErrorKind::Refused, why)
            }
            false => Error::deadline(),
        }
    }
}

/// Returns the keys of each request that together ask for `keys`; no keys take one as well, which brings the slot.
fn batches(keys: &[Key]) -> impl Iterator<Item = &[Key]> {
    keys.chunks(KEYS_MAX).chain(keys.is_empty().then_some(keys))
}

/// Returns the beginning of an answer to `keys` keys, for [`add`].
fn nothing(keys: usize) -> Answer<Vec<Option<Value>>> {
    Answer { value: Vec::with_capacity(keys), slot: Some(u64::MAX) }
}

/// Adds a good answer to a batch. No slot at all is older than every slot.
fn add(all: &mut Answer<Vec<Option<Value>>>, session: &Session, response: &Response) {
    session.values(response, &mut all.value);
    all.slot = all.slot.min(slot(response));
}

/// Returns the value in a good answer to a request for one key.
fn one(session: &Session, response: &Response) -> Answer<Option<Value>> {
    Answer { value: session.value(), slot: slot(response) }
}

/// Returns the slot of a good answer; `None` if the service has applied none yet.
fn slot(response: &Response) -> Option<u64> {
    (response.has_slot != 0).then_some(response.slot)
}
