//! The Redis protocol of a whole service: the same answers as gRPC's on both sockets, and clients that do not read, do not
//! finish, or are web pages.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use client::{Builder, Key, Value};
use engines::EngineOptions;
use tempfile::TempDir;
use workload::Pairs;

use crate::support::{BASE_SLOT, Service, columns, free_address, load, stream, wait_for};

const PAIRS: u64 = 30_000;
const SEED: u64 = 1;

/// Maximum growth of memory while clients do not read: the 64 MiB that all of them may hold, and the engine's own.
const GROWTH_BYTES_MAX: u64 = 160 << 20;

trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

struct Redis(BufReader<Box<dyn Socket>>);

impl Redis {
    fn send(&mut self, words: &[&[u8]]) {
        self.0.get_mut().write_all(&request(words)).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn bulk(&mut self) -> Option<Vec<u8>> {
        let header = self.line();
        let length: usize = header.strip_prefix('$').unwrap_or_else(|| panic!("no text: {header}")).parse().ok()?;
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes.split_off(length), b"\r\n");
        Some(bytes)
    }
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

struct Setup {
    temp: TempDir,
    options: EngineOptions,
    redis: String,
    service: Service,
}

impl Setup {
    fn start() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let options = columns().remove(0);
        let (stream, workload) = stream(&format!("--pairs {PAIRS} --seed {SEED} --events 1000"));
        load(&temp.path().join("store"), &options, &workload);
        stream.stop().unwrap();
        let redis = free_address("127.0.0.1");
        let service = Self::serve(temp.path(), &options, &redis);
        Self { temp, options, redis, service }
    }

    fn serve(dir: &Path, options: &EngineOptions, redis: &str) -> Service {
        let (uds, redis_uds) = (dir.join("kv.sock"), dir.join("redis.sock"));
        let more = ["--redis", redis, "--redis-uds", redis_uds.to_str().unwrap(), "--uds", uds.to_str().unwrap()];
        Service::start(&dir.join("store"), options, "http://127.0.0.1:1", &more)
    }

    fn tcp(&self) -> Redis {
        let stream = wait_for("a connection", || TcpStream::connect(&self.redis).ok());
        Redis(BufReader::new(Box::new(stream)))
    }

    fn uds(&self) -> Redis {
        let stream = wait_for("a connection", || UnixStream::connect(self.temp.path().join("redis.sock")).ok());
        Redis(BufReader::new(Box::new(stream)))
    }
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

/// Requests of several kinds, so that every answer has to be in its own place.
fn nth_request(n: usize, key: &Key, other: &Key) -> Vec<u8> {
    match n % 10 {
        3 => request(&[b"GET", bs58::encode(key).into_string().as_bytes()]),
        5 => request(&[b"MGET", key, other]),
        7 => request(&[b"GET", b"no key"]),
        _ => request(&[b"get", key]),
    }
}

fn check_answers(client: &mut Redis) {
    let (keys, values) = mixed(5000);
    let all: Vec<_> = keys.iter().zip(&values).enumerate().collect();
    // As many at once as the sockets hold with their answers, and cut anywhere.
    for some in all.chunks(500) {
        let sent: Vec<u8> = some.iter().flat_map(|(n, (key, _))| nth_request(*n, key, &keys[n / 2])).collect();
        sent.chunks(4099).for_each(|piece| client.0.get_mut().write_all(piece).unwrap());
        for (n, (_, value)) in some {
            let expected = value.map(|value| value.to_vec());
            match n % 10 {
                3 => {
                    let expected = value.map(|value| bs58::encode(value).into_string().into_bytes());
                    assert_eq!(client.bulk(), expected, "n={n}");
                }
                5 => {
                    assert_eq!(client.line(), "*2");
                    assert_eq!(client.bulk(), expected, "n={n}");
                    assert_eq!(client.bulk(), values[n / 2].map(|value| value.to_vec()), "n={n}");
                }
                7 => assert!(client.line().starts_with("-ERR E-REQUEST"), "n={n}"),
                _ => assert_eq!(client.bulk(), expected, "n={n}"),
            }
        }
    }
    client.send(&[b"SOLKV.GET", &keys[1], b"MINSLOT", BASE_SLOT.to_string().as_bytes()]);
    assert_eq!(client.line(), "*2");
    assert_eq!(client.bulk(), values[1].map(|value| value.to_vec()));
    assert_eq!(client.line(), format!(":{BASE_SLOT}"));
}

#[test]
fn both_sockets_answer_as_grpc_does_and_come_back_after_a_kill() {
    let mut setup = Setup::start();
    for _ in 0..2 {
        check_answers(&mut setup.tcp());
        check_answers(&mut setup.uds());
        let uds = format!("unix://{}", setup.temp.path().join("kv.sock").display());
        let mut grpc = wait_for("gRPC", || Builder::new(&uds).unwrap().connect_blocking().ok());
        let (keys, values) = mixed(100);
        assert_eq!(grpc.get_many(&keys).unwrap().value, values);
        let Setup { temp, options, redis, service } = setup;
        service.kill();
        let service = Setup::serve(temp.path(), &options, &redis);
        setup = Setup { temp, options, redis, service };
    }
    let held = setup.uds();
    assert!(setup.service.terminate().success());
    assert!(!setup.temp.path().join("redis.sock").exists(), "the socket's file is gone with the service");
    drop(held);
}

#[test]
fn clients_that_do_not_read_or_finish_take_bounded_memory_and_keep_nobody_out() {
    let mut setup = Setup::start();
    let (keys, values) = mixed(10_000);
    let mut victim = setup.uds();
    victim.send(&[b"GET", &keys[1]]);
    assert_eq!(victim.bulk(), values[1].map(|value| value.to_vec()));
    wait_for("its first page", || setup.service.get("/healthz"));
    let before = setup.service.memory_bytes("VmRSS");
    let words: Vec<&[u8]> = std::iter::once(b"MGET".as_slice()).chain(keys.iter().map(Key::as_slice)).collect();
    let largest = request(&words);
    let mut held = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(&setup.redis).unwrap();
        stream.set_nonblocking(true).unwrap();
        let sent = match n % 4 {
            // Asked for, and never read.
            0 => largest.repeat(8),
            1 => request(&[b"GET", &keys[2]]).repeat(100_000),
            // Announced, and never sent.
            2 => largest[..largest.len() - 7].to_vec(),
            _ => b"*10001\r\n$33\r\n".to_vec(),
        };
        let mut sent = sent.as_slice();
        // As much as the service takes: its sockets are full then, or it has ended the connection.
        for _ in 0..20 {
            match stream.write(sent) {
                Ok(0) | Err(_) => std::thread::sleep(Duration::from_millis(1)),
                Ok(count) => sent = &sent[count..],
            }
        }
        held.push(stream);
        victim.send(&[b"GET", &keys[1]]);
        assert_eq!(victim.bulk(), values[1].map(|value| value.to_vec()), "n={n}");
    }
    for hostile in ["POST / HTTP/1.1\r\nHost: x\r\n\r\nGET k\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nPING\r\n"]
    {
        let mut page = setup.tcp();
        page.0.get_mut().write_all(hostile.as_bytes()).unwrap();
        let mut answer = String::new();
        // The connection may end while bytes are still unread, which resets it.
        page.0.read_to_string(&mut answer).ok();
        assert!(answer.matches("\r\n").count() <= 1 && !answer.contains("PONG"), "{answer}");
    }
    check_answers(&mut setup.uds());
    let grown = setup.service.memory_bytes("VmRSS").saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "grown={grown}");
    drop(held);
    assert!(setup.service.terminate().success());
}
