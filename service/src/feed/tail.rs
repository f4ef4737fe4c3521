//! A subscriber's place in the feed: reads on from there and keeps what passes the filter, a piece at a time.
//!
//! Owns: how much is looked at in a piece. Must not: know gRPC. Threads: a piece that may be long or reads the disk is work
//! for a `feed-read-N` thread; [`Tail::at_hand`] gives what is neither, so that what was just committed goes out without
//! waking another thread.

use std::collections::VecDeque;
use std::sync::Arc;

use engine_api::Key;

use super::{Change, Cursor, Feed, FeedError, Filter, Frame, SlotEnd};

/// Most changes that a piece looks at: a millisecond or two with the largest filter, after which others have their turn
/// and whoever is gone is noticed.
const PIECE_CHANGES: usize = 16_384;

/// Most changes looked at without another thread: some 50 us with the largest filter.
const SHORT_CHANGES: u64 = 256;

/// How far a piece goes.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// The last change to look at.
    pub last_seq: u64,
    /// Only changes of keys up to this one, if there is one. Slots do not end then, since the rest of them is left out.
    pub last_key: Option<Key>,
    /// Most changes that pass.
    pub most: usize,
}

/// What a piece found.
#[derive(Debug, Default)]
pub struct Piece {
    /// What passes, with its seq, in order.
    pub changes: Vec<(u64, Change)>,
    /// The slot that ends with the last change that was looked at.
    pub slot_end: Option<SlotEnd>,
    /// Whether there is more to look at; else the scope or the feed has ended.
    pub more: bool,
}

/// A place in the feed.
#[derive(Debug)]
pub struct Tail {
    feed: Arc<Feed>,
    filter: Arc<Filter>,
    /// Frames that were read and not looked at to their ends.
    frames: VecDeque<Arc<Frame>>,
    /// Where the disk was read to.
    cursor: Cursor,
    next_seq: u64,
}

impl Tail {
    /// Before the change `next_seq`.
    pub fn new(feed: Arc<Feed>, filter: Arc<Filter>, next_seq: u64) -> Self {
        Self { feed, filter, frames: VecDeque::new(), cursor: Cursor::new(next_seq), next_seq }
    }

    /// The next change to look at: all before it were.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Goes on with `next_seq`, which is not before the place now.
    pub fn skip_to(&mut self, next_seq: u64) {
        debug_assert!(next_seq >= self.next_seq);
        self.next_seq = self.next_seq.max(next_seq);
        while self.frames.front().is_some_and(|frame| frame.last_seq() < self.next_seq) {
            self.frames.pop_front();
        }
    }

    /// The part of `scope` that is in memory, where that is little: a piece of it never waits for the disk. `None` where
    /// the next piece is work for another thread.
    pub fn at_hand(&mut self, scope: &Scope) -> Option<Scope> {
        if self.frames.is_empty() && self.next_seq <= scope.last_seq {
            self.frames.extend(self.feed.recent(self.next_seq)?);
        }
        let held_seq = self.frames.back().map_or(self.next_seq.saturating_sub(1), |frame| frame.last_seq());
        let last_seq = held_seq.min(scope.last_seq);
        (last_seq.saturating_sub(self.next_seq) < SHORT_CHANGES).then_some(Scope { last_seq, ..*scope })
    }

    /// Looks at the next changes of `scope`, not beyond a slot's end. May read the disk.
    ///
    /// # Errors
    /// See [`FeedError`].
    pub fn piece(&mut self, scope: &Scope) -> Result<Piece, FeedError> {
        let (mut piece, mut looked) = (Piece::default(), 0);
        while self.next_seq <= scope.last_seq {
            if self.frames.is_empty() && !self.fill()? {
                break;
            }
            let Some(frame) = self.frames.front() else { break };
            // A frame of the disk may begin before the place.
            let known = (self.next_seq - frame.first_seq) as usize;
            let end = frame.next_end(self.next_seq).filter(|_| scope.last_key.is_none()).copied();
            for change in &frame.changes[known..] {
                if self.next_seq > scope.last_seq {
                    break;
                }
                if looked == PIECE_CHANGES || piece.changes.len() == scope.most {
                    piece.more = true;
                    return Ok(piece);
                }
                looked += 1;
                if scope.last_key.is_none_or(|last| change.key <= last) && self.filter.passes(change) {
                    piece.changes.push((self.next_seq, *change));
                }
                self.next_seq += 1;
                if end.is_some_and(|end| end.seq < self.next_seq) {
                    (piece.slot_end, piece.more) = (end, true);
                    break;
                }
            }
            if frame.last_seq() < self.next_seq {
                self.frames.pop_front();
            }
            if piece.slot_end.is_some() {
                break;
            }
        }
        Ok(piece)
    }

    /// Reads what comes next, from memory or from disk; false when there is nothing newer.
    fn fill(&mut self) -> Result<bool, FeedError> {
        match self.feed.recent(self.next_seq) {
            Some(frames) => self.frames.extend(frames),
            None => {
                if self.cursor.next_seq != self.next_seq {
                    self.cursor = Cursor::new(self.next_seq);
                }
                self.frames.extend(self.feed.read(&mut self.cursor)?.into_iter().map(Arc::new));
            }
        }
        Ok(!self.frames.is_empty())
    }
}
