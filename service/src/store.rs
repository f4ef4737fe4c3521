//! The store that the service opens, and the check that it is the one of the configuration.
//!
//! Owns: the service's terms for a store's marker, and its entries in the marker. Must not: touch the directory before
//! the whole configuration is known to be right. Runs on the main thread, before any other thread is started.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use bytesize::ByteSize;
use engine_api::{Engine, ErrorKind};
use engines::{Holds, LoadTerm, OpenMode, Terms};
use solana::ChainCheckpoint;

use crate::config::Config;
use crate::failed::Failed;
use crate::ingest::extract::Extract;

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

/// Refuses a store that [`open`] would refuse. Changes nothing.
///
/// # Errors
/// There is no store and the configuration does not ask for an empty one; the store's files are gone; its marker
/// contradicts the configuration; its load has not finished; or its lock cannot be opened.
pub(crate) fn check(config: &Config) -> Result<(), Failed> {
    let checked = engines::check(&config.dir, &config.engine, mode(config), &terms(config));
    checked.and_then(|()| engines::check_lock(&config.dir)).map_err(|error| explain(config, error))
}

/// Opens the store read-only and closes it again, to find damage that only opening shows. Returns `false` if another
/// process has it open, `true` also if there is no store. Changes nothing.
///
/// # Errors
/// As [`open`], if there is a store.
pub(crate) fn look(config: &Config) -> Result<bool, Failed> {
    if engines::inspect(&config.dir)?.is_none() {
        return Ok(true);
    }
    let memory = Some(ByteSize::b(engines::MEMORY_MIN));
    let engine = match engines::open_read_only(&config.dir, memory) {
        Err(error) if error.kind() == ErrorKind::Retry => return Ok(false),
        opened => opened.map_err(|error| explain(config, error))?,
    };
    let checkpoint = engine.checkpoint()?;
    engine.close()?;
    ChainCheckpoint::read(&checkpoint)?.refuse_unless_whole()?;
    Ok(true)
}

/// Opens the store. A store whose marker names no extraction gets the configuration's, and keeps it.
///
/// # Errors
/// As [`check`]; another process has the store open; errors of the engine.
pub(crate) fn open(config: &Config) -> Result<Box<dyn Engine>, Failed> {
    let known = engines::inspect(&config.dir)?.map(|known| known.holds).unwrap_or_default();
    let opened = engines::open_on(&config.dir, &config.engine, mode(config), &terms(config));
    let engine = opened.map_err(|error| explain(config, error))?;
    if known.extract.is_none() {
        let (dir, extract) = (config.dir.display(), config.extract.name());
        tracing::warn!(%dir, extract, "the store had no record of its extract: from now on it keeps this one, and any other is refused");
    }
    Ok(engine)
}

fn mode(config: &Config) -> OpenMode {
    if config.create_empty { OpenMode::CreateOrOpen } else { OpenMode::Existing }
}

fn terms(config: &Config) -> Terms {
    let holds = Holds {
        extract: Some(config.extract.name().to_owned()),
        programs: Some(config.extract.programs().iter().map(|&program| program.to_owned()).collect()),
        cluster: config.cluster.clone(),
    };
    Terms { holds, load: LoadTerm::Finished }
}

/// Turns an opening's error into one that offers `--create-empty`, if there is no store at all.
fn explain(config: &Config, error: engine_api::Error) -> Failed {
    let missing = !config.create_empty && matches!(engines::inspect(&config.dir), Ok(None));
    if missing {
        return Failed::wrong(anyhow!(
            "there is no store: dir={}: load one with bootstrap, correct the path, or begin with an empty map by \
             --create-empty",
            config.dir.display()
        ));
    }
    error.into()
}
