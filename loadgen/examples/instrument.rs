//! Is the instrument right? Each engine's reads timed by a program that knows nothing of ours, and by `loadgen bench`,
//! on the same store, by turns. `make bench-instrument` runs it; exit code 1 when they differ by more than 15%.
//!
//! Owns: three minimal programs, one an engine, with a plain clock around a plain get. Must not: use engine crates,
//! histograms or readers of ours; only the files' layout is known here. Runs on the main thread.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use lmdb::Transaction;
use redb::ReadableDatabase;
use workload::{Pairs, Rng};

const PAIRS: u64 = 1_000_000;
const READS: usize = 500_000;
const TURNS: usize = 3;
const CACHE_BYTES: usize = 1 << 30;
/// Largest difference that is accepted, as a share.
const TOLERANCE: f64 = 0.15;

fn main() -> Result<()> {
    let bin = std::env::args_os().nth(1).map(PathBuf::from).context("usage: instrument FOLDER-OF-THE-BINARIES")?;
    let work = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut wrong = 0;
    println!("{:8} {:14} {:>12} {:>12} {:>7}", "engine", "op", "stand-alone", "loadgen", "ratio");
    for engine in ["rocksdb", "lmdb", "redb"] {
        let store = work.path().join(engine);
        load(&bin, engine, &store)?;
        for positive in [true, false] {
            let (mut alone, mut bench) = (Vec::new(), Vec::new());
            for turn in 0..TURNS {
                alone.push(stand_alone(engine, &store.join("data"), positive, turn as u64)?);
                bench.push(by_loadgen(&bin, engine, &store, positive)?);
            }
            let (alone, bench) = (median(alone), median(bench));
            let ratio = bench / alone;
            let op = if positive { "read_positive" } else { "read_negative" };
            println!("{engine:8} {op:14} {alone:9.0} ns {bench:9.0} ns {ratio:7.3}");
            wrong += usize::from((ratio - 1.0).abs() > TOLERANCE);
        }
    }
    ensure!(wrong == 0, "{wrong} of the means differ by more than {:.0}%", TOLERANCE * 100.0);
    Ok(())
}

fn load(bin: &Path, engine: &str, store: &Path) -> Result<()> {
    let mut command = Command::new(bin.join("bootstrap"));
    command.args(["--engine", engine, "--order", "sorted", "--settle", "--pairs", &PAIRS.to_string()]);
    let output = command.arg("--dir").arg(store).output().context("cannot run bootstrap")?;
    ensure!(output.status.success(), "bootstrap failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The mean in ns, by the record of one run.
fn by_loadgen(bin: &Path, engine: &str, store: &Path, positive: bool) -> Result<f64> {
    let kind = if positive { "read_positive" } else { "read_negative" };
    let run = serde_json::json!({
        "scenario": "instrument", "engine": {"engine": engine, "memory": CACHE_BYTES.to_string()}, "kind": kind,
        "keys": "uniform", "pairs": PAIRS, "seed": 1, "load": "sorted", "cap_bytes": null, "threads": 1,
        "state": "warm", "seconds": 2.0, "rate": null, "write_share": 0.0, "delete_share": 0.0, "double_index": false, "batch": 1,
        "durability": "synced", "events": 0, "repeat": 0,
    });
    let output = Command::new(bin.join("loadgen")).arg("bench-run").arg(run.to_string()).arg(store).output()?;
    ensure!(output.status.success(), "loadgen failed: {}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    answer.pointer("/curves/0/mean_ns").and_then(serde_json::Value::as_f64).context("no mean in the answer")
}

/// The mean in ns of gets on a store that was read through.
fn stand_alone(engine: &str, data: &Path, positive: bool, turn: u64) -> Result<f64> {
    let pairs = Pairs::new(1);
    let mut rng = Rng::new(turn);
    let keys: Vec<[u8; 32]> = (0..READS)
        .map(|_| if positive { pairs.key(rng.below(PAIRS)) } else { pairs.absent_key(rng.next_u64() >> 1) })
        .collect();
    let all: Vec<[u8; 32]> = (0..PAIRS).map(|index| pairs.key(index)).collect();
    match engine {
        "rocksdb" => {
            let mut table = rocksdb::BlockBasedOptions::default();
            table.set_block_cache(&rocksdb::Cache::new_lru_cache(CACHE_BYTES));
            let mut options = rocksdb::Options::default();
            options.set_block_based_table_factory(&table);
            let db = rocksdb::DB::open_for_read_only(&options, data, false)?;
            let get = |key: &[u8; 32]| anyhow::Ok(db.get_pinned(key)?.map(|value| value[0]));
            mean(&all, &keys, positive, get)
        }
        "lmdb" => {
            let env = lmdb::Environment::new()
                .set_flags(lmdb::EnvironmentFlags::NO_READAHEAD | lmdb::EnvironmentFlags::READ_ONLY)
                .set_max_dbs(2)
                .set_map_size(1 << 32)
                .open(data)?;
            let table = env.open_db(Some("pairs"))?;
            let txn = env.begin_ro_txn()?;
            mean(&all, &keys, positive, |key| match txn.get(table, key) {
                Ok(value) => Ok(Some(value[0])),
                Err(lmdb::Error::NotFound) => Ok(None),
                Err(error) => Err(error.into()),
            })
        }
        "redb" => {
            let mut builder = redb::Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            let db = builder.open(data.join("pairs.redb"))?;
            let txn = db.begin_read()?;
            let table = txn.open_table(redb::TableDefinition::<[u8; 32], [u8; 32]>::new("pairs"))?;
            mean(&all, &keys, positive, |key| Ok(table.get(key)?.map(|value| value.value()[0])))
        }
        other => bail!("no stand-alone program for engine={other}"),
    }
}

fn mean(
    all: &[[u8; 32]],
    keys: &[[u8; 32]],
    positive: bool,
    mut get: impl FnMut(&[u8; 32]) -> Result<Option<u8>>,
) -> Result<f64> {
    for key in all {
        ensure!(get(key)?.is_some(), "a loaded key is missing");
    }
    let mut nanos = 0;
    for key in keys {
        let start = Instant::now();
        let found = get(key)?;
        nanos += start.elapsed().as_nanos();
        ensure!(found.is_some() == positive, "a wrong answer");
    }
    Ok(nanos as f64 / keys.len() as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
