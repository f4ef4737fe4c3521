//! Passes the built commit to the program for its results, because a figure without its commit cannot be reproduced.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Outside of a checkout, as in a source package, there is no commit to name.
    let commit = git(&["describe", "--always", "--dirty", "--exclude", "*"]).unwrap_or_else(|| "no commit".to_owned());
    println!("cargo:rustc-env=SOLKV_COMMIT={commit}");
    for file in ["HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}
