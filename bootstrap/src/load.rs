//! The load: its steps from an empty directory to a complete store.
//!
//! Owns: the order in which the source is read and marker, state and commits are written. Only the engine's checkpoint
//! gives the position of a load. Must not: write pairs, which `fill` does. Runs on the main thread.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use engine_api::Engine;
use engine_latency::{Latency, Measured};
use engines::{EngineKind, Held, LoadState, LoadTerm, Loaded, Terms};

use crate::args::LoadArgs;
use crate::copied;
use crate::disk;
use crate::fill::Fill;
use crate::identity::hex;
use crate::order::{Ordered, WorkDir, is_given_back, spilled_records};
use crate::out::{say, tell};
use crate::paths;
use crate::progress::Progress;
use crate::rank::Order;
use crate::report::{self, Figures, Outcome};
use crate::resume::{self, check_directory};
use crate::running;
use crate::scan::digest_until;
use crate::setup::{Setup, check_dir, default_order, with_known};
use crate::signal::{self, Stop, Stopped};
use crate::source::{Source, Stored};
use crate::state::{State, load_of};
use crate::uncounted;

/// Runs the load. The exit code is 0 when it is complete, and 128 + signal when it was asked to stop.
pub(crate) fn run(args: &LoadArgs) -> Result<u8> {
    run_until(args, &Stop::install()?)
}

/// Runs the load as [`run`] does, until `stop` asks to stop.
pub(crate) fn run_until(args: &LoadArgs, stop: &Stop) -> Result<u8> {
    match read_and_fill(args, stop) {
        // The source was looked at, or read to be compared with a complete load.
        Err(error) if Stopped::is_cause_of(&error) => Ok(signal::tell_unchanged(&error)),
        outcome => outcome,
    }
}

fn read_and_fill(args: &LoadArgs, stop: &Stop) -> Result<u8> {
    let work = paths::work_dir(&args.dir, args.work_dir.as_deref(), ".work", &args.source)?;
    paths::check_outputs(args, &work.path)?;
    report::check_writable(args)?;
    let (args, source) = with_known(args, &work)?;
    let (args, work) = (&args, WorkDir { asked: args.asked(), ..work });
    let Some(setup) = setup(args, source, work)? else { return Ok(0) };
    let stored = stored(args, &setup)?;
    // Take the lock now: a second process is then refused before it reads its source.
    let held = hold(args, &setup)?;
    let started = Instant::now();
    let mut ordered = match order(args, &setup, stored, stop) {
        Err(error) => return not_read(args, &setup, stop, error),
        Ok(ordered) => ordered,
    };
    args.source.check_records(ordered.records)?;
    begin_giving_back(&mut ordered, &setup)?;
    if !args.skip_disk_check {
        disk::check_after_reading(args, &setup, &ordered)?;
    }
    // A store that is there already is marked only after it was found to be of this load.
    let load = if setup.new { LoadTerm::Loading(hex(ordered.source_id)) } else { LoadTerm::Any };
    let terms = Terms { load, ..setup.terms.clone() };
    let engine = engines::open_held(held, &setup.options, setup.mode, &terms)
        .with_context(|| format!("cannot open the store: dir={}", args.dir.display()))?;
    uncounted::remove(&*engine)?;
    let latency = Latency::new(engine.label());
    let engine = Measured::new(engine, latency, "bootstrap");
    let begun = copied::begun(&setup.source, &engine, ordered.source_id)?;
    let state = resume::state(args, &setup.source, setup.order, &ordered, &begun)?;
    engines::mark_load(&args.dir, load_of(LoadState::Loading, ordered.source_id), begun.seq)?;
    state.write(&args.dir)?;
    let mut fill = Fill::new(args, &setup, &engine, &ordered, begun, stop);
    let tally = fill.pairs()?;
    ensure!(
        tally.pairs > 0 || stop.asked().is_some() || setup.source.stored().is_some(),
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
    if let Some(stored) = setup.source.stored() {
        fill.end();
        return compare(args, stored, state, ordered.source_id, engine, stop, elapsed);
    }
    let samples = std::mem::take(&mut fill.sampler.samples);
    let loaded = tally.pairs - begun.seq.min(tally.pairs);
    let digest = fill.digest;
    fill.end();
    let (pairs, digest) = (tally.pairs, digest.map(|digest| digest.to_string()));
    complete(args, state, ordered.source_id, Loaded { seq: pairs, pairs, digest, slot: args.slot })?;
    let (options, source, order, listing) = (&setup.options, &setup.source, setup.order, ordered.listing);
    let figures = Figures::of(&engine)?;
    // Close before the files are measured, because an open log has space allocated ahead.
    close(args, engine)?;
    let outcome = Outcome { args, options, source, order, tally, listing, loaded, elapsed, samples, figures };
    report::print_and_write(outcome)?;
    ordered.discard()?;
    chosen(args, &setup);
    Ok(0)
}

/// Prints the state that a stop or an error left behind while the source was read. Returns the exit code of a stop, or the
/// error.
fn not_read(args: &LoadArgs, setup: &Setup, stop: &Stop, error: anyhow::Error) -> Result<u8> {
    if Stopped::is_cause_of(&error) {
        tell!("stopped while the source was being read: {}", left_by_reading(args, setup)?);
        return Ok(stop.asked().unwrap_or(1));
    }
    if spilled_records(&setup.work.path).is_some() {
        tell!("once the cause below is gone, {}", args.way_on());
    }
    Err(error)
}

/// Finds the mistakes that [`run_until`] finds before it takes the lock. Changes nothing.
pub(crate) fn check(args: &LoadArgs) -> Result<()> {
    check_dir(args)?;
    let work = paths::work_dir(&args.dir, args.work_dir.as_deref(), ".work", &args.source)?;
    let (args, source) = with_known(args, &work)?;
    let work = WorkDir { asked: args.asked(), ..work };
    setup(&args, source, work).map(|_| ())
}

/// Decides everything about the load before its source is read, and checks that it fits on the disk. `None`: the load
/// is complete already.
fn setup(args: &LoadArgs, source: Source, work: WorkDir) -> Result<Option<Setup>> {
    let setup = Setup::decide(args, source, work)?;
    if let (Some(setup), false) = (&setup, args.skip_disk_check) {
        disk::check(args, setup)?;
    }
    Ok(setup)
}

/// Locks the directory before the source is read, so that no other process fills it meanwhile.
fn hold(args: &LoadArgs, setup: &Setup) -> Result<Held> {
    let held = engines::hold(&args.dir).map_err(|error| running::explain(&args.dir, error))?;
    let as_before =
        check_directory(&args.dir, args.resume)? == setup.found && engines::inspect(&args.dir)?.is_none() == setup.new;
    ensure!(as_before, "another process has just filled the directory: dir={}: start again", args.dir.display());
    Ok(held)
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
    setup.source.stored().map_or(Ok(()), Stored::check)?;
    let mut reading = Progress::of_source(&setup.source, "reading")?.seen_by(&args.seen);
    let Setup { source, order, work, buffers, .. } = setup;
    // Progress through archives is in bytes, and begins with the first one again.
    if let (false, Some(spilled)) = (source.has_versions(), spilled_records(&work.path)) {
        reading.start_at(spilled);
    }
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
fn complete(args: &LoadArgs, state: State, source_id: u64, loaded: Loaded) -> Result<()> {
    State { pairs: Some(loaded.pairs), ..state }.write(&args.dir)?;
    if let Some(stored) = args.source.store.as_ref().filter(|stored| !stored.is_derived()) {
        engines::copy_contradiction(stored.dir(), &args.dir)?;
    }
    // The marker is written last, because the marker decides whether the load is complete.
    let seq = loaded.seq;
    let load = engines::Load { loaded: Some(loaded), ..load_of(LoadState::Complete, source_id) };
    Ok(engines::mark_load(&args.dir, load, seq)?)
}

/// Ends the load of a store's pairs: reads the new store, and marks it complete if both hold the same pairs.
fn compare(
    args: &LoadArgs,
    stored: &Stored,
    state: State,
    source_id: u64,
    engine: Measured,
    stop: &Stop,
    elapsed: Duration,
) -> Result<u8> {
    let started = Instant::now();
    let Some(written) = digest_until(&engine, stop, &|_| ())? else {
        close(args, engine)?;
        tell!("stopped in the comparison, after all pairs were committed; {}", args.way_on());
        return Ok(stop.asked().unwrap_or(1));
    };
    let took = (elapsed, started.elapsed());
    let (loaded, read) = stored.loaded()?;
    if read == written {
        complete(args, state, source_id, loaded)?;
    }
    let label = engine.label();
    // Close before the files are measured, because an open log has space allocated ahead.
    close(args, engine)?;
    let disk_bytes = probe::disk_bytes(&args.dir);
    Ok(copied::say_result(stored, label, disk_bytes, (&read, &written), took))
}

/// Prints the defaults that were chosen where the user did not choose.
fn chosen(args: &LoadArgs, setup: &Setup) {
    let engine = setup.options.engine;
    let is_default = args.order.is_none() && setup.order == default_order(engine);
    if is_default && setup.order == Order::Sorted {
        say!(
            "loaded in key order, which is faster and makes a smaller store: order=sorted engine={engine}: --order shuffled \
             loads in random order"
        );
    }
    if setup.new && args.engine.engine.is_none() {
        say!("{}", chosen_engine(engine));
    }
}

/// Says which engine was taken because the user named none.
fn chosen_engine(engine: EngineKind) -> String {
    let built: Vec<_> = engines::compiled().iter().map(|engine| engine.as_str()).collect();
    format!(
        "no --engine was given: engine={engine} of this build's {}: README.md, Engines, helps to choose another",
        built.join(", ")
    )
}
