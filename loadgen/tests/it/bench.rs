//! `loadgen bench` as a command: runs in their own processes, one line for each, and no run twice.

use std::path::Path;
use std::process::Command;

use engines::EngineKind;
use solkv_loadgen::result::{Record, read};

const SCENARIO: &str = "
name = 'small'
about = 'for a test'
engines = ENGINES
pairs = 20000
repeats = 2

[[cell]]
workload = 'read_positive'
seconds = 0.2

[[cell]]
workload = 'read_negative'
state = 'warm'
rate = 2000
seconds = 0.5

[[cell]]
workload = 'mix'
write_share = 0.5
delete_share = 0.1
batch = 100
seconds = 0.2

[[cell]]
workload = 'read_negative'
state = 'steady'
before_seconds = 0.3
seconds = 0.2

[[cell]]
workload = 'scan'

[[cell]]
workload = 'bootstrap'
batch = 1000
durability = 'buffered'
";

/// Returns two engines of this build, or its only one. Engines that need the least memory come first.
fn engines() -> Vec<&'static str> {
    let compiled = engines::compiled();
    let order = [EngineKind::Redb, EngineKind::Lmdb, EngineKind::Strata, EngineKind::Rocksdb];
    order.into_iter().filter(|kind| compiled.contains(kind)).map(EngineKind::as_str).take(2).collect()
}

fn bench(scenario: &Path, out: &Path, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    let output = command.arg("bench").arg(scenario).arg("--out").arg(out).args(more).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "build the programs first, as `make test` does: {errors}");
    errors
}

fn of<'a>(records: &'a [Record], name: &str) -> Vec<&'a Record> {
    records.iter().filter(|record| record.workload.name == name).collect()
}

#[test]
fn every_run_is_a_line_and_a_second_time_there_is_nothing_to_do() {
    // On a real disk, because a tmpfs always holds its files in the page cache.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (scenario, out) = (folder.path().join("small.toml"), folder.path().join("results.jsonl"));
    let engines = engines();
    std::fs::write(&scenario, SCENARIO.replace("ENGINES", &format!("{engines:?}"))).unwrap();
    bench(&scenario, &out, &[]);
    let records = read(&out).unwrap();
    let runs = 6 * 2 * engines.len();
    assert_eq!(records.len(), runs);
    let turns: Vec<&str> = records.iter().map(|record| record.engine.as_str()).take(2 * engines.len()).collect();
    assert_eq!(turns, engines.repeat(2), "engines take turns");
    for record in &records {
        assert!(record.ops > 0 && record.elapsed_s > 0.0 && record.disk_bytes > 0, "{record:?}");
        assert!(record.baseline.is_some() && record.machine.cores > 0 && record.engine_options.contains_key("engine"));
    }
    for record in of(&records, "read_positive") {
        assert_eq!((record.workload.arrival.as_str(), record.curves[0].op.as_str()), ("closed", "read_positive"));
        let open = record.open.unwrap();
        assert!(open.elapsed_s > 0.0, "{open:?}");
        // A store as small as this one may be read completely when it is opened.
        let read = open.device_read_bytes.unwrap() + record.io.device_read_bytes.unwrap();
        assert!(record.io.major_faults.unwrap() + read > 0, "a cold run reads: {record:?}");
        assert!(record.notes.iter().any(|note| note.starts_with("cold at the start")), "{:?}", record.notes);
    }
    let (steady, warm): (Vec<_>, Vec<_>) =
        of(&records, "read_negative").into_iter().partition(|record| record.workload.state == "steady");
    assert_eq!(steady.len(), 2 * engines.len(), "a steady state is a cell of its own");
    for record in steady {
        assert_eq!(record.workload.more["before_seconds"], "0.3");
        assert!(record.notes.iter().any(|note| note.starts_with("cold at the start")), "{:?}", record.notes);
        // The unmeasured part appears in no figure.
        assert!(record.elapsed_s < 0.3 && record.curves[0].count == record.ops, "{record:?}");
    }
    for record in warm {
        assert_eq!(record.workload.arrival, "open");
        let due = 2000.0 * record.elapsed_s + 1.0;
        assert!(record.ops as f64 <= due, "no more than was due at 2000 a second: ops={} due={due}", record.ops);
    }
    for record in of(&records, "mix_50_50") {
        let ops: Vec<&str> = record.curves.iter().map(|curve| curve.op.as_str()).collect();
        assert!(
            ops.contains(&"write") && ops.contains(&"commit_per_item") && ops.contains(&"read_positive"),
            "{ops:?}"
        );
        assert!(record.io.user_write_bytes > 0);
    }
    assert!(of(&records, "scan").iter().all(|record| record.ops == 20_000));
    assert!(of(&records, "bootstrap").iter().all(|record| record.series.iter().any(|series| series.over == "pairs")));

    assert!(bench(&scenario, &out, &[]).contains(&format!("{runs} runs, {runs} of them done before")));
    assert_eq!(read(&out).unwrap().len(), runs);
}

const FRESH: &str = "
name = 'fresh'
about = 'for a test'
engines = ENGINES
pairs = 30000
load = 'sorted-fresh'

[[cell]]
workload = 'read_positive'
floor = true
seconds = 0.3

[[cell]]
workload = 'get_many_absent'
state = 'warm'
batch = 10
floor = true
seconds = 0.3

[[cell]]
workload = 'bootstrap'
order = 'sorted'
settle = true
";

#[test]
fn the_least_that_a_get_could_cost_is_measured_beside_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (scenario, out) = (folder.path().join("fresh.toml"), folder.path().join("results.jsonl"));
    std::fs::write(&scenario, FRESH.replace("ENGINES", &format!("{:?}", engines()))).unwrap();
    bench(&scenario, &out, &[]);
    let records = read(&out).unwrap();
    assert_eq!(records.len(), 3 * engines().len());
    for record in of(&records, "read_positive") {
        assert_eq!((record.workload.more["load"].as_str(), record.memory_read_ns), ("sorted-fresh", None));
        assert!(record.device_read_ns.unwrap().p50 > 0);
        assert!(record.elapsed_s < 0.3, "the time of the device's reads is none of the gets': {record:?}");
    }
    for record in of(&records, "get_many_absent") {
        assert!(record.memory_read_ns.unwrap().p50 > 0 && record.device_read_ns.is_none());
        assert_eq!(record.ops, record.curves[0].count * 10);
    }
    assert!(of(&records, "bootstrap").iter().all(|record| record.workload.more["settle"] == "yes"));
}

const CHANGED: &str = "
name = 'changed'
about = 'for a test'
engines = ENGINES
pairs = 20000
values = 'zipfian:0.99:2000'
load = 'aged'
age_updates = 1.3

[[cell]]
workload = 'read_positive'
seconds = 0.2

[[cell]]
workload = 'beside'
state = 'warm'
batch = 10
write_rate = 500
seconds = 1

[[cell]]
workload = 'write'
state = 'warm'
batch = 1
batch_max = 200
durability = 'buffered'
seconds = 1
";

/// Every value that a reader gets is compared with the expected one, so a run that ends has seen no wrong value.
#[test]
fn an_aged_store_a_writer_at_a_rate_and_commits_of_many_sizes() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (scenario, out) = (folder.path().join("changed.toml"), folder.path().join("results.jsonl"));
    std::fs::write(&scenario, CHANGED.replace("ENGINES", &format!("{:?}", engines()))).unwrap();
    bench(&scenario, &out, &["--keep"]);
    let records = read(&out).unwrap();
    assert_eq!(records.len(), 3 * engines().len());
    let count = |record: &Record, op: &str| record.curves.iter().find(|curve| curve.op == op).unwrap().count;
    for record in &records {
        let more = |name: &str| record.workload.more[name].as_str();
        assert_eq!((more("load"), more("age_updates"), more("values")), ("aged", "1.3", "zipfian:0.99:2000"));
    }
    for record in of(&records, "beside") {
        let (puts, due) = (count(record, "write"), (500.0 * record.elapsed_s) as u64 + 10);
        assert!(puts > 0 && puts <= due, "no more than was due: puts={puts} due={due}");
        assert!(record.workload.more["write_rate"] == "500" && count(record, "read_positive") > 0);
    }
    for record in of(&records, "write") {
        let (commits, puts) = (count(record, "commit"), count(record, "write"));
        assert!(commits > 1 && (2..200).contains(&(puts / commits)), "commits={commits} puts={puts}");
        assert_eq!(record.workload.more["batch"], "1-200");
    }
    // The kept store is as it was aged, because the runs changed only copies.
    let kept: Vec<String> = std::fs::read_dir(out.with_extension("jsonl.work")).unwrap().map(name).collect();
    let ready =
        kept.iter().filter(|name| name.ends_with(".ready") && name.contains("aged-1.3-no_cap-0-zipfian_0.99_2000"));
    assert_eq!(ready.count(), engines().len(), "{kept:?}");
}

fn name(entry: std::io::Result<std::fs::DirEntry>) -> String {
    entry.unwrap().file_name().into_string().unwrap()
}

const SCANS: &str = "
name = 'scans'
about = 'for a test'
engines = ENGINES
pairs = 20000

[[cell]]
workload = 'short_scan'
state = 'warm'
scan_pairs = 3
rate = 500
events = 30000
seconds = 0.5

[[cell]]
workload = 'short_scan'
key_shapes = ['random', 'alike', 'some-alike', 'counting', 'grouped']
seconds = 0.2

[[cell]]
workload = 'beside'
key_shapes = ['grouped']
batch = 1
write_rate = 1000
durability = 'buffered'
scan_pairs = 20000
seconds = 0.5

[[cell]]
workload = 'read_negative'
key_shapes = ['alike', 'some-alike', 'counting', 'grouped']
seconds = 0.2

[[cell]]
workload = 'bootstrap'
key_shapes = ['counting']
batch = 1000
";

/// Every run compares its answers, so one that ends has seen no wrong key or value: not after its own 1.5 updates a pair
/// either, and not in scans up to the last pair of the store.
#[test]
fn short_scans_and_keys_that_share_bytes_are_measured_and_their_answers_compared() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (scenario, out) = (folder.path().join("scans.toml"), folder.path().join("results.jsonl"));
    std::fs::write(&scenario, SCANS.replace("ENGINES", &format!("{:?}", engines()))).unwrap();
    bench(&scenario, &out, &["--keep"]);
    let records = read(&out).unwrap();
    assert_eq!(records.len(), (1 + 5 + 1 + 4 + 1) * engines().len());
    assert!(records.iter().all(|record| record.ops > 0 && record.pairs > 0), "{records:?}");
    let more = |record: &Record, name: &str| record.workload.more.get(name).cloned();
    for record in of(&records, "short_scan") {
        let (curve, events) = (&record.curves[0], more(record, "events"));
        assert_eq!(
            (curve.op.as_str(), curve.count >= record.ops),
            ("scan", true),
            "an operation is a scan: {record:?}"
        );
        assert_eq!(more(record, "scan_pairs").unwrap(), if events.is_some() { "3" } else { "10" });
        assert_eq!((record.workload.arrival == "open", record.io.user_write_bytes), (events.is_some(), 0));
        assert!(more(record, "batch").is_none() && record.workload.durability.is_none(), "{record:?}");
    }
    for record in of(&records, "beside") {
        let ops: Vec<&str> = record.curves.iter().map(|curve| curve.op.as_str()).collect();
        assert!(ops.contains(&"scan") && ops.contains(&"commit") && !ops.contains(&"read_positive"), "{ops:?}");
        assert_eq!(more(record, "scan_pairs").unwrap(), "20000");
    }
    // A store for each kind of keys. The later runs would have seen it if the first one had changed its store and no copy.
    let kept: Vec<String> = std::fs::read_dir(out.with_extension("jsonl.work")).unwrap().map(name).collect();
    for shape in ["sorted", "sorted-alike", "sorted-some-alike", "sorted-counting", "sorted-grouped"] {
        let ready = kept.iter().filter(|name| name.ends_with(&format!("-20000-1-{shape}.ready")));
        assert_eq!(ready.count(), engines().len(), "{shape}: {kept:?}");
    }
    assert!(!kept.contains(&"run".to_owned()), "{kept:?}");
}

#[test]
fn engines_that_differ_in_an_option_are_other_cells() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (scenario, out) = (folder.path().join("two.toml"), folder.path().join("results.jsonl"));
    let two = [engines()[0].to_owned(), format!("{} --memory 67108864", engines()[0])];
    let text = format!(
        "name = 'two'\nabout = 'for a test'\nengines = {two:?}\npairs = 5000\n\
         [[cell]]\nworkload = 'read_positive'\nseconds = 0.1\n"
    );
    std::fs::write(&scenario, text).unwrap();
    bench(&scenario, &out, &[]);
    let records = read(&out).unwrap();
    let lines: Vec<_> = records.iter().map(|record| record.engine_line.clone().unwrap()).collect();
    assert_eq!(lines, two);
    assert!(bench(&scenario, &out, &["--list"]).contains("2 runs, 2 of them done before"));
    assert!(bench(&scenario, &out, &["--list", "--seconds", "9"]).contains("2 runs, 0 of them done before"));
}

#[test]
fn a_scenario_that_is_none_is_named_and_so_is_an_engine() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("wrong.toml");
    std::fs::write(&scenario, SCENARIO.replace("ENGINES", "['strata']").replace("seconds = 0.2", "secs = 0.2"))
        .unwrap();
    let refused = |more: &[&str], parts: [&str; 2]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        let output = command.arg("bench").arg(&scenario).args(["--out", "none.jsonl"]).args(more).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{parts:?}: {errors}");
    };
    refused(&[], ["wrong.toml", "secs"]);
    std::fs::write(&scenario, SCENARIO.replace("ENGINES", &format!("{:?}", engines()))).unwrap();
    refused(&["--engine", "nosuch"], ["engine=nosuch", engines()[0]]);
    refused(&["--repeats", "0"], ["nothing to run", "repeats=0"]);
    // Before anything is measured, and the folder is not made.
    let missing = folder.path().join("missing");
    let out = missing.join("none.jsonl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    let output = command.arg("bench").arg(&scenario).arg("--out").arg(&out).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && errors.contains(missing.to_str().unwrap()), "{errors}");
    assert!(!missing.exists());
}

const LIVE: &str = "
name = 'live'
about = 'for a test'
engines = ENGINES
pairs = 200000

[[cell]]
workload = 'live'
events = 20000

[[cell]]
workload = 'live'
events = 20000
state = 'warm'
";

/// The digest that `loadgen live` verifies takes a scan of the store, which fills the page cache right before the run.
#[test]
fn a_live_run_begins_in_the_state_that_it_names() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (scenario, out) = (folder.path().join("live.toml"), folder.path().join("results.jsonl"));
    let engines: Vec<_> = engines::compiled().iter().map(|kind| kind.as_str()).collect();
    std::fs::write(&scenario, LIVE.replace("ENGINES", &format!("{engines:?}"))).unwrap();
    bench(&scenario, &out, &[]);
    let records = read(&out).unwrap();
    let seen: Vec<_> = records.iter().map(|record| (record.workload.state.as_str(), &record.notes)).collect();
    let (cold, warm) = seen.split_at(engines.len());
    assert!(
        cold.iter().all(|(state, _)| *state == "cold") && warm.iter().all(|(state, _)| *state == "warm"),
        "{seen:#?}"
    );
    for record in &records {
        let held = record.notes.iter().find_map(|note| note.strip_prefix("page_cache_at_start_bytes=")).unwrap();
        let share = held.parse::<f64>().unwrap() / (record.pairs * 64) as f64;
        assert!(if record.workload.state == "cold" { share < 0.02 } else { share > 0.98 }, "{share} {record:?}");
        assert!(record.state_asked.is_none() && record.ops == 20_000);
    }
    let runs = records.len();
    assert!(bench(&scenario, &out, &["--list"]).contains(&format!("{runs} runs, {runs} of them done before")));
}
