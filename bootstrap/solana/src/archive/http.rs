//! Downloads an archive over HTTP, and continues where a connection was cut.
//!
//! Owns: the requests for bytes, the repetition of requests, and the proof that the rest of a download belongs to its
//! beginning. Must not: put a URL's user, password or query into a message. [`open`] runs on the thread of the caller,
//! the rest on the thread `unpack`.
//!
//! Every request has the same patience. A server that sends a byte now and then would never meet a time-out. So a
//! connection has to bring [`FLOOR_BYTES`] in [`FLOOR_TIME`]; otherwise it counts as cut.
//!
//! A download is continued by a range request with `If-Range`, which an honest server answers with the rest only if the
//! file is still the same. A download from a server that sends neither a strong `ETag` nor `Last-Modified`, or does not
//! support ranges, works only until the first cut. The check is this strict because two servers of one name may hold
//! the same archive, packed differently.

mod ask;

use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

pub(super) use ask::open;

/// How often and after which pauses a request is repeated. The pauses last ten minutes in all, unless the server asks
/// for longer ones. So a download of hours survives the restart of a server or a router.
const PATIENCE: Patience = Patience {
    tries: 27,
    first_pause: Duration::from_millis(250),
    longest_pause: Duration::from_secs(30),
    floor_time: FLOOR_TIME,
};

/// Fewest bytes that a connection brings in [`FLOOR_TIME`]. At this rate an archive of mainnet would take months.
const FLOOR_BYTES: u64 = 1 << 20;

/// Time of waiting for bytes in which [`FLOOR_BYTES`] have to come. It is longer than [`ask::STALL_TIMEOUT`], so that one
/// pause of the network does not end a connection.
const FLOOR_TIME: Duration = Duration::from_secs(120);

/// Longest pause that a server can ask for with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// The bytes of a file on a server.
pub(super) struct Download {
    agent: Agent,
    url: String,
    edition: Edition,
    length: Option<u64>,
    /// Number of bytes that were received.
    at: u64,
    body: Option<Box<dyn Read + Send>>,
    has_ended: bool,
    /// Failures since the last byte, which the thread of the caller reads.
    failures: Arc<Failures>,
    /// Number of failures since the last [`FLOOR_BYTES`].
    cuts: u32,
    /// Value of `at` when `cuts` was last reset.
    floor_at: u64,
    window: Window,
    patience: Patience,
}

/// The time that the reader has waited for a connection's bytes, and the place of the download when that time began.
#[derive(Default)]
struct Window {
    from: u64,
    waited: Duration,
}

/// How often and after which pauses a request is repeated.
#[derive(Clone, Copy)]
struct Patience {
    /// Number of failures, with less than [`FLOOR_BYTES`] in between, that end the download.
    tries: u32,
    /// Pause after the first failure; each further one is twice as long.
    first_pause: Duration,
    longest_pause: Duration,
    /// Time of waiting in which a connection has to bring [`FLOOR_BYTES`].
    floor_time: Duration,
}

/// The headers that tell one state of a file from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Edition {
    etag: Option<String>,
    modified: Option<String>,
}

/// Reason why a request did not succeed.
#[derive(Debug)]
enum Failed {
    /// The same request would fail again.
    ForGood(io::Error),
    /// The same request may succeed later: after the pause that the server asks for, or any other if that is zero.
    ForNow(Duration, io::Error),
}

/// Failures of a server since its last byte. The thread that downloads counts them, and the caller's shows them.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: AtomicU32,
    last: Mutex<Option<Arc<str>>>,
}

impl Failures {
    /// Counts a failure, and returns their number.
    fn add(&self, error: &io::Error) -> u32 {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string().into());
        // ORDERING: Relaxed: the number is only shown.
        self.count.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn clear(&self) {
        // ORDERING: Relaxed: the number is only shown.
        self.count.store(0, Ordering::Relaxed);
    }

    /// Returns their number, and the text of the last one.
    pub(super) fn shown(&self) -> (u32, Option<Arc<str>>) {
        // ORDERING: Relaxed: the number is only shown.
        match self.count.load(Ordering::Relaxed) {
            0 => (0, None),
            count => (count, self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }
}

/// Whether a location is a URL that can be downloaded from.
pub fn is_url(location: &str) -> bool {
    let has_scheme = |scheme: &str| location.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme));
    has_scheme("http://") || has_scheme("https://")
}

/// Returns a URL without user, password, query and fragment, for messages.
pub fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match split_user(url) {
        Some((scheme, rest)) => format!("{scheme}{rest}"),
        None => url.to_owned(),
    }
}

impl Read for Download {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || self.has_ended {
            return Ok(0);
        }
        loop {
            let (asked, error) = match self.attempt(out) {
                Ok(read) => return Ok(read),
                Err(Failed::ForGood(error)) => return Err(error),
                Err(Failed::ForNow(asked, error)) => (asked, error),
            };
            let failures = self.failures.add(&error);
            self.cuts += 1;
            if self.cuts == self.patience.tries {
                return Err(given_up(self.cuts, self.at, &error));
            }
            thread::sleep(self.patience.pause(failures).max(asked));
        }
    }
}

impl Download {
    /// Makes a download for which no request was sent yet.
    fn new(agent: Agent, url: String, edition: Edition, length: Option<u64>, patience: Patience) -> Self {
        Self {
            agent,
            url,
            edition,
            length,
            at: 0,
            body: None,
            has_ended: false,
            failures: Arc::default(),
            cuts: 0,
            floor_at: 0,
            window: Window::default(),
            patience,
        }
    }

    /// Returns the URL after all redirections, with its secrets.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the failures since the last byte, which are kept up to date.
    pub(super) fn failures(&self) -> Arc<Failures> {
        Arc::clone(&self.failures)
    }

    /// Reads from the connection, or from a new one after a failure.
    fn attempt(&mut self, out: &mut [u8]) -> Result<usize, Failed> {
        if self.length == Some(self.at) {
            self.has_ended = true;
            return Ok(0);
        }
        if self.body.is_some() {
            self.check_floor()?;
        }
        let mut body = match self.body.take() {
            Some(body) => body,
            None => {
                self.window = Window { from: self.at, waited: Duration::ZERO };
                self.request()?
            }
        };
        let asked_at = Instant::now();
        let read = body.read(out).map_err(read_failed)?;
        self.at += read as u64;
        self.window.waited += asked_at.elapsed();
        match self.length {
            Some(length) if self.at > length => {
                return Err(for_good(format!("the server sends more bytes than it announced: length_bytes={length}")));
            }
            Some(_) if read == 0 => return Err(for_now("the connection was closed early".to_owned())),
            _ => self.has_ended = read == 0,
        }
        self.failures.clear();
        if self.at - self.floor_at >= FLOOR_BYTES {
            (self.cuts, self.floor_at) = (0, self.at);
        }
        self.body = Some(body);
        Ok(read)
    }

    /// Ends a connection that brings less than [`FLOOR_BYTES`] in the patience's time.
    fn check_floor(&mut self) -> Result<(), Failed> {
        let (received, waited) = (self.at - self.window.from, self.window.waited);
        if received >= FLOOR_BYTES {
            self.window = Window { from: self.at, waited: Duration::ZERO };
        } else if waited >= self.patience.floor_time {
            self.body = None;
            let seconds = waited.as_secs();
            return Err(for_now(format!("the server sends too slowly: bytes={received} seconds={seconds}")));
        }
        Ok(())
    }

    /// Asks for the file, or for its rest.
    fn request(&mut self) -> Result<Box<dyn Read + Send>, Failed> {
        let mut request = self.agent.get(&self.url).header("accept-encoding", "identity");
        if self.at > 0 {
            let condition = self.edition.condition().ok_or_else(|| {
                for_good(format!(
                    "the connection was cut, and the server sends neither a strong ETag nor Last-Modified, without \
                     which the rest cannot be asked for: received_bytes={}: download the file by other means",
                    self.at
                ))
            })?;
            request = request.header("range", format!("bytes={}-", self.at)).header("if-range", condition);
        }
        let answer = request.call().map_err(|error| ask::naming_proxy(&self.agent, &self.url, call_failed(error)))?;
        check_encoding(answer.headers())?;
        if self.at == 0 {
            if answer.status() != 200 {
                return Err(status_failed(&answer));
            }
            self.edition = Edition::of(answer.headers());
            self.length = answer.body().content_length();
        } else {
            self.check_rest(&answer)?;
        }
        Ok(Box::new(answer.into_body().into_reader()))
    }

    /// Checks that an answer brings the rest of the same file.
    fn check_rest(&self, answer: &Response<Body>) -> Result<(), Failed> {
        let replaced = || for_good(format!("the file was replaced during the download: received_bytes={}", self.at));
        let is_other = self.edition.differs(&Edition::of(answer.headers()));
        match answer.status().as_u16() {
            200 | 206 if is_other => Err(replaced()),
            206 => {
                let (from, length) = content_range(answer.headers())
                    .ok_or_else(|| for_good("the server's answer has no good Content-Range".to_owned()))?;
                if from != self.at {
                    let text = format!("the server sends another range: from={from} asked_from={}", self.at);
                    return Err(for_good(text));
                }
                let is_longer = length.is_some_and(|length| self.length.is_some_and(|expected| expected != length));
                if is_longer { Err(replaced()) } else { Ok(()) }
            }
            412 | 416 => Err(replaced()),
            200 => Err(for_good(format!(
                "the connection was cut, and the server sends the whole file instead of the rest: received_bytes={}: \
                 download the file by other means",
                self.at
            ))),
            _ => Err(status_failed(answer)),
        }
    }
}

impl Patience {
    /// Returns the pause after a number of failures in a row.
    fn pause(self, failures: u32) -> Duration {
        // At most sixteen doublings, so that the shift cannot overflow.
        let doubled = self.first_pause.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.longest_pause)
    }
}

impl Edition {
    fn of(headers: &HeaderMap) -> Self {
        Self { etag: text(headers, "etag"), modified: text(headers, "last-modified") }
    }

    /// Returns the value of `If-Range`. A weak ETag may not be used there: it promises no equal bytes.
    fn condition(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.starts_with("W/")).or(self.modified.as_deref())
    }

    /// Whether two answers are surely about different states of the file.
    fn differs(&self, other: &Self) -> bool {
        match (&self.etag, &other.etag, &self.modified, &other.modified) {
            (Some(one), Some(other), _, _) | (_, _, Some(one), Some(other)) => one != other,
            _ => false,
        }
    }
}

/// Splits a URL into `scheme://` and its rest from the host on, without the user between them.
fn split_user(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_at(url.find("://")? + 3);
    let host_ends = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host_begins = rest[..host_ends].rfind('@').map_or(0, |at| at + 1);
    Some((scheme, &rest[host_begins..]))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name).and_then(|value| super::name::number(&value))
}

/// Parses `Content-Range: bytes FROM-TO/LENGTH`, where the length may be `*`.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let value = text(headers, "content-range")?;
    let (range, length) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (from, _) = range.split_once('-')?;
    Some((super::name::number(from)?, super::name::number(length)))
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Failed> {
    match text(headers, "content-encoding") {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => Err(for_good(format!(
            "the server compresses the file, although the request forbids it: encoding={encoding}"
        ))),
        _ => Ok(()),
    }
}

fn status_failed(answer: &Response<Body>) -> Failed {
    let status = answer.status().as_u16();
    let way_out = match status {
        404 | 410 => ": check the name in the URL, and list the files of the server: it may have newer ones only",
        401 | 403 => ": check the URL's user, password and query",
        _ => "",
    };
    let text = format!("the server refuses: status={status}{way_out}");
    // Time-outs, limits of rate, and errors of the server's own pass.
    match (status, retry_after(answer.headers())) {
        (404 | 410, _) => Failed::ForGood(io::Error::new(io::ErrorKind::NotFound, text)),
        (429 | 503, Some(pause)) => Failed::ForNow(pause, io::Error::other(text)),
        (408 | 425 | 429 | 500.., _) => for_now(text),
        _ => for_good(text),
    }
}

/// Parses `Retry-After` in seconds. Its other form, a date, would need a clock that agrees with the server's.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    number(headers, "retry-after").map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// Describes the last of `tries` failures, with the way out.
fn given_up(tries: u32, received_bytes: u64, error: &io::Error) -> io::Error {
    let text = format!(
        "gave up: tries={tries} received_bytes={received_bytes}: {error}: try again later, or download the file by \
         other means, such as wget -c, and name it"
    );
    io::Error::new(error.kind(), text)
}

/// Describes a failed request in words that hold nothing of its URL.
fn call_failed(error: ureq::Error) -> Failed {
    match error {
        ureq::Error::Io(error) => io_failed(error),
        ureq::Error::Timeout(timeout) => for_now(format!("the server is too slow: timeout={timeout}")),
        ureq::Error::HostNotFound => for_now("the host is not found".to_owned()),
        ureq::Error::ConnectProxyFailed(_) => for_now("the proxy does not connect to the server".to_owned()),
        ureq::Error::ConnectionFailed => for_now("the connection failed".to_owned()),
        ureq::Error::Protocol(_) => for_now("the server's answer is not HTTP".to_owned()),
        ureq::Error::Rustls(error) => for_good(format!("the secure connection failed: {error}")),
        ureq::Error::Tls(text) => for_good(format!("the secure connection failed: {text}")),
        ureq::Error::TooManyRedirects | ureq::Error::RedirectFailed => {
            for_good("the server redirects too many times".to_owned())
        }
        ureq::Error::BadUri(_) => for_good("the URL is not valid".to_owned()),
        _ => for_good("the request cannot be sent".to_owned()),
    }
}

/// Describes a failure while the bytes come, where errors of the client may be wrapped.
fn read_failed(error: io::Error) -> Failed {
    if !error.get_ref().is_some_and(|inner| inner.is::<ureq::Error>()) {
        return io_failed(error);
    }
    match call_failed(ureq::Error::from(error)) {
        // Whatever has happened to the connection, another one may live longer.
        Failed::ForGood(error) | Failed::ForNow(_, error) => Failed::ForNow(Duration::ZERO, error),
    }
}

fn io_failed(error: io::Error) -> Failed {
    let is_tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    if is_tls { Failed::ForGood(error) } else { Failed::ForNow(Duration::ZERO, error) }
}

fn for_good(text: String) -> Failed {
    Failed::ForGood(io::Error::other(text))
}

fn for_now(text: String) -> Failed {
    Failed::ForNow(Duration::ZERO, io::Error::other(text))
}

#[cfg(test)]
mod tests;
