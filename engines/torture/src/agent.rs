//! The process that is killed: it opens a store, writes, reads and reopens it until it is gone.
//!
//! Owns: the open store. Must not: decide which batches had to survive, because the supervisor does. Runs on the main
//! thread of a process of its own; a second thread ends the process when the supervisor is gone.
//!
//! It reports its actions on its standard output, one line each and in one write, so that a reported line survives the
//! process:
//!
//! | line | meaning |
//! |---|---|
//! | `opening`, `found SEQ`, `opened SEQ` | the store is being opened; its checkpoint; all of it was compared |
//! | `attempt SEQ EPOCH`, `written SEQ`, `committing SEQ`, `acked SEQ DURABILITY` | a batch, from its first put on |
//! | `parked` | it waits after `written`, as its task demands |
//! | `loading SEQ` | a sorted chunk, between `attempt` and `acked` |
//! | `error WHERE KIND MESSAGE` | the engine has refused an operation |
//! | `recovered itself`, `recovered reopened` | the first success after that |
//! | `closed`, `done`, `gave up` | the store was closed; the work is done; it cannot be opened |
//! | `did OPERATIONS` | gets, puts and deletes since the last such line |
//! | `wrong MESSAGE` | the store differs from the model |

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use engine_api::{Durability, Engine, Error, ErrorKind, WriteTxn};
use engines::OpenMode;

use crate::column::Column;
use crate::model::{Bad, Check, History, Model, wrong};
use crate::plan::{Change, Plan, Work};
use crate::reading::Readings;
use crate::rng::Rng;

/// Number of openings that may fail in a row before an agent gives up.
const OPENINGS_MAX: u32 = 40;
/// Number of refusals in a row after which the store is opened again.
const REFUSALS_MAX: u32 = 30;

/// The task of one agent process, as the supervisor passes it.
#[derive(Clone, Debug, clap::Args)]
pub struct Task {
    /// The directory of this life.
    #[arg(long)]
    pub dir: PathBuf,
    /// The engine, and the options that it is opened with.
    #[arg(long)]
    pub engine: Column,
    /// The seed of this life.
    #[arg(long)]
    pub seed: u64,
    /// The history: which batches are of which epoch.
    #[arg(long, default_value = "")]
    pub history: History,
    /// The first epoch of this agent's own batches.
    #[arg(long)]
    pub epoch: u64,
    /// The last chunk whose load was tried.
    #[arg(long, default_value_t = 0)]
    pub loading: u64,
    /// Whether there are sorted chunks among the batches.
    #[arg(long)]
    pub chunks: bool,
    /// Changes that most batches have at most.
    #[arg(long)]
    pub changes: u64,
    /// Commits that are synced, in a hundred.
    #[arg(long)]
    pub synced: u64,
    /// Batches after which it closes the store and ends.
    #[arg(long)]
    pub batches: u64,
    /// Stands still before the commit of this batch, counted from its start; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub park: u64,
    /// Which of the things beside writing it does, one a bit.
    #[arg(long, default_value_t = 0)]
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
        plan: Plan::new(task.seed, task.chunks, task.changes),
        rng: Rng::of(task.seed, task.epoch),
        history: task.history.clone(),
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

/// Sends one line to the supervisor.
pub(crate) fn say(line: impl std::fmt::Display) {
    let line = format!("{}\n", line.to_string().replace('\n', " "));
    let mut out = std::io::stdout().lock();
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        // The supervisor is gone.
        std::process::exit(0);
    }
}

/// Reports that the engine has refused an operation.
pub(crate) fn report(place: &str, error: &Error) {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    say(format_args!("error {place} {:?} {text}", error.kind()));
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

/// Stage at which a batch failed.
enum Failed {
    /// Before its commit: nothing of the batch is there.
    Before(Bad),
    /// During its commit. The kind of the error says whether the batch may be there.
    Commit(Error),
    /// During the load of a sorted chunk: any part of the chunk may be there.
    Load(Error),
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
            let options = self.task.engine.options(&mut self.rng);
            let opened = engines::open(&self.task.dir.join("store"), &options, OpenMode::CreateOrOpen);
            let outcome = opened.map_err(Bad::from).and_then(|engine| {
                let model = self.look(&*engine)?;
                openings = 0;
                let end = self.work(&*engine, model)?;
                self.leave(engine, &end).map(|()| end)
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
        let model = Model::at(self.plan, self.history.clone(), seq, self.loading);
        model.check_store(engine, &mut self.rng)?;
        say(format_args!("opened {seq}"));
        Ok(model)
    }

    fn leave(&mut self, engine: Box<dyn Engine>, end: &End) -> Check {
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

    /// Writes and reads until the batches are done or the store has to be opened again.
    fn work(&mut self, engine: &dyn Engine, mut model: Model) -> Check<End> {
        self.recovered();
        let mut readings = Readings::new(self.task.engine, self.task.habits, self.task.dir.join("copies"));
        let mut last = self.batches + 1 + self.rng.below(120);
        if !readings.reopens() {
            last = u64::MAX;
        }
        while self.batches < self.task.batches {
            if self.batches >= last && self.rng.once_in(4) {
                return Ok(End::Reopen);
            }
            match self.write(engine, &mut model) {
                Ok(()) => self.recovered(),
                Err(Failed::Before(Bad::Wrong(what))) => return wrong(what),
                Err(Failed::Before(Bad::Error(error))) => {
                    report("write", &error);
                    if self.refused(&error) {
                        return Ok(End::Reopen);
                    }
                }
                Err(Failed::Load(error)) => {
                    report("load", &error);
                    if self.refused(&error) || error.kind() != ErrorKind::FreeSpace {
                        self.trouble = Some(Trouble::Reopening);
                        return Ok(End::Reopen);
                    }
                }
                Err(Failed::Commit(error)) => {
                    report("commit", &error);
                    if error.kind() != ErrorKind::FreeSpace {
                        self.after_failed_commit(engine, &model)?;
                        self.trouble = Some(Trouble::Reopening);
                        return Ok(End::Reopen);
                    }
                    if self.refused(&error) {
                        return Ok(End::Reopen);
                    }
                }
            }
            match readings.some(engine, &model, &mut self.rng) {
                Err(Bad::Error(error)) => {
                    report("read", &error);
                    if self.refused(&error) {
                        return Ok(End::Reopen);
                    }
                }
                outcome => outcome?,
            }
        }
        match model.check_store(engine, &mut self.rng) {
            Err(Bad::Error(error)) => {
                report("read", &error);
                self.trouble = Some(Trouble::Reopening);
                Ok(End::Reopen)
            }
            outcome => outcome.map(|()| End::Done),
        }
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
        model.history.turn(seq, self.epoch);
        let durability = if self.rng.below(100) < self.task.synced { Durability::Synced } else { Durability::Buffered };
        let (durability, operations) = match self.plan.work(seq, self.epoch) {
            Work::Chunk(pairs) => (Durability::Synced, self.load(engine, model, seq, pairs)?),
            Work::Batch(changes) => {
                let txn = self.put(engine, &changes).map_err(Failed::Before)?;
                say(format_args!("written {seq}"));
                if (1..=self.batches + 1).contains(&self.task.park) {
                    say("parked");
                    loop {
                        std::thread::park();
                    }
                }
                say(format_args!("committing {seq}"));
                txn.commit(&self.plan.checkpoint(seq, self.epoch), durability).map_err(Failed::Commit)?;
                (durability, changes.len())
            }
        };
        say(format_args!("acked {seq} {}", if durability == Durability::Synced { "synced" } else { "buffered" }));
        say(format_args!("did {operations}"));
        model.advance();
        self.batches += 1;
        Ok(())
    }

    fn put<'e>(&mut self, engine: &'e dyn Engine, changes: &[Change]) -> Check<Box<dyn WriteTxn + 'e>> {
        if self.rng.once_in(8) {
            // This transaction is dropped and must leave no trace.
            let mut txn = engine.begin()?;
            for (key, _) in changes {
                txn.put(key, &[7; 32])?;
            }
        }
        let mut txn = engine.begin()?;
        for (key, value) in changes {
            match value {
                Some(value) => txn.put(key, value)?,
                None => txn.delete(key)?,
            }
            if self.rng.once_in(40) && txn.get(key)? != *value {
                return wrong(format!("a transaction does not see its own change of key={key:02x?}"));
            }
        }
        Ok(txn)
    }

    fn load(
        &mut self,
        engine: &dyn Engine,
        model: &mut Model,
        seq: u64,
        pairs: Vec<(engine_api::Key, engine_api::Value)>,
    ) -> Result<usize, Failed> {
        let Some(bulk) = engine.bulk() else {
            return Err(Failed::Before(Bad::Wrong("the engine has lost its path for sorted input".to_owned())));
        };
        self.loading = seq;
        say(format_args!("loading {seq}"));
        let operations = pairs.len();
        bulk.load_sorted(&pairs, &self.plan.checkpoint(seq, self.epoch)).map_err(|error| {
            model.cut(pairs);
            Failed::Load(error)
        })?;
        Ok(operations)
    }

    /// Checks a store after a failed commit: more writes are refused, and reads return the state before or after the
    /// batch.
    fn after_failed_commit(&mut self, engine: &dyn Engine, model: &Model) -> Check {
        match engine.begin().map(drop) {
            Ok(()) => return wrong("a commit has failed for another reason than space, and writing goes on"),
            Err(error) if ![ErrorKind::Reopen, ErrorKind::FreeSpace].contains(&error.kind()) => {
                return wrong(format!("a commit has failed, and the next batch is refused with: {error}"));
            }
            Err(_) => {}
        }
        let mut after = model.clone();
        after.advance();
        let read = engine.reader().and_then(|mut reader| Ok((reader.checkpoint()?, reader)));
        match read {
            Err(error) => report("read", &error),
            Ok((found, mut reader)) => {
                let holds = if found.seq == model.seq { model } else { &after };
                match holds.check_gets(&mut *reader, &mut self.rng, 40) {
                    Err(Bad::Error(error)) => report("read", &error),
                    outcome => outcome?,
                }
            }
        }
        Ok(())
    }
}
