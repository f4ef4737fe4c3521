//! `loadgen report` and `loadgen compare` as commands: made-up result files in, pages, tables and exit codes out.
//!
//! Owns: the contents that a reader must find. Must not: repeat how they are made.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use solkv_loadgen::result::{Memory, Record};

use crate::synthetic::{CAPS, ENGINES, curve, matrix, record};

pub(crate) fn loadgen(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loadgen")).args(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub(crate) fn write(directory: &Path, name: &str, records: &[Record]) -> String {
    let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    let file = directory.join(name);
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    file.to_str().unwrap().to_owned()
}

/// Returns the page and the markdown on `records`.
pub(crate) fn report(records: &[Record]) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "results.jsonl", records);
    let (html, markdown) = (directory.path().join("r.html"), directory.path().join("r.md"));
    let out = loadgen(&["report", &file, "--html", html.to_str().unwrap(), "--markdown", markdown.to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    (std::fs::read_to_string(html).unwrap(), std::fs::read_to_string(markdown).unwrap())
}

/// Returns the document inside of a page.
pub(crate) fn data(html: &str) -> serde_json::Value {
    let data = html.split("id=\"report-data\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(data).unwrap()
}

/// Makes three repeats of one cell whose mean is `mean_ns`, plus or minus `spread`.
pub(crate) fn repeats(engine: &str, mean_ns: f64, spread: f64) -> Vec<Record> {
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
    let document = data(&html);
    assert_eq!(document["engines"], serde_json::json!(ENGINES));
    let titles: Vec<_> = document["sections"].as_array().unwrap().iter().map(|section| &section["title"]).collect();
    for part in
        ["Machine and device", "Summary", "What to know", "bootstrap", "read-under-cap", "live", "How to reproduce"]
    {
        assert!(titles.iter().any(|title| *title == part), "{part}: {titles:?}");
    }
    let document = document.to_string();
    for kind in ["size", "time", "caps", "nines"] {
        assert!(document.contains(&format!("\"kind\":\"{kind}\"")), "{kind}");
    }
    for part in [
        "What the load took",
        "Live, open loop",
        "14.9 µs †",
        "cold at the start: 180 times",
        "closed loop",
        "open loop at 20.0 k/s",
        "Peak charged",
        "Write amplification",
        "AMD EPYC 7B13",
    ] {
        assert!(document.contains(part), "{part}");
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
    let few = "no engine is marked as best: 1 of the 3 repeats that a verdict needs";
    assert!(markdown.contains(few) && !markdown.contains("µs**"), "{markdown}");
    let enough = [repeats("redb", 50_000.0, 0.01), repeats("strata", 50_000.0, 0.01)].concat();
    let (_, markdown) = report(&enough);
    assert!(!markdown.contains("no engine is marked") && !markdown.contains("µs**"), "equal: {markdown}");
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
        "- live: repeats of lmdb had different options",
        "- live: the runs are of several programs",
        "- the runs are of 2 machines or settings of one",
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
    assert_eq!(data(&html)["engines"][0], "<img src=x onerror=alert(1)>");
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
    let (html, markdown) = (data(&html).to_string(), markdown.replace('\\', ""));
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
