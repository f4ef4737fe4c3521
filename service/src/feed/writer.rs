//! The writing side of the feed: appends a batch's changes, makes them durable, and publishes them after the engine's
//! commit.
//!
//! Owns: the log's end and its retention. Must not: publish changes that the engine has not committed, or retry a
//! flush. Runs on the ingest-apply thread.
//!
//! The steps of a batch are: append, the engine's commit, publish. After a crash between the first two the log is one
//! frame ahead of the engine. Opening cuts that frame off, because no subscriber has seen it.
//!
//! Every other difference between log and engine means that the sequence numbers cannot be continued. Examples are a
//! store that was loaded or restored without the log, and commits of a buffered engine lost with the power. The log
//! then begins anew under a new feed id, and a subscriber of the old one is told to start over. A store that lacks
//! commits which were flushed is refused before: see [`super::refuse_lost`].
//!
//! Changes that exceed the retention are left out of the log: a subscriber would find a part of them and would have to
//! start over all the same. The log goes on after the last of them under the same feed id, and holds nothing before it.
//! A crash among them leaves a log that does not lead to the store, so that the next opening begins a new feed.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind as Io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use engine_api::{Durability, Error, ErrorKind, Result};
use solana::ChainCheckpoint;
use tracing::{error, info, warn};

use super::record::{Beginning, Change, FRAME_CHANGES_MAX, Frame, Identity, SEGMENT_HEADER_BYTES, SlotEnd};
use super::segment::{Found, Segment, clear, frame_at};
use super::{Feed, Ring};
use crate::base::figure::unix_ms;
use crate::base::published::is_between_slots;

/// Length of a segment where the retention is large enough, in bytes. Expiry removes this much at a time, and a new
/// subscriber reads at most this much to find its place.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Length of a segment where the retention is small, in bytes.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// A retention is divided into this many segments, so that removing one leaves most of the requested past.
const SEGMENTS: u64 = 8;

/// The writer of the feed, which appends and publishes changes.
#[derive(Debug)]
pub struct FeedWriter {
    feed: Arc<Feed>,
    dir: PathBuf,
    durability: Durability,
    identity: Identity,
    /// Maximum bytes of the log on disk. At least two segments are kept.
    retention_bytes: u64,
    segment_bytes: u64,
    end: End,
    /// Slot at which the store stands after the newest published change; `None` between two slots.
    at_slot: Option<u64>,
    /// Frame that is appended, and not committed by the engine yet.
    pending: Option<Arc<Frame>>,
    left_out: Option<LeftOut>,
    buffer: Vec<u8>,
    ring: Option<Ring>,
    /// Whether an error has said that the log was moved or cut.
    is_told: bool,
}

/// The last segment, and the place of the next frame in it.
#[derive(Debug)]
struct End {
    file: File,
    path: PathBuf,
    /// Offset of the next frame.
    at: u64,
    /// Length of the segment: no frame reaches beyond this offset.
    bytes: u64,
}

/// Changes that the log leaves out.
#[derive(Debug)]
struct LeftOut {
    /// Sequence number of the last of them.
    last_seq: u64,
    /// Slot that the store stands at after them.
    to_slot: u64,
    /// The segment that begins after them, once it is made, with its file.
    next: Option<(Segment, File)>,
}

/// A log as found or made at opening.
struct Log {
    identity: Identity,
    segments: Vec<Segment>,
    end: End,
}

impl FeedWriter {
    /// Opens the log in `dir`, for a store that stands at `checkpoint`. Creates the log when it is missing.
    ///
    /// # Errors
    /// I/O errors of the file system. A damaged log is no error: it begins anew, with a line in the log that says so.
    pub fn open(
        dir: &Path,
        checkpoint: &ChainCheckpoint,
        durability: Durability,
        retention_bytes: u64,
    ) -> Result<(Self, Arc<Feed>)> {
        make_dir(dir)
            .map_err(|source| Error::io(format!("cannot make the feed's directory: dir={}", dir.display()), source))?;
        let segment_bytes = (retention_bytes / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let next_seq = checkpoint.seq + 1;
        let boot = match durability {
            Durability::Buffered => boot_id()?,
            Durability::Synced => 0,
        };
        let mut log = match Log::open(dir, checkpoint.seq)? {
            Ok(log) => log,
            Err(Ended(why)) => {
                let feed_id = RandomState::new().hash_one(SystemTime::now());
                let shown = format!("{feed_id:016x}");
                info!(
                    feed_id = shown,
                    next_seq, why, "a new feed begins: subscribers of the earlier feed have to take a dump"
                );
                let begins = Beginning { first_seq: next_seq, after_slot: whole_slot(checkpoint) };
                Log::create(dir, Identity { feed_id, boot }, begins, segment_bytes)?
            }
        };
        let feed_id = log.identity.feed_id;
        if log.identity.boot != boot {
            // Frames written without flushes must not get into a segment that promises flushes. With no room left here,
            // the next frame makes a segment of its own.
            log.end.bytes = log.end.at;
        }
        let feed = Feed::new(feed_id, log.segments, checkpoint);
        let writer = Self {
            feed: Arc::clone(&feed),
            dir: dir.to_owned(),
            durability,
            identity: Identity { feed_id, boot },
            retention_bytes,
            segment_bytes,
            end: log.end,
            at_slot: whole_slot(checkpoint),
            pending: None,
            left_out: None,
            buffer: Vec::new(),
            ring: None,
            is_told: false,
        };
        Ok((writer, feed))
    }

    /// Publishes to readers of the shared-memory ring as well from now on.
    pub fn share(&mut self, ring: Ring) {
        self.ring = Some(ring);
    }

    /// Appends the changes of a batch, the first of which gets `first_seq`, and the slot ends among them. With
    /// [`Durability::Synced`] they are on the device when this returns. Follow with [`FeedWriter::publish`] or
    /// [`FeedWriter::abort`].
    ///
    /// # Errors
    /// [`ErrorKind::FreeSpace`] with nothing appended; [`ErrorKind::Reopen`] after a failed write or flush.
    pub fn append(&mut self, first_seq: u64, changes: Vec<Change>, ends: Vec<SlotEnd>) -> Result<()> {
        debug_assert!(self.pending.is_none() && changes.len() <= FRAME_CHANGES_MAX);
        if changes.is_empty() {
            return Ok(());
        }
        if self.left_out.is_some() {
            return self.prepare_next();
        }
        let frame = Frame { first_seq, committed_unix_ms: unix_ms(), changes, ends };
        let needed = frame.log_bytes() as u64;
        if self.end.at + needed > self.end.bytes {
            self.rotate(first_seq, needed)?;
        }
        frame.encode(&mut self.buffer);
        if let Err(source) = self.end.file.write_all_at(&self.buffer, self.end.at) {
            let failed = self.end.failed("write", source);
            if failed.kind() == ErrorKind::FreeSpace {
                self.end.cut()?;
                return Err(failed);
            }
            return Err(Error::with_source(ErrorKind::Reopen, failed.to_string(), failed));
        }
        if self.durability == Durability::Synced {
            self.end.file.sync_data().map_err(|source| {
                let failed = self.end.failed("flush", source);
                Error::with_source(ErrorKind::Reopen, failed.to_string(), failed)
            })?;
        }
        self.pending = Some(Arc::new(frame));
        Ok(())
    }

    /// Leaves the next `count` changes, which lead the store to `to_slot`, out of the log: until the last of them is
    /// published, [`FeedWriter::append`] appends nothing, and subscribers see the feed as it is now. Then the log begins
    /// after them, and a subscriber that wants any change before gets `FeedError::Gone`.
    pub fn leave_out(&mut self, count: u64, to_slot: u64) {
        let last_seq = self.feed.head.borrow().seq + count;
        info!(count, last_seq, "changes are left out of the feed: subscribers must start over after them");
        self.left_out = Some(LeftOut { last_seq, to_slot, next: None });
    }

    /// Publishes the appended changes, which the engine has committed with `checkpoint`.
    pub fn publish(&mut self, checkpoint: &ChainCheckpoint) {
        if let Some(left_out) = self.left_out.take_if(|left_out| left_out.last_seq <= checkpoint.seq) {
            self.go_on_after(left_out);
        } else if self.left_out.is_some() {
            return;
        }
        self.at_slot = whole_slot(checkpoint);
        let frame = self.pending.take();
        if let Some(frame) = &frame {
            self.end.at += frame.log_bytes() as u64;
        }
        // The ring comes first, because its readers count microseconds.
        if let Some(ring) = &mut self.ring {
            ring.publish(frame.as_deref(), checkpoint.slot);
        }
        self.feed.publish(frame, checkpoint);
    }

    /// Removes the appended changes, because the engine did not commit them.
    ///
    /// # Errors
    /// [`ErrorKind::Reopen`] when removing fails, so that the content of the log's end is not known.
    pub fn abort(&mut self) -> Result<()> {
        if self.pending.take().is_some() {
            self.end.cut()?;
        }
        Ok(())
    }

    /// Removes segments beyond the retention, beats the ring, and looks whether the log is still there. Call it once
    /// in a while, because expiry by age is checked nowhere else while no segment begins.
    pub fn expire(&mut self) {
        if let Some(why) = self.end.gone().filter(|_| !self.is_told) {
            self.is_told = true;
            error!(
                file = %self.end.path.display(),
                why,
                "the feed's log was changed while the service runs: subscribers that are behind get an error, and the next \
                 start begins a new feed: restart the service, and look for what has changed the files"
            );
        }
        if let Some(ring) = &self.ring {
            ring.beat();
        }
        self.feed.expire(self.retention_bytes);
    }

    /// Whether a derived store follows.
    pub(crate) fn has_followers(&self) -> bool {
        self.feed.has_followers()
    }

    /// Returns the number of published changes that a derived store lacks.
    pub(crate) fn lag_of_followers(&self) -> u64 {
        self.feed.lag_of_followers()
    }

    /// Changes the retention from now on.
    #[cfg(test)]
    pub(crate) fn keep(&mut self, retention_bytes: u64) {
        self.retention_bytes = retention_bytes;
    }

    /// Bytes of the frame that is appended and not published.
    #[cfg(test)]
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.as_ref().map_or(0, |frame| frame.log_bytes())
    }

    /// Offset of the next frame.
    #[cfg(test)]
    pub(super) fn end(&self) -> u64 {
        self.end.at
    }

    fn rotate(&mut self, first_seq: u64, needed: u64) -> Result<()> {
        let bytes = self.segment_bytes.max(SEGMENT_HEADER_BYTES + needed);
        // The store stands there, because every commit is published before the next one is appended.
        let begins = Beginning { first_seq, after_slot: self.at_slot };
        let (segment, file) = Segment::create(&self.dir, self.identity, begins, bytes)?;
        self.end = End::new(&segment, file);
        self.feed.add_segment(segment);
        self.feed.expire(self.retention_bytes);
        Ok(())
    }

    /// Makes the segment after the changes that are left out, before the engine commits the first of them: a full disk
    /// is then noticed while nothing has changed.
    fn prepare_next(&mut self) -> Result<()> {
        let Some(left_out) = self.left_out.as_mut().filter(|left_out| left_out.next.is_none()) else { return Ok(()) };
        let begins = Beginning { first_seq: left_out.last_seq + 1, after_slot: Some(left_out.to_slot) };
        left_out.next = Some(Segment::create(&self.dir, self.identity, begins, self.segment_bytes)?);
        Ok(())
    }

    /// Goes on with the log after changes that were left out. Nothing before them is kept.
    fn go_on_after(&mut self, left_out: LeftOut) {
        // `append` has made it, because there is a change that is left out.
        let Some((segment, file)) = left_out.next else { return };
        self.end = End::new(&segment, file);
        if let Some(ring) = &mut self.ring {
            ring.skip(left_out.last_seq - self.feed.head.borrow().seq);
        }
        self.feed.begin_with(segment);
    }
}

/// Reason why a log cannot be continued.
struct Ended(String);

impl Ended {
    fn at(log_seq: u64, newest_seq: u64, how: &str) -> Self {
        Self(format!("{how}: log_seq={log_seq} store_seq={newest_seq}"))
    }
}

impl Log {
    /// Creates a new log without changes. All segments in `dir` are removed.
    fn create(dir: &Path, identity: Identity, begins: Beginning, segment_bytes: u64) -> Result<Self> {
        for path in segment_paths(dir)? {
            fs::remove_file(&path).map_err(|source| {
                Error::io(format!("cannot remove a segment of an earlier feed: file={}", path.display()), source)
            })?;
        }
        let (segment, file) = Segment::create(dir, identity, begins, segment_bytes)?;
        let end = End::new(&segment, file);
        Ok(Self { identity, segments: vec![segment], end })
    }

    /// Opens the log in `dir`, and cuts it to end with `newest_seq`. Returns the reason where it cannot be continued.
    fn open(dir: &Path, newest_seq: u64) -> Result<std::result::Result<Self, Ended>> {
        let mut segments = Vec::new();
        let mut last = None;
        for path in segment_paths(dir)? {
            match Segment::open(&path) {
                Ok((segment, file, identity)) => {
                    segments.push(segment);
                    if last.as_ref().is_some_and(|(_, other): &(File, Identity)| other.feed_id != identity.feed_id) {
                        return Ok(Err(Ended(format!("segments of two feeds: file={}", path.display()))));
                    }
                    last = Some((file, identity));
                }
                Err(damaged) if damaged.kind() == ErrorKind::DataDamaged => {
                    warn!(error = %damaged, "the feed's log is damaged");
                    return Ok(Err(Ended(damaged.to_string())));
                }
                Err(failed) => return Err(failed),
            }
        }
        // A rotation made the last segment, and its batch was never published.
        if let [.., before, empty] = &segments[..]
            && empty.first_seq > newest_seq
            && before.first_seq <= newest_seq + 1
        {
            return Self::open_without(empty, dir, newest_seq);
        }
        let (Some((file, identity)), Some(segment)) = (last, segments.last()) else {
            return Ok(Err(Ended("the store has no feed yet".to_owned())));
        };
        if identity.boot != 0 && identity.boot != boot_id()? {
            return Ok(Err(Ended("it was written without flushes before the machine last started".to_owned())));
        }
        // Two places are tracked: after the last frame that the store has, and after the last frame of the log.
        let (mut at, mut seq) = (SEGMENT_HEADER_BYTES, segment.first_seq.saturating_sub(1));
        let (mut newest_at, mut log_seq, mut ahead) = (at, seq, 0);
        while let Found::Frame(frame, behind) = frame_at(&file, newest_at, log_seq + 1, &segment.path)? {
            (newest_at, log_seq) = (behind, frame.last_seq());
            if log_seq <= newest_seq {
                (at, seq) = (newest_at, log_seq);
            } else {
                ahead += 1;
            }
        }
        if seq != newest_seq {
            return Ok(Err(Ended::at(log_seq, newest_seq, "it does not lead to the store")));
        }
        // A crash leaves one frame that the engine did not commit. Subscribers may have seen more frames than one, or
        // any frame that a buffered engine has committed and lost.
        if ahead > 1 || (ahead == 1 && identity.boot != 0) {
            return Ok(Err(Ended::at(log_seq, newest_seq, "it is ahead of the store")));
        }
        let end = End { file, path: segment.path.clone(), at, bytes: segment.bytes };
        end.cut()?;
        // So that a frame which the engine has not committed does not come back after a loss of power.
        end.file.sync_data().map_err(|source| end.failed("flush", source))?;
        Ok(Ok(Self { identity, segments, end }))
    }

    /// Opens the log again without its last segment, unless changes in it may have been seen.
    fn open_without(segment: &Segment, dir: &Path, newest_seq: u64) -> Result<std::result::Result<Self, Ended>> {
        let (_, file, identity) = Segment::open(&segment.path)?;
        let first = frame_at(&file, SEGMENT_HEADER_BYTES, segment.first_seq, &segment.path)?;
        if let Found::Frame(frame, behind) = &first {
            let second = frame_at(&file, *behind, frame.last_seq() + 1, &segment.path)?;
            if identity.boot != 0 || matches!(second, Found::Frame(..)) {
                return Ok(Err(Ended::at(frame.last_seq(), newest_seq, "it is ahead of the store")));
            }
        }
        fs::remove_file(&segment.path).map_err(|source| {
            Error::io(format!("cannot remove a segment of the feed: file={}", segment.path.display()), source)
        })?;
        Self::open(dir, newest_seq)
    }
}

/// Returns the slot at which a store stands at `checkpoint`. `None` where it holds a part of a slot: an audit must not take
/// the changes after it for all changes after the slot before.
fn whole_slot(checkpoint: &ChainCheckpoint) -> Option<u64> {
    checkpoint.slot.filter(|_| !is_between_slots(checkpoint))
}

/// Returns a number for this boot of the machine, never 0.
pub(super) fn boot_id() -> Result<u64> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path)
        .map_err(|source| Error::io(format!("cannot tell the machine's boots apart: file={path}"), source))?;
    let halves = text.trim().replace('-', "");
    let half = halves.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    half.filter(|id| *id != 0)
        .ok_or_else(|| Error::new(ErrorKind::Internal, format!("not a boot id: file={path} text={text:?}")))
}

impl End {
    /// Returns the end of a segment that holds no frame yet.
    fn new(segment: &Segment, file: File) -> Self {
        Self { file, path: segment.path.clone(), at: SEGMENT_HEADER_BYTES, bytes: segment.bytes }
    }

    /// Writes zeros after the last frame. Needs no space.
    ///
    /// # Errors
    /// [`ErrorKind::Reopen`] when that fails, so that the content after the last frame is not known.
    fn cut(&self) -> Result<()> {
        clear(&self.file, self.at, self.bytes).map_err(|source| {
            let failed = self.failed("cut", source);
            Error::with_source(ErrorKind::Reopen, failed.to_string(), failed)
        })
    }

    /// Returns the reason why the segment's name does not lead to its whole file; `None` if it does.
    fn gone(&self) -> Option<&'static str> {
        let (named, own) = (fs::metadata(&self.path), self.file.metadata().ok()?);
        match named {
            Ok(named) if (named.dev(), named.ino()) != (own.dev(), own.ino()) => Some("another file is in its place"),
            Ok(named) if named.len() < self.bytes => Some("it was cut"),
            Err(error) if [Io::NotFound, Io::NotADirectory].contains(&error.kind()) => Some("it is gone"),
            _ => None,
        }
    }

    fn failed(&self, what: &str, source: std::io::Error) -> Error {
        let Self { path, at, .. } = self;
        Error::io(format!("cannot {what} the feed: file={} offset={at}", path.display()), source)
    }
}

/// Creates `dir` and makes the entry in its parent directory durable.
fn make_dir(dir: &Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    match dir.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Returns the path of every segment in `dir`, in the order of their sequence numbers.
pub(super) fn segment_paths(dir: &Path) -> Result<Vec<PathBuf>> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    };
    list().map_err(|source| Error::io(format!("cannot list the feed's directory: dir={}", dir.display()), source))
}
