//! `bootstrap scrub`: lets the engine check everything that it has stored.
//!
//! Owns: the printed result. Must not: write to the store, or repair it. Runs on the main thread.

use std::path::{Path, PathBuf};

use anyhow::Result;
use bytesize::ByteSize;
use engine_api::{Engine, ErrorKind};
use engines::{Digest, Identity};

use crate::derive::derived_way_out;
use crate::out::{say, tell};
use crate::resume::refuse_part;
use crate::running::warn_of_part;
use crate::scan::open_to_scan;

/// Arguments that select the store to check.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ScrubArgs {
    /// Directory of the store; nothing in it is changed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Memory of the engine [default: an eighth of the memory that this process may use]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub(crate) memory: Option<ByteSize>,
}

/// Checks the store and its derived stores. The exit code is 0 when nothing is wrong, 1 when something is.
pub(crate) fn run(args: &ScrubArgs) -> Result<u8> {
    let values = derived::dir(&args.dir, derived::values::NAME);
    let periods = derived::history::periods(&args.dir)?.into_iter().map(|(_, dir)| dir);
    let beside = values.exists().then_some(values).into_iter().chain(periods);
    beside.map(|dir| ScrubArgs { dir, ..args.clone() }).try_fold(check(args)?, |code, args| {
        tell!("checking a derived store: dir={}", args.dir.display());
        Ok(code.max(check(&args)?))
    })
}

/// Checks the store in one directory.
fn check(args: &ScrubArgs) -> Result<u8> {
    let known = engines::inspect(&args.dir)?;
    let checked = open_to_scan(&args.dir, None, args.memory).and_then(|mut engine| {
        warn_of_part(&args.dir)?;
        let pairs = engine.scrub()?;
        let checkpoint = engine.checkpoint()?;
        refuse_part(&args.dir, &checkpoint)?;
        let notes = known.as_ref().map(|known| compare(&args.dir, known, &*engine, checkpoint.seq)).transpose()?;
        let derived = known.as_ref().and_then(|known| known.holds.derived.as_ref());
        let at = derived.map_or_else(
            || solana::shown(&checkpoint).to_string(),
            |name| format!("derived={name} seq={}", checkpoint.seq),
        );
        say!("sound: engine={} pairs={pairs} {at}", engine.label());
        notes.into_iter().flatten().for_each(|note| say!("{note}"));
        Ok(engine.close()?)
    });
    match checked {
        Ok(()) => Ok(0),
        // Damage is reported in the same way, whether opening the store found it or reading it.
        Err(error) => match error.downcast_ref::<engine_api::Error>() {
            Some(failed) if failed.kind() == ErrorKind::DataDamaged => {
                say!("damaged: {}", engine_api::words(error.as_ref()));
                if let Some(name) = known.as_ref().and_then(|known| known.holds.derived.as_ref()) {
                    say!("{}", derived_way_out(name));
                    return Ok(1);
                }
                if failed.has_way_out() {
                    return Ok(1);
                }
                let repair = if known.is_some_and(|known| known.engine.descriptor().repair.is_some()) {
                    format!(
                        ", or try `{} repair --dir {}`, which keeps all that can be read",
                        program::called("bootstrap"),
                        args.dir.display()
                    )
                } else {
                    String::new()
                };
                say!("restore a snapshot, or load the store again{repair}");
                Ok(1)
            }
            _ => Err(error),
        },
    }
}

/// Compares the store's pairs with the loaded pairs, if the store is as the load left it. Returns further remarks to
/// print.
fn compare(dir: &Path, known: &Identity, engine: &dyn Engine, seq: u64) -> Result<Vec<String>> {
    let lost = engines::lost(dir)?;
    if lost > 0 {
        return Ok(vec![format!("not whole: a repair has lost a part of this store: lost={lost}")]);
    }
    let loaded = known.loaded_at(seq);
    if let Some(loaded) = loaded {
        // Checksums cannot tell that the files belong to another store, so compare the digests too.
        let found = Digest::of(engine)?;
        if let Some(how) = loaded.difference(found.pairs(), &found.to_string()) {
            return Err(other(how, seq));
        }
    }
    let unchecked = format!("not checked: engine={} keeps no checksums", known.engine);
    Ok(match (known.engine.descriptor().has_checksums, loaded.and_then(|loaded| loaded.digest.as_ref())) {
        (true, _) => Vec::new(),
        (false, Some(_)) => vec![format!("{unchecked}; its digest is that of the load, and it has not changed since")],
        (false, None) => {
            vec![format!("{unchecked}, so a changed value goes unnoticed: compare it with a copy")]
        }
    })
}

fn other(how: String, seq: u64) -> anyhow::Error {
    let text = format!(
        "the store does not hold the pairs that were loaded, though nothing has changed it since: seq={seq} {how}"
    );
    engine_api::Error::new(ErrorKind::DataDamaged, text).into()
}
