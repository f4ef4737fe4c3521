//! The supervisor's handle on an agent: it starts the process, receives its lines, and ends it.
//!
//! Owns: the process and the thread that reads its output. Neither outlives its owner. Must not: judge the agent.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::agent::Task;
use crate::disk::Notice;

/// Longest time until a killed process is gone. A request in flight can hold it up.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// A running agent. It is killed when dropped.
pub(crate) struct Agent {
    process: Child,
    /// Standard input of the agent, whose end makes the agent end.
    _stdin: Option<ChildStdin>,
}

impl Agent {
    /// Starts `binary` as an agent. Its lines, and the end of its output, are sent to `notices`.
    pub(crate) fn start(binary: &Path, task: &Task, notices: Sender<Notice>) -> io::Result<Self> {
        let mut command = Command::new(binary);
        command.arg("agent").arg(serde_json::to_string(task)?);
        // In a process group of its own, because an interrupt at the terminal is for the supervisor alone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = command.spawn()?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().ok_or_else(|| io::Error::other("an agent without output"))?;
        std::thread::spawn(move || {
            let mut out = BufReader::new(stdout);
            let mut line = String::new();
            // A line that was cut short is ignored.
            while matches!(out.read_line(&mut line), Ok(bytes) if bytes > 0) {
                if let Some(whole) = line.strip_suffix('\n')
                    && notices.send(Notice::Line(whole.to_owned())).is_err()
                {
                    return;
                }
                line.clear();
            }
            notices.send(Notice::Silence).ok();
        });
        Ok(Self { process, _stdin: stdin })
    }

    /// Sends SIGKILL, and does not wait for the process's end.
    pub(crate) fn kill(&mut self) {
        // An agent that has just ended by itself is fine, too.
        self.process.kill().ok();
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    /// The process does not end in time, because the kernel holds it; errors of waiting for it.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= until {
                return Err(io::Error::other(format!("a killed agent does not end: pid={}", self.process.id())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        self.wait().ok();
    }
}
