//! Other processes: the test binary starts itself again, as an agent that holds, changes, or fills a store.
//!
//! Owns: starting an agent, passing its orders, reading its output, and ending it with its test. An agent writes lines
//! that begin with `@` to its standard output, and ends when its standard input does. Must not: know the work of any
//! role. Threads: the test's own, and one for each agent that reads its output.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::Store;

/// Name of the test in every test binary by which its child processes enter.
pub const ENTRY: &str = "conformance_child";

/// Time that a supervisor waits for the next line before it calls the agent stuck. Not a measure of speed: an fsync on
/// a busy machine may take seconds.
const PATIENCE: Duration = Duration::from_secs(120);

const ROLE: &str = "SOLKV_CONFORMANCE_ROLE";
const STORE: &str = "SOLKV_CONFORMANCE_STORE";
const DIR: &str = "SOLKV_CONFORMANCE_DIR";

/// The orders of an agent, which its supervisor passes in environment variables.
pub(crate) struct Orders {
    pub(crate) role: String,
    /// Name of the store that the agent opens.
    pub(crate) store: String,
    pub(crate) dir: PathBuf,
}

impl Orders {
    /// Returns the orders of this process; `None` if it was not started as an agent.
    pub(crate) fn of_this_process() -> Option<Self> {
        let role = std::env::var(ROLE).ok()?;
        let store = std::env::var(STORE).expect("the supervisor sets it");
        let dir = std::env::var_os(DIR).expect("the supervisor sets it").into();
        Some(Self { role, store, dir })
    }
}

/// Sends one line to the supervisor.
pub(crate) fn say(line: impl std::fmt::Display) {
    // The first line break ends a line that the test harness may have begun to print.
    let mut out = std::io::stdout().lock();
    write!(out, "\n@{line}\n").and_then(|()| out.flush()).expect("the supervisor reads until the end");
}

/// A running agent. It is killed when dropped.
pub(crate) struct Agent {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Agent {
    /// Starts an agent on `store` in `dir`. With `file_limit_kib` none of its files may grow beyond that size.
    pub(crate) fn start(store: &dyn Store, role: &str, dir: &Path, file_limit_kib: Option<u64>) -> Self {
        // Not the binary's path, because a build that runs at the same time may have replaced that file. This is the
        // same program.
        let binary = format!("/proc/{}/exe", std::process::id());
        let mut command = match file_limit_kib {
            None => Command::new(binary),
            Some(kib) => {
                // The shell lowers the limit and turns the signal into an error code, without unsafe code here.
                let mut shell = Command::new("bash");
                shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"")).arg(binary);
                shell
            }
        };
        command.args([ENTRY, "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(STORE, store.name()).env(DIR, dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the test binary can start itself");
        let stdout = process.stdout.take().expect("standard output was asked for as a pipe");
        let stdin = process.stdin.take();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let said = BufReader::new(stdout).lines().map_while(Result::ok);
            for line in said.filter_map(|line| line.strip_prefix('@').map(str::to_owned)) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, stdin, lines }
    }

    /// Returns the next line, or `None` after the agent's end.
    pub(crate) fn next_line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the agent said nothing for {PATIENCE:?}"),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends the agent's standard input, which asks the agent to finish.
    pub(crate) fn finish(&mut self) {
        self.stdin = None;
    }

    fn end(&mut self) {
        self.process.kill().expect("the agent is ours and not yet waited for");
        self.process.wait().expect("the agent is ours");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until the supervisor closes this process's standard input, or is gone.
pub(crate) fn wait_for_the_end() {
    let mut rest = Vec::new();
    // An error ends the wait, just as the end of the input does.
    let _ = std::io::stdin().read_to_end(&mut rest);
}
