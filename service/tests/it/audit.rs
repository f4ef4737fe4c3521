//! `service audit` with an archive of agave: stores that are equal to it, that differ in known keys, and that cannot be
//! compared; and an audit that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};

use engine_api::{Durability, Engine, ErrorKind};
use engines::{EngineOptions, OpenMode};
use loadgen::stream::account::{Account, Extract};
use tempfile::TempDir;

use crate::scripted::{Scripted, Slot};
use crate::support::{Service, Signal, columns, signal, wait_for};

pub(crate) const SLOT: u64 = 351_000_355;
pub(crate) const FULL: &str = "snapshot-351000355-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar.zst";
const INCREMENTAL: &str =
    "incremental-snapshot-351000355-351000368-2NbmC84r6h4FyfFczn1S9j2MSXqpXtzJrfmmSyyg1evr.tar.zst";

pub(crate) type Key = [u8; 32];
pub(crate) type Map = BTreeMap<Key, Key>;

pub(crate) fn archive(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bootstrap/solana/tests/data").join(name)
}

pub(crate) fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn base58(key: &Key) -> String {
    bs58::encode(key).into_string()
}

/// Opens a store that this process had open a moment ago. A program that another test starts meanwhile holds the store's
/// lock too, until it has begun.
fn in_turn(open: impl Fn() -> engine_api::Result<Box<dyn Engine>>) -> Box<dyn Engine> {
    wait_for("the store's lock", || match open() {
        Err(error) if error.kind() == ErrorKind::Retry => None,
        opened => Some(opened.unwrap()),
    })
}

/// A store loaded from the archive, and the pairs that it was loaded with.
pub(crate) struct Loaded {
    pub(crate) temp: TempDir,
    pub(crate) dir: PathBuf,
    pub(crate) options: EngineOptions,
    pub(crate) pairs: Map,
}

impl Loaded {
    fn new(options: EngineOptions, more: &[&str]) -> Self {
        Self::of(&archive(FULL), options, more)
    }

    pub(crate) fn of(full: &Path, options: EngineOptions, more: &[&str]) -> Self {
        // On a disk with room for a feed.
        let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let dir = temp.path().join("store");
        let load = ["bootstrap", "load", "--engine", options.engine.as_str(), "--dir", str(&dir), "--input", str(full)];
        let load = [&load[..], more].concat();
        let code = bootstrap::cli::run(load.iter().map(Into::into).collect());
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS), "{load:?}");
        let mut pairs = Map::new();
        let engine = in_turn(|| engines::open_read_only(&dir, None));
        let mut take = |key: &Key, value: &Key| {
            pairs.insert(*key, *value);
            ControlFlow::Continue(())
        };
        engine.reader().unwrap().scan(&mut take).unwrap();
        engine.close().unwrap();
        Self { temp, dir, options, pairs }
    }

    pub(crate) fn owners(options: EngineOptions) -> Self {
        Self::new(options, &["--extract", "account-owner"])
    }

    pub(crate) fn work_dir(&self) -> PathBuf {
        self.temp.path().join("store.audit")
    }

    /// Returns the key at a place of the store that no script closes: one that belongs to no builtin program.
    pub(crate) fn key(&self, at: usize) -> Key {
        *self.pairs.keys().nth(at * self.pairs.len() / 10).unwrap()
    }

    /// Changes the store without its feed.
    pub(crate) fn tamper(&self, changes: &[(Key, Option<Key>)]) {
        let engine = in_turn(|| engines::open(&self.dir, &self.options, OpenMode::Existing));
        let checkpoint = engine.checkpoint().unwrap();
        let mut txn = engine.begin().unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => txn.put(key, value).unwrap(),
                None => txn.delete(key).unwrap(),
            }
        }
        txn.commit(&checkpoint, Durability::Synced).unwrap();
        engine.close().unwrap();
    }

    pub(crate) fn follow(&self, server: &Scripted, more: &[&str]) -> Service {
        Service::start(&self.dir, &self.options, &server.url(), more)
    }

    pub(crate) fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        command.args(["audit", "--dir", str(&self.dir)]).args(more).stdin(Stdio::null());
        command
    }

    /// Audits with the full archive.
    #[track_caller]
    pub(crate) fn audit(&self, code: i32, more: &[&str]) -> String {
        let full = archive(FULL);
        let said = self.audit_with(code, &[&["--archive", str(&full)][..], more].concat());
        assert!(!self.work_dir().exists(), "an audit leaves nothing: {said}");
        said
    }

    #[track_caller]
    pub(crate) fn audit_with(&self, code: i32, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        text(&output)
    }

    /// Starts an audit that waits for the archive's bytes, with the copy of the live store made.
    fn waiting_audit(&self) -> Child {
        let slot = SLOT.to_string();
        let mut command = self.command(&["--archive", "-", "--slot", &slot]);
        let audit = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the copy", || self.work_dir().join("copy-1").exists().then_some(()));
        audit
    }
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A slot of writes; `None` closes the account.
pub(crate) fn slot(number: u64, writes: &[(Key, Option<Key>)]) -> Slot {
    let account = |(at, (key, value)): (usize, &(Key, Option<Key>))| {
        let open = |value: &Key| Account::open(Extract::AccountOwner, key, value, at as u64);
        (*key, value.as_ref().map_or_else(Account::closed, open))
    };
    Slot { number, confirmed: true, writes: writes.iter().enumerate().map(account).collect() }
}

/// Four slots after the archive. In them keys change, disappear and appear, some of them twice, and one returns to its
/// first value. Returns also the number of keys.
fn story(loaded: &Loaded) -> (Vec<Slot>, usize) {
    let (changed, removed, back, late) = (loaded.key(1), loaded.key(2), loaded.key(3), loaded.key(4));
    let (added, newest) = ([201; 32], [202; 32]);
    let writes = [
        vec![(changed, Some([1; 32])), (removed, None), (added, Some([1; 32])), (back, Some([2; 32]))],
        vec![(changed, Some([3; 32])), (removed, Some([3; 32]))],
        vec![(added, None), (late, None), (newest, Some([4; 32]))],
        vec![(back, Some(loaded.pairs[&back])), (changed, Some([5; 32]))],
    ];
    let keys: BTreeSet<Key> = writes.iter().flatten().map(|(key, _)| *key).collect();
    let slots = writes.iter().zip(SLOT + 1..).map(|(writes, number)| slot(number, writes)).collect();
    (slots, keys.len())
}

#[test]
fn a_live_store_is_equal_to_the_archive_that_it_was_loaded_from() {
    for options in columns() {
        let loaded = Loaded::owners(options);
        let pairs = loaded.pairs.len();
        let said = loaded.audit(0, &[]);
        assert!(said.contains(&format!("equal: archive_slot={SLOT} store_slot={SLOT} taken_back=0 ")), "{said}");
        let (slots, keys) = story(&loaded);
        let server = Scripted::start(slots);
        let mut service = loaded.follow(&server, &[]);
        service.wait_for_slot(SLOT + 4);
        let live = loaded.audit(0, &[]);
        let equal = format!("equal: archive_slot={SLOT} store_slot={} taken_back={keys} ", SLOT + 4);
        assert!(live.contains(&equal) && live.contains(&format!("stored_pairs={pairs}\n")), "{live}");
        assert_eq!(service.metric("solkv_snapshots_total{result=\"made\"}"), Some(1.0));
        assert_eq!(service.slot(), Some(SLOT + 4), "the service goes on");
        let (full, incremental) = (archive(FULL), archive(INCREMENTAL));
        let newer = ["--archive", str(&full), "--incremental", str(&incremental)];
        let said = loaded.audit_with(2, &newer);
        assert!(said.contains(&format!("archive_slot={} store_slot={}", SLOT + 13, SLOT + 4)), "{said}");
        assert!(service.terminate().success());
        assert!(loaded.audit(0, &[]).contains(&equal), "at rest as well");
    }
}

#[test]
fn keys_that_differ_are_named() {
    columns().into_iter().for_each(name_keys_that_differ);
}

fn name_keys_that_differ(options: EngineOptions) {
    let loaded = Loaded::owners(options);
    let (different, missing, added) = (loaded.key(1), loaded.key(6), [203; 32]);
    let pairs = loaded.pairs.len();
    let damage = [(different, Some([9; 32])), (missing, None), (added, Some([9; 32]))];
    loaded.tamper(&damage);
    let differences = [
        format!("different: key={} expected={} found=", base58(&different), base58(&loaded.pairs[&different])),
        format!("missing: key={} expected={} found=nothing", base58(&missing), base58(&loaded.pairs[&missing])),
        format!("only in store: key={} expected=nothing found={}", base58(&added), base58(&[9; 32])),
        format!("expected_pairs={pairs} stored_pairs={pairs} different=1 missing=1 only_in_store=1 lost_changes=0"),
    ];
    let check = |said: &str| differences.iter().for_each(|line| assert!(said.contains(line), "{line}: {said}"));
    check(&loaded.audit(1, &[]));
    // The same differences after the stream has changed one of the keys.
    let (slots, keys) = story(&loaded);
    let server = Scripted::start(slots);
    let mut service = loaded.follow(&server, &[]);
    service.wait_for_slot(SLOT + 4);
    let said = loaded.audit(1, &[]);
    check(&said);
    assert!(
        said.contains(&format!("not equal: archive_slot={SLOT} store_slot={} taken_back={keys}", SLOT + 4)),
        "{said}"
    );
    assert!(service.terminate().success());
    // The store loses a change that its log has.
    loaded.tamper(&[(different, Some([9; 32])), (missing, Some(loaded.pairs[&missing])), (added, None)]);
    let said = loaded.audit(1, &[]);
    let lost =
        format!("lost change: key={} expected={} found={}", base58(&different), base58(&[5; 32]), base58(&[9; 32]));
    assert!(said.contains(&lost) && said.contains("different=1 missing=0 only_in_store=0 lost_changes=1"), "{said}");
}

/// Slots of 5000 new keys each, whose changes fill more than half of the smallest segment.
fn growth(slots: u8) -> Vec<Slot> {
    let key = |slot: u8, number: u16| -> Key {
        let mut key = [slot; 32];
        key[1..3].copy_from_slice(&number.to_be_bytes());
        key
    };
    let writes = |slot| (0..5000).map(|number| (key(slot, number), Some([slot; 32]))).collect::<Vec<_>>();
    (1..=slots).map(|number| slot(SLOT + u64::from(number), &writes(number))).collect()
}

#[test]
fn a_log_that_does_not_hold_all_changes_is_refused() {
    let loaded = Loaded::owners(columns().remove(0));
    let server = Scripted::start(growth(8));
    // Each slot is a commit and a frame of its own.
    let each = ["--commit-every", "1", "--feed-retention-bytes"];
    let mut service = loaded.follow(&server, &[&each[..], &["1GiB"]].concat());
    service.wait_for_slot(SLOT + 8);
    let said = loaded.audit(0, &[]);
    assert!(said.contains("taken_back=40000"), "{said}");
    assert!(service.terminate().success());
    let feed = loaded.dir.join("feed");
    let mut segments: Vec<PathBuf> = fs::read_dir(&feed).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    assert_eq!(segments.len(), 1, "all of it fits into one segment of this retention");
    fs::remove_file(&segments[0]).unwrap();
    let said = loaded.audit(2, &[]);
    assert!(said.contains("there is no log of the store's changes") && said.contains("feed = true"), "{said}");

    let loaded = Loaded::owners(columns().remove(0));
    let mut service = loaded.follow(&server, &[&each[..], &["8MiB"]].concat());
    service.wait_for_slot(SLOT + 8);
    assert!(service.terminate().success());
    loaded.audit(0, &[]);
    let feed = loaded.dir.join("feed");
    let mut segments: Vec<PathBuf> = fs::read_dir(&feed).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    assert!(segments.len() >= 3, "{segments:?}");
    let aside = loaded.temp.path().join("aside");
    fs::rename(&segments[1], &aside).unwrap();
    let said = loaded.audit(2, &[]);
    assert!(said.contains("changes are missing: file=") && said.contains(str(&segments[2])), "{said}");
    fs::rename(&aside, &segments[1]).unwrap();
    loaded.audit(0, &[]);
    // As after a time without the feed.
    let newest = segments.last().unwrap();
    fs::rename(newest, &aside).unwrap();
    let said = loaded.audit(2, &[]);
    assert!(said.contains("does not lead to the store") && said.contains("log_seq="), "{said}");
    fs::rename(&aside, newest).unwrap();
    // The retention takes the oldest segment away.
    fs::remove_file(&segments[0]).unwrap();
    let said = loaded.audit(2, &[]);
    assert!(
        said.contains(&format!("archive_slot={SLOT} oldest_slot=")) && said.contains("feed_retention_bytes"),
        "{said}"
    );
}

#[test]
fn an_audit_that_is_killed_or_stopped_leaves_nothing_that_the_next_one_trips_over() {
    columns().into_iter().for_each(trip_over_other_audits);
}

fn trip_over_other_audits(options: EngineOptions) {
    let loaded = Loaded::owners(options);
    let (slots, _) = story(&loaded);
    let server = Scripted::start(slots);
    let mut service = loaded.follow(&server, &[]);
    service.wait_for_slot(SLOT + 4);
    let mut killed = loaded.waiting_audit();
    let said = loaded.audit_with(1, &["--archive", str(&archive(FULL))]);
    assert!(said.contains("another audit is running"), "{said}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(loaded.work_dir().join("copy-1").exists());
    // A copy that was cut short, whose name the service would refuse.
    fs::create_dir(loaded.work_dir().join("copy-2.partial")).unwrap();
    assert!(loaded.audit(0, &[]).contains("equal: "));

    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut stopped = loaded.waiting_audit();
        signal(&stopped, sent);
        // The archive ends its wait for bytes. If it was not waiting yet, it may be gone before it has read them.
        stopped.stdin.take().unwrap().write_all(&fs::read(archive(FULL)).unwrap()).ok();
        assert_eq!(stopped.wait().unwrap().code(), Some(code));
        let left = loaded.work_dir();
        assert!(!left.join("copy-1").exists(), "the copy is gone");
        assert!(loaded.audit(0, &[]).contains("equal: "));
    }
    // One that waits for the first byte of a server has no work directory yet.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{}", silent.local_addr().unwrap(), archive(FULL).file_name().unwrap().display());
    let mut stopped = loaded.command(&["--archive", &url]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let connection = silent.accept().unwrap();
    signal(&stopped, Signal::TERM);
    assert_eq!(stopped.wait().unwrap().code(), Some(143));
    drop(connection);
    // Files that no audit has made stay.
    let mine = loaded.temp.path().join("mine");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("copy-1"), "1").unwrap();
    let said = loaded.audit(2, &["--work-dir", str(&mine)]);
    assert!(said.contains("holds other files") && mine.join("copy-1").exists(), "{said}");
    assert_eq!(service.slot(), Some(SLOT + 4));
}

#[test]
fn what_cannot_be_compared_is_refused_with_the_way_out() {
    let loaded = Loaded::new(columns().remove(0), &["--extract", "token-owner"]);
    assert!(loaded.audit(0, &[]).contains("equal: "));
    let said = loaded.audit(2, &["--extract", "token-mint"]);
    assert!(said.contains("extract=token-owner asked_extract=token-mint"), "{said}");
    let said = loaded.audit(2, &["--slot", "7"]);
    assert!(said.contains("asked_slot=7"), "{said}");
    // An archive without a name is of the slot that was said, or it is refused.
    let unnamed = loaded.temp.path().join("archive.tar.zst");
    fs::copy(archive(FULL), &unnamed).unwrap();
    assert!(loaded.audit_with(2, &["--archive", str(&unnamed)]).contains("or give --slot"));
    let slot = SLOT.to_string();
    assert!(loaded.audit_with(0, &["--archive", str(&unnamed), "--slot", &slot]).contains("equal: "));
    let server = Scripted::start(vec![self::slot(SLOT + 1, &[]), self::slot(SLOT + 2, &[])]);
    let mut service = loaded.follow(&server, &[]);
    service.wait_for_slot(SLOT + 2);
    let later = (SLOT + 1).to_string();
    let said = loaded.audit_with(1, &["--archive", str(&unnamed), "--slot", &later]);
    assert!(said.contains(&format!("slot={SLOT} expected_slot={later}")), "{said}");
    assert!(loaded.audit_with(0, &["--archive", str(&unnamed), "--slot", &slot]).contains("equal: "));
    // Without changes the log says nothing but where it begins.
    let earlier = (SLOT - 1).to_string();
    let said = loaded.audit_with(2, &["--archive", str(&unnamed), "--slot", &earlier]);
    assert!(said.contains(&format!("archive_slot={earlier} oldest_slot={SLOT}")), "{said}");
    let nowhere = loaded.temp.path().join("nowhere");
    let full = archive(FULL);
    let output = Command::new(env!("CARGO_BIN_EXE_service"))
        .args(["audit", "--dir", str(&nowhere), "--archive", str(&full)])
        .output()
        .unwrap();
    assert!(output.status.code() == Some(2) && text(&output).contains("there is no store"), "{}", text(&output));
    assert!(!nowhere.exists());
}

/// Removes the first accounts file of an unpacked archive, and returns its name.
fn without_a_file(tar: &mut Vec<u8>) -> String {
    let mut at = 0;
    loop {
        let field = |from: usize, to: usize| {
            let text = std::str::from_utf8(&tar[at + from..at + to]).unwrap();
            text.trim_end_matches('\0').to_owned()
        };
        let (name, size) = (field(0, 100), usize::from_str_radix(&field(124, 136), 8).unwrap());
        let end = at + 512 + size.next_multiple_of(512);
        if name.starts_with("accounts/") {
            tar.drain(at..end);
            return name;
        }
        at = end;
    }
}

#[test]
fn the_manifests_of_loadgen_list_the_files_of_its_archives() {
    let temp = tempfile::tempdir().unwrap();
    let line = "--pairs 3000 --seed 5 --without large --pack none --slots-after 3 --incremental-slots 4";
    let plan = loadgen::archive::options(line).unwrap();
    let archives = loadgen::archive::write(&plan, temp.path(), &mut |_| Ok(())).unwrap();
    assert_eq!(archives.len(), 2);
    for archive in archives {
        let read =
            || solana::archive::Archive::open(str(&archive.file)).unwrap().read(&mut |_| Ok(()), &mut |_| Ok(()));
        let summary = read().unwrap();
        assert!(summary.listing.is_compared(), "{archive:?}");
        assert_eq!(
            (summary.slot, summary.files, summary.versions),
            (archive.slot, archive.counts.files, archive.counts.records)
        );
        let mut tar = fs::read(&archive.file).unwrap();
        let name = without_a_file(&mut tar);
        fs::write(&archive.file, tar).unwrap();
        let refused = read().unwrap_err().to_string();
        assert!(refused.contains(&format!("entry={name} is missing")), "{refused}");
    }
}

/// Archives of other writers, whose manifest lists no files, hold the same map.
#[test]
fn an_audit_takes_archives_without_a_list_and_no_part_of_one() {
    let temp = tempfile::tempdir().unwrap();
    let write = |like: &str| {
        let line = format!("--pairs 3000 --seed 5 --without large --slots-after 3 --incremental-slots 4 --like {like}");
        let plan = loadgen::archive::options(&line).unwrap();
        let archives = loadgen::archive::write(&plan, &temp.path().join(like), &mut |_| Ok(())).unwrap();
        let [full, incremental] = <[_; 2]>::try_from(archives).unwrap();
        (full.file, incremental.file)
    };
    let (full, incremental) = write("agave");
    let load = ["--incremental", str(&incremental), "--extract", "account-owner"];
    let loaded = Loaded::of(&full, columns().remove(0), &load);
    for like in ["agave-unlisted", "firedancer"] {
        let (full, incremental) = write(like);
        let newer = ["--archive", str(&full), "--incremental", str(&incremental)];
        let said = loaded.audit_with(0, &newer);
        assert!(said.contains("equal: archive_slot="), "{like}: {said}");
        if like == "firedancer" {
            for file in [&full, &incremental] {
                let bytes = fs::read(file).unwrap();
                // The last frame holds the end of the tar.
                fs::write(file, &bytes[..(bytes.len() - 1) / 4096 * 4096]).unwrap();
                let said = loaded.audit_with(1, &newer);
                assert!(said.contains(str(file)) && said.contains("get the archive again"), "{said}");
                fs::write(file, bytes).unwrap();
            }
        }
    }
}
