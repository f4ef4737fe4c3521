//! One client takes all that it can get, without using it. Other clients still get in, and get their share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use h2::client::SendRequest;
use prost::Message as _;
use proto::v1::feed_client::FeedClient;
use proto::v1::kv_client::KvClient;
use proto::v1::subscribe_request::Start;
use proto::v1::{FromNow, GetManyRequest, GetRequest, SubscribeRequest, SubscribeResponse};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::support::{Service, columns, load, secret, stream, uds_channel, wait_for};

/// Number of connections that the network may use under the default `max_connections`.
const NETWORK_CONNECTIONS: usize = 896;

const TOKEN: &str = "first-token-0123456789";

/// A slot that no stream of these tests reaches.
const FAR: u64 = 1 << 40;

struct Fixture {
    service: Service,
    uds: PathBuf,
    /// Seed of the store's pairs.
    seed: u64,
    _stream: loadgen::stream::Stream,
    _temp: TempDir,
}

/// Number of pairs in the store.
const PAIRS: u64 = 100;

fn start(more: impl FnOnce(&Path) -> Vec<String>) -> Fixture {
    start_on("127.0.0.1", more)
}

fn start_on(host: &str, more: impl FnOnce(&Path) -> Vec<String>) -> Fixture {
    let (temp, options) = (tempfile::tempdir().unwrap(), columns().remove(0));
    let (dir, uds) = (temp.path().join("store"), temp.path().join("kv.sock"));
    let (stream, workload) =
        stream(&format!("--pairs {PAIRS} --events 1000 --events-per-slot 100 --rate 1000 --replay-slots 100"));
    load(&dir, &options, &workload);
    let mut arguments = more(temp.path());
    arguments.extend(["--uds".to_owned(), uds.display().to_string()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start_on(host, &dir, &options, &geyser, |command| command.args(&arguments));
    wait_for("its first page", || service.get("/healthz"));
    Fixture { service, uds, seed: workload.seed, _stream: stream, _temp: temp }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn channel(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// Opens a connection whose HTTP/2 runs and answers pings, and that sends no request.
async fn idle(address: &str) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async {
        // The callers check how it ends.
        connection.await.ok();
    });
    requests
}

fn get(token: Option<&str>, min_context_slot: Option<u64>) -> Request<GetRequest> {
    let mut request = Request::new(GetRequest { key: vec![1; 32].into(), min_context_slot, ..Default::default() });
    if let Some(token) = token {
        let value: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

async fn subscribe(channel: &Channel) -> Result<Streaming<SubscribeResponse>, Status> {
    let request = SubscribeRequest { start: Some(Start::FromNow(FromNow {})), ..SubscribeRequest::default() };
    Ok(FeedClient::new(channel.clone()).subscribe(request).await?.into_inner())
}

/// Subscribes on one connection until a subscription is refused.
async fn subscribe_all(channel: &Channel) -> Vec<Streaming<SubscribeResponse>> {
    let mut held = Vec::new();
    loop {
        match subscribe(channel).await {
            Ok(subscription) => held.push(subscription),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                return held;
            }
        }
        assert!(held.len() <= 64, "more than there are places");
    }
}

#[test]
fn idle_connections_without_a_token_keep_nobody_out() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let mut fixture = start(|temp| {
        let tokens = temp.join("tokens");
        secret(&tokens, &format!("{TOKEN}\n"));
        vec!["--bearer-token-file".to_owned(), tokens.display().to_string()]
    });
    let listen = fixture.service.listen.clone();
    runtime().block_on(async {
        let mut flood = Vec::new();
        for _ in 0..NETWORK_CONNECTIONS {
            flood.push(idle(&listen).await);
        }
        let client = channel(&listen).await;
        let answer = KvClient::new(client.clone()).get(get(Some(TOKEN), None)).await;
        assert!(answer.is_ok(), "a client with a token: {answer:?}");
        // A connection that has sent a request keeps its place, whatever comes after it.
        for _ in 0..NETWORK_CONNECTIONS {
            flood.push(idle(&listen).await);
        }
        let refused = KvClient::new(channel(&listen).await).get(get(Some("no-token-of-this-service"), None)).await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
        KvClient::new(client).get(get(Some(TOKEN), None)).await.unwrap();
        let local = uds_channel(&fixture.uds).await.unwrap();
        KvClient::new(local.clone()).get(get(None, None)).await.unwrap();
        subscribe(&local).await.unwrap().message().await.unwrap();
        for requests in flood {
            let ended = async {
                let mut requests = requests;
                while futures::future::poll_fn(|context| requests.poll_ready(context)).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let ended = tokio::time::timeout(Duration::from_secs(100), ended).await;
            assert!(ended.is_ok(), "a connection that asks nothing is kept");
        }
    });
    let rules = ["newcomer", "first_request"].map(|rule| {
        let name = format!("solkv_connections_ended_total{{rule=\"{rule}\"}}");
        wait_for(&name, || fixture.service.metric(&name))
    });
    // How often each of the two rules was applied depends on the machine's speed.
    assert!(rules[0] > 0.0 && rules.iter().sum::<f64>() > 1.9 * NETWORK_CONNECTIONS as f64, "{rules:?}");
}

#[test]
fn one_client_that_takes_every_place_it_can_leaves_the_others_theirs() {
    let mut fixture = start(|_| Vec::new());
    let listen = fixture.service.listen.clone();
    runtime().block_on(async {
        let clients = [channel(&listen).await, channel(&listen).await, channel(&listen).await];
        let mut held = Vec::new();
        for client in &clients {
            held.push(subscribe_all(client).await);
        }
        let places: Vec<_> = held.iter().map(Vec::len).collect();
        assert_eq!(places, [16, 16, 0], "a quarter of 64 a connection, half an address");
        let local = uds_channel(&fixture.uds).await.unwrap();
        let mut follower = subscribe(&local).await.unwrap();
        assert!(follower.message().await.unwrap().is_some());

        let refused = |status: &Status| status.code() == Code::ResourceExhausted;
        let mut waiting = FuturesUnordered::new();
        for n in 0..1280 {
            let mut client = KvClient::new(clients[n % 3].clone());
            waiting.push(async move { client.get(get(None, Some(FAR))).await.unwrap_err() });
        }
        // The first refusals are of the requests beyond the share, because the others wait.
        let first = waiting.next().await.unwrap();
        assert!(refused(&first) && first.message().contains("wait for a slot"), "{first:?}");
        let mut request = get(None, Some(FAR));
        request.set_timeout(Duration::from_millis(800));
        let local = KvClient::new(local).get(request).await.unwrap_err();
        assert_eq!(local.code(), Code::FailedPrecondition, "it waited: {local:?}");
        drop((waiting, held));
    });
    let refused = |service: &mut Service, place: &str, scope: &str| {
        let name = format!("solkv_places_refused_total{{place=\"{place}\",scope=\"{scope}\"}}");
        wait_for(&name, || service.metric(&name))
    };
    assert_eq!(refused(&mut fixture.service, "subscribers", "connection"), 2.0);
    assert_eq!(refused(&mut fixture.service, "subscribers", "source"), 1.0);
    assert!(refused(&mut fixture.service, "waiters", "source") >= 1.0);
}

/// Asks for 16 MiB of answers on one connection and reads none. Returns the connection, and the heads of the answers.
async fn never_reads<T>(stream: T, batch: &Bytes) -> (SendRequest<Bytes>, Vec<http::Response<h2::RecvStream>>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    const ANSWERS: usize = 44;
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async {
        // It may be cut.
        connection.await.ok();
    });
    let mut answers = Vec::new();
    for _ in 0..ANSWERS {
        requests = requests.ready().await.unwrap();
        let request = http::Request::post("http://localhost/solkv.v1.Kv/GetMany");
        let request = request.header("content-type", "application/grpc").header("te", "trailers").body(()).unwrap();
        let (answer, mut body) = requests.send_request(request, false).unwrap();
        body.send_data(batch.clone(), true).unwrap();
        answers.push(answer.await.unwrap());
    }
    (requests, answers)
}

#[test]
fn sources_that_never_read_their_answers_give_way_to_others() {
    let mut fixture = start_on("[::]", |_| vec!["--insecure".to_owned()]);
    let port = fixture.service.listen.rsplit(':').next().unwrap().to_owned();
    let keys = |count: u64| {
        let keys = (0..count).map(|index| workload::Pairs::new(fixture.seed).key(index % PAIRS).to_vec().into());
        GetManyRequest { keys: keys.collect(), ..Default::default() }
    };
    let mut batch = vec![0];
    batch.extend((keys(10_000).encoded_len() as u32).to_be_bytes());
    keys(10_000).encode(&mut batch).unwrap();
    let batch = Bytes::from(batch);
    runtime().block_on(async {
        let mut held = Vec::new();
        for host in ["127.0.0.1", "[::1]"] {
            for _ in 0..2 {
                let stream = TcpStream::connect(format!("{host}:{port}")).await.unwrap();
                held.push(never_reads(stream, &batch).await);
            }
            // Only what was held for a second gives way.
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
        // Both have asked for half of all, and together they may have seven eighths. The Unix socket's user may have half
        // as well, whatever the others hold.
        for _ in 0..2 {
            let stream = tokio::net::UnixStream::connect(&fixture.uds).await.unwrap();
            held.push(never_reads(stream, &batch).await);
        }
        for channel in [channel(&format!("127.0.0.1:{port}")).await, channel(&format!("[::1]:{port}")).await] {
            let answer = KvClient::new(channel).get_many(keys(1000)).await;
            assert!(answer.is_ok(), "{answer:?}");
        }
    });
    for scope in ["network", "all"] {
        let name = format!("solkv_places_refused_total{{place=\"bytes\",scope=\"{scope}\"}}");
        assert_eq!(wait_for(&name, || fixture.service.metric(&name)), 0.0, "{scope}");
    }
}
