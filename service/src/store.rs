//! The store that the service opens: whether it is the one that the configuration speaks of.
//!
//! Owns: what the service asks of a store's marker and what it leaves there. Must not: touch the directory before all of
//! the configuration is known to be right. Runs on the main thread, before any other is started.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use bytesize::ByteSize;
use clap::ValueEnum as _;
use engine_api::{Engine, ErrorKind};
use engines::{Holds, LoadTerm, OpenMode, Terms};
use solana::ChainCheckpoint;

use crate::config::Config;
use crate::failed::Failed;
use crate::ingest::extract::Extract;

/// What the store in `dir` says that its pairs mean; `None` where it says nothing or there is none.
///
/// # Errors
/// The marker cannot be read, or names an extraction that this version does not know.
pub(crate) fn extract_of(dir: &Path) -> Result<Option<Extract>> {
    let holds = engines::inspect(dir)?.map(|known| known.holds).unwrap_or_default();
    let Some(name) = holds.extract else { return Ok(None) };
    let known = Extract::from_str(&name, false);
    let extract = known.map_err(anyhow::Error::msg).with_context(|| {
        format!("the store holds extract={name}, which this version does not follow: dir={}", dir.display())
    })?;
    Ok(Some(extract))
}

/// Refuses what opening the store would refuse. Changes nothing.
///
/// # Errors
/// There is no store and none is wanted, its files are gone, it holds something else than the configuration says, its load
/// has not finished, or its lock cannot be opened.
pub(crate) fn check(config: &Config) -> Result<(), Failed> {
    let checked = engines::check(&config.dir, &config.engine, mode(config), &terms(config));
    checked.and_then(|()| engines::check_lock(&config.dir)).map_err(|error| explain(config, error))
}

/// Opens the store for reading alone and closes it again, so that damage is found that only an opening meets; `false` where
/// another process has it open. Changes nothing.
///
/// # Errors
/// As those of [`open`], where a store is there.
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

/// Opens the store. One that did not know what its pairs mean is told, and keeps it.
///
/// # Errors
/// See [`check`]; another process has it open; the engine's own.
pub(crate) fn open(config: &Config) -> Result<Box<dyn Engine>, Failed> {
    let known = engines::inspect(&config.dir)?.map(|known| known.holds).unwrap_or_default();
    let opened = engines::open_on(&config.dir, &config.engine, mode(config), &terms(config));
    let engine = opened.map_err(|error| explain(config, error))?;
    if known.extract.is_none() {
        let (dir, extract) = (config.dir.display(), config.extract.name());
        tracing::warn!(%dir, extract, "the store did not say what its pairs mean: from now on it holds this, and another extract is refused");
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

/// Where there is no store at all, an empty one may be what is wanted.
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
