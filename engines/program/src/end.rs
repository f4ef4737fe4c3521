//! The end of a program: by its main function, or by a panic.
//!
//! Owns: the last line and the exit code. Must not: wait for standard error longer than [`LIMIT`](crate::LIMIT). Runs
//! on the main thread; a panic's report runs on the thread that panics.
//!
//! A panic of any thread ends the program with exit code 1, and the last line names thread and place. redb's panics
//! over damaged pages are the one exception: its engine returns them as errors.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::process::ExitCode;
use std::thread;

use crate::limit::LIMITER;
use crate::{out, stderr, tell};

/// Exit code of an error.
const ERROR: u8 = 1;

/// Ends the main function of the program `name` with `code`: waits for the log's last lines, and reports text that
/// could not be written to standard output, which is an error.
pub fn end(name: &str, code: u8) -> ExitCode {
    LIMITER.tell_left_out();
    let code = last_code(name, code);
    stderr::wait();
    ExitCode::from(code)
}

/// Reports text that could not be written to standard output. Returns the exit code of a program that would end with
/// `code` otherwise.
pub(crate) fn last_code(name: &str, code: u8) -> u8 {
    let Some(error) = out::failure() else { return code };
    tell!("{name}: cannot write to standard output: reason={error}");
    code.max(ERROR)
}

/// Has a panic of any thread end the program `name` with exit code 1, except where `is_caught` says that its thread
/// turns the panic into an error. A program that goes on without one of its threads would answer late, wrongly or never.
pub fn end_at_panics(name: &str, is_caught: fn() -> bool) {
    let name = name.to_owned();
    panic::set_hook(Box::new(move |panic| {
        if is_caught() {
            return;
        }
        let backtrace = Backtrace::capture();
        let shown =
            if backtrace.status() == BacktraceStatus::Captured { format!("\n{backtrace}") } else { String::new() };
        let place = panic.location().map_or_else(String::new, ToString::to_string);
        tell!(
            "{name}: a thread panicked, which is a bug: thread={} at={place} reason={:?}{shown}",
            thread::current().name().unwrap_or("unnamed"),
            panic.payload_as_str().unwrap_or("unknown"),
        );
        // SAFETY: the function takes a number and does not return. Exit handlers are left out, because they would run
        // while other threads use what they destroy.
        unsafe { libc::_exit(ERROR.into()) }
    }));
}
