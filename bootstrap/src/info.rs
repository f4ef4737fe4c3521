//! `bootstrap info` and `bootstrap count`: what a directory holds.
//!
//! Owns: what is printed. Must not: write to the store; of one that is served, the service is asked. Runs on the main
//! thread.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use engine_api::{Engine, ErrorKind};
use engines::Holds;
use serde_json::json;
use workload::Digest;

use crate::resume::is_complete;
use crate::served::{self, Served};
use crate::state::State;

/// Describes a store.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InfoArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Scan the whole store for its digest, which names its content whatever the engine
    #[arg(long)]
    pub(crate) digest: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Memory of the engine: what it would be divided into, and what reads would cost (strata)
    #[arg(long, value_name = "SIZE")]
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
        ensure!(
            !args.digest && args.memory.is_none(),
            "a running service has the store open: --digest and --memory need it stopped, or a snapshot of it: dir={}",
            args.dir.display()
        );
        return print(args, &served, "service", None);
    }
    let engine = open_to_read(&args.dir, args.memory)?;
    let (checkpoint, stats) = (engine.checkpoint()?, engine.stats()?);
    let digest = args.digest.then(|| scan(&*engine)).transpose()?;
    let found = Served {
        engine: engine.label().to_owned(),
        pairs_estimate: stats.pairs_estimate,
        disk_bytes: stats.disk_bytes,
        seq: checkpoint.seq,
        slot: checkpoint.slot,
        blockhash: bs58::encode(checkpoint.blockhash).into_string(),
        details: stats.details.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    };
    engine.close()?;
    print(args, &found, "none", digest)
}

fn print(args: &InfoArgs, found: &Served, open_in: &str, digest: Option<Digest>) -> Result<u8> {
    let Served { engine, pairs_estimate, disk_bytes, seq, slot, blockhash, details } = found;
    let load = load(&args.dir, *seq)?;
    let holds = engines::inspect(&args.dir)?.map(|known| known.holds).unwrap_or_default();
    if args.json {
        let json = json!({
            "engine": engine, "pairs_estimate": pairs_estimate, "disk_bytes": disk_bytes, "open_in": open_in,
            "seq": seq, "slot": slot, "blockhash": blockhash, "load": load, "holds": holds,
            "digest": digest.map(|digest| digest.to_string()),
            "details": details.iter().cloned().collect::<BTreeMap<_, _>>(),
        });
        println!("{json:#}");
        return Ok(0);
    }
    println!("engine={engine}");
    println!("open_in={open_in}");
    println!("pairs_estimate={pairs_estimate} disk_bytes={disk_bytes}");
    let slot = slot.map_or("none".to_owned(), |slot| slot.to_string());
    println!("checkpoint seq={seq} slot={slot} blockhash={blockhash}");
    println!("load={load}");
    println!("holds {}", meaning(&holds));
    for (name, value) in details {
        println!("{name}={value}");
    }
    if let Some(digest) = digest {
        println!("digest={digest}");
    }
    Ok(0)
}

/// Opens a store to read it, and writes nothing, so that one on a read-only file system will do. Only an engine that has
/// to recover its files first, and cannot do that in memory, is opened as any program opens it.
pub(crate) fn open_to_read(dir: &Path, memory: Option<ByteSize>) -> Result<Box<dyn Engine>> {
    match engines::open_read_only(dir, memory) {
        Err(error) if error.kind() == ErrorKind::Reopen => open(dir, memory),
        opened => Ok(opened?),
    }
}

/// The load in words; `seq`: how many pairs are committed.
fn load(dir: &Path, seq: u64) -> Result<String> {
    let Some(complete) = is_complete(dir)? else { return Ok("none".to_owned()) };
    Ok(match State::read(dir)? {
        Some(State { pairs: Some(pairs), source, .. }) if complete => format!("complete: {pairs} pairs from {source}"),
        Some(State { records, source, .. }) if !complete => {
            format!("interrupted: {seq} of {records} records from {source}; --resume goes on")
        }
        _ if complete => "complete".to_owned(),
        _ => "interrupted; --resume goes on".to_owned(),
    })
}

fn meaning(holds: &Holds) -> String {
    let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "unknown".to_owned());
    let programs = holds.programs.as_ref().map_or("unknown".to_owned(), |programs| programs.join(","));
    format!("extract={} programs={programs} cluster={}", word(&holds.extract), word(&holds.cluster))
}

pub(crate) fn count(args: &CountArgs) -> Result<u8> {
    let engine = open_to_read(&args.dir, None)?;
    println!("{}", scan(&*engine)?.pairs());
    engine.close()?;
    Ok(0)
}

/// Opens with the engine that the directory names.
pub(crate) fn open(dir: &Path, memory: Option<ByteSize>) -> Result<Box<dyn Engine>> {
    Ok(engines::open_existing(dir, memory)?)
}

/// The digest of everything in a store.
pub(crate) fn scan(engine: &dyn Engine) -> Result<Digest> {
    let mut digest = Digest::default();
    engine.reader()?.scan(&mut |key, value| {
        digest.add(key, value);
        ControlFlow::Continue(())
    })?;
    Ok(digest)
}
