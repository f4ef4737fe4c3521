//! The load of a snapshot archive as a part of another program: `service --create`.
//!
//! Owns: the defaults of such a load, which always continues one that was interrupted. Must not: take over signals; the
//! caller does. Threads: see the crate.

use std::path::Path;

use anyhow::{Result, bail};
use engines::{EngineArgs, EngineOptions};
use solana::Extract;
use solana::archive::is_url;

use crate::args::LoadArgs;
use crate::load;
use crate::meaning::MeaningArgs;
use crate::seen::Seen;
use crate::setup::check_dir;
use crate::signal::Stop;
use crate::source::{Archives, SourceArgs};

/// A store that is to be made from archives.
#[derive(Clone, Copy, Debug)]
pub struct NewStore<'a> {
    /// Directory of the store: missing, empty, or with an interrupted load of the same archives.
    pub dir: &'a Path,
    pub engine: &'a EngineOptions,
    /// The full archive: a file, an unpacked directory, or an http(s) URL.
    pub archive: &'a Path,
    /// An incremental archive on top of the full one.
    pub incremental: Option<&'a Path>,
    /// The value taken from an account.
    pub extract: Extract,
    /// The operator's name for the chain.
    pub cluster: Option<&'a str>,
    /// Bytes that the caller may take in `dir` during the load, which the check of the disk adds.
    pub beside_bytes: u64,
}

/// Returns the slot of the archives, which their names tell. `seen` is told while a server of one fails.
///
/// # Errors
/// Archives that do not belong together, or whose names do not contain the slot; an archive that cannot be opened.
pub fn slot(archive: &Path, incremental: Option<&Path>, extract: Extract, seen: &Seen) -> Result<u64> {
    Archives::new(archive, incremental, Some(extract), seen)?.fix_slot(None)
}

/// Finds the mistakes that [`load()`] finds before it reads the archives, without asking a server: in the directory, in
/// the archives' names and files, and whether the disk has room. Where the archives are at a server, only the directory
/// is looked at. Changes nothing.
///
/// # Errors
/// Those of [`load()`], except those of a server; not that another process holds the directory.
pub fn check(store: &NewStore<'_>) -> Result<()> {
    let is_local = |path: &Path| !is_url(&path.to_string_lossy());
    if is_local(store.archive) && store.incremental.is_none_or(is_local) {
        return load::check(&args(store, &Seen::default()));
    }
    check_dir(&args(store, &Seen::default()))
}

/// Loads the archives into the store, or continues with their load. Returns whether the store is complete; it is not if
/// `stop` asked to stop before.
///
/// # Errors
/// Errors of reading the archives and of the engine, with the way out; a store that holds another load.
pub fn load(store: &NewStore<'_>, seen: &Seen, stop: &Stop) -> Result<bool> {
    match load::run_until(&args(store, seen), stop)? {
        0 => Ok(true),
        _ if stop.asked().is_some() => Ok(false),
        code => bail!("the load ended without a reason: code={code}: this is a bug"),
    }
}

/// Returns the options of such a load.
fn args(store: &NewStore<'_>, seen: &Seen) -> LoadArgs {
    let NewStore { dir, engine, archive, incremental, extract, cluster, beside_bytes } = *store;
    let source = SourceArgs {
        input: Some(archive.to_owned()),
        incremental: incremental.map(Path::to_owned),
        ..SourceArgs::default()
    };
    LoadArgs {
        engine: EngineArgs::from(engine),
        dir: dir.to_owned(),
        source,
        meaning: MeaningArgs { extract: Some(extract), cluster: cluster.map(str::to_owned) },
        resume: true,
        seen: seen.clone(),
        beside_bytes,
        is_part: true,
        ..LoadArgs::default()
    }
}
