//! Any bytes as a request of any method, or as bytes of the Redis protocol or HTTP, through a socket and every layer before
//! the handlers.
//!
//! Owns: a service without a stream. Must not: interpret requests. Every request gets an answer with a status that a
//! client can use. Threads: this one, and one for lookups.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use engine_api::{Durability, Engine as _};
use engine_latency::{Latency, Measured};
use engines::{EngineKind, EngineOptions, OpenMode};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use service::ingest;
use service::rpc::{self, Door, FeedService, Services, UdsListener};
use service::{
    Access, Ask, Change, ConnectionLimits, FeedWriter, Handles, LookupThreads, Lookups, Overlay, Pulses,
    ReadinessSettings, Room, SocketAccess, SubscriberLimits, Workers,
};
use service::{redis, web};
use solana::ChainCheckpoint;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const PATHS: [&str; 8] = [
    "/solkv.v1.Kv/Get",
    "/solkv.v1.Kv/GetMany",
    "/solkv.v1.Kv/Status",
    "/solkv.v1.Feed/Subscribe",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/solkv.v1.Kv/Unknown",
];

/// Limit on a request's wait for a slot.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(5);

struct World {
    runtime: Runtime,
    channel: Channel,
    redis: PathBuf,
    http: PathBuf,
    _threads: LookupThreads,
    // Kept alive and never used: the writer belongs to one thread, which a static does not have.
    _writer: Mutex<FeedWriter>,
    _temp: TempDir,
}

static WORLD: LazyLock<World> = LazyLock::new(|| world().expect("a service can be started"));

fuzz_target!(|bytes: &[u8]| {
    let [path, message @ ..] = bytes else { return };
    let Some(path) = PATHS.get(usize::from(*path) % (PATHS.len() + 2)) else {
        return if path % 2 == 0 { of_redis(message) } else { of_http(message) };
    };
    let path = PathAndQuery::from_static(path);
    let message = message.to_vec();
    WORLD.runtime.block_on(async {
        let mut grpc = Grpc::new(WORLD.channel.clone());
        grpc.ready().await.expect("the service is there");
        let mut answers = match grpc.server_streaming(Request::new(message), path, Raw).await {
            Ok(answers) => answers.into_inner(),
            Err(status) => return check(&status),
        };
        for _ in 0..3 {
            match timeout(Duration::from_millis(1), answers.message()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Err(status)) => return check(&status),
                Ok(Ok(None)) | Err(_) => return,
            }
        }
    });
});

/// Answers of the Redis protocol begin as answers do, and none tells of a fault of the service.
fn of_redis(bytes: &[u8]) {
    let answers = answers(&WORLD.redis, bytes);
    assert!(answers.first().is_none_or(|kind| b"+-:$*%_".contains(kind)), "{answers:?}");
    assert!(!answers.windows(6).any(|text| text == b" E-BUG"), "{answers:?}");
}

/// Answers of HTTP begin with their version, and none tells of a fault of the service.
fn of_http(bytes: &[u8]) {
    let answers = answers(&WORLD.http, bytes);
    assert!(answers.is_empty() || answers.starts_with(b"HTTP/1."), "{answers:?}");
    assert!(!answers.windows(6).any(|text| text == b"\"E-BUG"), "{answers:?}");
}

/// Sends bytes, in two parts, to a socket. Returns everything that is answered.
fn answers(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    WORLD.runtime.block_on(async {
        let mut client = UnixStream::connect(socket).await.expect("the service is there");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        // The service may end the connection before all is sent.
        let _sent = async {
            client.write_all(first).await?;
            tokio::task::yield_now().await;
            client.write_all(second).await?;
            client.shutdown().await
        }
        .await;
        let mut answers = Vec::new();
        let _read =
            timeout(Duration::from_secs(5), client.read_to_end(&mut answers)).await.expect("the connection ends");
        answers
    })
}

/// Fails on statuses that mean a fault of the service, as opposed to one of the request.
fn check(status: &Status) {
    let decoding = status.message().contains("failed to decode Protobuf message");
    assert!(decoding || !matches!(status.code(), Code::Internal | Code::Unknown | Code::DataLoss), "{status:?}");
}

fn world() -> anyhow::Result<World> {
    let temp = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = EngineOptions::new(EngineKind::Redb);
    let engine = engines::open(&temp.path().join("store"), &options, OpenMode::Create)?;
    let engine = Arc::new(Measured::new(engine, Latency::new("redb"), "ingest"));
    let change = Change { slot: 7, key: [1; 32], old: None, new: Some([7; 32]) };
    let checkpoint = ChainCheckpoint { seq: 1, slot: Some(7), ..ChainCheckpoint::default() };
    let (mut writer, feed) =
        FeedWriter::open(&temp.path().join("feed"), &ChainCheckpoint::default(), Durability::Synced, 1 << 20)?;
    writer.append(1, vec![change], Vec::new())?;
    let mut txn = engine.begin()?;
    txn.put(&[1; 32], &[7; 32])?;
    txn.commit(&checkpoint.write(), Durability::Synced)?;
    writer.publish(&checkpoint);
    let overlay = Overlay::new(&checkpoint, false, false);
    let handles = Handles::new("redb", &ingest::State::new(checkpoint, overlay, ReadinessSettings::default()));
    let (lookups, threads) = Lookups::start(Arc::clone(&engine), 1, &handles.lookups, &Pulses::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let [socket, redis, http] = ["kv.sock", "redis.sock", "http.sock"].map(|name| temp.path().join(name));
    let limits =
        SubscriberLimits { subscribers: 64, heartbeat: REQUEST_TIMEOUT, stall_timeout: Duration::from_secs(1) };
    let workers = Workers::start(engine, Arc::clone(&handles.views))?;
    let feed = FeedService::new(Some((feed, workers)), limits);
    let channel = runtime.block_on(async {
        let Handles { status, net, .. } = handles;
        let limits = ConnectionLimits {
            max_connections: 8,
            per_source: 8,
            idle_timeout: Duration::ZERO,
            request_timeout: REQUEST_TIMEOUT,
        };
        let room = Room::new(limits, &net);
        let door = Door {
            tcp: TcpListener::bind("127.0.0.1:0").await?,
            uds: Some(UdsListener::bind(&socket, &SocketAccess::OWNER)?),
            access: Arc::new(Access::default()),
            room: room.clone(),
        };
        let redis_door = redis::Door {
            tcp: None,
            uds: Some(UdsListener::bind(&redis, &SocketAccess::OWNER)?),
            access: Arc::new(Access::default()),
            room: room.clone(),
        };
        let web_door = web::Door {
            tcp: None,
            uds: Some(UdsListener::bind(&http, &SocketAccess::OWNER)?),
            access: Arc::new(Access::default()),
            room,
        };
        let ask = Ask::new(lookups, handles.lookups.overlay, net);
        tokio::spawn(redis::serve(redis_door, ask.clone(), status.clone(), std::future::pending()));
        tokio::spawn(web::serve(web_door, None, ask.clone(), std::future::pending()));
        let services = Services { ask, status, feed };
        tokio::spawn(rpc::serve(door, services, std::future::pending()));
        connect(socket).await
    })?;
    Ok(World { runtime, channel, redis, http, _threads: threads, _writer: Mutex::new(writer), _temp: temp })
}

async fn connect(socket: PathBuf) -> anyhow::Result<Channel> {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    Ok(Endpoint::from_static("http://fuzzed").connect_with_connector(connector).await?)
}

/// A codec that passes message bytes on unchanged.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
