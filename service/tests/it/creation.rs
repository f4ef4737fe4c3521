//! `service --create`: the store is loaded from an archive while the stream goes to the spool, with kills at each stage.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use engines::EngineOptions;
use loadgen::stream::Stream;
use tempfile::TempDir;

use crate::support::{BASE_SLOT, Service, columns, digest, end, stream, wait_for};

const STORY: &str = "--pairs 4000 --events 30000 --events-per-slot 200 --unknown-share 0.05 --change-share 0.3 \
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
        let until = allowed.load(Ordering::SeqCst).min(body.len());
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
    options: EngineOptions,
}

impl Run {
    fn new(options: EngineOptions, delivery: &str) -> Self {
        let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (dir, archives) = (temp.path().join("store"), temp.path().join("archives"));
        fs::create_dir(&dir).unwrap();
        let plan = loadgen::archive::options(&format!("{STORY} --without large")).unwrap();
        let written = loadgen::archive::write(&plan, &archives, &mut ()).unwrap();
        assert_eq!(written[0].slot, BASE_SLOT);
        let archive = Server::start(&written[0].file);
        let (stream, _) = stream(&format!("{STORY} {delivery}"));
        Self { temp, dir, stream, archive, options }
    }

    fn start(&self, more: &[&str]) -> Service {
        let geyser = format!("http://{}", self.stream.address());
        let create = ["--create", "--snapshot", &self.archive.url, "--extract", "account-owner"];
        Service::start(&self.dir, &self.options, &geyser, &[&create[..], more].concat())
    }

    /// Waits for the stream's end in the store, and compares the maps.
    fn finish(self, mut service: Service) {
        let end = end(&self.stream);
        service.wait_for_slot(end.slot);
        wait_for("the end of the spool", || (!self.dir.join("spool").exists()).then_some(()));
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
fn killed_at_every_stage_it_goes_on() {
    for options in columns() {
        let run = Run::new(options, "--rate 4000 --replay-slots 100000");
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
fn a_signal_ends_the_load_and_the_next_start_goes_on() {
    let run = Run::new(columns().remove(0), "--rate 4000 --replay-slots 100000");
    let mut service = run.start(&["--shutdown-timeout", "1s"]);
    wait_for_spooled(&mut service, 5.0);
    // The load waits for bytes that do not come.
    assert!(service.terminate().success());
    run.archive.allow(run.archive.bytes);
    let service = run.start(&[]);
    run.finish(service);
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
    let mut service = run.start(&["--shutdown-timeout", "1s"]);
    let code = wait_for("the end", || service.ended()).code();
    let log = service.log();
    assert!(log.contains("archive_slot=999 missing_first_slot=1000"), "{log}");
    assert_eq!(code, Some(1));
}
