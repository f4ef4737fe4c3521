//! Snapshots of a running service, and stores restored from them that catch up with the stream.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use engine_api::Durability;
use engines::checked::{self, Found};
use engines::{EngineOptions, Load, LoadState, Loaded};
use proto::v1::SubscribeRequest;
use proto::v1::feed_client::FeedClient;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use solana::{ChainCheckpoint, MapPhase};

use crate::support::{BASE_SLOT, Service, client_runtime, columns, digest, end, load, stream, wait_for};

/// Three seconds of slots, all of them kept for replay.
const LINE: &str = "--pairs 5000 --events 60000 --events-per-slot 400 --rate 20000 --change-share 0.3 \
                    --unknown-share 0.1 --close-share 0.05 --replay-slots 100000";

fn service(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_service")).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    let output = service(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

#[track_caller]
fn fails(args: &[&str]) -> String {
    ends_with(1, args)
}

/// Runs a command that will fail again, until somebody changes something.
#[track_caller]
fn is_refused(args: &[&str]) -> String {
    ends_with(2, args)
}

#[track_caller]
fn ends_with(code: i32, args: &[&str]) -> String {
    let output = service(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
    text(&output)
}

fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the value of `name=` in an output.
fn field<'t>(text: &'t str, name: &str) -> &'t str {
    let found = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {name}: {text}"))
}

/// Returns the feed's id and the next sequence number.
fn feed(service: &Service) -> (u64, u64) {
    let listen = service.listen.clone();
    client_runtime().block_on(async {
        let mut client = FeedClient::connect(format!("http://{listen}")).await.unwrap();
        let start = Some(Start::FromNow(proto::v1::FromNow {}));
        let request = SubscribeRequest { start, ..Default::default() };
        let mut answers = client.subscribe(request).await.unwrap().into_inner();
        match answers.message().await.unwrap().unwrap().kind {
            Some(Kind::Started(started)) => (started.feed_id, started.next_seq),
            other => panic!("not the beginning: {other:?}"),
        }
    })
}

#[test]
fn a_snapshot_of_a_running_service_is_restored_and_catches_up() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let [dir, copy, again] = ["store", "copy", "again"].map(|name| temp.path().join(name));
        let (stream, workload) = stream(LINE);
        load(&dir, &options, &workload);
        let geyser = format!("http://{}", stream.address());
        let mut running = Service::start(&dir, &options, &geyser, &[]);
        running.wait_for_slot(BASE_SLOT + 20);
        let made = ok(&["snapshot", "--dir", str(&dir), "--to", str(&copy), "--digest"]);
        assert!(made.contains("made_by=\"service\"") && made.contains("digest="), "{made}");
        let slot: u64 = field(&made, "slot").parse().unwrap();
        assert_eq!(running.metric("solkv_snapshots_total{result=\"made\"}"), Some(1.0));
        let before = feed(&running).0;
        let end = end(&stream);
        assert!((BASE_SLOT + 20..end.slot).contains(&slot), "in the middle of the stream: {made}");
        running.wait_for_slot(end.slot);
        assert!(running.terminate().success());
        assert_eq!(digest(&dir, &options), end.digest, "{options:?}");

        fs::create_dir(&again).unwrap();
        let restored = ok(&["restore", "--from", str(&copy), "--dir", str(&again), "--verify"]);
        assert!(restored.contains("equal to the one kept with the snapshot"), "{restored}");
        for name in ["slot", "seq", "digest"] {
            assert_eq!(field(&restored, name), field(&made, name), "{restored}");
        }
        let mut caught_up = Service::start(&again, &options, &geyser, &[]);
        caught_up.wait_for_slot(end.slot);
        assert_ne!(feed(&caught_up).0, before, "a restored store begins a new feed");
        assert!(caught_up.terminate().success());
        assert_eq!(digest(&again, &options), end.digest, "{options:?}");
        // The restored store shares files with the snapshot, and its later writes do not change them.
        let still = ok(&["restore", "--from", str(&copy), "--dir", str(&temp.path().join("third")), "--verify"]);
        assert_eq!(field(&still, "digest"), field(&made, "digest"));
        stream.stop().unwrap();
    }
}

/// SIGKILL as soon as the copy's directory exists: either the snapshot's name has a whole snapshot, or nothing has that
/// name.
#[test]
fn a_kill_leaves_a_whole_snapshot_or_none() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let [dir, copy, partial] = ["store", "copy", "copy.partial"].map(|name| temp.path().join(name));
        let (stream, workload) = stream("--pairs 200000 --events 10");
        load(&dir, &options, &workload);
        stream.stop().unwrap();
        let running = Service::start(&dir, &options, "http://127.0.0.1:1", &[]);
        wait_for("the admin socket", || dir.join("admin.sock").exists().then_some(()));
        let asked = Command::new(env!("CARGO_BIN_EXE_service"))
            .args(["snapshot", "--dir", str(&dir), "--to", str(&copy)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        wait_for("the copy's beginning", || (partial.exists() || copy.exists()).then_some(()));
        running.kill();
        let answered = asked.unwrap().wait().unwrap();
        assert!(copy.exists() || !answered.success(), "{options:?}");
        if copy.exists() {
            assert_eq!(digest(&copy, &options), digest(&dir, &options), "{options:?}");
        } else if partial.exists() {
            let again = ok(&["snapshot", "--dir", str(&dir), "--to", str(&copy)]);
            assert!(again.contains("was cut short and is begun anew: removed="), "{again}");
            assert!(!partial.exists());
        }
    }
}

/// The rest of a killed copy is made by hand, because a kill does not leave one in each run.
#[test]
fn a_copy_that_was_cut_short_is_begun_anew_by_every_command_that_copies() {
    let temp = tempfile::tempdir().unwrap();
    let [dir, copy, again] = ["store", "copy", "again"].map(|name| temp.path().join(name));
    let options = stored(&dir);
    let cut_short = |to: &Path| {
        let partial = to.with_extension("partial");
        fs::create_dir_all(partial.join("data")).unwrap();
        fs::write(partial.join("LOCK"), "4194305\n").unwrap();
        partial
    };
    let partial = cut_short(&copy);
    let mut running = Service::start(&dir, &options, "http://127.0.0.1:1", &[]);
    wait_for("the admin socket", || dir.join("admin.sock").exists().then_some(()));
    wait_for("an answer", || running.get("/healthz"));
    ok(&["snapshot", "--dir", str(&dir), "--to", str(&copy)]);
    assert!(running.log().contains("an earlier snapshot was cut short and is begun anew"), "{}", running.log());
    assert!(running.terminate().success() && !partial.exists());
    for args in
        [["snapshot", "--dir", str(&dir), "--to", str(&again)], ["restore", "--from", str(&copy), "--dir", str(&again)]]
    {
        let partial = cut_short(&again);
        let other = fs::File::open(&partial).unwrap();
        other.try_lock().unwrap();
        assert!(fails(&args).contains("is under way"), "{args:?}");
        other.unlock().unwrap();
        let said = ok(&args);
        assert!(said.contains("was cut short and is begun anew: removed=") && !partial.exists(), "{said}");
        fs::remove_dir_all(&again).unwrap();
    }
}

/// Loads a store that no service has open.
fn stored(dir: &Path) -> EngineOptions {
    let options = columns().pop().unwrap();
    let (stream, workload) = stream("--pairs 3000 --events 10");
    load(dir, &options, &workload);
    stream.stop().unwrap();
    options
}

#[test]
fn what_would_be_overwritten_or_is_damaged_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let [dir, copy, again] = ["store", "copy", "again"].map(|name| temp.path().join(name));
    let snapshot = ["snapshot", "--dir", str(&dir), "--to", str(&copy), "--digest"];
    let restore = ["restore", "--from", str(&copy), "--dir", str(&dir)];
    for args in [&snapshot[..], &restore] {
        assert!(is_refused(args).contains("there is no store"));
        assert!(is_refused(&[args, &["--memory", "much"]].concat()).contains("not a size"));
    }
    stored(&dir);
    let offline = ok(&snapshot);
    assert!(offline.contains("made_by=\"this program\""), "{offline}");
    for args in [&snapshot[..], &restore] {
        let taken = is_refused(args);
        assert!(taken.contains("missing or empty directory"), "{taken}");
    }

    let record = copy.join("snapshot.toml");
    let kept = fs::read_to_string(&record).unwrap();
    fs::write(&record, kept.replace("3000:", "2999:")).unwrap();
    let differs = fails(&["restore", "--from", str(&copy), "--dir", str(&again), "--verify"]);
    assert!(differs.contains("differs from its snapshot"), "{differs}");
    fs::write(&record, "digest = \"3000\"\n").unwrap();
    let damaged = fails(&["restore", "--from", str(&copy), "--dir", str(&temp.path().join("other")), "--verify"]);
    assert!(damaged.contains("record is damaged"), "{damaged}");
    fs::remove_file(&record).unwrap();
    let scanned = ok(&["restore", "--from", str(&copy), "--dir", str(&temp.path().join("third")), "--verify"]);
    assert!(scanned.contains("equal to the one of the snapshot as it is now"), "{scanned}");
}

/// A copy has the values of the contradicted chain, too.
#[test]
fn a_contradiction_goes_along_with_the_copies() {
    let temp = tempfile::tempdir().unwrap();
    let [dir, copy, again] = ["store", "copy", "again"].map(|name| temp.path().join(name));
    stored(&dir);
    checked::write(&dir.join("contradiction.toml"), "slot = 1").unwrap();
    ok(&["snapshot", "--dir", str(&dir), "--to", str(&copy)]);
    ok(&["restore", "--from", str(&copy), "--dir", str(&again)]);
    let of = |dir: &Path| checked::read(&dir.join("contradiction.toml")).unwrap();
    assert_eq!(of(&again), Some(Found::Whole("slot = 1".to_owned())));
    fs::write(dir.join("contradiction.toml"), "damaged").unwrap();
    let other = temp.path().join("other");
    ok(&["snapshot", "--dir", str(&dir), "--to", str(&other)]);
    assert_eq!(of(&other), Some(Found::Whole(String::new())), "what a heal reads as a contradiction");
}

#[test]
fn a_copy_of_no_use_is_removed_and_one_that_nobody_can_be_told_of_stays() {
    let temp = tempfile::tempdir().unwrap();
    let [dir, copy, other] = ["store", "copy", "other"].map(|name| temp.path().join(name));
    stored(&dir);
    let full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
    let mut untold = Command::new(env!("CARGO_BIN_EXE_service"));
    let untold = untold.args(["snapshot", "--dir", str(&dir), "--to", str(&copy), "--digest"]).stdout(full());
    let untold = untold.output().unwrap();
    assert_eq!(untold.status.code(), Some(1), "{}", text(&untold));
    assert!(text(&untold).contains("cannot write to standard output"), "{}", text(&untold));
    ok(&["restore", "--from", str(&copy), "--dir", str(&other), "--verify"]);
    fs::remove_dir_all(&other).unwrap();
    // The record of another store.
    let record = copy.join("snapshot.toml");
    let kept = fs::read_to_string(&record).unwrap();
    fs::write(&record, kept.replace("3000:", "2999:")).unwrap();
    let differs = fails(&["restore", "--from", str(&copy), "--dir", str(&other), "--verify"]);
    assert!(differs.contains("the copy was removed: dir=") && !other.exists(), "{differs}");
    let check = [
        "check-config",
        "--create-empty",
        "--extract",
        "token-mint",
        "--geyser",
        "http://127.0.0.1:1",
        "--dir",
        str(&other),
    ];
    for args in [&["completions", "bash"][..], &check] {
        let output = Command::new(env!("CARGO_BIN_EXE_service")).args(args).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output));
        assert!(text(&output).contains("cannot write to standard output"), "{args:?}: {}", text(&output));
    }
}

#[test]
fn a_copy_of_a_store_that_is_not_what_was_loaded_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let [dir, copy, again] = ["store", "copy", "again"].map(|name| temp.path().join(name));
    let options = stored(&dir);
    let right = digest(&dir, &options);
    let loaded_as = |dir: &Path, digest: &str| {
        let loaded = Loaded { seq: 3000, pairs: 3000, digest: Some(digest.to_owned()), slot: None };
        let load = Load { loaded: Some(loaded), ..Load::new(LoadState::Complete, "1") };
        engines::mark_load(dir, load, 3000).unwrap();
    };
    loaded_as(&dir, &right);
    ok(&["snapshot", "--dir", str(&dir), "--to", str(&copy), "--digest"]);
    let other = right.replace(':', ":0");
    loaded_as(&copy, &other);
    let said = fails(&["restore", "--from", str(&copy), "--dir", str(&again), "--verify"]);
    assert!(said.contains("does not hold the pairs that were loaded") && !again.exists(), "{said}");
    loaded_as(&dir, &other);
    let said = fails(&["snapshot", "--dir", str(&dir), "--to", str(&again), "--digest"]);
    assert!(said.contains("does not hold the pairs that were loaded") && !again.exists(), "{said}");
}

#[test]
fn a_copy_of_a_store_in_the_middle_of_a_heal_says_how_the_heal_ends() {
    let temp = tempfile::tempdir().unwrap();
    let [dir, whole, copy, again] = ["store", "whole", "copy", "again"].map(|name| temp.path().join(name));
    stored(&dir);
    let said = ok(&["snapshot", "--dir", str(&dir), "--to", str(&whole)]);
    assert!(field(&said, "phase") == "ready" && !said.contains("heal"), "{said}");
    let store = engines::open_existing(&dir, None).unwrap();
    let phase = MapPhase::Healing { to_slot: BASE_SLOT + 12, next_key: [7; 32] };
    let checkpoint = ChainCheckpoint { phase, ..ChainCheckpoint::read(&store.checkpoint().unwrap()).unwrap() };
    store.begin().unwrap().commit(&checkpoint.write(), Durability::Synced).unwrap();
    store.close().unwrap();
    let made = ok(&["snapshot", "--dir", str(&dir), "--to", str(&copy)]);
    let restored = ok(&["restore", "--from", str(&copy), "--dir", str(&again), "--verify"]);
    for said in [made, restored] {
        assert_eq!((field(&said, "phase"), field(&said, "to_slot")), ("healing", "1011:"), "{said}");
        assert!(said.contains("goes on with the heal if it has heal_from"), "{said}");
    }
}

#[test]
fn a_damaged_redb_store_is_not_copied_as_a_sound_one() {
    let Some(options) = columns().into_iter().find(|options| options.engine.as_str() == "redb") else { return };
    let temp = tempfile::tempdir().unwrap();
    let [dir, copy] = ["store", "copy"].map(|name| temp.path().join(name));
    let (stream, workload) = stream("--pairs 3000 --events 10");
    load(&dir, &options, &workload);
    stream.stop().unwrap();
    let file = dir.join("data/pairs.redb");
    let mut bytes = fs::read(&file).unwrap();
    let mut value = None;
    let engine = engines::open_read_only(&dir, None).unwrap();
    let take = &mut |_: &engine_api::Key, found: &engine_api::Value| {
        value.get_or_insert(*found);
        std::ops::ControlFlow::Break(())
    };
    engine.reader().unwrap().scan(take).unwrap();
    engine.close().unwrap();
    let at = bytes.windows(32).position(|window| window == value.unwrap()).unwrap();
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    for (command, from) in [
        ("snapshot", ["--dir", str(&dir), "--to", str(&copy)]),
        ("restore", ["--from", str(&dir), "--dir", str(&copy)]),
    ] {
        let said = is_refused(&[&[command][..], &from].concat());
        assert!(said.contains("the store to copy is damaged: dir=") && !copy.exists(), "{said}");
    }
}

#[test]
fn the_running_service_refuses_as_the_program_does_and_its_socket_is_the_owners() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, full) = (temp.path().join("store"), temp.path().join("full"));
    let options = stored(&dir);
    // Nothing listens at the stream's address.
    let mut running = Service::start(&dir, &options, "http://127.0.0.1:1", &[]);
    let socket = dir.join("admin.sock");
    wait_for("the admin socket", || socket.exists().then_some(()));
    wait_for("an answer", || running.get("/healthz"));
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), "1").unwrap();
    let refused = fails(&["snapshot", "--dir", str(&dir), "--to", str(&full)]);
    assert!(refused.contains("made no snapshot") && refused.contains("it holds mine"), "{refused}");
    assert_eq!(running.metric("solkv_snapshots_total{result=\"failed\"}"), Some(1.0));
    assert_eq!(fs::read_dir(temp.path()).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count(), 2);
    assert!(running.terminate().success());
    assert!(!socket.exists(), "the socket's file is gone with the service");
}

#[test]
fn a_service_that_ends_while_it_is_asked_is_a_reason_in_words() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    stored(&dir);
    // This socket accepts every client and answers none.
    let listener = std::os::unix::net::UnixListener::bind(dir.join("admin.sock")).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let refused = fails(&["snapshot", "--dir", str(&dir), "--to", str(&temp.path().join("copy"))]);
    let (_, why) = refused.trim_end().split_once("made no snapshot: ").unwrap_or_else(|| panic!("{refused}"));
    assert!(why.len() > 10, "{refused}");
}
