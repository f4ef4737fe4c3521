//! The process that is killed: it opens a store, writes, reads and reopens it until it is gone.
//!
//! Owns: the open store. Must not: decide which batches had to survive, because the supervisor does. Runs on the main
//! thread of a process of its own; a second thread ends the process when the supervisor is gone.
//!
//! It reports its actions by the lines of [`crate::telling`].

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use engine_api::{Durability, Engine, Error, ErrorKind};
use engine_kit::Rng;
use serde::{Deserialize, Serialize};

use crate::beside::beside;
use crate::column::Column;
use crate::model::{Bad, Check, History, Model, wrong};
use crate::plan::Plan;
use crate::reading::{Readings, SCRUB, WATCH};
use crate::telling::{report, say};
use crate::writer::{Failed, Point, check_before_or_after, refusal, write};

/// Number of openings that may fail in a row before an agent gives up.
const OPENINGS_MAX: u32 = 40;
/// Number of refusals in a row after which the store is opened again.
const REFUSALS_MAX: u32 = 30;

/// The task of one agent process, which the supervisor passes as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The directory of this life.
    pub dir: PathBuf,
    /// The engine, and the options that it is opened with.
    pub engine: Column,
    /// The seed of this life.
    pub seed: u64,
    /// The history: which batches are of which epoch.
    pub history: Vec<(u64, u64)>,
    /// The first epoch of this agent's own batches.
    pub epoch: u64,
    /// The last chunk whose load was tried.
    pub loading: u64,
    /// Whether there are sorted chunks among the batches.
    pub chunks: bool,
    /// Changes that most batches have at most.
    pub changes: u64,
    /// Keys in the largest space.
    pub large: u64,
    /// Commits that are synced, in a hundred.
    pub synced: u64,
    /// Batches after which it closes the store and ends.
    pub batches: u64,
    /// Stands still before the commit of this batch, counted from its start; 0 for none.
    pub park: u64,
    /// A bit for each activity besides writing.
    pub habits: u64,
}

/// Works until the task is done or the process is killed.
pub fn run(task: &Task) -> ExitCode {
    // If the kernel refuses this, the end of the standard input ends the process.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        // An error ends the wait, just as the end of the input does.
        std::io::stdin().read_to_end(&mut rest).ok();
        std::process::exit(0);
    });
    let mut agent = Agent {
        task,
        plan: Plan::new(task.seed, task.chunks, task.changes, task.large),
        rng: Rng::of(task.seed, task.epoch),
        history: History::of(task.history.clone()),
        epoch: task.epoch,
        loading: task.loading,
        batches: 0,
        trouble: None,
    };
    match agent.live() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Bad::Wrong(what)) => {
            say(format_args!("wrong {what}"));
            ExitCode::FAILURE
        }
        Err(Bad::Error(error)) => {
            report("end", &error);
            ExitCode::SUCCESS
        }
    }
}

/// State after an operation was refused, until one succeeds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Refused(u32),
    Reopening,
}

/// Result of a session with an open store.
enum End {
    Done,
    Reopen,
}

struct Agent<'a> {
    task: &'a Task,
    plan: Plan,
    rng: Rng,
    history: History,
    epoch: u64,
    loading: u64,
    batches: u64,
    trouble: Option<Trouble>,
}

impl Agent<'_> {
    fn live(&mut self) -> Check {
        let mut openings = 0;
        loop {
            say("opening");
            let opened = self.task.engine.open(&self.task.dir.join("store"), &mut self.rng);
            let outcome = opened.map_err(Bad::from).and_then(|engine| {
                let mut model = self.look(&*engine)?;
                openings = 0;
                let end = self.session(&*engine, &mut model)?;
                self.leave(engine, &model, &end).map(|()| end)
            });
            match outcome {
                Ok(End::Done) => return Ok(()),
                Ok(End::Reopen) => {}
                Err(Bad::Error(error)) => {
                    report("open", &error);
                    self.trouble = Some(Trouble::Reopening);
                    openings += 1;
                    if openings == OPENINGS_MAX {
                        say("gave up");
                        return Ok(());
                    }
                }
                wrong => return wrong.map(drop),
            }
            self.epoch += 1;
        }
    }

    /// Compares everything in a store that was just opened with the model.
    fn look(&mut self, engine: &dyn Engine) -> Check<Model> {
        let seq = engine.checkpoint()?.seq;
        say(format_args!("found {seq}"));
        let model = Model::at(self.task.engine, self.plan, self.history.clone(), seq, self.loading);
        model.check_store(engine, &mut self.rng)?;
        say(format_args!("opened {seq}"));
        Ok(model)
    }

    fn leave(&mut self, mut engine: Box<dyn Engine>, model: &Model, end: &End) -> Check {
        if self.task.habits & SCRUB != 0
            && self.task.engine.engine().scrubs_more
            && self.trouble.is_none()
            && self.rng.once_in(4)
        {
            let pairs = engine.scrub()?;
            if pairs != model.pairs && !model.is_cut() {
                return wrong(format!("a scrub finds pairs={pairs} expected={}", model.pairs));
            }
        }
        if matches!(end, End::Reopen) && (self.trouble.is_some() || self.rng.once_in(2)) {
            // Dropped without closing, as after a kill.
            drop(engine);
            return Ok(());
        }
        engine.close()?;
        say("closed");
        if matches!(end, End::Done) {
            say("done");
        }
        Ok(())
    }

    /// Works on an open store, at times with reading threads beside.
    fn session(&mut self, engine: &dyn Engine, model: &mut Model) -> Check<End> {
        let watches = self.task.habits & WATCH != 0;
        let threads = if watches { self.rng.pick(&[0, 0, 1, 2]) } else { 0 };
        let (before, seed) = (model.clone(), self.rng.next());
        let (end, seen) = beside(engine, &before, threads, seed, |stop| self.work(engine, model, stop));
        match seen {
            Err(Bad::Error(error)) => {
                report("read", &error);
                self.trouble = Some(Trouble::Reopening);
                end.map(|_| End::Reopen)
            }
            seen => seen.and(end),
        }
    }

    /// Writes and reads until the batches are done or the store has to be opened again.
    fn work(&mut self, engine: &dyn Engine, model: &mut Model, stop: &AtomicBool) -> Check<End> {
        self.recovered();
        let mut readings = Readings::new(self.task.habits, self.task.dir.join("copies"));
        let mut last = self.batches + 1 + self.rng.below(120);
        if !readings.reopens() {
            last = u64::MAX;
        }
        // ORDERING: Relaxed: the flag guards no other memory.
        while self.batches < self.task.batches && !stop.load(Ordering::Relaxed) {
            if self.batches >= last && self.rng.once_in(4) {
                return Ok(End::Reopen);
            }
            match self.write(engine, model) {
                Ok(()) => self.recovered(),
                Err(failed) => {
                    if self.failed(engine, model, failed)? {
                        return Ok(End::Reopen);
                    }
                }
            }
            match readings.some(engine, model, &mut self.rng) {
                Err(Bad::Error(error)) => {
                    report("read", &error);
                    if self.refused(&error) {
                        return Ok(End::Reopen);
                    }
                }
                gets => match gets? {
                    0 => {}
                    gets => say(format_args!("did {gets}")),
                },
            }
        }
        match readings.check_held().and_then(|()| model.check_store(engine, &mut self.rng)) {
            Err(Bad::Error(error)) => {
                report("read", &error);
                self.trouble = Some(Trouble::Reopening);
                Ok(End::Reopen)
            }
            outcome => outcome.map(|()| End::Done),
        }
    }

    /// Reports that a batch was refused. Returns whether the store has to be opened again.
    fn failed(&mut self, engine: &dyn Engine, model: &Model, failed: Failed) -> Check<bool> {
        let (place, error) = match failed {
            Failed::Before(Bad::Wrong(what)) => return wrong(what),
            Failed::Before(Bad::Error(error)) | Failed::Repeat(error) => ("write", error),
            Failed::Load(error) => ("load", error),
            Failed::Commit(error) => ("commit", error),
        };
        report(place, &error);
        let no_space = error.kind() == ErrorKind::FreeSpace;
        if place == "commit" && !no_space {
            refusal(engine)?;
            match check_before_or_after(engine, model, &mut self.rng) {
                Err(Bad::Error(error)) => report("read", &error),
                outcome => outcome?,
            }
        }
        let enough = self.refused(&error);
        if place != "write" && !no_space {
            self.trouble = Some(Trouble::Reopening);
            return Ok(true);
        }
        Ok(enough)
    }

    /// Notes a refusal, and returns whether there were enough of them to open the store again.
    fn refused(&mut self, error: &Error) -> bool {
        let before = if let Some(Trouble::Refused(times)) = self.trouble { times } else { 0 };
        let enough = before + 1 >= REFUSALS_MAX || error.kind() == ErrorKind::Reopen && self.rng.once_in(4);
        self.trouble = Some(if enough { Trouble::Reopening } else { Trouble::Refused(before + 1) });
        // A batch that is tried again gets another epoch, so that it differs from the refused one.
        self.epoch += 1;
        enough
    }

    fn recovered(&mut self) {
        match self.trouble.take() {
            Some(Trouble::Refused(_)) => say("recovered itself"),
            Some(Trouble::Reopening) => say("recovered reopened"),
            None => {}
        }
    }

    /// Writes the whole next batch, from its first put to its acknowledgement.
    fn write(&mut self, engine: &dyn Engine, model: &mut Model) -> Result<(), Failed> {
        let seq = model.seq + 1;
        say(format_args!("attempt {seq} {}", self.epoch));
        self.history.turn(seq, self.epoch);
        let durability = if self.rng.below(100) < self.task.synced { Durability::Synced } else { Durability::Buffered };
        let parks = (1..=self.batches + 1).contains(&self.task.park);
        let loading = &mut self.loading;
        let mut reached = |point| match point {
            Point::Written => {
                say(format_args!("written {seq}"));
                if parks {
                    say("parked");
                    loop {
                        std::thread::park();
                    }
                }
            }
            Point::Committing => say(format_args!("committing {seq}")),
            Point::Loading => {
                *loading = seq;
                say(format_args!("loading {seq}"));
            }
        };
        let written = write(engine, model, durability, &mut self.rng, &mut reached);
        let (durability, operations) = match written {
            Ok(written) => written,
            // The first of the two loads was acknowledged.
            Err(Failed::Repeat(_)) => (Durability::Synced, 0),
            Err(failed) => return Err(failed),
        };
        say(format_args!("acked {seq} {}", if durability == Durability::Synced { "synced" } else { "buffered" }));
        say(format_args!("did {operations}"));
        self.batches += 1;
        written.map(drop)
    }
}
