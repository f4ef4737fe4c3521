//! The thread `derived`, one for each derived store: it applies the published changes of the feed to the store.
//!
//! Owns: the order of changes, and where a commit ends: with a slot, unless a heal has more changes than a commit takes. Must not:
//! apply a change that is not published, which the next opening may cut off the feed; retry a commit that may have changed
//! something.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use derived::{Origin, Position};
use engine_api::{Error, ErrorKind};
use futures::future::{Either, select};
use tokio::sync::watch;
use tracing::warn;

use super::{State, broken, is_for_good};
use crate::feed::{Change, Cursor, Feed, FeedError, Frame, Head, Hold, SlotEnd};

/// Wait before a commit that failed for lack of space, or of something else that may come back, is retried.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// Time for the last changes once the service stops. The next start takes those that are left.
const END_TIME: Duration = Duration::from_secs(3);

/// Whether the thread has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Not,
    /// With the rest of the feed: the service stops, and the map has had its last commit.
    WithRest,
    /// At once, because the store goes.
    Now,
}

/// The store that a follower writes.
pub(super) trait Target: Send {
    /// Name of the derived store.
    const NAME: &'static str;

    /// Commits the changes and the position after them, flushed. The same changes may come again.
    ///
    /// # Errors
    /// Those of the engine; nothing has changed after `FreeSpace` and `Retry`.
    fn commit(&mut self, part: &Part<'_>, to: &Position) -> engine_api::Result<()>;
}

/// Changes that are committed together.
pub(super) struct Part<'a> {
    waiting: &'a [Arc<Frame>],
    /// The store has the changes up to this one.
    after_seq: u64,
    /// The last change of the part.
    pub(super) seq: u64,
}

/// The state of the thread.
pub(super) struct Follower<T> {
    target: T,
    position: Position,
    /// The newest change that the store has.
    seq: u64,
    /// Number of changes of a commit. With as many waiting for the end of their slot, they are committed without it.
    changes_max: usize,
    feed: Arc<Feed>,
    /// Keeps changes in the feed's log that the store lacks.
    hold: Hold,
    head: watch::Receiver<Head>,
    state: Arc<watch::Sender<State>>,
    ending: watch::Receiver<End>,
    /// Frames whose changes are not committed yet.
    waiting: Vec<Arc<Frame>>,
    /// When the thread ends, once the service stops.
    end_at: Option<Instant>,
}

/// The reason why the thread ends, and whether the store can be used on.
enum Ended {
    /// The service stops; the next start goes on.
    Closed,
    /// The store cannot go on, for this reason, and whether it has to be made anew.
    Broken(String, bool),
}

impl Part<'_> {
    /// Returns the changes with their seqs, without those that the store has: its position may be within a frame.
    pub(super) fn changes(&self) -> impl Iterator<Item = (u64, &Change)> {
        let seqs = self.waiting.iter().flat_map(|frame| (frame.first_seq..).zip(&frame.changes));
        seqs.filter(|(at, _)| (self.after_seq + 1..=self.seq).contains(at))
    }

    /// Returns the ends of slots among the changes.
    pub(super) fn ends(&self) -> impl DoubleEndedIterator<Item = &SlotEnd> {
        let ends = self.waiting.iter().flat_map(|frame| &frame.ends);
        ends.filter(|end| (self.after_seq + 1..=self.seq).contains(&end.seq))
    }
}

impl<T: Target> Follower<T> {
    /// `position` is that of the store, at the change `seq`.
    pub(super) fn new(
        target: T,
        (position, seq): (Position, u64),
        changes_max: usize,
        feed: Arc<Feed>,
        state: Arc<watch::Sender<State>>,
        ending: watch::Receiver<End>,
    ) -> Self {
        let (head, hold) = (feed.head(), feed.follow(seq));
        Self { target, position, seq, changes_max, feed, hold, head, state, ending, waiting: Vec::new(), end_at: None }
    }

    /// Follows the feed until the service stops, and then takes the rest of it.
    pub(super) fn run(mut self) {
        let mut cursor = Cursor::new(self.seq + 1);
        loop {
            match self.step(&mut cursor) {
                Ok(()) => {}
                Err(Ended::Closed) => return,
                Err(Ended::Broken(reason, is_for_good)) => {
                    self.state.send_replace(State::Broken(broken(T::NAME, &reason, is_for_good)));
                    return;
                }
            }
        }
    }

    /// Reads the next frames, and commits them if a slot ends there. Waits if there are none.
    fn step(&mut self, cursor: &mut Cursor) -> Result<(), Ended> {
        let end = *self.ending.borrow_and_update();
        self.head.mark_unchanged();
        if end == End::Now {
            return Err(Ended::Closed);
        }
        if end == End::WithRest && *self.end_at.get_or_insert_with(|| Instant::now() + END_TIME) <= Instant::now() {
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
        if frames.is_empty() && end == End::WithRest {
            return Err(Ended::Closed);
        }
        if frames.is_empty() {
            let (new, ends) = (pin!(self.head.changed()), pin!(self.ending.changed()));
            // An error means that the feed is gone, and the service with it.
            return match futures::executor::block_on(select(new, ends)) {
                Either::Left((woken, _)) | Either::Right((woken, _)) => woken.map_err(|_| Ended::Closed),
            };
        }
        self.waiting.extend(frames);
        let last = cursor.next_seq - 1;
        let is_end = self.part(last).ends().next_back().is_some_and(|end| end.seq == last);
        let waits = !is_end && last - self.seq < self.changes_max as u64;
        if waits { Ok(()) } else { self.commit(last) }
    }

    /// Commits the frames that wait, of which `last` is the last change, in parts that a commit can take.
    fn commit(&mut self, last: u64) -> Result<(), Ended> {
        while self.seq < last {
            let seq = last.min(self.seq + self.changes_max as u64);
            let end = self.part(seq).ends().next_back().copied();
            let to = Position {
                slot: end.map_or(self.position.slot, |end| Some(end.slot)),
                is_whole: end.is_some_and(|end| end.seq == seq),
                origin: Origin::Feed(self.feed.id()),
                ..self.position.clone()
            };
            self.commit_part(seq, &to)?;
            (self.position, self.seq) = (to, seq);
            self.hold.reach(seq);
            self.show(None);
        }
        self.waiting.clear();
        Ok(())
    }

    /// Commits the changes up to `seq`, as soon as that is possible.
    fn commit_part(&mut self, seq: u64, to: &Position) -> Result<(), Ended> {
        let part = Part { waiting: &self.waiting, after_seq: self.seq, seq };
        while let Err(failed) = self.target.commit(&part, to) {
            if !may_pass(&failed) {
                return Err(Ended::Broken(failed.to_string(), is_for_good(&failed)));
            }
            warn!(error = %failed, derived = T::NAME, "the derived store has to wait: the map goes on");
            self.show(Some(failed.to_string()));
            if *self.ending.borrow() != End::Not {
                return Err(Ended::Closed);
            }
            std::thread::sleep(RETRY_EVERY);
        }
        Ok(())
    }

    /// Shows how far the store is, unless a reader has found it damaged.
    fn show(&self, waits: Option<String>) {
        let now = State::Follows { seq: self.seq, waits };
        self.state.send_if_modified(|state| {
            let follows = matches!(state, State::Follows { .. });
            if follows {
                *state = now;
            }
            follows
        });
    }

    /// Returns the changes that wait, up to `seq`.
    fn part(&self, seq: u64) -> Part<'_> {
        Part { waiting: &self.waiting, after_seq: self.seq, seq }
    }
}

/// Whether a failed commit has changed nothing, so that the same commit may succeed later.
fn may_pass(failed: &Error) -> bool {
    matches!(failed.kind(), ErrorKind::FreeSpace | ErrorKind::Retry)
}

fn lost(error: FeedError) -> Ended {
    match error {
        FeedError::Gone { oldest_seq } => {
            Ended::Broken(format!("the feed no longer has its next change: oldest_seq={oldest_seq}"), true)
        }
        FeedError::Log(error) => Ended::Broken(error.to_string(), is_for_good(&error)),
    }
}
