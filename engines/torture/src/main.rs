//! The command line of the torture: it runs lives of stores, one after the other, until the time is up.
//!
//! Owns: seeds, the report, the exit code. Runs on the main thread; a signal sets a flag.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, Subcommand};
use solkv_torture::{Column, Failure, Life, Rng, Swarm, Table, Task, Totals, can_lose_power, run_agent};

/// Every engine under kills, losses of power and faults of the disk, compared with a model.
///
/// A supervisor lets an agent work on a store and ends it, by SIGKILL or by a loss of power. The file system for the
/// latter lies in memory and knows which bytes were flushed. The next agent compares everything. The disk has faults: EIO
/// on reads, writes and flushes, no space, read-only, slow. The printed seed determines the events of a store's life.
/// Each life switches off half of all options, at random.
///
/// Exit code 0: no violation. 1: a violation, whose last line is the command that runs it again. 2: the torture itself
/// could not go on.
#[derive(Parser)]
#[command(name = "torture", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    hidden: Option<Hidden>,
    /// Seconds for which new lives are begun.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only these engines, separated by commas [default: every engine in this build].
    #[arg(long, value_delimiter = ',')]
    engine: Vec<Column>,
    /// Only the life of this seed on each engine, without a time limit; a violation prints its seed.
    #[arg(long)]
    seed: Option<u64>,
    /// SIGKILL alone, on the file system of --dir: needs no rights.
    #[arg(long)]
    kills_only: bool,
    /// Prints every message and action.
    #[arg(long)]
    trace: bool,
    /// Directory for the stores [default: the system's directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  torture --seconds 600                      ten minutes, all engines
  torture --engine lmdb --seed 123456        one life again
  torture --engine redb,strata --kills-only  without root";

#[derive(Subcommand)]
enum Hidden {
    /// The process that is killed.
    #[command(hide = true)]
    Agent {
        #[arg(value_parser = task)]
        task: Box<Task>,
    },
}

fn task(text: &str) -> serde_json::Result<Box<Task>> {
    serde_json::from_str(text)
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Hidden::Agent { task }) = &args.hidden {
        return run_agent(task);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(e) = signal_hook::flag::register(signal, Arc::clone(&interrupted)) {
            program::tell!("torture: cannot listen for signals: {e}");
            return ExitCode::from(2);
        }
    }
    if let Some(missing) = args.engine.iter().find(|column| !Column::compiled().any(|known| known == **column)) {
        program::tell!("torture: engine={missing} is not in this build: build it with its cargo feature");
        return ExitCode::from(2);
    }
    let no_fuse = if args.kills_only { Err("--kills-only".to_owned()) } else { can_lose_power() };
    let mut run = Run { args, fuse: no_fuse.is_ok(), interrupted, started: Instant::now(), totals: BTreeMap::new() };
    let outcome = run.all();
    program::say!("{}", Table(&run.totals));
    if let Err(reason) = no_fuse {
        program::say!("torture: NO POWER LOSSES AND NO FAULTS OF THE DISK were among it: {reason}");
    }
    let code = match outcome {
        Ok(()) => {
            program::say!("torture: no violation in {} s", run.started.elapsed().as_secs());
            0
        }
        Err((_, _, Failure::Io(error))) => {
            program::say!("torture: cannot go on: {error}");
            2
        }
        Err((column, seed, violation)) => {
            program::say!("torture: VIOLATION: {violation}");
            // The seed's choices depend on whether the disk could be mounted, so the option is part of the command.
            let kills_only = if run.fuse { "" } else { " --kills-only" };
            program::say!("again: make torture ARGS='--engine {column} --seed {seed}{kills_only}'");
            1
        }
    };
    program::end("torture", code)
}

struct Run {
    args: Args,
    fuse: bool,
    interrupted: Arc<AtomicBool>,
    started: Instant,
    totals: BTreeMap<Column, Totals>,
}

impl Run {
    fn all(&mut self) -> Result<(), (Column, u64, Failure)> {
        let columns = if self.args.engine.is_empty() { Column::compiled().collect() } else { self.args.engine.clone() };
        let clock = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
        let mut seeds = Rng::new(clock);
        if let Some(seed) = self.args.seed {
            return columns.into_iter().try_for_each(|column| self.named(column, seed, Duration::MAX));
        }
        // Each column gets the same time, and no life takes more of it than that.
        let share = Duration::from_secs(self.args.seconds) / columns.len() as u32;
        let mut spent: Vec<(Duration, Column)> = columns.into_iter().map(|column| (Duration::ZERO, column)).collect();
        while let Some((time, column)) = spent.iter_mut().min_by_key(|(time, _)| *time)
            && !self.is_over()
        {
            let began = Instant::now();
            self.named(*column, seeds.next() >> 20, share)?;
            *time += began.elapsed();
        }
        Ok(())
    }

    /// Runs a life, which ends after `share`, and names it in a failure.
    fn named(&mut self, column: Column, seed: u64, share: Duration) -> Result<(), (Column, u64, Failure)> {
        program::say!("torture: engine={column} seed={seed}");
        self.life(column, seed, share).map_err(|failure| (column, seed, failure))
    }

    fn life(&mut self, column: Column, seed: u64, share: Duration) -> Result<(), Failure> {
        let mut temporary = tempfile::Builder::new();
        temporary.prefix("torture-");
        let root = match &self.args.dir {
            Some(dir) => temporary.tempdir_in(dir),
            None => temporary.tempdir(),
        }?;
        let swarm = Swarm::of(column, seed, self.fuse);
        let mut life = Life::new(column, seed, swarm, root.path(), &std::env::current_exe()?)?;
        life.set_trace(self.args.trace);
        let began = Instant::now();
        let outcome = life.run(&|| self.is_over() || began.elapsed() > share);
        self.totals.entry(column).or_default().add(life.totals());
        outcome
    }

    fn is_over(&self) -> bool {
        let time_is_up = self.args.seed.is_none() && self.started.elapsed() >= Duration::from_secs(self.args.seconds);
        // ORDERING: Relaxed: the flag carries nothing but itself.
        time_is_up || self.interrupted.load(Ordering::Relaxed)
    }
}
