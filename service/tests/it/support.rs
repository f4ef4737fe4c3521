//! Common parts of the tests: a store loaded with the stream's known pairs, a stream, and the service as a child
//! process.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use engine_api::Durability;
use engines::{Digest, EngineKind, EngineOptions, OpenMode};
use loadgen::stream::{Final, Stream, Workload};
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use solana::ChainCheckpoint;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use workload::Pairs;

/// Slot of a loaded store. A stream's first slot is 1000 by default.
pub(crate) const BASE_SLOT: u64 = 999;

/// Time limit of every wait. A busy machine stays far below it; only a hang reaches it.
const HANG: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(3);

/// Returns the options of the engines compiled in, RocksDB also with its Bloom filter.
pub(crate) fn columns() -> Vec<EngineOptions> {
    let memory = Some(ByteSize::mib(64));
    let mut columns = Vec::new();
    for &engine in engines::compiled() {
        columns.push(EngineOptions { memory, ..EngineOptions::new(engine) });
        if engine == EngineKind::Rocksdb {
            columns.push(EngineOptions { memory, ..EngineOptions::new(engine) }.with("bloom", 20));
        }
    }
    columns
}

/// Starts a stream with the options of `loadgen stream`.
pub(crate) fn stream(line: &str) -> (Stream, Workload) {
    let (workload, delivery) = loadgen::stream::options(line).unwrap();
    (Stream::start(workload.clone(), &delivery, "127.0.0.1:0").unwrap(), workload)
}

/// Loads the pairs that the stream's keys hold before its first slot.
pub(crate) fn load(dir: &Path, options: &EngineOptions, workload: &Workload) {
    let engine = engines::open(dir, options, OpenMode::CreateOrOpen).unwrap();
    let pairs = Pairs::new(workload.seed);
    let mut txn = engine.begin().unwrap();
    for index in 0..workload.pairs {
        txn.put(&pairs.key(index), &pairs.value(index, 0)).unwrap();
    }
    let checkpoint = ChainCheckpoint { seq: workload.pairs, slot: Some(BASE_SLOT), ..ChainCheckpoint::default() };
    txn.commit(&checkpoint.write(), Durability::Synced).unwrap();
    engine.close().unwrap();
}

/// Writes a store of so many pairs, whose pages are in segments.
pub(crate) fn settled(dir: &Path, options: &EngineOptions, pairs: u64) {
    let (stream, workload) = stream(&format!("--pairs {pairs} --seed 1 --events 1"));
    load(dir, options, &workload);
    stream.stop().unwrap();
    let engine = engines::open(dir, options, OpenMode::Existing).unwrap();
    engine.settle().unwrap();
    engine.close().unwrap();
}

/// Returns the digest of a store that no process has open.
pub(crate) fn digest(dir: &Path, options: &EngineOptions) -> String {
    let engine = engines::open(dir, options, OpenMode::Existing).unwrap();
    let digest = Digest::of(&*engine).unwrap();
    engine.close().unwrap();
    digest.to_string()
}

/// Polls until `found` returns a value, and returns it.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing within {HANG:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Writes a file that its owner alone may read.
pub(crate) fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// Writes a configuration file next to the store, with a table of this server, which has compression. Returns its path.
pub(crate) fn compressed(dir: &Path, geyser: &str, encoding: &str) -> String {
    let path = dir.with_extension("toml");
    std::fs::write(&path, format!("[[geyser]]\nurl = \"{geyser}\"\ncompression = \"{encoding}\"\n")).unwrap();
    path.display().to_string()
}

/// Connects to gRPC over a Unix socket.
pub(crate) async fn uds_channel(path: &Path) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("unix:{}", path.display()))?.connect().await
}

/// Creates a runtime for a client.
pub(crate) fn client_runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits for the end of the stream and returns its final state.
#[track_caller]
pub(crate) fn end(stream: &Stream) -> Final {
    wait_for("the stream's end", || stream.outcome().unwrap().cloned())
}

/// Returns an address of `host` with a port that was free a moment ago, and that no other call has returned.
pub(crate) fn free_address(host: &str) -> String {
    static RETURNED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if RETURNED.lock().unwrap().insert(port) {
            return format!("{host}:{port}");
        }
    }
}

/// A running service; killed when dropped.
pub(crate) struct Service {
    child: Child,
    pub(crate) listen: String,
    pub(crate) metrics: String,
    log: PathBuf,
}

impl Service {
    /// Starts a service of a server's URL, or of a configuration file that names servers.
    pub(crate) fn start(dir: &Path, options: &EngineOptions, geyser: &str, more: &[&str]) -> Self {
        Self::start_on("127.0.0.1", dir, options, geyser, |command| command.args(more))
    }

    /// Starts a service on free ports of `host`. `set` may add arguments to the command.
    pub(crate) fn start_on(
        host: &str,
        dir: &Path,
        options: &EngineOptions,
        geyser: &str,
        set: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        Self::start_at(dir, options, geyser, free_address(host), free_address(host), set)
    }

    /// Starts a service at the given addresses, for instance those of a service that has ended.
    pub(crate) fn start_at(
        dir: &Path,
        options: &EngineOptions,
        geyser: &str,
        listen: String,
        metrics: String,
        set: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        let log = dir.with_extension("log");
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        let stream = if geyser.ends_with(".toml") { "--config" } else { "--geyser" };
        command.args(["--engine", options.engine.as_str(), stream, geyser]);
        command.args(["--listen", &listen, "--metrics", &metrics]).arg("--dir").arg(dir);
        // A store that was not loaded begins empty.
        if !dir.exists() {
            command.arg("--create-empty");
        }
        for (name, value) in &options.options {
            command.args([&engines::flag(name), value]);
        }
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        set(&mut command);
        name_extract(&mut command, dir);
        if command.get_args().all(|argument| argument != "--memory") {
            command.args(["--memory", "64MiB"]);
        }
        Self { child: command.spawn().unwrap(), listen, metrics, log }
    }

    /// Requests a page and returns status code and body. Returns `None` while the service does not listen yet.
    pub(crate) fn get(&mut self, path: &str) -> Option<(u16, String)> {
        self.get_with_head(path).map(|(code, _, body)| (code, body))
    }

    /// Requests a page and returns status code, head and body. Returns `None` while the service does not listen yet.
    pub(crate) fn get_with_head(&mut self, path: &str) -> Option<(u16, String, String)> {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the service ended: {ended:?}\n{}", self.log());
        let mut socket = TcpStream::connect(&self.metrics).ok()?;
        write!(socket, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, head.to_owned(), body.to_owned()))
    }

    /// Returns the exit status if the service has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Returns the service's account of itself, as `/status.json` has it.
    #[track_caller]
    pub(crate) fn status(&mut self) -> serde_json::Value {
        let (_, body) = wait_for("the status", || self.get("/status.json"));
        serde_json::from_str(&body).unwrap()
    }

    /// Returns the slot of the store's checkpoint.
    pub(crate) fn slot(&mut self) -> Option<u64> {
        let status: serde_json::Value = serde_json::from_str(&self.get("/status.json")?.1).ok()?;
        status.pointer("/checkpoint/slot")?.as_u64()
    }

    #[track_caller]
    pub(crate) fn wait_for_slot(&mut self, slot: u64) -> u64 {
        let what = format!("slot {slot} or later");
        wait_for(&what, || self.slot().filter(|at| *at >= slot))
    }

    /// Returns one sample of the service's metrics.
    pub(crate) fn metric(&mut self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Returns a figure of `/proc/PID/status`, which is in KiB there, in bytes.
    pub(crate) fn memory_bytes(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn signal(&self, sent: Signal) {
        signal(&self.child, sent);
    }

    /// Stops every thread with SIGSTOP, and waits until each has stopped. The signal alone does not mean that they
    /// have.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        wait_for("threads that stand still", || {
            let mut threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            let stopped = |entry: std::io::Result<std::fs::DirEntry>| {
                let stat = std::fs::read_to_string(entry.unwrap().path().join("stat")).unwrap_or_default();
                // The state comes after the thread's name, which is in parentheses.
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
            };
            threads.all(stopped).then_some(())
        });
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the end.
    #[track_caller]
    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        wait_for("the end after SIGTERM", || self.child.try_wait().unwrap())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

/// Gives a service an extraction, if its store in `dir` records none and the command names none.
pub(crate) fn name_extract(command: &mut Command, dir: &Path) {
    let is_recorded = engines::inspect(dir).unwrap().is_some_and(|known| known.holds.extract.is_some());
    if !is_recorded && command.get_args().all(|argument| argument != "--extract") {
        command.args(["--extract", "account-owner"]);
    }
}

/// Sends a signal without the program `kill`, which a small system may lack.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

impl Drop for Service {
    fn drop(&mut self) {
        // An error means that it has ended already, which is fine.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
