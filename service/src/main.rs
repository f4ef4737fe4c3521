//! The `service` program: passes the arguments to the library and returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    solkv_service::cli::main(std::env::args_os().collect())
}
