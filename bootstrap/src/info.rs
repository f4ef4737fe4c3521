//! `bootstrap info` and `bootstrap count`: what a directory holds.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Result;
use bytesize::ByteSize;
use engine_api::Engine;
use engines::Holds;
use serde_json::json;
use workload::Digest;

use crate::load::is_complete;
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
    let engine = open(&args.dir, args.memory)?;
    let checkpoint = engine.checkpoint()?;
    let stats = engine.stats()?;
    let load = load(&args.dir, checkpoint.seq)?;
    let holds = engines::inspect(&args.dir)?.map(|known| known.holds).unwrap_or_default();
    let digest = args.digest.then(|| scan(&*engine)).transpose()?;
    let blockhash = bs58::encode(checkpoint.blockhash).into_string();
    if args.json {
        let json = json!({
            "engine": engine.label(), "pairs_estimate": stats.pairs_estimate, "disk_bytes": stats.disk_bytes,
            "seq": checkpoint.seq, "slot": checkpoint.slot, "blockhash": blockhash, "load": load,
            "holds": holds, "digest": digest.map(|digest| digest.to_string()),
            "details": stats.details.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
        });
        println!("{json:#}");
    } else {
        println!("engine={}", engine.label());
        println!("pairs_estimate={} disk_bytes={}", stats.pairs_estimate, stats.disk_bytes);
        let slot = checkpoint.slot.map_or("none".to_owned(), |slot| slot.to_string());
        println!("checkpoint seq={} slot={slot} blockhash={blockhash}", checkpoint.seq);
        println!("load={load}");
        println!("holds {}", meaning(&holds));
        for (name, value) in &stats.details {
            println!("{name}={value}");
        }
        if let Some(digest) = digest {
            println!("digest={digest}");
        }
    }
    engine.close()?;
    Ok(0)
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
    let engine = open(&args.dir, None)?;
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
