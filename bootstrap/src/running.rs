//! A store whose load is under way or was interrupted, as those see it who look at the store.
//!
//! Owns: what is said of such a load. Must not: wait for it, or change anything. Runs on the main thread.

use std::path::Path;

use anyhow::{Error, Result, anyhow};
use engine_api::ErrorKind;
use engines::LoadState;

use crate::order::spilled_records;
use crate::out::tell;
use crate::paths::beside;
use crate::state::State;

/// A load that another process is busy with.
pub(crate) struct Running {
    /// The process.
    pub(crate) pid: String,
    /// The engine, once the store is there.
    pub(crate) engine: Option<&'static str>,
    /// How far it is, in words.
    pub(crate) progress: String,
}

impl Running {
    /// Why nobody else can have the store in `dir`.
    pub(crate) fn refusal(&self, dir: &Path) -> Error {
        let Self { pid, progress, .. } = self;
        anyhow!(
            "a load of this store is running: dir={} pid={pid} {progress}: wait for its end; `info` says how far it is",
            dir.display()
        )
    }
}

/// The load that has the directory of a store now; `None` where there is none, or where it is a service that has it.
///
/// # Errors
/// As those of [`engines::inspect`].
pub(crate) fn find(dir: &Path) -> Result<Option<Running>> {
    // Whoever may not look at the lock is told when the store is opened.
    let Ok(Some(pid)) = engines::holder(dir) else { return Ok(None) };
    let known = engines::inspect(dir)?;
    if known.as_ref().is_some_and(|known| !known.is_loading()) {
        return Ok(None);
    }
    let source = State::read(dir).ok().flatten();
    let progress = match (&known, source) {
        (Some(_), Some(state)) => format!(
            "records={} source={:?} disk_bytes={}: they are being written to the store",
            state.records,
            state.source,
            probe::disk_bytes(dir)
        ),
        _ => {
            let spilled = spilled_records(&beside(dir, ".work"));
            let spilled = spilled.map_or_else(|| "unknown".to_owned(), |records| records.to_string());
            format!("spilled_records={spilled}: its source is being read")
        }
    };
    Ok(Some(Running { pid, engine: known.map(|known| known.engine.as_str()), progress }))
}

/// The same error, or where a load is the reason of it that one.
pub(crate) fn explain(dir: &Path, error: engine_api::Error) -> Error {
    let may_be = [ErrorKind::Retry, ErrorKind::FixInput].contains(&error.kind());
    match find(dir) {
        Ok(Some(running)) if may_be => running.refusal(dir),
        _ => error.into(),
    }
}

/// Says that the store in `dir` is a part of what it was to be, where that is so.
pub(crate) fn warn_of_part(dir: &Path) -> Result<()> {
    let load = engines::inspect(dir)?.and_then(|known| known.load);
    if load.is_some_and(|load| load.state == LoadState::Loading) {
        tell!(
            "the load of this store was interrupted, so that it holds a part of its source: dir={}: the load's command \
             with --resume goes on",
            dir.display()
        );
    }
    Ok(())
}
