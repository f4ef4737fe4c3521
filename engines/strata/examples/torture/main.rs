//! Random operations with random kills and faults, compared with a model, until the time is up.
//!
//! Owns: the order of rounds, their seeds, and the report. Must not: change code that the engine's tests rely on. Runs
//! on the main thread; a second thread ends the program when a round hangs.
//!
//! ```text
//! cargo run --release -p engine-strata --example torture -- --seconds 3600
//! ```
//! - **killed**: a child works on a directory and is killed with SIGKILL, again and again. A round is the life of one
//!   store under twenty children.
//! - **device**: one store in memory, on a device that loses its power, fails a read or a flush, is full, or flips
//!   bits.
//!
//! A seed fixes every write and every fault. Threads and the moment of a kill depend on the machine, so a rare
//! divergence may need its command more than once.

#![allow(clippy::unwrap_used, reason = "what is shared with the tests fails as a test does")]

mod child;
mod device;
mod flips;
mod killed;
mod model;
mod plan;
mod readers;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/it/support.rs"]
mod support;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, Subcommand, ValueEnum};

use killed::Life;
use model::{Check, wrong};
use support::Rng;

const PROGRESS_EVERY: Duration = Duration::from_secs(60);
/// Seconds after which a turn counts as hanging.
const HANGS_AFTER_SECONDS: u64 = 300;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Random operations with random kills and faults against a model.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    hidden: Option<Hidden>,
    /// How long new rounds are begun.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the first round; later rounds' seeds follow from it. By default from the clock.
    #[arg(long)]
    seed: Option<u64>,
    /// Ends after this many rounds, whatever the time.
    #[arg(long)]
    rounds: Option<u64>,
    /// Only rounds of this kind.
    #[arg(long)]
    only: Option<Kind>,
    /// Where the killed processes' stores are; wiped. By default in the system's directory for temporary files.
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Hidden {
    /// The process that is killed.
    #[command(hide = true)]
    Child(child::Task),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Killed,
    Device,
}

/// Counts of rounds, operations and faults.
#[derive(Default)]
pub(crate) struct Totals {
    lives: u64,
    devices: u64,
    pub(crate) ops: u64,
    pub(crate) kills: u64,
    pub(crate) reopenings: u64,
    /// Number of times a store with more segments than runs was settled.
    pub(crate) groups: u64,
    faults: BTreeMap<&'static str, u64>,
}

impl Totals {
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lives, devices, ops, kills, reopenings, groups, faults } = self;
        write!(f, "rounds killed={lives} device={devices} operations={ops} kills={kills} reopenings={reopenings}")?;
        write!(f, " settled_groups={groups}")?;
        faults.iter().try_for_each(|(kind, count)| write!(f, " {}={count}", kind.replace(' ', "_")))
    }
}

/// State of one run of the program.
struct Run {
    start_seed: u64,
    dir: PathBuf,
    life: Option<Life>,
    totals: Totals,
    started: Instant,
    /// Start of the present turn, in seconds after the start of the program.
    turn_began: Arc<AtomicU64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Hidden::Child(task)) = &args.hidden {
        return match child::run(task) {
            Ok(()) => ExitCode::SUCCESS,
            Err(bad) => {
                eprintln!("child: {bad}");
                ExitCode::FAILURE
            }
        };
    }
    let from_clock = || SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| Rng(since.as_nanos() as u64).next() >> 16);
    let own_dir = || std::env::temp_dir().join(format!("strata-torture-{}", std::process::id()));
    let mut run = Run {
        start_seed: args.seed.unwrap_or_else(from_clock),
        dir: args.dir.clone().unwrap_or_else(own_dir).join("life"),
        life: None,
        totals: Totals::default(),
        started: Instant::now(),
        turn_began: Arc::new(AtomicU64::new(0)),
    };
    // SAFETY: the handler only stores into an atomic.
    unsafe { libc::signal(libc::SIGINT, interrupted as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    println!("torture: --seed {} --seconds {} dir={}", run.start_seed, args.seconds, run.dir.display());
    end_if_it_hangs(run.started, Arc::clone(&run.turn_began));
    let outcome = run.all(&args);
    println!("torture: {} after {} s", run.totals, run.started.elapsed().as_secs());
    if outcome.is_err() {
        if run.dir.exists() {
            println!("torture: kept: {}", run.dir.display());
        }
        return ExitCode::FAILURE;
    }
    std::fs::remove_dir_all(if args.dir.is_some() { run.dir.clone() } else { own_dir() }).ok();
    ExitCode::SUCCESS
}

extern "C" fn interrupted(_signal: libc::c_int) {
    // ORDERING: Relaxed: the flag guards no other memory.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Ends the program when a turn takes too long, because a deadlock would look like a long round.
fn end_if_it_hangs(started: Instant, turn_began: Arc<AtomicU64>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            // ORDERING: Relaxed: only a time.
            if started.elapsed().as_secs().saturating_sub(turn_began.load(Ordering::Relaxed)) > HANGS_AFTER_SECONDS {
                println!("torture: DIVERGED: the last round named above hangs");
                std::process::exit(1);
            }
        }
    });
}

impl Run {
    /// Runs turns of both kinds for equal times, until the time is up or the rounds are done.
    fn all(&mut self, args: &Args) -> Result<(), ()> {
        let mut progress = Instant::now();
        let limit = Duration::from_secs(args.seconds);
        while !self.is_over(args, limit) {
            let begun = Instant::now();
            if args.only != Some(Kind::Device) {
                self.killed()?;
            }
            let as_long = begun.elapsed();
            let begun = Instant::now();
            while args.only != Some(Kind::Killed) && !self.is_over(args, limit) {
                self.device()?;
                if begun.elapsed() >= as_long {
                    break;
                }
            }
            if progress.elapsed() >= PROGRESS_EVERY {
                progress = Instant::now();
                println!("torture: {} s: {}", self.started.elapsed().as_secs(), self.totals);
            }
        }
        Ok(())
    }

    fn is_over(&self, args: &Args, limit: Duration) -> bool {
        let rounds = self.totals.lives + self.totals.devices;
        // ORDERING: Relaxed: see `interrupted`.
        INTERRUPTED.load(Ordering::Relaxed)
            || args.rounds.is_some_and(|most| rounds >= most)
            || (args.rounds.is_none() && self.started.elapsed() >= limit)
    }

    fn seed(&self, round: u64) -> u64 {
        if round == 0 { self.start_seed } else { Rng(self.start_seed ^ round << 32).next() >> 16 }
    }

    /// Runs one more child of the present life. A whole life is a round.
    fn killed(&mut self) -> Result<(), ()> {
        let mut life = match self.life.take() {
            Some(life) => life,
            None => {
                let seed = self.seed(self.totals.lives);
                println!("round killed seed={seed}");
                Life::new(&self.dir, seed).map_err(|bad| println!("torture: cannot begin: {bad}"))?
            }
        };
        let seed = life.seed();
        self.turn("killed", seed, |totals| life.turn(totals))?;
        if life.is_over() {
            self.totals.lives += 1;
        } else {
            self.life = Some(life);
        }
        Ok(())
    }

    fn device(&mut self) -> Result<(), ()> {
        let seed = self.seed(self.totals.devices);
        println!("round device seed={seed}");
        self.turn("device", seed, |totals| device::round(seed, totals))?;
        self.totals.devices += 1;
        Ok(())
    }

    fn turn(&mut self, kind: &str, seed: u64, turn: impl FnOnce(&mut Totals) -> Check) -> Result<(), ()> {
        // ORDERING: Relaxed: only a time.
        self.turn_began.store(self.started.elapsed().as_secs(), Ordering::Relaxed);
        let totals = &mut self.totals;
        let outcome = catch_unwind(AssertUnwindSafe(|| turn(totals))).unwrap_or_else(|_| wrong("a panic, see above"));
        outcome.map_err(|bad| {
            println!("torture: DIVERGED: round {kind} seed={seed}: {bad}");
            println!(
                "again: cargo run --release -p engine-strata --example torture -- --only {kind} --seed {seed} --rounds 1"
            );
        })
    }
}
