//! Everything about a load that is decided before its source is read: the source, its order, the engine's options, the
//! sizes of the buffers, the terms of the store.
//!
//! Owns: these decisions, and the refusal of options that the directory or its spill contradict. A load that is complete
//! already ends here. Must not: begin a load. Runs on the main thread.

use anyhow::{Result, anyhow};
use engine_api::Code;
use engines::{EngineKind, EngineOptions, OpenMode, Terms};

use crate::args::LoadArgs;
use crate::limits::{self, Buffers};
use crate::meaning::MeaningArgs;
use crate::order::WorkDir;
use crate::rank::Order;
use crate::resume::{self, Found, Known, check_directory};
use crate::source::{Source, Stored};
use crate::state::{State, is_complete};
use crate::wrong::{Wrong, options_for};

/// Everything about a load that is decided before its source is read.
pub(crate) struct Setup {
    pub(crate) source: Source,
    pub(crate) order: Order,
    pub(crate) options: EngineOptions,
    pub(crate) buffers: Buffers,
    pub(crate) work: WorkDir,
    pub(crate) mode: OpenMode,
    /// Terms for the store's marker, before the source's id is known.
    pub(crate) terms: Terms,
    /// Whether the store does not exist yet.
    pub(crate) new: bool,
    /// Progress of the load by its marker: [`Found::Complete`] only if its last commit is gone.
    pub(crate) found: Found,
}

impl Setup {
    /// Finds all mistakes that can be found before the source is read, because reading can take an hour. It leaves only
    /// the disk unchecked. `None`: the load is complete already.
    pub(crate) fn decide(args: &LoadArgs, source: Source, work: WorkDir) -> Result<Option<Self>> {
        let options = options_for(&args.dir, &args.engine)?;
        let (mode, terms) = (mode(args), terms(args, Some(&source)));
        let found = check_directory(&args.dir, args.resume)?;
        if !args.resume && is_complete(&args.dir)? == Some(true) {
            engines::check(&args.dir, &options, OpenMode::Existing, &Terms::default())?;
            let complete = anyhow!(
                "the directory already holds a complete load: dir={}: the same load with --resume does nothing, `verify` compares \
                 the store with a source; name another directory for another load",
                args.dir.display()
            );
            return Err(complete.context(Code::Directory));
        }
        engines::check(&args.dir, &options, mode, &terms)?;
        if found == Found::Complete && resume::end_complete(args, &source, &work)? {
            return Ok(None);
        }
        source.check_records_before(&args.source)?;
        let begun = if args.resume { State::read(&args.dir)? } else { None };
        let order = args.order.or(begun.and_then(|state| state.order)).unwrap_or(default_order(options.engine));
        args.refuse_unused(order)?;
        if args.resume {
            resume::refuse_other(args, &source, order)?;
        }
        let (options, buffers) = limits::divide(&options, order, source.memory_bytes())?;
        let buffers = buffers.with_sort_memory(args.sort_memory, &options)?;
        let new = engines::inspect(&args.dir)?.is_none();
        Ok(Some(Self { source, order, options, buffers, work, mode, terms, new, found }))
    }
}

/// Returns the source, and the options with its slot and extraction. An archive knows its slot; with --resume the
/// directory, or the spill before there is a store, knows options that are not given again. A program that runs the load
/// as its own part gives all of them each time.
pub(crate) fn with_known(args: &LoadArgs, work: &WorkDir) -> Result<(LoadArgs, Source)> {
    let known = if args.resume { Known::of(&args.dir, &work.path) } else { Known::default() };
    let meaning = MeaningArgs { extract: args.meaning.extract.or(known.extract), ..args.meaning.clone() };
    if args.resume && !known.is_begun && meaning.extract.is_none() && args.source.is_of_archives() {
        let dir = args.dir.display();
        return Err(Wrong::error(
            Code::Resume,
            format!(
                "there is nothing to resume, because no load was begun or nothing of it was kept: dir={dir}: leave --resume out \
             and say with --extract which value is taken from each account, such as --extract token-owner"
            ),
        ));
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

/// Finds the mistakes in the directory that do not depend on the source. Changes nothing.
pub(crate) fn check_dir(args: &LoadArgs) -> Result<()> {
    let options = options_for(&args.dir, &args.engine)?;
    engines::check(&args.dir, &options, mode(args), &terms(args, None))?;
    Ok(engines::check_lock(&args.dir)?)
}

/// Returns the order of a load that names none. In a B+tree each random insert costs a page, and leaves the pages half
/// empty. In strata sorted pairs go straight into the base, and nothing is left to merge.
pub(crate) fn default_order(engine: EngineKind) -> Order {
    if engine.descriptor().loads_sorted { Order::Sorted } else { Order::Shuffled }
}

/// How the store is opened.
fn mode(args: &LoadArgs) -> OpenMode {
    if args.resume { OpenMode::CreateOrOpen } else { OpenMode::Create }
}

/// The terms for the store's marker, before the source's id is known. A copy has the meaning of the store that it is of, and a
/// derived store one of its own.
fn terms(args: &LoadArgs, source: Option<&Source>) -> Terms {
    let of_store = source.and_then(Source::stored).map(Stored::holds);
    Terms { holds: of_store.unwrap_or_else(|| args.meaning.holds()), ..Terms::default() }
}
