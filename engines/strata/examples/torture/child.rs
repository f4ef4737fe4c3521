//! The process that is killed: it writes, reads, settles, copies and reopens a store until it is killed.
//!
//! Owns: the open store of a directory. Must not: decide whether the store survived; its parent does. Runs on the main
//! thread of a process of its own, at times with reading threads in addition.
//!
//! It reports on its standard output which change it attempts and which one was acknowledged. Lines in the pipe survive
//! the process.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine_api::Engine;
use solkv_engine_strata::storage::DirStorage;
use solkv_engine_strata::{StrataEngine, StrataOptions};

use crate::model::{Check, Model, wrong};
use crate::plan::{Plan, sizes};
use crate::readers::{Held, beside};
use crate::support::{Rng, at, stat};
use crate::writer::write;

/// Largest number of readers held at once.
const HELD_MAX: usize = 4;

/// Arguments that the parent passes.
#[derive(clap::Args)]
pub(crate) struct Task {
    /// The directory of this life: the store, its model, copies.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// The seed of this life.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The number of this process in it.
    #[arg(long)]
    pub(crate) number: u64,
    /// Changes after which it ends by itself.
    #[arg(long)]
    pub(crate) changes: u64,
}

/// Path of the store within a life's directory.
pub(crate) fn store(dir: &Path) -> PathBuf {
    dir.join("store")
}

/// Path of the model within a life's directory.
pub(crate) fn model(dir: &Path) -> PathBuf {
    dir.join("model")
}

/// Opens a store with random options: sometimes all pages have room in memory, sometimes not even the filters.
pub(crate) fn open(dir: &Path, rng: &mut Rng) -> Check<StrataEngine> {
    let mebibytes = [8, 8, 16, 48, 256][rng.below(5) as usize];
    let options = StrataOptions { memory_bytes: mebibytes << 20, disk_reserve_bytes: 64 << 20 };
    let sizes = sizes(&options, rng, (1_024, 2_000));
    Ok(StrataEngine::open_sized(Arc::new(DirStorage::open(dir)?), &options, sizes)?)
}

/// Works until the changes are done.
///
/// # Errors
/// The first wrong answer, or an error of the engine or of the machine. Being killed is not an error.
pub(crate) fn run(task: &Task) -> Check {
    // SAFETY: prctl takes no pointers here.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut rng = Rng(task.seed ^ task.number.wrapping_mul(0xd134_2543_de82_ef95));
    let mut model = Model::load(Plan::killed(task.seed), &model(&task.dir))?;
    let end = model.seq.saturating_add(task.changes);
    while model.seq < end {
        let engine = open(&store(&task.dir), &mut rng)?;
        say("opened", model.seq)?;
        if rng.below(4) == 0 {
            model.check_store(&engine, &mut rng)?;
        } else if engine.checkpoint()? != at(model.seq) {
            return wrong(format!("reopened at {:?} expected={:?}", engine.checkpoint()?, at(model.seq)));
        }
        let (threads, seed) = ([0, 0, 1, 2][rng.below(4) as usize], rng.next());
        let before = model.clone();
        beside(&engine, &before, threads, seed, |stop| {
            Session { engine: &engine, dir: &task.dir, rng: &mut rng, held: Vec::new() }.run(&mut model, end, stop)
        })?;
        if rng.below(4) == 0 {
            drop(engine);
        } else {
            Box::new(engine).close()?;
        }
    }
    Ok(())
}

/// Whether there are deltas to merge into a base, and more segments than runs, so that the merge replaces several
/// groups.
pub(crate) fn has_groups(engine: &StrataEngine) -> bool {
    let stat = |name| stat(engine, name);
    stat("delta_records") > 0 && stat("base_records") > 0 && stat("segments") > stat("delta_runs") + 1
}

fn say(what: &str, seq: u64) -> Check {
    // One write for each line, so that a kill cuts at most the last line.
    let line = format!("{what} {seq}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

/// One session between an opening and a closing.
struct Session<'a> {
    engine: &'a StrataEngine,
    dir: &'a Path,
    rng: &'a mut Rng,
    held: Vec<Held<'a>>,
}

impl Session<'_> {
    fn run(&mut self, model: &mut Model, end: u64, stop: &AtomicBool) -> Check {
        let started = Instant::now();
        let mut costly = Duration::ZERO;
        let most = [20, 400, 6_000][self.rng.below(3) as usize];
        let changes = 1 + self.rng.below(most);
        let end = end.min(model.seq + changes);
        // ORDERING: Relaxed: the flag guards no other memory.
        while model.seq < end && !stop.load(Ordering::Relaxed) {
            let seq = model.seq + 1;
            let change = model.plan.change(seq);
            say("attempted", seq)?;
            write(self.engine, &model.plan, seq, &change, self.rng)?;
            say("acked", seq)?;
            model.apply(&change);
            match self.rng.below(24) {
                0 => model.check_gets(&mut *self.engine.reader()?, self.rng, 200)?,
                1 => self.hold(model)?,
                // Slow operations get a third of the time.
                2..6 if costly * 3 < started.elapsed() => {
                    let begun = Instant::now();
                    self.costly(model)?;
                    costly += begun.elapsed();
                }
                _ => {}
            }
        }
        self.held.iter_mut().try_for_each(|held| held.check(self.rng))
    }

    /// Opens, checks, refreshes or drops a reader that is held.
    fn hold(&mut self, model: &Model) -> Check {
        if self.held.len() < HELD_MAX {
            self.held.push(Held::new(self.engine, model, self.rng)?);
            return Ok(());
        }
        let n = self.rng.below(HELD_MAX as u64) as usize;
        match self.rng.below(4) {
            0 => self.held[n].refresh(model, self.rng),
            1 => {
                self.held.swap_remove(n);
                Ok(())
            }
            _ => self.held[n].check(self.rng),
        }
    }

    fn costly(&mut self, model: &Model) -> Check {
        match self.rng.below(5) {
            0 => model.check_store(self.engine, self.rng),
            1 => Ok(self.engine.scrub()?),
            2 => {
                // The report lets the parent count the merges that a kill has interrupted.
                say("settling", u64::from(has_groups(self.engine)))?;
                self.engine.settle()?;
                say("settling", 0)?;
                let pairs = self.engine.stats()?.pairs_estimate;
                if pairs == model.sum.pairs { Ok(()) } else { wrong(format!("settled, and pairs_estimate={pairs}")) }
            }
            3 => self.held.iter_mut().try_for_each(|held| held.check(self.rng)),
            _ => self.copy(model),
        }
    }

    /// Copies the store and writes to the copy. The store must not show those writes.
    fn copy(&mut self, model: &Model) -> Check {
        let copies = self.dir.join("copies");
        fs::create_dir_all(&copies)?;
        let dir = copies.join(model.seq.to_string());
        self.engine.snapshot(&dir)?;
        let copy = open(&dir, self.rng)?;
        model.check_store(&copy, self.rng)?;
        let mut later = model.clone();
        let change = later.plan.change(later.seq + 1);
        write(&copy, &later.plan, later.seq + 1, &change, self.rng)?;
        later.apply(&change);
        copy.settle()?;
        later.check_store(&copy, self.rng)?;
        drop(copy);
        Ok(fs::remove_dir_all(&dir)?)
    }
}
