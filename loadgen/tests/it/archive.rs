//! Archives tell the story of the stream, whatever oddities they have, and their bytes are as agave writes them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum as _;
use rustix::process::{Pid, Signal, kill_process};
use solkv_loadgen::archive::tar::{Kind, header};
use solkv_loadgen::archive::{Archived, Oddity, Step, options, write};
use solkv_loadgen::stream::account::{Extract, SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM};
use solkv_loadgen::stream::{Final, Stream};

use crate::model::{Model, follow, start, subscription};
use crate::snapshot::{Snapshot, Version, by_account, digest, is_token_account, map, unpacked};

const SEED: &str = "--pairs 5000 --seed 3";
const STORY: &str = "--events-per-slot 400 --unknown-share 0.05 --change-share 0.2 --close-share 0.05";
const FAULTS: &str = "--dead-every 4 --skip-every 5 --out-of-order-every 3 --gap-at 1004 --base-empty";

fn archives(line: &str, dir: &Path) -> Vec<Archived> {
    write(&options(line).unwrap(), dir, &mut |_| Ok(())).unwrap()
}

fn extraction(name: &str) -> Extract {
    Extract::from_str(name, false).unwrap()
}

/// Returns the end of a stream that nobody follows.
fn end(line: &str) -> Final {
    let (workload, delivery) = solkv_loadgen::stream::options(&format!("{line} --no-wait --rate 1000000000")).unwrap();
    let stream = Stream::start(workload, &delivery, "127.0.0.1:0").unwrap();
    loop {
        if let Some(end) = stream.outcome().unwrap() {
            return end.clone();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn archives_hold_the_map_of_the_stream_after_the_same_blocks() {
    for (extract, more) in [
        ("account-owner", ""),
        ("token-owner", "--leave-share 0.1 --without large"),
        ("token-mint", FAULTS),
        ("account-owner", "--plain"),
        ("token-mint", "--plain --leave-share 0.1"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let line = format!("{SEED} {STORY} --extract {extract} {more}");
        let archives = archives(&format!("{line} --events 8000 --slots-after 5 --incremental-slots 3,4"), temp.path());
        let extraction = extraction(extract);
        let full = Snapshot::read(&archives[0].file);
        assert_eq!(archives.iter().map(|one| one.blocks).collect::<Vec<_>>(), [5, 8, 12], "{line}");
        for archive in &archives {
            // The options of an archive that a stream does not have.
            let story = line.replace("--without large", "").replace("--plain", "");
            let end = end(&format!("{story} --events {}", archive.blocks * 400));
            assert_eq!((archive.slot, &archive.digest), (end.slot, &end.digest), "{line}");
            let top = archive.base.map(|_| Snapshot::read(&archive.file));
            let top = top.iter().flat_map(|top| &top.versions);
            assert_eq!(digest(&map(extraction, full.versions.iter().chain(top))), archive.digest, "{line}");
        }
        for archive in &archives[1..] {
            assert_eq!(archive.base, Some(archives[0].slot));
            let top = Snapshot::read(&archive.file);
            assert!(top.versions.iter().all(|one| one.slot > archives[0].slot && one.slot <= archive.slot), "{line}");
            assert!(top.versions.iter().any(|one| one.lamports == 0), "closes have to be told: {line}");
        }
        assert!(full.versions.iter().all(|one| one.slot <= archives[0].slot), "{line}");
    }
}

#[tokio::test]
async fn a_follower_that_begins_with_archives_ends_up_where_the_stream_does() {
    let temp = tempfile::tempdir().unwrap();
    let line = format!("{SEED} {STORY} --events 8000 --extract token-owner");
    let archives = archives(&format!("{line} --slots-after 5 --incremental-slots 4 --without large"), temp.path());
    let (full, top) = (Snapshot::read(&archives[0].file), Snapshot::read(&archives[1].file));
    for (slot, versions) in [
        (archives[0].slot, full.versions.clone()),
        (archives[1].slot, full.versions.iter().chain(&top.versions).cloned().collect()),
    ] {
        let (stream, workload) = start(&line);
        let mut model = Model::new(&workload);
        model.load(slot, map(workload.extract, &versions));
        let (_, end) = follow(&stream, &mut model, subscription(None)).await;
        assert_eq!(model.digest(), end.digest, "slot={slot}");
        stream.stop().unwrap();
    }
}

/// Whether an oddity is in an archive, as far as the archive itself tells.
fn found(oddity: Oddity, snapshot: &Snapshot) -> bool {
    let any = |wanted: &dyn Fn(&Version) -> bool| snapshot.versions.iter().any(wanted);
    let account = |wanted: &dyn Fn(&[&Version]) -> bool| {
        by_account(&snapshot.versions).values().any(|versions| wanted(versions.as_slice()))
    };
    let token = |one: &Version| one.owner == TOKEN_PROGRAM || one.owner == TOKEN_2022_PROGRAM;
    let open = |one: &Version| one.lamports > 0;
    match oddity {
        Oddity::Mints => {
            any(&|one| one.owner == TOKEN_PROGRAM && one.data.len() == 82)
                && any(&|one| one.owner == TOKEN_2022_PROGRAM && one.data.len() > 170 && one.data[165] == 1)
        }
        Oddity::Multisigs => any(&|one| token(one) && one.data.len() == 355 && one.data[165] == 2),
        Oddity::Wallets => any(&|one| one.owner == SYSTEM_PROGRAM && open(one) && one.data.is_empty()),
        Oddity::Foreign => any(&|one| !token(one) && one.data.len() == 165 && one.data[108] == 1),
        Oddity::Lengths => [0, 1, 64, 72, 108, 109, 164, 166, 170, 200]
            .iter()
            .all(|bytes| any(&|one| one.owner == TOKEN_PROGRAM && open(one) && one.data.len() == *bytes)),
        Oddity::Uninitialised => {
            [165, 170].iter().all(|bytes| any(&|one| token(one) && at_state(one, *bytes) == Some(0)))
        }
        Oddity::Frozen => [2, 3, 255].iter().all(|state| any(&|one| is_token_account(one) && one.data[108] == *state)),
        Oddity::Extensions => [182, 200, 278, 354, 356, 417, 566, 1024]
            .iter()
            .all(|bytes| any(&|one| is_token_account(one) && one.data.len() == *bytes)),
        Oddity::Executables => any(&|one| one.executable && !token(one) && one.data.len() == 36),
        Oddity::Large => any(&|one| one.data.len() == 10 << 20) && any(&|one| one.data.len() == 300_000),
        Oddity::Tombstones => account(&|all| all.len() == 1 && !open(all[0])),
        Oddity::Obsolete => {
            let later =
                |all: &[&Version]| all.windows(2).any(|two| two[0].slot < two[1].slot && two[0].place > two[1].place);
            let earlier =
                |all: &[&Version]| all.windows(2).any(|two| two[0].slot < two[1].slot && two[0].place < two[1].place);
            account(&later) && account(&earlier)
        }
        Oddity::Reopened => account(&|all| all.len() == 3 && open(all[0]) && !open(all[1]) && open(all[2])),
        Oddity::Assigned => {
            account(&|all| all.windows(2).any(|two| is_token_account(two[0]) && open(two[1]) && !token(two[1])))
        }
        Oddity::Files => {
            account(&|all| all.windows(2).any(|two| two[0].slot == two[1].slot && two[0].file < two[1].file))
                && account(&|all| all.windows(2).any(|two| (two[0].slot, two[0].file) == (two[1].slot, two[1].file)))
        }
        Oddity::Padding => snapshot.padding.values().any(|zeros| *zeros > 8),
        Oddity::Order => {
            let place = |part: &str| snapshot.names.iter().position(|name| name == part);
            place("snapshots/999/999") < place("snapshots/status_cache")
        }
    }
}

/// Returns the state of an account with `bytes` bytes.
fn at_state(version: &Version, bytes: usize) -> Option<u8> {
    (version.data.len() == bytes).then(|| version.data[108])
}

#[test]
fn a_default_archive_has_every_oddity_and_each_can_be_left_out() {
    for extract in ["account-owner", "token-owner", "token-mint"] {
        let temp = tempfile::tempdir().unwrap();
        let archive = archives(&format!("{SEED} --extract {extract}"), temp.path()).remove(0);
        let snapshot = Snapshot::read(&archive.file);
        for oddity in Oddity::value_variants() {
            assert!(archive.counts.oddities[oddity] > 0, "{extract} {oddity:?} {:?}", archive.counts);
            assert!(found(*oddity, &snapshot), "{extract} {oddity:?}");
        }
        assert_eq!(snapshot.versions.len() as u64, archive.counts.records);
        assert_eq!(snapshot.padding.len() as u64, archive.counts.files);
        let closed = snapshot.versions.iter().filter(|one| one.lamports == 0);
        assert_eq!(closed.clone().count() as u64, archive.counts.tombstones);
        for one in closed {
            assert_eq!((one.owner, one.data.len()), (SYSTEM_PROGRAM, 0), "tombstones are System's and have no data");
        }
        let dirty = snapshot.versions.iter().filter(|one| one.garbage != [0; 7]).count();
        assert!(dirty * 10 > snapshot.versions.len() * 9, "dirty={dirty}");
    }
    for oddity in Oddity::value_variants() {
        let temp = tempfile::tempdir().unwrap();
        let name = oddity.to_possible_value().unwrap().get_name().to_owned();
        let line = format!("{SEED} {STORY} --events 2000 --slots-after 3 --extract token-owner");
        let without = if *oddity == Oddity::Large { name.clone() } else { format!("large,{name}") };
        let archive = archives(&format!("{line} --without {without}"), temp.path()).remove(0);
        assert_eq!(archive.counts.oddities[oddity], 0, "{name}");
        let snapshot = Snapshot::read(&archive.file);
        assert_eq!(digest(&map(Extract::TokenOwner, &snapshot.versions)), archive.digest, "{name}");
    }
}

#[test]
fn a_plain_archive_has_one_version_of_each_account_of_the_story() {
    for (more, blocks) in [("", 0), ("--extract token-owner --slots-after 4", 4)] {
        let temp = tempfile::tempdir().unwrap();
        let archive = archives(&format!("{SEED} {STORY} --events 2000 --plain {more}"), temp.path()).remove(0);
        let snapshot = Snapshot::read(&archive.file);
        assert_eq!(archive.blocks, blocks);
        assert_eq!(by_account(&snapshot.versions).len(), snapshot.versions.len(), "{more}");
        assert!(snapshot.versions.iter().all(|one| one.lamports > 0 && !one.executable), "{more}");
        assert_eq!(archive.counts.tombstones, 0, "{more}");
        assert!(archive.counts.oddities.values().all(|times| *times == 0), "{more}");
        assert!(snapshot.padding.values().all(|zeros| *zeros == 0), "{more}");
        let slots: BTreeSet<u64> = snapshot.padding.keys().map(|(slot, _)| *slot).collect();
        assert_eq!(slots.len(), snapshot.padding.len(), "one file a slot: {more}");
        let order: Vec<u64> = snapshot.versions.iter().map(|one| one.slot).collect();
        assert!(!order.is_sorted(), "{more}");
    }
}

#[test]
fn headers_are_those_that_agave_writes() {
    let agave = include_bytes!("../data/agave-headers.bin");
    let mtime = 0o15_300_425_146;
    let made = [
        (Kind::File, "version", 5),
        (Kind::Directory, "snapshots/", 0),
        (Kind::File, "snapshots/status_cache", 10_658),
        (Kind::Directory, "snapshots/351000355", 0),
        (Kind::File, "snapshots/351000355/351000355", 32_708),
        (Kind::Accounts, "accounts/0.0", 771_361),
        (Kind::Accounts, "accounts/351000320.6", 1_454_493),
    ];
    assert_eq!(agave.len(), made.len() * 512);
    for (agave, (kind, name, bytes)) in agave.chunks(512).zip(made) {
        let made = header(kind, name, bytes, mtime).unwrap();
        for (at, (made, agave)) in made.iter().zip(agave).enumerate() {
            assert_eq!(made, agave, "{name} at {at}");
        }
    }
}

#[test]
fn the_packings_hold_the_same_tar_and_begin_as_agaves_do() {
    let temp = tempfile::tempdir().unwrap();
    let line = "--pairs 3000 --seed 5 --without large";
    let first: [(&str, &[u8]); 4] = [
        ("zst", &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x48]),
        ("lz4", &[0x04, 0x22, 0x4d, 0x18, 0x54, 0x40, 0xae]),
        ("gz", &[0x1f, 0x8b]),
        ("none", b"version\0"),
    ];
    let mut stems = BTreeSet::new();
    let mut tars = Vec::new();
    for (packing, first) in first {
        let archive = archives(&format!("{line} --pack {packing}"), temp.path()).remove(0);
        let bytes = std::fs::read(&archive.file).unwrap();
        assert!(bytes.starts_with(first), "{packing}: {:x?}", &bytes[..8]);
        assert_eq!(bytes.len() as u64, archive.packed_bytes);
        let name = archive.file.file_name().unwrap().to_str().unwrap();
        let (stem, ending) = name.split_once('.').unwrap();
        assert_eq!(ending, if packing == "none" { "tar".to_owned() } else { format!("tar.{packing}") });
        let hash = stem.strip_prefix("snapshot-999-").unwrap();
        assert_eq!(bs58::decode(hash).into_vec().unwrap().len(), 32, "{hash}");
        stems.insert(stem.to_owned());
        tars.push(unpacked(&archive.file));
        assert_eq!(tars[0].len() as u64, archive.unpacked_bytes);
    }
    assert_eq!(stems.len(), 1, "the hash is that of the contents");
    assert!(tars.iter().all(|tar| *tar == tars[0]));
    let listed = std::fs::read_dir(temp.path()).unwrap().count();
    assert_eq!(listed, 4, "no temporary file is left");
}

#[test]
fn archives_like_those_of_other_writers_tell_the_same_story() {
    let line = format!("{SEED} {STORY} --events 4000 --slots-after 3 --incremental-slots 4 --extract token-owner");
    for (like, more) in [("agave", "--plain"), ("agave-unlisted", "--without large"), ("firedancer", "")] {
        let temp = tempfile::tempdir().unwrap();
        let archives = archives(&format!("{line} --like {like} {more}"), temp.path());
        let snapshots: Vec<_> = archives.iter().map(|archive| Snapshot::read(&archive.file)).collect();
        let all = snapshots.iter().flat_map(|snapshot| &snapshot.versions);
        assert_eq!(digest(&map(Extract::TokenOwner, all)), archives[1].digest, "{like}");
        assert!(snapshots[1].versions.iter().any(|one| one.lamports == 0), "closes have to be told: {like}");
        for (archive, snapshot) in archives.iter().zip(&snapshots) {
            // Each frame begins a block of 4 KiB, and the last one holds the end of the tar.
            let bytes = std::fs::read(&archive.file).unwrap();
            let frames = bytes.chunks(4096).filter(|block| block.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])).count();
            let entries = if like == "firedancer" { snapshot.names.len() + 1 } else { 1 };
            assert_eq!(frames, entries, "{like}");
            let slots: BTreeSet<u64> = snapshot.padding.keys().map(|(slot, _)| *slot).collect();
            assert_eq!(slots == BTreeSet::from([archive.slot]), like == "firedancer", "{like} {slots:?}");
        }
    }
}

#[test]
fn equal_options_give_equal_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let line = "--pairs 2000 --events 3000 --slots-after 1 --events-per-slot 500 --without large";
    let one = archives(&format!("{line} --seed 1"), temp.path()).remove(0);
    let bytes = std::fs::read(&one.file).unwrap();
    let again = archives(&format!("{line} --seed 1"), temp.path()).remove(0);
    assert_eq!(again, one);
    assert_eq!(std::fs::read(&again.file).unwrap(), bytes);
    let other = archives(&format!("{line} --seed 2"), temp.path()).remove(0);
    assert_ne!(other.file, one.file);
}

#[test]
fn archives_of_the_first_slots_and_of_few_keys_are_whole_too() {
    for line in
        ["--pairs 1 --start-slot 1", "--pairs 1 --start-slot 2 --plain", "--pairs 70 --start-slot 1 --without large"]
    {
        let temp = tempfile::tempdir().unwrap();
        let more = "--events 30 --events-per-slot 10 --incremental-slots 1 --extract token-mint";
        let archives = archives(&format!("{line} {more}"), temp.path());
        let (full, top) = (Snapshot::read(&archives[0].file), Snapshot::read(&archives[1].file));
        assert_eq!(digest(&map(Extract::TokenMint, &full.versions)), archives[0].digest, "{line}");
        let both = full.versions.iter().chain(&top.versions);
        assert_eq!(digest(&map(Extract::TokenMint, both)), archives[1].digest, "{line}");
    }
}

/// Ends the writing in the middle of the second archive.
fn broken(step: Step<'_>) -> Result<()> {
    match step {
        Step::At(at) if at.slot > 1001 && at.done > 0 => bail!("stopped here"),
        Step::At(_) => {}
        Step::Whole(archive) => assert_eq!(archive.slot, 1001),
    }
    Ok(())
}

#[test]
fn an_archive_that_is_not_whole_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let line = "--pairs 1000 --events 5000 --events-per-slot 500 --slots-after 2 --incremental-slots 3 --without large";
    let error = write(&options(line).unwrap(), temp.path(), &mut broken).unwrap_err();
    assert!(error.to_string().contains("stopped here"), "{error:#}");
    let names: Vec<String> = std::fs::read_dir(temp.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() == 1 && names[0].starts_with("snapshot-1001-"), "{names:?}");
    let error =
        write(&options("--pairs 10 --events 1 --slots-after 2").unwrap(), temp.path(), &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("give more --events"), "{error:#}");
    let file = temp.path().join(&names[0]);
    let error = write(&options("--pairs 10").unwrap(), &file, &mut |_| Ok(())).unwrap_err();
    assert!(format!("{error:#}").contains(&names[0]), "{error:#}");
}

#[test]
fn the_command_prints_and_reports_every_archive() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, report) = (temp.path().join("archives"), temp.path().join("report.json"));
    let line =
        "--pairs 500 --events 2000 --events-per-slot 200 --slots-after 1 --incremental-slots 2 --extract token-owner";
    let output = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .arg("archive")
        .args(line.split(' '))
        .arg("--out")
        .arg(&dir)
        .arg("--report")
        .arg(&report)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("full slot=1000 blocks=1 "), "{stdout}");
    assert!(lines[1].starts_with("incremental base=1000 slot=1002 blocks=3 "), "{stdout}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    for (line, archive) in lines.iter().zip(report["archives"].as_array().unwrap()) {
        assert!(line.contains(&format!(" digest={} ", archive["digest"].as_str().unwrap())), "{line} {archive}");
        assert!(line.ends_with(&format!(" file={}", archive["file"].as_str().unwrap())), "{line} {archive}");
        assert!(archive["oddities"]["mints"].as_u64().unwrap() > 0, "{archive}");
        assert!(Path::new(archive["file"].as_str().unwrap()).exists(), "{archive}");
    }
    assert_eq!(report["options"]["workload"]["pairs"], 500);
}

#[test]
fn ctrl_c_leaves_no_half_archive() {
    let temp = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["archive", "--pairs", "5000000", "--out"])
        .arg(temp.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let files = || std::fs::read_dir(temp.path()).unwrap().count();
    while files() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("stopped by a signal: slot=999"), "{stderr}");
    assert_eq!(files(), 0);
}

/// A mistake in words, and the change by which versions look as the mistake sees them: `false` leaves one out.
type Mistake<'a> = (&'static str, &'a dyn Fn(usize, &mut Version) -> bool);

#[test]
fn a_careless_reader_finds_another_map() {
    let temp = tempfile::tempdir().unwrap();
    let line = format!("{SEED} {STORY} --events 2000 --slots-after 3 --incremental-slots 2 --extract token-owner");
    let archives = archives(&format!("{line} --leave-share 0.05 --without large"), temp.path());
    let (full, top) = (Snapshot::read(&archives[0].file), Snapshot::read(&archives[1].file));
    let versions: Vec<Version> = full.versions.iter().chain(&top.versions).cloned().collect();
    let read = |change: &dyn Fn(usize, &mut Version) -> bool| {
        let mut versions = versions.clone();
        let mut place = 0;
        versions.retain_mut(|version| {
            place += 1;
            change(place, version)
        });
        digest(&map(Extract::TokenOwner, &versions))
    };
    assert_eq!(read(&|_, _| true), archives[1].digest);
    let token = |one: &Version| one.owner == TOKEN_PROGRAM || one.owner == TOKEN_2022_PROGRAM;
    let mistakes: [Mistake<'_>; 10] = [
        ("the last in the archive wins", &|place, one| {
            one.slot = place as u64;
            true
        }),
        ("the file's id is ignored", &|place, one| {
            (one.file, one.offset) = (0, usize::MAX - place);
            true
        }),
        ("the first in a file wins", &|place, one| {
            one.offset = usize::MAX - place;
            true
        }),
        ("the filter comes before the comparison", &|_, one| one.lamports == 0 || is_token_account(one)),
        ("accounts without lamports are skipped", &|_, one| one.lamports > 0),
        ("accounts of 165 bytes alone count", &|_, one| !token(one) || one.data.len() == 165),
        ("every state counts", &|_, one| {
            one.data.get_mut(108).into_iter().for_each(|state| *state |= 1);
            true
        }),
        ("every type of account counts", &|_, one| {
            one.data.get_mut(165).into_iter().for_each(|account_type| *account_type = 2);
            true
        }),
        ("long accounts of both programs count", &|_, one| {
            one.owner = if token(one) { TOKEN_2022_PROGRAM } else { one.owner };
            true
        }),
        ("executable accounts are skipped", &|_, one| !one.executable),
    ];
    for (mistake, change) in mistakes {
        assert_ne!(read(change), archives[1].digest, "{mistake}");
    }
    let multisigs = |_: usize, one: &mut Version| {
        if one.data.len() == 355 {
            one.data.push(0);
        }
        true
    };
    assert_ne!(read(&multisigs), archives[1].digest, "multisigs count");
}
