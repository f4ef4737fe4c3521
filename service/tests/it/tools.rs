//! `bootstrap` and `loadgen` with this service, as their users run them: one after the other, and repeatedly.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use workload::Pairs;

use crate::secure::Ca;
use crate::support::{Service, columns, end, load, secret, stream, wait_for};

const TOKEN: &str = "tools-token-0123456789";

/// Returns the path of a program in the service's build folder.
pub(crate) fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_service")).with_file_name(name);
    assert!(path.is_file(), "build it first: cargo build -p {name}");
    path
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_live_run_can_be_repeated_on_one_store() {
    // On a disk, because a tmpfs holds its files in the page cache for good.
    let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = temp.path().join("store");
    let engine = columns().remove(0).engine.as_str();
    let load = ["--engine", engine, "--dir", str(&store), "--pairs", "5000", "--seed", "3"];
    let output = Command::new(program("bootstrap")).args(load).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report = temp.path().join("live.json");
    let run = |seed: &str, change_share: &str, events: &str| {
        let mut command = Command::new(program("loadgen"));
        command.args(["live", "--dir", str(&store), "--pairs", "5000", "--events", events, "--events-per-slot", "500"]);
        command
            .args(["--seed", seed, "--change-share", change_share, "--verify", "--cap", "1GiB", "--report"])
            .arg(&report);
        command.args(["--", "--durability", "buffered"]).output().unwrap()
    };
    // The last slot of each run is made whole.
    let runs = [("4100", 1008, "4,500"), ("1000", 1010, "1,000"), ("2900", 1016, "3,000")];
    for (turn, (events, slot, applied)) in runs.into_iter().enumerate() {
        let output = run("3", "0.3", events);
        let said = said(&output);
        assert!(output.status.success() && said.contains("verified: the directory holds"), "{said}");
        assert!(said.contains(&format!("last slot {slot}")), "{said}");
        assert!(said.contains(&format!("while {applied} events of a live stream were applied")), "{said}");
        // At the default depth single gets have rows of their own beside the batches.
        for row in ["Positive read", "Write", "Commit", "Commit / item", "get_many"] {
            assert!(turn > 0 || said.contains(&format!("\n{row}\n")), "{row}: {said}");
        }
        assert!(!said.contains("read / item"), "{said}");
        assert_eq!(said.contains("the stream continues from there"), turn > 0, "{said}");
        // The store's pages are not cached at the start: a process that read them before would be charged for them.
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        let start = |name: &str| report["start"][name].as_u64().unwrap();
        assert!(start("page_cache_bytes") * 20 <= start("cacheable_bytes"), "{}", report["start"]);
    }
    for (seed, share, way_out) in [("4", "0.3", "give the --seed"), ("3", "0.5", "the options of the runs before")] {
        let output = run(seed, share, "1000");
        assert!(!output.status.success() && said(&output).contains(way_out), "{}", said(&output));
    }
}

#[test]
fn a_service_with_tls_and_tokens_can_be_asked_and_followed() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let (cert, key) = ours.valid().write(temp.path());
    let path = |name: &str, text: &str| {
        let path = temp.path().join(name);
        secret(&path, text);
        path
    };
    let (ca, other_ca, token) = (path("ca", &ours.pem), path("other-ca", &theirs.pem), path("token", TOKEN));
    let mut service =
        Service::start_on("127.0.0.1", &temp.path().join("store"), &options, "http://127.0.0.1:1", |command| {
            let command = command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
            command.arg("--tls-client-ca").arg(&ca).arg("--bearer-token-file").arg(&token)
        });
    wait_for("its first page", || service.get("/healthz"));
    let address = format!("https://{}", service.listen);
    let query = ["query", "--target", &address, "--pairs", "100", "--negative-share", "1", "--time", "100ms"];
    let follow = ["follow", "--address", &address, "--time", "100ms"];
    let transports = ["transports", "--address", &address, "--pairs", "1", "--time", "1ms", "--repeats", "1"];
    let whole = ["--tls-ca", str(&ca), "--tls-cert", str(&cert), "--tls-key", str(&key), "--tls-name", "localhost"];
    let run = |command: &[&str], access: &[&str]| {
        Command::new(program("loadgen")).args(command).args(access).output().unwrap()
    };
    let with_token = [&whole[..], &["--bearer-token-file", str(&token)]].concat();
    for command in [&query[..], &follow] {
        let output = run(command, &with_token);
        assert!(output.status.success(), "{command:?}: {}", said(&output));
        let mut foreign = with_token.clone();
        foreign[1] = str(&other_ca);
        // Without a token, without a certificate, and with another CA.
        for access in [&whole[..], &[&with_token[..2], &with_token[6..]].concat(), &foreign] {
            let output = run(command, access);
            assert!(!output.status.success(), "{command:?} {access:?}: {}", said(&output));
            assert!(!said(&output).contains(TOKEN), "{}", said(&output));
        }
    }
    // The one pair is absent, which only a client with access can learn.
    let output = run(&transports, &with_token);
    assert!(said(&output).contains("wrong answer"), "{}", said(&output));
    assert!(service.terminate().success());
}

/// `loadgen get` as a script uses it: lines for keys that the map has and for others, and an exit code for each case.
#[test]
fn the_exit_code_of_get_says_whether_every_key_is_there() {
    let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (stream, workload) = stream("--pairs 100 --events 1000 --events-per-slot 100 --unknown-share 0");
    let (dir, options) = (temp.path().join("store"), columns().remove(0));
    load(&dir, &options, &workload);
    let mut service = Service::start(&dir, &options, &format!("http://{}", stream.address()), &[]);
    service.wait_for_slot(end(&stream).slot);
    let there = bs58::encode(Pairs::new(workload.seed).key(5)).into_string();
    let absent = bs58::encode([250; 32]).into_string();
    let get = |address: &str, keys: &[&str]| {
        let mut command = Command::new(program("loadgen"));
        command.args(["get", "--address", address]).args(keys).output().unwrap()
    };
    let address = format!("http://{}", service.listen);
    let found = get(&address, &[&there]);
    let line = String::from_utf8(found.stdout.clone()).unwrap();
    assert_eq!(found.status.code(), Some(0), "{}", said(&found));
    assert!(line.starts_with(&format!("{there} ")) && !line.contains(" -"), "{line}");
    let mixed = get(&address, &[&absent, &there]);
    assert_eq!(mixed.status.code(), Some(1), "{}", said(&mixed));
    assert_eq!(String::from_utf8_lossy(&mixed.stdout), format!("{absent} -\n{line}"));
    assert!(said(&mixed).contains("absent=1 asked=2"), "{}", said(&mixed));
    assert_eq!(get(&address, &["So111"]).status.code(), Some(2), "no key");
    assert!(service.terminate().success());
    let gone = get(&address, &[&there]);
    assert_eq!((gone.status.code(), gone.stdout), (Some(1), vec![]), "no service");
}
