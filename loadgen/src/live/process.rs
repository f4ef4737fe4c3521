//! The service as a child process: started, asked over HTTP, measured through /proc, stopped.
//!
//! Owns: the child and its log file; the child is killed if the run ends early. Must not: interpret the service's
//! answers. Runs on the live run's thread.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::result::{Io, Opening};

/// Longest wait for an answer. A local service answers in milliseconds, and a stalled one must not hang the run.
const HTTP_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer in bytes that is accepted; histograms take some hundred KB.
const HTTP_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Number of lines of the service's log that are shown when it fails.
const LOG_LINES: usize = 15;

/// A running service and its log.
pub(crate) struct Service {
    child: Child,
    started: Instant,
    log: PathBuf,
}

/// CPU time, reads and memory that the service has used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Largest resident set in bytes, without page cache that was read through pread.
    pub(crate) peak_rss_bytes: u64,
    #[serde(flatten)]
    pub(crate) io: Io,
}

/// Returns the log's default place: beside the store's directory, whose name it begins with.
pub(crate) fn service_log(dir: &Path) -> PathBuf {
    // Collecting the components removes a slash at the end.
    let mut name = dir.components().collect::<PathBuf>().into_os_string();
    name.push(".service.log");
    PathBuf::from(name)
}

impl Service {
    /// Starts `command` with its output going to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write log: file={}", log.display()))?;
        let started = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start service: program={:?}", command.get_program()))?;
        Ok(Self { child, started, log: log.to_owned() })
    }

    /// Fails if the service has ended, with the end of its log.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("service ended early: status={status}\n{}", self.log_tail()),
            None => Ok(()),
        }
    }

    /// Returns the CPU time and memory used so far.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let pid = self.child.id();
        let counts = probe::process_counts(pid).context("the service is gone")?;
        let (user_s, system_s, device_read_bytes) = (counts.user_s, counts.system_s, counts.device_read_bytes);
        let io = Io { user_s, system_s, device_read_bytes, ..Io::default() };
        Ok(Usage { peak_rss_bytes: probe::rss_peak_bytes(pid), io })
    }

    /// Returns the cost of all that the service has done since its start.
    pub(crate) fn opening(&self) -> Opening {
        let device_read_bytes = probe::process_counts(self.child.id()).ok().and_then(|counts| counts.device_read_bytes);
        Opening { elapsed_s: self.started.elapsed().as_secs_f64(), device_read_bytes }
    }

    /// Sends SIGTERM, then waits up to `bound` for a clean end.
    pub(crate) fn stop(mut self, bound: Duration) -> Result<ExitStatus> {
        let pid = i32::try_from(self.child.id()).context("process id out of range")?;
        // SAFETY: kill(2) takes no pointers; the child is ours and not yet waited for, so the id is not reused.
        let sent = unsafe { libc::kill(pid, libc::SIGTERM) };
        ensure!(sent == 0, "cannot signal service: pid={pid} error={}", std::io::Error::last_os_error());
        let deadline = Instant::now() + bound;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "service did not stop cleanly: status={status}\n{}", self.log_tail());
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("service did not stop within bound_s={} of SIGTERM\n{}", bound.as_secs(), self.log_tail())
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        format!("its log, file={}:\n  {tail}", self.log.display())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // An error means that the child has ended already, which is fine.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns a local address that was free a moment ago.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Sends a GET request and returns the body of an answer with status 200.
pub(crate) fn get(address: &str, path: &str) -> Result<Vec<u8>> {
    let (status, body) = ask(address, path).with_context(|| format!("cannot read http://{address}{path}"))?;
    ensure!(status == 200, "http://{address}{path} answered: status={status}");
    Ok(body)
}

/// Sends a GET request and returns status and body of the answer. HTTP/1.0 needs no library and no connection handling.
pub(crate) fn ask(address: &str, path: &str) -> Result<(u16, Vec<u8>)> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(HTTP_TIMEOUT))?;
    socket.set_write_timeout(Some(HTTP_TIMEOUT))?;
    write!(socket, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    socket.take(HTTP_BYTES_MAX).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("an answer without a head")?;
    let body = answer.split_off(end + 4);
    let status = String::from_utf8_lossy(&answer).split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("an answer without a status")?, body))
}
