//! A subscriber's position in the feed: reads on from there, and keeps the changes that pass the filter, a piece at a
//! time.
//!
//! Owns: the size of a piece. Must not: know gRPC. Threads: a piece that may be long or reads the disk is work for a
//! `feed-read-N` thread. [`Tail::at_hand`] returns the part that is neither, so that fresh commits are sent without
//! waking another thread.

use std::collections::VecDeque;
use std::sync::Arc;

use engine_api::Key;

use super::{Change, Cursor, Feed, FeedError, Filter, Frame, SlotEnd};

/// Maximum number of changes that a piece checks. That takes a millisecond or two with the largest filter; then other
/// subscribers have their turn, and a closed connection is noticed.
const PIECE_CHANGES: usize = 16_384;

/// Maximum number of changes checked without another thread: some 50 us with the largest filter.
const SHORT_CHANGES: u64 = 256;

/// Bounds of a piece: its last change, its last key, and its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Sequence number of the last change to check.
    pub last_seq: u64,
    /// If set, only changes of keys up to this one pass. No slot end is reported then, because the slot's other changes
    /// are left out.
    pub last_key: Option<Key>,
    /// Maximum number of changes that pass.
    pub most: usize,
}

/// Result of checking a piece.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// Changes that pass, each with its sequence number, in order.
    pub changes: Vec<(u64, Change)>,
    /// Slot that ends with the last change checked, if one does.
    pub slot_end: Option<SlotEnd>,
    /// Whether there may be more to check. Otherwise the scope or the feed has ended.
    pub more: bool,
}

/// A subscriber's position in the feed.
#[derive(Debug)]
pub(crate) struct Tail {
    feed: Arc<Feed>,
    filter: Arc<Filter>,
    /// Frames that were read and not yet checked to their ends.
    frames: VecDeque<Arc<Frame>>,
    /// Position up to which the disk was read.
    cursor: Cursor,
    next_seq: u64,
}

impl Tail {
    /// Creates a position right before the change `next_seq`.
    pub(crate) fn new(feed: Arc<Feed>, filter: Arc<Filter>, next_seq: u64) -> Self {
        Self { feed, filter, frames: VecDeque::new(), cursor: Cursor::new(next_seq), next_seq }
    }

    /// Sequence number of the next change to check.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Moves on to `next_seq`, which must not be before the current position.
    pub(crate) fn skip_to(&mut self, next_seq: u64) {
        debug_assert!(next_seq >= self.next_seq);
        self.next_seq = self.next_seq.max(next_seq);
        while self.frames.front().is_some_and(|frame| frame.last_seq() < self.next_seq) {
            self.frames.pop_front();
        }
    }

    /// Returns the part of `scope` that is in memory, if it is small: a piece of it never waits for the disk. Returns
    /// `None` where the next piece is work for another thread.
    pub(crate) fn at_hand(&mut self, scope: &Scope) -> Option<Scope> {
        if self.frames.is_empty() && self.next_seq <= scope.last_seq {
            self.frames.extend(self.feed.recent(self.next_seq)?);
        }
        let held_seq = self.frames.back().map_or(self.next_seq.saturating_sub(1), |frame| frame.last_seq());
        let last_seq = held_seq.min(scope.last_seq);
        (last_seq.saturating_sub(self.next_seq) < SHORT_CHANGES).then_some(Scope { last_seq, ..*scope })
    }

    /// Checks the next changes of `scope`, up to the end of a slot at most. May read the disk.
    ///
    /// # Errors
    /// [`FeedError::Gone`] when the changes are no longer kept; [`FeedError::Log`] when the log cannot be read or is
    /// damaged.
    pub(crate) fn piece(&mut self, scope: &Scope) -> Result<Piece, FeedError> {
        let (mut piece, mut looked) = (Piece::default(), 0);
        while self.next_seq <= scope.last_seq {
            if self.frames.is_empty() && !self.fill()? {
                break;
            }
            let Some(frame) = self.frames.front() else { break };
            // A frame read from the disk may begin before the position.
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

    /// Reads the next frames from memory or from disk. Returns false when there is nothing newer.
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
