//! The `service` program: arguments in, exit code out. Everything else is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    service::cli::main(std::env::args_os().collect())
}
