//! A live service exports at /metrics exactly the families of the catalogue.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use conformance::{Ability, able};
use proto::v1::kv_client::KvClient;
use proto::v1::{Commitment, GetRequest};
use solkv_service::catalogue::{ALL, Metric};
use workload::Pairs;

use crate::crash::derive;
use crate::support::{Service, client_runtime, columns, load, stream, wait_for};

/// A stream with processed slots, forks and finality, which lasts longer than the test runs.
const WHOLE: &str = "--pairs 2000 --events 100000000 --events-per-slot 200 --rate 20000 --unknown-share 0.05 \
                     --change-share 0.3 --fork-every 7 --confirm-after 6 --replay-slots 1000";

const GAP: &str =
    "--pairs 2000 --events 15000 --events-per-slot 500 --change-share 0.5 --gap-at 1020 --replay-slots 1000";

/// Name of an archive that is found and never read.
const ARCHIVE: &str = "snapshot-999-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar.zst";

/// Family that is missing on a machine whose memory cgroups are not mounted.
const OF_THE_MACHINE: &str = "solkv_memory_bytes";

/// Type, help and labels of the samples of one family in a scrape.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

fn families(text: &str) -> BTreeMap<String, Family> {
    let mut found: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            found.entry(name.to_owned()).or_default().help = help.trim_end_matches('.').to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            found.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            sample(line, &mut found);
        }
    }
    found
}

fn sample(line: &str, found: &mut BTreeMap<String, Family>) {
    let (name, labels) = match line.split_once('{') {
        Some((name, rest)) => (name, rest.rsplit_once('}').unwrap().0),
        None => (line.split_once(' ').unwrap().0, ""),
    };
    let parts = ["_bucket", "_sum", "_count"];
    let family = parts.iter().find_map(|part| name.strip_suffix(part)).filter(|family| found.contains_key(*family));
    let family = found.get_mut(family.unwrap_or(name));
    let family = family.unwrap_or_else(|| panic!("a sample of no family: {line}"));
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (name, value) = label.split_once('=').unwrap();
        family.labels.entry(name.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
    }
}

/// Returns the names of a metric's labels, with their values where the catalogue lists them.
fn labels(metric: &Metric) -> BTreeMap<&'static str, Option<BTreeSet<&'static str>>> {
    let parse = |label: &'static str| match label.split_once('=') {
        Some((name, values)) => (name, Some(values.split('|').collect())),
        None => (label, None),
    };
    metric.labels.iter().copied().map(parse).collect()
}

/// Asserts that every family of a scrape is as the catalogue says. Returns the families' names.
fn check(text: &str) -> BTreeSet<String> {
    let found = families(text);
    for (name, family) in &found {
        let metric = ALL.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("not in the catalogue: {name}"));
        assert_eq!((family.kind.as_str(), family.help.as_str()), (metric.kind.name(), metric.help), "{name}");
        let known = labels(metric);
        for (label, values) in &family.labels {
            let allowed = known.get(label.as_str()).unwrap_or_else(|| panic!("{name} has no label {label}"));
            if let Some(allowed) = allowed {
                let stray: Vec<_> = values.iter().filter(|value| !allowed.contains(value.as_str())).collect();
                assert!(stray.is_empty(), "{name}: {label} has {stray:?}, which the catalogue does not know");
            }
        }
        if !family.labels.is_empty() {
            assert!(known.keys().all(|label| family.labels.contains_key(*label)), "{name}: {:?}", family.labels);
        }
    }
    judge(text);
    found.into_keys().collect()
}

/// Checks the text with Prometheus's own tool, where that is installed (Debian package prometheus).
fn judge(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Some(mut child) = able(Ability::Promtool, promtool.spawn()) else { return };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Looks up a present key at each commitment, over the network.
fn look_up(service: &Service, seed: u64) {
    client_runtime().block_on(async {
        let mut client = KvClient::connect(format!("http://{}", service.listen)).await.unwrap();
        for commitment in [Commitment::Processed, Commitment::Confirmed] {
            let key = Pairs::new(seed).key(1).to_vec().into();
            client.get(GetRequest { key, commitment: commitment.into(), ..Default::default() }).await.unwrap();
        }
    });
}

#[test]
fn a_scrape_is_the_catalogue_both_ways() {
    let options = columns().pop().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let (whole, gap) = (temp.path().join("whole"), temp.path().join("gap"));
    let (stream_whole, workload) = stream(WHOLE);
    load(&whole, &options, &workload);
    derive(&whole, &[]);
    let geyser = format!("http://{}", stream_whole.address());
    let archives = temp.path().join("archives");
    std::fs::create_dir(&archives).unwrap();
    std::fs::write(archives.join(ARCHIVE), "").unwrap();
    let more = ["--processed", "--heal-from", archives.to_str().unwrap()];
    let mut service = Service::start(&whole, &options, &geyser, &more);
    wait_for("the search for archives", || service.metric("solkv_heal_newest_archive_slot"));
    wait_for("finalized and processed slots", || {
        service.metric("solkv_finalized_slot").and(service.metric("solkv_processed_slot"))
    });
    look_up(&service, workload.seed);
    let made = Command::new(env!("CARGO_BIN_EXE_service"))
        .args(["snapshot", "--dir", whole.to_str().unwrap(), "--to", temp.path().join("copy").to_str().unwrap()])
        .status();
    assert!(made.unwrap().success());
    // A second has passed for the sampling thread, so memory and disk are known.
    let text = wait_for("a sample of memory and disk", || {
        service.get("/metrics").map(|(_, text)| text).filter(|text| text.contains("solkv_disk_free_bytes "))
    });
    let mut seen = check(&text);
    assert!(service.terminate().success());
    stream_whole.stop().unwrap();

    let (stream_gap, workload) = stream(GAP);
    load(&gap, &options, &workload);
    let geyser = format!("http://{}", stream_gap.address());
    let mut service = Service::start(&gap, &options, &geyser, &["--gap-timeout", "700ms"]);
    wait_for("a gap", || service.metric("solkv_gap").filter(|gap| *gap == 1.0));
    seen.extend(check(&service.get("/metrics").unwrap().1));
    stream_gap.stop().unwrap();

    let missing: Vec<_> =
        ALL.iter().map(|metric| metric.name).filter(|name| !seen.contains(*name) && *name != OF_THE_MACHINE).collect();
    assert!(missing.is_empty(), "in the catalogue and in no scrape: {missing:?}");
}
