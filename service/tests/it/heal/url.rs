//! Heals from a validator's RPC, which redirects to its newest archives.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use super::{OUTAGE, Run, Subscriber, wait_for_need};
use crate::support::{BASE_SLOT, Service, columns};

/// Serves the full archives of a directory as a validator does, until the test's process ends. Returns the URL.
fn validator(archives: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            // A client may be killed while it is answered.
            answer(client.unwrap(), &archives).ok();
        }
    });
    url
}

fn answer(mut client: TcpStream, archives: &Path) -> std::io::Result<()> {
    let lines = BufReader::new(&client).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let mut words = head[0].split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap().trim_start_matches('/'));
    let names = fs::read_dir(archives)?.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = names.filter(|name| name.starts_with("snapshot-")).max();
    let (head, body) = match (path, newest) {
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
    let url = validator(run.archives.clone());
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
    crate::support::wait_for("some differences", || {
        service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0)
    });
    service.kill();
    let mut service = start();
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish_with(service, &end, subscriber);
}
