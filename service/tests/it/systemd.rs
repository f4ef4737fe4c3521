//! Messages to systemd, received as systemd receives them: on the socket that NOTIFY_SOCKET names.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use client::blocking;
use workload::Pairs;

use crate::support::{Service, Signal, columns, free_address, load, stream};

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

#[test]
fn a_configuration_that_cannot_work_ends_with_the_code_that_is_not_tried_again() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("solkv.toml");
    std::fs::write(&file, "dir = \"/nowhere\"\ngeyser = \"http://127.0.0.1:1\"\ncommit_every = 0\n").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_service"));
    let output = command.arg("--config").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("line=3") && said.contains("solkv.toml"), "{said}");
}
