//! `service snapshot` and `service restore`: copy a store into a directory that is itself a store, and copy it back.
//!
//! Owns: the choice of who makes the copy (the running service, or this process), the digest kept with the copy, the
//! comparison. Must not: touch a store that a service has open. Runs on the main thread.
//!
//! The feed is not copied: a restored store begins a new one. Restoring is the same copy in the other direction, so two
//! stores share only files that never change.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytesize::ByteSize;
use engine_api::Engine;
use engines::{Digest, open_existing, open_existing_accepted};
use proto::admin::SnapshotRequest;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::admin;
use crate::store;

/// File with the copy's digest, kept in the snapshot's directory if a digest was asked for.
const RECORD: &str = "snapshot.toml";

/// Arguments that select the store and the place of its copy.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SnapshotArgs {
    /// Directory of the store; a running service makes the copy itself and continues meanwhile
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where to: a missing or empty directory. On the store's file system RocksDB and strata link their files
    #[arg(long, value_name = "DIR2")]
    to: PathBuf,
    /// Scan the copy for its digest and keep it there, for restore --verify
    #[arg(long)]
    digest: bool,
    /// Memory for this program's engine, which opens the copy
    #[arg(long, value_name = "BYTES", value_parser = engines::size, default_value_t = ByteSize::b(engines::MEMORY_MIN))]
    memory: ByteSize,
}

/// Arguments that select the snapshot and the place of the new store.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RestoreArgs {
    /// The snapshot; files that are linked stay shared with it
    #[arg(long, value_name = "DIR2")]
    from: PathBuf,
    /// Directory of the new store: missing or empty
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Compare the new store's digest with the snapshot's: the one kept there, or that of a scan
    #[arg(long)]
    verify: bool,
    /// Memory for the engine meanwhile
    #[arg(long, value_name = "BYTES", value_parser = engines::size, default_value_t = ByteSize::b(engines::MEMORY_MIN))]
    memory: ByteSize,
}

#[derive(Serialize, Deserialize)]
struct Record {
    digest: String,
}

pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<()> {
    let to = std::path::absolute(&args.to).with_context(|| format!("cannot name dir={}", args.to.display()))?;
    let started = Instant::now();
    let by = if by_service(&args.dir, &to)? {
        "service"
    } else {
        let store = open_whole(&args.dir, args.memory)?;
        remove_cut_short(&to)?;
        store.snapshot(&to)?;
        store.close()?;
        "this program"
    };
    let took_s = started.elapsed().as_secs_f64();
    // Open the copy to check it: a copy that was never opened is no backup.
    program::print(format_args!("{}", kept_if_whole(&to, || look_at_copy(args, &to, by, took_s))?));
    Ok(())
}

/// Opens and checks a copy, and returns the report to print.
fn look_at_copy(args: &SnapshotArgs, to: &Path, by: &str, took_s: f64) -> Result<String> {
    let copy = open_existing(to, Some(args.memory))?;
    let (label, checkpoint) = (copy.label(), solana::shown_of_copy(&copy.checkpoint()?));
    let made = format!("snapshot: dir={} engine={label} made_by={by:?} took_s={took_s:.3}", to.display());
    let mut said = format!("{made}\ncheckpoint {checkpoint}\n");
    warn_of_part(to)?;
    if args.dir.join(derived::DERIVED).exists() {
        said +=
            "derived stores are not copied: bootstrap derive builds `values` of the copy, and the past begins anew\n";
    }
    if args.digest {
        let digest = Digest::of(&*copy)?;
        refuse_other_content(to, &*copy, &digest)?;
        let record = Record { digest: digest.to_string() };
        let path = to.join(RECORD);
        write_synced(&path, &toml::to_string(&record)?).with_context(|| format!("cannot write {}", path.display()))?;
        said += &format!("digest={digest}\n");
    }
    copy.close()?;
    Ok(said)
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<()> {
    let started = Instant::now();
    let from = open_whole(&args.from, args.memory)?;
    remove_cut_short(&args.dir)?;
    from.snapshot(&args.dir)?;
    let took_s = started.elapsed().as_secs_f64();
    let said = kept_if_whole(&args.dir, || look_at_store(args, &*from, took_s))?;
    from.close()?;
    program::print(format_args!("{said}"));
    Ok(())
}

/// Removes the rest of an earlier copy to `dir` that was cut short, and says so.
fn remove_cut_short(dir: &Path) -> Result<()> {
    if let Some(removed) = engines::remove_cut_short(dir)? {
        program::tell!("an earlier copy was cut short and is begun anew: removed={}", removed.display());
    }
    Ok(())
}

/// Opens and checks a restored store, and returns the report to print.
fn look_at_store(args: &RestoreArgs, from: &dyn Engine, took_s: f64) -> Result<String> {
    let store = open_existing(&args.dir, Some(args.memory))?;
    let checkpoint = store.checkpoint()?;
    ensure!(
        checkpoint == from.checkpoint()?,
        "the new store does not stand where its snapshot does: dir={}: do not trust the snapshot",
        args.dir.display()
    );
    let made = format!("restored: dir={} engine={} took_s={took_s:.3}", args.dir.display(), store.label());
    let mut said = format!("{made}\ncheckpoint {}\n", solana::shown_of_copy(&checkpoint));
    warn_of_part(&args.dir)?;
    if args.verify {
        let (expected, whose) = match read_record(&args.from)? {
            Some(kept) => (kept, "kept with the snapshot"),
            None => (Digest::of(from)?, "of the snapshot as it is now"),
        };
        let found = Digest::of(&*store)?;
        refuse_other_content(&args.dir, &*store, &found)?;
        if found != expected {
            bail!(
                "the new store differs from its snapshot: dir={} digest={found} expected={expected}, {whose}: use an older \
                 snapshot",
                args.dir.display()
            );
        }
        said += &format!("digest={found} equal to the one {whose}\n");
    }
    store.close()?;
    Ok(said)
}

/// Refuses a copy that is still at the checkpoint of its load but does not hold the loaded pairs. The store that was
/// copied has then lost some as well.
fn refuse_other_content(dir: &Path, copy: &dyn Engine, digest: &Digest) -> Result<()> {
    let (known, seq) = (engines::inspect(dir)?, copy.checkpoint()?.seq);
    let loaded = known.as_ref().and_then(|known| known.loaded_at(seq));
    match loaded.and_then(|loaded| loaded.difference(digest.pairs(), &digest.to_string())) {
        Some(how) => bail!(
            "the store that was copied does not hold the pairs that were loaded: seq={seq} {how}: `bootstrap scrub` says \
             more"
        ),
        None => Ok(()),
    }
}

/// Removes the copy in `dir` if `look` finds it unusable, so that no directory is left that looks like a good copy.
fn kept_if_whole(dir: &Path, look: impl FnOnce() -> Result<String>) -> Result<String> {
    look().map_err(|error| match std::fs::remove_dir_all(dir) {
        Ok(()) => error.context(format!("the copy was removed: dir={}", dir.display())),
        Err(e) => error
            .context(format!("the copy is not to be used, and cannot be removed: dir={} reason={e}", dir.display())),
    })
}

/// Warns if the copied store holds only a part of its load, because the load was interrupted.
fn warn_of_part(dir: &Path) -> Result<()> {
    if engines::inspect(dir)?.is_some_and(|known| known.is_loading()) {
        program::tell!(
            "the load of this store was interrupted, so that the copy is of a part: dir={}: no service opens it before \
             bootstrap --resume has ended the load",
            dir.display()
        );
    }
    Ok(())
}

/// Asks the running service of the store in `dir` to copy it to `to`, an absolute path, and waits until it has; `false`
/// if no service runs.
///
/// # Errors
/// The service's refusal or failure, in its own words; errors of connecting to it.
pub(crate) fn by_service(dir: &Path, to: &Path) -> Result<bool> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(ask_service(dir, to))
}

async fn ask_service(dir: &Path, to: &Path) -> Result<bool> {
    let none = "the service made no snapshot";
    let Some(mut service) = admin::connect(dir).await.context(none)? else { return Ok(false) };
    let to = to.to_str().with_context(|| format!("not a path in UTF-8: dir={}", to.display()))?;
    let asked = service.snapshot(SnapshotRequest { dir: to.to_owned() }).await;
    // The status message is the service's own and includes a way out.
    asked.map_err(|status| anyhow!(words(&status)).context(none))?;
    Ok(true)
}

/// Returns a status's text with its causes. If the connection broke, only the causes say how.
fn words(status: &Status) -> String {
    let said = match status.message() {
        "" => format!("no answer came over the admin socket: {}", status.code()),
        message => message.to_owned(),
    };
    engine_api::with_causes(said, std::error::Error::source(status))
}

/// Opens a store that is to be copied, and runs the checks that copying it would not make.
fn open_whole(dir: &Path, memory: ByteSize) -> Result<Box<dyn Engine>> {
    let mut store = open_existing_accepted(dir, Some(memory), &|checkpoint| store::refuse_lost(dir, checkpoint))?;
    if let Some(known) = engines::inspect(dir)? {
        engines::check_before_copy(known.engine, &mut *store)
            .with_context(|| format!("the store to copy is damaged: dir={}", dir.display()))?;
    }
    Ok(store)
}

fn read_record(dir: &Path) -> Result<Option<Digest>> {
    let path = dir.join(RECORD);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read file={}", path.display())),
    };
    let damaged = || format!("the snapshot's record is damaged: file={}", path.display());
    let record: Record = toml::from_str(&text).with_context(damaged)?;
    record.digest.parse().map(Some).map_err(|error: String| anyhow!(error)).with_context(damaged)
}

fn write_synced(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
