//! Malicious clients, all at once, while a stream is followed. Other clients are served, memory stays bounded, and the
//! stream reaches its end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine_latency::{Op, export};
use h2::client::SendRequest;
use proto::v1::kv_client::KvClient;
use proto::v1::{GetManyRequest, GetRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use workload::{Pairs, Rng};

use crate::support::{Service, columns, digest, end, load, stream, uds_channel, wait_for};

/// Number of connections that the service under test allows; 25 of them are the Unix socket's.
const CONNECTIONS_MAX: u64 = 200;

/// Maximum growth of memory. It is well above the limits together (64 MiB of requests and answers, 1 MiB a connection,
/// the engine's own memory). It is well below the memory that these clients would hold without limits.
const GROWTH_BYTES_MAX: u64 = 320 << 20;

/// Minimum number of pairs that every stream here begins with.
const PAIRS: u64 = 5000;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An empty SETTINGS frame, with which every client begins.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Addresses of the service under test.
#[derive(Clone)]
struct Target {
    tcp: String,
    http: String,
    uds: PathBuf,
}

/// A client that keeps to the rules, on connections made before the abuse.
struct Good {
    seed: u64,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Good {
    async fn start(target: &Target, seed: u64) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for channel in [tcp_channel(&target.tcp).await, uds_channel(&target.uds).await.unwrap()] {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            tasks.spawn(async move {
                let mut client = KvClient::new(channel);
                let mut index = 0;
                while !stop.load(Ordering::Relaxed) {
                    index = (index + 1) % 1000;
                    let key = Pairs::new(seed).key(index).to_vec().into();
                    client.get(GetRequest { key, ..Default::default() }).await.unwrap();
                    answered.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        }
        Self { seed, stop, answered, tasks }
    }

    /// Asserts that this client still gets answers.
    async fn is_served(&self, during: &str) {
        let before = self.answered.load(Ordering::Relaxed);
        let more = async {
            while self.answered.load(Ordering::Relaxed) < before + 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), more).await.is_ok(), "not served: {during}");
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

async fn tcp_channel(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// Opens an HTTP/2 connection without gRPC. A task drives it until it ends.
async fn by_hand(target: &Target) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(&target.tcp).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async {
        // The callers check how it ends.
        connection.await.ok();
    });
    requests
}

fn post(method: &str) -> http::Request<()> {
    let request = http::Request::post(format!("http://localhost/solkv.v1.Kv/{method}"));
    request.header("content-type", "application/grpc").header("te", "trailers").body(()).unwrap()
}

/// Encodes a gRPC message: the flag "not compressed", its length, then its bytes.
fn framed(message: &impl prost::Message) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend((message.encoded_len() as u32).to_be_bytes());
    message.encode(&mut bytes).unwrap();
    bytes.into()
}

/// Opens and drops 10,000 connections.
async fn dropped(target: &Target) {
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let target = target.clone();
        tasks.spawn(async move {
            for n in 0..1250 {
                let mut stream = TcpStream::connect(&target.tcp).await.unwrap();
                // Reset, so that no port of this machine stays in use.
                stream.set_zero_linger().unwrap();
                if n % 2 == 0 {
                    stream.write_all(PREFACE).await.ok();
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// Opens more connections than are allowed and leaves them idle, some in the middle of their opening line.
async fn half_open(target: &Target) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for n in 0..CONNECTIONS_MAX as usize {
        let mut stream = TcpStream::connect(&target.tcp).await.unwrap();
        stream.write_all(&PREFACE[..n % PREFACE.len()]).await.ok();
        held.push(stream);
        let mut stream = TcpStream::connect(&target.http).await.unwrap();
        stream.write_all(&b"GET /metrics HTTP/1.1\r\nhost: a"[..n % 30]).await.ok();
        held.push(stream);
    }
    held
}

/// Waits until the service has ended each connection.
async fn ended(held: Vec<TcpStream>) {
    for mut stream in held {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
        assert!(read.is_ok(), "a connection that says nothing is kept");
    }
}

/// Sends random bytes, and frames larger than allowed, to every port. The service ends each connection.
async fn garbage(target: &Target) {
    let mut rng = Rng::new(7);
    for n in 0..50 {
        let mut bytes: Vec<u8> = (0..4096).map(|_| rng.next_u64() as u8).collect();
        // HTTP/1 reads up to the end of a line.
        bytes.extend(b"\r\n\r\n");
        match n % 3 {
            1 => bytes.splice(0..0, [PREFACE, SETTINGS].concat()).for_each(drop),
            // A frame of 16 MiB.
            2 => bytes.splice(0..0, [PREFACE, SETTINGS, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat()).for_each(drop),
            _ => {}
        }
        let mut rest = Vec::new();
        let mut stream = TcpStream::connect(&target.tcp).await.unwrap();
        stream.write_all(&bytes).await.ok();
        stream.read_to_end(&mut rest).await.ok();
        let mut stream = UnixStream::connect(&target.uds).await.unwrap();
        stream.write_all(&bytes).await.ok();
        stream.read_to_end(&mut rest).await.ok();
        let mut stream = TcpStream::connect(&target.http).await.unwrap();
        stream.write_all(&bytes).await.ok();
        stream.read_to_end(&mut rest).await.ok();
    }
}

/// Sends requests and headers larger than allowed. Each gets an error that says so.
async fn oversized(target: &Target) {
    let mut client = KvClient::new(uds_channel(&target.uds).await.unwrap());
    let keys = |count: usize| vec![Bytes::from_static(&[7; 32]); count];
    let status = client.get_many(GetManyRequest { keys: keys(1_000_000), ..Default::default() }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(
        ["at most 10000 keys", "max_bytes=524288"].iter().all(|part| status.message().contains(part)),
        "{status:?}"
    );
    let status = client.get_many(GetManyRequest { keys: keys(10_001), ..Default::default() }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let request = || GetRequest { key: vec![1; 32].into(), ..Default::default() };
    let padded = |bytes: usize| {
        let mut request = tonic::Request::new(request());
        request.metadata_mut().insert("padding", "x".repeat(bytes).parse().unwrap());
        request
    };
    assert!(client.get(padded(16 * 1024)).await.is_err(), "16 KiB of metadata are taken");
    client.get(request()).await.unwrap();
    // More than four times the limit ends the connection (h2), so the next request goes over a new one.
    assert!(client.get(padded(64 * 1024)).await.is_err(), "64 KiB of metadata are taken");
    let mut client = KvClient::new(uds_channel(&target.uds).await.unwrap());
    client.get(request()).await.unwrap();
}

/// Requests answers of 360 KB and does not read them. Returns how many requests were refused.
async fn slow_readers(target: &Target, seed: u64) -> u64 {
    const CLIENTS: usize = 5;
    const REQUESTS: usize = 50;
    let keys = (0..10_000).map(|index| Pairs::new(seed).key(index % PAIRS).to_vec().into()).collect();
    let message = framed(&GetManyRequest { keys, ..Default::default() });
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..CLIENTS {
        let mut requests = by_hand(target).await;
        for _ in 0..REQUESTS {
            requests = requests.ready().await.unwrap();
            let (response, mut body) = requests.send_request(post("GetMany"), false).unwrap();
            body.send_data(message.clone(), true).unwrap();
            let mut response = response.await.unwrap();
            // A request refused before its lookup has its status at the head, one without room for its answer at the
            // end. Only the head of the other answers is read, so their bodies stay in the service.
            let status = match response.headers().get("grpc-status") {
                Some(status) => Some(status.clone()),
                None => {
                    let end = tokio::time::timeout(Duration::from_millis(5), response.body_mut().trailers()).await;
                    end.ok().and_then(|end| end.unwrap()?.get("grpc-status").cloned())
                }
            };
            match status {
                None => held.push(response),
                Some(status) => {
                    assert_eq!(status, "8", "refused, but not for its size");
                    refused += 1;
                }
            }
        }
    }
    refused
}

/// Begins requests of half a megabyte and never ends them.
async fn slow_writers(target: &Target) {
    const CLIENTS: usize = 6;
    const REQUESTS: usize = 150;
    static PART: [u8; 400_000] = [0; 400_000];
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        let mut requests = by_hand(target).await;
        for _ in 0..REQUESTS {
            requests = requests.ready().await.unwrap();
            let (response, mut body) = requests.send_request(post("GetMany"), false).unwrap();
            let length: &[u8] = &[0, 0, 7, 0, 0];
            let sent = body.send_data(Bytes::from_static(length), false);
            // A refused request is closed for writing.
            if sent.and_then(|()| body.send_data(Bytes::from_static(&PART), false)).is_ok() {
                held.push((response, body));
            }
        }
    }
    let mut codes = BTreeSet::new();
    for (response, body) in held {
        let answer = tokio::time::timeout(Duration::from_secs(60), response).await;
        // The reset that stops our upload may cut short the answer of a refused request.
        let answer = answer.expect("a request that never ends is kept").ok();
        codes.insert(answer.and_then(|answer| Some(answer.headers().get("grpc-status")?.to_str().unwrap().to_owned())));
        drop(body);
    }
    let (deadline_exceeded, resource_exhausted) = (Some("4".to_owned()), Some("8".to_owned()));
    assert!(codes.is_subset(&BTreeSet::from([None, deadline_exceeded, resource_exhausted])), "{codes:?}");
}

/// Cancels requests as soon as they are made (CVE-2023-44487). Sends the frames by hand, because a library would not
/// even send such requests. The service ends the connection.
async fn rapid_resets(target: &Target) {
    // The headers: `:method POST`, `:scheme http`, then `:path` and `:authority` spelled out.
    let headers = [b"\x83\x86\x04\x10/solkv.v1.Kv/Get".as_slice(), b"\x01\x01h"].concat();
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let head = [0, 0, payload.len() as u8, kind, flags];
        [head.as_slice(), &stream.to_be_bytes(), payload].concat()
    };
    let mut bytes = [PREFACE, SETTINGS].concat();
    for n in 0..10_000 {
        let stream = 2 * n + 1;
        // HEADERS with END_HEADERS, then RST_STREAM with CANCEL.
        bytes.extend(frame(1, 4, stream, &headers));
        bytes.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    let mut connection = TcpStream::connect(&target.tcp).await.unwrap();
    let (mut from, mut to) = connection.split();
    let mut rest = Vec::new();
    let both = async { tokio::join!(to.write_all(&bytes), from.read_to_end(&mut rest)) };
    let ended = tokio::time::timeout(Duration::from_secs(60), both).await;
    assert!(ended.is_ok(), "10,000 requests were taken back and the connection is still there");
}

/// Runs all kinds of abuse in turn, and checks the well-behaved client after each.
async fn abuse(target: &Target, good: &Good) {
    dropped(target).await;
    good.is_served("connections dropped").await;
    let held = half_open(target).await;
    good.is_served("connections half open").await;
    // The network has used up its connections, and processes on this machine still connect.
    let mut local = KvClient::new(uds_channel(&target.uds).await.unwrap());
    local.get(GetRequest { key: vec![1; 32].into(), ..Default::default() }).await.unwrap();
    ended(held).await;
    garbage(target).await;
    good.is_served("garbage").await;
    oversized(target).await;
    good.is_served("oversized requests").await;
    assert!(slow_readers(target, good.seed).await > 0, "more is held for slow readers than there may be");
    good.is_served("slow readers").await;
    slow_writers(target).await;
    good.is_served("slow writers").await;
    rapid_resets(target).await;
    good.is_served("requests taken back").await;
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn start(dir: &Path, options: &engines::EngineOptions, geyser: &str) -> (Service, Target) {
    let uds = dir.with_extension("sock");
    let connections = CONNECTIONS_MAX.to_string();
    let arguments = ["--uds", uds.to_str().unwrap(), "--max-connections", &connections];
    let mut service = Service::start(dir, options, geyser, &arguments);
    wait_for("its first page", || service.get("/healthz"));
    let target = Target { tcp: service.listen.clone(), http: service.metrics.clone(), uds };
    (service, target)
}

#[test]
fn abuse_changes_nothing_for_others() {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let dir = temp.path().join("store");
    let (stream, workload) = stream(
        "--pairs 5000 --events 200000 --events-per-slot 500 --rate 10000 --change-share 0.3 --close-share 0.05 \
         --replay-slots 10000",
    );
    load(&dir, &options, &workload);
    let (mut service, target) = start(&dir, &options, &format!("http://{}", stream.address()));
    service.wait_for_slot(crate::support::BASE_SLOT + 2);
    let before = service.memory_bytes("VmRSS");
    let runtime = runtime();
    runtime.block_on(async {
        let good = Good::start(&target, workload.seed).await;
        abuse(&target, &good).await;
        good.stop().await;
    });
    drop(runtime);
    let grown = service.memory_bytes("VmHWM").saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "resident memory grew by {} MiB", grown >> 20);

    let metric = |service: &mut Service, name: &str| wait_for(name, || service.metric(name));
    assert!(metric(&mut service, "solkv_connections_refused_total{listener=\"grpc-tcp\"}") >= 25.0);
    assert!(metric(&mut service, "solkv_connections_refused_total{listener=\"metrics\"}") >= 1.0);
    assert!(metric(&mut service, "solkv_connections_cut_total{listener=\"grpc-tcp\"}") >= 1.0);
    assert!(metric(&mut service, "solkv_wire_refused_total") >= 1.0);
    wait_for("every connection to end", || {
        service.metric("solkv_connections{listener=\"grpc-tcp\"}").filter(|n| *n == 0.0)
    });
    wait_for("every byte to be given back", || service.metric("solkv_wire_bytes").filter(|bytes| *bytes == 0.0));

    let end = end(&stream);
    service.wait_for_slot(end.slot);
    assert_eq!(service.metric("solkv_connects_total"), Some(1.0), "the stream was never lost");
    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    stream.stop().unwrap();
}

/// Prints the commit latencies of the same stream with and without abuse: a measurement, for a machine that does
/// nothing else. `cargo test --release -p solkv-service --test it -- --ignored --nocapture commits_under_abuse`
#[test]
#[ignore = "a measurement"]
fn commits_under_abuse() {
    for abused in [false, true, false, true] {
        let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
        let dir = temp.path().join("store");
        let (stream, workload) = stream(
            "--pairs 200000 --events 400000 --events-per-slot 1000 --rate 10000 --change-share 0.3 --replay-slots 1000",
        );
        load(&dir, &options, &workload);
        let (mut service, target) = start(&dir, &options, &format!("http://{}", stream.address()));
        if abused {
            runtime().block_on(async {
                let good = Good::start(&target, workload.seed).await;
                while stream.outcome().unwrap().is_none() {
                    abuse(&target, &good).await;
                }
                good.stop().await;
            });
        }
        service.wait_for_slot(end(&stream).slot);
        let (_, body) = wait_for("the histograms", || service.get("/histograms.json"));
        let report: export::Report = serde_json::from_str(&body).unwrap();
        let commit = report.get("ingest", Op::Commit).unwrap();
        println!(
            "abused={abused} commits={} p50_us={} p99_us={}",
            commit.count,
            commit.p50_ns / 1000,
            commit.p99_ns / 1000
        );
        assert!(service.terminate().success());
        stream.stop().unwrap();
    }
}
