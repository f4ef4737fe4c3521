//! Waits of a commit: for a flush, and for merges that lag.
//!
//! Owns: how long a commit waits, and the counting of every wait. Must not: judge how far merges lag, which
//! `write/plan.rs` does. Runs on the thread of the transaction, mostly under the writer lock.
//!
//! Merges are slower than the fastest writer, because a pair is rewritten several times. So commits are slowed first,
//! more the further merges lag, until both run at the same speed. At the bounds commits are held.

use std::time::{Duration, Instant};

use engine_api::{Error, ErrorKind, Result};

use crate::read::visible::Visible;
use crate::write::commits::{Commits, Writer};
use crate::write::mailbox::Requests;
use crate::write::plan::{FULL_PRESSURE, is_held};

/// Delay for each change just below the bounds: 50,000 changes a second, which merges keep up with on any suitable
/// disk. Half way there the delay is a quarter of it. Most writers settle at a speed between the two.
const SLOWEST: Duration = Duration::from_micros(20);
/// Longest delay of one commit, however many changes it has.
const SLOWED_MAX: Duration = Duration::from_secs(1);
/// Shortest sleep. Smaller delays are added up until they reach it, because the kernel cannot sleep for them exactly.
const SLEEP_LEAST: Duration = Duration::from_millis(1);
/// How long a commit waits for a shortage of descriptors or memory, or another trouble of merges, to pass.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

impl Commits {
    /// Slows a commit of so many changes, according to how far merges lag.
    pub(super) fn slow_down(&self, writer: &mut Writer, changes: usize) {
        let pressure = self.runs.pressure();
        if pressure == 0 {
            writer.owed = Duration::ZERO;
            return;
        }
        let each = SLOWEST.mul_f64((f64::from(pressure) / FULL_PRESSURE).powi(2));
        writer.owed += each.mul_f64(changes as f64).min(SLOWED_MAX);
        if writer.owed >= SLEEP_LEAST {
            let owed = std::mem::take(&mut writer.owed);
            std::thread::sleep(owed);
            self.common.counters.slowed.add(owed);
        }
    }

    /// Waits until at most `most` memtables are frozen. Gives up with the flushing thread's error.
    pub(super) fn wait_for_flush(&self, most: usize) -> Result<()> {
        self.wait_counted(|now| now.frozen.len() <= most)
    }

    /// Waits until every batch up to `batch` is in a run. Gives up with the flushing thread's error.
    pub(crate) fn wait_for_batch(&self, batch: u64) -> Result<()> {
        self.wait_until_flushed(|now| now.frozen.iter().all(|frozen| frozen.batch > batch))
    }

    fn wait_counted(&self, flushed: impl Fn(&Visible) -> bool) -> Result<()> {
        if flushed(&self.common.newest.load()) {
            return Ok(());
        }
        let since = Instant::now();
        let waited = self.wait_until_flushed(flushed);
        self.common.counters.stalls.add(since.elapsed());
        waited
    }

    fn wait_until_flushed(&self, flushed: impl Fn(&Visible) -> bool) -> Result<()> {
        let since = Instant::now();
        let mut requests = self.common.mailbox.lock();
        // An earlier failure is retried once, because space may have been freed meanwhile.
        let mut tried = None;
        while !flushed(&self.common.newest.load()) {
            requests.check_alive()?;
            if let (Some((kind, why)), Some(before)) = (&requests.flush_failed, tried)
                && requests.flushes_tried > before
                && (*kind != ErrorKind::Retry || since.elapsed() >= PATIENCE)
            {
                return Err(Error::new(*kind, why.clone()));
            }
            tried.get_or_insert(requests.flushes_tried);
            self.common.mailbox.wake_flush.notify_all();
            self.common.mailbox.done.wait(&mut requests);
        }
        Ok(())
    }

    /// Waits while commits are held because of too many delta runs or too much debt. Gives up if merges go on failing.
    ///
    /// # Errors
    /// `FreeSpace`: a merge that was tried meanwhile lacks disk space. `Retry`: merges have failed for [`PATIENCE`] in
    /// another way. A merge that meets an unreadable segment fails once, and then leaves it out.
    pub(super) fn hold(&self) -> Result<()> {
        if !is_held(&self.common.newest.load()) {
            return Ok(());
        }
        let since = Instant::now();
        let mut requests = self.common.mailbox.lock();
        // The cause of an earlier failure may be gone.
        requests.merge_now = requests.merge_failed.is_some();
        self.common.mailbox.wake_merge.notify_all();
        let (tried, mut failing) = (requests.merges_tried, None);
        let mut held = Ok(());
        while is_held(&self.common.newest.load()) {
            held = self.check_progress(&requests, tried, &mut failing);
            if held.is_err() {
                break;
            }
            // The merging thread notifies after each of its turns, at least once a second.
            self.common.mailbox.done.wait(&mut requests);
        }
        self.common.counters.stalls.add(since.elapsed());
        held
    }

    /// Returns an error once a commit that is held need not wait any longer. `tried` is the number of attempts to merge
    /// when it began to wait, `failing` the time since which they fail.
    fn check_progress(&self, requests: &Requests, tried: u64, failing: &mut Option<Instant>) -> Result<()> {
        requests.check_alive()?;
        self.common.poison.check()?;
        let Some((kind, why)) = &requests.merge_failed else {
            *failing = None;
            return Ok(());
        };
        let is_patient = failing.get_or_insert_with(Instant::now).elapsed() < PATIENCE;
        match kind {
            ErrorKind::FreeSpace if requests.merges_tried > tried => Err(Error::new(*kind, why.clone())),
            ErrorKind::FreeSpace => Ok(()),
            _ if is_patient => Ok(()),
            _ => Err(Error::new(ErrorKind::Retry, format!("a commit waits for merges, which fail: {why}"))),
        }
    }
}
