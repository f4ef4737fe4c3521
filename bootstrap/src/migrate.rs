//! `bootstrap migrate`: copies the pairs and the checkpoint of one store into a new one, for instance of another
//! engine.
//!
//! Owns: the order of work on the two stores, resume, and the comparison at the end. Must not: write to the source
//! store, or finish while the two differ. Threads: `scan` reads the source a few chunks ahead; main writes.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytesize::ByteSize;
use engine_api::{Checkpoint, Code, Durability, Engine, ErrorKind, Key, Value};
use engines::{
    Digest, EngineArgs, EngineKind, Identity, Load, LoadState, LoadTerm, Loaded, OpenMode, Terms, source_id,
};
use solana::{ChainCheckpoint, MapPhase};

use crate::identity::hex;
use crate::limits::{self, Buffers, CHUNK_PAIRS};
use crate::out::{say, tell};
use crate::progress::Progress;
use crate::rank::Order;
use crate::resume::{Found, check_directory, refuse_part};
use crate::scan::{open_to_scan, scan_memory};
use crate::signal::Stop;
use crate::state::{State, is_complete, load_of};
use crate::wrong::{Wrong, options_for};

/// Takes a store over into a new one.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MigrateArgs {
    /// Directory of the store to read; no process may write to it, and nothing in it is changed
    #[arg(long, value_name = "DIR")]
    pub(crate) from_store: PathBuf,
    /// Engine of that store [default: that of its directory]
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(crate) from_engine: Option<EngineKind>,
    /// Memory for that engine [default: an eighth of the memory that this process may use]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub(crate) from_memory: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Directory of the new store: missing or empty, unless --resume
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Continue a migration of the same store that was stopped or killed
    #[arg(long)]
    pub(crate) resume: bool,
    /// Finish background work (RocksDB's compaction) before the comparison
    #[arg(long)]
    pub(crate) settle: bool,
    /// Start even if the disk looks too small
    #[arg(long)]
    pub(crate) skip_disk_check: bool,
}

/// Runs the migration. The exit code is 0 when both stores hold the same pairs, 1 when not, and 128 + signal when it
/// was asked to stop.
pub(crate) fn run(args: &MigrateArgs) -> Result<u8> {
    let stop = Stop::install()?;
    if check_directory(&args.dir, args.resume)? == Found::Complete {
        return end_complete(args);
    }
    let options = options_for(&args.dir, &args.engine)?;
    let (options, buffers) = limits::divide(&options, Order::Sorted, scan_memory(args.from_memory).as_u64())?;
    let (mut from, known) = open_source(args)?;
    engines::refuse_nested(&args.from_store, &args.dir)?;
    let origin = from.checkpoint()?;
    refuse_part(&args.from_store, &origin)?;
    let estimate = from.stats()?.pairs_estimate;
    if !args.skip_disk_check {
        let store_bytes = limits::store_bytes(options.engine, Order::Sorted, estimate);
        let store_left = store_bytes.saturating_sub(probe::disk_bytes(&args.dir));
        probe::check_disk(&args.dir, store_left.saturating_add(options.disk_reserve_bytes()))?;
    }
    let mode = if args.resume { OpenMode::CreateOrOpen } else { OpenMode::Create };
    let mut state = state(args, &*from, &origin, estimate)?;
    let id = source_id(state.source.as_bytes());
    state.source_id = hex(id);
    let terms = terms(&args.dir, &known, id)?;
    engines::check(&args.dir, &options, mode, &terms)?;
    check_source(args, known.engine, &mut *from)?;
    let to = engines::open_on(&args.dir, &options, mode, &terms)?;
    let begun = to.checkpoint()?;
    // The last commit takes over the source's own checkpoint. After it, only the comparison is left.
    let done = begun == origin && begun.seq > 0;
    // The migration's own checkpoints are always chain checkpoints, whatever the source's checkpoint is.
    let of_source = || ChainCheckpoint::read(&begun).is_ok_and(|begun| begun.source == id);
    ensure!(
        done || begun.seq == 0 || of_source(),
        "the migration was begun from another store, or from an earlier state of this one: dir={} from={}: remove the \
         new store and start over",
        args.dir.display(),
        state.source
    );
    engines::mark_load(&args.dir, load_of(LoadState::Loading, id), begun.seq)?;
    state.write(&args.dir)?;
    let skip = if done { u64::MAX } else { begun.seq };
    let migration = Migration { from: &*from, from_dir: &args.from_store, to: &*to, stop: &stop, id, buffers };
    let started = Instant::now();
    let read = migration.pairs(skip, estimate).with_context(|| {
        format!(
            "the new store is incomplete: dir={}: fix the cause and continue with --resume, or remove the store",
            args.dir.display()
        )
    })?;
    let Some(read) = read else {
        let done = format!("after {} pairs, all of them committed", to.checkpoint()?.seq);
        return stopped(to, &stop, &done);
    };
    to.begin()?.commit(&origin, Durability::Synced)?;
    if args.settle {
        to.settle()?;
    }
    let took = started.elapsed();
    let started = Instant::now();
    let label = to.label();
    let Some(written) = digest_until(&*to, &stop)? else {
        return stopped(to, &stop, "in the comparison, after all pairs were committed");
    };
    let took = (took, started.elapsed());
    refuse_other_content(&known, &origin, &read, &args.from_store)?;
    if read == written {
        complete(args, state, &known, origin.seq, id, &read)?;
    }
    from.close()?;
    // Close before the files are measured, because an open log has space allocated ahead.
    to.close()?;
    Ok(say_result(args, label, &read, &written, &origin, took))
}

/// Closes the new store of a migration that was asked to stop, and returns the exit code.
fn stopped(to: Box<dyn Engine>, stop: &Stop, done: &str) -> Result<u8> {
    to.close()?;
    tell!("stopped {done}; the same command with --resume continues");
    Ok(stop.asked().unwrap_or(1))
}

/// Returns the terms of the new store. One that is there already is marked only after it was found to be of this
/// migration.
fn terms(dir: &Path, known: &Identity, id: u64) -> Result<Terms> {
    let load = if engines::inspect(dir)?.is_none() { LoadTerm::Loading(hex(id)) } else { LoadTerm::Any };
    Ok(Terms { holds: known.holds.clone(), load })
}

/// Marks the new store complete. Keeps the slot of the load and the contradiction of the old one.
fn complete(args: &MigrateArgs, state: State, known: &Identity, seq: u64, id: u64, read: &Digest) -> Result<()> {
    let pairs = read.pairs();
    State { pairs: Some(pairs), ..state }.write(&args.dir)?;
    engines::copy_contradiction(&args.from_store, &args.dir)?;
    let loaded = Loaded { seq, pairs, digest: Some(read.to_string()), slot: known.loaded_slot() };
    Ok(engines::mark_load(&args.dir, Load { loaded: Some(loaded), ..load_of(LoadState::Complete, id) }, seq)?)
}

/// Refuses a source that is unchanged since its load and yet does not hold the loaded pairs. Engines without checksums
/// return wrong pairs without an error.
fn refuse_other_content(known: &Identity, origin: &Checkpoint, read: &Digest, dir: &Path) -> Result<()> {
    let loaded = known.loaded_at(origin.seq);
    if let Some(how) = loaded.and_then(|loaded| loaded.difference(read.pairs(), &read.to_string())) {
        bail!(
            "the store to read does not hold the pairs that were loaded: dir={0} {how}: `scrub --dir {0}` gives details; \
             the new store holds the same wrong pairs: remove it",
            dir.display()
        );
    }
    Ok(())
}

/// Ends a migration that finds the new store complete, if it was made from the store that is named now.
fn end_complete(args: &MigrateArgs) -> Result<u8> {
    let (state, dir) = (State::read(&args.dir)?, args.dir.display());
    let (is_of_this, note) = match &state {
        Some(state) => (state.source.starts_with(&source_dir(args)?), String::new()),
        None => is_source(args)?,
    };
    ensure!(
        is_of_this,
        "the store was not made from this one, or not from its present state: dir={dir} loaded={:?} asked_dir={}: name the \
         other, or another directory for this one",
        state.map_or("unknown".to_owned(), |state| state.source),
        args.from_store.display()
    );
    let pairs = state.and_then(|state| state.pairs).map_or("unknown".to_owned(), |pairs| pairs.to_string());
    tell!("the load is complete, there is nothing to resume: dir={dir} pairs={pairs}{note}");
    Ok(0)
}

/// Whether the new store's marker names the store to read, in the state that it has now. For a store without a state
/// file, as copies are. If the store to read does not open, it is not compared, and the remark says so.
fn is_source(args: &MigrateArgs) -> Result<(bool, String)> {
    let from = match open_source(args) {
        Ok((from, _)) => from,
        Err(error) => return Ok((true, format!(" (its source was not compared: {error:#})"))),
    };
    let source = state(args, &*from, &from.checkpoint()?, 0)?.source;
    from.close()?;
    let load = engines::inspect(&args.dir)?.and_then(|known| known.load);
    Ok((load.is_some_and(|load| load.source == hex(source_id(source.as_bytes()))), String::new()))
}

/// Returns the digest of a store's pairs; `None` when asked to stop.
fn digest_until(engine: &dyn Engine, stop: &Stop) -> Result<Option<Digest>> {
    let mut digest = Digest::default();
    engine.reader()?.scan(&mut |key, value| {
        digest.add(key, value);
        go_on(&digest, stop)
    })?;
    Ok(stop.asked().is_none().then_some(digest))
}

/// Breaks a scan that was asked to stop. Looks after each [`CHUNK_PAIRS`].
fn go_on(seen: &Digest, stop: &Stop) -> ControlFlow<()> {
    let stops = seen.pairs().is_multiple_of(CHUNK_PAIRS as u64) && stop.asked().is_some();
    if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Returns the beginning of the source's description, as the state file keeps it.
fn source_dir(args: &MigrateArgs) -> Result<String> {
    let dir = std::path::absolute(&args.from_store)
        .with_context(|| format!("cannot name dir={}", args.from_store.display()))?;
    Ok(format!("store dir={} engine=", dir.display()))
}

/// Opens the store to read, and returns it with the identity from its marker.
fn open_source(args: &MigrateArgs) -> Result<(Box<dyn Engine>, Identity)> {
    let dir = &args.from_store;
    let identity = engines::inspect(dir)?
        .with_context(|| format!("there is no store: dir={}: correct --from-store", dir.display()))?;
    let held = identity.engine;
    if let Some(asked) = args.from_engine.filter(|asked| *asked != held) {
        return Err(Wrong::error(
            Code::Engine,
            format!(
                "the store to read has another engine: dir={} engine={held} from_engine={asked}: leave --from-engine out",
                dir.display()
            ),
        ));
    }
    if is_complete(dir)? == Some(false) {
        let source = State::read(dir)?.map_or("unknown".to_owned(), |state| state.source);
        bail!(
            "the load of the store to read is not complete: dir={} from={source}: finish that load first",
            dir.display()
        );
    }
    // The list of lost pairs is not copied, so the new store would look whole.
    let lost = engines::lost(dir)?;
    ensure!(
        lost == 0,
        "a repair of the store to read has lost a part of it: dir={0} lost={lost}: {0}/data/LOST lists the losses: restore \
         a copy, or load its source anew; if a comparison finds nothing missing, remove that file",
        dir.display()
    );
    Ok((open_to_scan(dir, args.from_engine, args.from_memory)?, identity))
}

/// Checks the source store's checksums first, if its engine does not check them while reading.
fn check_source(args: &MigrateArgs, engine: EngineKind, from: &mut dyn Engine) -> Result<()> {
    if engine.descriptor().has_checksums && !engine.descriptor().checks_reads {
        tell!("the store to read is checked first, because engine={engine} compares no checksums while it reads");
    }
    engines::check_before_copy(engine, from).map_err(|error| damaged(&args.from_store, error))
}

/// Names the source store in an error of damage, so that nobody looks for it in the new store.
fn damaged(dir: &Path, error: engine_api::Error) -> anyhow::Error {
    let is_damage = error.kind() == ErrorKind::DataDamaged;
    let error = anyhow::Error::from(error);
    if !is_damage {
        return error;
    }
    let dir = dir.display();
    error.context(format!("the store to read is damaged: dir={dir}: `scrub --dir {dir}` gives details"))
}

/// Builds the state for the new store's directory. The source's description includes its checkpoint, so that a resume
/// is refused when the source has moved on.
fn state(args: &MigrateArgs, from: &dyn Engine, origin: &Checkpoint, estimate: u64) -> Result<State> {
    let source = format!("{}{} {}", source_dir(args)?, from.label(), solana::shown(origin));
    Ok(State { source, records: estimate, ..State::default() })
}

struct Migration<'e> {
    from: &'e dyn Engine,
    from_dir: &'e Path,
    to: &'e dyn Engine,
    stop: &'e Stop,
    /// Source id in the checkpoints that are written before the last one.
    id: u64,
    buffers: Buffers,
}

impl Migration<'_> {
    /// Writes all pairs except the first `skip`, which the new store already holds, and returns the digest of all
    /// pairs. `None` when asked to stop.
    fn pairs(&self, skip: u64, estimate: u64) -> Result<Option<Digest>> {
        std::thread::scope(|scope| {
            let (sender, chunks) = sync_channel(self.buffers.chunks_ahead);
            let scanner = std::thread::Builder::new()
                .name("scan".to_owned())
                .spawn_scoped(scope, || scan(self.from, skip, self.stop, sender))
                .context("cannot start the scanning thread")?;
            let mut progress = Progress::new(Some(estimate), self.to.label());
            let mut at = if skip == u64::MAX { 0 } else { skip };
            progress.start_at(at);
            let bulk_pairs = self.buffers.bulk_pairs;
            let mut bulk: Vec<(Key, Value)> = Vec::with_capacity(bulk_pairs);
            for chunk in &chunks {
                bulk.extend_from_slice(&chunk);
                if bulk.len() + CHUNK_PAIRS > bulk_pairs {
                    at = self.store(&mut bulk, at)?;
                    progress.set(at);
                }
                if self.stop.asked().is_some() {
                    return Ok(None);
                }
            }
            let read = scanner
                .join()
                .map_err(|_| anyhow!("the scanning thread panicked"))?
                .map_err(|error| damaged(self.from_dir, error))?;
            if self.stop.asked().is_some() {
                return Ok(None);
            }
            if !bulk.is_empty() {
                self.store(&mut bulk, at)?;
            }
            progress.clear();
            Ok(Some(read))
        })
    }

    /// Writes a chunk after the `at` pairs that the store holds, and returns the number of pairs after that.
    fn store(&self, pairs: &mut Vec<(Key, Value)>, at: u64) -> Result<u64> {
        let seq = at + pairs.len() as u64;
        let checkpoint = ChainCheckpoint { seq, source: self.id, phase: MapPhase::Loading, ..Default::default() };
        let Some(bulk) = self.to.bulk() else { bail!("engine={} has no path for sorted pairs", self.to.label()) };
        bulk.load_sorted(pairs, &checkpoint.write())?;
        pairs.clear();
        Ok(seq)
    }
}

/// Sends the pairs after the first `skip` to the receiver until it is gone or a stop is asked for. Returns the digest
/// of all pairs that were read.
fn scan(
    from: &dyn Engine,
    skip: u64,
    stop: &Stop,
    sender: SyncSender<Vec<(Key, Value)>>,
) -> engine_api::Result<Digest> {
    let mut read = Digest::default();
    let mut chunk = Vec::with_capacity(CHUNK_PAIRS);
    let (mut taken, mut last, mut ascends) = (true, None, true);
    from.reader()?.scan(&mut |key, value| {
        ascends = last.is_none_or(|last| last < *key);
        if !ascends {
            return ControlFlow::Break(());
        }
        last = Some(*key);
        read.add(key, value);
        if read.pairs() > skip {
            chunk.push((*key, *value));
        }
        if chunk.len() == CHUNK_PAIRS {
            taken = sender.send(std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK_PAIRS))).is_ok();
        }
        if taken { go_on(&read, stop) } else { ControlFlow::Break(()) }
    })?;
    if !ascends {
        return Err(engine_api::Error::new(
            ErrorKind::DataDamaged,
            format!("keys do not ascend: pair={}", read.pairs() + 1),
        ));
    }
    if taken && !chunk.is_empty() {
        // The receiver may have gone. It then reports its own error.
        sender.send(chunk).ok();
    }
    Ok(read)
}

/// Prints how the new store compares with the pairs read from the source, and returns the exit code. `took`: the time
/// to write the store, and the time to read it again.
fn say_result(
    args: &MigrateArgs,
    engine: &str,
    read: &Digest,
    written: &Digest,
    origin: &Checkpoint,
    took: (Duration, Duration),
) -> u8 {
    let (load_s, verify_s) = (took.0.as_secs_f64(), took.1.as_secs_f64());
    let (disk_bytes, pairs) = (probe::disk_bytes(&args.dir), written.pairs());
    say!("migrated: engine={engine} pairs={pairs} load_s={load_s:.1} verify_s={verify_s:.1} disk_bytes={disk_bytes}");
    say!("checkpoint {}", solana::shown_of_copy(origin));
    if read != written {
        say!("not equal: from_digest={read} digest={written}");
        return 1;
    }
    say!("equal: digest={written}");
    0
}
