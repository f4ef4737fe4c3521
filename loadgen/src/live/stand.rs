//! The position of a live run's store before the run, from which the stream has to continue.
//!
//! Owns: the requests for it. Must not: open a store; `bootstrap info` or the running service does that. Runs on the
//! live run's thread.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::process::get;
use crate::stream::Stand;

/// Asks the program `bootstrap` for the position of the store in `dir`. `with_digest` adds its digest, which takes a
/// scan. `None` for a store that has no slot yet.
pub(super) fn of_directory(bootstrap: &Path, dir: &Path, with_digest: bool) -> Result<Option<Stand>> {
    let mut command = Command::new(bootstrap);
    command.args(["info", "--json"]).args(with_digest.then_some("--digest")).arg("--dir").arg(dir);
    let output = command.output().with_context(|| format!("cannot run: program={}", bootstrap.display()))?;
    ensure!(
        output.status.success(),
        "bootstrap info failed: status={} error={}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let info: Value = serde_json::from_slice(&output.stdout).context("bootstrap info gave no JSON")?;
    let digest = info.get("digest").and_then(Value::as_str).map(str::to_owned);
    Ok(stand(&info)?.map(|stand| Stand { digest, ..stand }))
}

/// Asks a running service for the position of its store. `None` if the service does not answer yet.
pub(super) fn of_service(metrics: &str) -> Result<Option<Stand>> {
    let Ok(status) = get(metrics, "/status.json") else { return Ok(None) };
    let status: Value = serde_json::from_slice(&status).context("the service's /status.json is no JSON")?;
    status.get("checkpoint").map_or(Ok(None), stand)
}

/// Reads a slot from JSON. Protobuf's JSON may write it as text, any other as a number.
pub(super) fn slot(of: &Value) -> Option<u64> {
    let slot = of.get("slot")?;
    slot.as_u64().or_else(|| slot.as_str()?.parse().ok())
}

fn stand(of: &Value) -> Result<Option<Stand>> {
    let text = of.get("blockhash").and_then(Value::as_str);
    let mut blockhash = [0; 32];
    let (slot, text) = match (slot(of), text) {
        (Some(slot), Some(text)) => (slot, text),
        // A store that was loaded at a slot has no blockhash yet. Slot 0 means none.
        (Some(slot), None) if slot > 0 => return Ok(Some(Stand { slot, blockhash, digest: None })),
        _ => return Ok(None),
    };
    let bytes = bs58::decode(text).onto(&mut blockhash);
    ensure!(matches!(bytes, Ok(32)), "not a blockhash: text={text:?}");
    Ok(Some(Stand { slot, blockhash, digest: None }))
}
