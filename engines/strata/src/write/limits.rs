//! Waits of a commit: for a flush, and for merges that lag.
//!
//! Owns: the bounds on memtables, delta runs and debt, and the counting of every wait at them. Runs on the thread of
//! the transaction, under the writer lock.
//!
//! Merges are slower than the fastest writer, because a pair is rewritten several times. So commits are slowed first,
//! more the further merges lag, until both run at the same speed. At the bounds commits are held.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine_api::{Error, ErrorKind, Result};

use crate::read::visible::Visible;
use crate::write::plan::{can_shrink, debt};
use crate::write::shared::{Shared, Work, Writer};

/// Number of delta runs that is usual: three of each of four sizes.
pub(crate) const RUNS_USUAL: usize = 12;
/// Number of delta runs from which commits are slowed. About as many as usual may wait while a merge into the base holds the
/// others. RocksDB's triggers have the same values.
pub(crate) const RUNS_SLOW: usize = 20;
/// Number of delta runs at which a commit that needs a new memtable is held. The number is bounded because a get of an
/// absent key looks at all runs, and a merge of all of them has a buffer for each.
pub(crate) const RUNS_MAX: usize = 36;
/// Debt from which commits are slowed, in units of the records that make a merge into the base due (half of the base,
/// or some memtables). One unit is being merged while the next one is written; a third means that merges lag.
pub(crate) const DEBT_SLOW: f64 = 2.0;
/// Debt at which commits are held, in the same units: the deltas then hold one and a half times as many records as the
/// base.
pub(crate) const DEBT_MAX: f64 = 3.0;
/// Delay for each change just below the bounds: 50,000 changes a second, which merges keep up with on any suitable
/// disk. Half way there the delay is a quarter of it. Most writers settle at a speed between the two.
const SLOWEST: Duration = Duration::from_micros(20);
/// Longest delay of one commit, however many changes it has.
const SLOWED_MAX: Duration = Duration::from_secs(1);
/// Shortest sleep. Smaller delays are added up until they reach it, because the kernel cannot sleep for them exactly.
const SLEEP_LEAST: Duration = Duration::from_millis(1);
/// How long a commit waits for a shortage of descriptors or memory, or another trouble of merges, to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The greatest pressure, at which commits are held.
const FULL: f64 = 1024.0;

/// Returns how far merges lag: from 0, not at all, to [`FULL`], where commits are held.
pub(crate) fn pressure_of(now: &Visible) -> u32 {
    let share = |value: f64, slow: f64, most: f64| ((value - slow) / (most - slow)).clamp(0.0, 1.0);
    let runs = share(now.version.deltas.len() as f64, RUNS_SLOW as f64, RUNS_MAX as f64);
    let debt = share(debt(now).parts_filtered, DEBT_SLOW, DEBT_MAX);
    (runs.max(debt) * FULL) as u32
}

/// Returns the bound that a commit has to wait at before it may begin a new memtable, if any.
pub(crate) fn held_by(now: &Visible) -> Option<HeldBy> {
    // If nothing can be merged, because too much is unreadable, waiting would not help.
    if now.version.deltas.len() >= RUNS_MAX && can_shrink(&now.version) {
        return Some(HeldBy::Runs);
    }
    (debt(now).parts_filtered >= DEBT_MAX).then_some(HeldBy::Debt)
}

/// The bound at which commits are held: the number of delta runs, or the debt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldBy {
    Runs,
    Debt,
}

impl Shared {
    /// Slows a commit of so many changes, according to how far merges lag.
    pub(crate) fn slow_down(&self, writer: &mut Writer, changes: usize) {
        // ORDERING: Relaxed: a measurement, which is as good a moment later.
        let pressure = self.pressure.load(Ordering::Relaxed);
        if pressure == 0 {
            writer.owed = Duration::ZERO;
            return;
        }
        let each = SLOWEST.mul_f64((f64::from(pressure) / FULL).powi(2));
        writer.owed += each.mul_f64(changes as f64).min(SLOWED_MAX);
        if writer.owed >= SLEEP_LEAST {
            let owed = std::mem::take(&mut writer.owed);
            std::thread::sleep(owed);
            self.counters.slowed(owed);
        }
    }

    /// Waits until at most `most` memtables are frozen. Gives up with the flushing thread's error.
    pub(crate) fn wait_for_flush(&self, most: usize) -> Result<()> {
        self.wait_counted(|now| now.frozen.len() <= most)
    }

    /// Waits until every batch up to `batch` is in a run. Gives up with the flushing thread's error.
    pub(crate) fn wait_for_batch(&self, batch: u64) -> Result<()> {
        self.wait_until_flushed(|now| now.frozen.iter().all(|frozen| frozen.batch > batch))
    }

    fn wait_counted(&self, flushed: impl Fn(&Visible) -> bool) -> Result<()> {
        if flushed(&self.visible.load()) {
            return Ok(());
        }
        let since = Instant::now();
        let waited = self.wait_until_flushed(flushed);
        self.counters.stalled(since.elapsed());
        waited
    }

    fn wait_until_flushed(&self, flushed: impl Fn(&Visible) -> bool) -> Result<()> {
        let since = Instant::now();
        let mut work = self.work.lock();
        // An earlier failure is retried once, because space may have been freed meanwhile.
        let mut tried = None;
        while !flushed(&self.visible.load()) {
            work.check_alive()?;
            if let (Some((kind, why)), Some(before)) = (&work.flush_failed, tried)
                && work.flushes_tried > before
                && (*kind != ErrorKind::Retry || since.elapsed() >= PATIENCE)
            {
                return Err(Error::new(*kind, why.clone()));
            }
            tried.get_or_insert(work.flushes_tried);
            self.flush_wake.notify_all();
            self.done.wait(&mut work);
        }
        Ok(())
    }

    /// Waits while commits are held because of too many delta runs or too much debt. Gives up if merges go on failing.
    ///
    /// # Errors
    /// `FreeSpace`: a merge that was tried meanwhile lacks disk space. `Retry`: merges have failed for [`PATIENCE`] in
    /// another way. A merge that meets an unreadable segment fails once, and then leaves it out.
    pub(crate) fn hold(&self) -> Result<()> {
        if held_by(&self.visible.load()).is_none() {
            return Ok(());
        }
        let since = Instant::now();
        let mut work = self.work.lock();
        // The cause of an earlier failure may be gone.
        work.merge_now = work.merge_failed.is_some();
        self.wake.notify_all();
        let (tried, mut failing) = (work.merges_tried, None);
        let mut held = Ok(());
        while held_by(&self.visible.load()).is_some() {
            held = self.may_hope(&work, tried, &mut failing);
            if held.is_err() {
                break;
            }
            // The merging thread tells of each of its turns, at least one a second.
            self.done.wait(&mut work);
        }
        self.counters.stalled(since.elapsed());
        held
    }

    /// Returns an error once a commit that is held need not wait any longer. `tried` is the number of attempts to merge
    /// when it began to wait, `failing` the time since which they fail.
    fn may_hope(&self, work: &Work, tried: u64, failing: &mut Option<Instant>) -> Result<()> {
        work.check_alive()?;
        self.poison.check()?;
        let Some((kind, why)) = &work.merge_failed else {
            *failing = None;
            return Ok(());
        };
        let is_patient = failing.get_or_insert_with(Instant::now).elapsed() < PATIENCE;
        match kind {
            ErrorKind::FreeSpace if work.merges_tried > tried => Err(Error::new(*kind, why.clone())),
            ErrorKind::FreeSpace => Ok(()),
            _ if is_patient => Ok(()),
            _ => Err(Error::new(ErrorKind::Retry, format!("a commit waits for merges, which fail: {why}"))),
        }
    }
}
