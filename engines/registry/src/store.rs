//! Opens a store's directory; the open store is the engine together with the directory's lock.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use engine_api::{
    Checkpoint, Code, Engine, Error, ErrorKind, Key, Pace, Reader, Result, Stats, Value, Warmed, WriteTxn,
};

use crate::checked;
use crate::content::{Load, LoadState};
use crate::copy;
use crate::directory::{DATA, SPOOL, names};
use crate::engine::{effective, kept, with_way_out};
use crate::hold::{Held, hold};
use crate::list::{EngineKind, compiled};
use crate::lock::{self, DirLock, LOCK};
use crate::marker::{self, FORMAT_VERSION, Identity, MARKER, MARKER_TEMPORARY};
use crate::options::{EngineArgs, EngineOptions};
use crate::place::Place;
use crate::process;
use crate::standing::{self, no_store};
use crate::terms::Terms;
use crate::warm;

/// Decides whether a store's checkpoint is accepted.
type Accept<'a> = &'a dyn Fn(&Checkpoint) -> Result<()>;

/// State of the directory that [`open`] expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Creates a store. The directory must be missing, empty, or left by a creation that was cut short.
    Create,
    /// Opens a store that exists.
    Existing,
    /// Opens the store if it exists, and creates it otherwise.
    CreateOrOpen,
}

/// Reads the description of the store in `dir`, without opening or locking it; `None` if there is no store.
///
/// # Errors
/// `FixInput` for a newer or an older format, `DataDamaged` for a marker that cannot be understood.
pub fn inspect(dir: &Path) -> Result<Option<Identity>> {
    marker::read(dir)
}

/// Returns the engine for a new store if none is named: strata, which was made for this map, or the first engine of
/// this build.
pub fn default_engine() -> EngineKind {
    let compiled = compiled();
    if compiled.contains(&EngineKind::Strata) {
        return EngineKind::Strata;
    }
    // In a build without any engine every name is refused when a store is opened.
    compiled.first().copied().unwrap_or(EngineKind::Strata)
}

/// Returns the options for the store in `dir`. An engine that is not named, and the options that a store keeps, come
/// from the directory; the engine of a new store is the default.
///
/// # Errors
/// Any error of [`inspect`]; `FixInput` for an option of another engine.
pub fn options_for(dir: &Path, args: &EngineArgs) -> Result<EngineOptions> {
    let known = marker::read(dir)?;
    let engine = args.engine.or(known.as_ref().map(|known| known.engine)).unwrap_or_else(default_engine);
    let mut options = args.for_engine(engine);
    if let Some(known) = known.filter(|known| known.engine == engine) {
        options = effective(&options, Some(&known));
    }
    options.validate()?;
    Ok(options)
}

/// Opens the store in `dir` without any [`Terms`]: see [`open_on`].
///
/// # Errors
/// The same as [`open_on`].
pub fn open(dir: &Path, options: &EngineOptions, mode: OpenMode) -> Result<Box<dyn Engine>> {
    open_on(dir, options, mode, &Terms::default())
}

/// Opens the store that exists in `dir`, with the engine that the directory names.
///
/// # Errors
/// The same as [`open_on`]; `FixInput` if there is no store.
pub fn open_existing(dir: &Path, memory: Option<ByteSize>) -> Result<Box<dyn Engine>> {
    open_existing_accepted(dir, memory, &|_| Ok(()))
}

/// Opens the store in `dir` as [`open_existing`] does, unless `accept` refuses its checkpoint: see [`open_accepted`].
///
/// # Errors
/// The same as [`open_existing`]; the error of `accept`.
pub fn open_existing_accepted(dir: &Path, memory: Option<ByteSize>, accept: Accept<'_>) -> Result<Box<dyn Engine>> {
    let Some(identity) = marker::read(dir)? else { return Err(no_store(dir)) };
    let options = EngineOptions { memory, ..EngineOptions::new(identity.engine) };
    open_accepted(dir, &options, OpenMode::Existing, &Terms::default(), accept)
}

/// Checks whether [`open_on`] would refuse the directory, the options or the terms. Creates, locks and changes nothing.
///
/// # Errors
/// The same as [`open_on`], except those that only the lock and the engine can find.
pub fn check(dir: &Path, options: &EngineOptions, mode: OpenMode, terms: &Terms) -> Result<()> {
    options.validate()?;
    refuse_unless_compiled(options.engine)?;
    standing::check_kinds(dir)?;
    let known = check_mode(dir, options.engine, mode)?;
    terms.meet(dir, known.as_ref())?;
    known.map_or(Ok(()), |known| standing::check_without_log(dir, &effective(options, Some(&known)), &known))
}

/// Opens the store in `dir` on `terms`.
///
/// The engine is fixed when the store is created. Options that the engine has its stores keep, and that are not given, are
/// those of the last opening. Others are written to the marker, and hold for files written from then on. Facts that the
/// terms state and the store does not know are written to the marker once the engine has opened. Only a new store has a marker before that.
///
/// # Errors
/// `FixInput` naming the directory, if it does not match `mode`, holds another engine, differs from the terms, or has
/// another format, or if the options are not the engine's; `Retry` if another process has it open; any error of opening
/// the engine.
pub fn open_on(dir: &Path, options: &EngineOptions, mode: OpenMode, terms: &Terms) -> Result<Box<dyn Engine>> {
    open_accepted(dir, options, mode, terms, &|_| Ok(()))
}

/// Opens the store in `dir` as [`open_on`] does, unless `accept` refuses its checkpoint. An engine that repairs its files
/// at its opening asks before it changes any.
///
/// # Errors
/// The same as [`open_on`]; the error of `accept`.
pub fn open_accepted(
    dir: &Path,
    options: &EngineOptions,
    mode: OpenMode,
    terms: &Terms,
    accept: Accept<'_>,
) -> Result<Box<dyn Engine>> {
    // The check comes before anything is created: a wrong path must not become a directory with a lock in it.
    check(dir, options, mode, terms)?;
    open_locked(hold(dir)?, options, mode, terms, accept)
}

/// Opens the store in a directory that this process holds: see [`open_on`].
///
/// # Errors
/// The same as [`open_on`].
pub fn open_held(held: Held, options: &EngineOptions, mode: OpenMode, terms: &Terms) -> Result<Box<dyn Engine>> {
    check(held.dir(), options, mode, terms)?;
    open_locked(held, options, mode, terms, &|_| Ok(()))
}

fn open_locked(
    held: Held,
    options: &EngineOptions,
    mode: OpenMode,
    terms: &Terms,
    accept: Accept<'_>,
) -> Result<Box<dyn Engine>> {
    let dir = held.dir();
    let known = check_mode(dir, options.engine, mode)?;
    let (holds, load) = terms.meet(dir, known.as_ref())?;
    let kept = kept(options, known.as_ref());
    let options = effective(options, known.as_ref());
    let made = known.clone().unwrap_or_else(|| Identity::new(options.engine));
    let mut identity = Identity { format: FORMAT_VERSION, options: kept, load, holds, ..made };
    // A new store gets its marker before the engine's first file. A store that exists and does not open is left
    // unchanged.
    if known.is_none() {
        marker::write(dir, &identity)?;
    }
    process::raise_open_files();
    let accept =
        |checkpoint: &Checkpoint| standing::check_seq(dir, &identity, checkpoint.seq).and_then(|()| accept(checkpoint));
    let open = options.engine.descriptor().open;
    let settings = options.settings_for(&identity.holds);
    let engine = open(&dir.join(DATA), &settings, &accept).map_err(|e| with_way_out(dir, options.engine, e))?;
    accept(&engine.checkpoint()?)?;
    checked::sync_dir(dir)
        .map_err(|e| Error::io(format!("cannot sync the store's directory: dir={} reason={e}", dir.display()), e))?;
    if identity.seq.is_none() {
        // The engine has made its files, and from now on they have to exist. Their content may not be durable yet.
        identity = identity.at(0);
    }
    if known.as_ref() != Some(&identity) {
        marker::write(dir, &identity)?;
    }
    let (place, dir) = (Some(Place::of(dir, options.engine)?), dir.to_owned());
    let lock = Lock::Writer { _lock: held.into_lock() };
    Ok(Box::new(Store { engine, identity, options, dir, place, lock }))
}

/// Records in the marker how far the load of the store in `dir` has come. The process that has the store open for
/// loading calls this; for [`Complete`](crate::LoadState::Complete) with the seq of the load's last commit, once that
/// is durable.
///
/// # Errors
/// `FixInput` if there is no store; otherwise I/O errors of reading or writing the marker.
pub fn mark_load(dir: &Path, load: Load, seq: u64) -> Result<()> {
    let known = marker::read(dir)?.ok_or_else(|| no_store(dir))?;
    let complete = load.state == LoadState::Complete;
    let marked = Identity { load: Some(load), ..known.clone() };
    let marked = if complete { marked.at(seq) } else { marked };
    if marked == known {
        return Ok(());
    }
    marker::write(dir, &marked)
}

/// An open store. It passes every call on to the engine. Readers and transactions are the engine's own; one begins only while the
/// files are in their place.
pub(crate) struct Store {
    // First field: the engine is closed before the lock is released.
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) identity: Identity,
    pub(crate) options: EngineOptions,
    pub(crate) dir: PathBuf,
    /// Where the files are; `None` in a store that is open for reading alone.
    pub(crate) place: Option<Place>,
    pub(crate) lock: Lock,
}

/// The lock of the store's directory, held while this value lives.
pub(crate) enum Lock {
    Writer { _lock: Option<DirLock> },
    Reader { _lock: lock::Shared },
}

impl Store {
    /// Returns the place of the files.
    ///
    /// # Errors
    /// `FixInput` in a store that is open for reading alone.
    fn writable(&self) -> Result<&Place> {
        self.place.as_ref().ok_or_else(|| {
            let message = format!("the store is open for reading alone: dir={}", self.dir.display());
            Error::new(ErrorKind::FixInput, message)
        })
    }
}

impl Engine for Store {
    fn label(&self) -> &'static str {
        self.engine.label()
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        self.engine.reader()
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        self.writable()?.check()?;
        self.engine.begin()
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.engine.checkpoint()
    }

    fn stats(&self) -> Result<Stats> {
        self.engine.stats()
    }

    /// Accepts an empty `dir` as well, because a service's directory is often created for it beforehand. See
    /// [`crate::copy`].
    fn snapshot(&self, dir: &Path) -> Result<()> {
        self.writable()?;
        copy::write(&*self.engine, &self.identity, &self.dir, dir)
    }

    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        self.writable()?;
        self.engine.load_sorted(pairs, checkpoint)
    }

    fn settle(&self) -> Result<()> {
        self.writable()?;
        self.engine.settle()
    }

    /// An engine that reads through the page cache has its files read into it.
    fn warm_up(&self, go_on: &mut dyn FnMut(Warmed) -> Pace) -> Result<()> {
        self.engine.warm_up(go_on)?;
        let endings = (self.options.engine.descriptor().page_cache_endings)(&self.options.settings());
        match endings {
            [] => Ok(()),
            _ => warm::read_in(&self.dir.join(DATA), endings, self.options.page_cache_room_bytes(), go_on),
        }
    }

    fn scrub(&mut self) -> Result<u64> {
        self.engine.scrub()
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { engine, dir, place, lock: _lock, .. } = *self;
        if place.is_none() {
            // There is nothing to flush, so the engine is dropped and not closed.
            drop(engine);
            return Ok(());
        }
        let seq = engine.checkpoint()?.seq;
        engine.close()?;
        // Read again, because a load may have been marked meanwhile. A full disk is no reason to fail, because the
        // marker's older seq holds as well.
        if let Some(known) = marker::read(&dir)?.filter(|known| known.seq != Some(seq)) {
            marker::write(&dir, &known.at(seq)).ok();
        }
        checked::sync_dir(&dir)
            .map_err(|e| Error::io(format!("cannot sync the store's directory: dir={} reason={e}", dir.display()), e))
    }
}

/// Checks that `dir` matches `mode`, and returns its marker if there is one.
fn check_mode(dir: &Path, engine: EngineKind, mode: OpenMode) -> Result<Option<Identity>> {
    let refuse = |code, message: String| Err(Error::wrong(code, message));
    let shown = dir.display();
    let names = names(dir)?;
    let Some(identity) = marker::read(dir)? else {
        if mode == OpenMode::Existing {
            return Err(no_store(dir));
        }
        let is_ours = |name: &str| [MARKER_TEMPORARY, SPOOL].contains(&name) || name == LOCK && lock::is_ours(dir);
        let foreign = names.iter().find(|name| !is_ours(name));
        return match foreign {
            Some(name) => refuse(
                Code::Directory,
                format!(
                    "directory is not empty and not a solkv store: dir={shown} entry={name}: name an empty directory"
                ),
            ),
            None => Ok(None),
        };
    };
    let held = identity.engine;
    standing::check_files(dir, &identity)?;
    if held != engine {
        return refuse(
            Code::Engine,
            format!(
                "directory holds {held}, asked for {engine}: dir={shown}: use --engine {held} or another directory"
            ),
        );
    }
    let has_data = standing::has_files(dir, held)?;
    match mode {
        OpenMode::Create if has_data => refuse(
            Code::Directory,
            format!(
                "directory already holds a {held} store: dir={shown}: name an empty directory, or open the store there"
            ),
        ),
        OpenMode::Existing if !has_data => refuse(
            Code::NoStore,
            format!(
                "store has no data: dir={shown} marker={MARKER} missing={DATA}: its creation was cut short; create it again \
             with bootstrap"
            ),
        ),
        _ => Ok(Some(identity)),
    }
}

/// Refuses an engine that is not in this build.
///
/// # Errors
/// `FixInput` naming the engines in this build.
pub fn refuse_unless_compiled(engine: EngineKind) -> Result<()> {
    if compiled().contains(&engine) {
        return Ok(());
    }
    Err(Error::wrong(
        Code::Engine,
        format!(
            "engine={engine} is not in this build, which has {}: choose one of these, or build with the cargo feature \
             engines/{engine}",
            compiled().iter().map(|engine| engine.as_str()).collect::<Vec<_>>().join(", ")
        ),
    ))
}

#[cfg(all(test, feature = "rocksdb"))]
mod tests {
    use super::*;
    use crate::options::Profile;

    #[test]
    fn options_that_are_not_named_are_those_that_the_store_keeps() {
        let dir = tempfile::tempdir().unwrap();
        let of = |args: &EngineArgs| options_for(dir.path(), args).unwrap();
        let table = |bloom: u32, profile: &str| {
            EngineOptions::new(EngineKind::Rocksdb).with("bloom", bloom).with("profile", profile).options
        };
        let new = of(&EngineArgs { engine: Some(EngineKind::Rocksdb), ..EngineArgs::default() });
        assert_eq!((new.options.len(), effective(&new, None).options), (0, table(0, "vanilla")));
        let known = Identity { options: table(12, "tuned"), ..Identity::new(EngineKind::Rocksdb) };
        marker::write(dir.path(), &known).unwrap();
        assert_eq!(of(&EngineArgs::default()).options, table(12, "tuned"));
        let changed = EngineArgs { profile: Some(Profile::Vanilla), ..EngineArgs::default() };
        assert_eq!(of(&changed).options, table(12, "vanilla"), "a filter that the store has stays");
        let known = Identity { options: table(0, "vanilla"), ..known };
        marker::write(dir.path(), &known).unwrap();
        let changed = EngineArgs { profile: Some(Profile::Tuned), ..EngineArgs::default() };
        assert_eq!(of(&changed).options, table(10, "tuned"));
        // An option of another engine is refused when the store is opened; none is taken over before.
        let other = EngineArgs { engine: Some(EngineKind::Lmdb), ..EngineArgs::default() };
        assert!(of(&other).options.is_empty());
    }
}
