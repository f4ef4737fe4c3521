//! One run in a process of its own under a cap of its own: opens the store, warms up, drives, prints the answer.
//!
//! Owns: the measured process's work and nothing else. The parent prepares store and cap, and reads the answer from
//! standard output. Threads: see `drive`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use engine_api::{Checkpoint, Durability, Engine, Reader};
use engine_latency::{Latency, Measured, Op, Snapshot};
use engines::OpenMode;
use probe::Floor;
use program::say;
use workload::Rng;

use super::drive::{Done, Driven, Reads, SOURCE, What, Writes, read};
use super::pace::{note_of_overdue, note_of_writer};
use super::run::{Run, parse_keys};
use super::scan::ShortScan;
use super::update::update;
use super::work::{Kind, Load, State};
use crate::result::{Curve, Io, Opening, Quantiles, Record};

/// Shares at which a percentile curve is sampled, with more of them near 1.
const SHARES: [f64; 21] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 0.99995,
    0.99999, 1.0,
];

/// Pause after a store was brought into memory, so that the engine can finish its background work.
const WARM_REST: Duration = Duration::from_secs(4);

/// Takes the accesses of `floor` out of the figures, and adds their latency. Their time was nobody else's, unless the run
/// also wrote.
fn leave_out(record: &mut Record, floor: &Floor, run: &Run) {
    let less = |count: Option<u64>, of: u64| count.map(|count| count.saturating_sub(of));
    if run.cell.workload != Kind::Beside {
        record.elapsed_s -= floor.elapsed_s();
    }
    let io = &mut record.io;
    io.device_read_bytes = less(io.device_read_bytes, floor.device_read_bytes());
    if floor.device_read_bytes() > 0 {
        io.device_reads = less(io.device_reads, floor.count());
    }
    let is_warm = run.cell.state == State::Warm;
    let of = if is_warm { &mut record.memory_read_ns } else { &mut record.device_read_ns };
    *of = Some(floor.quantiles());
}

/// Arguments of the hidden command `bench-run RUN-AS-JSON DIR`.
#[derive(clap::Args, Clone, Debug)]
pub struct ChildArgs {
    /// The run, written as JSON
    #[arg(value_parser = parsed)]
    pub(super) run: Box<Run>,
    /// Directory of the run's store
    pub(super) dir: PathBuf,
}

fn parsed(text: &str) -> serde_json::Result<Box<Run>> {
    serde_json::from_str(text)
}

/// Runs one run and prints its figures as JSON, as a record that lacks everything else.
///
/// # Errors
/// Errors of the engine; a wrong value read; I/O errors of /proc.
pub fn run(args: &ChildArgs) -> Result<()> {
    let run = &*args.run;
    // As the service does. Otherwise freed memory of one thread may not be used by the next one.
    probe::limit_arenas(probe::memory_limit().bytes);
    let answer = match run.cell.workload {
        Kind::Recover => recover(run, &args.dir)?,
        _ => drive(run, &args.dir)?,
    };
    say!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

/// Runs the hidden command that writes batches until it is killed.
///
/// # Errors
/// Errors of the engine.
pub fn write_until_killed(args: &ChildArgs) -> Result<()> {
    let run = &*args.run;
    probe::limit_arenas(probe::memory_limit().bytes);
    let (engine, _) = open(run, &args.dir)?;
    say!("writing");
    writes(run, 1.0, Part::Measured)?.run(&engine, &AtomicBool::new(false))?;
    say!("written");
    anyhow::ensure!(!program::is_output_lost(), "the parent is gone");
    // The parent kills this process. Nothing may be closed before.
    loop {
        std::thread::park();
    }
}

/// Opens the engine, and measures the time and the device reads of opening.
fn open(run: &Run, dir: &Path) -> Result<(Measured, Opening)> {
    let (before, started) = (probe::process_counts(std::process::id())?, Instant::now());
    let engine = engines::open(dir, &run.engine, OpenMode::Existing)?;
    let elapsed_s = started.elapsed().as_secs_f64();
    let counts = probe::process_counts(std::process::id())?.since(&before);
    let opening = Opening { elapsed_s, device_read_bytes: counts.device_read_bytes };
    let latency = Latency::new(engine.label());
    Ok((Measured::new(engine, latency, SOURCE), opening))
}

/// Part of a run. Each part has keys of its own, so that none finds its keys where the other has left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The same work before the clock starts, unmeasured.
    Before,
    Measured,
}

impl Part {
    /// Returns the number that is mixed into the seed. It is zero for the measured part, so that keys are the same as
    /// in results of earlier versions.
    fn salt(self) -> u64 {
        match self {
            Self::Before => 0x6265_666f_7265_0000,
            Self::Measured => 0,
        }
    }
}

fn drive(run: &Run, dir: &Path) -> Result<Record> {
    let (engine, opening) = open(run, dir)?;
    update(run, engine.inner(), run.aged_updates()..run.updates())?;
    match run.cell.state {
        State::Cold => {}
        State::Warm => {
            warm(run, &engine)?;
            // A store right after its load is measured without a rest.
            if !run.load.is_fresh() {
                std::thread::sleep(WARM_REST);
            }
            work(run, &engine, Duration::from_secs_f64(run.cell.seconds / 10.0), Part::Before, None)?;
        }
        State::Steady => {
            work(run, &engine, Duration::from_secs_f64(run.cell.before_seconds), Part::Before, None)?;
        }
    }
    let mut floor = if run.cell.floor { Some(floor_of(run, dir)?) } else { None };
    let (process, device) = (probe::process_counts(std::process::id())?, probe::device_counts(dir));
    let driven = work(run, &engine, Duration::from_secs_f64(run.cell.seconds), Part::Measured, floor.as_mut())?;
    let process = probe::process_counts(std::process::id())?.since(&process);
    if changes_store(run) {
        // Pages that the run has left dirty in the page cache count as its writes, too.
        probe::sync_file_system(dir)?;
    }
    let device = probe::device_counts(dir).zip(device).map(|(now, before)| now.since(before));
    let puts = driven.total.get(SOURCE, Op::Write).map_or(0, |histogram| histogram.len());
    let io = Io {
        device_read_bytes: process.device_read_bytes,
        device_write_bytes: device.map(|device| device.written_bytes),
        device_reads: device.map(|device| device.reads),
        device_writes: device.map(|device| device.writes),
        major_faults: Some(process.major_faults),
        user_s: process.user_s,
        system_s: process.system_s,
        user_write_bytes: puts * 64,
    };
    let mut answer = answer(run, &engine, &driven)?;
    (answer.io, answer.open) = (io, Some(opening));
    if let Some(floor) = &floor {
        leave_out(&mut answer, floor, run);
    }
    Box::new(engine).close()?;
    Ok(answer)
}

/// Brings the store into memory. A scan fills the page cache but not an engine's own cache, and random gets fill that
/// one. A page holds some 60 pairs, so gets of every tenth pair on average reach all but one page in 400.
fn warm(run: &Run, engine: &Measured) -> Result<()> {
    engine.inner().reader()?.scan(&mut |_, _| ControlFlow::Continue(()))?;
    let pairs = run.generator()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        let get = |thread: u64| {
            let mut reader = engine.inner().reader()?;
            let mut rng = Rng::new(run.seed ^ thread);
            for _ in 0..run.pairs / 10 / threads {
                reader.get(&pairs.key(rng.below(run.pairs)))?;
            }
            anyhow::Ok(())
        };
        let getters: Vec<_> = (0..threads).map(|thread| scope.spawn(move || get(thread))).collect();
        getters.into_iter().try_for_each(|getter| getter.join().map_err(|_| anyhow!("a warming thread panicked"))?)
    })
}

/// Prepares the least that a get of this run could cost.
fn floor_of(run: &Run, dir: &Path) -> Result<Floor> {
    if run.cell.state == State::Warm {
        return Floor::of_memory();
    }
    let floor = Floor::of_device(dir)?;
    floor.with_context(|| format!("floor=true needs direct reads and a file of 1 MiB: dir={}", dir.display()))
}

fn work(run: &Run, engine: &Measured, time: Duration, part: Part, floor: Option<&mut Floor>) -> Result<Driven> {
    let (keys, pairs) = (parse_keys(&run.keys)?, run.generator()?);
    let reads = |what| Reads {
        pairs,
        versions: run.versions(),
        count: run.pairs,
        seed: read_seed(run, time, part),
        keys,
        what,
        threads: run.threads,
        rate: run.cell.rate.map(|rate| rate / f64::from(run.threads)),
        unchanged: run.cell.workload != Kind::Beside,
    };
    let none = Reads { threads: 0, ..reads(What::Positive) };
    let scans = |scan_pairs| What::Scan(ShortScan::new(scan_pairs, &pairs, run.pairs));
    let present = run.cell.scan_pairs().map_or(What::Positive, scans);
    match run.cell.workload {
        Kind::ReadNegative => read(engine, &reads(What::Negative), time, floor, |_| Ok(Done::default())),
        Kind::ReadPositive | Kind::ShortScan => read(engine, &reads(present), time, floor, |_| Ok(Done::default())),
        Kind::GetMany | Kind::GetManyAbsent => {
            let many = What::Many { keys: run.cell.batch as usize, present: run.cell.workload == Kind::GetMany };
            read(engine, &reads(many), time, floor, |_| Ok(Done::default()))
        }
        Kind::Write => read(engine, &none, time, None, |stop| writes(run, 1.0, part)?.run(engine, stop)),
        Kind::Mix => read(engine, &none, time, None, |stop| writes(run, run.cell.write_share, part)?.run(engine, stop)),
        Kind::Beside => read(engine, &reads(present), time, floor, |stop| writes(run, 1.0, part)?.run(engine, stop)),
        Kind::Scan => read(engine, &none, time, None, |stop| scan(run, engine, stop)),
        Kind::Bootstrap | Kind::Recover | Kind::Live => bail!("not a run of this process: {:?}", run.cell.workload),
    }
}

/// Returns a seed unlike that of the part before and of other repeats, but the same for every engine.
fn read_seed(run: &Run, time: Duration, part: Part) -> u64 {
    run.seed ^ (u64::from(run.repeat) << 8) ^ time.as_nanos() as u64 ^ part.salt()
}

fn writes(run: &Run, write_share: f64, part: Part) -> Result<Writes> {
    Ok(Writes {
        pairs: run.generator()?,
        count: run.pairs,
        seed: run.seed ^ u64::from(run.repeat) ^ part.salt(),
        keys: parse_keys(&run.keys)?,
        batch: (run.cell.batch, run.cell.batch_max.unwrap_or(run.cell.batch)),
        rate: run.cell.write_rate,
        durability: if run.cell.durability == "buffered" { Durability::Buffered } else { Durability::Synced },
        write_share,
        delete_share: run.cell.delete_share,
        double_index: run.cell.double_index,
        most: if run.cell.workload == Kind::Recover && run.cell.events > 0 { run.cell.events } else { u64::MAX },
    })
}

/// Runs one whole scan, however long it takes. Operations are pairs.
fn scan(run: &Run, engine: &Measured, stop: &AtomicBool) -> Result<Done> {
    let mut seen = 0;
    engine.reader_for(SOURCE)?.scan(&mut |_, _| {
        seen += 1;
        ControlFlow::Continue(())
    })?;
    ensure!(seen == run.pairs, "a scan has to see every pair: seen={seen} pairs={}", run.pairs);
    // ORDERING: Relaxed: the flag carries no other data.
    stop.store(true, Ordering::Relaxed);
    Ok(Done { ops: seen, overdue: 0 })
}

/// Measures from opening a killed writer's store to its first correct read.
fn recover(run: &Run, dir: &Path) -> Result<Record> {
    let started = Instant::now();
    let (engine, opening) = open(run, dir)?;
    let pairs = run.generator()?;
    let mut reader = engine.reader_for(SOURCE)?;
    let found = reader.get(&pairs.key(run.pairs / 2))?;
    let elapsed = started.elapsed();
    ensure!(found.is_some(), "a loaded key is missing after a kill");
    ensure!(reader.get(&pairs.absent_key(1))?.is_none(), "a key that was never loaded has a value");
    drop(reader);
    let total = engine.latency().snapshot();
    let checkpoint: Checkpoint = engine.checkpoint()?;
    let driven = Driven { ops: 1, overdue: 0, overdue_puts: 0, elapsed, total, series: Vec::new() };
    let mut answer = answer(run, &engine, &driven)?;
    answer.notes.push(format!("open_ms={:.1} seq={}", opening.elapsed_s * 1e3, checkpoint.seq));
    answer.open = Some(opening);
    Ok(answer)
}

fn answer(run: &Run, engine: &Measured, driven: &Driven) -> Result<Record> {
    let stats = engine.stats()?;
    let mut engine_options = run.engine_options();
    engine_options.insert("cache_bytes".to_owned(), run.engine.division().cache_bytes.to_string());
    Ok(Record {
        engine: engine.label().to_owned(),
        engine_options,
        elapsed_s: driven.elapsed.as_secs_f64(),
        ops: driven.ops,
        curves: curves(&driven.total),
        series: driven.series.clone(),
        engine_stats: stats.details.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        pairs: stats.pairs_estimate,
        notes: [note_of_overdue(driven.overdue, driven.ops), note_of_writer(driven.overdue_puts)]
            .into_iter()
            .flatten()
            .collect(),
        ..Record::default()
    })
}

pub(crate) fn curves(total: &Snapshot) -> Vec<Curve> {
    let curve = |series: &engine_latency::Series| {
        let histogram = &series.histogram;
        Curve {
            op: series.op.as_str().to_owned(),
            count: histogram.len(),
            mean_ns: series.mean_ns(),
            quantiles_ns: Quantiles::of(histogram),
            curve: SHARES.iter().map(|share| (*share, histogram.value_at_quantile(*share))).collect(),
        }
    };
    total.series.iter().map(curve).collect()
}

/// Whether a run changes its store, so that it gets a copy. An aged store changes by being opened: the engine would
/// merge meanwhile, and the next run would not have to.
pub(crate) fn changes_store(run: &Run) -> bool {
    run.load == Load::Aged
        || run.cell.puts_before_reads() > 0
        || matches!(run.cell.workload, Kind::Write | Kind::Mix | Kind::Beside | Kind::Recover | Kind::Live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_before_has_other_keys_even_where_it_is_as_long() {
        let cell = serde_json::json!({ "workload": "read_positive", "state": "steady", "seconds": 30.0 });
        let run = serde_json::json!({
            "scenario": "s", "engine": {}, "engine_line": "", "keys": "uniform", "key_shape": "random", "pairs": 10, "seed": 1,
            "values": "unique", "load": "sorted", "age_updates": 0.0, "cap_bytes": null, "threads": 1, "ingest_depth": null, "repeat": 0,
            "cell": cell,
        });
        let run: Run = serde_json::from_value(run).unwrap();
        let time = Duration::from_secs_f64(run.cell.before_seconds);
        assert_ne!(read_seed(&run, time, Part::Before), read_seed(&run, time, Part::Measured));
        let writes = [Part::Before, Part::Measured].map(|part| writes(&run, 1.0, part).unwrap().seed);
        assert_ne!(writes[0], writes[1]);
    }
}
