//! The change feed: every committed change in order, kept for a while, followed by any number of subscribers.
//!
//! Owns: the list of the log's segments, the newest frames in memory, the published head, and the subscribers. Must
//! not: make the writer wait for a reader. [`FeedWriter`] runs on ingest-apply; [`Feed`] is shared with all other
//! threads. [`Feed::recent`] never blocks. [`Feed::read`] reads the disk, so it belongs on a thread that may wait.
//!
//! A message holds changes of one slot, and the slot's end comes with its last change, so a seq alone describes a
//! subscriber's progress. A slot that changes nothing has no end, which would take a frame and a flush of its own. A
//! subscriber's task filters and sends a few new changes itself; more are work for `feed-read-N`, because the network
//! threads also read the stream.

mod dump;
mod filter;
mod followers;
#[cfg(any(test, fuzzing))]
#[path = "tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod history;
mod lost;
mod pool;
mod record;
mod ring;
mod segment;
mod settings;
mod subscribers;
mod tail;
#[cfg(test)]
mod tests;
mod workers;
mod writer;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::sync::{Arc, Mutex};

use engine_api::{Error, ErrorKind};
use solana::ChainCheckpoint;
use tokio::sync::watch;

pub(crate) use dump::{DUMPS_MAX, DumpError, DumpRange};
pub(crate) use filter::Filter;
pub(crate) use followers::{FOLLOWERS_BYTES_MAX, Hold};
pub(crate) use history::History;
pub(crate) use lost::refuse_lost;
pub(crate) use pool::Pool;
pub use record::Change;
pub(crate) use record::{FRAME_CHANGES_MAX, Frame, RECORD_BYTES, SlotEnd};
pub(crate) use ring::Ring;
pub(crate) use settings::FeedGiven;
pub use settings::SubscriberLimits;
pub(crate) use subscribers::{Registration, Subscriber, Subscribers};
pub(crate) use tail::{Scope, Tail};
pub use workers::Workers;
pub use writer::FeedWriter;

use crate::base::lock;
use followers::Followers;
use record::SEGMENT_HEADER_BYTES;
use segment::{Found, Segment, find, frame_at};

/// Directory of the log, in the store's directory next to the engine's.
pub(crate) const FEED_DIR: &str = "feed";

/// Maximum size of the newest changes kept in memory, in bytes. A subscriber that lags behind by no more does not read
/// the disk. It holds two seconds of fifty thousand changes each.
const RECENT_BYTES_MAX: usize = 16 << 20;

/// Bytes after which one read of the disk stops. A single frame may be larger.
const READ_BYTES: usize = 1 << 20;

/// The newest position of the feed, as published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Sequence number of the newest published change.
    pub seq: u64,
    /// The last slot applied as a whole; `None` before the first.
    pub slot: Option<u64>,
    /// Whether the service stops, so that no more changes will come.
    pub closed: bool,
}

/// Reason why changes cannot be read.
#[derive(Debug)]
pub enum FeedError {
    /// The changes are no longer kept.
    Gone {
        /// Sequence number of the oldest change that is kept.
        oldest_seq: u64,
    },
    /// The log cannot be read, or it is damaged.
    Log(Error),
}

/// The readers' side of the feed.
#[derive(Debug)]
pub struct Feed {
    id: u64,
    head: watch::Sender<Head>,
    kept: Mutex<Kept>,
    subscribers: Subscribers,
    followers: Followers,
}

#[derive(Debug, Default)]
struct Kept {
    /// Segments of the log, ascending; never empty. The last one is being written.
    segments: VecDeque<Segment>,
    recent: VecDeque<Arc<Frame>>,
    recent_bytes: usize,
}

/// A position in the feed. It keeps the file of that position open once the disk was read.
#[derive(Debug)]
pub struct Cursor {
    /// Sequence number of the next change wanted.
    pub next_seq: u64,
    open: Option<OpenSegment>,
}

#[derive(Debug)]
struct OpenSegment {
    segment: Segment,
    file: File,
    /// Offset of the frame that begins with `next_seq`.
    at: u64,
    next_seq: u64,
}

impl Cursor {
    /// Creates a position right before the change `next_seq`.
    pub fn new(next_seq: u64) -> Self {
        Self { next_seq, open: None }
    }
}

impl Feed {
    fn new(id: u64, segments: Vec<Segment>, checkpoint: &ChainCheckpoint) -> Arc<Self> {
        let head = Head { seq: checkpoint.seq, slot: checkpoint.slot, closed: false };
        let kept = Kept { segments: segments.into(), ..Kept::default() };
        let (head, _) = watch::channel(head);
        Arc::new(Self {
            id,
            head,
            kept: Mutex::new(kept),
            subscribers: Subscribers::default(),
            followers: Followers::default(),
        })
    }

    /// Id of the feed. Sequence numbers are comparable within one feed only.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns a watch on the published head, to wait for more.
    pub fn head(&self) -> watch::Receiver<Head> {
        self.head.subscribe()
    }

    /// Sequence number of the oldest change that is kept; that of the next change while none is kept.
    pub fn oldest_seq(&self) -> u64 {
        lock(&self.kept).segments.front().map_or(0, |segment| segment.first_seq)
    }

    /// Bytes of the log on disk, with the reserved space of each segment.
    pub fn log_bytes(&self) -> u64 {
        lock(&self.kept).segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Returns the current subscribers, and how far each one lags behind.
    pub fn subscribed(&self) -> Vec<Subscriber> {
        let newest_seq = self.head.borrow().seq;
        self.subscribers.show(newest_seq)
    }

    /// Registry of subscribers, with their figures.
    pub fn subscribers(&self) -> &Subscribers {
        &self.subscribers
    }

    /// Registers a derived store that has the changes up to `seq`.
    pub(crate) fn follow(&self, seq: u64) -> Hold {
        self.followers.add(seq)
    }

    /// Whether a derived store follows.
    pub(crate) fn has_followers(&self) -> bool {
        self.followers.slowest() < u64::MAX
    }

    /// Returns the number of published changes that a derived store lacks; 0 without one.
    pub(crate) fn lag_of_followers(&self) -> u64 {
        self.head.borrow().seq.saturating_sub(self.followers.slowest())
    }

    /// Tells every subscriber that no more changes will come.
    pub fn close(&self) {
        self.head.send_modify(|head| head.closed = true);
    }

    /// Returns the published frames from `next_seq` on, as far as memory holds them. `None` when they have to be read
    /// from the disk. Empty when there is nothing newer. Never waits for the disk.
    pub fn recent(&self, next_seq: u64) -> Option<Vec<Arc<Frame>>> {
        if next_seq > self.head.borrow().seq {
            return Some(Vec::new());
        }
        let kept = lock(&self.kept);
        let from = kept.recent.partition_point(|frame| frame.last_seq() < next_seq);
        let first = kept.recent.get(from).filter(|frame| frame.first_seq <= next_seq)?;
        let mut bytes = first.log_bytes();
        let fits = |frame: &&Arc<Frame>| {
            bytes += frame.log_bytes();
            bytes <= READ_BYTES
        };
        let more = kept.recent.range(from + 1..).take_while(fits);
        Some(std::iter::once(first).chain(more).cloned().collect())
    }

    /// Reads the published frames from the cursor on from the disk, about a megabyte of them, and moves the cursor past
    /// them. The first frame may begin before the cursor. Empty when there is nothing newer.
    ///
    /// # Errors
    /// [`FeedError::Gone`] when the changes are no longer kept; [`FeedError::Log`] when the log cannot be read or is
    /// damaged.
    pub fn read(&self, cursor: &mut Cursor) -> Result<Vec<Frame>, FeedError> {
        let newest_seq = self.head.borrow().seq;
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while cursor.next_seq <= newest_seq && bytes < READ_BYTES {
            let mut open = match cursor.open.take() {
                Some(open) if open.next_seq == cursor.next_seq => open,
                _ => self.open_at(cursor.next_seq)?,
            };
            match frame_at(&open.file, open.at, open.next_seq, &open.segment.path).map_err(FeedError::Log)? {
                Found::Frame(frame, behind) => {
                    bytes += frame.log_bytes();
                    (open.at, open.next_seq) = (behind, frame.last_seq() + 1);
                    cursor.next_seq = open.next_seq;
                    cursor.open = Some(open);
                    frames.push(frame);
                }
                // Either the next frame begins the next segment, or a published frame is missing.
                Found::End if self.begins_segment(open.next_seq) && open.segment.first_seq != open.next_seq => {}
                Found::End | Found::Damaged => return Err(self.unreadable(&open.segment, open.at, open.next_seq)),
            }
        }
        Ok(frames)
    }

    fn open_at(&self, seq: u64) -> Result<OpenSegment, FeedError> {
        loop {
            let (segment, oldest_seq) = {
                let kept = lock(&self.kept);
                let behind = kept.segments.partition_point(|segment| segment.first_seq <= seq);
                let oldest_seq = kept.segments.front().map_or(0, |segment| segment.first_seq);
                (behind.checked_sub(1).map(|index| kept.segments[index].clone()), oldest_seq)
            };
            let Some(segment) = segment else { return Err(FeedError::Gone { oldest_seq }) };
            let file = match File::open(&segment.path) {
                Ok(file) => file,
                // The segment was removed since the lookup: ask the list again.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.oldest_seq() > segment.first_seq => {
                    continue;
                }
                Err(error) => {
                    let message = format!("cannot open a segment of the feed: file={}", segment.path.display());
                    return Err(FeedError::Log(Error::io(message, error)));
                }
            };
            return match find(&file, &segment, seq).map_err(FeedError::Log)? {
                Some((at, next_seq)) => Ok(OpenSegment { segment, file, at, next_seq }),
                None => Err(self.unreadable(&segment, SEGMENT_HEADER_BYTES, seq)),
            };
        }
    }

    /// Returns the reason why the change `seq` is not in its segment: it was left out since the segment was opened, or the
    /// segment is damaged.
    fn unreadable(&self, segment: &Segment, at: u64, seq: u64) -> FeedError {
        let oldest_seq = self.oldest_seq();
        if seq < oldest_seq { FeedError::Gone { oldest_seq } } else { damaged(segment, at, seq) }
    }

    fn begins_segment(&self, seq: u64) -> bool {
        lock(&self.kept).segments.iter().any(|segment| segment.first_seq == seq)
    }

    fn publish(&self, frame: Option<Arc<Frame>>, checkpoint: &ChainCheckpoint) {
        if let Some(frame) = frame {
            let mut kept = lock(&self.kept);
            kept.recent_bytes += frame.log_bytes();
            kept.recent.push_back(frame);
            while kept.recent_bytes > RECENT_BYTES_MAX && kept.recent.len() > 1 {
                let oldest = kept.recent.pop_front().map_or(0, |frame| frame.log_bytes());
                kept.recent_bytes -= oldest;
            }
        }
        self.head.send_modify(|head| (head.seq, head.slot) = (checkpoint.seq, checkpoint.slot));
    }

    fn add_segment(&self, segment: Segment) {
        let mut kept = lock(&self.kept);
        // A segment that holds no frame yet was replaced by another one of the same name.
        if kept.segments.back().is_some_and(|last| last.first_seq == segment.first_seq) {
            kept.segments.pop_back();
        }
        kept.segments.push_back(segment);
    }

    /// Keeps `segment` alone: no change before it can be read any more.
    fn begin_with(&self, segment: Segment) {
        let gone = {
            let mut kept = lock(&self.kept);
            (kept.recent, kept.recent_bytes) = (VecDeque::new(), 0);
            std::mem::replace(&mut kept.segments, VecDeque::from([segment]))
        };
        gone.iter().for_each(remove);
    }

    /// Removes the oldest segments while the log has more than so many bytes, but never the last two. One that a derived store
    /// lacks stays, up to [`FOLLOWERS_BYTES_MAX`] more.
    fn expire(&self, retention_bytes: u64) {
        loop {
            let mut kept = lock(&self.kept);
            let bytes: u64 = kept.segments.iter().map(|segment| segment.bytes).sum();
            if kept.segments.len() <= 2 || bytes <= retention_bytes {
                return;
            }
            let is_lacked = self.followers.slowest().saturating_add(1) < kept.segments[1].first_seq;
            if is_lacked && bytes <= retention_bytes.saturating_add(FOLLOWERS_BYTES_MAX) {
                return;
            }
            let Some(gone) = kept.segments.pop_front() else { return };
            drop(kept);
            remove(&gone);
        }
    }
}

fn remove(segment: &Segment) {
    if let Err(error) = fs::remove_file(&segment.path) {
        // The file stays a valid segment: the next opening finds it and removes it then.
        tracing::warn!(%error, file = %segment.path.display(), "cannot remove a segment of the feed");
    }
}

fn damaged(segment: &Segment, at: u64, seq: u64) -> FeedError {
    let file = segment.path.display();
    FeedError::Log(Error::new(
        ErrorKind::DataDamaged,
        format!("the feed's log is damaged: file={file} offset={at} seq={seq}; subscribe with a dump to go on"),
    ))
}
