//! The `bootstrap` program: passes the arguments to the library and returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    solkv_bootstrap::cli::main(std::env::args_os().collect())
}
