//! `bootstrap info` and `bootstrap count`: describe the store in a directory.
//!
//! Owns: the printed description. Must not: write to the store, or open one that a service has open (the service is
//! asked instead). Runs on the main thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use derived::{history, values};
use engines::{Digest, Holds};
use serde_json::json;
use solana::{ChainCheckpoint, MapPhase};

use crate::out::say;
use crate::running::{self, Running};
use crate::scan::{open_to_scan, scan_memory};
use crate::served::{self, Served};
use crate::state::{State, is_complete};

/// Arguments that select a store and the facts to print about it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InfoArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Scan the whole store for its digest, which is the same for the same content on every engine
    #[arg(long)]
    pub(crate) digest: bool,
    /// Print JSON instead of one fact a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Memory of the engine; prints how strata would divide it, and the cost of reads with it [default: an eighth of the
    /// process's]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub(crate) memory: Option<ByteSize>,
}

/// Counts the pairs by a full scan.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CountArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

pub(crate) fn run(args: &InfoArgs) -> Result<u8> {
    if let Some(served) = served::ask(&args.dir)? {
        if args.digest || args.memory.is_some() {
            return Err(served::refusal(&args.dir, "for --digest and --memory stop it, or use a snapshot"));
        }
        return print(args, &served, "service", None);
    }
    let dir = args.dir.display();
    if let Some(Running { pid, engine, progress }) = running::find(&args.dir)? {
        let refused = format!(
            "a load of this store is running: dir={dir} pid={pid} {progress}: --digest and --memory work once it has ended"
        );
        return print_load(args, engine, "load", &format!("running: pid={pid} {progress}"), &refused);
    }
    if let Some(load) = running::unread(&args.dir)? {
        let refused = format!("there is no store yet: dir={dir} load={load}: --digest and --memory need a store");
        return print_load(args, None, "none", &load, &refused);
    }
    let engine = engines::open_read_only(&args.dir, Some(scan_memory(args.memory)))?;
    let (checkpoint, stats) = (engine.checkpoint()?, engine.stats()?);
    let (chain, no_chain) = match ChainCheckpoint::read(&checkpoint) {
        Ok(chain) => (Some(chain), None),
        // A store without a readable chain checkpoint can be described anyway.
        Err(error) => (None, Some(error.to_string())),
    };
    let digest = args.digest.then(|| Digest::of(&*engine)).transpose()?;
    let found = Served {
        engine: engine.label().to_owned(),
        pairs_estimate: stats.pairs_estimate,
        disk_bytes: stats.disk_bytes,
        seq: checkpoint.seq,
        slot: chain.and_then(|chain| chain.slot),
        blockhash: chain.map(|chain| bs58::encode(chain.blockhash).into_string()),
        phase: chain.map(|chain| chain.phase.to_string()),
        no_chain,
        details: stats.details.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    };
    engine.close()?;
    print(args, &found, "none", digest)
}

/// Describes a load that keeps the store closed, as far as can be seen from outside. `engine`: that of the store, if
/// there is one. `refused` says why the store cannot be read.
fn print_load(args: &InfoArgs, engine: Option<&str>, open_in: &str, load: &str, refused: &str) -> Result<u8> {
    ensure!(!args.digest && args.memory.is_none(), "{refused}");
    if args.json {
        let json = json!({ "engine": engine, "open_in": open_in, "load": load });
        say!("{json:#}");
        return Ok(0);
    }
    say!("engine={}", engine.unwrap_or("none"));
    say!("open_in={open_in}");
    say!("load={load}");
    Ok(0)
}

fn print(args: &InfoArgs, found: &Served, open_in: &str, digest: Option<Digest>) -> Result<u8> {
    let Served { engine, pairs_estimate, disk_bytes, seq, slot, blockhash, phase, no_chain, details } = found;
    let (load, listing) = load(&args.dir, *seq)?;
    // Before a load's first commit, the store's checkpoint does not mention the load.
    let is_part = is_complete(&args.dir)? == Some(false);
    // An all-zero blockhash means that no block is known yet.
    let zeros = bs58::encode([0; 32]).into_string();
    let block = blockhash.as_ref().filter(|blockhash| **blockhash != zeros);
    let phase = if is_part { &Some(MapPhase::Loading.to_string()) } else { phase };
    let known = engines::inspect(&args.dir)?;
    // The options as on a command line. The label is meant for tables and metrics.
    let options = known.as_ref().filter(|known| !known.options.is_empty()).map(|known| {
        let options = known.options.iter().map(|(name, value)| format!(" {name}={value}"));
        format!("engine={}{}", known.engine, options.collect::<String>())
    });
    let is_there = |name: &&str| derived::dir(&args.dir, name).exists();
    let derived: Vec<&str> = [values::NAME, history::NAME].into_iter().filter(is_there).collect();
    let (holds, lost) = (known.map(|known| known.holds).unwrap_or_default(), engines::lost(&args.dir)?);
    if args.json {
        let json = json!({
            "engine": engine, "pairs_estimate": pairs_estimate, "disk_bytes": disk_bytes, "open_in": open_in,
            "seq": seq, "slot": slot, "blockhash": block, "phase": phase, "no_chain": no_chain,
            "load": load, "manifest_list": listing, "lost": lost, "holds": holds, "derived": derived,
            "digest": digest.map(|digest| digest.to_string()),
            "details": details.iter().cloned().collect::<BTreeMap<_, _>>(),
        });
        say!("{json:#}");
        return Ok(0);
    }
    say!("engine={engine}");
    if let Some(options) = options {
        say!("options {options}");
    }
    say!("open_in={open_in}");
    if open_in == "none" {
        say!("memory={}", scan_memory(args.memory));
    }
    say!("pairs_estimate={pairs_estimate} disk_bytes={disk_bytes}");
    let slot = slot.map_or("none".to_owned(), |slot| slot.to_string());
    match (no_chain, blockhash, phase) {
        (None, Some(_), Some(phase)) => {
            let blockhash = block.map_or("none", String::as_str);
            say!("checkpoint seq={seq} slot={slot} blockhash={blockhash} phase={phase}");
        }
        _ if holds.derived.is_some() => say!("checkpoint seq={seq}"),
        (why, ..) => say!("checkpoint seq={seq} {}", why.as_deref().unwrap_or("nothing of a chain")),
    }
    say!("load={load}");
    if let Some(listing) = listing {
        say!("manifest_list={listing}");
    }
    if lost > 0 {
        say!("lost={lost}");
    }
    say!("holds {}", meaning(&holds));
    for name in &derived {
        say!("derived={name} dir={}", derived::dir(&args.dir, name).display());
    }
    for (name, value) in details {
        say!("{name}={value}");
    }
    if let Some(digest) = digest {
        say!("digest={digest}");
    }
    Ok(0)
}

/// Describes the load that filled the store, and the list of files in its archives' manifests if that was not compared.
/// `seq`: number of pairs committed.
fn load(dir: &Path, seq: u64) -> Result<(String, Option<&'static str>)> {
    let Some(complete) = is_complete(dir)? else { return Ok(("none".to_owned(), None)) };
    if engines::lost(dir)? > 0 {
        return Ok(("damaged: a repair has lost a part of it; restore a snapshot, or load again".to_owned(), None));
    }
    let state = State::read_or_tell(dir);
    let listing = state.as_ref().and_then(|state| state.listing.shown());
    let load = match state {
        Some(State { pairs: Some(pairs), source, .. }) if complete => format!("complete: {pairs} pairs from {source}"),
        Some(State { records, source, .. }) if !complete => {
            format!("interrupted: {seq} pairs of {records} records from {source}; --resume continues")
        }
        _ if complete => "complete".to_owned(),
        _ => "interrupted; --resume continues".to_owned(),
    };
    Ok((load, listing))
}

fn meaning(holds: &Holds) -> String {
    if let Some(name) = &holds.derived {
        return format!("derived={name}");
    }
    let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "unknown".to_owned());
    // A service adds the programs that it follows.
    let programs =
        holds.programs.as_ref().map_or(String::new(), |programs| format!(" programs={}", programs.join(",")));
    format!("extract={}{programs} cluster={}", word(&holds.extract), word(&holds.cluster))
}

pub(crate) fn count(args: &CountArgs) -> Result<u8> {
    let engine = open_to_scan(&args.dir, None, None)?;
    say!("{}", Digest::of(&*engine)?.pairs());
    engine.close()?;
    Ok(0)
}
