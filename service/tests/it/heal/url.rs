//! Heals from a validator's RPC, which redirects to its newest archives.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{OUTAGE, Run, Subscriber, wait_for_need};
use crate::support::{BASE_SLOT, Service, columns, wait_for};

/// Serves the full archives of a directory as a validator does, until the test's process ends. One that is busy refuses
/// the first request for an archive's bytes. Returns the URL.
fn validator(archives: PathBuf, is_busy: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let is_busy = AtomicBool::new(is_busy);
    thread::spawn(move || {
        for client in listener.incoming() {
            // A client may be killed while it is answered.
            answer(client.unwrap(), &archives, &is_busy).ok();
        }
    });
    url
}

fn answer(mut client: TcpStream, archives: &Path, is_busy: &AtomicBool) -> std::io::Result<()> {
    let lines = BufReader::new(&client).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let mut words = head[0].split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap().trim_start_matches('/'));
    let names = fs::read_dir(archives)?.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = names.filter(|name| name.starts_with("snapshot-")).max();
    // ORDERING: Relaxed: a flag of one thread.
    let is_refused = method == "GET" && path.starts_with("snapshot-") && is_busy.swap(false, Ordering::Relaxed);
    let (head, body) = match (path, newest) {
        _ if is_refused => ("503 Service Unavailable".to_owned(), Vec::new()),
        ("snapshot.tar.bz2", Some(newest)) => (format!("303 See Other\r\nlocation: /{newest}"), Vec::new()),
        (path, _) => match fs::read(archives.join(path)) {
            Ok(bytes) => ("200 OK".to_owned(), bytes),
            Err(_) => ("404 Not Found".to_owned(), Vec::new()),
        },
    };
    write!(client, "HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    if method == "GET" { client.write_all(&body) } else { Ok(()) }
}

#[test]
fn a_gap_is_closed_from_the_archive_that_a_validator_names() {
    let run = Run::new(columns().remove(0));
    let url = validator(run.archives.clone(), false);
    let subscriber = Subscriber::start(run.follower(1));
    run.fall_behind(OUTAGE);
    let start = || {
        let always = ["--uds", run.uds.to_str().unwrap(), "--heal-from", &url, "--commit-every", "5"];
        let geyser = format!("http://{}", run.stream.address());
        Service::start(&run.dir, &run.options, &geyser, &[&always[..], &["--feed-heartbeat", "50ms"]].concat())
    };
    let mut service = start();
    let (needed, _) = wait_for_need(&mut service, "there is none; ");
    run.archive(needed - BASE_SLOT);
    wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
    service.kill();
    let mut service = start();
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish_with(service, &end, subscriber);
}

#[test]
fn the_lines_of_a_comparison_are_lines_of_the_log() {
    let run = Run::new(columns().remove(0));
    let url = validator(run.archives.clone(), true);
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
