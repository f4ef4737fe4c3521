//! `loadgen best --targets` as a command: made-up results and targets in, verdicts out.
//!
//! Owns: no verdict is blind to the result that it is about. Must not: know strata's own targets.

use std::process::Command;

use solkv_loadgen::result::Record;

use crate::synthetic::{CAPS, curve, record};

const ENGINES: [&str; 3] = ["strata", "lmdb", "redb"];

/// Makes three repeats of a load and of a read by each engine; strata is twice as fast as LMDB, and redb is slower.
fn results() -> Vec<Record> {
    let mut runs = Vec::new();
    for repeat in 0..3 {
        for (engine, times) in ENGINES.into_iter().zip([1.0, 2.0, 3.0]) {
            let mut load = record("loads", engine, "bootstrap", None, repeat);
            load.elapsed_s = 10.0 * times;
            let mut read = record("reads", engine, "read_positive", CAPS[0], repeat);
            read.curves = vec![curve("read_positive", 50_000.0 * times, read.ops)];
            read.device_read_ns = Some(curve("device", 50_000.0, read.ops).quantiles_ns);
            let mut later = Record { scenario: "later".to_owned(), ..read.clone() };
            later.curves = vec![curve("read_positive", 55_000.0 * times, later.ops)];
            runs.extend([load, read, later]);
        }
    }
    runs
}

const TARGETS: &str = r#"
[[target]]
row = "bound"
scenario = "loads"
workload = "bootstrap"
figure = "Time"
most = 15

[[target]]
row = "beside others"
scenario = "loads"
workload = "bootstrap"
figure = "Time"
beside = { engine = "others" }
most = 0.6

[[target]]
row = "of the device"
scenario = "reads"
workload = "read_positive"
state = "cold"
cap = 0.024
more = { batch = "1000", floor = "" }
figure = "read_positive p50"
per = "device"
most = 1.05

[[target]]
row = "of another state"
scenario = "later"
workload = "read_positive"
figure = "read_positive p99"
beside = { scenario = "reads" }
most = 1.2

[[target]]
row = "rate"
scenario = "reads"
workload = "read_positive"
figure = "Throughput"
least = 10000
"#;

fn judge(records: &[Record], targets: &str) -> std::process::Output {
    let directory = tempfile::tempdir().unwrap();
    let (results, file) = (directory.path().join("results.jsonl.zst"), directory.path().join("targets.toml"));
    let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    std::fs::write(&results, zstd::encode_all(lines.join("\n").as_bytes(), 1).unwrap()).unwrap();
    std::fs::write(&file, targets).unwrap();
    Command::new(env!("CARGO_BIN_EXE_loadgen")).arg("best").arg(results).arg("--targets").arg(file).output().unwrap()
}

/// Returns the row and the verdict of each target, after `change` of each run.
fn verdicts(change: impl Fn(&mut Record)) -> Vec<(String, String)> {
    let mut records = results();
    records.iter_mut().for_each(change);
    let out = judge(&records, TARGETS);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let rows = text.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>())
        .map(|cells| (cells[0].to_owned(), cells.last().unwrap().trim_matches(['|', ' ']).to_owned()))
        .collect()
}

fn verdict_of(row: &str, change: impl Fn(&mut Record)) -> String {
    verdicts(change).into_iter().find(|(name, _)| name.starts_with(row)).unwrap().1
}

#[test]
fn what_holds_is_met_and_the_best_other_engine_is_named() {
    let all = verdicts(|_| ());
    assert!(all.iter().all(|(_, verdict)| verdict == "met"), "{all:?}");
    assert_eq!(all[1].0, "beside others: lmdb");
}

#[test]
fn a_result_that_gets_worse_misses_its_target() {
    let slower = |run: &mut Record| {
        if run.engine == "strata" {
            run.elapsed_s *= 20.0;
            run.curves.iter_mut().filter(|_| run.scenario != "reads").for_each(|curve| curve.quantiles_ns.p99 *= 20);
            run.device_read_ns.iter_mut().for_each(|device| device.p50 /= 20);
        }
    };
    let all = verdicts(slower);
    assert!(all.iter().all(|(_, verdict)| verdict == "**missed**"), "{all:?}");
}

#[test]
fn a_killed_run_misses_and_one_that_others_are_measured_by_is_no_measure() {
    let kill = |scenario: &'static str, engine: &'static str| {
        move |run: &mut Record| {
            if run.scenario == scenario && (run.engine == engine || engine == "others" && run.engine != "strata") {
                run.notes.push("killed: out of memory under the cap".to_owned());
            }
        }
    };
    for row in ["bound", "beside others"] {
        assert_eq!(verdict_of(row, kill("loads", "strata")), "**missed**", "{row}");
    }
    assert_eq!(verdict_of("rate", kill("reads", "strata")), "**missed**");
    assert_eq!(verdict_of("beside others", kill("loads", "lmdb")), "met", "redb is the best of the others then");
    assert_eq!(verdict_of("beside others", kill("loads", "others")), "not measured");
    assert_eq!(verdict_of("of another state", kill("reads", "strata")), "not measured");
}

#[test]
fn what_was_not_measured_as_asked_is_not_measured() {
    assert_eq!(verdict_of("of the device", |run| run.device_read_ns = None), "not measured");
    assert_eq!(verdict_of("of the device", |run| run.cap_bytes = CAPS[1]), "not measured");
    assert_eq!(verdict_of("of the device", |run| run.workload.state = "warm".to_owned()), "not measured");
    let with_floor = |run: &mut Record| drop(run.workload.more.insert("floor".to_owned(), "after each get".to_owned()));
    assert_eq!(verdict_of("of the device", with_floor), "not measured");
}

#[test]
fn a_target_that_says_nothing_is_refused() {
    for (from, to, expected) in [
        ("most = 15", "most = 15\nleast = 1", "either `most` or `least`: row=\"bound\""),
        ("figure = \"Time\"", "figure = \"Tyme\"", "no such figure: \"Tyme\""),
        ("most = 15", "must = 15", "unknown field `must`"),
    ] {
        let out = judge(&results(), &TARGETS.replacen(from, to, 1));
        let error = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success() && error.contains(expected) && error.contains("targets.toml"), "{error}");
    }
}
