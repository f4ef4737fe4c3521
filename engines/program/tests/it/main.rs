//! Programs whose standard error is closed, full, stalled or without a reader. Each program is this test's own binary, which
//! runs the function `program` alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::EnvFilter;

const ROLE: &str = "SOLKV_TEST_PROGRAM";

/// Time after which a program ends itself. Only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

/// Lines of the program that logs more than may wait.
const FLOOD: u64 = 60_000;

/// Lines that the program logs at one place, of which 50 are let through in an interval.
const REPEATED: u64 = 1000;

/// Not a test of its own: the tests run this function in a child process.
#[test]
fn program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    thread::spawn(|| {
        thread::sleep(HANG);
        std::process::abort();
    });
    let code = match role.as_str() {
        "panics" => {
            solkv_program::end_at_panics("tool", || false);
            thread::Builder::new().name("worker".to_owned()).spawn(|| panic!("on purpose")).unwrap();
            loop {
                thread::park();
            }
        }
        "catches" => {
            solkv_program::end_at_panics("tool", || thread::current().name() == Some("worker"));
            let worker = thread::Builder::new().name("worker".to_owned()).spawn(|| panic!("on purpose")).unwrap();
            assert!(worker.join().is_err());
            7
        }
        "fails" => {
            solkv_program::tell!("tool: the reason");
            5
        }
        "logs" => {
            solkv_program::log(EnvFilter::new("trace"), false).unwrap();
            (0..FLOOD).for_each(|n| tracing::debug!("a line of the flood, which has so many bytes that few fit: {n}"));
            solkv_program::say!("logged");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            (0..REPEATED).for_each(|n| tracing::warn!("a repeated line: {n}"));
            0
        }
        other => panic!("{other}"),
    };
    let code = solkv_program::end("tool", code);
    std::process::exit((0..=255).find(|n| code == std::process::ExitCode::from(*n)).unwrap().into());
}

fn start(role: &str, set: impl FnOnce(&mut Command) -> &mut Command) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--nocapture"]).env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::null());
    set(&mut command).spawn().unwrap()
}

/// Returns a pipe that is full. It stays full until somebody reads.
fn stalled() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    thread::spawn(move || filler.write_all(&vec![b'\n'; 1 << 21]));
    let is_full = || poll(&mut [PollFd::new(&writer, PollFlags::OUT)], Some(&Timespec::default())).unwrap() == 0;
    while !is_full() {
        thread::yield_now();
    }
    (reader, writer.into())
}

/// Runs a program with each kind of standard error that cannot be written, and checks its exit code.
fn with_each(role: &str, code: i32) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (_held, stalled) = stalled();
    let (reader, gone) = std::io::pipe().unwrap();
    drop(reader);
    for (name, stderr) in [("full", full.into()), ("stalled", stalled), ("gone", gone.into())] {
        let status = start(role, |command| command.stderr(stderr)).wait().unwrap();
        assert_eq!(status.code(), Some(code), "{role} {name}: {status}");
    }
    // SAFETY: the closure makes one system call and allocates nothing.
    let mut closed = start(role, |command| unsafe {
        command.pre_exec(|| {
            rustix::io::close(2);
            Ok(())
        })
    });
    let closed = closed.wait().unwrap();
    assert_eq!((closed.code(), closed.signal()), (Some(code), None), "{role} closed");
}

fn said(role: &str, code: i32) -> String {
    let output = start(role, |command| command.stderr(Stdio::piped())).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_panic_of_any_thread_ends_the_program_with_1() {
    let said = said("panics", 1);
    assert!(
        said.starts_with("tool: a thread panicked, which is a bug: thread=worker at=engines/program/tests/it/main.rs:"),
        "{said}"
    );
    assert!(said.contains("reason=\"on purpose\""), "{said}");
    with_each("panics", 1);
}

#[test]
fn a_panic_that_becomes_an_error_is_not_told() {
    assert_eq!(said("catches", 7), "");
}

#[test]
fn the_reason_of_an_end_does_not_hold_up_the_end() {
    assert_eq!(said("fails", 5), "tool: the reason\n");
    with_each("fails", 5);
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up_and_tells_what_it_lost() {
    let (reader, stderr) = stalled();
    let mut child = start("logs", |command| command.stderr(stderr).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(out.any(|line| line.unwrap() == "logged"), "the program waits for its log");
    let mut lines = BufReader::new(reader).lines().map(Result::unwrap).filter(|line| !line.is_empty());
    let (mut flood, mut lost) = (0, 0);
    while lost == 0 {
        let line = lines.next().expect("the program ends, and tells of no loss");
        flood += u64::from(line.contains("of the flood"));
        let told = line.split_once("standard error could not be written lost=");
        lost = told.map_or(0, |(_, lost)| lost.parse().unwrap());
    }
    assert_eq!((flood + lost, flood > 0), (FLOOD, true), "lost={lost}");
    drop(child.stdin.take());
    let (mut logged, mut left_out) = (0, 0);
    for line in lines {
        logged += u64::from(line.contains("a repeated line"));
        left_out += line.split_once("left_out=").map_or(0, |(_, count)| count.parse::<u64>().unwrap());
    }
    // An interval of the limit may end in between, and so may a second one.
    assert_eq!((logged + left_out, logged <= 150), (REPEATED, true), "logged={logged}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    with_each("logs", 0);
}
