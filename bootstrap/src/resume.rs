//! Finds out how far the load in a directory has come, and whether the requested load is the same one.
//!
//! Owns: the rules of resuming, and the removal of files that a complete load has left. Two loads have the same source
//! if its content is the same, whatever the file is called. Must not: open a store for writing. Runs on the main
//! thread.

use std::fs;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use engine_api::{Checkpoint, Code, ErrorKind};
use engines::EngineArgs;
use solana::{ChainCheckpoint, Extract, MapPhase};

use crate::args::LoadArgs;
use crate::identity::{Content, Stamp, hex};
use crate::order::{Asked, Ordered, WorkDir, file_id, remove_spill, spilled_source};
use crate::out::tell;
use crate::rank::Order;
use crate::running;
use crate::scan::{open_to_scan, scan_memory};
use crate::signal::{self, Stopped};
use crate::source::{Archives, Source};
use crate::state::{State, is_complete};
use crate::wrong::Wrong;

/// Progress of the load in a directory.
#[derive(PartialEq, Eq)]
pub(crate) enum Found {
    /// No load yet, or a part of one.
    Open,
    /// A load that is complete.
    Complete,
}

/// Options of a load that its directories know, so that they need not be given again.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) extract: Option<Extract>,
    /// Whether there is a store, or a spill of one.
    pub(crate) is_begun: bool,
    state: Option<State>,
    /// The spill's source as messages name it, and the options of its load.
    spilled: Option<(String, Asked)>,
    has_store: bool,
}

impl Known {
    /// Takes the extraction from the marker of the store in `dir`, or from the spill in `work` before there is a store.
    /// A file that cannot be read counts as missing here, because a later step refuses it with the way out.
    pub(crate) fn of(dir: &Path, work: &Path) -> Self {
        // A marker that cannot be read still shows that there is a store.
        let (marker, spilled) = (engines::inspect(dir), spilled_source(work));
        let has_store = !matches!(marker, Ok(None));
        let marked = marker.ok().flatten().and_then(|known| known.holds.extract);
        let marked = marked.and_then(|name| name.parse().ok());
        let extract = marked.or_else(|| Archives::extract_of(&spilled.as_ref()?.0));
        let (is_begun, state) = (spilled.is_some() || has_store, State::read(dir).ok().flatten());
        Self { extract, is_begun, state, spilled, has_store }
    }

    /// Puts the options of the load that was begun into `args`, as long as there is no store, which knows them itself.
    pub(crate) fn fill(&self, args: &mut LoadArgs) {
        if let (Some((_, asked)), false) = (&self.spilled, self.has_store) {
            args.fill(asked);
        }
    }

    /// Returns the slot of the load that was begun. `None` if `source` is called otherwise than the source of that
    /// load, because another source may be of another slot.
    pub(crate) fn slot_of(&self, source: &Source) -> Option<u64> {
        let of_state = self.state.as_ref().map(|state| (&state.source, state.slot));
        let of_spill = self.spilled.as_ref().map(|(source, asked)| (source, asked.slot));
        let (words, slot) = of_state.or(of_spill)?;
        let mut same = source.clone();
        let slot = same.fix_slot(slot).ok()?;
        slot.filter(|_| same.to_string() == *words)
    }

    /// Refuses to leave out the incremental archive of the load that was begun, because its accounts would be as of an
    /// older slot.
    ///
    /// # Errors
    /// [`Wrong`], naming the archive.
    pub(crate) fn refuse_without_incremental(&self, source: &Source, work: &WorkDir) -> Result<()> {
        let (Source::Archives(archives), Some((words, _))) = (source, &self.spilled) else { return Ok(()) };
        let Some(shown) = archives.incremental_left_out(words) else { return Ok(()) };
        Err(Wrong::error(
            Code::Resume,
            format!(
                "the load was begun with an incremental archive: incremental={shown}: give it again with --incremental, or \
             remove dir={} to load the full archive alone",
                work.path.display()
            ),
        ))
    }
}

/// Refuses early, before the source is read, a directory that would be refused later. A complete load needs no
/// resuming, and that is no failure: a service manager may start the same command at each boot.
pub(crate) fn check_directory(dir: &Path, resume: bool) -> Result<Found> {
    match (resume, is_complete(dir)?) {
        (false, Some(false)) => {
            // This process may hold the directory's lock itself by now.
            let other = running::find(dir)?.filter(|running| running.pid != std::process::id().to_string());
            Err(other.map_or_else(|| interrupted(dir), |running| running.refusal(dir)))
        }
        (true, Some(is_complete)) => {
            // The checkpoint of a load that was interrupted counts the lost pairs too, so nothing would load them
            // again.
            refuse_lost(dir)?;
            Ok(if is_complete { Found::Complete } else { Found::Open })
        }
        _ => Ok(Found::Open),
    }
}

fn interrupted(dir: &Path) -> Error {
    anyhow!(
        "the directory holds a load that was interrupted: dir={}: continue with --resume, or remove the directory",
        dir.display()
    )
    .context(Code::Loading)
}

/// Refuses to continue a load, or to call it complete, after a repair has lost a part of it.
fn refuse_lost(dir: &Path) -> Result<()> {
    let lost = engines::lost(dir)?;
    ensure!(
        lost == 0,
        "a repair of this store has lost a part of its load: dir={} lost={lost}: remove the directory and load again, or \
         restore a snapshot",
        dir.display()
    );
    Ok(())
}

/// Opens the store of a complete load briefly to see whether the engine still accepts it, and returns its checkpoint.
/// `None`: another process has it open.
fn look(dir: &Path) -> Result<Option<Checkpoint>> {
    let opened = engines::open_read_only(dir, Some(scan_memory(None)));
    let looked = opened.and_then(|engine| {
        let checkpoint = engine.checkpoint()?;
        engine.close()?;
        Ok(checkpoint)
    });
    match looked {
        Ok(checkpoint) => Ok(Some(checkpoint)),
        // Most likely a service has it open.
        Err(error) if error.kind() == ErrorKind::Retry => Ok(None),
        Err(error) => Err(error)
            .with_context(|| format!("the load is complete, but its store cannot be opened: dir={}", dir.display())),
    }
}

/// Returns the number of pairs that a load has committed to the store in `dir`; 0 if there is no store.
///
/// # Errors
/// A store that does not open, naming the directory.
pub(crate) fn stored_pairs(dir: &Path) -> Result<u64> {
    // A marker without a seq is older than the engine's files.
    if engines::inspect(dir)?.and_then(|known| known.seq).is_none() {
        return Ok(0);
    }
    let engine = open_to_scan(dir, None, None)?;
    let seq = engine.checkpoint()?.seq;
    engine.close()?;
    Ok(seq)
}

/// Refuses a store whose marker says that the load is complete, while its checkpoint says that it is not: the last
/// commit is gone.
///
/// # Errors
/// `DataDamaged`, naming the directory, with the way out.
pub(crate) fn refuse_part(dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
    if !is_part(checkpoint) || is_complete(dir)? != Some(true) {
        return Ok(());
    }
    // A load does not go on after a repair has lost a part of its pairs.
    let again = match engines::lost(dir)? {
        0 => "give the load's command with --resume, which loads the missing rest",
        _ => "remove the directory and load again",
    };
    let text = format!(
        "the load of this store was complete, but its last commit is gone: dir={} phase=loading",
        dir.display()
    );
    let way_out = format!("restore a snapshot, or {again}");
    Err(engine_api::Error::new(ErrorKind::DataDamaged, text).with_way_out(&way_out).into())
}

fn is_part(checkpoint: &Checkpoint) -> bool {
    ChainCheckpoint::read(checkpoint).is_ok_and(|found| found.phase == MapPhase::Loading)
}

/// Ends a load whose store is complete already. Compares the requested source with the loaded one, and removes the
/// spill of a process that was killed at its very end. Returns `false` if the store lacks the load's last commit, so
/// that the load has to go on.
///
/// # Errors
/// A store that was loaded from another source or as of another slot, with the way out; errors of reading the source.
pub(crate) fn end_complete(args: &LoadArgs, source: &Source, work: &WorkDir) -> Result<bool> {
    let stored = look(&args.dir)?;
    if stored.as_ref().is_some_and(is_part) {
        tell!("the load was complete, but its last commit is gone: it goes on: dir={}", args.dir.display());
        return Ok(false);
    }
    let slot = stored.map(|checkpoint| slot_as_loaded(&args.dir, &checkpoint)).transpose()?.flatten();
    // The slot in the store's checkpoint takes precedence over the slot in the state file.
    let state = State::read(&args.dir)?.map(|state| State { slot: slot.unwrap_or(state.slot), ..state });
    let note = match &state {
        Some(state) => compare(args, source, state)?,
        None => compare_by_number(args, source, slot)?,
    };
    let of = state.as_ref().map(|state| state.source.as_str());
    if let Some(removed) = remove_spill(work, of)? {
        tell!("the load is complete, and its spill was removed: dir={} files={removed}", work.path.display());
    }
    let pairs = state.as_ref().and_then(|state| state.pairs).map_or("unknown".to_owned(), |pairs| pairs.to_string());
    tell!("the load is complete, there is nothing to resume: dir={} pairs={pairs}{note}", args.dir.display());
    let unused = unused(args, state.as_ref())?;
    if !unused.is_empty() {
        tell!("options without effect, because the load is complete: {}", unused.join(", "));
    }
    if args.settle {
        settle(&args.dir, &args.engine)?;
    }
    Ok(true)
}

/// Merges everything that a complete load, and changes after it, have left unmerged.
pub(crate) fn settle(dir: &Path, engine: &EngineArgs) -> Result<()> {
    let failed = || format!("cannot settle the store: dir={}", dir.display());
    let engine = engines::open_existing(dir, engine.memory).with_context(failed)?;
    tell!("settling");
    engine.settle().with_context(failed)?;
    engine.close().with_context(failed)?;
    tell!("settled: dir={}", dir.display());
    Ok(())
}

/// Returns the slot in the store's checkpoint, while the store is as the load left it; `None` once it has moved on.
fn slot_as_loaded(dir: &Path, checkpoint: &Checkpoint) -> Result<Option<Option<u64>>> {
    let known = engines::inspect(dir)?;
    let is_as_loaded = known.is_some_and(|known| known.loaded_at(checkpoint.seq).is_some());
    Ok(ChainCheckpoint::read(checkpoint).ok().filter(|_| is_as_loaded).map(|stored| stored.slot))
}

/// Lists the requested options that do not apply, because the load is complete.
fn unused(args: &LoadArgs, state: Option<&State>) -> Result<Vec<String>> {
    let mut unused = Vec::new();
    let known = engines::inspect(&args.dir)?;
    let (engine, holds) = (&args.engine, args.meaning.holds());
    if let Some(known) = known {
        for (name, value) in engine.options() {
            if let Some(held) = known.options.get(&name).filter(|held| **held != value) {
                unused.push(format!("{} {value} (the store has {held})", engines::flag(&name)));
            }
        }
        let meanings =
            [("extract", holds.extract, known.holds.extract), ("cluster", holds.cluster, known.holds.cluster)];
        for (name, asked, held) in meanings {
            if let (Some(asked), None) = (asked, held) {
                unused.push(format!("--{name} {asked} (the store does not record it; the first service will)"));
            }
        }
    }
    let loaded = state.and_then(|state| state.order);
    if let (Some(asked), Some(loaded)) = (args.order.filter(|asked| Some(*asked) != loaded), loaded) {
        unused.push(format!("--order {} (it was loaded {})", asked.name(), loaded.name()));
    }
    let asked = [("--report", args.report.is_some()), ("--hlog", args.hlog.is_some())];
    unused.extend(asked.into_iter().filter(|(_, asked)| *asked).map(|(name, _)| name.to_owned()));
    Ok(unused)
}

/// Number of records between two checks for a signal, far fewer than are read in a second.
const LOOK_EVERY_RECORDS: u64 = 1 << 16;

/// Reads all of the source, for its digest.
///
/// # Errors
/// [`Stopped`] after a signal; errors of reading the source.
fn read_content(args: &LoadArgs, source: &Source) -> Result<Content> {
    let mut read = Content::new(source.has_versions());
    source.for_each(&mut |record| {
        read.add(&record);
        ensure!(!read.records().is_multiple_of(LOOK_EVERY_RECORDS) || !signal::is_asked(), Stopped);
        Ok(())
    })?;
    args.source.check_records(read.records())?;
    Ok(read)
}

/// How the load of a store differs from the requested one.
enum Differs {
    /// Another source, and the figures that show it.
    Source(String),
    /// Another slot than this one of the load.
    Slot(Option<u64>),
    Order {
        loaded: Order,
        asked: Order,
    },
}

impl Differs {
    /// Builds the error for a store that holds another load, of a source that is known by the file of the load. It
    /// lasts, because the same command would fail each time.
    fn error(&self, args: &LoadArgs, known: Option<&State>, source: &Source) -> Error {
        let shown = |slot: Option<u64>| slot.map_or("none".to_owned(), |slot| slot.to_string());
        let (code, what, how) = match self {
            Self::Source(how) => (Code::InputChanged, "of another source", how.clone()),
            Self::Slot(loaded) => {
                let how = format!("loaded_slot={} asked_slot={}", shown(*loaded), shown(args.slot));
                (Code::Resume, "as of another slot", how)
            }
            Self::Order { loaded, asked } => {
                let how = format!("loaded_order={} asked_order={}", loaded.name(), asked.name());
                (Code::Resume, "in another order", how)
            }
        };
        let text = format!(
            "the store holds a load {what}: dir={} loaded={:?} asked={:?} {how}: name the source that was loaded, name \
             another directory for this one, or remove the directory and start again",
            args.dir.display(),
            known.map_or("unknown", |known| &known.source),
            source.to_string()
        );
        engine_api::Error::wrong(code, text).into()
    }
}

/// Returns the difference between the loaded source and the requested one that is certain before it is read. A complete
/// load may have been of an earlier state of a store, and its slot need not be given again. `stamp`: that of the source.
fn difference(
    args: &LoadArgs,
    source: &Source,
    stamp: Option<Stamp>,
    known: &State,
    is_complete: bool,
) -> Option<Differs> {
    let was_store = source.stored().filter(|_| is_complete).is_some_and(|stored| stored.was(&known.source));
    let is_named = known.source == source.to_string() || was_store;
    // Another extraction from an archive is another source. Synthetic pairs and stores are known by their words alone.
    let by_words = known.content.is_none() || source.has_versions();
    if known.content.is_some() && source.format().is_none() || by_words && !is_named {
        return Some(Differs::Source(String::new()));
    }
    let is_given = !is_complete || args.slot.is_some();
    if is_given && known.order.is_some() && known.slot != args.slot {
        return Some(Differs::Slot(known.slot));
    }
    let (loaded, now) = known.stamp.zip(stamp).filter(|(loaded, now)| loaded.bytes != now.bytes)?;
    Some(Differs::Source(format!("loaded_bytes={} bytes={}", loaded.bytes, now.bytes)))
}

/// Compares the source with the loaded one when the state file is gone: by the source id in the marker, and by the
/// `slot` if it is known. Returns a remark for the final line.
fn compare_by_number(args: &LoadArgs, source: &Source, slot: Option<Option<u64>>) -> Result<&'static str> {
    let Some(load) = engines::inspect(&args.dir)?.and_then(|known| known.load) else {
        return Ok(" (its source is not known, so it was not compared)");
    };
    let mut is_same = hex(engines::source_id(source.to_string().as_bytes())) == load.source;
    if !is_same && source.stored().is_none() {
        tell!("the load's own file is gone; the source is read, to compare it with the loaded pairs: {source}");
        let read = read_content(args, source)?;
        let by_order = |order| hex(file_id(read.digest(), order, args.source.seed));
        is_same = [Order::Sorted, Order::Shuffled].map(by_order).contains(&load.source);
    }
    if !is_same {
        let how = format!("loaded_number={}, or the same source with another --seed", load.source);
        return Err(Differs::Source(how).error(args, None, source));
    }
    let Some(slot) = slot else {
        return Ok(" (the load's own file is gone: the source is the same, the slot was not compared)");
    };
    if args.slot.is_some() && args.slot != slot {
        return Err(Differs::Slot(slot).error(args, None, source));
    }
    Ok(" (the load's own file is gone: the source is the same)")
}

/// Compares the source with the loaded one by the state file. Returns a remark for the final line if they could not be
/// compared.
fn compare(args: &LoadArgs, source: &Source, known: &State) -> Result<&'static str> {
    args.source.check_records(known.records)?;
    let other = |differs: Differs| differs.error(args, Some(known), source);
    let files = source.files();
    let is_gone = |path: &PathBuf| matches!(fs::metadata(path), Err(error) if error.kind() == Io::NotFound);
    let is_named = known.source == source.to_string();
    let is_gone = is_named && files.as_ref().is_some_and(|files| files.iter().any(is_gone));
    let stamp = if is_gone { None } else { Stamp::of(source)? };
    if let Some(differs) = difference(args, source, stamp, known, true) {
        return Err(other(differs));
    }
    if is_gone {
        return Ok(" (its source is gone, so it was not compared)");
    }
    // Archives that would have to be downloaded again are known by their words alone.
    let (Some(content), false) = (&known.content, source.has_versions() && files.is_none()) else { return Ok("") };
    if is_named && stamp.is_some() && known.stamp == stamp {
        return Ok("");
    }
    tell!("the source is read, to compare it with the loaded pairs: {source}");
    let digest = hex(read_content(args, source)?.digest());
    if digest != *content {
        return Err(other(Differs::Source(format!("loaded_content={content} content={digest}"))));
    }
    // Remember the file's stamp, so that the next start need not read the file again.
    if let Err(error) = (State { source: source.to_string(), stamp, ..known.clone() }).write(&args.dir) {
        tell!(
            "the next start will read the source again, because the result of this reading cannot be \
             remembered: {error:#}"
        );
    }
    Ok("")
}

/// Refuses, before a source is read for hours, a source that certainly differs from the pairs in the store.
///
/// # Errors
/// Another order, slot, size or kind of source than the loaded one, with the way out; I/O errors of reading the state
/// file or the source's metadata.
pub(crate) fn refuse_other(args: &LoadArgs, source: &Source, order: Order) -> Result<()> {
    let Some(known) = State::read(&args.dir)? else { return Ok(()) };
    let another_order = known.order.filter(|loaded| *loaded != order);
    let another_order = another_order.map(|loaded| Differs::Order { loaded, asked: order });
    let differs = difference(args, source, Stamp::of(source)?, &known, false).or(another_order);
    let Some(differs) = differs else { return Ok(()) };
    // If the store cannot be opened now, opening it for the load reports the reason.
    match stored_pairs(&args.dir) {
        Ok(0) | Err(_) => Ok(()),
        Ok(_) => Err(differs.error(args, Some(&known), source)),
    }
}

/// Builds the state file's content for this load.
///
/// # Errors
/// A store that holds pairs of another source, in another order, or as of another slot.
pub(crate) fn state(
    args: &LoadArgs,
    source: &Source,
    order: Order,
    ordered: &Ordered,
    begun: &ChainCheckpoint,
) -> Result<State> {
    let known = State::read(&args.dir)?.filter(|_| begun.seq > 0);
    if begun.seq > 0 && begun.source != ordered.source_id {
        let other = if order == Order::Sorted { Order::Shuffled } else { Order::Sorted };
        let is_other = ordered.content.is_some_and(|content| file_id(content, other, args.source.seed) == begun.source);
        let (dir, seq, name, number) = (args.dir.display(), begun.seq, other.name(), hex(begun.source));
        // In a copy of a store without a state file, only the source id shows this.
        ensure!(!is_other, "the load was begun in another order: dir={dir} loaded_pairs={seq}: add --order {name}");
        let how = format!("loaded_pairs={seq} loaded_number={number}, or the same source with another --seed");
        return Err(Differs::Source(how).error(args, known.as_ref(), source));
    }
    if let Some(known) = known.filter(|known| known.order.is_some() && known.slot != args.slot) {
        return Err(Differs::Slot(known.slot).error(args, Some(&known), source));
    }
    Ok(State {
        source: source.to_string(),
        source_id: hex(ordered.source_id),
        records: ordered.records,
        pairs: None,
        slot: args.slot,
        order: Some(order),
        content: source.format().and(ordered.content).map(hex),
        stamp: ordered.stamp,
        listing: ordered.listing,
    })
}
