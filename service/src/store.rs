//! The store that the service opens, and the check that it is the one of the configuration.
//!
//! Owns: the service's terms for a store's marker, and its entries in the marker. Must not: touch the directory before
//! the whole configuration is known to be right. Runs on the main thread, before any other thread is started.

mod settings;

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use bytesize::ByteSize;
use engine_api::{Checkpoint, Code, Engine, Error, ErrorKind};
use engines::{Holds, LoadTerm, OpenMode, Terms};
use solana::{ChainCheckpoint, MapPhase};

use crate::base::chain::SLOT_END;
use crate::base::failed::Failed;
use crate::derive;
use crate::feed::{self, FEED_DIR};
use crate::ingest::extract::Extract;
pub(crate) use settings::{EngineGiven, EngineSettings, EngineUseGiven, StoreGiven, StoreSettings, WarmUpArg};

/// All that decides which store is opened, and how.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'c> {
    pub settings: &'c StoreSettings,
    pub engine: &'c EngineSettings,
    /// The value taken from an account.
    pub extract: Extract,
    /// Whether the past is kept beside the map.
    pub keeps_history: bool,
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
pub(crate) fn awaits_load(opening: Opening<'_>) -> Result<bool, Failed> {
    let is_missing = || Ok(engines::inspect(&opening.settings.dir)?.is_none_or(|known| known.is_loading()));
    if opening.settings.create { is_missing() } else { Ok(false) }
}

/// Refuses a store that [`open`] would refuse. Changes nothing. A store that is still to be loaded is left to its load.
///
/// # Errors
/// There is no store and the configuration does not ask for an empty one; the store's files are gone; its marker
/// contradicts the configuration; its load has not finished; or its lock cannot be opened.
pub(crate) fn check(opening: Opening<'_>) -> Result<(), Failed> {
    if awaits_load(opening)? {
        return Ok(());
    }
    let checked = engines::check(&opening.settings.dir, &opening.engine.options(), mode(opening), &terms(opening));
    checked.and_then(|()| engines::check_lock(&opening.settings.dir)).map_err(|error| explain(opening, error))
}

/// Opens the store read-only and closes it again, to find damage that only opening shows. Returns `false` if another
/// process has it open, `true` also if there is no store. Changes nothing.
///
/// # Errors
/// As [`open`], if there is a store.
pub(crate) fn look(opening: Opening<'_>) -> Result<bool, Failed> {
    if engines::inspect(&opening.settings.dir)?.is_none() || awaits_load(opening)? {
        return Ok(true);
    }
    let memory = Some(ByteSize::b(engines::MEMORY_MIN));
    let engine = match engines::open_read_only(&opening.settings.dir, memory) {
        Err(error) if error.kind() == ErrorKind::Retry => return Ok(false),
        opened => opened.map_err(|error| explain(opening, error))?,
    };
    let checkpoint = engine.checkpoint()?;
    engine.close()?;
    refuse_lost(&opening.settings.dir, &checkpoint)?;
    refuse_part(&ChainCheckpoint::read(&checkpoint)?, opening.settings.heals())?;
    Ok(true)
}

/// Refuses a store that lacks commits which its feed's log holds. Whether the feed is kept does not matter: the log of an
/// earlier run proves the same.
///
/// # Errors
/// [`ErrorKind::FixInput`] with both sequence numbers; I/O errors of reading the log.
pub(crate) fn refuse_lost(dir: &Path, checkpoint: &Checkpoint) -> engine_api::Result<()> {
    feed::refuse_lost(&dir.join(FEED_DIR), checkpoint.seq)
}

/// Refuses a store that holds only a part of the map, or stands at a slot that no chain has. With `heals` a store in the
/// middle of a heal is accepted, because the service continues with it.
///
/// # Errors
/// [`ErrorKind::FixInput`] with the phase or the slot.
pub(crate) fn refuse_part(checkpoint: &ChainCheckpoint, heals: bool) -> engine_api::Result<()> {
    if let Some(slot) = checkpoint.slot.filter(|slot| *slot >= SLOT_END) {
        let why =
            format!("the store stands at slot={slot}, which no chain has: load a snapshot archive into a new store");
        return Err(Error::new(ErrorKind::FixInput, why));
    }
    match checkpoint.phase {
        MapPhase::Healing { .. } if heals => Ok(()),
        _ => checkpoint.refuse_unless_whole(),
    }
}

/// Opens the store. A store whose marker names no extraction gets the configuration's, and keeps it.
///
/// # Errors
/// As [`check`]; another process has the store open; the store has lost commits; errors of the engine.
pub(crate) fn open(opening: Opening<'_>) -> Result<Box<dyn Engine>, Failed> {
    let known = engines::inspect(&opening.settings.dir)?.map(|known| known.holds).unwrap_or_default();
    let accept = |checkpoint: &Checkpoint| refuse_lost(&opening.settings.dir, checkpoint);
    let (dir, mode, terms) = (&opening.settings.dir, mode(opening), terms(opening));
    let (options, _) = derive::divide(opening.engine.options(), dir, opening.keeps_history);
    let opened = engines::open_accepted(dir, &options, mode, &terms, &accept);
    let engine = opened.map_err(|error| explain(opening, error))?;
    if known.extract.is_none() {
        let (dir, extract) = (opening.settings.dir.display(), opening.extract.name());
        tracing::info!(%dir, extract, "the store records this extract from now on, and any other is refused");
    }
    Ok(engine)
}

fn mode(opening: Opening<'_>) -> OpenMode {
    if opening.settings.create_empty { OpenMode::CreateOrOpen } else { OpenMode::Existing }
}

fn terms(opening: Opening<'_>) -> Terms {
    let holds = Holds {
        extract: Some(opening.extract.name().to_owned()),
        programs: Some(opening.extract.programs().iter().map(|&program| program.to_owned()).collect()),
        cluster: opening.settings.cluster.clone(),
        derived: None,
    };
    Terms { holds, load: LoadTerm::Finished }
}

/// Turns an opening's error into one that offers `--create-empty`, if there is no store at all.
fn explain(opening: Opening<'_>, error: engine_api::Error) -> Failed {
    let missing = !opening.settings.create_empty && matches!(engines::inspect(&opening.settings.dir), Ok(None));
    if missing {
        Failed::wrong(anyhow!(self::missing(&opening.settings.dir)).context(Code::NoStore))
    } else {
        error.into()
    }
}

/// Describes a directory without a store.
pub(crate) fn missing(dir: &Path) -> String {
    format!(
        "there is no store: dir={}: load one with bootstrap, have the service load one with --create, correct the path, or \
         begin with an empty map by --create-empty",
        dir.display()
    )
}
