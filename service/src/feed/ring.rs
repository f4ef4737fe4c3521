//! The feed's newest changes in shared memory, for readers in other processes.
//!
//! Owns: the memory, its content when the service starts, and waking sleeping readers. Must not: wait for a reader.
//! Readers cannot write there, so the service does not know of them. Thread: made while the service starts, then with
//! [`super::FeedWriter`] on ingest-apply.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};
use shm_layout::ring::{RING_BYTES, RING_RECORDS, Record, RingWriter, SlotEnd};

use super::{Change, Cursor, Feed, Frame};
use crate::base::figure::unix_ms;

/// Number of sleepers to wake: all of them.
const EVERYBODY: u32 = i32::MAX as u32;

/// The service's side of the ring. Dropping it tells readers that no more changes come.
#[derive(Debug)]
pub struct Ring {
    writer: RingWriter,
    /// Mapping of the writer's memory, kept alive for it.
    _memory: MmapRaw,
}

impl Ring {
    /// Creates the memory and fills it with the newest changes of the log. A reader that comes back after a restart
    /// then finds its place. The returned descriptor is for readers: it allows no writable mapping.
    ///
    /// # Errors
    /// I/O errors of creating, sealing or mapping the memory.
    pub fn create(feed: &Feed) -> io::Result<(Self, OwnedFd)> {
        let memfd = memfd_create("solkv-feed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, RING_BYTES as u64)?;
        let memfd = File::from(memfd);
        // Populate all pages now: the first touch of a page would delay a commit's followers more than its changes do.
        let memory = MmapOptions::new().populate().map_raw(&memfd)?;
        // Once the writer's own mapping is made, no other writable mapping can be made. The file must not shrink
        // either, because that kills its readers.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&memfd, seals)?;
        let base = NonNull::new(memory.as_mut_ptr()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        let frames = newest(feed);
        let head = *feed.head().borrow();
        let first_seq = frames.first().map_or(head.seq + 1, |frame| frame.first_seq);
        // SAFETY: a fresh shared mapping of the sealed size, all zeros. It is kept alive with the writer, which is the
        // only one that can write.
        let writer = unsafe { RingWriter::new(base, feed.id(), first_seq) };
        let mut ring = Self { writer, _memory: memory };
        frames.iter().for_each(|frame| ring.push(frame, 0));
        ring.writer.publish(head.slot, unix_ms());
        Ok((ring, memfd.into()))
    }

    /// Publishes the changes of a commit, or the end of a slot without changes.
    pub(super) fn publish(&mut self, frame: Option<&Frame>, slot: Option<u64>) {
        if let Some(frame) = frame {
            let now = clock_gettime(ClockId::Monotonic);
            self.push(frame, now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64);
        }
        self.writer.publish(slot, unix_ms());
        self.wake();
    }

    /// Goes on after `count` changes that are not in the feed. Readers find them overwritten.
    pub(super) fn skip(&mut self, count: u64) {
        self.writer.skip(count);
    }

    /// Stores the time, as a sign that the writer lives.
    pub(super) fn beat(&self) {
        self.writer.beat(unix_ms());
    }

    fn push(&mut self, frame: &Frame, published_ns: u64) {
        let mut ends = frame.ends.iter().peekable();
        for (seq, Change { slot, key, old, new }) in (frame.first_seq..).zip(&frame.changes) {
            let slot_end = ends
                .next_if(|end| end.seq == seq)
                .map(|end| SlotEnd { blockhash: end.blockhash, parent_slot: end.parent_slot });
            self.writer.push(&Record { key: *key, old: *old, new: *new, slot: *slot, published_ns, slot_end });
        }
    }

    fn wake(&self) {
        // It fails only on a wrong address.
        let _woken = futex::wake(self.writer.futex(), futex::Flags::empty(), EVERYBODY);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.writer.close();
        self.wake();
    }
}

/// Reads the newest frames of the log, as many as the ring has room for. Returns none when the log cannot be read; a
/// subscriber that reads the log gets the error.
fn newest(feed: &Feed) -> Vec<Frame> {
    let head_seq = feed.head().borrow().seq;
    let mut cursor = Cursor::new(feed.oldest_seq().max((head_seq + 1).saturating_sub(RING_RECORDS as u64)));
    let mut frames = Vec::new();
    loop {
        match feed.read(&mut cursor) {
            Ok(more) if more.is_empty() => return frames,
            Ok(more) => frames.extend(more),
            Err(error) => {
                tracing::warn!(?error, "shared memory begins without the feed's newest changes");
                return Vec::new();
            }
        }
    }
}
