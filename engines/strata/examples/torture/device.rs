//! Rounds on a device in memory: one store, one kind of fault at a random place, and a check of the remains.
//!
//! Owns: the choice and time of faults, and the demands of FORMAT.md ("The commit, case by case") after each. Must not:
//! touch a real directory. Runs on the main thread, at times with reading threads in addition. The engine merges on a
//! thread of its own, so a seed fixes the changes and the fault, but not always the moment of the fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine_api::{Durability, Engine, Error, ErrorKind};
use engine_strata::StrataEngine;

use crate::Totals;
use crate::child::has_groups;
use crate::flips;
use crate::model::{Bad, Check, Model, wrong};
use crate::plan::{Change, Plan, sizes};
use crate::readers::{Held, beside};
use crate::support::{OPTIONS, Rng};
use crate::writer::write;
use engine_strata::faulty::{Fault, FaultyStorage};

/// The kind of fault of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    PowerLoss,
    Read,
    Flush,
    Space,
    Flip,
}

/// The state of a round: one store and its expected content.
struct Case<'t> {
    kind: Kind,
    plan: Plan,
    rng: Rng,
    storage: FaultyStorage,
    /// Content after the last acknowledged change.
    model: Model,
    /// Number of the last change that was acknowledged as flushed.
    synced: u64,
    /// Number of the last change that was begun.
    attempted: u64,
    totals: &'t mut Totals,
}

/// Runs one round.
///
/// # Errors
/// The first wrong answer, or an error of the engine that the fault does not explain.
pub(crate) fn round(seed: u64, totals: &mut Totals) -> Check {
    let mut rng = Rng(seed);
    let kinds = [Kind::PowerLoss, Kind::PowerLoss, Kind::Read, Kind::Flush, Kind::Space, Kind::Flip];
    let kind = kinds[rng.below(kinds.len() as u64) as usize];
    let plan = Plan::device(seed);
    let (storage, model) = (FaultyStorage::default(), Model::new(plan));
    let mut case = Case { kind, plan, rng, storage, model, synced: 0, attempted: 0, totals };
    match kind {
        Kind::PowerLoss => case.power_losses()?,
        Kind::Read | Kind::Flush => case.one_failure()?,
        Kind::Space | Kind::Flip => case.calm(60)?,
    }
    case.closed()?;
    if kind == Kind::Flip {
        flips::flips(&case.storage, &case.model, &mut case.rng, case.totals)?;
    }
    Ok(())
}

impl Case<'_> {
    /// Loses power several times in a row. Each time it checks several possible outcomes and continues with the last
    /// one.
    fn power_losses(&mut self) -> Check {
        for _ in 0..1 + self.rng.below(4) {
            let at = self.early(12);
            self.storage.set(Fault::CrashAt(at));
            self.until_it_fails(60)?;
            self.totals.fault("power loss");
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

    /// Fails one read or flush. A new opening must find every acknowledged change, and a power loss must leave every
    /// flushed one.
    fn one_failure(&mut self) -> Check {
        let fault = match self.kind {
            Kind::Read => Fault::ReadAt(self.early(15)),
            _ => Fault::SyncAt(self.early(9)),
        };
        self.storage.set(fault);
        if self.until_it_fails(60)? {
            self.totals.fault(if self.kind == Kind::Read { "failed read" } else { "failed flush" });
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
        (self.storage, self.attempted) = (storage, found.seq);
        self.synced = self.synced.min(found.seq);
        self.model = found;
    }

    /// Works without a fault that may end the work. A full device must not end it.
    fn calm(&mut self, most: u64) -> Check {
        if self.kind == Kind::Space {
            let at = self.rng.below(6 << 20);
            self.storage.set(Fault::FullAt(at));
        }
        let changes = 1 + self.rng.below(most);
        self.work(changes)
    }

    /// Works until the fault is met. Returns whether it was.
    fn until_it_fails(&mut self, most: u64) -> Check<bool> {
        let changes = 1 + self.rng.below(most);
        match self.work(changes) {
            Ok(()) => Ok(false),
            // A failing device is no damage of the store.
            Err(Bad::Engine(error)) if error.kind() == ErrorKind::Reopen => Ok(true),
            // A failed read needs no new opening, and a merge leaves the segment out.
            Err(Bad::Engine(error)) if self.kind == Kind::Read && error.to_string().contains("cannot read: file=") => {
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

    /// Opens a storage and checks its content, which must be that of some change from `from` to the last one attempted.
    /// Returns that content.
    fn found_in(&mut self, storage: &FaultyStorage, from: u64) -> Check<Model> {
        let engine = self.open_on(storage)?;
        self.totals.reopenings += 1;
        let seq = engine.checkpoint()?.seq;
        if seq < from || seq > self.attempted {
            let (acked, attempted) = (self.model.seq, self.attempted);
            return wrong(format!("found seq={seq}: at least {from} acked={acked} attempted={attempted}"));
        }
        let model = if seq == self.model.seq { self.model.clone() } else { Model::after(self.plan, seq) };
        model.check_store(&engine, &mut self.rng)?;
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

    /// Writes `changes` changes over several openings.
    fn work(&mut self, changes: u64) -> Check {
        let ops = self.model.ops;
        let end = self.model.seq + changes;
        let mut outcome = Ok(());
        while outcome.is_ok() && self.model.seq < end {
            outcome = self.opening(end);
        }
        self.totals.ops += self.model.ops - ops;
        outcome
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
        self.totals.reopenings += 1;
        if engine.checkpoint()?.seq != self.model.seq {
            let found = engine.checkpoint()?;
            return wrong(format!("opened again: {found:?} acked={}", self.model.seq));
        }
        let end = end.min(self.model.seq + 1 + self.rng.below(40));
        let (threads, seed) = ([0, 0, 1, 2][self.rng.below(4) as usize], self.rng.next());
        let before = self.model.clone();
        beside(&engine, &before, threads, seed, |stop| self.session(&engine, end, stop))?;
        if self.rng.below(2) == 0 {
            Box::new(engine).close()?;
            self.synced = self.model.seq;
        }
        Ok(())
    }

    fn session(&mut self, engine: &StrataEngine, end: u64, stop: &AtomicBool) -> Check {
        let mut held: Vec<Held<'_>> = Vec::new();
        // ORDERING: Relaxed: the flag guards no other memory.
        while self.model.seq < end && !stop.load(Ordering::Relaxed) {
            let seq = self.model.seq + 1;
            self.attempted = seq;
            let change = self.plan.change(seq);
            match write(engine, &self.plan, seq, &change, &mut self.rng) {
                Ok(durability) => {
                    self.model.apply(&change);
                    if durability == Durability::Synced {
                        self.synced = seq;
                    }
                }
                Err(Bad::Engine(error)) => self.failed(engine, &change, error)?,
                Err(bad) => return Err(bad),
            }
            match self.rng.below(12) {
                0 => self.settle(engine)?,
                1 => self.model.check_gets(&mut *engine.reader()?, &mut self.rng, 200)?,
                2 => self.model.check_scan(&mut *engine.reader()?)?,
                3 if held.len() < 3 => held.push(Held::new(engine, &self.model, &mut self.rng)?),
                4 => held.iter_mut().try_for_each(|held| held.check(&mut self.rng))?,
                5 => held.iter_mut().take(1).try_for_each(|held| held.refresh(&self.model, &mut self.rng))?,
                _ => {}
            }
        }
        held.iter_mut().try_for_each(|held| held.check(&mut self.rng))
    }

    fn settle(&mut self, engine: &StrataEngine) -> Check {
        self.totals.groups += u64::from(has_groups(engine));
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
    fn failed(&mut self, engine: &StrataEngine, change: &Change, error: Error) -> Check {
        if self.has_no_space(&error) {
            // Nothing of the change was applied, and reads still work.
            self.model.check_store(engine, &mut self.rng)?;
            let more = self.rng.below(1 << 20);
            self.space_again(more);
            return Ok(());
        }
        if matches!(change, Change::Batch(_)) && error.kind() == ErrorKind::Reopen {
            match engine.begin().err().map(|error| error.kind()) {
                Some(ErrorKind::Reopen) => {}
                other => return wrong(format!("after a commit that failed with {error}: begin gives {other:?}")),
            }
        }
        Err(error.into())
    }

    fn has_no_space(&self, error: &Error) -> bool {
        self.kind == Kind::Space && error.kind() == ErrorKind::FreeSpace
    }

    /// Gives the device `more` bytes, which may not be enough, or unlimited space.
    fn space_again(&mut self, more: u64) {
        self.totals.fault("no space");
        let (.., allocated) = self.storage.counts();
        let short = more > 0 && self.rng.below(2) == 0;
        self.storage.set(if short { Fault::FullAt(allocated + more) } else { Fault::None });
    }
}
