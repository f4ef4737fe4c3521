//! `loadgen` as a program: the arguments that it refuses.

use std::process::Command;

#[test]
fn live_makes_no_store_where_there_is_none() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("typo");
    let output = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["live", "--engine", engines::default_engine().as_str(), "--events", "10", "--pairs", "10", "--dir"])
        .arg(&dir)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("bootstrap"), "{stderr}");
    assert!(!dir.exists() && output.stdout.is_empty(), "nothing is made and no table is printed");
}

#[test]
fn arguments_that_can_never_be_right_end_with_2() {
    for wrong in [
        "stream --pairs 0",
        "stream --close-share 3",
        "archive --out /nowhere --incremental-slots 3,0",
        "archive --out /nowhere --plain --without mints",
        "live --dir /nowhere --change-share 2",
        "live --dir /nowhere --state warm --no-wait",
        "query --target 127.0.0.1:1 --pairs 0",
        "query --target https://h --pairs 5",
        "query --target 127.0.0.1:1 --pairs 5 --negative-share 4",
        "query --target https://h:1 --pairs 5 --tls-cert c",
        "follow --address nowhere",
        "follow --address unix:///s --from 3",
        "transports --address nowhere --pairs 3",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_loadgen")).args(wrong.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_warm_start_that_could_not_be_warm_is_refused() {
    for (more, said) in
        [(&["--cap", "1GiB"][..], "without --cap"), (&["--", "--warm-up", "off"], "leave out --warm-up")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        let output = command.args(["live", "--dir", "/nowhere", "--state", "warm"]).args(more).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(said), "{stderr}");
    }
}
