//! A disk that other programs fill while a stream is followed. Lookups continue and the problem is reported. Once there
//! is space, the store reaches the stream's end; on some engines a supervisor has to restart the service for that.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use client::Builder;
use conformance::{Ability, able};
use workload::Pairs;

use crate::support::{Service, columns, digest, end, load, stream, wait_for};

/// Size of the disk: room for every engine's files, and for the 64 MiB that some want free before they begin.
const DISK_MIB: u64 = 400;

/// A file system of its own in memory, unmounted when dropped.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    /// `None` if this process may not mount anything.
    pub(crate) fn mount(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).unwrap();
        let size = format!("size={DISK_MIB}m");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        able(Ability::Root, if output.status.success() { Ok(Self(path)) } else { Err(said) })
    }

    /// Fills all free space of the disk.
    pub(crate) fn fill(&self, path: &Path) {
        let mut file = File::create(path).unwrap();
        let block = vec![0; 1 << 16];
        while file.write_all(&block).is_ok() {}
        // Fill the rest, which is smaller than a block.
        while file.write_all(&[0]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy: a failing test may have files open there.
        Command::new("umount").arg("--lazy").arg(&self.0).status().ok();
    }
}

#[test]
fn a_socket_on_a_file_system_that_turned_read_only_is_an_error_that_may_pass() {
    let temp = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(temp.path().join("disk")) else { return };
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).status().unwrap();
    assert!(remounted.success());
    for setting in ["--uds", "--shm"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        command.args(["--create-empty", "--extract", "token-mint", "--geyser", "http://127.0.0.1:1", "--dir"]);
        command.arg(temp.path().join("store")).arg(setting).arg(disk.0.join("kv.sock"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("Read-only file system"),
            "{:?} {said}",
            output.status
        );
    }
}

#[test]
fn a_full_disk_is_reported_lookups_continue_and_space_mends_it() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let Some(disk) = Disk::mount(temp.path().join("disk")) else { return };
        let (dir, uds, ballast) = (disk.0.join("store"), temp.path().join("kv.sock"), disk.0.join("ballast"));
        let (stream, workload) = stream(
            "--pairs 5000 --events 60000 --events-per-slot 200 --change-share 0.9 --rate 20000 --replay-slots 1000",
        );
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        let more = ["--uds", uds.to_str().unwrap(), "--feed-retention-bytes", "16MiB", "--gap-timeout", "10m"];
        let start = || Service::start(&dir, &options, &geyser, &more);
        let mut service = start();
        let at = service.wait_for_slot(1020);
        disk.fill(&ballast);
        let label = options.engine.as_str();
        let known = Pairs::new(workload.seed).key(0);
        let refused = wait_for("a word about the space", || {
            // Some engines notice within a commit, whose outcome is then unknown, so the service ends.
            if service.ended().is_some() {
                return Some(None);
            }
            let (code, said) = service.get("/readyz")?;
            (code == 503 && said.contains("no space")).then_some(Some(said))
        });
        match refused {
            Some(said) => {
                println!("{label}: not ready: {}", said.trim());
                assert!(service.metric("solkv_commits_without_space_total").unwrap() > 0.0);
                let mut client =
                    Builder::new(&format!("unix://{}", uds.display())).unwrap().connect_blocking().unwrap();
                let answer = client.get(&known).unwrap();
                assert!(answer.slot.is_some_and(|slot| slot >= at), "lookups go on: {answer:?}");
                std::fs::remove_file(&ballast).unwrap();
            }
            None => {
                let log = service.log();
                println!("{label}: ended: {}", log.lines().last().unwrap_or_default());
                assert!(log.contains("space"), "{log}");
                std::fs::remove_file(&ballast).unwrap();
                service = start();
            }
        }
        let end = end(&stream);
        // A service that recovered by itself may still find that it cannot continue.
        wait_for("the stream's last slot", || {
            if let Some(status) = service.ended() {
                println!("{label}: ended after there was space again: {status}");
                service = start();
            }
            std::thread::sleep(Duration::from_millis(20));
            service.slot().filter(|slot| *slot >= end.slot)
        });
        assert!(service.terminate().success());
        assert_eq!(digest(&dir, &options), end.digest, "{label}");
        stream.stop().unwrap();
    }
}
