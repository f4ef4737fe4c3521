//! The thread `derived`: it applies the published changes of the feed to the derived store.
//!
//! Owns: the order of changes, and where a commit ends: with a slot, unless a heal has more changes than a commit takes. Must not:
//! apply a change that is not published, which the next opening may cut off the feed; retry a commit that may have changed
//! something.

use std::sync::Arc;
use std::time::{Duration, Instant};

use derived::values::{self, Change, NAME};
use derived::{Origin, Position};
use engine_api::{Engine, Error, ErrorKind};
use tokio::sync::watch;
use tracing::warn;

use super::{State, broken};
use crate::feed::{Cursor, Feed, FeedError, Frame, Head};

/// Wait before a commit that failed for lack of space, or of something else that may come back, is retried.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// Time for the last changes once the service stops. The next start takes those that are left.
const END_TIME: Duration = Duration::from_secs(1);

/// The state of the thread.
pub(super) struct Follower {
    engine: Arc<Box<dyn Engine>>,
    position: Position,
    /// The newest change that the store has.
    seq: u64,
    /// Number of changes of a commit. With as many waiting for the end of their slot, they are committed without it.
    changes_max: usize,
    feed: Arc<Feed>,
    head: watch::Receiver<Head>,
    state: Arc<watch::Sender<State>>,
    /// Frames whose changes are not committed yet.
    waiting: Vec<Arc<Frame>>,
    /// When the thread ends, once the service stops.
    end_at: Option<Instant>,
}

/// The reason why the thread ends, and whether the store can be used on.
enum Ended {
    /// The service stops; the next start goes on.
    Closed,
    /// The store has to be built again.
    Broken(String),
}

impl Follower {
    /// `position` is that of the store, at the change `seq`.
    pub(super) fn new(
        engine: Arc<Box<dyn Engine>>,
        (position, seq): (Position, u64),
        changes_max: usize,
        feed: Arc<Feed>,
        state: Arc<watch::Sender<State>>,
    ) -> Self {
        let head = feed.head();
        Self { engine, position, seq, changes_max, feed, head, state, waiting: Vec::new(), end_at: None }
    }

    /// Follows the feed until the service stops, and then takes the rest of it.
    pub(super) fn run(mut self) {
        let mut cursor = Cursor::new(self.seq + 1);
        loop {
            match self.step(&mut cursor) {
                Ok(()) => {}
                Err(Ended::Closed) => return,
                Err(Ended::Broken(reason)) => {
                    self.state.send_replace(broken(reason));
                    return;
                }
            }
        }
    }

    /// Reads the next frames, and commits them if a slot ends there. Waits if there are none.
    fn step(&mut self, cursor: &mut Cursor) -> Result<(), Ended> {
        let is_closed = self.head.borrow_and_update().closed;
        if is_closed && *self.end_at.get_or_insert_with(|| Instant::now() + END_TIME) <= Instant::now() {
            return Err(Ended::Closed);
        }
        let from = cursor.next_seq;
        let frames = match self.feed.recent(from) {
            Some(frames) => {
                cursor.next_seq = frames.last().map_or(from, |frame| frame.last_seq() + 1);
                frames
            }
            None => self.feed.read(cursor).map_err(lost)?.into_iter().map(Arc::new).collect(),
        };
        if frames.is_empty() && is_closed {
            return Err(Ended::Closed);
        }
        if frames.is_empty() {
            // An error means that the feed is gone, and the service with it.
            return futures::executor::block_on(self.head.changed()).map_err(|_| Ended::Closed);
        }
        self.waiting.extend(frames);
        let last = cursor.next_seq - 1;
        let waits = self.ends(last).is_none_or(|(end, _)| end < last) && last - self.seq < self.changes_max as u64;
        if waits { Ok(()) } else { self.commit(last) }
    }

    /// Commits the frames that wait, of which `last` is the last change, in parts that a commit can take.
    fn commit(&mut self, last: u64) -> Result<(), Ended> {
        while self.seq < last {
            let seq = last.min(self.seq + self.changes_max as u64);
            let end = self.ends(seq);
            let to = Position {
                slot: end.map_or(self.position.slot, |(_, slot)| Some(slot)),
                is_whole: end.is_some_and(|(end, _)| end == seq),
                origin: Origin::Feed(self.feed.id()),
                ..self.position.clone()
            };
            self.commit_part(seq, &to)?;
            (self.position, self.seq) = (to, seq);
            self.state.send_replace(State::Follows { seq, waits: None });
        }
        self.waiting.clear();
        Ok(())
    }

    /// Commits the changes up to `seq`, as soon as that is possible.
    fn commit_part(&self, seq: u64, to: &Position) -> Result<(), Ended> {
        while let Err(failed) = values::apply(&**self.engine, &mut self.changes(seq), seq, to) {
            if !may_pass(&failed) {
                return Err(Ended::Broken(failed.to_string()));
            }
            warn!(error = %failed, derived = NAME, "the derived store has to wait: the map goes on");
            self.state.send_replace(State::Follows { seq: self.seq, waits: Some(failed.to_string()) });
            if self.head.borrow().closed {
                return Err(Ended::Closed);
            }
            std::thread::sleep(RETRY_EVERY);
        }
        Ok(())
    }

    /// Returns the changes that wait up to `seq`, without those that the store has: its position may be within a frame.
    fn changes(&self, seq: u64) -> impl Iterator<Item = Change> {
        let seqs = self.waiting.iter().flat_map(|frame| (frame.first_seq..).zip(&frame.changes));
        let wanted = seqs.filter(move |(at, _)| (self.seq + 1..=seq).contains(at));
        wanted.map(|(_, change)| (change.key, change.old, change.new))
    }

    /// Returns the last end of a slot up to `seq` in the frames that wait: its change and its slot.
    fn ends(&self, seq: u64) -> Option<(u64, u64)> {
        let mut ends = self.waiting.iter().rev().flat_map(|frame| frame.ends.iter().rev());
        ends.find(|end| end.seq <= seq).map(|end| (end.seq, end.slot))
    }
}

/// Whether a failed commit has changed nothing, so that the same commit may succeed later.
fn may_pass(failed: &Error) -> bool {
    matches!(failed.kind(), ErrorKind::FreeSpace | ErrorKind::Retry)
}

fn lost(error: FeedError) -> Ended {
    Ended::Broken(match error {
        FeedError::Gone { oldest_seq } => format!("the feed no longer has its next change: oldest_seq={oldest_seq}"),
        FeedError::Log(error) => error.to_string(),
    })
}
