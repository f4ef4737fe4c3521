//! `bootstrap migrate`: the load of a new store whose source is another store, for instance of another engine.
//!
//! Owns: its options, the refusals of a store that must not be copied, and the end of such a load whose source is gone.
//! Must not: load; `load` does. Runs on the main thread.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use bytesize::ByteSize;
use engine_api::Code;
use engines::{EngineArgs, EngineKind};

use crate::args::LoadArgs;
use crate::load;
use crate::out::tell;
use crate::rank::Order;
use crate::resume::{check_directory, refuse_part, settle};
use crate::scan::{open_to_scan, scan_memory};
use crate::signal::Stop;
use crate::source::{SourceArgs, Stored};
use crate::state::{State, is_complete};
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
    // Wrong options are found before a store is opened.
    let wanted = options_for(&args.dir, &args.engine)?;
    let stored = match open(&args.from_store, args.from_engine, args.from_memory) {
        Err(error) if args.resume && is_complete(&args.dir)? == Some(true) => return end_complete(args, error),
        stored => stored?,
    };
    engines::refuse_nested(&args.from_store, &args.dir)?;
    let source = SourceArgs { store: Some(stored), ..SourceArgs::default() };
    // A new store of the same engine keeps the options of the old one, such as RocksDB's filter.
    let is_same = engines::inspect(&args.from_store)?.is_some_and(|known| known.engine == wanted.engine);
    let engine =
        if is_same { EngineArgs::from(&options_for(&args.from_store, &args.engine)?) } else { args.engine.clone() };
    let load = LoadArgs {
        engine,
        dir: args.dir.clone(),
        source,
        order: Some(Order::Sorted),
        resume: args.resume,
        settle: args.settle,
        skip_disk_check: args.skip_disk_check,
        ..LoadArgs::default()
    };
    load::run_until(&load, &stop)
}

/// Ends a migration that finds the new store complete, and the store to read closed with this error. The file of the
/// load must name that store, if there is one.
fn end_complete(args: &MigrateArgs, error: Error) -> Result<u8> {
    // A repair may have lost a part of it since.
    check_directory(&args.dir, true)?;
    let state = State::read(&args.dir)?;
    let place = Stored::place(&args.from_store)?;
    ensure!(state.as_ref().is_none_or(|state| state.source.starts_with(&place)), error);
    let pairs = state.and_then(|state| state.pairs).map_or("unknown".to_owned(), |pairs| pairs.to_string());
    tell!(
        "the load is complete, there is nothing to resume: dir={} pairs={pairs} (its source was not compared: {error:#})",
        args.dir.display()
    );
    if args.settle {
        settle(&args.dir, &args.engine)?;
    }
    Ok(0)
}

/// Opens the store to read, which may be copied if its load is complete and it has lost nothing.
pub(crate) fn open(dir: &Path, from_engine: Option<EngineKind>, from_memory: Option<ByteSize>) -> Result<Stored> {
    let known = engines::inspect(dir)?
        .with_context(|| format!("there is no store: dir={}: correct the directory", dir.display()))
        .context(Code::NoStore)?;
    let held = known.engine;
    if let Some(asked) = from_engine.filter(|asked| *asked != held) {
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
        let open = anyhow!(
            "the load of the store to read is not complete: dir={} from={source}: finish that load first",
            dir.display()
        );
        return Err(open.context(Code::Loading));
    }
    // The list of lost pairs is not copied, so the new store would look whole.
    let lost = engines::lost(dir)?;
    ensure!(
        lost == 0,
        "a repair of the store to read has lost a part of it: dir={0} lost={lost}: {0}/data/LOST lists the losses: restore \
         a copy, or load its source anew; if a comparison finds nothing missing, remove that file",
        dir.display()
    );
    let engine = open_to_scan(dir, from_engine, from_memory)?;
    refuse_part(dir, &engine.checkpoint()?)?;
    Stored::new(dir, engine, known, scan_memory(from_memory).as_u64())
}
