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

/// Number of changes that wait for the end of their slot before they are committed without it.
const CHANGES_MAX: usize = 1 << 16;

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
        position: Position,
        seq: u64,
        feed: Arc<Feed>,
        state: Arc<watch::Sender<State>>,
    ) -> Self {
        let head = feed.head();
        Self { engine, position, seq, feed, head, state, waiting: Vec::new(), end_at: None }
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
        let is_whole = ends(&self.waiting).is_some_and(|(seq, _)| seq + 1 == cursor.next_seq);
        let changes = self.waiting.iter().map(|frame| frame.changes.len()).sum::<usize>();
        if is_whole || changes >= CHANGES_MAX { self.commit(cursor.next_seq - 1, is_whole) } else { Ok(()) }
    }

    /// Commits the frames that wait, of which `seq` is the last change.
    fn commit(&mut self, seq: u64, is_whole: bool) -> Result<(), Ended> {
        let slot = ends(&self.waiting).map_or(self.position.slot, |(_, slot)| Some(slot));
        let to = Position { slot, is_whole, origin: Origin::Feed(self.feed.id()), ..self.position.clone() };
        loop {
            let committed = values::apply(&**self.engine, &mut self.changes(), seq, &to);
            let Err(failed) = committed else { break };
            if !may_pass(&failed) {
                return Err(Ended::Broken(failed.to_string()));
            }
            warn!(error = %failed, derived = NAME, "the derived store has to wait: the map goes on");
            self.state.send_replace(State::Follows { seq: self.seq, waits: Some(failed.to_string()) });
            if self.head.borrow_and_update().closed {
                return Err(Ended::Closed);
            }
            std::thread::sleep(RETRY_EVERY);
        }
        (self.position, self.seq) = (to, seq);
        self.waiting.clear();
        self.state.send_replace(State::Follows { seq, waits: None });
        Ok(())
    }

    /// Returns the changes that wait, without those that the store has: its position may be within a frame.
    fn changes(&self) -> impl Iterator<Item = Change> {
        let seqs = self.waiting.iter().flat_map(|frame| (frame.first_seq..).zip(&frame.changes));
        seqs.filter(|(seq, _)| *seq > self.seq).map(|(_, change)| (change.key, change.old, change.new))
    }
}

/// Returns the last end of a slot in these frames: its change and its slot.
fn ends(frames: &[Arc<Frame>]) -> Option<(u64, u64)> {
    frames.iter().rev().find_map(|frame| frame.ends.last()).map(|end| (end.seq, end.slot))
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
