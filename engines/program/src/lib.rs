//! Parts that all programs share: names, the command line's shell, lines on standard output and standard error, the log, the end.
//!
//! Owns: output that cannot be written, because its disk is full, its reader has gone, or its reader has stalled. Must
//! not: panic over such output, or wait for it longer than [`LIMIT`], except for standard output. Threads: `log`, which
//! writes standard error.
//!
//! | line | goes to | if it cannot be written |
//! |---|---|---|
//! | [`say!`] | standard output | [`end`] reports the first failure, except that a reader has gone |
//! | [`tell!`] | standard error | waits for [`LIMIT`] at most |
//! | the log ([`log`]) | standard error | never waits; lost lines are counted, and the log says so later |

mod end;
mod limit;
mod log;
mod name;
mod out;
mod shell;
mod stderr;

pub use end::{end, end_at_panics};
pub use log::log;
pub use name::{called, program_name, sibling_program};
pub use out::{is_output_lost, print};
pub use shell::{Shell, parse, with_command};
pub use stderr::{LIMIT, tell};
