//! The load: writes pairs in order into the engine, in batches that each carry a checkpoint, so that it can stop
//! anywhere.
//!
//! Owns: the loop, the resume rules, and the order in which marker, state and commits are written. Only the engine's
//! checkpoint gives the position of a load.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use engine_api::{BulkLoad, Durability, Engine, Key, Value};
use engine_latency::{Latency, Measured};
use engines::{EngineArgs, EngineKind, EngineOptions, Held, LoadState, LoadTerm, Loaded, OpenMode, Terms};
use solana::{ChainCheckpoint, MapPhase};
use workload::Digest;

use crate::limits::{self, BATCH_PAIRS, Buffers, SORT_BYTES_MIN};
use crate::meaning::MeaningArgs;
use crate::order::{OnDuplicate, Order, Ordered, Tally};
use crate::out::{say, tell};
use crate::paths::{self, WorkDir};
use crate::progress::Progress;
use crate::report::{self, Figures, Outcome};
use crate::resume::{self, Found, check_directory, is_complete};
use crate::running;
use crate::sample::Sampler;
use crate::signal::{Stop, Stopped};
use crate::source::{Source, SourceArgs};
use crate::state::State;
use crate::uncounted;
use crate::wrong::{Wrong, options_for};

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
    /// Order in which keys reach the engine: random, or ascending through the engine's bulk path [default: sorted for
    /// lmdb and redb, whose loads are many times faster and smaller so; shuffled for rocksdb and strata]
    #[arg(long, value_enum)]
    pub(crate) order: Option<Order>,
    /// A key given twice with different values: stop, or take the last one in the source
    #[arg(long, value_enum, default_value = "error", requires = "input")]
    pub(crate) on_duplicate: OnDuplicate,
    /// Go on with a load of the same source that was stopped or killed
    ///
    /// The source is known by its content: a file by size and times, or where those have changed by reading it again. A
    /// spill of another source is thrown away and made anew; a store that holds pairs of another source is refused. A
    /// load that is complete ends well.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Solana slot that the pairs stand for; the service starts following from it
    #[arg(long, value_name = "SLOT")]
    pub(crate) slot: Option<u64>,
    /// Pairs per commit (shuffled order); fewer where lmdb or redb could not hold their pages in memory
    /// [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) batch: Option<u64>,
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
    ///
    /// It has to be missing, empty, or that of an earlier spill. One that is named here and was there before stays.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Memory for sorting, such as 64MiB; a source that fits into half of it is not spilled [default: a share of what
    /// the engine leaves of the cgroup's limit or the machine's memory]
    #[arg(long, value_name = "BYTES", value_parser = sort_memory)]
    pub(crate) sort_memory: Option<ByteSize>,
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

/// Every so many commits one is synced while the others are buffered. This bounds the work that a load repeats after an
/// OS crash.
const SYNC_EVERY_COMMITS: u64 = 100;

/// Everything about a load that is decided before its source is read.
struct Setup {
    source: Source,
    order: Order,
    options: EngineOptions,
    buffers: Buffers,
    work: WorkDir,
    mode: OpenMode,
    terms: Terms,
    /// Whether the store does not exist yet.
    new: bool,
}

/// Runs the load. The exit code is 0 when it is complete, and 128 + signal when it was asked to stop.
pub(crate) fn run(args: &LoadArgs) -> Result<u8> {
    let stop = Stop::install()?;
    let work = paths::work_dir(&args.dir, args.work_dir.as_deref(), ".work", &args.source)?;
    paths::check_outputs(args, &work.path)?;
    report::check_writable(args)?;
    let Some(setup) = setup(args, work)? else { return Ok(0) };
    // Take the lock now, so that a second process learns of it before it reads its source.
    let held = hold(args, &setup)?;
    let started = Instant::now();
    let ordered = match order(args, &setup, &stop) {
        Err(error) if Stopped::is_cause_of(&error) => {
            tell!("stopped while the source was read, nothing more was loaded; the same command with --resume goes on");
            return Ok(stop.asked().unwrap_or(1));
        }
        ordered => ordered?,
    };
    args.source.check_records(ordered.records)?;
    if !args.skip_disk_check {
        check_disk_after_reading(args, &setup, ordered.records)?;
    }
    let terms = Terms { load: LoadTerm::Loading(hex(ordered.source_id)), ..setup.terms.clone() };
    let engine = engines::open_held(held, &setup.options, setup.mode, &terms)
        .with_context(|| format!("cannot open the store: dir={}", args.dir.display()))?;
    uncounted::remove(&*engine)?;
    let latency = Latency::new(engine.label());
    let engine = Measured::new(engine, latency, "bootstrap");
    let begun = ChainCheckpoint::read(&engine.checkpoint()?)?;
    let state = resume::state(args, &setup.source, setup.order, &ordered, &begun)?;
    engines::mark_load(&args.dir, load_of(LoadState::Loading, ordered.source_id), begun.seq)?;
    state.write(&args.dir)?;
    let every = args.sample_every.unwrap_or((ordered.records / 200).max(10_000));
    let mut load = Load {
        args,
        setup: &setup,
        engine: &engine,
        checkpoint: ChainCheckpoint { source: ordered.source_id, slot: None, phase: MapPhase::Loading, ..begun },
        // Pairs loaded by an earlier run are not read again, so there is no digest after a resume.
        digest: (begun.seq == 0).then(Digest::default),
        commits: 0,
        progress: Progress::new(Some(ordered.records), setup.options.label()),
        sampler: Sampler::new(&engine, &args.dir, every, begun.seq),
        stop: &stop,
    };
    load.progress.start_at(begun.seq);
    let tally = load.pairs(&ordered)?;
    if let Some(code) = stop.asked() {
        load.progress.clear();
        let seq = load.checkpoint.seq;
        drop(load);
        close(args, engine)?;
        tell!("stopped with {seq} pairs committed; the same command with --resume goes on");
        return Ok(code);
    }
    load.finish(tally)?;
    let elapsed = started.elapsed();
    let samples = std::mem::take(&mut load.sampler.samples);
    let loaded = tally.pairs - begun.seq.min(tally.pairs);
    let digest = load.digest;
    drop(load);
    complete(args, state, ordered.source_id, tally, digest)?;
    let (options, source, order) = (&setup.options, &setup.source, setup.order);
    let figures = Figures::of(&engine)?;
    // Close before the files are measured, because an open log has space allocated ahead.
    close(args, engine)?;
    report::print_and_write(Outcome { args, options, source, order, tally, loaded, elapsed, samples, figures })?;
    ordered.discard()?;
    chosen(args, &setup);
    Ok(0)
}

/// Finds all mistakes that can be found before the source is read, because reading can take an hour. `None`: the load
/// is complete already.
fn setup(args: &LoadArgs, work: WorkDir) -> Result<Option<Setup>> {
    let source = Source::new(&args.source)?;
    let options = options_for(&args.dir, &args.engine)?;
    let mode = if args.resume { OpenMode::CreateOrOpen } else { OpenMode::Create };
    let found = check_directory(&args.dir, args.resume)?;
    let terms = Terms { holds: args.meaning.holds(), ..Terms::default() };
    if !args.resume && is_complete(&args.dir)? == Some(true) {
        engines::check(&args.dir, &options, OpenMode::Existing, &Terms::default())?;
        bail!(
            "the directory already holds a complete load: dir={}: the same load with --resume ends well, `verify` compares \
             the store with a source; name another directory for another load",
            args.dir.display()
        );
    }
    engines::check(&args.dir, &options, mode, &terms)?;
    if found == Found::Complete {
        resume::end_complete(args, &source, &work)?;
        return Ok(None);
    }
    source.check_records_before(&args.source)?;
    let begun = if args.resume { State::read(&args.dir)? } else { None };
    let order = args.order.or(begun.and_then(|state| state.order)).unwrap_or(default_order(options.engine));
    refuse_unused(args, order)?;
    if args.resume {
        resume::refuse_other(args, &source, order)?;
    }
    let (options, buffers) = limits::divide(&options, order, 0)?;
    let buffers = buffers.with_sort_memory(args.sort_memory, &options)?;
    let new = engines::inspect(&args.dir)?.is_none();
    let setup = Setup { source, order, options, buffers, work, mode, terms, new };
    if !args.skip_disk_check {
        check_disk(args, &setup)?;
    }
    Ok(Some(setup))
}

/// Locks the directory before the source is read, so that no other process fills it meanwhile.
fn hold(args: &LoadArgs, setup: &Setup) -> Result<Held> {
    let held = engines::hold(&args.dir).map_err(|error| running::explain(&args.dir, error))?;
    let as_before =
        check_directory(&args.dir, args.resume)? == Found::Open && engines::inspect(&args.dir)?.is_none() == setup.new;
    ensure!(as_before, "another process has just filled the directory: dir={}: start again", args.dir.display());
    Ok(held)
}

/// Refuses options about commits for a sorted load: the bulk path takes chunks of its own size and flushes each.
fn refuse_unused(args: &LoadArgs, order: Order) -> Result<()> {
    let unused = match order {
        Order::Shuffled => None,
        Order::Sorted if args.batch.is_some() => Some("--batch"),
        Order::Sorted => args.synced.then_some("--synced"),
    };
    match unused {
        None => Ok(()),
        Some(option) => Err(Wrong::error(format!(
            "{option} is for order=shuffled: a sorted load takes chunks of its own size and flushes each: leave it out, or \
             add --order shuffled"
        ))),
    }
}

/// Returns the order of a load that names none. In a B+tree each random insert costs a page, and leaves the pages half
/// empty.
fn default_order(engine: EngineKind) -> Order {
    match engine {
        EngineKind::Lmdb | EngineKind::Redb => Order::Sorted,
        EngineKind::Rocksdb | EngineKind::Strata => Order::Shuffled,
    }
}

/// Refuses a load that will not fit on the disk. Bytes that an earlier run has written count as available.
fn check_disk(args: &LoadArgs, setup: &Setup) -> Result<()> {
    let Some(records) = setup.source.count_hint()?.or_else(|| setup.source.packed_count_hint()) else { return Ok(()) };
    let store_bytes = limits::store_bytes(setup.options.engine, setup.order, records);
    let spilled = setup.order == Order::Sorted || args.source.input.is_some();
    let spill_bytes = if spilled { limits::spill_bytes(records, &setup.buffers) } else { 0 };
    let left = |bytes: u64, dir: &Path| bytes.saturating_sub(probe::disk_bytes(dir));
    // The engine refuses writes that would eat into its disk reserve.
    let store_left = left(store_bytes, &args.dir).saturating_add(setup.options.disk_reserve_bytes());
    let spill_left = left(spill_bytes, &setup.work.path);
    if !setup.work.is_default && !probe::is_same_disk(&args.dir, &setup.work.path) {
        probe::check_disk(&setup.work.path, spill_left)?;
        return probe::check_disk(&args.dir, store_left);
    }
    probe::check_disk(&args.dir, store_left.saturating_add(spill_left))
}

/// Checks the disk space again once the source has been read, because only then is the number of pairs in a packed
/// file, a pipe or a CSV known. The spill is on disk by now, so only the store's bytes are needed.
fn check_disk_after_reading(args: &LoadArgs, setup: &Setup, records: u64) -> Result<()> {
    let store_bytes = limits::store_bytes(setup.options.engine, setup.order, records);
    let store_left = store_bytes.saturating_sub(probe::disk_bytes(&args.dir));
    probe::check_disk(&args.dir, store_left.saturating_add(setup.options.disk_reserve_bytes()))
        .context("the source has been read, and what was spilled of it is kept: --resume goes on")
}

/// Reads the source, spills it if necessary, and returns it in order.
fn order(args: &LoadArgs, setup: &Setup, stop: &Stop) -> Result<Ordered> {
    let mut reading = Progress::new(setup.source.count_hint()?, "reading");
    let ordered =
        Ordered::prepare(&setup.source, setup.order, args.source.seed, &setup.work, &setup.buffers, &mut |records| {
            reading.set(records);
            match stop.asked() {
                Some(_) => Err(Stopped.into()),
                None => Ok(()),
            }
        });
    reading.clear();
    ordered
}

fn close(args: &LoadArgs, engine: Measured) -> Result<()> {
    Box::new(engine).close().with_context(|| format!("cannot close the store: dir={}", args.dir.display()))
}

/// Marks the load complete: the state first, then the marker. A load killed in between goes on and finds no pairs left.
fn complete(args: &LoadArgs, state: State, source_id: u64, tally: Tally, digest: Option<Digest>) -> Result<()> {
    let pairs = tally.pairs;
    State { pairs: Some(pairs), ..state }.write(&args.dir)?;
    // The marker is written last, because the marker decides whether the load is complete.
    let loaded = Loaded { seq: pairs, pairs, digest: digest.map(|digest| digest.to_string()) };
    let load = engines::Load { loaded: Some(loaded), ..load_of(LoadState::Complete, source_id) };
    Ok(engines::mark_load(&args.dir, load, pairs)?)
}

/// Prints the defaults that were chosen where the user did not choose.
fn chosen(args: &LoadArgs, setup: &Setup) {
    let engine = setup.options.engine;
    let is_default = args.order.is_none() && setup.order == default_order(engine);
    if is_default && setup.order == Order::Sorted {
        say!(
            "order=sorted, because engine={engine} loads sorted pairs many times faster, into fewer bytes: \
             --order shuffled loads them as a stream would bring them"
        );
    }
    if engine == EngineKind::Strata && is_default && !args.settle {
        say!(
            "order=shuffled leaves the store to be merged by whoever opens it next: --settle merges it here, and --order \
             sorted leaves nothing to merge"
        );
    }
    if setup.new && args.engine.engine.is_none() {
        say!("{}", chosen_engine(engine));
    }
}

fn sort_memory(text: &str) -> Result<ByteSize, String> {
    let bytes = engines::size(text)?;
    if bytes.as_u64() < SORT_BYTES_MIN {
        return Err(format!("too small: minimum={}", ByteSize::b(SORT_BYTES_MIN)));
    }
    Ok(bytes)
}

/// Says which engine was taken because the user named none.
fn chosen_engine(engine: EngineKind) -> String {
    let built: Vec<_> = engines::compiled().iter().map(|engine| engine.as_str()).collect();
    format!(
        "engine={engine} was taken because none was named; this build has {}: --engine ENGINE chooses for a new \
         directory, and README.md says which is for what",
        built.join(", ")
    )
}

/// Builds the marker's entry for a load.
pub(crate) fn load_of(state: LoadState, source_id: u64) -> engines::Load {
    engines::Load::new(state, hex(source_id))
}

/// Formats a source's id for markers and states. It is hex because TOML's integers are signed.
pub(crate) fn hex(source_id: u64) -> String {
    format!("{source_id:016x}")
}

struct Load<'a> {
    args: &'a LoadArgs,
    setup: &'a Setup,
    engine: &'a Measured,
    checkpoint: ChainCheckpoint,
    /// Digest of all loaded pairs. `None` when an earlier run has loaded a part of them.
    digest: Option<Digest>,
    commits: u64,
    progress: Progress,
    sampler: Sampler<'a>,
    stop: &'a Stop,
}

impl Load<'_> {
    fn pairs(&mut self, ordered: &Ordered) -> Result<Tally> {
        let skip = self.checkpoint.seq;
        let rule = self.args.on_duplicate;
        match self.engine.bulk().filter(|_| self.setup.order == Order::Sorted) {
            None => {
                let batch_pairs = self.args.batch.unwrap_or(BATCH_PAIRS).min(self.setup.buffers.batch_pairs);
                let mut batch: Vec<(Key, Value)> = Vec::new();
                let tally = ordered.for_each(skip, rule, &mut |pairs| {
                    for pair in pairs {
                        batch.push(*pair);
                        if batch.len() as u64 == batch_pairs {
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
                let bulk_pairs = self.setup.buffers.bulk_pairs;
                let mut chunk = Vec::with_capacity(bulk_pairs);
                let tally = ordered.for_each(skip, rule, &mut |pairs| {
                    chunk.extend_from_slice(pairs);
                    if chunk.len() + pairs.len() > bulk_pairs {
                        self.chunk(bulk, &mut chunk)?;
                    }
                    Ok(self.stop.asked().is_none())
                })?;
                if !chunk.is_empty() && self.stop.asked().is_none() {
                    self.chunk(bulk, &mut chunk)?;
                }
                Ok(tally)
            }
        }
    }

    fn chunk(&mut self, bulk: &dyn BulkLoad, chunk: &mut Vec<(Key, Value)>) -> Result<()> {
        let mut checkpoint = self.checkpoint;
        checkpoint.seq += chunk.len() as u64;
        bulk.load_sorted(chunk, &checkpoint.write()).with_context(|| self.failed())?;
        self.count(chunk);
        self.checkpoint = checkpoint;
        self.progress.set(checkpoint.seq);
        self.sampler.at(checkpoint.seq)?;
        chunk.clear();
        Ok(())
    }

    fn count(&mut self, pairs: &[(Key, Value)]) {
        if let Some(digest) = &mut self.digest {
            pairs.iter().for_each(|(key, value)| digest.add(key, value));
        }
    }

    fn commit(&mut self, batch: &[(Key, Value)]) -> Result<()> {
        let mut checkpoint = self.checkpoint;
        checkpoint.seq += batch.len() as u64;
        self.commits += 1;
        let synced = self.args.synced || self.commits.is_multiple_of(SYNC_EVERY_COMMITS);
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        self.write(batch, &checkpoint, durability).with_context(|| self.failed())?;
        self.count(batch);
        self.checkpoint = checkpoint;
        self.progress.set(checkpoint.seq);
        self.sampler.at(checkpoint.seq)
    }

    fn write(
        &self,
        batch: &[(Key, Value)],
        checkpoint: &ChainCheckpoint,
        durability: Durability,
    ) -> engine_api::Result<()> {
        let mut txn = self.engine.begin()?;
        for (key, value) in batch {
            txn.put(key, value)?;
        }
        txn.commit(&checkpoint.write(), durability)
    }

    /// Context for an engine's error, because engines do not know their directory.
    fn failed(&self) -> String {
        let (dir, seq) = (self.args.dir.display(), self.checkpoint.seq);
        format!("the load has stopped: dir={dir} committed_pairs={seq}: --resume goes on once its cause is gone")
    }

    /// Makes the last commit: it is flushed, and it alone carries the slot and says that the map is whole.
    fn finish(&mut self, tally: Tally) -> Result<()> {
        ensure!(
            self.checkpoint.seq == tally.pairs,
            "the store is ahead of its source: committed={} pairs={}: was the source changed?",
            self.checkpoint.seq,
            tally.pairs
        );
        (self.checkpoint.slot, self.checkpoint.phase) = (self.args.slot, MapPhase::Ready);
        let last = || self.engine.inner().begin()?.commit(&self.checkpoint.write(), Durability::Synced);
        last().with_context(|| self.failed())?;
        if self.args.settle {
            self.progress.message("settling");
            self.engine.settle()?;
        }
        self.sampler.take(self.checkpoint.seq)?;
        self.progress.clear();
        Ok(())
    }
}
