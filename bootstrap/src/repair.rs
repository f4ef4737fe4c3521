//! `bootstrap repair`: makes a store whole again that does not open, or that is damaged.
//!
//! Owns: the printed findings. Must not: decide which data is kept, because that is the engine's decision. Runs on the
//! main thread.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use engine_api::Code;

use crate::derive::{derived_way_out, remove_values};
use crate::out::say;
use crate::resume::refuse_part;

/// Makes a store whole again.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RepairArgs {
    /// Directory of the store; no process may have it open
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Repairs the store. The exit code is 0 when nothing is lost, and 1 when something is, by this repair or an earlier
/// one.
pub(crate) fn run(args: &RepairArgs) -> Result<u8> {
    if let Some(name) = engines::inspect(&args.dir)?.and_then(|known| known.holds.derived) {
        return Err(refusal(args, &name));
    }
    let repaired = engines::repair(&args.dir)?;
    let lost = engines::lost(&args.dir)?;
    let (dir, whole) = (args.dir.display(), refuse_part(&args.dir, &repaired.checkpoint));
    if repaired.findings.is_empty() && lost > 0 {
        say!(
            "nothing was changed, and an earlier repair has lost a part: dir={dir} lost={lost}: {dir}/data/LOST lists it"
        );
        return Ok(1);
    }
    if repaired.findings.is_empty() {
        whole?;
        say!("in order: nothing was changed: dir={dir}");
        return Ok(0);
    }
    repaired.findings.iter().for_each(|line| say!("found: {line}"));
    repaired.lost.iter().for_each(|line| say!("lost: {line}"));
    say!("repaired: dir={dir} seq={}", repaired.checkpoint.seq);
    whole?;
    if repaired.lost.is_empty() && lost == 0 {
        return Ok(0);
    }
    if repaired.lost.is_empty() {
        say!("an earlier repair has lost a part: dir={dir} lost={lost}: {dir}/data/LOST lists it");
    }
    if remove_values(&args.dir)? {
        say!("removed the derived store values, because it is of the map before: `derive` builds it again");
    }
    if derived::dir(&args.dir, derived::history::NAME).exists() {
        say!("the past knows nothing of that: it takes lost keys for absent ones");
    }
    say!("before you serve it, compare it with its source or a copy; or restore a copy");
    Ok(1)
}

/// A derived store that lacks entries would give wrong answers, and the map has all that is in it.
fn refusal(args: &RepairArgs, name: &str) -> anyhow::Error {
    let way_out = derived_way_out(name);
    let text = format!("a derived store is not repaired: derived={name} dir={}: {way_out}", args.dir.display());
    anyhow!(text).context(Code::Derived)
}
