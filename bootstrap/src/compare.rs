//! `bootstrap compare`: compares two stores of any engines in one pass over both.
//!
//! Owns: the printed differences and counts. Must not: hold either map in memory. Threads: main scans the one store,
//! and `other` scans the other, a few chunks ahead.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use engine_api::{Code, Key, Value};

use crate::out::say;
use crate::running::warn_of_part;
use crate::scan::open_to_scan;
use crate::sides::{self, Counts, base58, base58_or_nothing};
use crate::undo::Undo;
use crate::wrong::Wrong;

/// Arguments that select the two stores to compare.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// Directory of the first store
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Directory of the store that it is compared with
    #[arg(long, value_name = "DIR")]
    pub(crate) with: PathBuf,
    /// Number of differences to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) show: u64,
}

/// Compares the stores. The exit code is 0 when both hold the same pairs, 1 when not.
pub(crate) fn run(args: &CompareArgs) -> Result<u8> {
    let same = args.dir.canonicalize().ok() == args.with.canonicalize().ok() && args.dir.exists();
    if same {
        let (dir, with) = (args.dir.display(), args.with.display());
        return Err(Wrong::error(Code::Arguments, format!("both directories are the same: dir={dir} with={with}")));
    }
    let (engine, other) = (open_to_scan(&args.dir, None, None)?, open_to_scan(&args.with, None, None)?);
    for dir in [&args.dir, &args.with] {
        warn_of_part(dir)?;
    }
    for (name, engine) in [("dir", &engine), ("with", &other)] {
        say!("{name}: engine={} {}", engine.label(), solana::shown(&engine.checkpoint()?));
    }
    let (found, _) = sides::merge((&*other, &Undo::nothing(), "other"), args.show, name, |both| {
        Ok(engine.reader()?.scan(&mut |key, value| {
            both.push(key, value);
            ControlFlow::Continue(())
        })?)
    })?;
    engine.close()?;
    other.close()?;
    let Counts { pairs, other_pairs, only_here, only_there, different } = found;
    if found.unequal() == 0 {
        say!("equal: pairs={pairs}");
        return Ok(0);
    }
    say!(
        "not equal: pairs={pairs} with_pairs={other_pairs} only_in_dir={only_here} only_in_with={only_there} \
         different={different}"
    );
    Ok(1)
}

fn name(key: &Key, here: Option<&Value>, there: Option<&Value>) {
    let what = match (here, there) {
        (_, None) => "only in dir",
        (None, _) => "only in with",
        _ => "different",
    };
    say!("{what}: key={} dir={} with={}", base58(key), base58_or_nothing(here), base58_or_nothing(there));
}
