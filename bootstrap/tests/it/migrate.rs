//! Migrations to another engine: checkpoint and meaning go along, and a killed migration can be resumed.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use solana::{ChainCheckpoint, MapPhase};
use workload::Rng;

use crate::{command, cut_short, digest, engines, fails, ok, str, synthetic, text};

#[test]
fn a_store_moves_to_every_engine_with_its_checkpoint() {
    for from in engines() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let bloom: &[&str] = if from == "rocksdb" { &["--bloom", "12"] } else { &[] };
        ok(&[&["--engine", from, "--dir", str(&store), "--pairs", "30000", "--seed", "5", "--slot", "77"], bloom]
            .concat());
        engines::checked::write(&store.join(engines::CONTRADICTION), "of slot 77").unwrap();
        for to in engines() {
            let new = dir.path().join(to);
            let moved = ok(&["--from-store", str(&store), "--engine", to, "--dir", str(&new)]);
            let equal = format!("equal: {}", digest(&synthetic(30000, 5)));
            assert!(moved.contains(&equal) && moved.contains("pairs=30000"), "{from} to {to}: {moved}");
            let info = ok(&["info", "--dir", str(&new), "--digest"]);
            assert!(info.contains(&digest(&synthetic(30000, 5))), "{from} to {to}: {info}");
            assert!(info.contains("checkpoint seq=30000 slot=77"), "{from} to {to}: {info}");
            assert!(info.contains("load=complete: 30000 pairs"), "{from} to {to}: {info}");
            let [identity, source] = [&new, &store].map(|dir| engines::inspect(dir).unwrap().unwrap());
            assert!(from != to || identity.options == source.options, "{from} to {to}: {:?}", identity.options);
            let loaded = identity.load.unwrap().loaded.unwrap();
            assert_eq!(loaded.slot, Some(77), "{from} to {to}: the slot of the load");
            assert!(new.join(engines::CONTRADICTION).exists(), "{from} to {to}");
        }
        let taken = fails(1, &["--from-store", str(&store), "--engine", from, "--dir", str(&store)]);
        assert!(taken.contains("store"), "{taken}");
    }
}

#[test]
fn a_store_whose_checkpoint_is_no_chains_is_looked_at_and_moved_as_it_is() {
    for &kind in engines::compiled() {
        let engine = kind.as_str();
        let temp = tempfile::tempdir().unwrap();
        let (dir, new) = (temp.path().join("store"), temp.path().join("new"));
        let options = engines::EngineOptions::new(kind);
        let store = engines::open(&dir, &options, engines::OpenMode::Create).unwrap();
        let mut txn = store.begin().unwrap();
        txn.put(&[1; 32], &[2; 32]).unwrap();
        let checkpoint = engine_api::Checkpoint::new(5, b"of another program");
        txn.commit(&checkpoint, engine_api::Durability::Synced).unwrap();
        store.close().unwrap();
        let other = "seq=5 not a chain's checkpoint: bytes=18";
        assert!(ok(&["info", "--dir", str(&dir)]).contains(&format!("checkpoint {other}")), "{engine}");
        let json = ok(&["info", "--json", "--dir", str(&dir)]);
        assert!(json.contains("\"seq\": 5") && json.contains("\"slot\": null"), "{json}");
        assert!(json.contains("\"no_chain\": \"not a chain's checkpoint: bytes=18"), "{json}");
        assert!(ok(&["scrub", "--dir", str(&dir)]).contains(&format!("pairs=1 {other}")), "{engine}");
        let moved = ok(&["--from-store", str(&dir), "--engine", engine, "--dir", str(&new)]);
        assert!(moved.contains("equal:") && moved.contains(&format!("checkpoint {other}")), "{moved}");
        assert!(ok(&["compare", "--dir", str(&dir), "--with", str(&new)]).contains(other), "{engine}");
        assert_eq!(engines::open_existing(&new, None).unwrap().checkpoint().unwrap(), checkpoint);
    }
}

#[test]
fn a_store_in_the_middle_of_a_heal_moves_and_the_rest_of_the_heal_is_told() {
    let engine = engines().next().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let (dir, new) = (temp.path().join("store"), temp.path().join("new"));
    ok(&["--engine", engine, "--dir", str(&dir), "--pairs", "1000", "--slot", "77"]);
    let move_on = |to: &Path| ok(&["--from-store", str(&dir), "--engine", engine, "--dir", str(to)]);
    let moved = move_on(&new);
    assert!(moved.contains("checkpoint seq=1000 slot=77 blockhash=none phase=ready\nequal:"), "{moved}");
    let store = engines::open_existing(&dir, None).unwrap();
    let phase = MapPhase::Healing { to_slot: 90, next_key: [7; 32] };
    let checkpoint = ChainCheckpoint { phase, ..ChainCheckpoint::read(&store.checkpoint().unwrap()).unwrap() }.write();
    store.begin().unwrap().commit(&checkpoint, engine_api::Durability::Synced).unwrap();
    store.close().unwrap();
    let again = temp.path().join("again");
    let moved = move_on(&again);
    assert!(
        moved.contains(" phase=healing\n") && moved.contains("heal, and so is the copy: slot=77 to_slot=90"),
        "{moved}"
    );
    assert_eq!(engines::open_existing(&again, None).unwrap().checkpoint().unwrap(), checkpoint);
}

#[test]
fn a_migration_is_refused_where_it_would_mix_or_miss() {
    let engine = engines().last().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (store, new) = (dir.path().join("store"), dir.path().join("new"));
    let migrate = |more: &[&str]| {
        let args = ["--from-store", str(&store), "--engine", engine, "--dir", str(&new)];
        fails(1, &[&args[..], more].concat())
    };
    assert!(migrate(&[]).contains("there is no store"));
    ok(&["--engine", engine, "--dir", str(&store), "--pairs", "1000"]);
    cut_short(&store);
    assert!(migrate(&[]).contains("the load of the store to read is not complete"));
    ok(&["--resume", "--dir", str(&store), "--pairs", "1000"]);
    let other = engines().find(|other| *other != engine);
    if let Some(other) = other {
        let args = ["--from-store", str(&store), "--engine", engine, "--dir", str(&new), "--from-engine", other];
        let said = fails(2, &args);
        assert!(said.contains(&format!("engine={engine} from_engine={other}: leave --from-engine out")), "{said}");
    }
    ok(&["--engine", engine, "--dir", str(&new), "--pairs", "500", "--seed", "9"]);
    cut_short(&new);
    assert!(migrate(&["--resume"]).contains("the store holds a load of another source"));
    assert!(migrate(&[]).contains("interrupted"));
    fs::remove_dir_all(&new).unwrap();
    ok(&["--engine", engine, "--dir", str(&new), "--pairs", "500", "--seed", "9"]);
    assert!(migrate(&[]).contains("already holds"));
}

/// Sends SIGKILL at random moments, then runs with --resume, until the migration is complete.
#[test]
fn killed_migrations_resume_to_the_same_map() {
    const PAIRS: u64 = 1_500_000;
    let mut rng = Rng::new(std::process::id().into());
    let from = engines().last().unwrap();
    let home = tempfile::tempdir().unwrap();
    let store = home.path().join("store");
    let pairs = PAIRS.to_string();
    ok(&["--engine", from, "--order", "sorted", "--dir", str(&store), "--pairs", &pairs, "--slot", "7"]);
    let expected = ok(&["info", "--dir", str(&store), "--digest"]);
    let expected = expected.lines().find(|line| line.starts_with("digest=")).unwrap();
    for to in engines() {
        let new = home.path().join(to);
        for kill in 0.. {
            let mut migration = command(&["--from-store", str(&store), "--engine", to, "--dir", str(&new)]);
            if kill > 0 {
                migration.arg("--resume");
            }
            let mut child = migration.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(100 + rng.below(500)));
            let done = kill >= 5 || child.try_wait().unwrap().is_some();
            if !done {
                child.kill().unwrap();
            }
            let output = child.wait_with_output().unwrap();
            if done {
                let complete = kill > 0 && text(&output).contains("the load is complete");
                assert!(complete || output.status.success(), "{to}: {}", text(&output));
                break;
            }
        }
        let info = ok(&["info", "--dir", str(&new), "--digest"]);
        assert!(info.contains(expected) && info.contains("slot=7"), "{to}: {info}");
    }
}

#[test]
fn a_store_that_no_load_has_made_stays_as_it_is_if_a_load_is_to_continue_it() {
    for &kind in engines::compiled() {
        let engine = kind.as_str();
        let temp = tempfile::tempdir().unwrap();
        let (dir, from) = (temp.path().join("live"), temp.path().join("from"));
        ok(&["--engine", engine, "--dir", str(&from), "--pairs", "1000"]);
        let options = engines::EngineOptions::new(kind);
        let store = engines::open(&dir, &options, engines::OpenMode::Create).unwrap();
        let checkpoint = ChainCheckpoint { seq: 5, slot: Some(9), phase: MapPhase::Ready, ..Default::default() };
        let mut txn = store.begin().unwrap();
        txn.put(&[1; 32], &[2; 32]).unwrap();
        txn.commit(&checkpoint.write(), engine_api::Durability::Synced).unwrap();
        store.close().unwrap();
        fails(1, &["--engine", engine, "--dir", str(&dir), "--pairs", "1000", "--resume"]);
        fails(1, &["--from-store", str(&from), "--engine", engine, "--dir", str(&dir), "--resume"]);
        let load = engines::inspect(&dir).unwrap().unwrap().load;
        assert!(load.is_none(), "{engine}: a service would refuse the store: {load:?}");
    }
}

#[test]
fn a_complete_store_without_a_file_of_its_load_is_compared_with_the_source_that_is_named() {
    let engine = engines().next().unwrap();
    let temp = tempfile::tempdir().unwrap();
    let [one, other, new] = ["one", "other", "new"].map(|name| temp.path().join(name));
    ok(&["--engine", engine, "--dir", str(&one), "--pairs", "1000"]);
    ok(&["--engine", engine, "--dir", str(&other), "--pairs", "1000", "--seed", "2"]);
    ok(&["--from-store", str(&one), "--engine", engine, "--dir", str(&new)]);
    // As in a copy of a store.
    fs::remove_file(new.join("bootstrap.toml")).unwrap();
    let resume = |from: &Path| {
        ["--from-store", str(from), "--engine", engine, "--dir", str(&new), "--resume"].map(str::to_owned)
    };
    let said = ok(&resume(&one).each_ref().map(|arg| arg.as_str()));
    assert!(said.contains("nothing to resume"), "{said}");
    let said = fails(1, &resume(&other).each_ref().map(|arg| arg.as_str()));
    assert!(said.contains("the store holds a load of another source"), "{said}");
    fs::remove_dir_all(&one).unwrap();
    let said = ok(&resume(&one).each_ref().map(|arg| arg.as_str()));
    assert!(said.contains("its source was not compared: E-NO-STORE: there is no store"), "{said}");
}
