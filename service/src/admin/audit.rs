//! `service audit`: compares a store, live or at rest, with a Solana snapshot archive of its slot or of an earlier one.
//!
//! Owns: the choice between the store itself and a copy of it, which changes are taken back, the printed result. Must
//! not: write to the store, or hold up its service. Runs on the main thread; the comparison is `bootstrap::audit`.
//!
//! The store is usually ahead of any archive. The feed's log has the old value of every change, so the value of a
//! changed key at the archive's slot is the old value of its first change after that slot.

mod workplace;

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use bootstrap::Stop;
use bootstrap::audit::{self, Archived, Audited, Counts, Undo};
use bytesize::ByteSize;
use engine_api::{Code, Engine, Error, ErrorKind};
use solana::ChainCheckpoint;

use crate::base::failed::Failed;
use crate::feed::{FEED_DIR, History};
use crate::ingest::extract::Extract;
use crate::store;
use workplace::Workplace;

/// The changes that are taken back may fill 1/`UNDO_SHARE` of the process's memory. The engine gets an eighth, and the
/// sorting takes of the rest.
const UNDO_SHARE: u64 = 4;

/// Compares a store with a snapshot archive
///
/// A running service keeps running: it copies its store into the working directory, and the copy is compared and
/// removed. The changes after the archive's slot are taken back with the feed's log. The archive is sorted on disk, in
/// 73 bytes a version of an account, and the first ten keys that differ are named. Run it as the service's user.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AuditArgs {
    /// Directory of the store; nothing in it is changed
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Solana snapshot archive, as bootstrap --input takes it: a file, an unpacked directory, or an http(s) URL
    #[arg(long, value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Incremental snapshot archive on top of the full one
    #[arg(long, value_name = "ARCHIVE")]
    incremental: Option<PathBuf>,
    /// Slot of an archive whose name does not tell it
    #[arg(long, value_name = "SLOT")]
    slot: Option<u64>,
    /// Value that is taken of each account [default: that of the store]
    #[arg(long, value_name = "EXTRACT", value_parser = bootstrap::extraction())]
    extract: Option<Extract>,
    /// Memory of the engine that reads the store [default: an eighth of this process's memory limit]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    memory: Option<ByteSize>,
    /// Directory for the copy of a live store and for sorting; default: DIR with .audit at the end
    ///
    /// It is removed at the end. On the store's file system RocksDB and strata link their files; elsewhere, and for LMDB
    /// and redb, the copy is as large as the store.
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Sort even where the disk looks too small
    #[arg(long)]
    skip_disk_check: bool,
}

/// Audits the store. The exit code is 0 when it is equal to the archive, 1 when not, and 128 + signal when it was asked
/// to stop.
pub(crate) fn run(args: &AuditArgs) -> Result<u8, Failed> {
    let stop = Stop::install()?;
    // Also where it waits for an archive, before there is anything to keep.
    run_until(args, &stop).or_else(|failed| stop.asked().ok_or(failed))
}

fn run_until(args: &AuditArgs, stop: &Stop) -> Result<u8, Failed> {
    let extract = extract(args)?;
    let archived =
        Archived::open(&args.archive, args.incremental.as_deref(), extract, args.slot).map_err(Failed::by_remedy)?;
    let work_dir = args.work_dir.clone().unwrap_or_else(|| audit::work_dir(&args.dir));
    engines::refuse_nested(&args.dir, &work_dir)?;
    let service = audit::service_at(&args.dir)?;
    if let Some((seq, slot)) = service {
        // A service whose store cannot be compared does not have to copy it first.
        history(args, &archived, &ChainCheckpoint { seq, slot, ..ChainCheckpoint::default() })?;
    }
    let place = Workplace::open(&work_dir)?;
    let outcome = in_place(args, &archived, &place, stop);
    let sort_dir = place.sort_dir();
    place.clean();
    if let Some(code) = stop.asked() {
        let next = audit::next_start(&sort_dir);
        program::tell!("stopped; the store was not changed, and the same command {next}");
        return Ok(code);
    }
    if outcome.is_err() && sort_dir.exists() {
        let (next, dir) = (audit::next_start(&sort_dir), sort_dir.display());
        program::tell!(
            "the part of the archive that was sorted is kept: dir={dir}: the same command {next}, or remove it"
        );
    }
    let (said, code) = outcome?;
    program::print(format_args!("{said}"));
    Ok(code)
}

/// Compares the store, or a copy of it if a service runs. Returns the text to print and the exit code.
fn in_place(args: &AuditArgs, archived: &Archived, place: &Workplace, stop: &Stop) -> Result<(String, u8), Failed> {
    let copy = place.copy(&args.dir).map_err(Failed::by_remedy)?;
    if stop.asked().is_some() {
        return Err(anyhow!("stopped").into());
    }
    let dir = copy.as_deref().unwrap_or(&args.dir);
    let engine = audit::open(dir, args.memory).map_err(Failed::by_remedy)?;
    if copy.is_none() {
        store::refuse_lost(dir, &engine.checkpoint()?)?;
    }
    let compared = at_rest(args, archived, place, (dir, &*engine), stop)?;
    engine.close()?;
    Ok(compared)
}

/// Compares a store that nobody writes to.
fn at_rest(
    args: &AuditArgs,
    archived: &Archived,
    place: &Workplace,
    (dir, engine): (&Path, &dyn Engine),
    stop: &Stop,
) -> Result<(String, u8), Failed> {
    let checkpoint = ChainCheckpoint::read(&engine.checkpoint()?)?;
    checkpoint.refuse_unless_whole()?;
    let undo = match history(args, archived, &checkpoint)? {
        Some(history) => undo(&history, probe::memory_limit().bytes / UNDO_SHARE)?,
        None => Undo::nothing(),
    };
    let (archive_slot, store_slot) = (archived.slot(), checkpoint.slot.unwrap_or(0));
    let at = format!("archive_slot={archive_slot} store_slot={store_slot} taken_back={}", undo.keys());
    program::tell!("comparing: {at}");
    let sides = audit::Store {
        engine,
        dir,
        memory: args.memory,
        undo: &undo,
        sort_dir: place.sort_dir(),
        skip_disk_check: args.skip_disk_check,
        stop,
    };
    let mut said = String::new();
    let audited = archived.compare(&sides, &mut |line| {
        said.push_str(line);
        said.push('\n');
    });
    let audited = audited.map_err(Failed::by_remedy)?;
    report(&mut said, &at, &audited).context("cannot write the result")?;
    Ok((said, u8::from(!audited.is_equal())))
}

/// Returns the extraction that was asked for, which has to be the store's own, or that of the store.
fn extract(args: &AuditArgs) -> Result<Extract, Failed> {
    let dir = args.dir.display();
    if engines::inspect(&args.dir)?.is_none() {
        return Err(Failed::wrong(anyhow!("there is no store: dir={dir}: correct the path").context(Code::NoStore)));
    }
    match (args.extract, store::extract_of(&args.dir).map_err(Failed::by_remedy)?) {
        (Some(asked), Some(known)) if asked != known => Err(Failed::wrong(anyhow!(
            "the store holds other values: extract={} asked_extract={}: leave --extract out",
            known.name(),
            asked.name()
        ))),
        (Some(extract), _) | (None, Some(extract)) => Ok(extract),
        (None, None) => Err(Failed::wrong(anyhow!(
            "the store does not say how its values were extracted: dir={dir}: say it with --extract, such as --extract \
             token-owner"
        ))),
    }
}

/// Returns the changes of a store at `store` that have to be taken back; `None` if it stands at the archive's slot.
fn history(args: &AuditArgs, archived: &Archived, store: &ChainCheckpoint) -> Result<Option<History>, Failed> {
    let archive_slot = archived.slot();
    let Some(slot) = store.slot else {
        let dir = args.dir.display();
        return Err(Failed::wrong(anyhow!(
            "the store stands at no slot: dir={dir}: let a service follow the stream first, or load it with --slot"
        )));
    };
    match slot.cmp(&archive_slot) {
        Ordering::Less => Err(Failed::wrong(anyhow!(
            "the archive is newer than the store: archive_slot={archive_slot} store_slot={slot}: wait until the service \
             has passed that slot, or take an older archive"
        ))),
        Ordering::Equal => Ok(None),
        Ordering::Greater => Ok(Some(History::open(&args.dir.join(FEED_DIR), archive_slot, store)?)),
    }
}

/// Collects the changes in `bytes_max` bytes of memory.
fn undo(history: &History, bytes_max: u64) -> Result<Undo, Failed> {
    let changes = history.changes();
    let too_many = |error: audit::TooManyKeys| {
        let message = format!(
            "{error} changes={changes}: take a newer archive, or give this process more memory: {} bytes a changed key \
             have to fit into 1/{UNDO_SHARE} of it",
            Undo::KEY_BYTES
        );
        Error::new(ErrorKind::FixInput, message)
    };
    let mut undo = Undo::within(bytes_max, changes).map_err(too_many)?;
    history.for_each(&mut |change| undo.add(change.key, change.old, change.new).map_err(too_many))?;
    undo.finish();
    Ok(undo)
}

fn report(said: &mut String, at: &str, audited: &Audited) -> std::fmt::Result {
    let Audited { records, counts, lost_changes } = audited;
    let Counts { pairs, other_pairs, only_here, only_there, different } = counts;
    if audited.is_equal() {
        return writeln!(said, "equal: {at} records={records} stored_pairs={other_pairs}");
    }
    writeln!(
        said,
        "not equal: {at} records={records} expected_pairs={pairs} stored_pairs={other_pairs} \
         different={different} missing={only_here} only_in_store={only_there} lost_changes={lost_changes}"
    )?;
    counts.hint().map_or(Ok(()), |hint| writeln!(said, "{hint}"))
}
