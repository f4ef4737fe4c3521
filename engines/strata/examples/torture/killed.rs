//! Rounds on a real directory: a child process works on a store until it is killed, and the remains are compared.
//!
//! Owns: the lives of stores, the killing, and the check of the remains. Must not: write to a store except through
//! opening and settling. Runs on the main thread; one thread for each child reads its output.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use engine_api::Engine;

use crate::Totals;
use crate::child;
use crate::model::{Bad, Check, Model, wrong};
use crate::plan::Plan;
use crate::support::Rng;

/// Number of children in one life. Then the directory is wiped.
pub(crate) const CHILDREN: u64 = 20;
/// One child in ALONE is not killed until it has done [`ALONE_CHANGES`], so that a child that hangs is not hidden by a
/// kill.
const ALONE: u64 = 8;
/// Number of changes of a child that is left alone.
const ALONE_CHANGES: u64 = 300;
/// Time after which a child that is left alone counts as hanging.
const ALONE_LIMIT: Duration = Duration::from_secs(180);

/// A store and the children that work on it one after the other.
pub(crate) struct Life {
    dir: PathBuf,
    seed: u64,
    rng: Rng,
    children: u64,
    model: Model,
}

/// Reports of a child on its standard output: a count of openings, and the newest number of each other kind.
#[derive(Debug, Default)]
struct Said {
    opened: u64,
    attempted: u64,
    acked: u64,
    /// Nonzero while the child settles a store with more segments than runs.
    settling: u64,
}

impl Life {
    /// Begins a life with an empty store in `dir`, which is wiped.
    pub(crate) fn new(dir: &Path, seed: u64) -> Check<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        fs::create_dir_all(dir)?;
        let plan = Plan::killed(seed);
        Ok(Self { dir: dir.to_owned(), seed, rng: Rng(!seed), children: 0, model: Model::new(plan) })
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn is_over(&self) -> bool {
        self.children == CHILDREN
    }

    /// Lets one more child work, kills it, and checks the remains.
    pub(crate) fn turn(&mut self, totals: &mut Totals) -> Check {
        self.children += 1;
        self.model.save(&child::model(&self.dir))?;
        let alone = self.rng.below(ALONE) == 0;
        let changes = if alone { ALONE_CHANGES } else { u64::MAX };
        let mut child = self.spawn(changes)?;
        let Some(out) = child.stdout.take() else { return wrong("a child without output") };
        let listener = std::thread::spawn(move || listen(out));
        // A third of the children are killed early, while they open the store or soon after.
        let most = if self.rng.below(3) == 0 { 200 } else { 3_000 };
        let lifetime = if alone { ALONE_LIMIT } else { Duration::from_millis(self.rng.below(most)) };
        let status = end(&mut child, lifetime)?;
        let said = listener.join().unwrap_or_else(|_| wrong("the listener panicked"))?;
        match (status.signal(), status.code()) {
            (Some(libc::SIGKILL), _) if !alone => {
                totals.kills += 1;
                if said.settling > 0 {
                    totals.fault("kill while settling groups");
                }
            }
            (Some(libc::SIGKILL), _) => return wrong(format!("a child hangs: {said:?}")),
            (_, Some(0)) => {}
            _ => return wrong(format!("a child failed by itself: {status} {said:?}")),
        }
        totals.reopenings += said.opened;
        self.check(&said, totals)
    }

    fn spawn(&self, changes: u64) -> Check<Child> {
        Ok(Command::new(std::env::current_exe()?)
            .args(["child", "--dir"])
            .arg(&self.dir)
            .args(["--seed", &self.seed.to_string(), "--number", &self.children.to_string()])
            .args(["--changes", &changes.to_string()])
            .stdout(Stdio::piped())
            // A process group of its own, because an interrupt at the terminal is for the parent alone.
            .process_group(0)
            .spawn()?)
    }

    /// Checks the store after a kill: every acknowledged change must be there, and no part of an unfinished one.
    fn check(&mut self, said: &Said, totals: &mut Totals) -> Check {
        let (acked, attempted) = (said.acked.max(self.model.seq), said.attempted.max(self.model.seq));
        let ops = self.model.ops;
        let copies = self.dir.join("copies");
        if copies.exists() {
            fs::remove_dir_all(copies)?;
        }
        let engine = child::open(&child::store(&self.dir), &mut self.rng)?;
        totals.reopenings += 1;
        let seq = engine.checkpoint()?.seq;
        if seq < acked || seq > attempted {
            return wrong(format!("after a kill: seq={seq} acked={acked} attempted={attempted}"));
        }
        self.model.advance_to(seq);
        totals.ops += self.model.ops - ops;
        self.model.check_store(&engine, &mut self.rng)?;
        if self.rng.below(4) == 0 {
            engine.scrub()?;
        }
        if self.rng.below(8) == 0 {
            totals.groups += u64::from(child::has_groups(&engine));
            engine.settle()?;
            self.model.check_store(&engine, &mut self.rng)?;
        }
        if self.rng.below(2) == 0 {
            return Ok(Box::new(engine).close()?);
        }
        Ok(())
    }
}

/// Waits for the child to end by itself, and kills it after `lifetime`.
fn end(child: &mut Child, lifetime: Duration) -> Check<ExitStatus> {
    let until = Instant::now() + lifetime;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2).min(until.saturating_duration_since(Instant::now())));
    }
    child.kill()?;
    Ok(child.wait()?)
}

/// Reads a child's reports until it ends. An incomplete line is ignored.
fn listen(out: impl Read) -> Check<Said> {
    let mut said = Said::default();
    let mut out = BufReader::new(out);
    let mut line = String::new();
    while out.read_line(&mut line)? > 0 {
        if let Some((what, seq)) = line.strip_suffix('\n').and_then(|line| line.split_once(' ')) {
            let seq = seq.parse().map_err(|e| Bad::Wrong(format!("a child says {line:?}: {e}")))?;
            match what {
                "opened" => said.opened += 1,
                "attempted" => said.attempted = seq,
                "settling" => said.settling = seq,
                _ => said.acked = seq,
            }
        }
        line.clear();
    }
    Ok(said)
}
