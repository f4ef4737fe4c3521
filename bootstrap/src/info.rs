//! `bootstrap info` and `bootstrap count`: what a directory holds.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use engine_api::Engine;
use engines::{EngineOptions, OpenMode};
use serde_json::json;
use workload::Digest;

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
    let load = match State::read(&args.dir)? {
        None => "none".to_owned(),
        Some(State { pairs: Some(pairs), source, .. }) => format!("complete: {pairs} pairs from {source}"),
        Some(State { records, source, .. }) => {
            format!("interrupted: {} of {records} records from {source}; --resume goes on", checkpoint.seq)
        }
    };
    let digest = args.digest.then(|| scan(&*engine)).transpose()?;
    let blockhash = bs58::encode(checkpoint.blockhash).into_string();
    if args.json {
        let json = json!({
            "engine": engine.label(), "pairs_estimate": stats.pairs_estimate, "disk_bytes": stats.disk_bytes,
            "seq": checkpoint.seq, "slot": checkpoint.slot, "blockhash": blockhash, "load": load,
            "digest": digest.map(|digest| digest.to_string()),
            "details": stats.details.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
        });
        println!("{json:#}");
    } else {
        println!("engine={}", engine.label());
        println!("pairs_estimate={} disk_bytes={}", stats.pairs_estimate, stats.disk_bytes);
        let slot = checkpoint.slot.map_or("none".to_owned(), |slot| slot.to_string());
        println!("checkpoint seq={} slot={slot} blockhash={blockhash}", checkpoint.seq);
        println!("load={load}");
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

pub(crate) fn count(args: &CountArgs) -> Result<u8> {
    let engine = open(&args.dir, None)?;
    println!("{}", scan(&*engine)?.pairs());
    engine.close()?;
    Ok(0)
}

/// Opens with the engine that the directory names.
pub(crate) fn open(dir: &std::path::Path, memory: Option<ByteSize>) -> Result<Box<dyn Engine>> {
    let identity = engines::inspect(dir)?
        .with_context(|| format!("there is no store: dir={}: correct the path", dir.display()))?;
    let options = EngineOptions { profile: identity.profile, memory, ..EngineOptions::new(identity.engine) };
    Ok(engines::open(dir, &options, OpenMode::Existing)?)
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
