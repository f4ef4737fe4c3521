//! The store that the service opens, and the check that it is the one of the configuration.
//!
//! Owns: the service's terms for a store's marker, and its entries in the marker. Must not: touch the directory before
//! the whole configuration is known to be right. Runs on the main thread, before any other thread is started.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use bytesize::ByteSize;
use engine_api::{Engine, ErrorKind};
use engines::{EngineOptions, Holds, LoadTerm, OpenMode, Terms};
use solana::{ChainCheckpoint, MapPhase};

use crate::failed::Failed;
use crate::ingest::extract::Extract;

/// Settings that decide which store is opened, and how.
#[derive(Clone, Copy, Debug)]
pub struct StoreSettings<'c> {
    pub dir: &'c Path,
    pub engine: &'c EngineOptions,
    /// Whether to make an empty store where there is none.
    pub create_empty: bool,
    /// Whether to load a store from an archive where there is none.
    pub create: bool,
    /// Whether a store is opened that is being brought to an archive's slot.
    pub heals: bool,
    /// The value taken from an account.
    pub extract: Extract,
    /// The operator's name for the chain.
    pub cluster: Option<&'c str>,
}

/// Returns the extraction that the marker of the store in `dir` names; `None` if it names none or there is no store.
///
/// # Errors
/// The marker cannot be read, or names an extraction that this version does not know.
pub(crate) fn extract_of(dir: &Path) -> Result<Option<Extract>> {
    let holds = engines::inspect(dir)?.map(|known| known.holds).unwrap_or_default();
    let Some(name) = holds.extract else { return Ok(None) };
    let extract = name.parse::<Extract>().with_context(|| {
        format!("the store holds extract={name}, which this version does not follow: dir={}", dir.display())
    })?;
    Ok(Some(extract))
}

/// Whether there is no store yet, or only a part of one, and the settings say to load it from an archive.
///
/// # Errors
/// The marker cannot be read.
pub(crate) fn awaits_load(settings: StoreSettings<'_>) -> Result<bool, Failed> {
    let is_missing = || Ok(engines::inspect(settings.dir)?.is_none_or(|known| known.is_loading()));
    if settings.create { is_missing() } else { Ok(false) }
}

/// Refuses a store that [`open`] would refuse. Changes nothing. A store that is still to be loaded is left to its load.
///
/// # Errors
/// There is no store and the configuration does not ask for an empty one; the store's files are gone; its marker
/// contradicts the configuration; its load has not finished; or its lock cannot be opened.
pub(crate) fn check(settings: StoreSettings<'_>) -> Result<(), Failed> {
    if awaits_load(settings)? {
        return Ok(());
    }
    let checked = engines::check(settings.dir, settings.engine, mode(settings), &terms(settings));
    checked.and_then(|()| engines::check_lock(settings.dir)).map_err(|error| explain(settings, error))
}

/// Opens the store read-only and closes it again, to find damage that only opening shows. Returns `false` if another
/// process has it open, `true` also if there is no store. Changes nothing.
///
/// # Errors
/// As [`open`], if there is a store.
pub(crate) fn look(settings: StoreSettings<'_>) -> Result<bool, Failed> {
    if engines::inspect(settings.dir)?.is_none() || awaits_load(settings)? {
        return Ok(true);
    }
    let memory = Some(ByteSize::b(engines::MEMORY_MIN));
    let engine = match engines::open_read_only(settings.dir, memory) {
        Err(error) if error.kind() == ErrorKind::Retry => return Ok(false),
        opened => opened.map_err(|error| explain(settings, error))?,
    };
    let checkpoint = engine.checkpoint()?;
    engine.close()?;
    refuse_part(&ChainCheckpoint::read(&checkpoint)?, settings.heals)?;
    Ok(true)
}

/// Refuses a store that holds only a part of the map. With `heals` a store in the middle of a heal is accepted, because
/// the service continues with it.
///
/// # Errors
/// [`ErrorKind::FixInput`] with the phase.
pub(crate) fn refuse_part(checkpoint: &ChainCheckpoint, heals: bool) -> engine_api::Result<()> {
    match checkpoint.phase {
        MapPhase::Healing { .. } if heals => Ok(()),
        _ => checkpoint.refuse_unless_whole(),
    }
}

/// Opens the store. A store whose marker names no extraction gets the configuration's, and keeps it.
///
/// # Errors
/// As [`check`]; another process has the store open; errors of the engine.
pub(crate) fn open(settings: StoreSettings<'_>) -> Result<Box<dyn Engine>, Failed> {
    let known = engines::inspect(settings.dir)?.map(|known| known.holds).unwrap_or_default();
    let opened = engines::open_on(settings.dir, settings.engine, mode(settings), &terms(settings));
    let engine = opened.map_err(|error| explain(settings, error))?;
    if known.extract.is_none() {
        let (dir, extract) = (settings.dir.display(), settings.extract.name());
        tracing::warn!(%dir, extract, "the store had no record of its extract: from now on it keeps this one, and any other is refused");
    }
    Ok(engine)
}

fn mode(settings: StoreSettings<'_>) -> OpenMode {
    if settings.create_empty { OpenMode::CreateOrOpen } else { OpenMode::Existing }
}

fn terms(settings: StoreSettings<'_>) -> Terms {
    let holds = Holds {
        extract: Some(settings.extract.name().to_owned()),
        programs: Some(settings.extract.programs().iter().map(|&program| program.to_owned()).collect()),
        cluster: settings.cluster.map(str::to_owned),
    };
    Terms { holds, load: LoadTerm::Finished }
}

/// Turns an opening's error into one that offers `--create-empty`, if there is no store at all.
fn explain(settings: StoreSettings<'_>, error: engine_api::Error) -> Failed {
    let missing = !settings.create_empty && matches!(engines::inspect(settings.dir), Ok(None));
    if missing {
        return Failed::wrong(anyhow!(
            "there is no store: dir={}: load one with bootstrap, have the service load one with --create, correct \
             the path, or begin with an empty map by --create-empty",
            settings.dir.display()
        ));
    }
    error.into()
}
