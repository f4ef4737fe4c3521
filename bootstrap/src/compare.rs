//! `bootstrap compare`: two stores side by side, of whatever engines, in one pass over both.
//!
//! Owns: the merge of two scans. Must not: hold either map in memory. Threads: the other store is scanned on one of its
//! own, `other`, a few chunks ahead.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use engine_api::{Checkpoint, Engine, Key, Value};

use crate::info::open_to_read;
use crate::limits::{CHUNK_PAIRS, CHUNKS_AHEAD};

/// Compares two stores.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// Directory of a store
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Directory of the store that it is compared with
    #[arg(long, value_name = "DIR")]
    pub(crate) with: PathBuf,
    /// Differences to name
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) show: u64,
}

type Pair = (Key, Value);

/// Exit code 0 when both hold the same pairs, 1 when not.
pub(crate) fn run(args: &CompareArgs) -> Result<u8> {
    let same = args.dir.canonicalize().ok() == args.with.canonicalize().ok() && args.dir.exists();
    ensure!(!same, "both directories are the same: dir={} with={}", args.dir.display(), args.with.display());
    let (engine, other) = (open_to_read(&args.dir, None)?, open_to_read(&args.with, None)?);
    for (name, engine) in [("dir", &engine), ("with", &other)] {
        let Checkpoint { seq, slot, .. } = engine.checkpoint()?;
        let slot = slot.map_or("none".to_owned(), |slot| slot.to_string());
        println!("{name}: engine={} seq={seq} slot={slot}", engine.label());
    }
    let found = compare(&*engine, &*other, args.show)?;
    engine.close()?;
    other.close()?;
    let Found { pairs, with_pairs, only_in_dir, only_in_with, different, .. } = found;
    if only_in_dir + only_in_with + different == 0 {
        println!("equal: pairs={pairs}");
        return Ok(0);
    }
    println!(
        "not equal: pairs={pairs} with_pairs={with_pairs} only_in_dir={only_in_dir} only_in_with={only_in_with} \
         different={different}"
    );
    Ok(1)
}

/// What a comparison has found so far.
#[derive(Debug, Default)]
struct Found {
    pairs: u64,
    with_pairs: u64,
    only_in_dir: u64,
    only_in_with: u64,
    different: u64,
    show: u64,
}

fn compare(engine: &dyn Engine, other: &dyn Engine, show: u64) -> Result<Found> {
    thread::scope(|scope| {
        let (chunks, received) = sync_channel::<Vec<Pair>>(CHUNKS_AHEAD);
        let scan_other = move || -> engine_api::Result<()> {
            let mut chunk = Vec::with_capacity(CHUNK_PAIRS);
            other.reader()?.scan(&mut |key, value| {
                chunk.push((*key, *value));
                if chunk.len() < CHUNK_PAIRS {
                    return ControlFlow::Continue(());
                }
                // Nobody takes them: the scan on the other side has failed.
                match chunks.send(std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK_PAIRS))) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })?;
            chunks.send(chunk).ok();
            Ok(())
        };
        let scanning = thread::Builder::new()
            .name("other".to_owned())
            .spawn_scoped(scope, scan_other)
            .context("cannot start the thread of the second scan")?;
        let found = merge(engine, received, show);
        let scanned = scanning.join().map_err(|_| anyhow!("the second scan has panicked: this is a bug"))?;
        // A scan that was cut short looks like missing pairs: its error comes first.
        scanned?;
        found
    })
}

fn merge(engine: &dyn Engine, received: Receiver<Vec<Pair>>, show: u64) -> Result<Found> {
    let mut others = received.into_iter().flatten().peekable();
    let mut found = Found { show, ..Found::default() };
    engine.reader()?.scan(&mut |key, value| {
        found.pairs += 1;
        while let Some((other, there)) = others.next_if(|(other, _)| other < key) {
            found.only_in_with(&other, &there);
        }
        match others.next_if(|(other, _)| other.cmp(key) == Ordering::Equal) {
            Some((_, there)) => found.both(key, value, &there),
            None => found.only_in_dir(key, value),
        }
        ControlFlow::Continue(())
    })?;
    others.for_each(|(other, there)| found.only_in_with(&other, &there));
    Ok(found)
}

impl Found {
    fn both(&mut self, key: &Key, here: &Value, there: &Value) {
        self.with_pairs += 1;
        if here != there {
            self.different += 1;
            self.name("different", key, Some(here), Some(there));
        }
    }

    fn only_in_dir(&mut self, key: &Key, here: &Value) {
        self.only_in_dir += 1;
        self.name("only in dir", key, Some(here), None);
    }

    fn only_in_with(&mut self, key: &Key, there: &Value) {
        self.with_pairs += 1;
        self.only_in_with += 1;
        self.name("only in with", key, None, Some(there));
    }

    fn name(&self, what: &str, key: &Key, here: Option<&Value>, there: Option<&Value>) {
        if self.only_in_dir + self.only_in_with + self.different > self.show {
            return;
        }
        let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), base58);
        println!("{what}: key={} dir={} with={}", base58(key), text(here), text(there));
    }
}

fn base58(bytes: &[u8; 32]) -> String {
    bs58::encode(bytes).into_string()
}
