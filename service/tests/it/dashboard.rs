//! The dashboard as a person sees it: the real service on a real stream, its page in a real browser.

use std::path::Path;

use engines::EngineOptions;
use proto::v1::GetRequest;
use proto::v1::kv_client::KvClient;
use serde_json::{Value, json};
use workload::Pairs;

use crate::browser::Browser;
use crate::support::{Service, columns, load, stream, wait_for};

/// A stream that lasts longer than any test runs.
const ENDLESS: &str = "--pairs 2000 --events 100000000 --events-per-slot 400 --rate 4000 --unknown-share 0.3 \
                       --change-share 0.3 --close-share 0.02 --dead-every 9 --skip-every 11 --replay-slots 100";

fn options() -> EngineOptions {
    columns().pop().unwrap()
}

fn json_of(service: &mut Service, path: &str) -> Value {
    let (code, body) = wait_for(path, || service.get(path));
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Looks up present and absent keys, so that both reads of the rpc have a series.
fn look_up(listen: &str, seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = KvClient::connect(format!("http://{listen}")).await.unwrap();
        let pairs = Pairs::new(seed);
        for index in 0..100 {
            for key in [pairs.key(index), pairs.absent_key(index)] {
                client.get(GetRequest { key: key.to_vec().into(), ..Default::default() }).await.unwrap();
            }
        }
    });
}

#[test]
fn the_figures_come_with_a_history_and_the_page_with_its_policy() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, options) = (temp.path().join("store"), options());
    let (stream, workload) = stream(ENDLESS);
    load(&dir, &options, &workload);
    let mut service = Service::start(&dir, &options, &format!("http://{}", stream.address()), &[]);
    let whole = wait_for("three samples and a slot", || {
        let (_, body) = service.get("/dashboard.json")?;
        let figures: Value = serde_json::from_str(&body).unwrap();
        let applied = figures["counters"]["slots_applied"].as_u64().unwrap() > 0;
        (applied && figures["history"]["rows"].as_array().unwrap().len() >= 3).then_some(figures)
    });
    assert_eq!((&whole["ready"], &whole["gap"], &whole["connected"]), (&json!(true), &Value::Null, &json!(true)));
    assert_eq!(whole["subscribers"], json!([]));
    assert!(whole["memory"]["cap_bytes"].as_u64().unwrap() > 0);
    assert!(whole["memory"]["rss"]["anon_bytes"].as_u64().unwrap() > 0);
    assert!(whole["disk"]["space"]["free_bytes"].as_u64() <= whole["disk"]["space"]["total_bytes"].as_u64());
    assert!(!whole["details"].as_array().unwrap().is_empty());
    let rows = whole["history"]["rows"].as_array().unwrap();
    let columns = whole["history"]["columns"].as_array().unwrap().len();
    for (at, row) in rows.iter().enumerate() {
        assert_eq!((row[0].as_u64(), row[2].as_array().unwrap().len()), (Some(at as u64 + 1), columns), "{row}");
    }
    let seq = rows.len() as u64;
    let later = json_of(&mut service, &format!("/dashboard.json?since={}", seq - 1));
    assert_eq!(later["history"]["rows"][0][0], json!(seq), "what is known is not sent again");
    assert_eq!(service.get("/dashboard.json?since=soon").unwrap().0, 400);

    let (code, head, body) = service.get_with_head("/").unwrap();
    assert_eq!(code, 200);
    for line in ["content-type: text/html; charset=utf-8", "x-content-type-options: nosniff"] {
        assert!(head.lines().any(|found| found == line), "missing {line}\n{head}");
    }
    let policy = head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert!(body.starts_with("<!doctype html>") && body.trim_end().ends_with("</html>"));
    assert!(service.terminate().success());
    stream.stop().unwrap();
}

#[test]
fn a_person_sees_what_goes_on_and_what_does_not() {
    let Some(mut browser) = Browser::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    gap(&mut browser, &temp.path().join("gap"));
    live(&mut browser, &temp.path().join("live"));
}

/// A service that misses a slot names it.
fn gap(browser: &mut Browser, dir: &Path) {
    let line = "--pairs 500 --events 15000 --events-per-slot 500 --gap-at 1020 --replay-slots 1000";
    let (stream, workload) = stream(line);
    load(dir, &options(), &workload);
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start(dir, &options(), &geyser, &["--gap-timeout", "700ms"]);
    wait_for("a page", || service.get("/"));
    browser.look(1440, 1000, "light");
    browser.open(&format!("http://{}/", service.metrics));
    browser.wait("document.getElementById('state')?.dataset.level === 'bad' && store.answer?.gap !== null");
    assert_eq!(browser.text("#headline"), "Not ready: slots are missing");
    let reason = browser.text("#reason");
    assert!(reason.contains("Slot 1,020 is missing") && reason.contains("stands at slot 1,019"), "{reason}");
    let title = browser.eval("document.title").as_str().unwrap().to_owned();
    assert!(title.starts_with("Not ready · ") && title.ends_with(" · solkv"), "{title}");
    browser.wait("document.querySelector('#stream .shade') !== null");
    browser.shoot("gap");
    // The page would otherwise keep requesting from a service that has ended, and complain.
    browser.open("about:blank");
    assert!(service.terminate().success());
    stream.stop().unwrap();
}

fn live(browser: &mut Browser, dir: &Path) {
    let (stream, workload) = stream(ENDLESS);
    load(dir, &options(), &workload);
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start(dir, &options(), &geyser, &[]);
    wait_for("a page", || service.get("/"));
    look_up(&service.listen, workload.seed);
    let origin = format!("http://{}/", service.metrics);
    browser.open(&origin);
    browser.wait("['ok', 'warn'].includes(document.getElementById('state')?.dataset.level)");
    assert!(browser.text("#headline").starts_with("Ready"));
    let identity = browser.text("#identity");
    let provider = stream.address().to_string();
    for part in [options().engine.as_str(), env!("CARGO_PKG_VERSION"), "account-owner", "confirmed", &provider] {
        assert!(identity.contains(part), "{part}: {identity}");
    }
    assert!(browser.text("#where").ends_with(&format!(":{}", dir.display())), "the store is named");
    assert_eq!(browser.text("#feed .empty"), "Nobody follows the feed.");
    changes(browser);
    controls(browser);
    // A window is ten samples, so the figures that need one appear now or soon.
    browser.wait("document.querySelector('#latency > .scroll tbody td').innerText.endsWith('/s')");
    widths(browser, dir);
    assert_eq!(browser.complaints(), [""; 0]);
    let asked = browser.requests();
    let outside: Vec<_> =
        asked.iter().filter(|url| url.starts_with("http") && !url.starts_with("http://127.0.0.1:")).collect();
    assert!(outside.is_empty() && asked.iter().any(|url| url.starts_with(&origin)), "{outside:?}");

    // First the stream ends, then the service. Then another process starts at the same address, and is not ready.
    stream.stop().unwrap();
    browser.wait("document.getElementById('attention').innerText.includes('Not connected to the stream')");
    let lag = browser.eval("store.answer.lag_ms").as_u64().unwrap();
    browser.wait(&format!("store.answer.lag_ms > {lag} + 1000"));
    browser.shoot("disconnected");
    let (listen, metrics) = (service.listen.clone(), service.metrics.clone());
    assert!(service.terminate().success());
    browser.wait("document.body.classList.contains('stale')");
    assert_eq!(browser.text("#headline"), "No answer from the service");
    assert!(browser.text("#reason").contains("The last answer came at "));
    assert_eq!(browser.eval("getComputedStyle(document.querySelector('main')).filter"), "grayscale(1)");
    browser.shoot("lost");
    let service = Service::start_at(dir, &options(), &geyser, listen, metrics, |command| command);
    browser.wait("document.getElementById('headline').innerText === 'Not ready'");
    assert!(!browser.eval("document.body.classList.contains('stale')").as_bool().unwrap());
    let reason = browser.text("#reason");
    assert!(reason.starts_with("Reason: catching up with the stream"), "{reason}");
    assert!(browser.eval("store.rows.length < 60").as_bool().unwrap(), "the other process's history is gone");
    assert!(service.terminate().success());
}

/// Figures appear, and change a little later.
fn changes(browser: &mut Browser) {
    let first = browser.eval("document.querySelector('#now .tile').dataset.name");
    assert_eq!(first, "lookups", "what a service is for comes first");
    let slot = browser.text("[data-name=slot] .value");
    browser.wait(&format!("document.querySelector('[data-name=slot] .value').innerText !== {slot:?}"));
    browser.wait("document.querySelector('[data-name=clients] .value').innerText !== '–'");
    // The length of the bar next to the free space is the share of free space.
    let bar = browser.eval("Number(document.querySelector('[data-name=disk] .bar-used').getAttribute('width'))");
    let free = browser.eval("100 * store.answer.disk.space.free_bytes / store.answer.disk.space.total_bytes");
    assert!((bar.as_f64().unwrap() - free.as_f64().unwrap()).abs() < 1.0, "bar={bar} free={free}");
    let factor = browser.eval("detail('write_amplification_percent').format(12194)");
    assert_eq!(factor, "122 ×");
    assert_eq!(browser.eval("document.querySelector('#engine table').checkVisibility()"), json!(false), "folded");
    browser.wait(
        "[...document.querySelectorAll('#stream .joined')].every((line) => line.getAttribute('d').includes('L'))",
    );
    browser.wait("document.querySelectorAll('#latency > .scroll tbody tr').length >= 6");
    browser.wait("document.querySelectorAll('#engine tbody tr').length > 3");
    for figure in ["Events applied", "Slots dead", "Lookups"] {
        browser.wait(&format!(
            "[...document.querySelectorAll('.facts div')].some((one) => one.firstChild.textContent === {figure:?} \
             && one.lastChild.textContent !== '0')"
        ));
    }
}

/// Every control works, with the mouse and with the keyboard.
fn controls(browser: &mut Browser) {
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.eval(ground);
    browser.click("#theme");
    assert_eq!((browser.text("#theme").as_str(), browser.eval(ground)), ("Theme: light", light.clone()));
    browser.click("#theme");
    assert_eq!(browser.text("#theme"), "Theme: dark");
    assert_ne!(browser.eval(ground), light);
    browser.click("#theme");
    assert_eq!((browser.text("#theme").as_str(), browser.eval(ground)), ("Theme: auto", light));

    // With an hour of history every range can be filled.
    browser.eval("store.rows.unshift({ ...store.rows[0], t: store.rows[0].t - 3_600_000 })");
    for seconds in [60, 900, 300] {
        browser.click(&format!("#range input[value='{seconds}']"));
        assert_eq!(browser.eval("view().to - view().from"), json!(seconds * 1000));
    }
    browser.eval("store.rows.shift()");
    for op in ["read_positive", "read_negative", "get_many"] {
        browser.wait(&format!(
            "store.answer.latency.series.some((one) => one.op === '{op}' && one.source === 'ingest' && one.total.count > 0)"
        ));
    }
    for (op, sources) in [
        ("read_positive", &["ingest", "rpc"][..]),
        ("write", &["ingest"]),
        ("commit", &["ingest"]),
        ("read_negative", &["ingest", "rpc"]),
        ("get_many", &["ingest"]),
    ] {
        browser.click(&format!("input[name=op][value={op}]"));
        for source in sources {
            browser.click(&format!("input[name=source][value={source}]"));
            browser.wait("document.querySelectorAll('#latency .diamond').length >= 1");
            let counted = format!(
                "store.answer.latency.series.find((one) => one.op === '{op}' && one.source === '{source}').total.count > 0"
            );
            assert_eq!(browser.eval(&counted), json!(true), "{op} {source}");
        }
        assert_eq!(
            browser.eval("document.querySelectorAll('input[name=source]').length"),
            json!(sources.len()),
            "{op}"
        );
    }
    let charts = browser.eval("document.querySelectorAll('.chart').length").as_u64().unwrap();
    browser.eval("document.querySelectorAll('.chart').forEach((chart, at) => { chart.id = `chart${at}`; })");
    for at in 0..charts {
        browser.click(&format!("#chart{at} button"));
        assert_eq!(browser.eval(&format!("document.querySelector('#chart{at} svg').checkVisibility()")), json!(false));
        assert!(browser.eval(&format!("document.querySelectorAll('#chart{at} tbody tr').length")).as_u64() > Some(1));
        browser.click(&format!("#chart{at} button"));
        assert_eq!(browser.eval(&format!("document.querySelector('#chart{at} svg').checkVisibility()")), json!(true));
    }
    // Tab moves from the button to the chart, and the arrow keys move its cursor.
    browser.eval("document.querySelector('#chart0 button').focus()");
    browser.press("Tab", 9);
    browser.press("ArrowLeft", 37);
    let at_newest = browser.text("#chart0 .when");
    browser.press("ArrowLeft", 37);
    assert!(at_newest.starts_with("at ") && browser.text("#chart0 .when") != at_newest, "{at_newest}");
    browser.press("Tab", 9);
    assert_eq!(browser.text("#chart0 .when"), "");

    // A subscriber's address is shown as text, whatever it contains.
    let rows = browser.eval(
        "store.answer.subscribers = [{ id: 7, transport: 'uds', peer: '<b>x</b>', seq: 1234, lag_seq: 5, connected_unix_ms: 1 }];
         show(); document.querySelector('#feed tbody').innerText",
    );
    let row = rows.as_str().unwrap();
    assert!(["7", "uds", "<b>x</b>", "1,234"].iter().all(|text| row.contains(text)), "{row}");
}

/// The page is usable on a desktop and on a phone, in dark and in light mode.
fn widths(browser: &mut Browser, dir: &Path) {
    for (name, width, scheme) in [("dark", 1440, "dark"), ("narrow", 375, "light"), ("light", 1440, "light")] {
        browser.look(width, 1000, scheme);
        browser.wait(&format!("window.innerWidth === {width}"));
        browser.wait("(() => { const at = store.answeredAt; window.before ??= at; return at !== window.before; })()");
        browser.eval("delete window.before");
        let wide = browser.eval("document.documentElement.scrollWidth");
        assert!(wide.as_u64() <= Some(u64::from(width)), "{wide} at {width}: {}", dir.display());
        browser.shoot(name);
    }
}
