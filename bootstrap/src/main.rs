//! The `bootstrap` program: arguments in, exit code out. Everything else is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    bootstrap::cli::main(std::env::args_os().collect())
}
