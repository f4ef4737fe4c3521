//! `loadgen best` as a command: made-up result files in, cells and verdicts out.
//!
//! Owns: the verdicts that a reader must find. Must not: repeat how they are made.

use solkv_loadgen::result::{Opening, Record};

use crate::report::{data, loadgen, repeats, report, text, write};
use crate::synthetic::{CAPS, baseline, curve, record};

#[test]
fn the_best_of_the_others_is_found_in_every_cell_and_losses_are_shown() {
    let run = |engine: &str, mean_ns: f64, repeat| {
        let mut record = record("reads", engine, "read_positive", Some(1 << 30), repeat);
        record.curves = vec![curve("read_positive", mean_ns, 100_000)];
        record
    };
    let records = [run("strata", 200.0, 0), run("lmdb", 100.0, 0), run("redb", 400.0, 0), run("redb", 440.0, 1)];
    let avg = |engine| {
        let table = solkv_loadgen::report::best::table(&records, engine);
        let line = table.lines().find(|line| line.contains("avg")).unwrap().to_owned();
        line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let strata = avg("strata");
    assert_eq!((strata[6].as_str(), strata[7].as_str()), ("lmdb", "0.50"), "{strata:?}");
    let lmdb = avg("lmdb");
    assert_eq!((lmdb[6].as_str(), lmdb[7].as_str()), ("strata", "2.00"), "{lmdb:?}");
    let redb = avg("redb");
    assert_eq!(redb[4], "0.42 µs (0.40–0.44)", "{redb:?}");
    let said = "not decided; 1 of its own repeats have no figure; not about lmdb (1 run), redb (2 runs)";
    assert_eq!(strata[8], said, "one run decides nothing");
}

#[test]
fn best_says_ahead_behind_and_level_by_the_repeats() {
    let runs = |engine: &str, mean_ns: f64| {
        let weather = [1.0, 1.3, 0.9, 1.1, 1.2];
        let own = [1.0, 1.01, 0.99, 1.005, 0.995];
        let mut records = Vec::new();
        for (repeat, (weather, own)) in (0..).zip(weather.into_iter().zip(own)) {
            let mut record = record("reads", engine, "read_positive", Some(1 << 30), repeat);
            let own = if engine == "lmdb" { 1.0 } else { own };
            record.curves = vec![curve("read_positive", mean_ns * weather * own, 100_000)];
            records.push(record);
        }
        records
    };
    let records = [runs("strata", 100.0), runs("lmdb", 100.0), runs("redb", 150.0)].concat();
    for (engine, verdict) in [("strata", "level"), ("lmdb", "level"), ("redb", "behind")] {
        let table = solkv_loadgen::report::best::table(&records, engine);
        let line = table.lines().find(|line| line.contains(" avg ")).unwrap();
        assert!(line.ends_with(&format!("| {verdict} |")), "{engine}: {line}");
    }
    let two = [runs("strata", 100.0), runs("redb", 150.0)].concat();
    let table = solkv_loadgen::report::best::table(&two, "strata");
    assert!(table.lines().find(|line| line.contains(" avg ")).unwrap().ends_with("| ahead |"), "{table}");
}

#[test]
fn runs_of_two_files_took_no_turns() {
    let directory = tempfile::tempdir().unwrap();
    let day = |name: &str, mean_ns: f64| {
        let both = [repeats("strata", mean_ns, 0.01), repeats("redb", mean_ns, 0.01)].concat();
        write(directory.path(), name, &both)
    };
    let (monday, tuesday) = (day("monday.jsonl", 10_000.0), day("tuesday.jsonl", 7_000.0));
    for files in [[&monday, &tuesday], [&tuesday, &monday]] {
        let best = loadgen(&["best", files[0], files[1], "--engine", "strata"]);
        let line = text(&best.stdout).lines().find(|line| line.contains(" avg ")).unwrap();
        assert!(line.ends_with("| 1.00 (1.00–1.00) | level |"), "{line}");
    }
}

#[test]
fn others_without_a_figure_are_named_beside_the_verdict() {
    let mut killed = repeats("rocksdb", 1_000.0, 0.01);
    killed.iter_mut().for_each(|run| {
        run.notes.push("killed: out of memory under the cap".to_owned());
        run.curves.clear();
    });
    let own = repeats("strata", 5_000.0, 0.01);
    let records = [own, repeats("redb", 10_000.0, 0.01), killed, repeats("lmdb", 8_000.0, 0.01)[..1].to_vec()].concat();
    let verdict = |records: &[Record]| {
        let table = solkv_loadgen::report::best::table(records, "strata");
        let line = table.lines().find(|line| line.contains(" avg ")).unwrap();
        line.split('|').nth(8).unwrap().trim().to_owned()
    };
    assert_eq!(verdict(&records), "ahead; not about lmdb (1 run), rocksdb (killed: out of memory under the cap)");
    // The engine's own repeats that were not killed may be the lucky ones.
    let mut lucky = records;
    lucky.push(record("reads", "strata", "read_positive", CAPS[0], 3));
    let said = verdict(&lucky);
    assert!(said.starts_with("not decided; 1 of its own repeats have no figure; not about"), "{said}");
}

#[test]
fn nothing_that_is_missing_makes_an_engine_ahead() {
    let table = |records: &[Record]| solkv_loadgen::report::best::table(records, "strata");
    let verdict = |records: &[Record]| {
        let table = table(records);
        let line = table.lines().find(|line| line.contains(" avg ")).unwrap();
        line.split('|').nth(8).unwrap().trim().to_owned()
    };
    let (own, redb) = (repeats("strata", 5_000.0, 0.01), repeats("redb", 10_000.0, 0.01));
    assert_eq!(verdict(&[own.clone(), redb.clone()].concat()), "ahead");
    // A faster one with too few repeats.
    let fast = repeats("lmdb", 1_000.0, 0.01)[..2].to_vec();
    let said = verdict(&[own.clone(), redb.clone(), fast].concat());
    assert_eq!(said, "not decided; not about lmdb (2 runs)");
    // Repeats of its own that the others have.
    let mut more = redb.clone();
    more.extend(redb.iter().cloned().map(|run| Record { repeat: run.repeat + 3, ..run }));
    let said = verdict(&[own.clone(), more].concat());
    assert_eq!(said, "not decided; 3 of its own repeats have no figure");
    // Repeats that did not begin in the state that was asked for.
    let mut partly = own.clone();
    partly[1].state_asked = Some(partly[1].workload.state.clone());
    partly[1].workload.state = "partly cached".to_owned();
    let partly = [partly, redb.clone()].concat();
    let said = "not decided; 1 of its own repeats have no figure; not about redb (3 runs)";
    assert_eq!(verdict(&partly), said);
    assert!(table(&partly).contains("strata: partly cached at the start of 1 of 3"), "{}", table(&partly));
    // One that the scenario measures in another cell.
    let mut elsewhere = repeats("lmdb", 9_000.0, 0.01);
    elsewhere.iter_mut().for_each(|run| run.cap_bytes = CAPS[1]);
    assert_eq!(verdict(&[own, redb, elsewhere].concat()), "ahead; not about lmdb (not measured)");
}

#[test]
fn a_lead_that_the_device_explains_is_not_decided() {
    let mut records = [cold("strata", 0.5, 1), cold("lmdb", 0.5, 1)].concat();
    for run in records.iter_mut().filter(|run| run.engine == "lmdb") {
        run.curves = vec![curve("read_positive", 90_000.0 * (1.0 + f64::from(run.repeat) / 100.0), 100_000)];
    }
    let verdict = |records: &[Record]| {
        let table = solkv_loadgen::report::best::table(records, "strata");
        let line = table.lines().find(|line| line.contains("| Positive read p50 |")).unwrap();
        line.split('|').nth(8).unwrap().trim().to_owned()
    };
    assert_eq!(verdict(&records), "ahead");
    for run in records.iter_mut().filter(|run| run.engine == "lmdb") {
        let device = run.device_read_ns.as_mut().unwrap();
        (device.p50, device.p99) = (device.p50 * 3 / 2, device.p99 * 3 / 2);
    }
    assert_eq!(verdict(&records), "not decided");
}

#[test]
fn runs_that_are_not_alike_are_named() {
    let mut records = [repeats("strata", 5_000.0, 0.01), repeats("redb", 10_000.0, 0.01)].concat();
    let warnings = |records: &[Record]| {
        let table = solkv_loadgen::report::best::table(records, "strata");
        table.lines().filter(|line| line.starts_with("WARNING")).map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(warnings(&records), "");
    records[1].machine.cpu = "another".to_owned();
    records[2].program = "0.2.0".to_owned();
    records[4].engine_options.insert("cache_bytes".to_owned(), "1".to_owned());
    let said = warnings(&records);
    for part in ["2 machines", "several programs", "repeats of redb had different options"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_kill_and_a_cost_that_was_zero_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let before = write(directory.path(), "before.jsonl", &cold("lmdb", 0.5, 0));
    let reads = write(directory.path(), "reads.jsonl", &cold("lmdb", 0.5, 64 << 20));
    let found = loadgen(&["compare", &before, &reads, "--fail-above", "5"]);
    assert!(found.status.code() == Some(1) && text(&found.stdout).contains("one is 0"), "{}", text(&found.stdout));

    let mut killed = cold("lmdb", 0.5, 0);
    killed.iter_mut().for_each(|run| {
        run.notes.push("killed: out of memory under the cap".to_owned());
        (run.ops, run.curves, run.open) = (0, Vec::new(), None);
    });
    let killed = write(directory.path(), "killed.jsonl", &killed);
    let found = loadgen(&["compare", &before, &killed, "--fail-above", "5"]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found.stdout));
    for part in ["killed: 3 runs of B and 0 of A", "only in A: Positive read p50"] {
        assert!(text(&found.stdout).contains(part), "{part}: {}", text(&found.stdout));
    }
}

/// Makes three repeats under a cap from a cold start, each with every figure of such a run.
fn cold(engine: &str, open_s: f64, read_bytes: u64) -> Vec<Record> {
    let run = |repeat| {
        let mut run = record("reads", engine, "read_positive", Some(1 << 30), repeat);
        let mean = 60_000.0 * (1.0 + f64::from(repeat) / 100.0);
        run.curves = vec![curve("read_positive", mean, 100_000)];
        run.open = Some(Opening { elapsed_s: open_s, device_read_bytes: Some(read_bytes) });
        run.device_read_ns = Some(baseline().random_read_ns);
        run.io.device_reads = Some(run.ops);
        run
    };
    (0..3).map(run).collect()
}

#[test]
fn best_fills_the_cells_of_the_others_and_says_why_one_is_empty() {
    let mut killed = record("reads", "redb", "read_positive", Some(1 << 30), 0);
    killed.notes.push("killed: out of memory under the cap".to_owned());
    let records = [cold("strata", 0.5, 64 << 20), cold("lmdb", 0.002, 8 << 10), vec![killed.clone()]].concat();
    let table = solkv_loadgen::report::best::table(&records, "strata");
    let row = |table: &str, name: &str| {
        let line = table.lines().find(|line| line.contains(&format!("| {name} |"))).unwrap_or_else(|| panic!("{name}"));
        line.split('|').map(|cell| cell.trim().to_owned()).skip(4).collect::<Vec<_>>()
    };
    for (name, own, other) in [
        ("Opening from a cold start, time", "500 ms", "2.00 ms"),
        ("Opening from a cold start, bytes from the device", "64.0 MiB", "8.00 KiB"),
        ("Positive read p50 / the device's", "0.62", "0.62"),
        ("Device reads per operation, of the whole machine", "1.00", "1.00"),
    ] {
        let row = row(&table, name);
        assert!(row[0].starts_with(own) && row[1].starts_with(other) && row[2] == "lmdb", "{row:?}");
    }
    assert!(table.contains("redb: killed: out of memory under the cap"), "{table}");
    assert!(!table.contains("| – |"), "{table}");

    let alone = solkv_loadgen::report::best::table(&records[..3], "strata");
    assert_eq!(row(&alone, "Positive read avg")[1], "", "{alone}");
    let beside_killed = [cold("strata", 0.5, 1), vec![killed]].concat();
    let beside_killed = solkv_loadgen::report::best::table(&beside_killed, "strata");
    assert_eq!(row(&beside_killed, "Positive read avg")[1], "killed: out of memory under the cap");
    let own = solkv_loadgen::report::best::table(&records, "redb");
    let own = row(&own, "Positive read avg");
    assert_eq!(
        (own[0].as_str(), own[3].as_str(), own[4].as_str()),
        ("killed: out of memory under the cap", "killed: out of memory under the cap", "no figure")
    );
}

/// A repeat that stalled has too few values beyond a quantile, and the quantile of the others would be flattering.
#[test]
fn a_quantile_that_one_repeat_lacks_has_no_figure() {
    let mut records = [cold("strata", 0.5, 1), cold("lmdb", 0.5, 1)].concat();
    records[1].curves = vec![curve("read_positive", 900_000.0, 3_000)];
    let table = solkv_loadgen::report::best::table(&records, "strata");
    let row = |name: &str| {
        let line = table.lines().find(|line| line.contains(&format!("| Positive read {name} |"))).unwrap();
        line.split('|').map(|cell| cell.trim().to_owned()).skip(4).collect::<Vec<_>>()
    };
    assert_eq!((row("p99.9")[0].as_str(), row("p99.9")[4].as_str()), ("too few values", "no figure"), "{table}");
    assert!(row("p99")[4] != "no figure" && row("avg")[4] != "no figure", "{table}");
}

#[test]
fn a_steady_state_is_another_cell_than_the_first_seconds() {
    let first = cold("lmdb", 0.002, 8 << 10);
    let mut steady = first.clone();
    steady.iter_mut().for_each(|run| {
        run.workload.state = "steady".to_owned();
        run.workload.more.insert("before_seconds".to_owned(), "30".to_owned());
    });
    let (_, markdown) = report(&[first, steady].concat());
    for part in ["state cold", "state steady, before\\_seconds 30", "| Opening from a cold start, time | 2.00 ms"] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    assert_eq!(markdown.matches("| Opening from a cold start, time |").count(), 1, "once, not in the steady cell too");
}

#[test]
fn engines_of_one_label_are_named_by_their_options_and_are_no_repeats_of_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let of = |line: &str, mean_ns: f64| {
        let mut runs = repeats("rocksdb_bloom", mean_ns, 0.01);
        runs.iter_mut().for_each(|run| run.engine_line = Some(line.to_owned()));
        runs
    };
    let (ten, twenty) = (of("rocksdb --bloom 10", 10_000.0), of("rocksdb --bloom 20", 5_000.0));
    let (html, markdown) = report(&[ten.clone(), twenty.clone(), repeats("redb", 10_000.0, 0.01)].concat());
    let engines = serde_json::json!(["rocksdb --bloom 10", "rocksdb --bloom 20", "redb"]);
    assert_eq!(data(&html)["engines"], engines);
    assert!(!markdown.contains("6 repeats") && !markdown.contains("different engine options"), "{markdown}");
    let (_, alone) = report(&ten);
    assert!(alone.contains("rocksdb\\_bloom") && !alone.contains("--bloom 10"), "one set of options: {alone}");

    let file = write(directory.path(), "both.jsonl", &[ten.clone(), twenty.clone()].concat());
    let best = loadgen(&["best", &file, "--engine", "rocksdb --bloom 20"]);
    assert!(text(&best.stdout).contains("| rocksdb --bloom 10 | 2.00"), "{}", text(&best.stdout));
    let (ten, twenty) = (write(directory.path(), "10.jsonl", &ten), write(directory.path(), "20.jsonl", &twenty));
    let compared = loadgen(&["compare", &ten, &twenty]);
    assert!(text(&compared.stderr).contains("nothing to compare"), "{}", text(&compared.stderr));
    let both = ["--engines", "rocksdb --bloom 10,rocksdb --bloom 20"];
    let compared = loadgen(&[&["compare", &ten, &twenty][..], &both].concat());
    assert!(text(&compared.stdout).contains("ahead: 5"), "{}", text(&compared.stdout));
}
