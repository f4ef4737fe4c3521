//! The first request to an archive's server, repeated while the server fails.
//!
//! Owns: the client with its time-outs, the question for a file without its bytes, and the name of the proxy in a message.
//! Must not: read a file's bytes, or put a proxy's user or password into a message. [`open`] runs on the thread of the
//! caller. Its requests run on the thread `ask` where the caller wants to stop, because nothing else ends a request before
//! its time-out.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body, ProxyProtocol, ResponseExt as _};

use super::{
    Download, Edition, Failed, PATIENCE, call_failed, content_range, for_good, given_up, number, shown, split_user,
    status_failed,
};
use crate::archive::{Error, Progress, Tell};

/// Longest time to find and reach the server. A busy one answers within seconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time without a single byte. Some servers make an archive ready when it is asked for.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two calls of the function that is told about waiting, so that a signal is seen soon.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A download that has been asked about, but not begun.
pub(in crate::archive) struct Opened {
    pub(in crate::archive) bytes: Download,
    /// URL after all redirections, without secrets.
    pub(in crate::archive) shown: String,
    pub(in crate::archive) length: Option<u64>,
}

/// Asks about the file at a URL, without its bytes. Asks once, or repeatedly according to [`PATIENCE`] if there is a
/// `waiting`, which is called several times a second until an answer comes.
///
/// # Errors
/// The server cannot be reached, or does not have the file; errors of `waiting`.
pub(in crate::archive) fn open(url: &str, mut waiting: Option<&mut Tell<'_>>) -> Result<Opened, Error> {
    let failed = |source| Error::Open { archive: shown(url), source };
    let agent = agent(url).map_err(failed)?;
    let mut now = Progress::default();
    let answer = loop {
        let asked = match &mut waiting {
            None => probe(&agent, url),
            Some(waiting) => probe_beside(&agent, url, &mut || waiting(now.clone()).map_err(Error::Stopped))?,
        };
        let (asked, error) = match asked.map_err(|error| naming_proxy(&agent, url, error)) {
            Ok(answer) => break answer,
            Err(Failed::ForGood(error)) => return Err(failed(error)),
            Err(Failed::ForNow(asked, error)) => (asked, error),
        };
        let Some(waiting) = &mut waiting else { return Err(failed(error)) };
        now.failures += 1;
        if now.failures == PATIENCE.tries {
            return Err(failed(given_up(now.failures, 0, &error)));
        }
        let until = Instant::now() + PATIENCE.pause(now.failures).max(asked);
        now.last_failure = Some(Arc::from(error.to_string()));
        now.next_try = Some(until);
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            waiting(now.clone()).map_err(Error::Stopped)?;
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

pub(super) fn agent(url: &str) -> io::Result<Agent> {
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

/// Asks as [`probe`] does, on a thread of its own, and calls `waiting` until the answer is there. If `waiting` fails, the
/// thread ends with its request or with the process.
fn probe_beside(
    agent: &Agent,
    url: &str,
    waiting: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<Result<Response<Body>, Failed>, Error> {
    let (agent, asked, (to, answer)) = (agent.clone(), url.to_owned(), sync_channel(1));
    let ask = move || drop(to.send(probe(&agent, &asked)));
    let thread = thread::Builder::new().name("ask".to_owned()).spawn(ask);
    thread.map_err(|source| Error::Open { archive: shown(url), source })?;
    loop {
        match answer.recv_timeout(LOOK_EVERY) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => waiting()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(for_good("the thread that asks has panicked".to_owned())));
            }
        }
    }
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

/// Adds to a failure the proxy that the environment names for the URL, if there is one.
pub(super) fn naming_proxy(agent: &Agent, url: &str, failed: Failed) -> Failed {
    let is_direct = |uri: &Uri| agent.config().proxy().is_none_or(|proxy| proxy.is_no_proxy(uri));
    let (Some(proxy), Some(false)) = (agent.config().proxy(), url.parse().ok().as_ref().map(is_direct)) else {
        return failed;
    };
    let is_known = matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https);
    let hint = if is_known { "" } else { ", of which http alone is supported" };
    let named = |error: io::Error| {
        let (host, port) = (proxy.host(), proxy.port());
        io::Error::new(
            error.kind(),
            format!("{error}: proxy={host}:{port} from ALL_PROXY, HTTPS_PROXY or HTTP_PROXY{hint}"),
        )
    };
    match failed {
        Failed::ForGood(error) => Failed::ForGood(named(error)),
        Failed::ForNow(pause, error) => Failed::ForNow(pause, named(error)),
    }
}
