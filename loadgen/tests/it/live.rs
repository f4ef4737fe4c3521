//! `loadgen live` as a program: what it refuses.

use std::process::Command;

#[test]
fn live_makes_no_store_where_there_is_none() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("typo");
    let output = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["live", "--engine", "redb", "--events", "10", "--pairs", "10", "--dir"])
        .arg(&dir)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("bootstrap"), "{stderr}");
    assert!(!dir.exists() && output.stdout.is_empty(), "nothing is made and no table is printed");
}
