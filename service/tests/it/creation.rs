//! `service --create`: the store is loaded from an archive while the stream goes to the spool, with kills at each stage.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use engines::{Digest, EngineOptions};
use loadgen::stream::Stream;
use proto::v1::subscribe_request::Start;
use tempfile::TempDir;
use workload::Pairs;

use crate::disk::Disk;
use crate::feed::{Follower, UNKNOWN};
use crate::heal::{wait_for_need, wait_for_sent};
use crate::support::{BASE_SLOT, Service, columns, digest, end, stream, wait_for};

const PAIRS: u64 = 4000;
const SEED: u64 = 1;
const STORY: &str = "--pairs 4000 --seed 1 --events 30000 --events-per-slot 200 --unknown-share 0.05 --change-share 0.3 \
                     --close-share 0.05 --skip-every 11";
/// Slots of the story that are not skipped, at least.
const SLOTS: f64 = 150.0;

/// A server of one archive, which sends no more than `allowed` bytes of it until told to.
struct Server {
    url: String,
    allowed: Arc<AtomicUsize>,
    bytes: usize,
}

impl Server {
    fn start(archive: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = archive.file_name().unwrap().to_str().unwrap();
        let url = format!("http://{}/{name}", listener.local_addr().unwrap());
        let body = Arc::new(fs::read(archive).unwrap());
        let (allowed, bytes) = (Arc::new(AtomicUsize::new(0)), body.len());
        let of_thread = Arc::clone(&allowed);
        // The threads wait for connections and for bytes for as long as the test program lives.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (body, allowed) = (Arc::clone(&body), Arc::clone(&of_thread));
                // A client that goes away is its own business.
                thread::spawn(move || answer(&stream.unwrap(), &body, &allowed).ok());
            }
        });
        Self { url, allowed, bytes }
    }

    fn allow(&self, bytes: usize) {
        self.allowed.store(bytes, Ordering::SeqCst);
    }
}

fn answer(mut stream: &TcpStream, body: &[u8], allowed: &AtomicUsize) -> std::io::Result<()> {
    let lines = BufReader::new(stream).lines();
    let lines: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    if lines.first().is_some_and(|line| line.starts_with("HEAD")) {
        return Ok(());
    }
    let mut sent = 0;
    while sent < body.len() {
        // A connection keeps the bytes that it was allowed before the number became smaller.
        let until = allowed.load(Ordering::SeqCst).clamp(sent, body.len());
        stream.write_all(&body[sent..until])?;
        sent = until;
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A stream, and an archive of the slot before its first one.
struct Run {
    temp: TempDir,
    dir: PathBuf,
    stream: Stream,
    archive: Server,
    /// Options that name the incremental archive, if there is one.
    incremental: Vec<String>,
    options: EngineOptions,
    follower: Option<(Arc<AtomicU64>, JoinHandle<Follower>)>,
}

impl Run {
    fn new(options: EngineOptions, delivery: &str) -> Self {
        Self::with_archives(options, "", &format!("{STORY} {delivery}"))
    }

    /// Writes the archives that `more` asks for as well. `line` has the options of the stream.
    fn with_archives(options: EngineOptions, more: &str, line: &str) -> Self {
        let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (dir, archives) = (temp.path().join("store"), temp.path().join("archives"));
        fs::create_dir(&dir).unwrap();
        let plan = loadgen::archive::options(&format!("{STORY} --without large {more}")).unwrap();
        let written = loadgen::archive::write(&plan, &archives, &mut |_| Ok(())).unwrap();
        assert_eq!(written[0].slot, BASE_SLOT);
        let archive = Server::start(&written[0].file);
        let incremental =
            written.get(1).map(|made| ["--incremental".to_owned(), made.file.to_str().unwrap().to_owned()]);
        let incremental = incremental.into_iter().flatten().collect();
        let (stream, _) = stream(line);
        Self { temp, dir, stream, archive, incremental, options, follower: None }
    }

    fn start(&self, more: &[&str]) -> Service {
        let geyser = format!("http://{}", self.stream.address());
        let uds = self.temp.path().join("kv.sock");
        let create = ["--create", "--snapshot", &self.archive.url, "--extract", "account-owner"];
        let incremental: Vec<&str> = self.incremental.iter().map(String::as_str).collect();
        let socket = ["--uds", uds.to_str().unwrap()];
        // The default's 16 GiB have to be free when the load begins.
        let is_bounded = more.contains(&"--spool-max-bytes");
        let spool: &[&str] = if is_bounded { &[] } else { &["--spool-max-bytes", "256MiB"] };
        Service::start(&self.dir, &self.options, &geyser, &[&create, &incremental[..], &socket, spool, more].concat())
    }

    /// Has a subscriber follow from the first change after the archive, across all lives of the service.
    fn follow(&mut self) {
        let pairs = Pairs::new(SEED);
        let base = (0..PAIRS).map(|n| (pairs.key(n).to_vec(), pairs.value(n, 0).to_vec())).collect();
        let (uds, last_seq) = (self.temp.path().join("kv.sock"), Arc::new(AtomicU64::new(UNKNOWN)));
        let follower = Follower::new(&uds, 1, Start::FromSeq(PAIRS + 1), (base, PAIRS));
        self.follower = Some((Arc::clone(&last_seq), follower.follow(last_seq)));
    }

    /// Waits for the stream's end in the store, and compares the maps.
    fn finish(mut self, mut service: Service) {
        let end = end(&self.stream);
        service.wait_for_slot(end.slot);
        wait_for("the end of the spool", || (!self.dir.join("spool").exists()).then_some(()));
        if let Some((last_seq, follower)) = self.follower.take() {
            // ORDERING: Relaxed: a number that is set once.
            last_seq.store(service.metric("solkv_checkpoint_seq").unwrap() as u64, Ordering::Relaxed);
            let map = follower.join().unwrap().map;
            let mut sum = Digest::default();
            map.iter().for_each(|(key, value)| sum.add(key[..].try_into().unwrap(), value[..].try_into().unwrap()));
            assert_eq!(sum.to_string(), end.digest, "the subscriber's map: {:?}", self.options);
        }
        assert!(service.terminate().success());
        assert_eq!(digest(&self.dir, &self.options), end.digest, "{:?}", self.options);
        self.stream.stop().unwrap();
        drop(self.temp);
    }
}

fn wait_for_spooled(service: &mut Service, slots: f64) {
    wait_for("slots in the spool", || service.metric("solkv_spool_slots").filter(|at| *at >= slots));
}

#[test]
fn slots_that_the_server_has_forgotten_come_from_the_spool() {
    for options in columns() {
        // The server keeps three seconds of slots, and the load waits until the stream has ended.
        let run = Run::new(options, "--rate 4000 --replay-slots 60");
        let mut service = run.start(&[]);
        let (_, reason) = wait_for("the reason", || {
            service.get("/readyz").filter(|(code, body)| *code == 503 && body.contains("archive of slot=999"))
        });
        assert!(reason.starts_with("loading: "), "{reason}");
        wait_for_spooled(&mut service, SLOTS);
        assert_eq!(service.metric("solkv_loading"), Some(1.0));
        assert_eq!(service.get("/healthz").unwrap().0, 200);
        assert!(TcpStream::connect(&service.listen).is_err(), "lookups are refused");
        run.archive.allow(run.archive.bytes);
        run.finish(service);
    }
}

#[test]
fn the_versions_that_were_read_are_shown_before_the_archive_is_at_its_end() {
    let mut run = Run::new(columns().remove(0), "--rate 4000 --replay-slots 100000");
    let plan = loadgen::archive::options("--pairs 150000 --seed 1 --without large").unwrap();
    let larger = loadgen::archive::write(&plan, &run.temp.path().join("larger"), &mut |_| Ok(())).unwrap().remove(0);
    run.archive = Server::start(&larger.file);
    run.archive.allow(run.archive.bytes / 10 * 9);
    let mut service = run.start(&[]);
    let seen = wait_for("versions in the reason", || {
        let (_, body) = service.get("/readyz")?;
        let (_, rest) = body.split_once(" versions=")?;
        let (versions, rest) = rest.split_once(" pairs=")?;
        assert!(rest.starts_with("0; spool: "), "no pair is written before the archive is at its end: {body}");
        versions.parse::<u64>().ok().filter(|versions| *versions > 0)
    });
    assert!(seen < larger.counts.records, "versions={seen} records={}", larger.counts.records);
    assert!(service.terminate().success());
}

#[test]
fn killed_at_every_stage_it_goes_on() {
    for options in columns() {
        let mut run = Run::new(options, "--rate 4000 --replay-slots 100000");
        run.follow();
        for (slots, part) in [(5.0, 2), (25.0, 3), (50.0, 1)] {
            let mut service = run.start(&[]);
            wait_for_spooled(&mut service, slots);
            run.archive.allow(run.archive.bytes - run.archive.bytes / part);
            wait_for_spooled(&mut service, slots + 5.0);
            service.kill();
        }
        run.archive.allow(run.archive.bytes);
        // Between reading and loading, in the load, in the replay: wherever it is when its marker appears.
        let service = run.start(&[]);
        wait_for("the load", || run.dir.join("SOLKV").exists().then_some(()));
        service.kill();
        for more in [1, 30] {
            let mut service = run.start(&[]);
            service.wait_for_slot(BASE_SLOT + more);
            service.kill();
        }
        let service = run.start(&[]);
        run.finish(service);
    }
}

#[test]
fn a_directory_that_a_kill_has_left_of_the_spool_is_removed() {
    let run = Run::new(columns().remove(0), "--rate 20000 --replay-slots 100000");
    let spool = run.dir.join("spool");
    run.archive.allow(run.archive.bytes);
    let mut service = run.start(&[]);
    service.wait_for_slot(end(&run.stream).slot);
    wait_for("the end of the spool", || (!spool.exists()).then_some(()));
    service.kill();
    // As a kill between the removal of the file and that of its directory leaves it.
    fs::create_dir(&spool).unwrap();
    let service = run.start(&[]);
    run.finish(service);
}

#[test]
fn a_signal_ends_the_load_and_the_next_start_goes_on() {
    let run = Run::new(columns().remove(0), "--rate 4000 --replay-slots 100000");
    let mut service = run.start(&[]);
    wait_for_spooled(&mut service, 5.0);
    // The load waits for bytes that do not come.
    assert!(service.terminate().success());
    run.archive.allow(run.archive.bytes);
    let service = run.start(&[]);
    run.finish(service);
}

#[test]
fn the_waiting_for_a_server_that_is_busy_is_shown_and_a_signal_ends_it() {
    let mut run = Run::new(columns().remove(0), "--rate 4000 --replay-slots 100000");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = run.archive.url.rsplit('/').next().unwrap();
    run.archive.url = format!("http://{}/{name}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            BufReader::new(&stream).lines().map_while(Result::ok).find(|line| line.is_empty());
            // A client that goes away is its own business.
            write!(stream, "HTTP/1.1 503 Busy\r\nretry-after: 600\r\ncontent-length: 0\r\n\r\n").ok();
        }
    });
    let mut service = run.start(&["--log-format", "json"]);
    let (code, reason) = wait_for("the reason", || {
        service.get("/readyz").filter(|(_, body)| body.contains("waiting for the archive's server"))
    });
    assert_eq!(code, 503);
    let url = &run.archive.url;
    assert!(reason.contains(&format!("archive={url} failures=1 since_seconds=")), "{reason}");
    assert!(reason.contains("status=503"), "{reason}");
    // The server asks for a pause of ten minutes.
    let (_, pause) = reason.trim().rsplit_once("next_try_seconds=").unwrap();
    assert!((300..=600).contains(&pause.parse::<u64>().unwrap()), "{reason}");
    assert_eq!(service.metric("solkv_loading"), Some(1.0));
    let status = service.status();
    assert!(status["load"]["waiting"].as_str().unwrap().contains("failures=1"), "{status}");
    assert!(engines::holder(&run.dir).unwrap().is_some(), "others see that a load is under way");
    let line = wait_for("the server's failure in the log", || {
        service.log().lines().find(|line| line.contains("is asked again")).map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["target"], "solkv_bootstrap");
    assert!(service.terminate().success());
}

#[test]
fn a_full_spool_is_told_and_the_stream_is_asked_for_the_rest() {
    let run = Run::new(columns().remove(0), "--rate 20000 --replay-slots 100000");
    let mut service = run.start(&["--spool-max-bytes", "100000"]);
    wait_for("a full spool", || service.metric("solkv_spool_stopped").filter(|stopped| *stopped == 1.0));
    assert!(service.metric("solkv_spool_bytes").unwrap() <= 100_000.0);
    wait_for("the reason", || service.get("/readyz").filter(|(_, body)| body.contains("spool_max_bytes=100000")));
    run.archive.allow(run.archive.bytes);
    run.finish(service);
}

#[test]
fn a_stream_without_the_archives_slots_is_refused_with_their_range() {
    let run = Run::new(columns().remove(0), "--no-wait --rate 1000000 --replay-slots 20");
    end(&run.stream);
    let mut service = run.start(&[]);
    let code = wait_for("the end", || service.ended()).code();
    let log = service.log();
    assert!(log.contains("archive_slot=999 missing_first_slot=1000"), "{log}");
    let ways = [
        "set heal_from, so that this load goes on".to_owned(),
        format!("remove dir={} and give a newer archive", run.dir.display()),
    ];
    assert!(ways.iter().all(|way| log.contains(way)), "{log}");
    // Each start would end so, and the packaged unit does not start it again.
    assert_eq!(code, Some(2));
}

/// The archive is so old that the server has none of the slots after it. A newer one brings them once it is there, and a
/// subscriber sees the difference.
#[test]
fn a_stream_without_the_archives_slots_is_joined_by_a_heal() {
    for options in columns() {
        let mut run = Run::new(options, "--no-wait --rate 3000 --replay-slots 15");
        let newer = run.temp.path().join("newer");
        fs::create_dir(&newer).unwrap();
        let heal = ["--heal-from", newer.to_str().unwrap()];
        run.follow();
        wait_for_sent(&run.stream, BASE_SLOT + 40);
        run.archive.allow(run.archive.bytes / 2);
        let told = |service: &mut Service| {
            let lacks = "the stream lacks the slots from 1000 to ";
            wait_for("the gap", || service.get("/readyz").filter(|(code, body)| *code == 503 && body.contains(lacks)));
        };
        let mut service = run.start(&heal);
        told(&mut service);
        service.kill();
        let mut service = run.start(&heal);
        told(&mut service);
        run.archive.allow(run.archive.bytes);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        assert_eq!(service.metric("solkv_checkpoint_slot"), Some(BASE_SLOT as f64));
        // The store is whole now, and the spool is of the slots after the gap.
        service.kill();
        let mut service = run.start(&heal);
        assert_eq!(wait_for_need(&mut service, "there is none").0, needed);
        let after = needed - BASE_SLOT;
        let plan = loadgen::archive::options(&format!("{STORY} --without large --slots-after {after}")).unwrap();
        loadgen::archive::write(&plan, &newer, &mut |_| Ok(())).unwrap();
        wait_for("the heal", || service.metric("solkv_heals_total").filter(|healed| *healed == 1.0));
        run.finish(service);
    }
}

/// Slots of two chains have the same numbers, and their accounts may have nothing in common.
#[test]
fn slots_of_another_chain_are_not_applied_to_the_archives_map() {
    let other = STORY.replace("--seed 1", "--seed 2");
    let run = Run::with_archives(columns().remove(0), "", &format!("{other} --rate 4000 --replay-slots 100000"));
    run.archive.allow(run.archive.bytes);
    let mut service = run.start(&[]);
    let (_, reason) = wait_for("the gap", || {
        service.get("/readyz").filter(|(code, body)| *code == 503 && body.contains("contradicts the applied chain"))
    });
    // Of the spool's first slot, and then of the same slot as the server sends it again.
    assert!(reason.contains("slot=1000 has") || reason.contains("slot=999 came again"), "{reason}");
    assert!(reason.contains("the stream is of another chain"), "{reason}");
    assert_eq!(service.metric("solkv_checkpoint_seq"), Some(PAIRS as f64));
    assert!(service.terminate().success());
}

/// A start would refuse these, after the operator has gone home.
#[test]
fn check_config_refuses_archives_directories_and_disks_that_a_start_would_refuse() {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let plan = loadgen::archive::options(&format!("{STORY} --without large --incremental-slots 20")).unwrap();
    let written = loadgen::archive::write(&plan, &temp.path().join("archives"), &mut |_| Ok(())).unwrap();
    let [full, incremental] = [0, 1].map(|at: usize| written[at].file.to_str().unwrap().to_owned());
    let checked = |more: &[&str]| {
        let line = "check-config --create --geyser http://h:1 --extract token-owner --dir";
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_service"));
        // The default's 16 GiB may not be free.
        let spool: &[&str] = if more.contains(&"--spool-max-bytes") { &[] } else { &["--spool-max-bytes", "1MiB"] };
        let output = command.args(line.split(' ')).arg(path("store")).args(spool).args(more).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let missing = path("snapshot-300-11111111111111111111111111111111.tar.zst");
    let (code, said) = checked(&["--snapshot", &missing]);
    assert!(code == Some(1) && said.contains(&missing), "{said}");
    let (code, said) = checked(&["--snapshot", &incremental]);
    assert!(code == Some(2) && said.contains("an incremental archive holds changes only"), "{said}");
    let (code, said) = checked(&["--snapshot", &full, "--incremental", &full]);
    assert!(code == Some(2) && said.contains("not an incremental archive by its name"), "{said}");
    let (code, said) = checked(&["--snapshot", &full, "--incremental", &incremental, "--heal-from", &path("none")]);
    assert!(code == Some(0) && said.contains("# warning: cannot list heal_from="), "{said}");
    let remote = ["--snapshot", "http://127.0.0.1:9/snapshot-300-HASH.tar.zst"];
    let (code, said) = checked(&remote);
    assert!(code == Some(0) && said.contains("# snapshot: the disk is not checked"), "{said}");
    let (code, said) = checked(&["--snapshot", &full, "--spool-max-bytes", "1PiB"]);
    assert!(code == Some(1) && said.contains("not enough disk for the load and the spool beside it"), "{said}");
    assert!(!temp.path().join("store").exists() && !temp.path().join("store.work").exists());
    fs::create_dir(temp.path().join("store")).unwrap();
    fs::write(temp.path().join("store/mine"), "1").unwrap();
    for archive in [&["--snapshot", &full][..], &remote] {
        let (code, said) = checked(archive);
        assert!(code == Some(2) && said.contains("not a solkv store") && said.contains("entry=mine"), "{said}");
    }
}

#[test]
fn an_incremental_archive_is_loaded_with_its_full_one() {
    // Neither form lists its files.
    for (options, like) in columns().into_iter().zip(["firedancer", "agave-unlisted"].into_iter().cycle()) {
        // A stream that waits for its first subscriber has no slot of the archive's height to send.
        let delivery = "--no-wait --rate 4000 --replay-slots 100000";
        let more = format!("--incremental-slots 20 --like {like}");
        let run = Run::with_archives(options, &more, &format!("{STORY} {delivery}"));
        let mut service = run.start(&[]);
        let (_, reason) = wait_for("the reason", || {
            service.get("/readyz").filter(|(code, body)| *code == 503 && body.contains("archive of slot="))
        });
        assert!(!reason.contains("slot=999"), "the slot is the incremental archive's: {reason}");
        wait_for_spooled(&mut service, 20.0);
        run.archive.allow(run.archive.bytes);
        run.finish(service);
    }
}

#[test]
fn a_disk_without_room_for_the_spools_bound_is_refused_with_numbers() {
    let mut run = Run::new(columns().remove(0), "--rate 4000 --replay-slots 100000");
    let Some(disk) = Disk::mount(run.temp.path().join("disk")) else { return };
    run.dir = disk.0.join("store");
    fs::create_dir(&run.dir).unwrap();
    run.archive.allow(run.archive.bytes);
    let mut service = run.start(&["--spool-max-bytes", "10GiB"]);
    wait_for("the end", || service.ended());
    let log = service.log();
    assert!(log.contains("not enough disk for the load and the spool beside it"), "{log}");
    assert!(log.contains("spool_max_bytes=10737418240"), "{log}");
    let service = run.start(&["--spool-max-bytes", "10MiB"]);
    run.finish(service);
}

#[test]
fn a_disk_that_fills_during_the_load_ends_it_and_the_next_start_goes_on() {
    let mut run = Run::new(columns().remove(0), "--rate 4000 --replay-slots 100000");
    let Some(disk) = Disk::mount(run.temp.path().join("disk")) else { return };
    run.dir = disk.0.join("store");
    fs::create_dir(&run.dir).unwrap();
    let (small, ballast) = (["--spool-max-bytes", "10MiB"], disk.0.join("ballast"));
    let mut service = run.start(&small);
    wait_for_spooled(&mut service, 5.0);
    disk.fill(&ballast);
    wait_for("a spool that has stopped", || service.metric("solkv_spool_stopped").filter(|stopped| *stopped == 1.0));
    run.archive.allow(run.archive.bytes);
    wait_for("the end", || service.ended());
    let log = service.log();
    assert!(log.contains("the spool takes no more slots") && log.to_lowercase().contains("space"), "{log}");
    fs::remove_file(&ballast).unwrap();
    let service = run.start(&small);
    run.finish(service);
}

#[test]
fn the_lines_of_the_load_are_lines_of_the_log() {
    let run = Run::new(columns().remove(0), "--rate 20000 --replay-slots 100000");
    run.archive.allow(run.archive.bytes);
    let mut service = run.start(&["--log-format", "json"]);
    service.wait_for_slot(BASE_SLOT + 1);
    let log = service.log();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    assert!(lines.iter().any(|line| line["target"] == "solkv_bootstrap"), "{log}");
    assert!(log.contains("the store: dir=") && !log.contains("next: "), "the service itself comes next: {log}");
    run.finish(service);
}
