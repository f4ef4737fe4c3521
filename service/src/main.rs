//! The `service` program: passes the arguments to the library and returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::cli::main(std::env::args_os().collect())
}
