//! Gaps that are closed from snapshot archives: the map, the feed and the lookups stay exact, with kills, and with
//! archives that are too old, cut or late.

mod contradiction;
mod derived;
mod faults;
mod incremental;
mod last_slot;
mod refused;
mod too_large;
mod url;
mod watched;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use engines::EngineOptions;
use loadgen::stream::{Final, Stream, Workload};
use proto::v1::kv_client::KvClient;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{DumpThenTail, GetRequest};
use serde_json::json;
use solana::{ChainCheckpoint, MapPhase};
use tempfile::TempDir;
use tonic::Code;
use workload::Pairs;

use crate::feed::{Follower, Map, UNKNOWN, held, request, subscribe};
use crate::support::{BASE_SLOT, Service, client_runtime, columns, digest, end, load, stream, uds_channel, wait_for};

const STORY: &str = "--pairs 4000 --events 40000 --events-per-slot 100 --unknown-share 0.05 --change-share 0.4 \
                     --close-share 0.05 --skip-every 11";
/// The server keeps a second of slots, and sends for twelve.
const DELIVERY: &str = "--rate 3300 --replay-slots 33";
/// Slot at which the service is stopped before the outage.
const LEFT: u64 = BASE_SLOT + 10;
/// Slots sent when it comes back: more than the server keeps after `LEFT`.
const OUTAGE: u64 = 90;

/// A store whose slot is before the oldest slot that the stream's server still has.
struct Run {
    temp: TempDir,
    dir: PathBuf,
    archives: PathBuf,
    uds: PathBuf,
    stream: Stream,
    workload: Workload,
    options: EngineOptions,
}

impl Run {
    fn new(options: EngineOptions) -> Self {
        Self::with(options, DELIVERY)
    }

    fn with(options: EngineOptions, delivery: &str) -> Self {
        Self::telling(options, STORY, delivery)
    }

    /// Creates the run of a stream that tells this story.
    fn telling(options: EngineOptions, story: &str, delivery: &str) -> Self {
        let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let dir = temp.path().join("store");
        let (archives, uds) = (temp.path().join("archives"), temp.path().join("solkv.sock"));
        fs::create_dir(&archives).unwrap();
        let (stream, workload) = stream(&format!("{story} {delivery}"));
        load(&dir, &options, &workload);
        Self { temp, dir, archives, uds, stream, workload, options }
    }

    fn start(&self, more: &[&str]) -> Service {
        let geyser = format!("http://{}", self.stream.address());
        let always = ["--uds", self.uds.to_str().unwrap(), "--heal-from", self.archives.to_str().unwrap()];
        Service::start(&self.dir, &self.options, &geyser, &[&always[..], more].concat())
    }

    /// Follows the first slots, and is away for `outage` slots, which is longer than the server keeps its slots.
    fn fall_behind(&self, outage: u64) {
        let mut service = self.start(&[]);
        let reached = service.wait_for_slot(LEFT);
        service.kill();
        wait_for_sent(&self.stream, reached + outage);
    }

    /// Writes the archive of the stream's block `block` to the directory that is watched, and returns its slot.
    fn archive(&self, block: u64) -> u64 {
        write_archive(&self.archives, block)
    }

    /// Waits for the stream's end in the store, and returns it.
    fn reach_end(&self, service: &mut Service) -> Final {
        let end = end(&self.stream).clone();
        service.wait_for_slot(end.slot);
        wait_for("the end of the spool", || (!self.dir.join("spool").exists()).then_some(()));
        end
    }

    fn phase(&self) -> MapPhase {
        let engine = engines::open(&self.dir, &self.options, engines::OpenMode::Existing).unwrap();
        let checkpoint = ChainCheckpoint::read(&engine.checkpoint().unwrap()).unwrap();
        engine.close().unwrap();
        checkpoint.phase
    }

    /// A subscriber that has the store's first map.
    fn follower(&self, seed: u64) -> Follower {
        let pairs = self.workload.pairs;
        Follower::new(&self.uds, seed, Start::FromSeq(pairs + 1), (base_map(&self.workload), pairs))
    }

    /// Compares the store with the stream and with a subscriber, and returns the subscriber.
    fn finish_with(self, mut service: Service, end: &Final, subscriber: Subscriber) -> Follower {
        let seq = service.metric("solkv_checkpoint_seq").unwrap() as u64;
        // ORDERING: Relaxed: a number that is set once.
        subscriber.last_seq.store(seq, Ordering::Relaxed);
        let followed = subscriber.thread.join().unwrap();
        let map = self.finish(service, end);
        assert!(followed.seq == seq && followed.map == map, "each change came once, and the map is the store's");
        followed
    }

    /// Compares the store with the stream, and returns its map.
    fn finish(self, mut service: Service, end: &Final) -> Map {
        self.stream.stop().unwrap();
        wait_for("the end of the connection", || (service.metric("solkv_connected") == Some(0.0)).then_some(()));
        assert!(service.terminate().success());
        assert_eq!(digest(&self.dir, &self.options), end.digest, "{:?}", self.options);
        assert!(!self.dir.join("heal").exists(), "nothing of the heal is left");
        let map = held(&self.dir, &self.options);
        drop(self.temp);
        map
    }
}

/// A subscriber of the feed across all starts of the service.
struct Subscriber {
    thread: JoinHandle<Follower>,
    last_seq: Arc<AtomicU64>,
}

impl Subscriber {
    fn start(follower: Follower) -> Self {
        let last_seq = Arc::new(AtomicU64::new(UNKNOWN));
        Self { thread: follower.follow(Arc::clone(&last_seq)), last_seq }
    }
}

/// Waits until the stream's server has sent this slot.
pub(crate) fn wait_for_sent(stream: &Stream, slot: u64) {
    while stream.newest_slot() < slot {
        thread::sleep(Duration::from_millis(50));
    }
}

fn write_archive(dir: &Path, block: u64) -> u64 {
    write_archive_of("", dir, block)
}

/// Writes the archive of another chain, which `more` tells apart from the stream's.
fn write_archive_of(more: &str, dir: &Path, block: u64) -> u64 {
    let plan = loadgen::archive::options(&format!("{STORY} --without large --slots-after {block} {more}")).unwrap();
    loadgen::archive::write(&plan, dir, &mut |_| Ok(())).unwrap()[0].slot
}

/// Writes the first half of such an archive to the directory that is watched.
fn write_half(more: &str, run: &Run, block: u64) -> u64 {
    let elsewhere = run.temp.path().join(format!("whole-{block}"));
    let slot = write_archive_of(more, &elsewhere, block);
    let file = fs::read_dir(&elsewhere).unwrap().next().unwrap().unwrap();
    let bytes = fs::read(file.path()).unwrap();
    fs::write(run.archives.join(file.file_name()), &bytes[..bytes.len() / 2]).unwrap();
    slot
}

/// Waits until the service waits for an archive, and returns the slot that it needs and the whole reason.
pub(crate) fn wait_for_need(service: &mut Service, words: &str) -> (u64, String) {
    let needs = "healing: waiting for a snapshot archive of slot=";
    let (_, reason) = wait_for("the wait for an archive", || {
        service.get("/readyz").filter(|(code, body)| *code == 503 && body.contains(needs) && body.contains(words))
    });
    let slot = reason.split_once("archive of slot=").unwrap().1.split(' ').next().unwrap();
    (slot.parse().unwrap(), reason)
}

/// Returns the value of a key as a lookup answers it.
fn get(uds: &Path, key: &[u8; 32]) -> Result<Option<Bytes>, tonic::Status> {
    client_runtime().block_on(async {
        let channel = uds_channel(uds).await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let request = GetRequest { key: Bytes::copy_from_slice(key), ..GetRequest::default() };
        Ok(KvClient::new(channel).get(request).await?.into_inner().value)
    })
}

/// Asks for a dump, and returns the error that it ends with. None of its pairs may come.
fn refused_dump(uds: &Path) -> tonic::Status {
    client_runtime().block_on(async {
        let mut messages = match subscribe(uds, request(Start::DumpThenTail(DumpThenTail {}))).await {
            Ok(messages) => messages,
            Err(refused) => return refused,
        };
        loop {
            match messages.message().await {
                Ok(message) => {
                    let kind = message.and_then(|message| message.kind);
                    assert!(matches!(kind, Some(Kind::Started(_))), "{kind:?}");
                }
                Err(refused) => return refused,
            }
        }
    })
}

/// A client that reads while the store is healed.
struct Reader;

impl Reader {
    /// Reads until an answer is of a later slot than `before`, and returns that slot. All answers of `before` have to be
    /// equal, and none may be refused.
    fn start(run: &Run, before: u64) -> JoinHandle<u64> {
        let pairs = Pairs::new(run.workload.seed);
        let keys: Vec<[u8; 32]> = (0..200).map(|index| pairs.key(index)).collect();
        let channel = run.uds.clone();
        let (read, has_read) = std::sync::mpsc::channel();
        let reader = thread::spawn(move || {
            client_runtime().block_on(async {
                let mut client = KvClient::new(uds_channel(&channel).await.unwrap());
                let mut first = Vec::new();
                for at in 0.. {
                    let key = Bytes::copy_from_slice(&keys[at % keys.len()]);
                    let found = client.get(GetRequest { key, ..GetRequest::default() }).await.unwrap().into_inner();
                    match found.slot {
                        Some(slot) if slot > before => return slot,
                        slot => assert_eq!(slot, Some(before)),
                    }
                    if at < keys.len() {
                        first.push(found.value);
                    } else {
                        assert_eq!(
                            first[at % keys.len()],
                            found.value,
                            "a value of a later slot is called one of before"
                        );
                    }
                    if at == keys.len() {
                        read.send(()).unwrap();
                    }
                }
                unreachable!("the keys are read again and again")
            })
        });
        has_read.recv().unwrap();
        reader
    }
}

fn base_map(workload: &Workload) -> Map {
    let pairs = Pairs::new(workload.seed);
    (0..workload.pairs).map(|n| (pairs.key(n).to_vec(), pairs.value(n, 0).to_vec())).collect()
}

#[test]
fn a_gap_is_closed_from_the_archive_that_comes_and_subscribers_stay_exact() {
    for options in columns() {
        let run = Run::new(options);
        let subscriber = Subscriber::start(run.follower(1));
        run.fall_behind(OUTAGE);
        let mut service = run.start(&["--commit-every", "40"]);
        let before = wait_for("the store", || service.slot());
        let (needed, _) = wait_for_need(&mut service, "there is none");
        assert!(needed > before + 33, "needed={needed} before={before}");
        assert_eq!(run.archive(0), BASE_SLOT);
        wait_for_need(&mut service, &format!("the newest one is too old: slot={BASE_SLOT}"));
        assert_eq!((service.metric("solkv_healing"), service.slot()), (Some(1.0), Some(before)));
        let status = service.status();
        assert!(status["heal"]["under_way"] == true && status["spool"]["under_way"] == true, "{status}");
        assert!(get(&run.uds, &Pairs::new(run.workload.seed).key(7)).is_ok(), "lookups go on");
        let reader = Reader::start(&run, before);
        // As a validator of another kind wrote it, and agave downloads it.
        let remote = run.archives.join("remote");
        let slot = write_archive_of("--like firedancer", &remote, needed - BASE_SLOT);
        let seen_slot = reader.join().unwrap();
        assert!(seen_slot >= slot, "the first slot after the view from before is the archive's or later: {seen_slot}");
        let end = run.reach_end(&mut service);
        assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
        let (differences, applied) = ("solkv_heal_differences", "solkv_heal_applied");
        let differences = service.metric(differences).unwrap();
        assert!(differences > 1000.0 && service.metric(applied) == Some(differences), "{differences}");
        let count = differences as u64;
        let heal = json!({
            "under_way": false, "differences": count, "applied": count, "healed": 1, "failures": 0, "sources_failing": 0,
            "newest_archive_slot": slot,
        });
        assert_eq!(service.status()["heal"], heal);
        run.finish_with(service, &end, subscriber);
    }
}

#[test]
fn killed_while_it_heals_it_goes_on_and_answers_nothing_between_two_slots() {
    for options in columns() {
        let run = Run::new(options);
        let subscriber = Subscriber::start(run.follower(2));
        run.fall_behind(OUTAGE);
        let small = ["--commit-every", "5"];
        let mut service = run.start(&small);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        // Killed while it waits: the spool stays, and its first slot with it.
        service.kill();
        let mut service = run.start(&small);
        assert_eq!(wait_for_need(&mut service, "there is none").0, needed);
        let slot = run.archive(needed - BASE_SLOT);
        wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
        service.kill();
        assert!(matches!(run.phase(), MapPhase::Healing { to_slot, .. } if to_slot == slot), "{:?}", run.phase());
        // Without the archive it waits between two slots, and no lookup is answered from there.
        let away = run.temp.path().join("away");
        fs::rename(&run.archives, &away).unwrap();
        let mut service = run.start(&small);
        wait_for_need(&mut service, "cannot list");
        let refused = [get(&run.uds, &Pairs::new(run.workload.seed).key(7)).unwrap_err(), refused_dump(&run.uds)];
        let says_why = |refused: &tonic::Status| refused.message().contains("to the slot of a snapshot archive");
        assert!(refused.iter().all(|refused| refused.code() == Code::Unavailable && says_why(refused)), "{refused:?}");
        fs::rename(&away, &run.archives).unwrap();
        wait_for("more differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
        service.kill();
        let mut service = run.start(&small);
        service.wait_for_slot(slot);
        let end = run.reach_end(&mut service);
        assert!(get(&run.uds, &Pairs::new(run.workload.seed).key(7)).is_ok(), "lookups are back");
        run.finish_with(service, &end, subscriber);
    }
}

/// The changes before the kill are of a slot that has no end, because the map is never at it: the end of the newer
/// archive's slot covers them.
#[test]
fn killed_while_it_heals_it_goes_on_with_a_newer_archive() {
    for options in columns() {
        let run = Run::new(options);
        let mut follower = run.follower(2);
        follower.may_leave_open = true;
        let subscriber = Subscriber::start(follower);
        run.fall_behind(OUTAGE);
        let small = ["--commit-every", "5"];
        let mut service = run.start(&small);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        let first = run.archive(needed - BASE_SLOT);
        wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
        service.kill();
        assert!(matches!(run.phase(), MapPhase::Healing { to_slot, .. } if to_slot == first), "{:?}", run.phase());
        fs::remove_dir_all(&run.archives).unwrap();
        let second = run.archive(needed - BASE_SLOT + 15);
        assert!(second > first);
        let mut service = run.start(&small);
        service.wait_for_slot(second);
        let end = run.reach_end(&mut service);
        let followed = run.finish_with(service, &end, subscriber);
        let ends: Vec<u64> = followed.ends.iter().map(|end| end.slot).collect();
        assert!(!ends.contains(&first) && ends.contains(&second), "{first} {second} {ends:?}");
    }
}

#[test]
fn an_archive_that_cannot_be_used_changes_nothing_and_a_newer_one_heals() {
    let run = Run::new(columns().remove(0));
    run.fall_behind(OUTAGE);
    let mut service = run.start(&[]);
    let before = wait_for("the store", || service.slot());
    let (needed, _) = wait_for_need(&mut service, "there is none");
    let cut = write_half("", &run, needed - BASE_SLOT);
    wait_for("a refusal", || service.metric("solkv_heal_failures_total").filter(|failures| *failures == 1.0));
    wait_for_need(&mut service, &format!("archive_slot={cut}: "));
    assert_eq!((service.slot(), service.metric("solkv_heal_differences")), (Some(before), Some(0.0)));
    assert!(get(&run.uds, &Pairs::new(run.workload.seed).key(7)).is_ok(), "lookups go on");
    // The slots of two chains have the same numbers, so only the blockhash shows that an archive is of another chain. Its
    // manifest tells, and the rest, which is missing here, is not read.
    let foreign = write_half("--seed 9", &run, needed - BASE_SLOT + 5);
    wait_for("a refusal", || service.metric("solkv_heal_failures_total").filter(|failures| *failures == 2.0));
    wait_for_need(&mut service, &format!("archive_slot={foreign}: the archive is of another chain than the stream"));
    assert_eq!((service.slot(), service.metric("solkv_heal_differences")), (Some(before), Some(0.0)));
    let slot = run.archive(needed - BASE_SLOT + 10);
    assert!(slot > foreign && foreign > cut);
    service.wait_for_slot(slot);
    let end = run.reach_end(&mut service);
    run.finish(service, &end);
}
