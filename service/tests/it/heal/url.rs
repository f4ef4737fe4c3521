//! Heals from a validator's RPC, which redirects to its newest archives, and from servers that want a query or never answer.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{OUTAGE, Run, Subscriber, wait_for_need};
use crate::support::{BASE_SLOT, Service, columns, wait_for};

/// A validator's RPC, which serves the full archives of a directory.
struct Validator {
    archives: PathBuf,
    /// Query that it wants in each request.
    query: &'static str,
    /// Whether it refuses the next request for an archive's bytes.
    is_busy: AtomicBool,
}

impl Validator {
    /// Serves until the test's process ends. Returns the URL.
    fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/{}", listener.local_addr().unwrap(), self.query);
        thread::spawn(move || {
            for client in listener.incoming() {
                // A client may be killed while it is answered.
                answer(client.unwrap(), &self).ok();
            }
        });
        url
    }
}

/// Serves the full archives of a directory. Returns the URL.
fn validator(archives: &Path) -> String {
    Validator { archives: archives.to_owned(), query: "", is_busy: AtomicBool::new(false) }.start()
}

fn answer(mut client: TcpStream, of: &Validator) -> std::io::Result<()> {
    let (query, archives) = (of.query, &of.archives);
    let lines = BufReader::new(&client).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let mut words = head[0].split(' ');
    let (method, asked) = (words.next().unwrap(), words.next().unwrap().trim_start_matches('/'));
    let names = fs::read_dir(archives)?.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = names.filter(|name| name.starts_with("snapshot-")).max();
    // ORDERING: Relaxed: a flag of one thread.
    let is_refused = method == "GET" && asked.starts_with("snapshot-") && of.is_busy.swap(false, Ordering::Relaxed);
    let (head, body) = match (asked.strip_suffix(query), newest) {
        _ if is_refused => ("503 Service Unavailable".to_owned(), Vec::new()),
        (None, _) => ("403 Forbidden".to_owned(), Vec::new()),
        (Some("snapshot.tar.bz2"), Some(newest)) => {
            (format!("303 See Other\r\nlocation: /{newest}{query}"), Vec::new())
        }
        (Some(path), _) => match fs::read(archives.join(path)) {
            Ok(bytes) => ("200 OK".to_owned(), bytes),
            Err(_) => ("404 Not Found".to_owned(), Vec::new()),
        },
    };
    write!(client, "HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    if method == "GET" { client.write_all(&body) } else { Ok(()) }
}

/// A server that accepts connections and never answers, until the test's process ends. Returns its URL.
fn hung() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let _clients: Vec<_> = listener.incoming().collect();
    });
    url
}

fn start(run: &Run, sources: &[&str]) -> Service {
    let geyser = format!("http://{}", run.stream.address());
    let always = ["--uds", run.uds.to_str().unwrap(), "--commit-every", "5"];
    let sources: Vec<&str> = sources.iter().flat_map(|source| ["--heal-from", source]).collect();
    Service::start(&run.dir, &run.options, &geyser, &[&always[..], &sources].concat())
}

#[test]
fn a_gap_is_closed_from_the_archive_that_a_validator_names() {
    let run = Run::new(columns().remove(0));
    let url = validator(&run.archives);
    let subscriber = Subscriber::start(run.follower(1));
    run.fall_behind(OUTAGE);
    let mut service = start(&run, &[&url]);
    let (needed, _) = wait_for_need(&mut service, "there is none; ");
    run.archive(needed - BASE_SLOT);
    wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
    service.kill();
    let mut service = start(&run, &[&url]);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish_with(service, &end, subscriber);
}

#[test]
fn a_query_is_sent_with_each_request_and_never_shown() {
    let run = Run::new(columns().remove(0));
    let url =
        Validator { archives: run.archives.clone(), query: "?key=s3cret", is_busy: AtomicBool::new(false) }.start();
    run.fall_behind(OUTAGE);
    let mut service = start(&run, &[&url]);
    let (needed, told) = wait_for_need(&mut service, "there is none; ");
    assert!(!told.contains("s3cret"), "{told}");
    let slot = run.archive(needed - BASE_SLOT);
    service.wait_for_slot(slot);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    for page in ["/readyz", "/status.json", "/dashboard.json", "/metrics"] {
        assert!(!service.get(page).unwrap().1.contains("s3cret"), "{page}");
    }
    assert!(!service.log().contains("s3cret"), "{}", service.log());
    run.finish(service, &end);
}

#[test]
fn a_server_that_never_answers_delays_neither_another_source_nor_a_stop() {
    let run = Run::with(columns().remove(0), "--rate 2000 --replay-slots 120");
    let (hung, other) = (hung(), validator(&run.archives));
    run.fall_behind(150);
    let mut service = start(&run, &[&hung]);
    let asks = "waiting for the answer of a server in heal_from";
    wait_for("the question", || service.get("/readyz").filter(|(_, body)| body.contains(asks)));
    let told = Instant::now();
    assert!(service.terminate().success());
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    let mut service = start(&run, &[&hung, &other]);
    let (needed, _) = wait_for_need(&mut service, &format!("the server has not answered yet: heal_from={hung}"));
    let slot = run.archive(needed - BASE_SLOT);
    let written = Instant::now();
    service.wait_for_slot(slot);
    // The server is given up after a minute.
    assert!(written.elapsed() < Duration::from_secs(25), "{:?}", written.elapsed());
    let end = run.reach_end(&mut service);
    run.finish(service, &end);
}

#[test]
fn the_lines_of_a_comparison_are_lines_of_the_log() {
    let run = Run::new(columns().remove(0));
    let url = Validator { archives: run.archives.clone(), query: "", is_busy: AtomicBool::new(true) }.start();
    run.fall_behind(OUTAGE);
    let more = ["--uds", run.uds.to_str().unwrap(), "--heal-from", &url, "--log-format", "json"];
    let mut service = Service::start(&run.dir, &run.options, &format!("http://{}", run.stream.address()), &more);
    let (needed, _) = wait_for_need(&mut service, "there is none; ");
    run.archive(needed - BASE_SLOT);
    wait_for("the heal", || service.metric("solkv_heals_total").filter(|heals| *heals == 1.0));
    let log = service.log();
    // The first service has written text into the same file.
    let lines = log.lines().skip_while(|line| !line.starts_with('{'));
    let lines: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    let is_of_archive = |line: &serde_json::Value| {
        line["target"] == "solkv_bootstrap"
            && line["fields"]["message"].as_str().is_some_and(|text| text.contains("is asked again"))
    };
    assert!(lines.iter().any(is_of_archive), "{log}");
    let end = run.reach_end(&mut service);
    run.finish(service, &end);
}
