//! The load: pairs in order into the engine, in batches that each carry a checkpoint, so that it can stop anywhere.
//!
//! Owns: the loop, the resume rules, what is written when. The position of a load is the engine's checkpoint alone.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use engine_api::{Checkpoint, Durability, Engine, Key, Value};
use engine_latency::{Latency, Measured};
use engines::{EngineArgs, EngineKind, LoadState, LoadTerm, OpenMode, Terms};

use crate::limits::BULK_PAIRS;
use crate::meaning::MeaningArgs;
use crate::order::{OnDuplicate, Order, Ordered, Tally};
use crate::progress::Progress;
use crate::report::{self, Outcome};
use crate::sample::Sampler;
use crate::signal::Stop;
use crate::source::{Source, SourceArgs};
use crate::state::State;

/// Loads pairs into a store.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Directory of the store: missing or empty, unless --resume
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) meaning: MeaningArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Order in which keys reach the engine: random, or ascending through the engine's bulk path
    #[arg(long, value_enum, default_value = "shuffled")]
    pub(crate) order: Order,
    /// A key given twice with different values: stop, or take the last one in the source
    #[arg(long, value_enum, default_value = "error")]
    pub(crate) on_duplicate: OnDuplicate,
    /// Go on with a load of the same source that was stopped or killed
    #[arg(long)]
    pub(crate) resume: bool,
    /// Solana slot that the pairs stand for; the service starts following from it
    #[arg(long, value_name = "SLOT")]
    pub(crate) slot: Option<u64>,
    /// Pairs per commit (shuffled order)
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) batch: u64,
    /// Flush every commit to the device, instead of every 100th (shuffled order; redb always does)
    #[arg(long)]
    pub(crate) synced: bool,
    /// Sample latencies every N pairs; the default is a 200th of the load
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample_every: Option<u64>,
    /// Settle background work (RocksDB's compaction) before the end, and count it in
    #[arg(long)]
    pub(crate) settle: bool,
    /// Directory for the spill of a file or a sort, as large as the source; default: DIR with .work at the end
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Start even where the disk looks too small
    #[arg(long)]
    pub(crate) skip_disk_check: bool,
    /// Write everything measured as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write the histograms as an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    pub(crate) hlog: Option<PathBuf>,
}

/// A synced commit this often where the others are buffered: bounds what an OS crash makes a load repeat.
const SYNC_EVERY_COMMITS: u64 = 100;

/// Runs the load; the exit code is 0 when it is complete, 128 + signal when it was asked to stop.
pub(crate) fn run(args: &LoadArgs) -> Result<u8> {
    let stop = Stop::install()?;
    let source = Source::new(&args.source)?;
    let records = source.count_hint()?;
    let options = engines::options_for(&args.dir, &args.engine)?;
    if let (Some(records), false) = (records, args.skip_disk_check || args.resume) {
        probe::check_disk(&args.dir, disk_estimate(args, options.engine, records))?;
    }
    let mode = if args.resume { OpenMode::CreateOrOpen } else { OpenMode::Create };
    if check_directory(&args.dir, args.resume)? == Found::Complete {
        return Ok(0);
    }
    let mut terms = Terms { holds: args.meaning.holds(), ..Terms::default() };
    // Reading the source can take an hour: whoever gave a wrong directory is told before.
    engines::check(&args.dir, &options, mode, &terms)?;
    let new = engines::inspect(&args.dir)?.is_none();
    let started = Instant::now();
    let work = work_dir(args);
    let mut reading = Progress::new(records, "reading");
    let ordered = Ordered::prepare(&source, args.order, args.source.seed, &work, &mut |records| {
        reading.set(records);
        match stop.asked() {
            Some(_) => bail!("stopped while reading the source; nothing was loaded yet"),
            None => Ok(()),
        }
    })?;
    reading.clear();
    terms.load = LoadTerm::Loading(hex(ordered.source_id));
    let engine = engines::open_on(&args.dir, &options, mode, &terms)?;
    let latency = Latency::new(engine.label());
    let engine = Measured::new(engine, latency, "bootstrap");
    let begun = engine.checkpoint()?;
    let mut state = resume_state(args, &source, &ordered, &begun)?;
    engines::mark_load(&args.dir, load_of(LoadState::Loading, ordered.source_id))?;
    state.write(&args.dir)?;
    let every = args.sample_every.unwrap_or((ordered.records / 200).max(10_000));
    let mut load = Load {
        args,
        engine: &engine,
        checkpoint: Checkpoint { source: ordered.source_id, slot: None, ..begun },
        commits: 0,
        progress: Progress::new(Some(ordered.records), options.label()),
        sampler: Sampler::new(&engine, &args.dir, every, begun.seq),
        stop: &stop,
    };
    load.progress.start_at(begun.seq);
    let tally = load.pairs(&ordered)?;
    if let Some(code) = stop.asked() {
        load.progress.clear();
        let seq = load.checkpoint.seq;
        drop(load);
        Box::new(engine).close()?;
        eprintln!("stopped after {seq} pairs, all of them committed; the same command with --resume goes on");
        return Ok(code);
    }
    load.finish(tally)?;
    let elapsed = started.elapsed();
    let samples = std::mem::take(&mut load.sampler.samples);
    let loaded = tally.pairs - begun.seq.min(tally.pairs);
    drop(load);
    state.pairs = Some(tally.pairs);
    state.write(&args.dir)?;
    // The marker's word is the one that counts: killed before it, the load goes on and finds nothing left to load.
    engines::mark_load(&args.dir, load_of(LoadState::Complete, ordered.source_id))?;
    let outcome =
        Outcome { args, options: &options, source: &source, tally, loaded, elapsed, samples, engine: &engine };
    report::print_and_write(outcome)?;
    Box::new(engine).close()?;
    if work.exists() {
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove dir={}", work.display()))?;
    }
    if new && args.engine.engine.is_none() {
        println!("{}", chosen(options.engine));
    }
    Ok(0)
}

/// What a load says at its end that was left to choose the engine by itself.
fn chosen(engine: EngineKind) -> String {
    let built: Vec<_> = engines::compiled().iter().map(|engine| engine.as_str()).collect();
    format!(
        "engine={engine} was taken because none was named; this build has {}: --engine ENGINE chooses for a new \
         directory, and README.md says which is for what",
        built.join(", ")
    )
}

/// What the marker says of a load.
pub(crate) fn load_of(state: LoadState, source_id: u64) -> engines::Load {
    engines::Load { state, source: hex(source_id) }
}

/// The number of a source as markers and states write it: TOML's integers are signed.
pub(crate) fn hex(source_id: u64) -> String {
    format!("{source_id:016x}")
}

struct Load<'a> {
    args: &'a LoadArgs,
    engine: &'a Measured,
    checkpoint: Checkpoint,
    commits: u64,
    progress: Progress,
    sampler: Sampler<'a>,
    stop: &'a Stop,
}

impl Load<'_> {
    fn pairs(&mut self, ordered: &Ordered) -> Result<Tally> {
        let skip = self.checkpoint.seq;
        let rule = self.args.on_duplicate;
        match self.engine.bulk().filter(|_| self.args.order == Order::Sorted) {
            None => {
                let mut batch: Vec<(Key, Value)> = Vec::new();
                let tally = ordered.for_each(skip, rule, &mut |pairs| {
                    for pair in pairs {
                        batch.push(*pair);
                        if batch.len() as u64 == self.args.batch {
                            self.commit(&batch)?;
                            batch.clear();
                        }
                    }
                    Ok(self.stop.asked().is_none())
                })?;
                if !batch.is_empty() && self.stop.asked().is_none() {
                    self.commit(&batch)?;
                }
                Ok(tally)
            }
            Some(bulk) => {
                let mut chunk = Vec::with_capacity(BULK_PAIRS);
                let mut load = |chunk: &mut Vec<(Key, Value)>| {
                    let mut checkpoint = self.checkpoint;
                    checkpoint.seq += chunk.len() as u64;
                    bulk.load_sorted(chunk, &checkpoint)?;
                    self.checkpoint = checkpoint;
                    self.progress.set(checkpoint.seq);
                    self.sampler.at(checkpoint.seq)?;
                    chunk.clear();
                    anyhow::Ok(())
                };
                let tally = ordered.for_each(skip, rule, &mut |pairs| {
                    chunk.extend_from_slice(pairs);
                    if chunk.len() + pairs.len() > BULK_PAIRS {
                        load(&mut chunk)?;
                    }
                    Ok(self.stop.asked().is_none())
                })?;
                if !chunk.is_empty() && self.stop.asked().is_none() {
                    load(&mut chunk)?;
                }
                Ok(tally)
            }
        }
    }

    fn commit(&mut self, batch: &[(Key, Value)]) -> Result<()> {
        let mut checkpoint = self.checkpoint;
        checkpoint.seq += batch.len() as u64;
        let mut txn = self.engine.begin()?;
        for (key, value) in batch {
            txn.put(key, value)?;
        }
        self.commits += 1;
        let synced = self.args.synced || self.commits.is_multiple_of(SYNC_EVERY_COMMITS);
        txn.commit(&checkpoint, if synced { Durability::Synced } else { Durability::Buffered })?;
        self.checkpoint = checkpoint;
        self.progress.set(checkpoint.seq);
        self.sampler.at(checkpoint.seq)
    }

    /// The last commit: flushed, and the only one that carries the slot.
    fn finish(&mut self, tally: Tally) -> Result<()> {
        ensure!(
            self.checkpoint.seq == tally.pairs,
            "the store is ahead of its source: committed={} pairs={}: was the source changed?",
            self.checkpoint.seq,
            tally.pairs
        );
        self.checkpoint.slot = self.args.slot;
        self.engine.inner().begin()?.commit(&self.checkpoint, Durability::Synced)?;
        if self.args.settle {
            self.progress.message("settling");
            self.engine.settle()?;
        }
        self.sampler.take(self.checkpoint.seq)?;
        self.progress.clear();
        Ok(())
    }
}

/// What a directory holds of a load.
#[derive(PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing yet, or a part.
    Open,
    /// All of it.
    Complete,
}

/// Refuses before the source is read what would be refused after it. A load that is complete needs no resuming, which
/// is no failure: whoever starts the same command at each boot wants it to end well.
pub(crate) fn check_directory(dir: &Path, resume: bool) -> Result<Found> {
    match (resume, is_complete(dir)?) {
        (false, Some(false)) => bail!(
            "the directory holds a load that was interrupted: dir={}; go on with --resume, or remove the directory",
            dir.display()
        ),
        (true, Some(true)) => {
            let pairs = State::read(dir)?.and_then(|state| state.pairs);
            let pairs = pairs.map_or("unknown".to_owned(), |pairs| pairs.to_string());
            eprintln!("the load is complete, there is nothing to resume: dir={} pairs={pairs}", dir.display());
            Ok(Found::Complete)
        }
        _ => Ok(Found::Open),
    }
}

/// Whether the load of the store in `dir` is complete; `None` where nothing was loaded. The marker says so; in a store
/// of an earlier version, whose marker did not, the load's own file does.
pub(crate) fn is_complete(dir: &Path) -> Result<Option<bool>> {
    let load = engines::inspect(dir)?.and_then(|known| known.load);
    Ok(match load {
        Some(load) => Some(load.state == LoadState::Complete),
        None => State::read(dir)?.map(|state| state.pairs.is_some()),
    })
}

/// Checks that the store is this load's, and says what to write about it.
fn resume_state(args: &LoadArgs, source: &Source, ordered: &Ordered, begun: &Checkpoint) -> Result<State> {
    if begun.seq > 0 {
        ensure!(
            begun.source == ordered.source_id,
            "the store was loaded from another source, order or seed: dir={} loaded_pairs={}; give the same \
             arguments as the first time",
            args.dir.display(),
            begun.seq
        );
    }
    Ok(State { source: source.to_string(), source_id: hex(ordered.source_id), records: ordered.records, pairs: None })
}

fn work_dir(args: &LoadArgs) -> PathBuf {
    args.work_dir.clone().unwrap_or_else(|| beside(&args.dir, ".work"))
}

/// `dir` with `ending` at the end of its name.
pub(crate) fn beside(dir: &Path, ending: &str) -> PathBuf {
    // Without a slash at the end.
    let mut name = dir.components().collect::<PathBuf>().into_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// Bytes that the load needs at its peak, spill included.
fn disk_estimate(args: &LoadArgs, engine: EngineKind, records: u64) -> u64 {
    let spilled = args.order == Order::Sorted || args.source.input.is_some();
    let spill_bytes = if spilled { records.saturating_mul(crate::limits::RECORD_BYTES as u64) } else { 0 };
    store_bytes(engine, records).saturating_add(spill_bytes)
}

/// Bytes that a store of so many pairs needs while it is loaded: what 700M pairs took in the public comparison of these
/// engines (LMDB 71.3 GB, redb 62.9 GB, RocksDB 40.8 GB), rounded up; RocksDB with room for a compaction.
pub(crate) fn store_bytes(engine: EngineKind, records: u64) -> u64 {
    let per_pair = match engine {
        EngineKind::Rocksdb => 120,
        EngineKind::Lmdb => 110,
        EngineKind::Redb => 130,
        // Twice the store while runs are merged.
        EngineKind::Strata => 140,
    };
    records.saturating_mul(per_pair)
}
