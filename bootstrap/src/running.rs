//! A store whose load is running or was interrupted, as seen by another command.
//!
//! Owns: the messages about such a load. Must not: wait for it, or change anything. Runs on the main thread.

use std::path::Path;

use anyhow::{Error, Result, anyhow};
use engine_api::ErrorKind;
use engines::LoadState;

use crate::order::{is_spilled, spilled_records, spilled_source};
use crate::out::tell;
use crate::paths::beside;
use crate::state::State;

/// A load that another process is running.
pub(crate) struct Running {
    /// Id of the process that runs the load.
    pub(crate) pid: String,
    /// Name of the engine. `None` until the store exists.
    pub(crate) engine: Option<&'static str>,
    /// Progress of the load, in words.
    pub(crate) progress: String,
}

impl Running {
    /// Error for a command that needs the store in `dir` now.
    pub(crate) fn refusal(&self, dir: &Path) -> Error {
        let Self { pid, progress, .. } = self;
        anyhow!(
            "a load of this store is running: dir={} pid={pid} {progress}: wait until it ends; `info` shows its progress",
            dir.display()
        )
    }
}

/// Returns the load that another process is running in `dir`. `None` if there is none, or if a service has the store
/// open.
///
/// # Errors
/// I/O errors of reading the store's marker, and of its lock before there is a store; a damaged marker.
pub(crate) fn find(dir: &Path) -> Result<Option<Running>> {
    let known = engines::inspect(dir)?;
    let pid = match engines::holder(dir) {
        Ok(Some(pid)) => pid,
        Ok(None) => return Ok(None),
        Err(error) if known.is_none() => return Err(error.into()),
        // Opening the store reports the reason.
        Err(_) => return Ok(None),
    };
    if known.as_ref().is_some_and(|known| !known.is_loading()) {
        return Ok(None);
    }
    let (source, work) = (State::read(dir).ok().flatten(), beside(dir, ".work"));
    let spilled = spilled_records(&work);
    let progress = match (&known, source) {
        // A load whose spill was lost reads its source again beside the store.
        (Some(_), Some(state)) if spilled.is_none() || is_spilled(&work) => format!(
            "records={} source={:?} disk_bytes={}: they are being written to the store",
            state.records,
            state.source,
            probe::disk_bytes(dir)
        ),
        _ => {
            let spilled = spilled.map_or_else(|| "unknown".to_owned(), |records| records.to_string());
            format!("spilled_records={spilled}: its source is being read")
        }
    };
    Ok(Some(Running { pid, engine: known.map(|known| known.engine.as_str()), progress }))
}

/// Describes a load of `dir` that was interrupted before there was a store, most often while it read its source. `None`
/// if there is a store, or neither a spill in the default place nor a spool.
///
/// # Errors
/// I/O errors of reading the store's marker; a damaged marker.
pub(crate) fn unread(dir: &Path) -> Result<Option<String>> {
    if engines::inspect(dir)?.is_some() {
        return Ok(None);
    }
    // Only a service that loads its store has a spool before there is a store.
    let (work, spool) = (beside(dir, ".work"), dir.join(engines::SPOOL));
    let of_service = spool.is_dir();
    let (spool, way_on) = match of_service {
        true => (format!(" spool={}", spool.display()), "the next start of the service with create continues"),
        false => (String::new(), "the load's command with --resume continues"),
    };
    let spilled = spilled_records(&work).zip(spilled_source(&work));
    let spilled = spilled.map(|(records, (source, _))| {
        format!("spilled_records={records} source={source:?} spill={}{spool}", work.display())
    });
    let left = spilled.or_else(|| of_service.then(|| format!("spilled_records=none{spool}")));
    Ok(left.map(|left| format!("interrupted before the store was created: {left}: {way_on}")))
}

/// Returns the running load's refusal if such a load may have caused `error`, otherwise `error` itself.
pub(crate) fn explain(dir: &Path, error: engine_api::Error) -> Error {
    let may_be = [ErrorKind::Retry, ErrorKind::FixInput].contains(&error.kind());
    match find(dir) {
        Ok(Some(running)) if may_be => running.refusal(dir),
        _ => error.into(),
    }
}

/// Warns if the load of the store in `dir` was interrupted, so that the store holds only a part of its source.
pub(crate) fn warn_of_part(dir: &Path) -> Result<()> {
    let load = engines::inspect(dir)?.and_then(|known| known.load);
    if load.is_some_and(|load| load.state == LoadState::Loading) {
        tell!(
            "the load of this store was interrupted, so that it holds a part of its source: dir={}: finish it by the load's \
             command with --resume",
            dir.display()
        );
    }
    Ok(())
}
