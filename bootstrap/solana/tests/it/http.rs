//! Downloads over a real socket, from servers that cut connections, ignore ranges, change the file, or lie.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use solkv_solana::archive::{Archive, Error, Progress};

use crate::support::{FULL, chain, data, rows};

/// A request, as its lines: the first one names method and path.
type Request = Vec<String>;

/// Answer of a test's server to one request.
struct Answer {
    status: &'static str,
    headers: Vec<String>,
    body: Vec<u8>,
    /// Number of the body's bytes that are sent before the connection is closed.
    sent: usize,
}

/// A server for one test, with the requests that it got.
struct Server {
    host: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Answer {
    /// Answers with a whole body and its length.
    fn new(status: &'static str, body: &[u8]) -> Self {
        let headers = vec![format!("content-length: {}", body.len())];
        Self { status, headers, body: body.to_vec(), sent: body.len() }
    }

    fn with(mut self, header: &str) -> Self {
        self.headers.push(header.to_owned());
        self
    }

    /// Closes the connection after this many bytes of the body.
    fn cut(mut self, sent: usize) -> Self {
        self.sent = self.sent.min(sent);
        self
    }
}

impl Server {
    /// Serves each connection's one request by `answer`, which also gets the request's number.
    fn start(answer: impl Fn(&Request, usize) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        // The thread waits for connections for as long as the test program lives.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let Some(request) = read_request(&stream) else { continue };
                let number = seen.lock().unwrap().len();
                let answer = answer(&request, number);
                let is_head = request[0].starts_with("HEAD");
                seen.lock().unwrap().push(request);
                // A client that goes away is its own business.
                let _ = write_answer(&stream, &answer, is_head);
            }
        });
        Self { host, requests }
    }

    fn url(&self) -> String {
        format!("http://user:secret@{}/snapshots/{FULL}?token=secret", self.host)
    }

    /// Returns the ranges that were asked for, in order.
    fn ranges(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter_map(|request| field(request, "range").map(str::to_owned)).collect()
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let lines = BufReader::new(stream).lines();
    let lines: Request = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then_some(lines)
}

fn write_answer(mut stream: &TcpStream, answer: &Answer, is_head: bool) -> std::io::Result<()> {
    let headers: String = answer.headers.iter().map(|header| format!("{header}\r\n")).collect();
    write!(stream, "HTTP/1.1 {}\r\n{headers}connection: close\r\n\r\n", answer.status)?;
    if !is_head {
        stream.write_all(&answer.body[..answer.sent])?;
    }
    stream.flush()
}

/// Returns the value of a request's header.
fn field<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let lines = request.iter().filter_map(|line| line.split_once(": "));
    lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

/// Returns the first byte of the range that was asked for.
fn range_from(request: &Request) -> Option<usize> {
    field(request, "range")?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
}

/// Answers as a good server does: the file, or its rest where `If-Range` names its edition.
fn serve(request: &Request, file: &[u8], edition: &str) -> Answer {
    let (_, name) = edition.split_once(": ").unwrap();
    match range_from(request) {
        Some(from) if field(request, "if-range") == Some(name) => Answer::new("206 Partial Content", &file[from..])
            .with(edition)
            .with(&format!("content-range: bytes {from}-{}/{}", file.len() - 1, file.len())),
        _ => Answer::new("200 OK", file).with(edition),
    }
}

fn file() -> Vec<u8> {
    fs::read(data(FULL)).unwrap()
}

/// Reads the archive at a URL, and returns its error with the causes, after a look that it holds no secret.
fn error(server: &Server) -> String {
    let outcome = Archive::open(&server.url()).and_then(rows);
    let text = chain(&outcome.expect_err("an error"));
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains(&format!("archive=http://{}/snapshots/{FULL}", server.host)), "{text}");
    text
}

const ETAG: &str = "etag: \"one\"";
const MODIFIED: &str = "last-modified: Mon, 23 Nov 2026 00:00:00 GMT";

/// Bytes of the body that a server sends before it cuts the connection.
const CUT: usize = 100_000;

#[test]
fn an_archive_is_read_from_a_server() {
    let expected = rows(Archive::open(data(FULL).to_str().unwrap()).unwrap()).unwrap();
    let server = Server::start(|request, _| serve(request, &file(), ETAG));
    let archive = Archive::open(&server.url()).unwrap();
    assert_eq!(archive.packed_bytes(), Some(460_636));
    assert_eq!(archive.name().unwrap().slot, 351_000_355);
    assert!(rows(archive).unwrap() == expected);
    let requests = server.requests.lock().unwrap();
    let methods: Vec<_> = requests.iter().map(|request| request[0].split(' ').next().unwrap()).collect();
    assert_eq!(methods, ["HEAD", "GET"]);
    // User and password are for the server, and nobody else.
    assert_eq!(field(&requests[1], "authorization"), Some("Basic dXNlcjpzZWNyZXQ="));
}

#[test]
fn a_cut_download_goes_on_where_it_was_cut() {
    let expected = rows(Archive::open(data(FULL).to_str().unwrap()).unwrap()).unwrap();
    for edition in [ETAG, MODIFIED] {
        let server = Server::start(move |request, number| {
            // Now and then no connection gets anywhere.
            if number % 3 == 2 { Answer::new("503 Busy", b"") } else { serve(request, &file(), edition).cut(CUT) }
        });
        assert!(rows(Archive::open(&server.url()).unwrap()).unwrap() == expected);
        let mut ranges = server.ranges();
        ranges.dedup();
        let all: Vec<_> = (1..=4).map(|part| format!("bytes={}-", part * CUT)).collect();
        assert_eq!(ranges, all, "{edition}");
    }
}

#[test]
fn a_file_that_changes_is_an_error() {
    // An honest server, a dishonest one that sends the new file's rest, and one whose new file is shorter.
    let honest = Server::start(|request, number| match number {
        0 | 1 => serve(request, &file(), ETAG).cut(CUT),
        _ => serve(request, &file(), "etag: \"two\""),
    });
    let dishonest = Server::start(|request, _| match range_from(request) {
        None => serve(request, &file(), ETAG).cut(CUT),
        Some(from) => Answer::new("206 Partial Content", &file()[from..]).with("etag: \"two\"").with(&format!(
            "content-range: bytes {from}-{}/{}",
            file().len() - 1,
            file().len()
        )),
    });
    let longer = Server::start(|request, _| match range_from(request) {
        None => serve(request, &file(), ETAG).cut(CUT),
        Some(from) => Answer::new("206 Partial Content", &file()[from..]).with(ETAG).with(&format!(
            "content-range: bytes {from}-{}/{}",
            file().len(),
            file().len() + 1
        )),
    });
    let shorter = Server::start(|request, _| match range_from(request) {
        None => serve(request, &file(), ETAG).cut(CUT),
        Some(_) => Answer::new("416 Range Not Satisfiable", b""),
    });
    for server in [honest, dishonest, longer, shorter] {
        let text = error(&server);
        assert!(text.contains("the file was replaced during the download: received_bytes=100000"), "{text}");
    }
}

#[test]
fn a_cut_is_final_where_nothing_proves_the_rest() {
    let expected = rows(Archive::open(data(FULL).to_str().unwrap()).unwrap()).unwrap();
    // Without anything that tells one edition from another.
    let bare = |sent: usize| Server::start(move |_, _| Answer::new("200 OK", &file()).cut(sent));
    assert!(rows(Archive::open(&bare(usize::MAX).url()).unwrap()).unwrap() == expected);
    let text = error(&bare(CUT));
    assert!(text.contains("neither a strong ETag nor Last-Modified"), "{text}");
    // Without ranges.
    let whole = |sent: usize| Server::start(move |_, _| Answer::new("200 OK", &file()).with(ETAG).cut(sent));
    assert!(rows(Archive::open(&whole(usize::MAX).url()).unwrap()).unwrap() == expected);
    let text = error(&whole(CUT));
    assert!(text.contains("the whole file instead of the rest: received_bytes=100000"), "{text}");
    // Without a length.
    let endless = |sent: usize| {
        Server::start(move |_, _| Answer {
            status: "200 OK",
            headers: vec!["transfer-encoding: chunked".to_owned()],
            body: [format!("{:x}\r\n", file().len()).as_bytes(), &file(), b"\r\n0\r\n\r\n"].concat(),
            sent: sent.min(file().len() + 14),
        })
    };
    let archive = Archive::open(&endless(usize::MAX).url()).unwrap();
    assert_eq!(archive.packed_bytes(), None);
    assert!(rows(archive).unwrap() == expected);
    let text = error(&endless(CUT));
    assert!(text.contains("neither a strong ETag nor Last-Modified"), "{text}");
}

#[test]
fn lies_are_errors() {
    let other_range = Server::start(|request, _| match range_from(request) {
        None => serve(request, &file(), ETAG).cut(CUT),
        Some(from) => Answer::new("206 Partial Content", &file()[from..]).with(ETAG).with(&format!(
            "content-range: bytes {}-{}/{}",
            from + 1,
            file().len() - 1,
            file().len()
        )),
    });
    let no_range = Server::start(|request, _| match range_from(request) {
        None => serve(request, &file(), ETAG).cut(CUT),
        Some(from) => Answer::new("206 Partial Content", &file()[from..]).with(ETAG),
    });
    let packed = Server::start(|request, _| serve(request, &file(), ETAG).with("content-encoding: gzip"));
    for (server, expected) in [
        (other_range, "the server sends another range: from=100001 asked_from=100000"),
        (no_range, "no good Content-Range"),
        (packed, "although the request forbids it: encoding=gzip"),
    ] {
        let text = error(&server);
        assert!(text.starts_with("cannot read the archive: ") && text.contains(expected), "{text}");
    }
}

/// While the server cannot be reached, the reader gets the failures, and can stop without waiting for it.
#[test]
fn a_reader_that_waits_for_a_server_can_stop() {
    let server = Server::start(|request, number| match number {
        0 | 1 => serve(request, &file(), ETAG).cut(CUT),
        _ => Answer::new("503 Busy", b""),
    });
    let mut progress = |now: Progress| if now.failures > 0 { Err("asked to stop".into()) } else { Ok(()) };
    let read = Archive::open(&server.url()).unwrap().read(&mut progress, &mut |_| Ok(()));
    assert!(matches!(read, Err(Error::Stopped(_))), "{read:?}");
}

#[test]
fn a_server_that_refuses_is_told_by_its_status() {
    for (status, number) in [("404 Not Found", 404), ("401 Unauthorized", 401), ("500 Broken", 500)] {
        let server = Server::start(move |_, _| Answer::new(status, b"secret"));
        let text = error(&server);
        let expected = format!("the server refuses: status={number}");
        assert!(text.starts_with("cannot open the archive: ") && text.contains(&expected), "{text}");
        assert_eq!(text.contains("check the name in the URL"), number == 404, "{text}");
    }
    // Nobody listens.
    let host = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Archive::open(&format!("http://{host}/x?secret")).map(|_| ()).unwrap_err();
    let text = chain(&error);
    assert!(matches!(error, Error::Open { .. }) && text.contains("refused") && !text.contains("secret"), "{text}");
}

#[test]
fn urls_signed_for_get_and_names_that_lead_on_are_followed() {
    let expected = rows(Archive::open(data(FULL).to_str().unwrap()).unwrap()).unwrap();
    let signed = Server::start(|request, _| match (request[0].starts_with("HEAD"), field(request, "range")) {
        (true, _) => Answer::new("403 Forbidden", b""),
        (false, Some("bytes=0-0")) => Answer::new("206 Partial Content", &file()[..1])
            .with(ETAG)
            .with(&format!("content-range: bytes 0-0/{}", file().len())),
        _ => serve(request, &file(), ETAG),
    });
    let archive = Archive::open(&signed.url()).unwrap();
    assert_eq!(archive.packed_bytes(), Some(460_636));
    assert!(rows(archive).unwrap() == expected);

    // As validators do: a fixed name, which leads to the newest archive.
    let leading = Server::start(|request, _| match request[0].split(' ').nth(1) {
        Some("/snapshot.tar.bz2") => Answer::new("303 See Other", b"").with(&format!("location: /{FULL}")),
        _ => serve(request, &file(), ETAG),
    });
    let archive = Archive::open(&format!("http://{}/snapshot.tar.bz2", leading.host)).unwrap();
    assert_eq!(archive.name().unwrap().slot, 351_000_355);
    assert!(rows(archive).unwrap() == expected);
    // The archive itself is asked for, not what is the newest by then.
    let requests = leading.requests.lock().unwrap();
    assert!(requests.last().unwrap()[0].starts_with(&format!("GET /{FULL} ")), "{requests:?}");
}

#[test]
fn a_server_that_is_busy_at_first_is_asked_again() {
    let expected = rows(Archive::open(data(FULL).to_str().unwrap()).unwrap()).unwrap();
    let busy = |request: &Request, number| match number {
        0 => Answer::new("500 Internal Server Error", b""),
        1 => Answer::new("429 Too Many Requests", b"").with("retry-after: 1"),
        _ => serve(request, &file(), ETAG),
    };
    let server = Server::start(busy);
    let mut failures = Vec::new();
    let started = Instant::now();
    let opened = Archive::open_telling(&server.url(), &mut |now: Progress| {
        failures.push(now.failures);
        Ok(())
    });
    assert!(started.elapsed() >= Duration::from_secs(1), "the pause that the server asks for");
    assert!(rows(opened.unwrap()).unwrap() == expected);
    failures.dedup();
    assert_eq!(failures.first(), Some(&1), "the pauses are told");

    // A request is sent once if nobody waits, and a stop ends the waiting.
    assert!(
        chain(&Archive::open(&Server::start(|_, _| Answer::new("503 Busy", b"")).url()).map(|_| ()).unwrap_err())
            .contains("status=503")
    );
    let away = Server::start(|_, _| Answer::new("503 Busy", b"").with("retry-after: 600"));
    let stopped = Archive::open_telling(&away.url(), &mut |_| Err("enough".into()));
    assert!(matches!(stopped.map(|_| ()).unwrap_err(), Error::Stopped(_)));

    // A file that is not there ends at once.
    let absent = Server::start(|_, _| Answer::new("404 Not Found", b""));
    let error = Archive::open_telling(&absent.url(), &mut |_| panic!("it waits")).map(|_| ()).unwrap_err();
    assert!(chain(&error).contains("status=404"));
}

/// A server that takes the connection and says nothing would be waited for until the time-out.
#[test]
fn a_caller_that_stops_does_not_wait_for_a_server_that_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{FULL}", listener.local_addr().unwrap());
    let (asked, is_asked) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        asked.send(read_request(&stream)).unwrap();
        // Until the client goes away.
        let _ = std::io::Read::read(&mut &stream, &mut [0; 1]);
    });
    let mut request = None;
    let opened = Archive::open_telling(&url, &mut |now| {
        assert_eq!(now.failures, 0, "the time-out has come first");
        request = request.take().or_else(|| is_asked.try_recv().ok());
        if request.is_some() { Err("enough".into()) } else { Ok(()) }
    });
    assert!(matches!(opened, Err(Error::Stopped(stop)) if stop.to_string() == "enough"));
    assert!(!server.is_finished(), "the connection is still open");
}
