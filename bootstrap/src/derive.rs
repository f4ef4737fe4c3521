//! `bootstrap derive`: builds the store that finds the keys of a value, compares it with its map, or removes it.
//!
//! Owns: the place of the new store until it is complete. Must not: change the map; load, which `load` does. A derived store
//! whose making was stopped begins anew, because its secret is not kept. Runs on the main thread.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use derived::{DERIVED, Origin, Position, values};
use engine_api::{Code, Engine};
use engines::{Digest, EngineArgs};

use crate::args::LoadArgs;
use crate::out::{say, tell};
use crate::paths::{beside, work_dir};
use crate::rank::Order;
use crate::scan::{digest_until, open_to_scan};
use crate::signal::Stop;
use crate::source::SourceArgs;
use crate::wrong::options_for;
use crate::{load, migrate, served};

/// Ending of the directory of a derived store that is not complete.
const PARTIAL: &str = ".partial";

/// Builds the store that finds the keys of a value: DIR/derived/values
///
/// Reads the map, sorts one entry of 64 bytes a pair, and loads them. A service that is started on DIR then keeps the store
/// up to date and answers KeysOf; `keys-of` asks a store at rest. A derived store that is there already is replaced.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DeriveArgs {
    /// Directory of the map; no process may have it open
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Compare the derived store with the map, and build nothing
    #[arg(long, conflicts_with = "drop")]
    pub(crate) check: bool,
    /// Remove the derived store, and build none
    #[arg(long)]
    pub(crate) drop: bool,
    /// Start even if the disk looks too small
    #[arg(long)]
    pub(crate) skip_disk_check: bool,
}

/// Runs the command. The exit code is 0 when it is done, 1 when the two differ, and 128 + signal when it was asked to stop.
pub(crate) fn run(args: &DeriveArgs) -> Result<u8> {
    let stop = Stop::install()?;
    if served::ask(&args.dir)?.is_some() {
        return Err(served::refusal(&args.dir, "stop it first"));
    }
    match (args.check, args.drop) {
        (true, _) => check(&args.dir, &stop),
        (_, true) => drop_all(&args.dir),
        _ => build(args, &stop),
    }
}

fn build(args: &DeriveArgs, stop: &Stop) -> Result<u8> {
    let stored = migrate::open(&args.dir, None, None)?;
    ensure!(
        stored.holds().derived.is_none(),
        "the directory has a derived store: dir={}: name the map's directory",
        args.dir.display()
    );
    let (place, partial) = places(&args.dir);
    // It has the options of its map, such as RocksDB's profile.
    let engine = EngineArgs { memory: None, ..EngineArgs::from(&options_for(&args.dir, &EngineArgs::default())?) };
    remove_partial(&partial)?;
    let source = SourceArgs { store: Some(stored.with_values_of()?), ..SourceArgs::default() };
    let order = Some(Order::Sorted);
    let load = LoadArgs {
        engine,
        dir: partial.clone(),
        source,
        order,
        skip_disk_check: args.skip_disk_check,
        ..LoadArgs::default()
    };
    let code = load::run_until(&load, stop)?;
    if code != 0 {
        return Ok(code);
    }
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove dir={}", place.display()))?;
    }
    let renamed = fs::rename(&partial, &place).and_then(|()| File::open(args.dir.join(DERIVED))?.sync_all());
    renamed.with_context(|| {
        format!("cannot give the store its name: from={} to={}", partial.display(), place.display())
    })?;
    say!("the keys of a value: dir={}", place.display());
    Ok(0)
}

/// Returns the directory of the derived store, and the one in which it is made.
fn places(map: &Path) -> (PathBuf, PathBuf) {
    let place = derived::dir(map, values::NAME);
    let partial = beside(&place, PARTIAL);
    (place, partial)
}

/// Removes a derived store that is not complete, and its spill.
fn remove_partial(partial: &Path) -> Result<()> {
    let work = work_dir(partial, None, ".work", &SourceArgs::default())?;
    for dir in [partial, &work.path] {
        if dir.exists() {
            // A process that makes it now holds the lock of the store, or of the spill.
            let held = engines::holder(dir)?;
            ensure!(held.is_none(), "a derived store is being made: dir={}: wait for its end", dir.display());
            fs::remove_dir_all(dir).with_context(|| format!("cannot remove dir={}", dir.display()))?;
        }
    }
    Ok(())
}

fn missing(map: &Path, place: &Path) -> anyhow::Error {
    let missing =
        anyhow!("there is no derived store: dir={}: derive --dir {} builds it", place.display(), map.display());
    missing.context(Code::Derived)
}

fn drop_all(map: &Path) -> Result<u8> {
    let (place, partial) = places(map);
    remove_partial(&partial)?;
    if !place.exists() {
        return Err(missing(map, &place));
    }
    let held = engines::holder(&place)?;
    ensure!(held.is_none(), "a process has the derived store open: dir={}: stop it first", place.display());
    fs::remove_dir_all(&place).with_context(|| format!("cannot remove dir={}", place.display()))?;
    say!("removed: dir={}", place.display());
    Ok(0)
}

/// Opens the derived store of the map in `dir`, and checks that it stands where the map does.
///
/// # Errors
/// There is none; it is not complete; it stands elsewhere; errors of the engine.
pub(crate) fn open_values(dir: &Path, map: &dyn Engine) -> Result<(Box<dyn Engine>, Position)> {
    let place = derived::dir(dir, values::NAME);
    if !place.exists() {
        return Err(missing(dir, &place));
    }
    let store = open_to_scan(&place, None, None)?;
    let (at, map) = (store.checkpoint()?, map.checkpoint()?);
    let position = Position::read(&at).with_context(|| format!("dir={}", place.display()))?;
    let is_there = match &position.origin {
        Origin::Map(of) => *of == map,
        Origin::Feed(_) => at.seq == map.seq,
    };
    if is_there && position.is_whole {
        return Ok((store, position));
    }
    let elsewhere = anyhow!(
        "the derived store stands elsewhere than the map: dir={} seq={} map_seq={}: start the service on it, or build it again",
        place.display(),
        at.seq,
        map.seq
    );
    Err(elsewhere.context(Code::Derived))
}

fn check(dir: &Path, stop: &Stop) -> Result<u8> {
    let map = open_to_scan(dir, None, None)?;
    let (store, position) = open_values(dir, &*map)?;
    let mut expected = Digest::default();
    map.reader()?.scan(&mut |key, value| {
        let (key, value) = values::entry(&position.secret, key, value);
        expected.add(&key, &value);
        if stop.asked().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let found = digest_until(&*store, stop, &|_| ())?;
    map.close()?;
    store.close()?;
    let (Some(found), None) = (found, stop.asked()) else {
        tell!("stopped: nothing was changed");
        return Ok(stop.asked().unwrap_or(1));
    };
    // Each build has another digest, because it has another secret: only the numbers tell a reader something.
    let (pairs, entries) = (expected.pairs(), found.pairs());
    match expected == found {
        true => say!("equal: pairs={pairs} entries={entries}"),
        false => say!("not equal: pairs={pairs} entries={entries}: build the derived store again"),
    }
    Ok(u8::from(expected != found))
}
