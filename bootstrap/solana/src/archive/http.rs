//! Downloads an archive over HTTP, and continues where a connection was cut.
//!
//! Owns: the requests, their time-outs and repetitions, and the proof that the rest of a download belongs to its
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

use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body, ResponseExt as _};

use super::error::Error;

/// Longest time to find and reach the server. A busy one answers within seconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time without a single byte. Some servers make an archive ready when it is asked for.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

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

/// Time of waiting for bytes in which [`FLOOR_BYTES`] have to come. It is longer than [`STALL_TIMEOUT`], so that one
/// pause of the network does not end a connection.
const FLOOR_TIME: Duration = Duration::from_secs(120);

/// Longest pause that a server can ask for with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Time between two calls of the function that is told about waiting, so that a signal is seen soon.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A download that has been asked about, but not begun.
pub(super) struct Opened {
    pub(super) bytes: Download,
    /// URL after all redirections, without secrets.
    pub(super) shown: String,
    pub(super) length: Option<u64>,
}

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

/// Function that is called while a server is asked again. It gets the number of failures, the time of the next request,
/// and the text of the last failure. If it returns an error, the waiting ends.
pub(super) type Waiting<'a> = dyn FnMut(u32, Instant, &Arc<str>) -> Result<(), Error> + 'a;

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

/// Asks about the file at a URL, without its bytes. Asks once, or repeatedly according to [`PATIENCE`] if there is a
/// `waiting`, which is called several times a second between two requests.
///
/// # Errors
/// The server cannot be reached, or does not have the file; errors of `waiting`.
pub(super) fn open(url: &str, mut waiting: Option<&mut Waiting<'_>>) -> Result<Opened, Error> {
    let failed = |source| Error::Open { archive: shown(url), source };
    let agent = agent(url).map_err(failed)?;
    let mut failures = 0;
    let answer = loop {
        let (asked, error) = match probe(&agent, url) {
            Ok(answer) => break answer,
            Err(Failed::ForGood(error)) => return Err(failed(error)),
            Err(Failed::ForNow(asked, error)) => (asked, error),
        };
        let Some(waiting) = &mut waiting else { return Err(failed(error)) };
        failures += 1;
        if failures == PATIENCE.tries {
            return Err(failed(given_up(failures, 0, &error)));
        }
        let until = Instant::now() + PATIENCE.pause(failures).max(asked);
        let why: Arc<str> = error.to_string().into();
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            waiting(failures, until, &why)?;
            thread::sleep(left.min(LOOK_EVERY));
        }
    };
    let found = answer.get_uri().to_string();
    let headers = answer.headers();
    let length = match content_range(headers) {
        Some((_, length)) => length,
        None => number(headers, "content-length"),
    };
    // Without a redirection the URL stays as it was given, with its user.
    let is_same = split_user(url).is_some_and(|(scheme, rest)| format!("{scheme}{rest}") == found);
    let url = if is_same { url.to_owned() } else { found };
    let shown = shown(&url);
    let bytes = Download::new(agent, url, Edition::of(headers), length, PATIENCE);
    Ok(Opened { bytes, shown, length })
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
        let answer = request.call().map_err(call_failed)?;
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

fn agent(url: &str) -> io::Result<Agent> {
    // Trust the machine's certificates, as for the stream. If one of them cannot be read, the others still count.
    let found = rustls_native_certs::load_native_certs();
    let roots: Vec<_> = found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    if roots.is_empty() && url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:")) {
        return Err(io::Error::other("there are no certificates on this machine: install ca-certificates"));
    }
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .build();
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("solkv/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .timeout_resolve(Some(CONNECT_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(STALL_TIMEOUT))
        .timeout_per_read(Some(STALL_TIMEOUT))
        .timeout_per_write(Some(STALL_TIMEOUT));
    Ok(config.build().new_agent())
}

/// Asks for a file's headers. URLs that are signed for GET refuse HEAD, so this asks for one byte instead.
fn probe(agent: &Agent, url: &str) -> Result<Response<Body>, Failed> {
    let head = agent.head(url).header("accept-encoding", "identity").call().map_err(call_failed)?;
    match head.status().as_u16() {
        200 => return Ok(head),
        404 | 410 | 429 | 503 => return Err(status_failed(&head)),
        _ => (),
    }
    let get = agent.get(url).header("accept-encoding", "identity").header("range", "bytes=0-0");
    let answer = get.call().map_err(call_failed)?;
    if matches!(answer.status().as_u16(), 200 | 206) { Ok(answer) } else { Err(status_failed(&answer)) }
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
