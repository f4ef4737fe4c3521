//! `bootstrap get`: looks up keys in a store at rest.
//!
//! Owns: the keys on the command line, and the printed pairs. Must not: write to the store, or open one that a service
//! has open. Runs on the main thread.

use std::path::PathBuf;

use anyhow::Result;
use engine_api::Key;

use crate::derive::refuse_derived;
use crate::out::{say, tell};
use crate::past::Past;
use crate::running::warn_of_part;
use crate::scan::open_to_scan;
use crate::served;
use crate::sides::base58;

/// Looks up keys in a store
///
/// Prints a line for each key, in the order of the arguments: the key and its value, or the key and - if the store does
/// not have it. Both are in base58. The exit code is 1 if a key is absent.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GetArgs {
    /// Directory of the store; nothing in it is changed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Slot of the past at which to look; the map needs its past, which the service keeps with history_slots
    #[arg(long, value_name = "SLOT")]
    pub(crate) at: Option<u64>,
    /// Keys to look up, in base58 or as 64 hex digits
    #[arg(value_name = "KEY", required = true, value_parser = workload::pubkey)]
    pub(crate) keys: Vec<Key>,
}

/// Looks up the keys. The exit code is 0 if the store has all of them, and 1 if not.
pub(crate) fn run(args: &GetArgs) -> Result<u8> {
    if served::ask(&args.dir)?.is_some() {
        return Err(served::refusal(
            &args.dir,
            "ask the service (GUIDE.md, Look up), or look into a snapshot of the store",
        ));
    }
    refuse_derived(&args.dir)?;
    let engine = open_to_scan(&args.dir, None, None)?;
    warn_of_part(&args.dir)?;
    let past = args.at.map(|slot| Past::open(&args.dir, &*engine, slot)).transpose()?;
    let mut reader = engine.reader()?;
    let mut absent = 0;
    for key in &args.keys {
        let now = reader.get(key)?;
        let value = past.as_ref().map_or(Ok(now), |past| past.value(key, now))?;
        absent += usize::from(value.is_none());
        say!("{} {}", base58(key), value.map_or_else(|| "-".to_owned(), |value| base58(&value)));
    }
    drop(reader);
    past.map_or(Ok(()), Past::close)?;
    engine.close()?;
    if absent > 0 {
        tell!("keys are absent from the map: absent={absent} asked={}", args.keys.len());
    }
    Ok(u8::from(absent > 0))
}
