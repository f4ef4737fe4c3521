//! The life of one store under many agents: each works, is ended, and is followed by the next, which compares.
//!
//! Owns: the oracle (which batches must be there, and which may be), the disk, the order of turns. Must not: open the
//! store itself. Runs on the supervisor's thread.
//!
//! The oracle: an opened store has a checkpoint between the newest batch that must have survived and the last attempted
//! one, and holds exactly the batches up to it, whole and in order. After a kill every acknowledged batch must be
//! there; after a power loss those that [`Column::survives_power_loss`] names. The engine may refuse work while the
//! disk has a fault, with an error of a fitting kind, and must not refuse it without one.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use engine_api::Durability;
use engine_kit::Rng;

use crate::agent::Task;
use crate::child::Agent;
use crate::column::Column;
use crate::disk::{Disk, Fault, FaultKind, Notice};
use crate::model::{Bad, History};
use crate::swarm::{End, EndKind, Swarm};
use crate::totals::Totals;

/// Size of the disk: room for the engines' reserves, RocksDB's logs that are allocated ahead, and the data.
const DISK_BYTES: u64 = 2 << 30;
/// Longest time without a line from an agent. Not a measure of speed: a busy machine takes long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval at which the supervisor checks whether to stop.
const GLANCE: Duration = Duration::from_millis(50);
/// Number of batches after which an agent ends by itself, if nothing has ended it before.
const BATCHES_MAX: u64 = 400;
/// Number of batches of the last agent, which closes the store.
const LAST_BATCHES: u64 = 5;

/// Reason for which a life ended early.
#[derive(Debug)]
pub enum Failure {
    /// The store or the engine broke its contract.
    Violation(String),
    /// The torture itself failed, so it cannot go on.
    Io(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Bad> for Failure {
    fn from(bad: Bad) -> Self {
        Self::Violation(match bad {
            Bad::Error(error) => format!("an error that nothing explains: kind={:?} {error}", error.kind()),
            Bad::Wrong(what) => what,
        })
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Violation(what) => f.write_str(what),
            Self::Io(error) => write!(f, "the torture cannot go on: {error}"),
        }
    }
}

enum Home {
    Plain(PathBuf),
    Disk(Box<Disk>),
}

/// Event that ended the wait within a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    /// The moment has come at which the agent is to be ended.
    Moment,
    /// The agent has ended by itself.
    Silence,
    /// The time of the torture is up.
    Stopped,
}

/// A store, and the supervisor's knowledge about it.
pub struct Life {
    column: Column,
    seed: u64,
    swarm: Swarm,
    binary: PathBuf,
    home: Home,
    rng: Rng,
    trace: bool,
    history: History,
    epoch: u64,
    /// Last batch that was attempted. `loading` is the last chunk whose load was tried.
    attempted: u64,
    loading: u64,
    /// Last batch that was acknowledged.
    acked: u64,
    /// Newest batch that the next opening must find after a kill. `floor_power` is the one after a power loss.
    floor: u64,
    floor_power: u64,
    /// Last activity that the agent reported.
    doing: &'static str,
    powered: bool,
    faulty: bool,
    opened: bool,
    /// Whether a load has failed in a way that [`engine_api::Descriptor::loses_failed_loads`] allows to lose the store.
    load_failed: bool,
    /// Whether such a load has lost the store. This life ends then.
    lost: bool,
    totals: Totals,
}

impl Life {
    /// Creates an empty store below `root`, an empty directory. `binary` is the program that contains the agent.
    ///
    /// # Errors
    /// I/O errors of mounting the disk.
    pub fn new(column: Column, seed: u64, swarm: Swarm, root: &Path, binary: &Path) -> Result<Self, Failure> {
        let home = if swarm.fuse {
            let disk = Disk::new(root, DISK_BYTES, seed)?;
            if column.engine().needs_flushed_names {
                disk.keep_flushed_names();
            }
            Home::Disk(Box::new(disk))
        } else {
            Home::Plain(root.to_owned())
        };
        Ok(Self {
            column,
            seed,
            trace: false,
            swarm,
            binary: binary.to_owned(),
            home,
            rng: Rng::of(seed, 3),
            history: History::default(),
            epoch: 0,
            attempted: 0,
            loading: 0,
            acked: 0,
            floor: 0,
            floor_power: 0,
            doing: "opening",
            powered: true,
            faulty: false,
            opened: false,
            load_failed: false,
            lost: false,
            totals: Totals { lives: 1, ..Totals::default() },
        })
    }

    /// Runs all turns, or those before `stop` returns true, and then one more that closes the store.
    ///
    /// # Errors
    /// The first violation, or an I/O error of the torture itself.
    pub fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<(), Failure> {
        for _ in 0..self.swarm.turns {
            if stop() {
                break;
            }
            let end = self.swarm.end(&mut self.rng);
            let faults = self.swarm.faults(&mut self.rng);
            self.turn(&end, faults, stop)?;
            if self.lost {
                self.totals.lost_loads += 1;
                return Ok(());
            }
        }
        let end = End { kind: EndKind::Close, acks: LAST_BATCHES, micros: 0, operations: 0 };
        self.turn(&end, Vec::new(), &|| false)
    }

    /// Sets whether to print all lines of the agents and all actions of the supervisor.
    pub fn set_trace(&mut self, trace: bool) {
        self.trace = trace;
    }

    /// Returns the counts so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    fn disk(&mut self) -> Option<&mut Disk> {
        match &mut self.home {
            Home::Disk(disk) => Some(disk),
            Home::Plain(_) => None,
        }
    }

    /// Runs one agent, from its start to the state that it leaves.
    fn turn(&mut self, end: &End, faults: Vec<Fault>, stop: &dyn Fn() -> bool) -> Result<(), Failure> {
        let (sender, notices) = channel();
        self.faulty = faults.iter().any(|fault| fault.kind != FaultKind::Slow);
        self.powered = true;
        self.doing = "opening";
        let seed = self.rng.next();
        if self.trace {
            program::say!("faults: {faults:?}");
        }
        if let Some(disk) = self.disk() {
            disk.gate().notify(sender.clone());
            disk.gate().set_trap(matches!(end.kind, EndKind::KillAt | EndKind::PowerAt).then_some(end.operations));
            disk.gate().set_faults(faults, seed);
        }
        self.epoch += 1;
        if self.trace {
            program::say!("turn: {end:?} floor={} floor_power={}", self.floor, self.floor_power);
        }
        let mut agent = Agent::start(&self.binary, &self.task(end), sender)?;
        let reached = self.follow(&notices, end, stop)?;
        if reached != Reached::Silence {
            self.end(&mut agent, end.kind);
        }
        let status = agent.wait()?;
        while self.doing != "silent" {
            match notices.recv_timeout(PATIENCE) {
                Ok(notice) => drop(self.hear(notice)?),
                Err(_) => return self.violated("the output of an agent that is gone does not end"),
            }
        }
        self.judge(status, reached)?;
        self.aftermath(end.kind, reached)
    }

    fn task(&self, end: &End) -> Task {
        let dir = match &self.home {
            Home::Plain(dir) => dir.clone(),
            Home::Disk(disk) => disk.point().to_owned(),
        };
        Task {
            dir,
            engine: self.column,
            seed: self.seed,
            history: self.history.entries(),
            epoch: self.epoch,
            loading: self.loading,
            chunks: self.swarm.chunks,
            changes: self.swarm.changes,
            large: self.swarm.large,
            synced: self.swarm.synced,
            batches: if end.kind == EndKind::Close { end.acks } else { BATCHES_MAX },
            park: if end.kind == EndKind::KillWritten { end.acks + 1 } else { 0 },
            habits: self.swarm.habits,
        }
    }

    /// Receives the agent's lines until the moment has come to end the agent.
    fn follow(&mut self, notices: &Receiver<Notice>, end: &End, stop: &dyn Fn() -> bool) -> Result<Reached, Failure> {
        let mut acks = 0;
        let mut until = None;
        let mut heard = Instant::now();
        loop {
            let timed = matches!(end.kind, EndKind::Kill | EndKind::Power);
            if timed && acks >= end.acks && until.is_none() {
                until = Some(Instant::now() + Duration::from_micros(end.micros));
            }
            let left =
                until.map_or(GLANCE, |until: Instant| until.saturating_duration_since(Instant::now()).min(GLANCE));
            match notices.recv_timeout(left) {
                Ok(Notice::Trapped) => return Ok(Reached::Moment),
                Ok(notice) => {
                    heard = Instant::now();
                    match self.hear(notice)? {
                        Heard::Silence => return Ok(Reached::Silence),
                        Heard::Parked => return Ok(Reached::Moment),
                        Heard::Acked => acks += 1,
                        Heard::Other => {}
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Reached::Silence),
                Err(RecvTimeoutError::Timeout) if stop() => return Ok(Reached::Stopped),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > PATIENCE => {
                    return self.violated(format!("an agent hangs: doing={}", self.doing)).map(|()| Reached::Moment);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Reached::Moment);
            }
        }
    }

    fn end(&mut self, agent: &mut Agent, kind: EndKind) {
        let doing = self.doing;
        if kind.is_power() {
            *self.totals.power_losses.entry(doing).or_default() += 1;
            self.powered = false;
            if let Some(disk) = self.disk() {
                disk.gate().cut_power();
            }
        } else {
            *self.totals.kills.entry(doing).or_default() += 1;
        }
        // Kill the agent before the disk releases the operation that it holds, so that the agent never sees the answer.
        agent.kill();
        if let Some(disk) = self.disk() {
            disk.gate().release();
        }
    }

    /// Counts the faults that have hit, and checks that the agent ended in an allowed way.
    fn judge(&mut self, status: ExitStatus, reached: Reached) -> Result<(), Failure> {
        let hits = self.disk().map(|disk| disk.gate().take_hits()).unwrap_or_default();
        hits.iter().for_each(|(kind, count)| *self.totals.faults.entry(*kind).or_default() += count);
        let read_failed = hits.contains_key(&FaultKind::ReadError);
        match (status.signal(), status.code()) {
            (Some(libc::SIGKILL), _) if reached != Reached::Silence => Ok(()),
            (_, Some(0)) => Ok(()),
            // The engine met a page of its map that cannot be read, and the kernel can only report that by a signal.
            (Some(libc::SIGBUS), _) if self.column.engine().explain_faults.is_some() && read_failed => {
                self.totals.bus_errors += 1;
                Ok(())
            }
            _ if !self.powered => Ok(()),
            _ => self.violated(format!("an agent ended by itself: {status}")),
        }
    }

    /// Prepares the disk for the next agent, and updates the batches that it must find.
    fn aftermath(&mut self, kind: EndKind, reached: Reached) -> Result<(), Failure> {
        let sync_failed = self.totals.faults.contains_key(&FaultKind::SyncError);
        let seed = self.rng.next();
        let drop_caches = sync_failed && self.rng.once_in(2);
        let Home::Disk(disk) = &mut self.home else { return Ok(()) };
        disk.gate().set_faults(Vec::new(), 0);
        disk.gate().set_trap(None);
        if kind.is_power() {
            if reached == Reached::Silence {
                *self.totals.power_losses.entry("idle").or_default() += 1;
            }
            disk.lose_power(seed)?;
            self.floor = self.floor_power;
        } else if drop_caches {
            disk.drop_caches()?;
            self.floor = self.floor_power;
        }
        Ok(())
    }

    fn hear(&mut self, notice: Notice) -> Result<Heard, Failure> {
        let line = match notice {
            Notice::Line(line) => {
                if self.trace {
                    program::say!("  {line}");
                }
                line
            }
            Notice::Silence => {
                self.doing = "silent";
                return Ok(Heard::Silence);
            }
            Notice::Trapped => return Ok(Heard::Other),
        };
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let mut words = rest.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match what {
            "opening" => self.doing = "opening",
            "found" => self.found(number())?,
            "opened" => {
                self.totals.reopenings += u64::from(self.opened);
                self.opened = true;
                self.doing = "reading";
            }
            "attempt" => {
                let (seq, epoch) = (number(), number());
                self.history.turn(seq, epoch);
                self.attempted = self.attempted.max(seq);
                self.epoch = self.epoch.max(epoch);
                self.doing = "writing";
            }
            "written" => self.doing = "between write and commit",
            "committing" => self.doing = "committing",
            "loading" => {
                self.loading = number();
                self.doing = "bulk loading";
            }
            "acked" => {
                let seq = number();
                let durability = if rest.ends_with("synced") { Durability::Synced } else { Durability::Buffered };
                self.acked = seq;
                self.floor = seq;
                self.floor_power = self.column.survives_power_loss(durability, seq, self.floor_power);
                self.totals.commits += 1;
                self.doing = "reading";
                return Ok(Heard::Acked);
            }
            "settling" if rest == "groups" => {
                self.totals.groups += 1;
                self.doing = "settling groups";
            }
            "settling" => self.doing = "settling",
            "settled" => self.doing = "reading",
            "did" => self.totals.operations += number(),
            "parked" => return Ok(Heard::Parked),
            "recovered" if rest == "itself" => self.totals.recovered_itself += 1,
            "recovered" => self.totals.recovered_reopened += 1,
            "closed" => self.floor_power = self.floor,
            "error" => self.refused(rest)?,
            "gave" if !self.faulty && self.powered && !self.lost => self.violated("a store cannot be opened")?,
            "gave" | "done" => {}
            _ => self.violated(line.clone())?,
        }
        Ok(Heard::Other)
    }

    fn found(&mut self, seq: u64) -> Result<(), Failure> {
        if seq < self.floor || seq > self.attempted {
            let (floor, attempted) = (self.floor, self.attempted);
            self.violated(format!("opened at seq={seq}, must be at least {floor} and at most {attempted}"))?;
        }
        self.totals.lost_batches += self.acked.saturating_sub(seq);
        self.acked = self.acked.min(seq);
        self.attempted = seq;
        self.floor = seq;
        Ok(())
    }

    /// Checks an error of the engine: it may occur only while the disk has a fault, and its kind must fit.
    fn refused(&mut self, what: &str) -> Result<(), Failure> {
        if self.column.engine().loses_failed_loads {
            self.load_failed |= what.starts_with("load Reopen") && what.contains("MANIFEST");
            let missing = what.starts_with("open DataDamaged") && what.contains("No such file or directory");
            self.lost |= self.load_failed && missing;
        }
        if !self.powered || self.lost {
            return Ok(());
        }
        let kind = what.split(' ').nth(1).unwrap_or("");
        if !self.faulty {
            return self.violated(format!("an error without a fault: {what}"));
        }
        // A merge of strata leaves a segment out that it cannot read, for whatever reason, and names the reason.
        let is_left_out = what.contains("a merge leaves a segment out: cannot read");
        if !is_left_out && ["DataDamaged", "Internal"].contains(&kind) {
            return self.violated(format!("a fault of the disk is reported as something else: {what}"));
        }
        Ok(())
    }

    fn violated(&self, what: impl std::fmt::Display) -> Result<(), Failure> {
        Err(Failure::Violation(format!("engine={} seed={}: {what}", self.column, self.seed)))
    }
}

/// Kind of a notice, as far as the wait for an agent's end needs it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Acked,
    Parked,
    Silence,
    Other,
}
