//! The feed over shared memory: reads the service's ring of the newest changes in place.
//!
//! Owns: the position from which to continue after a break, the filter, the waits. Must not: continue past a change
//! that it did not see. Thread: the caller's; it sleeps in futex(2) while there is nothing new.

use std::collections::HashSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{PollFlags, Timespec};
use rustix::thread::futex;
use shm_layout::ring::{Found, RING_BYTES, RingHead, RingReader};

use super::session::{self, Session};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::{Change, Event, Filter, Position, SlotEnd, Start, Started};
use crate::{Key, Value};

/// Limit on the time of one attempt to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// Interval at which a sleeping reader checks whether the service is still there, because a killed service wakes
/// nobody.
const LOOK: Duration = Duration::from_millis(100);

/// Maximum number of changes in one event, the same as over gRPC.
const CHANGES_MAX: u64 = 1000;

/// A feed that continues where it was after every break.
pub(crate) struct RingSubscription {
    path: PathBuf,
    spin: Duration,
    filter: Matcher,
    link: Option<Link>,
    backoff: Backoff,
    pub(crate) position: Position,
    /// Time at which the service published the last change seen.
    pub(crate) published_ns: Option<u64>,
}

/// A service's ring, mapped, with the socket that shows when the service ends.
struct Link {
    reader: RingReader,
    /// Keeps the reader's memory mapped.
    _memory: MmapRaw,
    /// The session's socket, which the service's end closes.
    socket: UnixStream,
}

/// A filter in the form in which it is applied; see [`Filter`].
struct Matcher {
    keys: HashSet<Key>,
    values: HashSet<Value>,
    key_prefixes: Vec<Vec<u8>>,
}

impl RingSubscription {
    pub(crate) fn new(path: PathBuf, spin: Duration, start: Start, filter: Filter) -> Result<Self> {
        let filter = Matcher::new(filter)?;
        if let Start::Dump | Start::DumpFrom { .. } = start {
            let way = "take it over unix:///PATH or http://HOST:PORT and go on from its end with Start::From";
            return Err(Error::new(ErrorKind::Refused, format!("shared memory holds no dump: {way}")));
        }
        let (position, backoff) = (Position::new(start), Backoff::new());
        Ok(Self { path, spin, filter, link: None, backoff, position, published_ns: None })
    }

    /// Returns the next event; `None` if none comes within `wait`.
    pub(crate) fn next(&mut self, wait: Duration) -> Result<Option<Event>> {
        let until = Instant::now() + wait;
        loop {
            let Some(link) = &self.link else {
                match self.connect(until)? {
                    Some(event) => return Ok(Some(event)),
                    None if Instant::now() >= until => return Ok(None),
                    None => continue,
                }
            };
            let last_seq = self.position.last_seq.unwrap_or_default();
            let head = link.reader.head();
            if head.seq > last_seq {
                return self.read(last_seq + 1, &head).map(Some);
            }
            if head.closed || link.is_gone() {
                // A last change may have come between the two looks at the ring.
                if link.reader.head().seq == last_seq {
                    self.link = None;
                }
            } else if !link.wait(last_seq, self.spin, until) && Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    /// Returns a heartbeat if every change in the ring has been read; otherwise `None`.
    pub(crate) fn heartbeat(&self) -> Option<Event> {
        let head = self.link.as_ref()?.reader.head();
        let seq = self.position.last_seq.filter(|last| *last == head.seq)?;
        Some(Event::Heartbeat { seq, slot: head.slot, unix_ms: head.beat_unix_ms })
    }

    fn read(&mut self, from: u64, head: &RingHead) -> Result<Event> {
        let Some(link) = &self.link else { return Err(Error::failed("read without a ring")) };
        let (mut last, mut slot_end) = (head.seq.min(from + CHANGES_MAX - 1), None);
        let mut changes = Vec::with_capacity((last + 1 - from) as usize);
        for seq in from..=last {
            let Found::Record(record) = link.reader.read(seq) else {
                // The changes read for this event are dropped with it; the caller reads them again from the log.
                return Err(fell_behind(from, link.reader.oldest_seq(link.reader.head().seq)));
            };
            if self.filter.passes(&record.key, record.old.as_ref(), record.new.as_ref()) {
                let shm_layout::ring::Record { key, old, new, slot, .. } = record;
                changes.push(Change { seq, key, old, new, slot });
            }
            self.published_ns = Some(record.published_ns).filter(|ns| *ns > 0);
            if let Some(shm_layout::ring::SlotEnd { blockhash, parent_slot }) = record.slot_end {
                slot_end = Some(SlotEnd { seq, slot: record.slot, blockhash, parent_slot });
                last = seq;
                break;
            }
        }
        self.position.last_seq = Some(last);
        Ok(Event::Changes { changes, slot_end })
    }

    /// Takes over the service's ring, or pauses after a failed attempt. Returns the event to report, if there is one.
    fn connect(&mut self, until: Instant) -> Result<Option<Event>> {
        let session = match Session::connect(&self.path, Duration::ZERO, Instant::now() + CONNECT) {
            Ok(session) => session,
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::RetryLater) => {
                let pause = self.backoff.pause();
                std::thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let link = Link::take(session)?;
        let (head, feed_id) = (link.reader.head(), link.reader.feed_id());
        let oldest_seq = link.reader.oldest_seq(head.seq);
        self.position.belongs_to(feed_id)?;
        let next_seq = self.position.last_seq.map_or(head.seq + 1, |last| last + 1);
        if next_seq > head.seq + 1 {
            let why = format!("the service is behind: next_seq={next_seq} newest_seq={}", head.seq);
            return Err(Error::new(ErrorKind::FeedLost, why));
        }
        if next_seq < oldest_seq {
            return Err(fell_behind(next_seq, oldest_seq));
        }
        (self.link, self.backoff) = (Some(link), Backoff::new());
        self.position.started(&Started { feed_id, next_seq, oldest_seq, slot: head.slot })
    }
}

impl Link {
    fn take(session: Session) -> Result<Self> {
        let (socket, ring) = session.into_feed();
        let Some(ring) = ring else {
            let why = "the service keeps no feed: its configuration says feed = false";
            return Err(Error::new(ErrorKind::Refused, why));
        };
        let map = || {
            // Map all pages now: a page fault would otherwise delay the reading of a change.
            let all_pages = |file: &_| MmapOptions::new().populate().map_raw_read_only(file);
            let (memory, base) = session::map(ring, RING_BYTES, all_pages)?;
            // SAFETY: a shared mapping of the whole ring, sealed against shrinking, kept together with the view.
            let reader = unsafe { RingReader::new(base) };
            let reader = reader.ok_or_else(|| io::Error::other("its layout is of another version"))?;
            Ok(Self { reader, _memory: memory, socket })
        };
        map().map_err(|error: io::Error| Error::failed(format!("cannot take over the feed's ring: {error}")))
    }

    /// Polls for a change newer than `last_seq` for up to `spin`, then sleeps until woken, until [`LOOK`] has passed,
    /// or until `until`. Returns true if there may be such a change.
    fn wait(&self, last_seq: u64, spin: Duration, until: Instant) -> bool {
        if session::look(spin, || self.reader.head().seq > last_seq).is_some() {
            return true;
        }
        let wakes = self.reader.wakes();
        let head = self.reader.head();
        if head.seq > last_seq || head.closed {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now()).min(LOOK);
        let left = Timespec::try_from(left).ok();
        // The wait may end by a wake, a changed word, a signal or the timeout: in each case the caller looks again.
        futex::wait(self.reader.futex(), futex::Flags::empty(), wakes, left.as_ref()).is_ok()
    }

    /// Whether the service is gone. It sends nothing on a feed's socket, so any readiness of the socket means its end.
    fn is_gone(&self) -> bool {
        session::is_ready(&self.socket, PollFlags::IN)
    }
}

impl Matcher {
    fn new(filter: Filter) -> Result<Self> {
        let Filter { keys, values, key_prefixes } = filter;
        match key_prefixes.iter().find(|prefix| !(1..=32).contains(&prefix.len())) {
            Some(prefix) => {
                Err(Error::bad_input(format!("filter.key_prefixes must be 1 to 32 bytes: got={}", prefix.len())))
            }
            None => Ok(Self { keys: keys.into_iter().collect(), values: values.into_iter().collect(), key_prefixes }),
        }
    }

    fn passes(&self, key: &Key, old: Option<&Value>, new: Option<&Value>) -> bool {
        let wanted = |value: Option<&Value>| value.is_some_and(|value| self.values.contains(value));
        (self.keys.is_empty() || self.keys.contains(key))
            && (self.key_prefixes.is_empty() || self.key_prefixes.iter().any(|prefix| key.starts_with(prefix)))
            && (self.values.is_empty() || wanted(old) || wanted(new))
    }
}

fn fell_behind(next_seq: u64, oldest_seq: u64) -> Error {
    let way = "read on over unix:///PATH or http://HOST:PORT with Start::From, or with a dump if the log does not hold it \
               either, and come back here";
    let what = format!("shared memory no longer holds it: next_seq={next_seq} oldest_seq={oldest_seq}");
    Error::new(ErrorKind::FellBehind, format!("{what}; {way}"))
}
