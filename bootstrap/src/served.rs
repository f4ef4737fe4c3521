//! Asks a running service about the store that it has open.
//!
//! Owns: the request over `DIR/admin.sock`. Must not: wait for long. Runs on the main thread.

use std::io::{ErrorKind as Io, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use engine_api::Code;
use serde::Deserialize;

/// Name of the service's socket in the store's directory.
const SOCKET: &str = "admin.sock";
/// Time allowed for an answer, which usually takes milliseconds. A stalled service must not hold up the caller.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bound in bytes for an answer; every answer is shorter.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The service's answer about its store.
#[derive(Debug, Deserialize)]
pub(crate) struct Served {
    pub(crate) engine: String,
    pub(crate) pairs_estimate: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) seq: u64,
    pub(crate) slot: Option<u64>,
    pub(crate) blockhash: Option<String>,
    /// How much of the map the store holds: the checkpoint's phase.
    pub(crate) phase: Option<String>,
    /// Reason why the checkpoint has no position in a chain. A service never has such a store open.
    #[serde(default)]
    pub(crate) no_chain: Option<String>,
    pub(crate) details: Vec<(String, u64)>,
}

/// Returns the refusal of a command that needs the store itself while a service has it open.
pub(crate) fn refusal(dir: &Path, way_out: &str) -> anyhow::Error {
    anyhow!("a running service has the store open: dir={}: {way_out}", dir.display()).context(Code::Lock)
}

/// Asks the service that has the store in `dir` open; `None` if no service runs.
///
/// # Errors
/// The caller may not connect to the socket; the service does not answer in time, or not as expected.
pub(crate) fn ask(dir: &Path) -> Result<Option<Served>> {
    let Some((status, body)) = call(dir, "GET /info", Some(TIMEOUT))? else { return Ok(None) };
    let name = dir.join(SOCKET);
    ensure!(
        status == "200",
        "the running service does not describe its store, perhaps because it is of another version: \
         socket={} answer={status:?}",
        name.display()
    );
    serde_json::from_str(&body)
        .map(Some)
        .with_context(|| format!("not an answer of the service: socket={}", name.display()))
}

/// Makes a request to the service that has the store in `dir` open, and returns the answer's body.
///
/// # Errors
/// No service runs any more; it refuses, in its words.
pub(crate) fn request(dir: &Path, what: &str) -> Result<String> {
    let (status, body) =
        call(dir, what, None)?.ok_or_else(|| anyhow!("the service has ended: dir={}", dir.display()))?;
    ensure!(status == "200", "the service refuses: {body}");
    Ok(body)
}

/// Returns the status and the body of the service's answer; `None` if no service runs.
fn call(dir: &Path, what: &str, timeout: Option<Duration>) -> Result<Option<(String, String)>> {
    let path = dir.join(SOCKET);
    let name = path.display();
    let mut socket = match UnixStream::connect(&path) {
        Ok(socket) => socket,
        // InvalidInput: the path is too long for a socket, so the service could not bind it either. NotADirectory:
        // `dir` is a file, and opening the store explains that better.
        Err(e) if matches!(e.kind(), Io::NotFound | Io::ConnectionRefused | Io::InvalidInput | Io::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => {
            let user = "as its user, or as root";
            return Err(e).with_context(|| format!("cannot reach the running service {user}: socket={name}"));
        }
    };
    let mut answer = String::new();
    let mut exchange = || {
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)?;
        write!(socket, "{what} HTTP/1.0\r\nHost: admin\r\n\r\n")?;
        (&socket).take(ANSWER_BYTES_MAX).read_to_string(&mut answer)
    };
    exchange().with_context(|| format!("the running service does not answer: socket={name}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or_default();
    Ok(Some((status.to_owned(), body.to_owned())))
}
