//! Result files made up for tests of the report: six engines under five caps, shaped like real ones.
//!
//! Owns: figures that look like measurements and are none. Must not: leave the tests.

use solkv_loadgen::result::{
    Baseline, Curve, Io, Machine, Memory, Quantiles, Record, SCHEMA_VERSION, Sample, Series, Workload,
};

pub(crate) const ENGINES: [&str; 6] = ["rocksdb", "rocksdb_bloom", "rocksdb_tuned", "lmdb", "redb", "strata"];
const MIB: u64 = 1 << 20;
pub(crate) const CAPS: [Option<u64>; 5] = [Some(146 * MIB), Some(1170 * MIB), Some(2340 * MIB), Some(4700 * MIB), None];
const PAIRS: u64 = 100_000_000;

/// A generator without outside state: the same seed gives the same file.
struct Dice(u64);

impl Dice {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a random factor around 1, within plus or minus `by`.
    fn near(&mut self, by: f64) -> f64 {
        1.0 + (self.unit() * 2.0 - 1.0) * by
    }
}

/// Makes a record without figures.
pub(crate) fn record(scenario: &str, engine: &str, workload: &str, cap: Option<u64>, repeat: u32) -> Record {
    let options = [("cache".to_owned(), "64 MiB".to_owned()), ("bloom".to_owned(), "20".to_owned())];
    Record {
        schema: SCHEMA_VERSION,
        program: "0.1.0 (1a2b3c4)".to_owned(),
        command: Some(format!("loadgen bench --scenario {scenario} --seed 7 --repeats 3")),
        scenario: scenario.to_owned(),
        repeat,
        engine: engine.to_owned(),
        engine_line: None,
        engine_options: options.into(),
        state_asked: None,
        workload: Workload {
            name: workload.to_owned(),
            arrival: if workload == "live" { "open" } else { "closed" }.to_owned(),
            target_rate: (workload == "live").then_some(20_000.0),
            keys: "uniform".to_owned(),
            pairs: PAIRS,
            threads: 1,
            state: "cold".to_owned(),
            durability: (workload == "live").then(|| "synced".to_owned()),
            seed: 7,
            more: [("batch".to_owned(), "1000".to_owned())].into(),
        },
        cap_bytes: cap,
        cap_by: if cap.is_some() { "cgroup v2 memory.max" } else { "none" }.to_owned(),
        start_unix_ms: 1_795_257_000_000 + u64::from(repeat) * 3_600_000,
        elapsed_s: 60.0,
        ops: 1_200_000,
        curves: Vec::new(),
        series: Vec::new(),
        memory: Vec::new(),
        io: Io::default(),
        disk_bytes: 6_500_000_000,
        pairs: PAIRS,
        baseline: Some(baseline()),
        device_read_ns: None,
        memory_read_ns: None,
        device_reads_per_s: None,
        open: None,
        engine_stats: std::collections::BTreeMap::new(),
        machine: machine(),
        notes: Vec::new(),
    }
}

/// Makes one operation's curve with mean `mean_ns` and a tail of fixed shape.
pub(crate) fn curve(op: &str, mean_ns: f64, count: u64) -> Curve {
    let at = |share: f64| (mean_ns * (0.6 + 0.25 * (-(1.0 - share).log10()).powf(1.8))) as u64;
    let shares = (0..90).map(|percent| f64::from(percent) / 100.0);
    let tail = (10..60).map(|step| 1.0 - 10_f64.powf(-f64::from(step) / 10.0));
    let mut points: Vec<(f64, u64)> = shares.chain(tail).map(|share| (share, at(share))).collect();
    let max = at(1.0 - 0.5 / count as f64);
    points.iter_mut().for_each(|point| point.1 = point.1.min(max));
    points.push((1.0, max));
    let quantiles_ns = Quantiles {
        min: at(0.0),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999).min(max),
        p9999: at(0.9999).min(max),
        max,
    };
    Curve { op: op.to_owned(), count, mean_ns, quantiles_ns, curve: points }
}

/// Makes the whole matrix: a load, positive and negative reads under every cap, and a live run, three times each.
pub(crate) fn matrix() -> Vec<Record> {
    let mut out = Vec::new();
    let mut dice = Dice(42);
    for repeat in 0..3 {
        for (at, engine) in ENGINES.iter().enumerate() {
            out.push(load(engine, at, repeat, &mut dice));
            for cap in CAPS {
                out.push(read("read_negative", engine, at, cap, repeat, &mut dice));
                out.push(read("read_positive", engine, at, cap, repeat, &mut dice));
            }
            for cap in [CAPS[2], CAPS[4]] {
                out.push(live(engine, at, cap, repeat, &mut dice));
            }
        }
    }
    for run in out.iter_mut().filter(|run| run.scenario == "read-under-cap") {
        run.notes.push(format!("cold at the start: {} B of 6 GiB in the page cache", run.ops % 4096));
    }
    out[4].notes.push("load average 2.4 before the run: noisy".to_owned());
    out[9].notes.push("load average 2.4 before the run: noisy".to_owned());
    out
}

fn load(engine: &str, at: usize, repeat: u32, dice: &mut Dice) -> Record {
    let mut run = record("bootstrap", engine, "bootstrap", None, repeat);
    let mean = [1_700.0, 1_900.0, 1_800.0, 3_200.0, 4_800.0, 900.0][at] * dice.near(0.04);
    run.ops = PAIRS;
    run.elapsed_s = PAIRS as f64 * mean / 1e9;
    run.disk_bytes = (PAIRS as f64 * [58.3, 60.9, 60.7, 101.9, 89.9, 66.0][at]) as u64;
    run.curves = vec![curve("write", mean, PAIRS)];
    let sample = |step: u64, dice: &mut Dice| {
        let mean = mean * (0.6 + 0.8 * step as f64 / 100.0 * at as f64 / 4.0) * dice.near(0.1);
        sample((step * PAIRS / 100) as f64, mean)
    };
    let samples = (1..=100).map(|step| sample(step, dice)).collect();
    run.series = vec![Series { op: "write".to_owned(), over: "pairs".to_owned(), samples }];
    run.memory = memory(at, None, dice);
    run.io.user_write_bytes = PAIRS * 64;
    run.io.device_write_bytes =
        Some((PAIRS as f64 * 64.0 * [2.9, 3.1, 2.7, 6.4, 8.8, 1.2][at] * dice.near(0.02)) as u64);
    run
}

fn read(name: &str, engine: &str, at: usize, cap: Option<u64>, repeat: u32, dice: &mut Dice) -> Record {
    let mut run = record("read-under-cap", engine, name, cap, repeat);
    let cached = cap.map_or(1.4, |cap| cap as f64 / 6.5e9).min(1.0);
    let reads = [2.2, 1.6, 1.4, 3.9, 2.8, 1.0][at] * (1.0 - 0.9 * cached);
    let reads = if name == "read_negative" && (1..3).contains(&at) { reads * 0.02 } else { reads };
    let mean = (2_000.0 + reads * 61_000.0) * dice.near(0.05);
    run.ops = (60e9 / mean) as u64;
    run.curves = vec![curve(name, mean, run.ops)];
    let of = |second: u32, dice: &mut Dice| {
        let warming = 1.0 + 1.5 * (-f64::from(second) / 15.0).exp();
        sample(f64::from(second), mean * warming * dice.near(0.08))
    };
    let samples = (1..=60).map(|second| of(second, dice)).collect();
    run.series = vec![Series { op: name.to_owned(), over: "elapsed_s".to_owned(), samples }];
    run.memory = memory(at, cap, dice);
    let device_reads = run.ops as f64 * reads;
    run.io.device_reads = Some(device_reads as u64);
    run.io.device_read_bytes = Some((device_reads * 4096.0) as u64);
    run.io.major_faults = (at == 3).then_some(device_reads as u64);
    (run.io.user_s, run.io.system_s) = (run.ops as f64 * 2.1e-6, run.ops as f64 * 3.3e-6);
    run
}

fn live(engine: &str, at: usize, cap: Option<u64>, repeat: u32, dice: &mut Dice) -> Record {
    let mut run = record("live", engine, "live", cap, repeat);
    let slow = if cap.is_some() { 1.6 } else { 1.0 };
    let means = [
        ("read_negative", [14_000.0, 3_400.0, 3_300.0, 273_000.0, 94_600.0, 2_100.0]),
        ("read_positive", [5_400.0, 5_400.0, 5_100.0, 3_800.0, 2_100.0, 1_700.0]),
        ("write", [4_300.0, 4_300.0, 4_200.0, 1_400.0, 6_300.0, 1_100.0]),
        ("commit_per_item", [9_900.0, 9_700.0, 9_800.0, 18_600.0, 12_000.0, 4_500.0]),
    ];
    run.curves = means.iter().map(|(op, of)| curve(op, of[at] * slow * dice.near(0.05), 980_000)).collect();
    // One engine lacks this figure, so that the report shows a dash.
    if engine == "lmdb" {
        run.curves.pop();
    }
    run.memory = memory(at, cap, dice);
    run.io.user_write_bytes = 64_000_000;
    run.io.device_write_bytes = Some((64e6 * [9.0, 9.5, 8.0, 70.0, 90.0, 3.0][at]) as u64);
    run
}

fn sample(at: f64, mean_ns: f64) -> Sample {
    let ns = |times: f64| (mean_ns * times) as u64;
    Sample { at, count: 10_000, mean_ns, p50_ns: ns(0.8), p99_ns: ns(3.1), max_ns: ns(40.0) }
}

fn memory(at: usize, cap: Option<u64>, dice: &mut Dice) -> Vec<Memory> {
    let limit = cap.unwrap_or(9_000 * MIB) as f64;
    let of = |second: u32, dice: &mut Dice| {
        let charged = limit * 0.97 * (f64::from(second) / 20.0).min(1.0);
        let heap = charged * [0.3, 0.35, 0.3, 0.04, 0.5, 0.2][at] * dice.near(0.05);
        let cache = charged - heap;
        let rss = if at == 3 { charged } else { heap };
        Memory {
            at_s: f64::from(second),
            rss_bytes: rss as u64,
            page_cache_bytes: cap.map(|_| cache as u64),
            charged_bytes: cap.map(|_| charged as u64),
        }
    };
    (1..=30).map(|second| of(second, dice)).collect()
}

pub(crate) fn baseline() -> Baseline {
    let quantiles = |p50: u64| Quantiles {
        min: p50 / 2,
        p50,
        p90: p50 * 2,
        p99: p50 * 3,
        p999: p50 * 5,
        p9999: p50 * 9,
        max: p50 * 20,
    };
    Baseline {
        random_read_ns: quantiles(61_000),
        sequential_read_bytes_per_s: 2.1e9,
        sequential_write_bytes_per_s: 0.9e9,
        fdatasync_ns: quantiles(410_000),
        direct: true,
    }
}

fn machine() -> Machine {
    Machine {
        cpu: "AMD EPYC 7B13".to_owned(),
        cores: 2,
        memory_bytes: 24_000 * MIB,
        kernel: "6.1.0-18-amd64".to_owned(),
        filesystem: "ext4".to_owned(),
        device: "/dev/nvme0n1p1".to_owned(),
        readahead_bytes: Some(128 << 10),
        loadavg: "0.31 0.40 0.52".to_owned(),
    }
}
