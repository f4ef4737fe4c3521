//! Messages to systemd, received as systemd receives them: on the socket that NOTIFY_SOCKET names.

use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::blocking;
use workload::Pairs;

use crate::support::{Service, Signal, columns, free_address, load, signal, stream, wait_for};

/// systemd's end of the notification socket.
pub(crate) struct Systemd(UnixDatagram);

impl Systemd {
    pub(crate) fn bind(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        // Time limit that only a hang reaches.
        socket.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
        Self(socket)
    }

    /// Returns the next message of the service.
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    }

    /// Skips to the next message that contains `part`, and returns it.
    pub(crate) fn until(&self, part: &str) -> String {
        loop {
            let told = self.next();
            if told.contains(part) {
                return told;
            }
        }
    }
}

#[test]
fn ready_means_that_lookups_are_answered_and_the_watchdog_is_fed_while_threads_get_on() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let (dir, notify, shm) = (temp.path().join("store"), temp.path().join("notify"), temp.path().join("shm.sock"));
    let systemd = Systemd::bind(&notify);
    let (stream, workload) = stream("--pairs 2000 --events 20000 --events-per-slot 500 --change-share 0");
    load(&dir, &options, &workload);
    let (listen, metrics) = (free_address("127.0.0.1"), free_address("127.0.0.1"));
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start_at(&dir, &options, &geyser, listen.clone(), metrics, |command| {
        command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "400000").arg("--shm").arg(&shm)
    });
    assert!(systemd.next().starts_with("STATUS=opening and recovering the store"));
    systemd.until("READY=1");
    let mut client = blocking::Client::connect(&format!("http://{listen}")).unwrap();
    let pairs = Pairs::new(workload.seed);
    let found = client.get(&pairs.key(5)).unwrap();
    assert_eq!(found.value, Some(pairs.value(5, 0)));
    systemd.until("STATUS=live at slot");
    for _ in 0..5 {
        systemd.until("WATCHDOG=1");
    }
    // The stream is over and no request comes: an idle service still counts as alive.
    service.wait_for_slot(1039);
    for _ in 0..5 {
        systemd.until("WATCHDOG=1");
    }
    service.signal(Signal::TERM);
    systemd.until("STOPPING=1");
    assert!(service.terminate().success());
    stream.stop().unwrap();
}

/// A process that does not outlive a failed test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this process has a handler for SIGINT.
fn handles_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() >> (Signal::INT.as_raw() - 1) & 1 == 1
}

#[test]
fn a_signal_ends_the_opening_even_where_the_shell_had_it_ignored() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let notify = temp.path().join("notify");
    let _systemd = Systemd::bind(&notify);
    // Nobody reads, so once the queue is full, the service waits when it tells that it opens the store. A single sender may
    // reach its own limit before.
    let mut others = Vec::new();
    let mut send = || {
        let other = UnixDatagram::unbound().unwrap();
        other.connect(&notify).unwrap();
        other.set_nonblocking(true).unwrap();
        let sent = other.send(b"X=").is_ok();
        others.push(other);
        sent
    };
    while send() {}
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_service"), "--create-empty"]);
    command.args(["--engine", options.engine.as_str(), "--geyser", "http://127.0.0.1:1"]);
    command
        .args(["--extract", "token-mint", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--dir"])
        .arg(temp.path().join("store"));
    command.env("NOTIFY_SOCKET", &notify).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut service = Killed(command.spawn().unwrap());
    wait_for("a handler before the opening", || handles_interrupts(service.0.id()).then_some(()));
    let ended = wait_for("the end", || {
        signal(&service.0, Signal::INT);
        service.0.try_wait().unwrap()
    });
    assert_eq!(ended.signal(), Some(Signal::INT.as_raw()));
}

#[test]
fn a_configuration_that_cannot_work_ends_with_the_code_that_is_not_tried_again() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("solkv.toml");
    std::fs::write(
        &file,
        "dir = \"/nowhere\"\ngeyser = [\"http://127.0.0.1:1\"]\ncommit_every = 0\nextract = \"token-mint\"\n",
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
    let output = command.arg("--config").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("line=3") && said.contains("solkv.toml"), "{said}");
}
