//! Only the right store is served: not one created by accident, half loaded, or with other content. A setting that can
//! never work makes the program exit with 2 before it touches the store, also with `check-config`.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use conformance::files::contents;
use engine_api::{Checkpoint, Durability};
use engines::{EngineKind, EngineOptions, Load, LoadState, LoadTerm, OpenMode, Terms};
use solana::{ChainCheckpoint, MapPhase};

use crate::audit;
use crate::support::{
    BASE_SLOT, Service, columns, digest, end, free_address, load, name_extract, secret, stream, wait_for,
};

const NO_STREAM: &str = "http://127.0.0.1:1";

fn service(command: &str, dir: &Path, more: &[&str]) -> Output {
    let mut service = Command::new(env!("CARGO_BIN_EXE_service"));
    service.args([command, "--geyser", NO_STREAM, "--dir"]).arg(dir);
    for option in ["--listen", "--metrics"].into_iter().filter(|option| !more.contains(option)) {
        service.args([option, &free_address("127.0.0.1")]);
    }
    service.args(more);
    // Without a store or an extraction the path is the mistake that is named.
    if dir.exists() {
        name_extract(&mut service, dir);
    }
    service.output().unwrap()
}

/// Returns the message of `run` and `check-config`, both of which must exit with 2.
#[track_caller]
fn refused(dir: &Path, more: &[&str]) -> String {
    let mut said = Vec::new();
    for command in ["run", "check-config"] {
        let output = service(command, dir, more);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command} {more:?}: {text}");
        said.push(text);
    }
    assert!(said[0].ends_with(&said[1]), "the log, and the same words: {said:?}");
    said.remove(1)
}

fn loaded(dir: &Path, options: &EngineOptions) {
    let (stream, workload) = stream("--pairs 100 --events 1");
    load(dir, options, &workload);
    stream.stop().unwrap();
}

#[test]
fn a_missing_store_is_refused_unless_an_empty_one_is_wanted() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        let said = refused(&dir, &[]);
        for part in ["there is no store", "bootstrap", "--create-empty", dir.to_str().unwrap()] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!dir.exists(), "a refusal makes nothing");
        assert!(service("check-config", &dir, &["--create-empty", "--extract", "token-mint"]).status.success());
        let mut running = Service::start(&dir, &options, NO_STREAM, &[]);
        wait_for("its first page", || running.get("/healthz"));
        running.kill();
        assert!(service("check-config", &dir, &[]).status.success(), "it is there now");
    }
}

#[test]
fn a_store_that_is_half_loaded_is_never_served() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let terms = Terms { load: LoadTerm::Loading("00ff".to_owned()), ..Terms::default() };
    engines::open_on(&dir, &options, OpenMode::Create, &terms).unwrap().close().unwrap();
    let before = contents(&dir);
    for more in [&[][..], &["--create-empty"]] {
        let said = refused(&dir, more);
        assert!(said.contains("has not finished") && said.contains("bootstrap --resume"), "{said}");
    }
    assert_eq!(contents(&dir), before);
    engines::mark_load(&dir, Load::new(LoadState::Complete, "00ff"), 0).unwrap();
    assert!(service("check-config", &dir, &[]).status.success());
}

#[test]
fn damage_that_a_start_would_meet_is_found_before_it() {
    for options in columns().into_iter().filter(|options| options.engine == EngineKind::Strata) {
        for name in ["MANIFEST", ".seg"] {
            let temp = tempfile::tempdir().unwrap();
            let dir = temp.path().join("store");
            loaded(&dir, &options);
            let engine = engines::open(&dir, &options, OpenMode::Existing).unwrap();
            engine.settle().unwrap();
            engine.close().unwrap();
            let mut files = fs::read_dir(dir.join("data")).unwrap().map(|entry| entry.unwrap().path());
            let file = files.find(|path| path.to_str().unwrap().ends_with(name)).unwrap();
            fs::File::options().write(true).open(&file).unwrap().set_len(100).unwrap();
            let said = refused(&dir, &[]);
            assert!(said.contains("bootstrap repair") && said.contains(dir.to_str().unwrap()), "{said}");
        }
    }
}

/// strata takes the newest file of its log for one that a crash cut short. The feed's log knows better.
#[test]
fn a_store_that_has_lost_commits_is_refused_until_its_feed_is_given_up() {
    let Some(options) = columns().into_iter().find(|options| options.engine == EngineKind::Strata) else { return };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let (stream, workload) =
        stream("--pairs 2000 --events 20000 --events-per-slot 200 --rate 10000 --replay-slots 100000");
    load(&dir, &options, &workload);
    let engine = engines::open(&dir, &options, OpenMode::Existing).unwrap();
    engine.settle().unwrap();
    engine.close().unwrap();
    let geyser = format!("http://{}", stream.address());
    let mut running = Service::start(&dir, &options, &geyser, &[]);
    running.wait_for_slot(BASE_SLOT + 20);
    running.kill();
    for file in fs::read_dir(dir.join("data")).unwrap().map(|entry| entry.unwrap().path()) {
        if file.to_str().unwrap().ends_with(".wal") {
            fs::remove_file(file).unwrap();
        }
    }
    let before = contents(&dir.join("data"));
    let said = refused(&dir, &[]);
    for part in ["the store has lost changes: store_seq=2000 committed_seq=", dir.join("feed").to_str().unwrap()] {
        assert!(said.contains(part), "{said}");
    }
    let (copy, archive) = (temp.path().join("copy"), audit::archive(audit::FULL));
    for args in [["snapshot", "--to", audit::str(&copy)], ["audit", "--archive", audit::str(&archive)]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        let output = command.args(args).arg("--dir").arg(&dir).output().unwrap();
        let said = audit::text(&output);
        assert!(output.status.code() == Some(2) && said.contains("the store has lost changes: "), "{args:?}: {said}");
    }
    assert!(!copy.exists());
    assert_eq!(contents(&dir.join("data")), before, "the missing file can still be put back");
    fs::remove_dir_all(dir.join("feed")).unwrap();
    let mut running = Service::start(&dir, &options, &geyser, &[]);
    let end = end(&stream);
    running.wait_for_slot(end.slot);
    assert!(running.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest, "the stream brings the lost changes again");
}

#[test]
fn a_store_whose_checkpoint_does_not_say_that_the_map_is_whole_is_never_served() {
    let options = columns().remove(0);
    let other = Checkpoint::new(100, b"of another program");
    let healing = MapPhase::Healing { to_slot: 12, next_key: [7; 32] };
    let of_phase = |phase| ChainCheckpoint { seq: 100, slot: Some(9), phase, ..ChainCheckpoint::default() }.write();
    let mut newer = of_phase(MapPhase::Ready).bytes.to_vec();
    newer[4] += 1;
    for (checkpoint, why) in [
        (other, "not a chain's checkpoint: bytes=18"),
        (Checkpoint::new(100, &newer), "written by a newer solkv: version=2"),
        (of_phase(MapPhase::Loading), "phase=loading"),
        (of_phase(healing), "phase=healing"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        loaded(&dir, &options);
        let engine = engines::open(&dir, &options, OpenMode::Existing).unwrap();
        engine.begin().unwrap().commit(&checkpoint, Durability::Synced).unwrap();
        engine.close().unwrap();
        let said = refused(&dir, &[]);
        assert!(said.contains(why), "{said}");
        let engine = engines::open(&dir, &options, OpenMode::Existing).unwrap();
        assert_eq!(engine.checkpoint().unwrap(), checkpoint, "it stays as it is");
    }
}

#[test]
fn a_store_keeps_its_extract_and_its_cluster() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    loaded(&dir, &options);
    assert_eq!(engines::inspect(&dir).unwrap().unwrap().holds.extract, None, "a load without a word");
    let serve = |more: &[&str]| {
        let mut running = Service::start(&dir, &options, NO_STREAM, more);
        wait_for("its first page", || running.get("/healthz"));
        running.kill();
    };
    serve(&["--extract", "token-owner"]);
    let holds = engines::inspect(&dir).unwrap().unwrap().holds;
    assert_eq!((holds.extract.as_deref(), holds.cluster.as_deref()), (Some("token-owner"), None));
    assert_eq!(holds.programs.map(|programs| programs.len()), Some(2));
    serve(&["--cluster", "mainnet"]);
    let before = contents(&dir);
    for (more, says) in [
        (["--extract", "account-owner"], "extract=token-owner, asked for extract=account-owner"),
        (["--extract", "token-mint"], "extract=token-owner, asked for extract=token-mint"),
        (["--cluster", "devnet"], "cluster=mainnet, asked for cluster=devnet"),
    ] {
        let said = refused(&dir, &more);
        assert!(said.contains(says) && said.contains(dir.to_str().unwrap()), "{said}");
    }
    assert_eq!(contents(&dir), before, "nothing is written");
    let shown = service("check-config", &dir, &[]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains("extract = \"token-owner\""), "the store's own");
}

#[test]
fn a_store_without_an_extract_is_not_served_until_one_is_named() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        loaded(&dir, &options);
        let before = contents(&dir);
        for command in ["run", "check-config"] {
            let mut service = Command::new(env!("CARGO_BIN_EXE_service"));
            service.args([command, "--geyser", NO_STREAM, "--metrics", &free_address("127.0.0.1"), "--dir"]).arg(&dir);
            let output = service.args(["--listen", &free_address("127.0.0.1")]).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command}: {said}");
            for part in
                ["--extract NAME", "account-owner (the program", "token-owner (the wallet", "token-mint (the mint"]
            {
                assert!(said.contains(part), "{said}");
            }
        }
        assert_eq!(contents(&dir), before, "nothing is written");
        let serve = |more: &[&str]| {
            let mut running = Service::start(&dir, &options, NO_STREAM, more);
            wait_for("its first page", || running.get("/healthz"));
            running.kill();
            engines::inspect(&dir).unwrap().unwrap().holds.extract
        };
        assert_eq!(serve(&["--extract", "token-owner"]).as_deref(), Some("token-owner"));
        assert_eq!(serve(&[]).as_deref(), Some("token-owner"), "later starts need none");
    }
}

#[test]
fn the_engine_is_the_directorys() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        loaded(&dir, &options);
        let shown = String::from_utf8(service("check-config", &dir, &[]).stdout).unwrap();
        assert!(shown.contains(&format!("engine = \"{}\"", options.engine)), "{shown}");
        let before = contents(&dir);
        for other in EngineKind::ALL.into_iter().filter(|other| *other != options.engine) {
            let said = refused(&dir, &["--engine", other.as_str()]);
            let says = if engines::compiled().contains(&other) { "directory holds" } else { "not in this build" };
            assert!(said.contains(says), "{said}");
        }
        assert_eq!(contents(&dir), before);
    }
}

#[test]
fn what_can_never_work_ends_with_2_before_the_store_is_touched() {
    let options = columns().pop().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    loaded(&dir, &options);
    let file = |name: &str, text: &str| {
        let path = temp.path().join(name);
        secret(&path, text);
        path.to_str().unwrap().to_owned()
    };
    let (empty, junk) = (file("empty", ""), file("junk", "junk"));
    let open = temp.path().join("open").to_str().unwrap().to_owned();
    fs::write(&open, "token\n").unwrap();
    let gone = temp.path().join("gone").to_str().unwrap().to_owned();
    let before = contents(&dir);
    for (more, says) in [
        (vec!["--x-token-file", &gone], "cannot read file="),
        (vec!["--x-token-file", &empty], "is empty"),
        (vec!["--x-token-file", &open], "chmod o-r"),
        (vec!["--bearer-token-file", &gone], "cannot read file="),
        (vec!["--listen", "127.0.0.1"], "listen=\"127.0.0.1\": expected HOST:PORT"),
        (vec!["--metrics", "127.0.0.1:port"], "metrics=\"127.0.0.1:port\": expected HOST:PORT"),
        (vec!["--listen", "0.0.0.0:7400"], "--insecure"),
        (vec!["--listen", "127.0.0.1:7400", "--metrics", "127.0.0.1:7400"], "cannot share a port"),
        (vec!["--tls-cert", &junk], "tls_cert without tls_key"),
        (vec!["--tls-cert", &junk, "--tls-key", &junk], "no certificate in it"),
        (vec!["--tls-cert", &gone, "--tls-key", &junk], "cannot read file="),
        (vec!["--memory", "1KB"], "memory is too small"),
    ] {
        let said = refused(&dir, &more);
        assert!(said.contains(says), "{more:?}: {said}");
    }
    assert_eq!(contents(&dir), before);
}

#[test]
fn a_port_in_use_may_pass_and_is_named_by_its_option() {
    let options = columns().pop().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    loaded(&dir, &options);
    let before = contents(&dir);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for option in ["listen", "metrics"] {
        let output = service("run", &dir, &[&format!("--{option}")[..], &address]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("cannot listen on {option}={address}")), "{text}");
    }
    assert_eq!(contents(&dir), before, "neither the store nor its feed");
}

#[test]
fn info_of_a_store_that_is_served_is_the_services() {
    let bootstrap = Path::new(env!("CARGO_BIN_EXE_service")).with_file_name("bootstrap");
    assert!(bootstrap.is_file(), "build it first: cargo build -p solkv-bootstrap");
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        loaded(&dir, &options);
        let info = |more: &[&str]| {
            let output = Command::new(&bootstrap).args(["info", "--dir"]).arg(&dir).args(more).output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            (output.status.success(), text)
        };
        let (ok, closed) = info(&[]);
        assert!(ok && closed.contains("open_in=none") && closed.contains("checkpoint seq=100 slot=999"), "{closed}");
        let mut running = Service::start(&dir, &options, NO_STREAM, &[]);
        // Reading the store at the same time would keep a service from opening it, so wait for it first.
        wait_for("its first page", || running.get("/healthz"));
        let (_, served) =
            wait_for("the admin socket", || Some(info(&[])).filter(|(_, text)| text.contains("open_in=service")));
        let line = |text: &str, start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        for start in ["engine=", "checkpoint "] {
            assert_eq!(line(&served, start), line(&closed, start));
        }
        assert!(served.contains("holds extract=account-owner programs=all cluster=unknown"), "{served}");
        assert!(info(&["--json"]).1.contains("\"open_in\": \"service\""));
        let (ok, digest) = info(&["--digest"]);
        assert!(!ok && digest.contains("snapshot"), "{digest}");
        assert!(running.ended().is_none());
    }
}

#[test]
fn an_invalid_log_filter_is_found_by_check_config_too() {
    for command in ["run", "check-config"] {
        let mut service = Command::new(env!("CARGO_BIN_EXE_service"));
        service.args([command, "--create-empty", "--extract", "token-mint", "--geyser", NO_STREAM, "--dir", "/store"]);
        let output = service.env("RUST_LOG", "solkv_service=loud").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("RUST_LOG=solkv_service=loud"), "{command}: {said}");
    }
}

/// All files of a loaded store are gone, as in a mount point with nothing mounted on it.
#[test]
fn a_store_whose_files_are_gone_is_never_served() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        loaded(&dir, &options);
        fs::remove_dir_all(dir.join("data")).unwrap();
        fs::create_dir(dir.join("data")).unwrap();
        let before = contents(&dir);
        for more in [&[][..], &["--create-empty"]] {
            let said = refused(&dir, more);
            assert!(said.contains("files are gone") && said.contains("restore a snapshot"), "{said}");
        }
        assert_eq!(contents(&dir), before, "nothing is made");
        let bare = fs::read_dir(dir.join("data")).unwrap().count();
        assert_eq!(bare, 0, "no new store is made in its place");
    }
}

#[test]
fn settings_that_can_never_work_are_refused_before_the_store_is_touched() {
    let options = columns().pop().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    loaded(&dir, &options);
    let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let (lock, fifo) = (dir.join("LOCK").to_str().unwrap().to_owned(), path("fifo"));
    assert!(Command::new("mkfifo").args(["-m", "600", &fifo]).status().unwrap().success());
    let before = contents(&dir);
    for (more, says) in [
        (&["--uds", &path(&"x".repeat(108))][..], "max_bytes=107"),
        (&["--uds", &lock], "store's own LOCK"),
        (&["--uds", &path("a"), "--shm", &path("a")], "uds and shm are the same path"),
        (&["--shm", &path("missing/a")], "no such directory"),
        (&["--x-token-file", &fifo], "not a regular file"),
        (&["--bearer-token-file", &fifo], "not a regular file"),
        (&["--cluster", "main\nnet"], "cluster="),
        (&["--gap-timeout", "0s"], "gap_timeout=0s"),
    ] {
        let said = refused(&dir, more);
        assert!(said.contains(says), "{more:?}: {said}");
    }
    assert_eq!(contents(&dir), before, "nothing is written");
    let shown = service("check-config", &dir, &["--memory", "900TiB"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("# warning: memory=900.0 TiB is more than this process may use, which is"), "{shown}");
    fs::remove_file(dir.join("LOCK")).unwrap();
    fs::create_dir(dir.join("LOCK")).unwrap();
    assert!(refused(&dir, &[]).contains("cannot open the store's lock"));
}
