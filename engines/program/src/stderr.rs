//! Standard error: one thread writes it, because a write may fail, or may never return.
//!
//! Owns: the lines that wait to be written, and the count of those that were lost. Must not: let another thread wait
//! for the log. Threads: `log` writes; any thread hands lines over.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::limit::{INTERVAL, LIMITER};

/// How long a program waits for lines on standard error that must not be lost, such as the reason for its end.
pub const LIMIT: Duration = Duration::from_secs(1);

/// Maximum number of bytes that wait to be written. Further lines are lost.
const LINES_BYTES_MAX: usize = 4 << 20;

/// Time between two checks whether all lines are written.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Leads to the thread that writes; `None` if it could not be started.
static QUEUE: LazyLock<Option<Sender<Vec<u8>>>> = LazyLock::new(start);

/// Bytes of the lines that are not written yet.
static UNWRITTEN: AtomicUsize = AtomicUsize::new(0);

/// Lines that were not written: too many waited, or the write failed.
static LOST: AtomicU64 = AtomicU64::new(0);

fn start() -> Option<Sender<Vec<u8>>> {
    let (lines, taken) = channel();
    thread::Builder::new().name("log".to_owned()).spawn(move || write_lines(&taken)).ok().map(|_| lines)
}

/// Whether the thread that writes is there.
pub(crate) fn is_started() -> bool {
    QUEUE.is_some()
}

/// Writes a line to standard error, and waits until it is written, for [`LIMIT`] at most.
pub fn tell(line: Arguments<'_>) {
    give(format!("{line}\n").into_bytes());
    wait();
}

/// Waits until all lines are written, for [`LIMIT`] at most.
pub(crate) fn wait() {
    let deadline = Instant::now() + LIMIT;
    // ORDERING: Acquire pairs with the Release after a write: the write comes before whatever the caller does next.
    while UNWRITTEN.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
}

/// Takes whole lines, and never waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        give(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn give(line: Vec<u8>) {
    let Some(lines) = &*QUEUE else {
        // Without a thread nothing runs that could be held up: the program is about to report that and end.
        io::stderr().write_all(&line).ok();
        return;
    };
    let bytes = line.len();
    // ORDERING: Relaxed: the channel passes the line on. The count bounds the memory.
    if UNWRITTEN.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > LINES_BYTES_MAX {
        UNWRITTEN.fetch_sub(bytes, Ordering::Relaxed);
        LOST.fetch_add(1, Ordering::Relaxed);
    } else {
        // The thread takes lines for as long as the process lives.
        lines.send(line).ok();
    }
}

/// Writes all lines that come. Between two intervals of the limiter it tells which lines were left out.
fn write_lines(lines: &Receiver<Vec<u8>>) {
    let (mut told, mut due) = (0, Instant::now() + INTERVAL);
    loop {
        if let Ok(line) = lines.recv_timeout(due.saturating_duration_since(Instant::now())) {
            let is_written = io::stderr().write_all(&line).is_ok();
            // ORDERING: Relaxed: a statistic.
            LOST.fetch_add(u64::from(!is_written), Ordering::Relaxed);
            // ORDERING: Release: see `wait`.
            let before = UNWRITTEN.fetch_sub(line.len(), Ordering::Release);
            let lost = LOST.load(Ordering::Relaxed);
            if is_written && before == line.len() && lost > told {
                told = lost;
                tracing::warn!(
                    lost,
                    "lines of this log were lost since the start: standard error could not be written"
                );
            }
        }
        if Instant::now() >= due {
            LIMITER.tell_left_out();
            due = Instant::now() + INTERVAL;
        }
    }
}
