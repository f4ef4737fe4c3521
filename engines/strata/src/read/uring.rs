//! Several reads at once: by io_uring if the kernel offers it, otherwise one after the other.
//!
//! Owns: buffers that the kernel writes into, for as long as it may. Must not: interpret bytes. Each pipeline belongs
//! to one reader or cursor, on its thread.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use engine_api::{Error, ErrorKind};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, types};

use crate::budget::{Budget, Share};
use crate::file::{PageBuffer, ReadFile, passes};
use crate::read::lookup::Reads;
use crate::storage::{PAGE_BYTES, PageBytes, StorageFile};

/// Number of reads that the kernel is given together. The device works on them while the caller prepares the next ones.
const SUBMIT_AT: usize = 8;

/// A number of slots, each of which is free, being read into, or holding the bytes of a read.
pub(crate) struct Pipeline {
    /// The ring; `None` if the kernel refused it. Reads are then done when they are asked for.
    ring: Option<IoUring>,
    slots: Vec<Slot>,
    /// Whether the kernel holds the buffers' pages and knows the buffers by the numbers of their slots.
    pinned: bool,
    /// Finished reads that were done without the ring: slot and result.
    done: VecDeque<(usize, io::Result<()>)>,
    /// Number of reads given to the ring, whether the kernel has taken them yet or not.
    in_flight: usize,
    reads: Arc<Reads>,
    _share: Share,
}

/// A buffer with memory of its own, so that no reference reaches into memory that the kernel writes.
struct Slot {
    buffer: PageBuffer,
    /// The read in progress. It keeps the file open for as long as the kernel may read it.
    asked: Option<Asked>,
}

struct Asked {
    file: Arc<dyn StorageFile>,
    offset: u64,
    bytes: usize,
}

impl Pipeline {
    /// Makes `slots` buffers of `slot_pages` pages, which the budget counts as work until they are dropped.
    pub(crate) fn new(slots: usize, slot_pages: usize, reads: &Arc<Reads>) -> Self {
        Self::of(slots, slot_pages, reads, Budget::take_for_work)
    }

    /// Makes buffers as [`Pipeline::new`] does, for an owner that keeps them. They are not work, because flushes and
    /// merges would then count on memory that never comes back.
    pub(crate) fn lasting(slots: usize, slot_pages: usize, reads: &Arc<Reads>) -> Self {
        let mut pipeline = Self::of(slots, slot_pages, reads, Budget::take_always);
        pipeline.pinned = pipeline.pin();
        pipeline
    }

    fn of(slots: usize, slot_pages: usize, reads: &Arc<Reads>, take: fn(&Arc<Budget>, u64) -> Share) -> Self {
        // One page more, because the buffer is aligned to a page.
        let share = take(&reads.budget, (slots * (slot_pages + 1) * PAGE_BYTES) as u64);
        let ring = ring(slots.next_power_of_two() as u32).ok();
        if ring.is_none() {
            reads.sums.rings_refused.add(1);
        }
        Self {
            ring,
            slots: (0..slots).map(|_| Slot { buffer: PageBuffer::new(slot_pages), asked: None }).collect(),
            pinned: false,
            done: VecDeque::new(),
            in_flight: 0,
            reads: Arc::clone(reads),
            _share: share,
        }
    }

    /// Asks the kernel to hold the buffers' pages, so that it need not look them up for each read. Returns false if it
    /// refuses, as it may where the memory that a process can lock is limited.
    ///
    /// After a fork, kernels before 5.9 could give a buffer other pages and read into those that they hold. The feature
    /// that is asked for is newer.
    fn pin(&mut self) -> bool {
        let Some(ring) = self.ring.as_ref().filter(|ring| ring.params().is_feature_resource_tagging()) else {
            return false;
        };
        let buffers = self.slots.iter_mut().map(|slot| {
            let bytes = slot.buffer.bytes_mut();
            libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
        });
        // SAFETY: the buffers stay where they are until the ring is gone, because it is dropped first. The kernel writes
        // to them only for the reads of `ask`.
        unsafe { ring.submitter().register_buffers(&buffers.collect::<Vec<_>>()) }.is_ok()
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Starts a read of `bytes` of `file` from `offset` into a free slot. Both numbers are multiples of a page. The
    /// kernel learns of it with the [`SUBMIT_AT`]th read that it has not been given, or by [`Pipeline::start`] or
    /// [`Pipeline::wait`].
    pub(crate) fn ask(&mut self, slot: usize, file: &ReadFile, offset: u64, bytes: usize) {
        let asked = Asked { file: file.shared(), offset, bytes };
        let Slot { buffer, asked: free } = &mut self.slots[slot];
        assert!(free.is_none(), "a slot is used twice");
        let target = &mut buffer.bytes_mut()[..bytes];
        let ring = self.ring.as_mut().zip(file.raw_fd());
        if let Some((ring, fd)) = ring {
            let (fd, into, bytes) = (types::Fd(fd), target.as_mut_ptr(), bytes as u32);
            let read = match self.pinned {
                true => opcode::ReadFixed::new(fd, into, bytes, slot as u16).offset(offset).build(),
                false => opcode::Read::new(fd, into, bytes).offset(offset).build(),
            };
            // SAFETY: the slot's buffer lives until `drop` has waited for every read in flight, and nobody looks at it
            // before its read has ended; the slot keeps the file open as long.
            let pushed = unsafe { ring.submission().push(&read.user_data(slot as u64)) };
            if pushed.is_ok() {
                *free = Some(asked);
                self.in_flight += 1;
                if ring.submission().len() >= SUBMIT_AT {
                    self.start();
                }
                return;
            }
        }
        self.done.push_back((slot, asked.file.read_at(target, offset)));
        *free = Some(asked);
    }

    /// Submits the reads asked for so far to the kernel.
    pub(crate) fn start(&mut self) {
        if let Some(ring) = &self.ring {
            // `wait` submits the reads that the kernel does not take now.
            ring.submit().ok();
        }
    }

    /// Waits for any read. Returns its slot, which is free again, and its result; `None` if there are no reads.
    ///
    /// # Errors
    /// I/O errors of the ring itself while the kernel still has reads of it.
    pub(crate) fn wait(&mut self) -> io::Result<Option<(usize, io::Result<()>)>> {
        loop {
            if let Some((slot, outcome)) = self.done.pop_front() {
                self.slots[slot].asked = None;
                return Ok(Some((slot, outcome)));
            }
            let Some(ring) = self.ring.as_mut().filter(|_| self.in_flight > 0) else { return Ok(None) };
            let ended = ring.completion().next();
            if let Some(entry) = ended {
                return Ok(self.ended(&entry));
            }
            if let Err(e) = ring.submit_and_wait(1) {
                self.refused(e)?;
            }
        }
    }

    /// Finishes the read of a completion.
    fn ended(&mut self, entry: &cqueue::Entry) -> Option<(usize, io::Result<()>)> {
        self.in_flight -= 1;
        let slot = entry.user_data() as usize;
        let Slot { buffer, asked } = &mut self.slots[slot];
        let asked = asked.take()?;
        let outcome = match how_it_went(entry.result(), asked.bytes) {
            Went::Whole => Ok(()),
            Went::Part => asked.file.read_at(&mut buffer.bytes_mut()[..asked.bytes], asked.offset),
            Went::Failed(e) => Err(e),
        };
        Some((slot, outcome))
    }

    /// Handles the kernel's refusal to take more reads or to wait. If the kernel has taken no read yet, all are done
    /// without the ring, now and from now on. If it has some and is only short of memory, waits for one of those.
    fn refused(&mut self, e: io::Error) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return Err(e) };
        if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) {
            return Ok(());
        }
        if ring.submission().len() == self.in_flight {
            self.reads.sums.rings_refused.add(1);
            self.ring = None;
            self.in_flight = 0;
            for (slot, Slot { buffer, asked }) in self.slots.iter_mut().enumerate() {
                if let Some(asked) = asked {
                    let target = &mut buffer.bytes_mut()[..asked.bytes];
                    self.done.push_back((slot, asked.file.read_at(target, asked.offset)));
                }
            }
            return Ok(());
        }
        if !passes(&e) {
            return Err(e);
        }
        // SAFETY: the call is given no memory.
        let waited = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 1, EnterFlags::GETEVENTS.bits(), None) };
        match waited {
            Err(e) if !passes(&e) && e.raw_os_error() != Some(libc::EBUSY) => Err(e),
            Err(_) => {
                // The reads that the kernel has will end without this call.
                std::thread::yield_now();
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Returns page `index` of a slot whose read has ended.
    pub(crate) fn page(&self, slot: usize, index: usize) -> &PageBytes {
        let Slot { buffer, asked } = &self.slots[slot];
        assert!(asked.is_none(), "a slot is looked at while it is read into");
        buffer.page(index)
    }
}

/// Makes the error of a pipeline that cannot wait for its reads.
pub(crate) fn cannot_wait(e: io::Error) -> Error {
    Error::with_source(ErrorKind::Retry, "cannot wait for reads", e)
}

/// Makes a ring that does not interrupt its thread when reads end, because the thread learns of them when it waits.
/// Linux before 5.19 has only rings that interrupt.
fn ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))
}

/// Errors of a read of the ring after which a plain read is tried.
const PUT_OFF: [i32; 5] = [libc::EAGAIN, libc::EINTR, libc::ECANCELED, libc::EINVAL, libc::EOPNOTSUPP];

/// Outcome of a read of the ring.
#[derive(Debug)]
enum Went {
    Whole,
    /// The kernel read fewer bytes, or asks to try again, as it may for any read. Or it does not know this kind of
    /// read, as before Linux 5.6. A plain read then reads the rest, or returns the error.
    Part,
    Failed(io::Error),
}

/// Interprets the kernel's result for a read of `bytes`: the number of bytes read, or a negated error number.
fn how_it_went(result: i32, bytes: usize) -> Went {
    match result {
        read if usize::try_from(read) == Ok(bytes) => Went::Whole,
        0.. => Went::Part,
        put_off if PUT_OFF.contains(&-put_off) => Went::Part,
        failed => Went::Failed(io::Error::from_raw_os_error(-failed)),
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait().is_err() {
                // The kernel may still write to this memory, so it is leaked rather than reused.
                std::mem::forget(std::mem::take(&mut self.slots));
                std::mem::forget(self.ring.take());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_read_of_all_bytes_is_whole_and_only_a_passing_error_is_tried_again() {
        assert!(matches!(how_it_went(4096, 4096), Went::Whole));
        for result in [0, 1, 4095].into_iter().chain(PUT_OFF.map(|error| -error)) {
            assert!(matches!(how_it_went(result, 4096), Went::Part), "result={result}");
        }
        for result in [-libc::EIO, -libc::EBADF, -libc::ENOMEM] {
            assert!(matches!(how_it_went(result, 4096), Went::Failed(e) if e.raw_os_error() == Some(-result)));
        }
    }
}
