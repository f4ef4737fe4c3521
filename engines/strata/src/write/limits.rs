//! What a commit waits for: a flush, and merges that are behind.
//!
//! Owns: the bounds on memtables, delta runs and debt, and that every wait at them is counted. Runs on the thread of the
//! transaction, under the writer lock.
//!
//! Merges are slower than the fastest writer, because a pair is rewritten several times. So commits are slowed first, more
//! the further merges are behind, until both go at the same speed; at the bounds they are held.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine_api::{Error, ErrorKind, Result};

use crate::engine::{Shared, Work, Writer};
use crate::read::visible::Visible;
use crate::write::plan::{can_shrink, debt};

/// Delta runs from which commits are slowed, and at which one that needs a new memtable is held: a get of an absent key
/// looks at all of them, and a merge of all of them has a buffer for each. Four sizes of runs, three of each, are usual; a
/// merge into the base keeps as many from being merged meanwhile. RocksDB's triggers are these, too.
pub(crate) const RUNS_SLOW: usize = 20;
pub(crate) const RUNS_MAX: usize = 36;
/// The same for what the deltas hold, in parts of what makes a merge into the base due (half of the base, or some
/// memtables). One part is being merged while the next comes in; a third is late. At the bound the deltas hold one and a
/// half times as much as the base.
pub(crate) const DEBT_SLOW: f64 = 2.0;
pub(crate) const DEBT_MAX: f64 = 3.0;
/// What a change of a commit waits just below the bounds: 50,000 a second, which merges keep up with on any disk that is
/// fit for the work. Half way there it is a quarter of it: most writers find their speed between.
const SLOWEST: Duration = Duration::from_micros(20);
/// The most that one commit is slowed, however many changes it has.
const SLOWED_MAX: Duration = Duration::from_secs(1);
/// What commits owe is given in sleeps of at least this: the kernel's are no shorter than a part of it.
const SLEEP_LEAST: Duration = Duration::from_millis(1);
/// How long a commit waits for a want of descriptors or memory to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Full pressure.
const FULL: f64 = 1024.0;

/// How far merges are behind, between not at all (0) and so that commits are held ([`FULL`]).
pub(crate) fn pressure_of(now: &Visible) -> u32 {
    let share = |value: f64, slow: f64, most: f64| ((value - slow) / (most - slow)).clamp(0.0, 1.0);
    let runs = share(now.version.deltas.len() as f64, RUNS_SLOW as f64, RUNS_MAX as f64);
    let debt = share(debt(now).parts_filtered, DEBT_SLOW, DEBT_MAX);
    (runs.max(debt) * FULL) as u32
}

/// Whether a commit that needs a new memtable has to wait, and whether for fewer runs (or for less debt).
pub(crate) fn held_by(now: &Visible) -> Option<HeldBy> {
    // Where nothing can be merged, because too much cannot be read, waiting would not help.
    if now.version.deltas.len() >= RUNS_MAX && can_shrink(&now.version) {
        return Some(HeldBy::Runs);
    }
    (debt(now).parts_filtered >= DEBT_MAX).then_some(HeldBy::Debt)
}

/// What holds commits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldBy {
    Runs,
    Debt,
}

impl Shared {
    /// Takes from a commit of so many changes what merges are behind.
    pub(crate) fn slow_down(&self, writer: &mut Writer, changes: usize) {
        // ORDERING: Relaxed: a measure, which is as good a moment later.
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

    /// Waits until at most `most` memtables are frozen; gives up with the flushing thread's error.
    pub(crate) fn wait_for_flush(&self, most: usize) -> Result<()> {
        self.wait_counted(|now| now.frozen.len() <= most)
    }

    /// Waits until every batch up to this one is in a run; gives up with the flushing thread's error.
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
        // A failure of before is tried again once: space may have been freed meanwhile.
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

    /// Waits while there are too many delta runs for another one, or too much in them; gives up where merging has failed.
    pub(crate) fn hold(&self) -> Result<()> {
        if held_by(&self.visible.load()).is_none() {
            return Ok(());
        }
        let since = Instant::now();
        let mut work = self.work.lock();
        let mut held = Ok(());
        while held.is_ok() && held_by(&self.visible.load()).is_some() {
            held = self.may_hope(&work, since);
            if held.is_ok() {
                self.wake.notify_all();
                self.done.wait(&mut work);
            }
        }
        self.counters.stalled(since.elapsed());
        held
    }

    fn may_hope(&self, work: &Work, since: Instant) -> Result<()> {
        work.check_alive()?;
        self.refuse_if_poisoned()?;
        match &work.merge_failed {
            Some((kind, why)) if *kind == ErrorKind::FreeSpace || since.elapsed() >= PATIENCE => {
                Err(Error::new(*kind, why.clone()))
            }
            _ => Ok(()),
        }
    }
}
