//! The load: its options, and its steps from an empty directory to a complete store.
//!
//! Owns: the order in which the source is read and marker, state and commits are written. Only the engine's checkpoint
//! gives the position of a load. Must not: write pairs, which `fill` does. Runs on the main thread.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use engine_api::Engine;
use engine_latency::{Latency, Measured};
use engines::{Digest, EngineArgs, EngineKind, EngineOptions, Held, LoadState, LoadTerm, Loaded, OpenMode, Terms};
use solana::ChainCheckpoint;

use crate::disk;
use crate::fill::Fill;
use crate::identity::hex;
use crate::limits::{self, Buffers, SORT_BYTES_MIN};
use crate::meaning::MeaningArgs;
use crate::order::{Asked, OnDuplicate, Ordered, Tally, WorkDir, is_given_back, spilled_records};
use crate::out::{say, tell};
use crate::paths;
use crate::progress::Progress;
use crate::rank::Order;
use crate::report::{self, Figures, Outcome};
use crate::resume::{self, Found, Known, check_directory};
use crate::running;
use crate::seen::Seen;
use crate::signal::{Stop, Stopped};
use crate::source::{Source, SourceArgs};
use crate::state::{State, is_complete, load_of};
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
    /// strata, lmdb and redb, because it makes their loads faster and smaller; shuffled for rocksdb]
    #[arg(long, value_enum)]
    pub(crate) order: Option<Order>,
    /// A key given twice with different values: stop, or take the last one in the source
    #[arg(long, value_enum, default_value = "error", requires = "input")]
    pub(crate) on_duplicate: OnDuplicate,
    /// Continue a load of the same source that was stopped or killed
    ///
    /// The options --engine, --bloom, --profile, --extract, --cluster, --slot and --order need not be given again, because
    /// the store keeps them, and before there is a store its spill. A store refuses other ones. A spill takes them, and a
    /// line says so.
    ///
    /// The source must have the same content. A file is recognized by its size and times, or, if those have changed, by
    /// reading it again. The spill of another source is thrown away and made again; a store that holds pairs of another
    /// source is refused. If the load is already complete, nothing is done and the exit code is 0.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Solana slot of the pairs, from which the service follows the stream; a snapshot archive names its own
    #[arg(long, value_name = "SLOT")]
    pub(crate) slot: Option<u64>,
    /// Pairs per commit (shuffled order); fewer if lmdb or redb could not hold a commit's pages in memory
    /// [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) batch: Option<u64>,
    /// Flush every commit to the device, instead of every 100th (shuffled order; redb always does)
    #[arg(long)]
    pub(crate) synced: bool,
    /// Sample latencies every N pairs; the default is a 200th of the load
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample_every: Option<u64>,
    /// Finish background work (RocksDB's compaction) before the end, and include it in the figures
    #[arg(long)]
    pub(crate) settle: bool,
    /// Directory for the spill of a file or a sort, 73 bytes a pair at first; default: DIR with .work at the end
    ///
    /// The spill is given back to the file system while the store grows, so that both together take little more than
    /// the larger of the two. The directory must be missing, empty, or that of an earlier spill. A directory that is
    /// named here and existed before the load is not removed.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Memory for sorting, such as 64MiB; a source that fits into a quarter of it is not spilled [default: a share of
    /// the memory that the engine leaves of the cgroup's limit or the machine's]
    #[arg(long, value_name = "BYTES", value_parser = sort_memory)]
    pub(crate) sort_memory: Option<ByteSize>,
    /// Start even if the disk looks too small
    #[arg(long)]
    pub(crate) skip_disk_check: bool,
    /// Write everything measured as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write the histograms as an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    pub(crate) hlog: Option<PathBuf>,
    /// Progress for a program that runs the load as its own part.
    #[arg(skip)]
    pub(crate) seen: Seen,
    /// Bytes on the store's disk that such a program may take in the store's directory during the load.
    #[arg(skip)]
    pub(crate) beside_bytes: u64,
    /// Whether such a program runs the load. Its next start continues an interrupted load, without an option.
    #[arg(skip)]
    pub(crate) is_part: bool,
}

impl LoadArgs {
    /// Returns the words that say how an interrupted load is continued.
    pub(crate) fn way_on(&self) -> &'static str {
        if self.is_part { "the next start continues" } else { "the same command with --resume continues" }
    }
}

/// Everything about a load that is decided before its source is read.
pub(crate) struct Setup {
    pub(crate) source: Source,
    pub(crate) order: Order,
    pub(crate) options: EngineOptions,
    pub(crate) buffers: Buffers,
    pub(crate) work: WorkDir,
    mode: OpenMode,
    terms: Terms,
    /// Whether the store does not exist yet.
    new: bool,
}

/// Runs the load. The exit code is 0 when it is complete, and 128 + signal when it was asked to stop.
pub(crate) fn run(args: &LoadArgs) -> Result<u8> {
    run_until(args, &Stop::install()?)
}

/// Runs the load as [`run`] does, until `stop` asks to stop.
pub(crate) fn run_until(args: &LoadArgs, stop: &Stop) -> Result<u8> {
    let work = paths::work_dir(&args.dir, args.work_dir.as_deref(), ".work", &args.source)?;
    paths::check_outputs(args, &work.path)?;
    report::check_writable(args)?;
    let (args, source) = with_known(args, &work)?;
    let (args, work) = (&args, WorkDir { asked: Asked::of(&args), ..work });
    let Some(setup) = setup(args, source, work)? else { return Ok(0) };
    let stored = stored(args, &setup)?;
    // Take the lock now, so that a second process learns of it before it reads its source.
    let held = hold(args, &setup)?;
    let started = Instant::now();
    let mut ordered = match order(args, &setup, stored, stop) {
        Err(error) if Stopped::is_cause_of(&error) => {
            tell!("stopped while the source was being read: {}", left_by_reading(args, &setup)?);
            return Ok(stop.asked().unwrap_or(1));
        }
        Err(error) => {
            if spilled_records(&setup.work.path).is_some() {
                tell!("once the cause below is gone, {}", args.way_on());
            }
            return Err(error);
        }
        Ok(ordered) => ordered,
    };
    args.source.check_records(ordered.records)?;
    begin_giving_back(&mut ordered, &setup)?;
    if !args.skip_disk_check {
        disk::check_after_reading(args, &setup, &ordered)?;
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
    let mut fill = Fill::new(args, &setup, &engine, &ordered, begun, stop);
    let tally = fill.pairs()?;
    ensure!(
        tally.pairs > 0 || stop.asked().is_some(),
        "there are no pairs: {}: no account of the archive has a value by --extract",
        setup.source
    );
    if let Some(code) = stop.asked() {
        let seq = fill.end();
        close(args, engine)?;
        tell!("stopped with {seq} pairs committed; {}", args.way_on());
        return Ok(code);
    }
    fill.finish(tally)?;
    let elapsed = started.elapsed();
    let samples = std::mem::take(&mut fill.sampler.samples);
    let loaded = tally.pairs - begun.seq.min(tally.pairs);
    let digest = fill.digest;
    fill.end();
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

/// Finds the mistakes that [`run_until`] finds before it takes the lock. Changes nothing.
pub(crate) fn check(args: &LoadArgs) -> Result<()> {
    check_dir(args)?;
    let work = paths::work_dir(&args.dir, args.work_dir.as_deref(), ".work", &args.source)?;
    let (args, source) = with_known(args, &work)?;
    let work = WorkDir { asked: Asked::of(&args), ..work };
    setup(&args, source, work).map(|_| ())
}

/// Finds the mistakes among those of [`check`] that do not depend on the source.
pub(crate) fn check_dir(args: &LoadArgs) -> Result<()> {
    let options = options_for(&args.dir, &args.engine)?;
    engines::check(&args.dir, &options, mode(args), &terms(args))?;
    Ok(engines::check_lock(&args.dir)?)
}

/// How the store is opened.
fn mode(args: &LoadArgs) -> OpenMode {
    if args.resume { OpenMode::CreateOrOpen } else { OpenMode::Create }
}

/// The terms for the store's marker, before the source is known.
fn terms(args: &LoadArgs) -> Terms {
    Terms { holds: args.meaning.holds(), ..Terms::default() }
}

/// Returns the source, and the options with its slot and extraction. An archive knows its slot; with --resume the
/// directory, or the spill before there is a store, knows options that are not given again. A program that runs the load
/// as its own part gives all of them each time.
fn with_known(args: &LoadArgs, work: &WorkDir) -> Result<(LoadArgs, Source)> {
    let known = if args.resume { Known::of(&args.dir, &work.path) } else { Known::default() };
    let meaning = MeaningArgs { extract: args.meaning.extract.or(known.extract), ..args.meaning.clone() };
    if args.resume && !known.is_begun && meaning.extract.is_none() && args.source.is_of_archives() {
        let dir = args.dir.display();
        return Err(Wrong::error(format!(
            "there is nothing to resume, because no load was begun or nothing of it was kept: dir={dir}: leave --resume out \
             and say with --extract which value is taken from each account, such as --extract token-owner"
        )));
    }
    let mut args = LoadArgs { meaning, ..args.clone() };
    if !args.is_part {
        known.fill(&mut args);
    }
    let mut source = Source::new(&args.source, args.meaning.extract, &args.seen)?;
    known.refuse_without_incremental(&source, work)?;
    args.slot = source.fix_slot(args.slot.or_else(|| known.slot_of(&source)))?;
    Ok((args, source))
}

/// Finds all mistakes that can be found before the source is read, because reading can take an hour. `None`: the load
/// is complete already.
fn setup(args: &LoadArgs, source: Source, work: WorkDir) -> Result<Option<Setup>> {
    let options = options_for(&args.dir, &args.engine)?;
    let (mode, terms) = (mode(args), terms(args));
    let found = check_directory(&args.dir, args.resume)?;
    if !args.resume && is_complete(&args.dir)? == Some(true) {
        engines::check(&args.dir, &options, OpenMode::Existing, &Terms::default())?;
        bail!(
            "the directory already holds a complete load: dir={}: the same load with --resume does nothing, `verify` compares \
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
        disk::check(args, &setup)?;
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
/// empty. In strata sorted pairs go straight into the base, and nothing is left to merge.
fn default_order(engine: EngineKind) -> Order {
    if engine.descriptor().loads_sorted { Order::Sorted } else { Order::Shuffled }
}

/// Returns the number of pairs that the store holds, if a part of the spill was given back: then this decides whether
/// the rest is of use. 0 for a spill that is whole.
fn stored(args: &LoadArgs, setup: &Setup) -> Result<u64> {
    if is_given_back(&setup.work.path) { resume::stored_pairs(&args.dir) } else { Ok(0) }
}

/// Prepares to give the spill back to the file system while the store is filled. If that is impossible, prints the
/// reason.
fn begin_giving_back(ordered: &mut Ordered, setup: &Setup) -> Result<()> {
    ordered.begin_giving_back()?;
    if ordered.is_spilled() && !ordered.gives_back() {
        tell!(
            "the spill stays whole until the load is complete, because its file system cannot make holes in files: dir={}: \
             the load needs more disk space, but is otherwise the same",
            setup.work.path.display()
        );
    }
    Ok(())
}

/// Reads the source, spills it if necessary, and returns it in order.
fn order(args: &LoadArgs, setup: &Setup, stored: u64, stop: &Stop) -> Result<Ordered> {
    let mut reading = Progress::of_source(&setup.source, "reading")?.seen_by(&args.seen);
    let Setup { source, order, work, buffers, .. } = setup;
    let ordered = Ordered::prepare(source, *order, args.source.seed, work, buffers, stored, &mut |records| {
        reading.set_read(source, records);
        match stop.asked() {
            Some(_) => Err(Stopped.into()),
            None => Ok(()),
        }
    });
    reading.clear();
    ordered
}

/// Says how the next start begins after a stop before the end of the source.
fn left_by_reading(args: &LoadArgs, setup: &Setup) -> Result<String> {
    let is_kept = spilled_records(&setup.work.path).is_some() || engines::inspect(&args.dir)?.is_some();
    Ok(match (is_kept, args.is_part) {
        (true, _) => format!("nothing more was loaded; {}", args.way_on()),
        (false, true) => "nothing of it is kept; the next start reads it from its beginning".to_owned(),
        (false, false) => "nothing of it is kept; the same command begins again".to_owned(),
    })
}

fn close(args: &LoadArgs, engine: Measured) -> Result<()> {
    Box::new(engine).close().with_context(|| format!("cannot close the store: dir={}", args.dir.display()))
}

/// Marks the load complete: the state first, then the marker. A load killed in between continues and finds no pairs
/// left.
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
            "order=sorted, because engine={engine} loads sorted pairs faster, into fewer bytes: --order shuffled loads them \
             as a stream would bring them"
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
