//! `bootstrap keys-of`: prints the keys that have a value, of a store at rest.
//!
//! Owns: the values on the command line, and the printed keys. Must not: write to a store, or open one that a service has
//! open. Runs on the main thread.

use std::path::PathBuf;

use anyhow::Result;
use derived::values;
use engine_api::Value;

use crate::derive::open_values;
use crate::out::{say, tell};
use crate::scan::open_to_scan;
use crate::served;
use crate::sides::base58;

/// Number of keys that are read before they are printed.
const PAGE_KEYS: usize = 10_000;

/// Prints the keys that have a value
///
/// One line a key, in base58 and in no particular order. The map needs its derived store: build it with `derive`. The exit code
/// is 1 if no key has the value.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct KeysOfArgs {
    /// Directory of the map; nothing in it is changed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The value, in base58 or as 64 hex digits
    #[arg(value_name = "VALUE", value_parser = workload::pubkey)]
    pub(crate) value: Value,
    /// Number of keys after which to stop
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: u64,
}

/// Prints the keys. The exit code is 0 if there is one, and 1 if not.
pub(crate) fn run(args: &KeysOfArgs) -> Result<u8> {
    if served::ask(&args.dir)?.is_some() {
        return Err(served::refusal(&args.dir, "ask the service: GUIDE.md, Look up"));
    }
    let map = open_to_scan(&args.dir, None, None)?;
    let (store, position) = open_values(&args.dir, &*map)?;
    let mut reader = store.reader()?;
    let (mut left, mut after, mut count) = (args.limit, None, 0u64);
    while left > 0 {
        let limit = left.min(PAGE_KEYS as u64) as usize;
        let page = values::page(&mut *reader, &position.secret, &args.value, after.as_ref(), limit, None)?;
        page.keys.iter().for_each(|key| say!("{}", base58(key)));
        (left, count) = (left - page.keys.len() as u64, count + page.keys.len() as u64);
        after = page.more;
        if after.is_none() {
            break;
        }
    }
    let slot = position.slot.map_or_else(|| "unknown".to_owned(), |slot| slot.to_string());
    let more = if after.is_some() { ", and there are more" } else { "" };
    tell!("keys={count} slot={slot}{more}");
    drop(reader);
    store.close()?;
    map.close()?;
    Ok(u8::from(count == 0))
}
