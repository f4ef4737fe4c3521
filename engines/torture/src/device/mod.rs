//! Lives of strata on a simulated device in memory: one store, one kind of fault at a random place, and a check of the
//! remains.
//!
//! Owns: the choice and time of faults, the demands of FORMAT.md ("The commit, case by case") after each, and the thread
//! of a life. Must not: touch a real directory; know anything of the engine except how it is opened on a device. Plan,
//! model, writing and reading are those of all engines. The engine merges on a thread of its own, so a seed fixes the
//! batches and the fault, but not always the moment of the fault.

mod flips;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use engine_api::{Durability, Engine, Error, ErrorKind};
use engine_kit::Rng;
use engine_strata::faulty::{Fault, FaultyStorage};
use engine_strata::{StrataEngine, StrataOptions};

use crate::beside::beside;
use crate::column::Column;
use crate::disk::FaultKind;
use crate::life::Failure;
use crate::model::{Bad, Check, History, Model, wrong};
use crate::plan::Plan;
use crate::reading::{GET, HOLD, Readings, SCAN};
use crate::small::sizes;
use crate::totals::Totals;
use crate::writer::{Failed, check_before_or_after, refusal, write};

/// Number of keys in the largest space.
const LARGE: u64 = 30_000;
/// Time after which a life counts as hanging. Not a measure of speed: a busy machine takes long.
const PATIENCE: Duration = Duration::from_secs(300);

const OPTIONS: StrataOptions = StrataOptions { memory_bytes: 8 << 20, disk_reserve_bytes: 0 };

/// The kind of fault of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    PowerLoss,
    Read,
    Flush,
    Space,
    Flip,
}

/// One store and its expected content.
struct Case {
    kind: Kind,
    rng: Rng,
    storage: FaultyStorage,
    /// Content after the last acknowledged batch.
    model: Model,
    epoch: u64,
    /// Number of the last batch that was acknowledged as flushed.
    synced: u64,
    /// Number of the last batch that was begun.
    attempted: u64,
    totals: Totals,
}

/// Runs the life of a store on the device, on a thread of its own, because a deadlock would look like a long life.
///
/// # Errors
/// The first violation: a wrong answer, an error that no fault explains, a panic, or no end.
pub(crate) fn live(seed: u64) -> (Totals, Result<(), Failure>) {
    let (sender, ended) = channel();
    // Nobody receives it once the patience has ended.
    std::thread::spawn(move || sender.send(case(seed)).ok());
    let violated = |what: &str| (Totals::default(), Err(Failure::Violation(what.to_owned())));
    match ended.recv_timeout(PATIENCE) {
        Ok((totals, outcome)) => (totals, outcome.map_err(Failure::from)),
        Err(RecvTimeoutError::Disconnected) => violated("a panic, see above"),
        Err(RecvTimeoutError::Timeout) => violated("a life on the device hangs"),
    }
}

/// Runs one life. The error is the first wrong answer, or an error of the engine that the fault does not explain.
fn case(seed: u64) -> (Totals, Check) {
    let mut rng = Rng::of(seed, 2);
    let kind = rng.pick(&[Kind::PowerLoss, Kind::PowerLoss, Kind::Read, Kind::Flush, Kind::Space, Kind::Flip]);
    let plan = Plan::new(seed, true, rng.pick(&[300, 300, 3_000, 10_000]), LARGE);
    let model = Model::at(Column::StrataDevice, plan, History::default(), 0, 0);
    let totals = Totals { lives: 1, ..Totals::default() };
    let mut case =
        Case { kind, rng, storage: FaultyStorage::default(), model, epoch: 1, synced: 0, attempted: 0, totals };
    let outcome = case.run();
    (case.totals, outcome)
}

/// Builds the content of the same store after `seq` batches.
fn again(model: &Model, seq: u64) -> Model {
    Model::at(model.column, model.plan, model.history.clone(), seq, 0)
}

impl Case {
    fn run(&mut self) -> Check {
        match self.kind {
            Kind::PowerLoss => self.power_losses()?,
            Kind::Read | Kind::Flush => self.one_failure()?,
            Kind::Space | Kind::Flip => self.calm(60)?,
        }
        self.closed()?;
        if self.kind == Kind::Flip {
            flips::flips(&self.storage, &self.model, &mut self.rng, &mut self.totals)?;
        }
        Ok(())
    }

    /// Loses power several times in a row. Each time it checks several possible outcomes and continues with the last
    /// one.
    fn power_losses(&mut self) -> Check {
        for _ in 0..1 + self.rng.below(4) {
            let at = self.early(12);
            self.storage.set(Fault::CrashAt(at));
            self.until_it_fails(60)?;
            *self.totals.power_losses.entry("writing").or_default() += 1;
            let outcomes = 1 + self.rng.below(4);
            for outcome in 1..=outcomes {
                let left = self.storage.after_crash(self.rng.next());
                let found = self.found_in(&left, self.synced)?;
                if outcome == outcomes {
                    self.go_on(left, found);
                }
            }
        }
        Ok(())
    }

    /// Fails one read or flush. A new opening must find every acknowledged batch, and a power loss must leave every
    /// flushed one.
    fn one_failure(&mut self) -> Check {
        let (fault, kind) = match self.kind {
            Kind::Read => (Fault::ReadAt(self.early(15)), FaultKind::ReadError),
            _ => (Fault::SyncAt(self.early(9)), FaultKind::SyncError),
        };
        self.storage.set(fault);
        if self.until_it_fails(60)? {
            *self.totals.faults.entry(kind).or_default() += 1;
        }
        self.storage.set(Fault::None);
        let left = self.storage.after_crash(self.rng.next());
        self.found_in(&left, self.synced)?;
        let storage = self.storage.clone();
        let found = self.found_in(&storage, self.model.seq)?;
        self.go_on(storage, found);
        self.calm(10)
    }

    /// Continues with `storage`, which holds `found`: everything there is durable or known.
    fn go_on(&mut self, storage: FaultyStorage, found: Model) {
        self.totals.lost_batches += self.model.seq.saturating_sub(found.seq);
        (self.storage, self.attempted) = (storage, found.seq);
        self.synced = self.synced.min(found.seq);
        self.model = found;
        self.epoch += 1;
    }

    /// Works without a fault that may end the work. A full device must not end it.
    fn calm(&mut self, most: u64) -> Check {
        if self.kind == Kind::Space {
            let at = self.rng.below(6 << 20);
            self.storage.set(Fault::FullAt(at));
        }
        let batches = 1 + self.rng.below(most);
        self.work(batches)
    }

    /// Works until the fault is met. Returns whether it was.
    fn until_it_fails(&mut self, most: u64) -> Check<bool> {
        let batches = 1 + self.rng.below(most);
        match self.work(batches) {
            Ok(()) => Ok(false),
            // A failing device is no damage of the store.
            Err(Bad::Error(error)) if error.kind() == ErrorKind::Reopen => Ok(true),
            // A failed read needs no new opening, and a merge leaves the segment out.
            Err(Bad::Error(error)) if self.kind == Kind::Read && error.to_string().contains("cannot read: file=") => {
                Ok(true)
            }
            Err(bad) => Err(bad),
        }
    }

    /// Returns a random number below two to the `bits`, small as often as large.
    fn early(&mut self, bits: u64) -> u64 {
        let most = 1 << self.rng.below(bits + 1);
        1 + self.rng.below(most)
    }

    fn open_on(&mut self, storage: &FaultyStorage) -> engine_api::Result<StrataEngine> {
        let sizes = sizes(&OPTIONS, &mut self.rng, (256, 500));
        StrataEngine::open_sized(Arc::new(storage.clone()), &OPTIONS, sizes)
    }

    /// Opens a storage and checks its content, which must be that of some batch from `from` to the last one attempted.
    /// Returns that content.
    fn found_in(&mut self, storage: &FaultyStorage, from: u64) -> Check<Model> {
        let engine = self.open_on(storage)?;
        let seq = engine.checkpoint()?.seq;
        if seq < from || seq > self.attempted {
            let (acked, attempted) = (self.model.seq, self.attempted);
            return wrong(format!("found seq={seq}: at least {from} acked={acked} attempted={attempted}"));
        }
        let model = if seq == self.model.seq { self.model.clone() } else { again(&self.model, seq) };
        model.check_store(&engine, &mut self.rng)?;
        self.totals.reopenings += 1;
        Ok(model)
    }

    /// Checks and closes the store. From then on a power loss must change nothing.
    fn closed(&mut self) -> Check {
        self.storage.set(Fault::None);
        let storage = self.storage.clone();
        let engine = self.open_on(&storage)?;
        self.model.check_store(&engine, &mut self.rng)?;
        engine.scrub()?;
        Box::new(engine).close()?;
        self.synced = self.model.seq;
        self.attempted = self.model.seq;
        let left = self.storage.after_crash(self.rng.next());
        self.found_in(&left, self.synced).map(drop)
    }

    /// Writes `batches` batches over several openings.
    fn work(&mut self, batches: u64) -> Check {
        let end = self.model.seq + batches;
        while self.model.seq < end {
            self.opening(end)?;
        }
        Ok(())
    }

    fn opening(&mut self, end: u64) -> Check {
        let storage = self.storage.clone();
        let engine = match self.open_on(&storage) {
            Err(error) if self.has_no_space(&error) => {
                self.space_again(0);
                return Ok(());
            }
            opened => opened?,
        };
        let found = engine.checkpoint()?;
        if found.seq != self.model.seq {
            return wrong(format!("opened again: {found:?} acked={}", self.model.seq));
        }
        self.totals.reopenings += 1;
        let end = end.min(self.model.seq + 1 + self.rng.below(40));
        let (threads, seed) = (self.rng.pick(&[0, 0, 1, 2]), self.rng.next());
        let before = self.model.clone();
        let (worked, seen) = beside(&engine, &before, threads, seed, |stop| self.session(&engine, end, stop));
        match seen {
            // A wrong answer counts as a failure, whatever else was found.
            Err(Bad::Wrong(what)) => return wrong(what),
            seen => worked.and(seen)?,
        }
        if self.rng.once_in(2) {
            Box::new(engine).close()?;
            self.synced = self.model.seq;
        }
        Ok(())
    }

    fn session(&mut self, engine: &StrataEngine, end: u64, stop: &AtomicBool) -> Check {
        let mut readings = Readings::new(GET | SCAN | HOLD, PathBuf::new());
        // ORDERING: Relaxed: the flag guards no other memory.
        while self.model.seq < end && !stop.load(Ordering::Relaxed) {
            self.write(engine)?;
            match self.rng.below(24) {
                0 | 1 => self.settle(engine)?,
                2 => engine.scrub()?,
                3 | 4 => self.model.check_scan(&mut *engine.reader()?)?,
                _ => self.totals.operations += readings.some(engine, &self.model, &mut self.rng)?,
            }
        }
        readings.check_held()
    }

    fn write(&mut self, engine: &StrataEngine) -> Check {
        let seq = self.model.seq + 1;
        self.attempted = seq;
        self.model.history.turn(seq, self.epoch);
        let durability = if self.rng.once_in(3) { Durability::Synced } else { Durability::Buffered };
        match write(engine, &mut self.model, durability, &mut self.rng, &mut |_| {}) {
            Ok((durability, operations)) => {
                self.totals.commits += 1;
                self.totals.operations += operations as u64;
                if durability == Durability::Synced {
                    self.synced = seq;
                }
                Ok(())
            }
            Err(failed) => self.failed(engine, failed),
        }
    }

    fn settle(&mut self, engine: &StrataEngine) -> Check {
        self.totals.groups += u64::from(Column::StrataDevice.merges_groups(&engine.stats()?));
        match engine.settle() {
            Ok(()) => self.synced = self.model.seq,
            Err(error) if self.has_no_space(&error) => {
                let more = self.rng.below(1 << 20);
                self.space_again(more);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Handles a failed write: work continues on a full device, and ends for any other reason.
    fn failed(&mut self, engine: &StrataEngine, failed: Failed) -> Check {
        let is_load = matches!(failed, Failed::Load(_) | Failed::Repeat(_));
        if matches!(failed, Failed::Repeat(_)) {
            self.synced = self.model.seq;
        }
        let error = match Bad::from(failed) {
            Bad::Error(error) => error,
            wrong => return Err(wrong),
        };
        // A batch that is tried again differs from the refused one.
        self.epoch += 1;
        if self.has_no_space(&error) {
            // Nothing of the batch was applied, or all of a chunk whose load was repeated, and reads still work.
            self.model.check_store(engine, &mut self.rng)?;
            let more = self.rng.below(1 << 20);
            self.space_again(more);
            return Ok(());
        }
        if !is_load && error.kind() == ErrorKind::Reopen {
            let kind = refusal(engine)?;
            if kind != ErrorKind::Reopen {
                return wrong(format!("after a commit that failed with {error}: begin gives {kind:?}"));
            }
            if let Err(Bad::Wrong(what)) = check_before_or_after(engine, &self.model, &mut self.rng) {
                return wrong(what);
            }
        }
        Err(error.into())
    }

    fn has_no_space(&self, error: &Error) -> bool {
        self.kind == Kind::Space && error.kind() == ErrorKind::FreeSpace
    }

    /// Gives the device `more` bytes, which may not be enough, or unlimited space.
    fn space_again(&mut self, more: u64) {
        *self.totals.faults.entry(FaultKind::FullUnseen).or_default() += 1;
        let (.., allocated) = self.storage.counts();
        let short = more > 0 && self.rng.once_in(2);
        self.storage.set(if short { Fault::FullAt(allocated + more) } else { Fault::None });
    }
}
