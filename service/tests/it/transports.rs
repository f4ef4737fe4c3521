//! One service, asked over shared memory, a Unix socket and TCP. All transports give the same answers, and behave alike
//! when either side stops, comes back or is killed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::{Answer, Builder, Commitment, ErrorKind, Key, ReadOptions, Value, blocking};
use engines::EngineOptions;
use tempfile::TempDir;
use workload::Pairs;

use crate::support::{BASE_SLOT, Service, Signal, columns, free_address, load, signal, stream, wait_for};

const PAIRS: u64 = 30_000;
const SEED: u64 = 1;

/// Time limit that only a hang reaches.
const LONG: Duration = Duration::from_secs(100);

/// A service with every transport, on a store that no stream changes.
struct Setup {
    temp: TempDir,
    options: EngineOptions,
    listen: String,
    service: Service,
}

impl Setup {
    fn start() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let options = columns().remove(0);
        let (stream, workload) = stream(&format!("--pairs {PAIRS} --seed {SEED} --events 1000"));
        load(&temp.path().join("store"), &options, &workload);
        stream.stop().unwrap();
        let listen = free_address("127.0.0.1");
        let service = Self::serve(temp.path(), &options, &listen);
        Self { temp, options, listen, service }
    }

    /// Starts the service. Nothing listens at the stream's address, and lookups work anyway.
    fn serve(dir: &Path, options: &EngineOptions, listen: &str) -> Service {
        let (shm, uds) = (dir.join("shm.sock"), dir.join("kv.sock"));
        let more = ["--shm", shm.to_str().unwrap(), "--uds", uds.to_str().unwrap()];
        let metrics = free_address("127.0.0.1");
        Service::start_at(&dir.join("store"), options, "http://127.0.0.1:1", listen.to_owned(), metrics, |command| {
            command.args(more)
        })
    }

    /// Kills the service and starts it again with the same store and addresses.
    fn again(self) -> Self {
        let Self { temp, options, listen, service } = self;
        service.kill();
        let service = Self::serve(temp.path(), &options, &listen);
        Self { temp, options, listen, service }
    }

    fn shm_socket(&self) -> PathBuf {
        self.temp.path().join("shm.sock")
    }

    /// Returns clients for shared memory, spinning and sleeping, for the Unix socket and for TCP.
    fn builders(&self) -> Vec<Builder> {
        let shm = format!("shm://{}", self.shm_socket().display());
        let uds = format!("unix://{}", self.temp.path().join("kv.sock").display());
        let tcp = format!("http://{}", self.listen);
        let spins = [Duration::from_millis(1), Duration::ZERO, Duration::ZERO, Duration::ZERO];
        let addresses = [shm.clone(), shm, uds, tcp];
        addresses.iter().zip(spins).map(|(address, spin)| Builder::new(address).unwrap().spin(spin)).collect()
    }

    fn clients(&self, deadline: Duration) -> Vec<blocking::Client> {
        let connect = |builder: Builder| {
            let builder = builder.deadline(deadline);
            wait_for("a connection", || builder.clone().connect_blocking().ok())
        };
        self.builders().into_iter().map(connect).collect()
    }
}

fn key(index: u64) -> Key {
    Pairs::new(SEED).key(index)
}

fn right(index: u64) -> Answer<Option<Value>> {
    Answer { value: Some(Pairs::new(SEED).value(index, 0)), slot: Some(BASE_SLOT) }
}

/// Returns keys, every third of which is absent, with their values.
fn mixed(count: u64) -> (Vec<Key>, Vec<Option<Value>>) {
    let pairs = Pairs::new(SEED);
    let pair = |n| match n % 3 {
        0 => (pairs.absent_key(n), None),
        _ => (pairs.key(n), Some(pairs.value(n, 0))),
    };
    (0..count).map(pair).unzip()
}

#[test]
fn every_transport_gives_the_same_answers() {
    let mut setup = Setup::start();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for mut client in setup.clients(LONG) {
        assert_eq!(client.get(&key(5)).unwrap(), right(5));
        let absent = client.get(&Pairs::new(SEED).absent_key(3)).unwrap();
        assert_eq!(absent, Answer { value: None, slot: Some(BASE_SLOT) });
        for count in [0, 1, 2, 7, 8, 9, 1000, 10_000, 10_001, 25_000] {
            let (keys, values) = mixed(count);
            let found = client.get_many(&keys).unwrap();
            assert!(found.value == values && found.slot == Some(BASE_SLOT), "count={count} slot={:?}", found.slot);
        }
        let status = client.status().unwrap();
        assert_eq!((status.engine.as_str(), status.ready), (setup.options.engine.as_str(), false));
        assert_eq!(status.checkpoint.slot, Some(BASE_SLOT));
        let confirmed =
            ReadOptions { commitment: Commitment::Confirmed, min_context_slot: Some(BASE_SLOT), deadline: None };
        assert_eq!(client.get_with(&key(6), confirmed).unwrap(), right(6));
    }
    assert_eq!(mode(&setup.shm_socket()), 0o600, "shared memory is for the owner");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        for builder in setup.builders() {
            let client = builder.deadline(LONG).connect().await.unwrap();
            // Many requests run concurrently on one client, and some of them are given up.
            let all: Vec<_> = (0..50).map(|index| (index, client.clone())).collect();
            let asked = all.iter().map(|(index, client)| async move {
                if index % 7 == 3 {
                    let given_up = tokio::time::timeout(Duration::ZERO, client.get(&key(*index))).await;
                    drop(given_up);
                }
                client.get(&key(*index)).await.unwrap()
            });
            let found = futures::future::join_all(asked).await;
            assert!(found.into_iter().eq((0..50).map(right)));
            let (keys, values) = mixed(25_000);
            assert!(client.get_many(&keys).await.unwrap().value == values);
            assert_eq!(client.status().await.unwrap().checkpoint.slot, Some(BASE_SLOT));
        }
    });
    assert!(setup.service.metric("solkv_shm_sessions").is_some());
    assert!(setup.service.terminate().success());
    assert!(!setup.temp.path().join("shm.sock").exists(), "the socket's file is gone with the service");
}

#[test]
fn what_the_service_does_not_know_is_refused() {
    let setup = Setup::start();
    for mut client in setup.clients(LONG).into_iter().take(2) {
        for (commitment, kind) in
            [(Commitment::Processed, ErrorKind::Refused), (Commitment::Finalized, ErrorKind::Unavailable)]
        {
            let refused = client.get_with(&key(1), ReadOptions { commitment, ..ReadOptions::default() }).unwrap_err();
            assert_eq!(refused.kind(), kind, "{refused}");
        }
        // The deadline is long enough for an answer on a busy machine, so the refusal comes from the service.
        let short = Some(Duration::from_secs(1));
        let later = ReadOptions { min_context_slot: Some(BASE_SLOT + 1), deadline: short, ..ReadOptions::default() };
        let refused = client.get_with(&key(1), later).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
        assert_eq!(client.get(&key(1)).unwrap(), right(1));
    }
}

#[test]
fn a_service_that_stands_still_ends_in_the_deadline_and_answers_later() {
    let setup = Setup::start();
    let mut clients = setup.clients(LONG);
    for client in &mut clients {
        client.get(&key(1)).unwrap();
    }
    setup.service.freeze();
    let short = ReadOptions { deadline: Some(Duration::from_millis(30)), ..ReadOptions::default() };
    for client in &mut clients {
        for _ in 0..2 {
            let late = client.get_with(&key(1), short).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "{late}");
        }
    }
    setup.service.signal(Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.get(&key(2)).unwrap(), right(2), "not the answer to what was given up on");
    }
}

#[test]
fn clients_outlive_a_killed_service() {
    let mut setup = Setup::start();
    let mut clients = setup.clients(LONG);
    for client in &mut clients {
        assert_eq!(client.get(&key(1)).unwrap(), right(1));
    }
    // The service is killed once while calls wait for it, and once while no call runs.
    for under_way in [true, false] {
        if under_way {
            setup.service.freeze();
        }
        let calls: Vec<_> = clients
            .drain(..)
            .map(|mut client| {
                std::thread::spawn(move || {
                    let found = under_way.then(|| client.get(&key(2)));
                    (client, found)
                })
            })
            .collect();
        setup = setup.again();
        for call in calls {
            let (mut client, found) = call.join().unwrap();
            if let Some(found) = found {
                assert_eq!(found.unwrap(), right(2));
            }
            assert_eq!(client.get(&key(3)).unwrap(), right(3));
            clients.push(client);
        }
    }
    let Setup { service, temp, .. } = setup;
    service.kill();
    for client in &mut clients {
        let short = ReadOptions { deadline: Some(Duration::from_millis(30)), ..ReadOptions::default() };
        let gone = client.get_with(&key(1), short).unwrap_err();
        assert!(matches!(gone.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{gone}");
    }
    let stale = format!("shm://{}", temp.path().join("shm.sock").display());
    let refused = blocking::Client::connect(&stale).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
}

/// The client of `a_killed_client_leaves_nothing`, which sends requests without end.
#[test]
#[ignore = "a process of another test, which kills it"]
fn client_to_be_killed() {
    let mut client = blocking::Client::connect(&std::env::var("SOLKV_TEST_ADDRESS").unwrap()).unwrap();
    let (keys, values) = mixed(10_000);
    loop {
        assert!(client.get_many(&keys).unwrap().value == values);
    }
}

#[test]
fn a_killed_client_leaves_nothing() {
    let mut setup = Setup::start();
    let address = format!("shm://{}", setup.shm_socket().display());
    let mut other = setup.clients(LONG).remove(0);
    let spawn = || -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "transports::client_to_be_killed"]).env("SOLKV_TEST_ADDRESS", &address);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    };
    for kill in 0..5 {
        let mut child = spawn();
        wait_for("a second client", || setup.service.metric("solkv_shm_sessions").filter(|sessions| *sessions == 2.0));
        let asked = setup.service.metric("solkv_lookups_total").unwrap();
        wait_for("its requests", || setup.service.metric("solkv_lookups_total").filter(|now| *now > asked + 10_000.0));
        if kill % 2 == 1 {
            // The client is dead before the service has read its request.
            setup.service.freeze();
            signal(&child, Signal::KILL);
            setup.service.signal(Signal::CONT);
        } else {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        assert_eq!(other.get(&key(kill)).unwrap(), right(kill));
        wait_for("its end", || setup.service.metric("solkv_shm_sessions").filter(|sessions| *sessions == 1.0));
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", setup.service.id())).unwrap();
        assert_eq!(maps.matches("memfd:solkv-shm").count(), 1, "the dead client's memory is unmapped");
        assert_eq!(other.get(&key(kill + 9)).unwrap(), right(kill + 9));
    }
}
