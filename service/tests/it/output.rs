//! The programs with a standard output or standard error that is closed, full, stalled or without a reader.

use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use client::Builder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use workload::Pairs;

use crate::support::{BASE_SLOT, Service, columns, free_address, load, stream, wait_for};
use crate::tools::program;

const ENDLESS: &str = "--pairs 2000 --events 100000000 --events-per-slot 400 --rate 4000 --replay-slots 1000";

/// Arguments of a service, separated by line ends, in the environment of the process that panics.
const ARGS: &str = "SOLKV_TEST_SERVICE_ARGS";

/// File whose creation makes that process panic.
const WHEN: &str = "SOLKV_TEST_PANICS_WHEN";

/// An output that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Closed,
    Full,
    Stalled,
    /// A pipe whose reader has gone.
    Gone,
}

impl Broken {
    const ALL: [Self; 4] = [Self::Closed, Self::Full, Self::Stalled, Self::Gone];

    /// Gives a command this output, as descriptor 1 or 2. Returns the reader, which must live as long as the process.
    fn set(self, command: &mut Command, fd: i32) -> Option<PipeReader> {
        let (reader, output) = match self {
            Self::Closed => {
                // SAFETY: the closure makes one system call and allocates nothing.
                unsafe {
                    command.pre_exec(move || {
                        rustix::io::close(fd);
                        Ok(())
                    })
                };
                return None;
            }
            Self::Full => (None, Stdio::from(File::options().write(true).open("/dev/full").unwrap())),
            Self::Stalled => {
                let (reader, output) = stalled();
                (Some(reader), output)
            }
            Self::Gone => (None, std::io::pipe().unwrap().1.into()),
        };
        if fd == 1 {
            command.stdout(output)
        } else {
            command.stderr(output)
        };
        reader
    }
}

/// Returns a pipe that is full. It stays full until somebody reads.
fn stalled() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    std::thread::spawn(move || filler.write_all(&vec![b'\n'; 1 << 21]));
    let is_full = || poll(&mut [PollFd::new(&writer, PollFlags::OUT)], Some(&Timespec::default())).unwrap() == 0;
    while !is_full() {
        std::thread::yield_now();
    }
    (reader, writer.into())
}

#[track_caller]
fn end(child: &mut Child) -> ExitStatus {
    wait_for("the program's end", || child.try_wait().unwrap())
}

#[test]
fn a_log_that_cannot_be_written_neither_ends_nor_holds_up_the_service() {
    for broken in Broken::ALL {
        let (temp, options) = (tempfile::tempdir().unwrap(), columns().pop().unwrap());
        let (dir, shm) = (temp.path().join("store"), temp.path().join("shm.sock"));
        let (stream, workload) = stream(ENDLESS);
        load(&dir, &options, &workload);
        let mut held = None;
        let mut service =
            Service::start_on("127.0.0.1", &dir, &options, &format!("http://{}", stream.address()), |command| {
                // Each lookup is a line of the log.
                command.args(["--slow-request", "1ns", "--shm"]).arg(&shm);
                held = broken.set(command, 2);
                command
            });
        service.wait_for_slot(BASE_SLOT + 1);
        let mut clients = [format!("http://{}", service.listen), format!("shm://{}", shm.display())].map(|address| {
            Builder::new(&address).unwrap().deadline(Duration::from_secs(100)).connect_blocking().unwrap()
        });
        let key = Pairs::new(workload.seed).key(1);
        for _ in 0..500 {
            for client in &mut clients {
                client.get(&key).unwrap();
            }
        }
        service.wait_for_slot(stream.newest_slot() + 1);
        wait_for("readiness", || service.get("/readyz").filter(|(code, _)| *code == 200));
        let status = service.terminate();
        assert_eq!(status.code(), Some(0), "{broken:?}: {status}");
        drop(held);
        stream.stop().unwrap();
    }
}

/// Not a test of its own: the next test runs this function in a child process.
#[test]
fn service_of_which_a_thread_panics() {
    let Ok(args) = std::env::var(ARGS) else { return };
    let when = std::path::PathBuf::from(std::env::var_os(WHEN).unwrap());
    let panics = move || {
        wait_for("the sign to panic", || when.exists().then_some(()));
        panic!("on purpose");
    };
    std::thread::Builder::new().name("lookup-0".to_owned()).spawn(panics).unwrap();
    solkv_service::cli::main(args.lines().map(Into::into).collect());
    unreachable!("the service goes on until a thread panics");
}

#[test]
fn a_panic_of_any_thread_ends_the_service_with_1_whatever_becomes_of_its_log() {
    for broken in [None, Some(Broken::Stalled), Some(Broken::Gone)] {
        let temp = tempfile::tempdir().unwrap();
        let (dir, when) = (temp.path().join("store"), temp.path().join("when"));
        let (listen, metrics) = (free_address("127.0.0.1"), free_address("127.0.0.1"));
        let args = [
            "service",
            "--create-empty",
            "--extract",
            "account-owner",
            "--geyser",
            "http://127.0.0.1:1",
            "--memory",
            "64MiB",
        ];
        let more = ["--dir", dir.to_str().unwrap(), "--listen", &listen, "--metrics", &metrics];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "output::service_of_which_a_thread_panics", "--nocapture"]).stdout(Stdio::null());
        command.env(ARGS, [&args[..], &more].concat().join("\n")).env(WHEN, &when);
        let held = broken.map(|broken| broken.set(&mut command, 2));
        let mut child = command.stdin(Stdio::null());
        if broken.is_none() {
            child = child.stderr(Stdio::piped());
        }
        let mut child = child.spawn().unwrap();
        wait_for("the service", || std::net::TcpStream::connect(&metrics).ok());
        std::fs::write(&when, "").unwrap();
        assert_eq!(end(&mut child).code(), Some(1), "{broken:?}");
        if let Some(said) = child.stderr.take() {
            let said = std::io::read_to_string(said).unwrap();
            let line = said.lines().find(|line| line.contains("a thread panicked")).unwrap();
            assert!(line.contains("service: ") && line.contains("thread=lookup-0"), "{said}");
        }
        drop(held);
    }
}

/// Commands that end by themselves, and their exit codes: one that is done, and one that says why it is not.
#[test]
fn a_program_ends_with_its_code_whatever_becomes_of_its_last_line() {
    let temp = tempfile::tempdir().unwrap();
    let engine = columns().remove(0).engine.as_str();
    let (store, nowhere) = (temp.path().join("store"), temp.path().join("nowhere"));
    let [store, nowhere] = [&store, &nowhere].map(|path| path.to_str().unwrap());
    let mut load = Command::new(program("bootstrap"));
    load.args(["--engine", engine, "--dir", store, "--pairs", "1000", "--seed", "1"]);
    assert!(load.output().unwrap().status.success());
    let again = ["--engine", engine, "--dir", store, "--pairs", "1000", "--seed", "1", "--resume"];
    let commands: [(&str, &[&str], i32); 14] = [
        ("bootstrap", &again, 0),
        ("bootstrap", &["info", "--dir", store], 0),
        ("bootstrap", &["info", "--dir", nowhere], 1),
        ("bootstrap", &["info", "--nothing"], 2),
        ("bootstrap", &["--help"], 0),
        ("service", &["--version"], 0),
        ("service", &["run", "--help"], 0),
        ("loadgen", &["--help"], 0),
        ("service", &["completions", "bash"], 0),
        ("service", &["run", "--dir", nowhere, "--geyser", "http://127.0.0.1:1"], 2),
        ("service", &["run", "--nothing"], 2),
        ("loadgen", &["completions", "bash"], 0),
        ("loadgen", &["get", "--address", "http://127.0.0.1:1", &"1".repeat(32)], 1),
        ("loadgen", &["get", "--nothing"], 2),
    ];
    for (name, args, code) in commands {
        for broken in Broken::ALL {
            for fd in [1, 2] {
                // A reader that stalls on purpose, such as a pager, may hold up the results.
                if (broken, fd) == (Broken::Stalled, 1) {
                    continue;
                }
                let mut command = Command::new(program(name));
                command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                let _held = broken.set(&mut command, fd);
                let status = end(&mut command.spawn().unwrap());
                // A load that was complete before has nothing to print.
                let lost = (broken, fd, code) == (Broken::Full, 1, 0) && args != again;
                let code = if lost { 1 } else { code };
                assert_eq!(status.code(), Some(code), "{name} {args:?} {broken:?} fd={fd}: {status}");
            }
        }
    }
}

/// As in `loadgen follow --print | head -1`.
#[test]
fn a_follower_ends_in_good_order_when_its_reader_has_gone() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().pop().unwrap());
    let dir = temp.path().join("store");
    let (stream, workload) = stream(ENDLESS);
    load(&dir, &options, &workload);
    let mut service = Service::start(&dir, &options, &format!("http://{}", stream.address()), &[]);
    service.wait_for_slot(BASE_SLOT + 1);
    let mut command = Command::new(program("loadgen"));
    command.args(["follow", "--print", "--address", &format!("http://{}", service.listen)]);
    let mut follower = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(out.next().is_some_and(|line| line.is_ok()));
    drop(out);
    let status = end(&mut follower);
    let said = std::io::read_to_string(follower.stderr.take().unwrap()).unwrap();
    assert!(status.success() && !said.contains("panicked"), "{status}: {said}");
    assert!(service.terminate().success());
    stream.stop().unwrap();
}

/// Clients that come and go at once make a line each.
#[test]
fn a_line_that_others_can_provoke_is_logged_so_often_and_then_counted() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().pop().unwrap());
    let (dir, shm) = (temp.path().join("store"), temp.path().join("shm.sock"));
    let mut service = Service::start(&dir, &options, "http://127.0.0.1:1", &["--shm", shm.to_str().unwrap()]);
    wait_for("its first page", || service.get("/healthz"));
    let log = |service: &Service, words: &str| service.log().lines().filter(|line| line.contains(words)).count();
    wait_for("a count of what was left out", || {
        for _ in 0..500 {
            std::os::unix::net::UnixStream::connect(&shm).ok();
        }
        (log(&service, "repeated lines were left out of this log") > 0).then_some(())
    });
    let text = service.log();
    let (mut lines, mut longest) = (0, 0);
    for line in text.lines().filter(|line| line.contains("solkv_service::shm") || line.contains("left out")) {
        lines = if line.contains("left out") { 0 } else { lines + 1 };
        longest = longest.max(lines);
    }
    assert!((1..=150).contains(&longest), "lines={longest}: {text}");
    assert!(service.terminate().success());
}
