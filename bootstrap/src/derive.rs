//! `bootstrap derive`: builds the store that finds the keys of a value, compares it with its map, or removes it.
//!
//! Owns: the place of the new store until it is complete. Must not: change the map; load, which `load` does. A derived store
//! whose making was stopped begins anew, because its secret is not kept. Runs on the main thread.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use derived::{DERIVED, Origin, Position, history, values};
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

/// Ending of a directory that is about to be removed.
const GONE: &str = "gone";

/// Ending of the directory of a derived store that is not complete.
const PARTIAL: &str = ".partial";

/// Builds the store that finds the keys of a value: DIR/derived/values
///
/// Reads the map, sorts one entry of 64 bytes a pair, and loads them. A service that runs on DIR, or is started on it, then keeps the
/// store up to date and answers KeysOf; `keys-of` asks a store at rest. A derived store that is there already is replaced.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DeriveArgs {
    /// Directory of the map. A running service copies the map for this, and goes on meanwhile
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Compare the derived store with the map, and build nothing
    #[arg(long, conflicts_with = "drop")]
    pub(crate) check: bool,
    /// Remove the derived store, and build none
    #[arg(long)]
    pub(crate) drop: bool,
    /// Remove the past instead, which a service keeps with history_slots: it then begins anew
    #[arg(long, requires = "drop", conflicts_with = "check")]
    pub(crate) history: bool,
    /// Start even if the disk looks too small
    #[arg(long)]
    pub(crate) skip_disk_check: bool,
}

/// Runs the command. The exit code is 0 when it is done, 1 when the two differ, and 128 + signal when it was asked to stop.
pub(crate) fn run(args: &DeriveArgs) -> Result<u8> {
    let stop = Stop::install()?;
    let is_served = served::ask(&args.dir)?.is_some();
    match (args.check, args.drop) {
        (false, false) if is_served => build_beside_service(args, &stop),
        (false, true) if is_served && !args.history => drop_of_service(&args.dir),
        _ if is_served => Err(served::refusal(&args.dir, "stop it first")),
        (true, _) => check(&args.dir, &stop),
        (_, true) if args.history => drop_past(&args.dir),
        (_, true) => drop_all(&args.dir),
        _ => build_at_rest(args, &stop),
    }
}

/// Builds the store of a map that no process has open, and gives it its name.
fn build_at_rest(args: &DeriveArgs, stop: &Stop) -> Result<u8> {
    let code = build(args, &args.dir, None, stop)?;
    if code != 0 {
        return Ok(code);
    }
    let (place, partial) = (derived::dir(&args.dir, values::NAME), partial(&args.dir));
    // A service that was started since may have the old one open.
    let _held = engines::hold(&args.dir)?;
    remove_unless_held(&place)?;
    let renamed = fs::rename(&partial, &place).and_then(|()| File::open(args.dir.join(DERIVED))?.sync_all());
    renamed.with_context(|| {
        format!("cannot give the store its name: from={} to={}", partial.display(), place.display())
    })?;
    say!("the keys of a value: dir={}", place.display());
    Ok(0)
}

/// Builds the store of a copy that the running service makes, and has the service follow the feed from there.
fn build_beside_service(args: &DeriveArgs, stop: &Stop) -> Result<u8> {
    let owner = fs::metadata(&args.dir).with_context(|| format!("cannot look at dir={}", args.dir.display()))?.uid();
    ensure!(
        owner == rustix::process::geteuid().as_raw(),
        "the service could not write the new store: dir={} uid={owner}: run this as that user, with sudo -u",
        args.dir.display()
    );
    let copy = copy(&args.dir);
    let remove_copy = || match fs::remove_dir_all(&copy) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove dir={}", copy.display()))
        }
        _ => Ok(()),
    };
    remove_rest(&args.dir)?;
    fs::create_dir_all(args.dir.join(DERIVED))
        .with_context(|| format!("cannot create dir={}", args.dir.join(DERIVED).display()))?;
    tell!("the running service copies its map: dir={}", copy.display());
    let answer = served::request(&args.dir, "POST /derive/copy")?;
    let answer: Copied = serde_json::from_str(&answer).with_context(|| format!("not an answer: {answer:?}"))?;
    let built = build(args, &copy, Some(answer.feed_id), stop);
    remove_copy()?;
    let code = built?;
    if code != 0 {
        return Ok(code);
    }
    served::request(&args.dir, "POST /derive/adopt")?;
    say!("the keys of a value: dir={}: the running service follows", derived::dir(&args.dir, values::NAME).display());
    Ok(0)
}

/// The service's answer about a copy of its map.
#[derive(serde::Deserialize)]
struct Copied {
    feed_id: u64,
}

/// Builds the store of the map in `map`, whose changes have `feed_id`, without giving it its name.
fn build(args: &DeriveArgs, map: &Path, feed_id: Option<u64>, stop: &Stop) -> Result<u8> {
    let stored = migrate::open(map, None, None)?;
    refuse_derived(map)?;
    let partial = partial(&args.dir);
    // It has the options of its map, such as RocksDB's profile.
    let engine = EngineArgs { memory: None, ..EngineArgs::from(&options_for(map, &EngineArgs::default())?) };
    remove_partial(&partial)?;
    let source = SourceArgs { store: Some(stored.with_values_of(feed_id)?), ..SourceArgs::default() };
    let order = Some(Order::Sorted);
    let skip_disk_check = args.skip_disk_check;
    let load = LoadArgs { engine, dir: partial.clone(), source, order, skip_disk_check, ..LoadArgs::default() };
    let code = load::run_until(&load, stop)?;
    if code == 0 {
        remove_unless_held(&spill(&partial)?)?;
    }
    Ok(code)
}

/// Returns the directory in which the entries are sorted.
fn spill(partial: &Path) -> Result<PathBuf> {
    Ok(work_dir(partial, None, ".work", &SourceArgs::default())?.path)
}

/// Returns the directory in which the derived store of the map in `map` is made.
pub fn partial(map: &Path) -> PathBuf {
    beside(&derived::dir(map, values::NAME), PARTIAL)
}

/// Returns the directory of the copy that a derived store is built of while a service has the map open.
pub fn copy(map: &Path) -> PathBuf {
    map.join(engines::DERIVED_COPY)
}

/// Removes a derived store that is not complete, and its spill.
fn remove_partial(partial: &Path) -> Result<()> {
    remove_unless_held(partial)?;
    remove_unless_held(&spill(partial)?)
}

fn remove_unless_held(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    // A process that makes it now holds the lock of the store, or of the spill.
    let held = engines::holder(dir)?;
    ensure!(held.is_none(), "a process has the directory open: dir={}: wait for its end", dir.display());
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove dir={}", dir.display()))
}

/// Removes all that an earlier run has left which was cut short.
fn remove_rest(map: &Path) -> Result<()> {
    remove_partial(&partial(map))?;
    remove_unless_held(&copy(map))?;
    remove_unless_held(&beside(&copy(map), PARTIAL))
}

fn drop_of_service(map: &Path) -> Result<u8> {
    let place = derived::dir(map, values::NAME);
    remove_rest(map)?;
    if !place.exists() {
        return Err(missing(map, &place));
    }
    served::request(map, "POST /derive/remove")?;
    say!("removed: dir={}", place.display());
    Ok(0)
}

fn missing(map: &Path, place: &Path) -> anyhow::Error {
    let missing = anyhow!(
        "there is no derived store: dir={}: `bootstrap derive --dir {}` builds one",
        place.display(),
        map.display()
    );
    missing.context(Code::Derived)
}

/// Refuses the directory of a derived store where one of a map is asked for.
pub(crate) fn refuse_derived(dir: &Path) -> Result<()> {
    let holds = engines::inspect(dir)?.map(|known| known.holds).unwrap_or_default();
    ensure!(
        holds.derived.is_none(),
        "the directory has a derived store: dir={}: name the map's directory",
        dir.display()
    );
    Ok(())
}

/// Removes the store of a map that is not the same any more. Returns whether there was one.
pub(crate) fn remove_values(map: &Path) -> Result<bool> {
    let place = derived::dir(map, values::NAME);
    let was_there = place.exists();
    remove_unless_held(&place)?;
    Ok(was_there)
}

/// Returns the way out for a derived store that is damaged.
pub(crate) fn derived_way_out(name: &str) -> String {
    let more = if name == values::NAME { "" } else { " --history --drop" };
    let then = if name == values::NAME { "which builds it again" } else { "and the past begins anew" };
    format!("run `{} derive --dir DIR{more}` with the map's directory, {then}", program::called("bootstrap"))
}

fn drop_past(map: &Path) -> Result<u8> {
    let row = derived::dir(map, history::NAME);
    let gone = row.with_extension(GONE);
    // A service that starts meanwhile would open it.
    let _held = engines::hold(map)?;
    ensure!(row.exists() || gone.exists(), "no past is kept: dir={}", row.display());
    for (_, period) in history::periods(map)? {
        let held = engines::holder(&period)?;
        ensure!(held.is_none(), "a process has the past open: dir={}: stop it first", period.display());
    }
    // All at once: without one period, the others would give the values before a later change.
    if row.exists() {
        let renamed = fs::rename(&row, &gone).and_then(|()| File::open(map.join(DERIVED))?.sync_all());
        renamed.with_context(|| format!("cannot rename dir={}", row.display()))?;
    }
    fs::remove_dir_all(&gone).with_context(|| format!("cannot remove dir={}", gone.display()))?;
    say!("removed: dir={}", row.display());
    Ok(0)
}

fn drop_all(map: &Path) -> Result<u8> {
    let place = derived::dir(map, values::NAME);
    let _held = engines::hold(map)?;
    remove_rest(map)?;
    if !place.exists() {
        return Err(missing(map, &place));
    }
    remove_unless_held(&place)?;
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
