//! `loadgen report` and `loadgen compare` as commands: made-up result files in, pages, tables and exit codes out.
//!
//! Owns: the contents that a reader must find. Must not: repeat how they are made.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use solkv_loadgen::result::{Memory, Opening, Record};

use crate::synthetic::{CAPS, ENGINES, baseline, curve, matrix, record};

fn loadgen(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loadgen")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn write(directory: &Path, name: &str, records: &[Record]) -> String {
    let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    let file = directory.join(name);
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    file.to_str().unwrap().to_owned()
}

/// Returns the page and the markdown on `records`.
fn report(records: &[Record]) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "results.jsonl", records);
    let (html, markdown) = (directory.path().join("r.html"), directory.path().join("r.md"));
    let out = loadgen(&["report", &file, "--html", html.to_str().unwrap(), "--markdown", markdown.to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    (std::fs::read_to_string(html).unwrap(), std::fs::read_to_string(markdown).unwrap())
}

/// Makes three repeats of one cell whose mean is `mean_ns`, plus or minus `spread`.
fn repeats(engine: &str, mean_ns: f64, spread: f64) -> Vec<Record> {
    let of = |(repeat, way): (u32, f64)| {
        let mut run = record("reads", engine, "read_positive", CAPS[0], repeat);
        let mean = mean_ns * (1.0 + way * spread);
        run.ops = (60e9 / mean) as u64;
        run.curves = vec![curve("read_positive", mean, run.ops)];
        run
    };
    [(0, -1.0), (1, 0.0), (2, 1.0)].into_iter().map(of).collect()
}

#[test]
fn the_page_has_every_engine_and_every_part_and_fetches_nothing() {
    let records = matrix();
    let (html, markdown) = report(&records);
    // A directory in which a developer can look at them.
    if let Some(keep) = std::env::var_os("LOADGEN_KEEP_REPORT").map(PathBuf::from) {
        write(&keep, "results.jsonl", &records);
        std::fs::write(keep.join("report.html"), &html).unwrap();
        std::fs::write(keep.join("report.md"), &markdown).unwrap();
    }
    for engine in ENGINES {
        assert!(html.contains(&format!("<th scope=\"col\">{engine}</th>")), "{engine}");
        assert!(html.contains(&format!("<span class=\"name\">{engine}</span>")), "{engine}");
    }
    for part in
        ["Machine and device", "Summary", "What to know", "bootstrap", "read-under-cap", "live", "How to reproduce"]
    {
        assert!(html.contains(&format!("-title\">{part}</h2>")), "{part}");
    }
    for part in ["What the load took", "Live, open loop", "Latency against size", "Latency over time", "by nines"] {
        assert!(html.contains(part), "{part}");
    }
    for part in [
        "14.9 µs †",
        "cold at the start: 180 times",
        "closed loop",
        "open loop at 20.0 k/s",
        "line: the cap",
        "Write amplification",
        "AMD EPYC 7B13",
    ] {
        assert!(html.contains(part), "{part}");
    }
    for fetched in ["src=", "@import", "url(", "href=\"http", "fetch(", "XMLHttpRequest"] {
        assert!(!html.contains(fetched), "{fetched}");
    }
    assert!(html.contains("default-src 'none'"), "the browser must refuse what the page should not have");
}

#[test]
fn markdown_has_medians_spreads_ratios_and_dashes() {
    let mut records = repeats("redb", 10_000.0, 0.01);
    records.extend(repeats("strata", 5_000.0, 0.01));
    let mut other = record("reads", "lmdb", "read_positive", CAPS[0], 0);
    other.curves = vec![curve("read_positive", 7_500.0, 900)];
    records.push(other);
    let (_, markdown) = report(&records);
    let row = |name: &str| markdown.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap();
    assert_eq!(row("avg"), "| avg | 10.0 µs (9.90–10.1, ×2.00) | **5.00 µs** (4.95–5.05) | 7.50 µs (1 run, ×1.50) |");
    assert!(row("p99.9").ends_with("| – |"), "{}: of 900 values there is no p99.9", row("p99.9"));
    assert!(markdown.contains("closed loop"), "{markdown}");
    assert!(!markdown.contains("µs †"), "no run has a note: {markdown}");
    assert!(markdown.contains("- 1 run, so nothing says how far another would differ: reads read\\_positive, lmdb"));
    assert!(markdown.contains("loadgen bench --scenario reads --seed 7"), "{markdown}");
}

#[test]
fn one_run_of_each_engine_decides_nothing() {
    let one = |engine: &str, mean_ns: f64| repeats(engine, mean_ns, 0.01).into_iter().take(1);
    let few: Vec<Record> = one("redb", 50_000.0).chain(one("strata", 5_000.0)).collect();
    let (_, markdown) = report(&few);
    assert!(markdown.contains("not decided: 1 of the 3 repeats that a verdict needs"), "{markdown}");
    assert!(!markdown.contains("none is ahead"), "{markdown}");
    let enough = [repeats("redb", 50_000.0, 0.01), repeats("strata", 50_000.0, 0.01)].concat();
    assert!(report(&enough).1.contains("in 1 of 1 none is ahead of all others"), "three repeats are judged");
}

#[test]
fn what_nobody_noted_is_found() {
    let mut slow = record("live", "lmdb", "live", CAPS[0], 0);
    slow.ops = 900_000;
    slow.memory = vec![Memory {
        at_s: 1.0,
        rss_bytes: 1 << 20,
        page_cache_bytes: None,
        charged_bytes: CAPS[0].map(|cap| cap + 4096),
    }];
    let mut other = record("live", "lmdb", "live", CAPS[0], 1);
    other.engine_options.insert("cache".to_owned(), "1 GiB".to_owned());
    other.machine.kernel = "6.12.0".to_owned();
    other.program = "0.1.0 (9f8e7d6-dirty)".to_owned();
    let (_, markdown) = report(&[slow, other]);
    for found in [
        "- fell behind the rate asked for: 75.0 % of it at worst, live live, lmdb, cap 146 MiB",
        "- more memory was charged than the cap allows",
        "- the repeats ran with different engine options",
        "- the repeats ran with different programs",
        "- the repeats ran on different machines",
        "2 machines or settings of one",
    ] {
        assert!(markdown.contains(found), "{found}: {markdown}");
    }
}

#[test]
fn threads_are_compared_where_nothing_else_differs() {
    let of = |threads| {
        let mut run = record("scaling", "redb", "read_positive", None, 0);
        run.workload.threads = threads;
        run.elapsed_s = 60.0 / f64::from(threads);
        run
    };
    let (_, markdown) = report(&[of(1), of(4)]);
    assert!(markdown.contains("**Positive read: throughput by threads**"), "{markdown}");
    assert!(markdown.contains("| threads 4, closed loop | 80.0 k/s (1 run) |"), "{markdown}");
    assert!(markdown.contains("### Positive read, closed loop, threads 4"), "{markdown}");
}

#[test]
fn rates_stand_beside_each_other_and_a_killed_run_is_marked() {
    let of = |rate: f64, engine: &str| {
        let mut run = record("query", engine, "query", None, 0);
        run.workload.arrival = "open".to_owned();
        run.workload.target_rate = Some(rate);
        run.ops = (rate * 60.0) as u64;
        run.curves = vec![curve("read_positive", rate, 60_000)];
        run
    };
    let mut killed = of(5_000.0, "redb");
    killed.notes.push("killed: out of memory under the cap".to_owned());
    (killed.ops, killed.curves) = (0, Vec::new());
    let (_, markdown) = report(&[of(5_000.0, "lmdb"), of(500.0, "lmdb"), of(500.0, "redb"), killed]);
    let rates = markdown.split("Query: latency by the rate asked for").nth(1).unwrap();
    let (slow, fast) = (rates.find("open loop at 500 /s"), rates.find("open loop at 5,000 /s"));
    assert!(slow.unwrap() < fast.unwrap(), "{rates}");
    assert!(rates.contains("| achieved | 5,000 /s (1 run) | – † |"), "{rates}");
    assert!(markdown.contains("killed: out of memory under the cap (query query, redb"), "{markdown}");
}

#[test]
fn text_of_a_record_is_never_markup() {
    let mut records = repeats("<img src=x onerror=alert(1)>", 1_000.0, 0.01);
    records[0].notes.push("</script><script>alert(2)</script>".to_owned());
    records[0].scenario = "a\"b".to_owned();
    let (html, _) = report(&records);
    assert!(!html.contains("<img src=x"), "the engine's name is markup");
    assert!(!html.contains("<script>alert"), "the note is markup");
    assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;"));
    let data = html.split("id=\"report-data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["engines"][0], "<img src=x onerror=alert(1)>");
}

#[test]
fn a_planted_regression_is_found_and_noise_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let before = write(directory.path(), "before.jsonl", &repeats("redb", 10_000.0, 0.03));
    let noise = write(directory.path(), "noise.jsonl", &repeats("redb", 10_300.0, -0.03));
    let worse = write(directory.path(), "worse.jsonl", &repeats("redb", 12_000.0, 0.03));

    let same = loadgen(&["compare", &before, &noise, "--fail-above", "1"]);
    assert!(same.status.success(), "{}", text(&same.stdout));
    assert!(text(&same.stdout).contains("behind: 0, ahead: 0"), "{}", text(&same.stdout));

    let found = loadgen(&["compare", &before, &worse, "--fail-above", "10"]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found.stdout));
    assert!(text(&found.stdout).contains("behind: 5, ahead: 0"), "{}", text(&found.stdout));
    let allowed = loadgen(&["compare", &before, &worse, "--fail-above", "30"]);
    assert!(allowed.status.success(), "{}", text(&allowed.stderr));

    let lacks =
        write(directory.path(), "lacks.jsonl", &[repeats("redb", 10_000.0, 0.03), repeats("lmdb", 9.0, 0.0)].concat());
    let lacks = loadgen(&["compare", &lacks, &before, "--fail-above", "10"]);
    assert!(text(&lacks.stderr).contains("missing=1"), "{}", text(&lacks.stderr));

    let json = loadgen(&["compare", &worse, &before, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["rows"][0]["figure"], "throughput");
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["verdict"] == "ahead"), "{json}");
}

#[test]
fn engines_of_one_file_are_compared_and_few_repeats_prove_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut records = repeats("lmdb", 10_000.0, 0.01);
    records.extend(repeats("redb", 20_000.0, 0.01));
    let file = write(directory.path(), "both.jsonl", &records);
    let out = loadgen(&["compare", &file, "--engines", "lmdb,redb"]);
    assert!(text(&out.stdout).contains("lmdb : redb Positive read avg"), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("behind: 5"), "{}", text(&out.stdout));

    let few = write(directory.path(), "few.jsonl", &records[4..]);
    let compare = |limit| loadgen(&["compare", &file, &few, "--engines", "lmdb,redb", "--fail-above", limit]);
    assert!(text(&compare("0").stdout).contains("not decided: 5"), "{}", text(&compare("0").stdout));
    // Two repeats cannot say that 100 % worse is chance, and need not say that it is within 200 %.
    assert_eq!((compare("0").status.code(), compare("200").status.code()), (Some(1), Some(0)));

    for unknown in ["lmdb,strata", "strata,lmdb"] {
        let none = loadgen(&["compare", &file, "--engines", unknown]);
        let said = format!("no engine strata: file={file} has lmdb, redb");
        assert!(none.status.code() == Some(1) && text(&none.stderr).contains(&said), "{}", text(&none.stderr));
    }
    assert_eq!(loadgen(&["compare", &file]).status.code(), Some(2), "one file without --engines is no comparison");
}

#[test]
fn means_of_batches_in_older_files_are_not_shown_as_latencies() {
    let mut run = record("live", "redb", "live", None, 0);
    run.curves = ["read_positive", "read_positive_per_item", "get_many", "commit_per_item", "read_negative_per_item"]
        .map(|op| curve(op, 7_000.0, 900))
        .to_vec();
    let (html, markdown) = report(std::slice::from_ref(&run));
    let markdown = markdown.replace('\\', "");
    for shown in ["Positive read", "get_many", "Commit / item"] {
        assert!(html.contains(shown) && markdown.contains(shown), "{shown}: {markdown}");
    }
    for said in [&html, &markdown] {
        assert!(!said.contains("per_item") && !said.contains("per item") && !said.contains("read / item"), "{said}");
    }
}

#[test]
fn bad_files_are_refused_by_name_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |name: &str, content: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, content).unwrap();
        let out = loadgen(&["report", file.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(1));
        text(&out.stderr).to_owned()
    };
    let good = serde_json::to_string(&record("reads", "redb", "read_positive", None, 0)).unwrap();
    let error = refused("broken.jsonl", &format!("{good}\n{{\"schema\": 1\n"));
    assert!(error.contains("broken.jsonl line=2"), "{error}");
    let error = refused("partial.jsonl", "{\"schema\": 1, \"program\": \"x\"}");
    assert!(error.contains("line=1") && error.contains("missing field `scenario`"), "{error}");
    let error = refused("newer.jsonl", "{\"schema\": 99, \"everything\": \"else\"}");
    assert!(error.contains("schema=99") && error.contains("newer loadgen"), "{error}");
    let error = refused("empty.jsonl", "\n");
    assert!(error.contains("no result in it") && error.contains("empty.jsonl"), "{error}");
    let file = directory.path().join("twice.jsonl");
    std::fs::write(&file, &good).unwrap();
    let twice = loadgen(&["report", file.to_str().unwrap(), file.to_str().unwrap()]);
    assert!(text(&twice.stderr).contains("a run is there twice"), "{}", text(&twice.stderr));
    let missing = loadgen(&["report", "/nowhere.jsonl"]);
    assert!(text(&missing.stderr).contains("/nowhere.jsonl"), "{}", text(&missing.stderr));
}

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
    for part in ["killed: 3 runs of B and 0 of A", "only A has a figure: Positive read p50"] {
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
    for name in ["rocksdb --bloom 10", "rocksdb --bloom 20", "redb"] {
        assert!(html.contains(&format!("<th scope=\"col\">{name}</th>")), "{name}");
    }
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
