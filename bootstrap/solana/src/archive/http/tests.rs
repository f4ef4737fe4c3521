//! Tests of URLs, editions and patience, with servers that stay away or trickle.
//!
//! Owns: short patience for these servers. Must not: read an archive; `tests/it/http.rs` does. Each server has a thread of
//! its own.

use std::io::Write as _;
use std::net::TcpListener;

use super::*;

#[test]
fn messages_hold_no_secrets() {
    for (url, expected) in [
        ("https://user:pass@host:1/a/b.tar?token=x#y", "https://host:1/a/b.tar"),
        ("http://host/a@b.tar", "http://host/a@b.tar"),
        ("http://us@er@host", "http://host"),
        ("http://host?user@x/y", "http://host"),
        ("https://token@[::1]:8899/x", "https://[::1]:8899/x"),
    ] {
        assert_eq!(shown(url), expected);
    }
    // The client's own message would hold the whole URL.
    let Err(error) = open("http://user:secret@:0/?token=secret", None) else { panic!("it is no URL") };
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
}

#[test]
fn urls_are_told_from_files() {
    assert!(is_url("http://x") && is_url("HTTPS://x/y"));
    assert!(
        !is_url("-") && !is_url("/http://x") && !is_url("ftp://x") && !is_url("http:/") && !is_url("\u{fc}ber.tar")
    );
}

#[test]
fn editions_are_compared_by_what_both_have() {
    let edition = |etag: Option<&str>, modified: Option<&str>| Edition {
        etag: etag.map(str::to_owned),
        modified: modified.map(str::to_owned),
    };
    let day = Some("Mon, 23 Nov 2026 00:00:00 GMT");
    assert_eq!(edition(Some("\"a\""), day).condition(), Some("\"a\""));
    assert_eq!(edition(Some("W/\"a\""), day).condition(), day);
    assert_eq!(edition(Some("W/\"a\""), None).condition(), None);
    assert!(edition(Some("\"a\""), day).differs(&edition(Some("\"b\""), day)));
    assert!(!edition(Some("\"a\""), None).differs(&edition(Some("\"a\""), day)));
    assert!(edition(None, day).differs(&edition(Some("\"a\""), Some("x"))));
    assert!(!edition(None, day).differs(&edition(Some("\"a\""), None)));
}

#[test]
fn a_server_may_stay_away_for_ten_minutes() {
    let pauses: Duration = (1..PATIENCE.tries).map(|failures| PATIENCE.pause(failures)).sum();
    assert!(pauses >= Duration::from_secs(600), "{pauses:?}");
    assert_eq!(PATIENCE.pause(PATIENCE.tries), Duration::from_secs(30));
}

#[test]
fn a_server_that_stays_away_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://user:secret@{}/x?secret", listener.local_addr().unwrap());
    // Every connection is closed at once.
    let server = thread::spawn(move || listener.incoming().take(4).map(drop).count());
    let pause = Duration::from_millis(20);
    let patience = Patience { tries: 4, first_pause: pause, longest_pause: 2 * pause, floor_time: FLOOR_TIME };
    let mut download = download(url, patience);
    let started = Instant::now();
    let error = download.read(&mut [0; 10]).unwrap_err().to_string();
    assert!(error.starts_with("gave up: tries=4 received_bytes=0: "), "{error}");
    assert!(!error.contains("secret"), "{error}");
    assert!(started.elapsed() >= 5 * pause, "1 + 2 + 2 pauses");
    assert_eq!(server.join().unwrap(), 4);
}

#[test]
fn a_server_that_trickles_is_cut_and_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    // Every connection brings a byte every few milliseconds, and never ends by itself.
    let server = thread::spawn(move || {
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let length = stream.read(&mut asked).unwrap();
            let asked = String::from_utf8_lossy(&asked[..length]).to_ascii_lowercase();
            let range = asked.split("range: bytes=").nth(1).and_then(|range| range.split('-').next());
            let from: u64 = range.map_or(0, |from| from.parse().unwrap());
            let status = if from == 0 { "200 OK" } else { "206 Partial Content" };
            let (length, all) = ((1u64 << 40) - from, 1u64 << 40);
            let head = format!(
                "HTTP/1.1 {status}\r\netag: \"a\"\r\ncontent-length: {length}\r\n\
                 content-range: bytes {from}-{}/{all}\r\n\r\n",
                all - 1
            );
            let mut sent = stream.write_all(head.as_bytes());
            while sent.is_ok() {
                thread::sleep(Duration::from_millis(2));
                sent = stream.write_all(b"x");
            }
        }
    });
    let pause = Duration::from_millis(1);
    let floor_time = Duration::from_millis(50);
    let mut download = download(url, Patience { tries: 3, first_pause: pause, longest_pause: pause, floor_time });
    let mut out = [0; 10];
    let error = loop {
        match download.read(&mut out) {
            Ok(read) => assert!(read > 0),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("gave up: tries=3 ") && error.contains("the server sends too slowly: bytes="), "{error}");
    drop(download);
    server.join().unwrap();
}

#[test]
fn a_server_may_ask_for_a_pause_of_ten_minutes_at_most() {
    let of = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", value.parse().unwrap());
        retry_after(&headers)
    };
    assert_eq!(of("7"), Some(Duration::from_secs(7)));
    assert_eq!(of("99999999"), Some(RETRY_AFTER_MAX));
    assert_eq!(of("Mon, 23 Nov 2026 00:00:00 GMT"), None);
    assert_eq!(retry_after(&HeaderMap::new()), None);
}

fn download(url: String, patience: Patience) -> Download {
    Download::new(ask::agent(&url).unwrap(), url, Edition::default(), None, patience)
}
