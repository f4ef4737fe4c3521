//! What a running service says of the store that it has open.
//!
//! Owns: the question over `DIR/admin.sock`. Must not: wait for long. Runs on the main thread.

use std::io::{ErrorKind as Io, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The service's socket in the store's directory.
const SOCKET: &str = "admin.sock";
/// An answer takes milliseconds; a service that stands still must not hold up whoever asks.
const TIMEOUT: Duration = Duration::from_secs(10);
/// More than any answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Served {
    pub(crate) engine: String,
    pub(crate) pairs_estimate: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) seq: u64,
    pub(crate) slot: Option<u64>,
    pub(crate) blockhash: Option<String>,
    /// How much of the map is there.
    pub(crate) phase: Option<String>,
    /// Why the checkpoint says nothing of a chain. A service has no such store open.
    #[serde(default)]
    pub(crate) no_chain: Option<String>,
    pub(crate) details: Vec<(String, u64)>,
}

/// Asks the service that has the store in `dir` open; `None` where none runs.
///
/// # Errors
/// The caller may not ask, or the service does not answer.
pub(crate) fn ask(dir: &Path) -> Result<Option<Served>> {
    let path = dir.join(SOCKET);
    let name = path.display();
    let mut socket = match UnixStream::connect(&path) {
        Ok(socket) => socket,
        // The last two: a path that is too long for a socket, which the service could not bind either, and a directory that
        // is a file, of which opening says more.
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
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        socket.write_all(b"GET /info HTTP/1.0\r\nHost: admin\r\n\r\n")?;
        (&socket).take(ANSWER_BYTES_MAX).read_to_string(&mut answer)
    };
    exchange().with_context(|| format!("the running service does not answer: socket={name}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    ensure!(
        head.split(' ').nth(1) == Some("200"),
        "the running service does not tell, is it of another version? socket={name} answer={:?}",
        head.lines().next().unwrap_or_default()
    );
    serde_json::from_str(body).map(Some).with_context(|| format!("not an answer of the service: socket={name}"))
}
