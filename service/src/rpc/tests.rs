//! gRPC over real sockets and a real store.

use std::path::PathBuf;

use bytes::Bytes;
use futures::StreamExt;
use proto::v1::feed_client::FeedClient;
use proto::v1::kv_client::KvClient;
use proto::v1::{Commitment, GetManyRequest, GetRequest, StatusRequest, SubscribeRequest};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::ServingStatus;

use super::*;
use crate::base::chain::{Gap, Phase};
use crate::feed::SubscriberLimits;
use crate::ingest::progress::Age;
use crate::lookups::LookupState;
use crate::lookups::tests::{Pool, later};
use crate::net::figures::{Ending, Place};
use crate::net::limit::ConnectionLimits;
use crate::net::limit::tests::ROOMY;
use crate::net::socket::SocketAccess;
use crate::pages::handles::Handles;

/// Longer than any request of these tests takes.
const LONG: Duration = Duration::from_secs(10);

const LIMITS: ConnectionLimits = ConnectionLimits { idle_timeout: LONG, request_timeout: LONG, ..ROOMY };

struct Running {
    pool: Pool,
    client: KvClient<Channel>,
    socket: PathBuf,
    stop: oneshot::Sender<()>,
    server: JoinHandle<anyhow::Result<()>>,
}

const SERVING: i32 = ServingStatus::Serving as i32;
const NOT_SERVING: i32 = ServingStatus::NotServing as i32;

impl Running {
    /// Sets readiness as after a slot that was applied.
    fn live(&self) {
        self.pool.handles.status.ingest.progress.slot_applied(Age::Known(Duration::from_millis(20)));
        self.pool.handles.status.ingest.progress.set_phase(Phase::Live);
    }
}

async fn start() -> Running {
    start_with(Pool::start(), LIMITS).await
}

async fn start_with(pool: Pool, limits: ConnectionLimits) -> Running {
    let socket = pool.dir.path().join("kv.sock");
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let uds = UdsListener::bind(&socket, &SocketAccess::OWNER).unwrap();
    let (stop, stopped) = oneshot::channel();
    let access = Arc::new(Access::default());
    let room = Room::new(limits, &pool.handles.net);
    let door = Door { tcp, uds: Some(uds), access, room };
    let feed = FeedService::new(None, SubscriberLimits::of(1024));
    let Handles { status, lookups: LookupState { overlay, .. }, net, .. } = pool.handles.clone();
    let ask = Ask::new(pool.lookups.clone(), overlay, net);
    let services = Services { ask, status, feed };
    let server = tokio::spawn(serve(door, services, stopped.map(|_| ())));
    let client = KvClient::connect(format!("http://{address}")).await.unwrap();
    Running { pool, client, socket, stop, server }
}

fn get(key: &[u8]) -> GetRequest {
    GetRequest { key: Bytes::copy_from_slice(key), ..Default::default() }
}

#[tokio::test]
async fn get_answers_present_absent_and_refuses_a_wrong_length() {
    let mut run = start().await;
    let found = run.client.get(get(&[1; 32])).await.unwrap().into_inner();
    assert_eq!((found.value.as_deref(), found.slot), (Some(&[7u8; 32][..]), Some(7)));
    let absent = run.client.get(get(&[2; 32])).await.unwrap().into_inner();
    assert_eq!((absent.value, absent.slot), (None, Some(7)));
    let refused = run.client.get(get(&[1; 31])).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "E-REQUEST: key must be 32 bytes: got=31"));
    assert_eq!(refused.metadata().get("solkv-code").unwrap(), "E-REQUEST");
    const PUBKEY: &str = "So11111111111111111111111111111111111111112";
    let text = run.client.get(get(PUBKEY.as_bytes())).await.unwrap_err();
    assert_eq!(text.message(), "E-REQUEST: key must be 32 bytes: got=43; a base58 pubkey as text? give its 32 bytes");
    let other = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA1";
    let pasted = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, other).unwrap();
    let pasted = run.client.get(get(&pasted)).await.unwrap_err();
    assert_eq!(pasted.message(), "E-REQUEST: key must be 32 bytes: got=33; a base58 pubkey where JSON takes base64?");
}

#[tokio::test]
async fn a_commitment_that_is_not_there_is_refused_in_words() {
    let at = |commitment| GetRequest { commitment, ..get(&[1; 32]) };
    let mut run = start().await;
    let refused = run.client.get(at(Commitment::Processed as i32)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("processed = true"), "{refused}");
    let refused = run.client.get(at(Commitment::Finalized as i32)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert_eq!(run.client.get(at(9)).await.unwrap_err().code(), Code::InvalidArgument);
    let confirmed = run.client.get(at(Commitment::Confirmed as i32)).await.unwrap().into_inner();
    assert_eq!((confirmed.value.as_deref(), confirmed.slot), (Some(&[7u8; 32][..]), Some(7)));
}

#[tokio::test]
async fn a_finalized_engine_answers_confirmed_and_finalized_and_an_empty_overlay_processed() {
    let mut run = start_with(Pool::with_overlay(false, true), LIMITS).await;
    for commitment in [Commitment::Unspecified, Commitment::Confirmed, Commitment::Finalized] {
        let asked = GetRequest { commitment: commitment as i32, min_context_slot: Some(7), ..get(&[1; 32]) };
        let found = run.client.get(asked).await.unwrap().into_inner();
        assert_eq!((found.value.as_deref(), found.slot), (Some(&[7u8; 32][..]), Some(7)), "{commitment:?}");
    }
    let mut run = start_with(Pool::with_overlay(true, false), LIMITS).await;
    let found = run.client.get(GetRequest { commitment: Commitment::Processed as i32, ..get(&[1; 32]) }).await.unwrap();
    assert_eq!(found.into_inner().slot, Some(7), "nothing is known on top of the engine");
}

#[tokio::test]
async fn get_many_keeps_the_order_and_its_limit() {
    let mut run = start().await;
    let many =
        |keys: Vec<Vec<u8>>| GetManyRequest { keys: keys.into_iter().map(Bytes::from).collect(), ..Default::default() };
    let found = run.client.get_many(many(vec![vec![2; 32], vec![1; 32]])).await.unwrap().into_inner();
    let values: Vec<_> = found.entries.iter().map(|entry| entry.value.as_deref()).collect();
    assert_eq!((values, found.slot), (vec![None, Some(&[7u8; 32][..])], Some(7)));
    let most = run.client.get_many(many(vec![vec![1; 32]; proto::v1::GET_MANY_KEYS_MAX])).await.unwrap();
    assert_eq!(most.into_inner().entries.len(), proto::v1::GET_MANY_KEYS_MAX);
    let over = run.client.get_many(many(vec![vec![1; 32]; proto::v1::GET_MANY_KEYS_MAX + 1])).await.unwrap_err();
    assert_eq!(over.code(), Code::InvalidArgument);
    let wrong = run.client.get_many(many(vec![vec![1; 32], vec![]])).await.unwrap_err();
    assert_eq!(
        (wrong.code(), wrong.message()),
        (Code::InvalidArgument, "E-REQUEST: key must be 32 bytes: got=0 index=1")
    );
}

#[tokio::test]
async fn packed_batches_are_the_same_answers_in_less() {
    let mut run = start().await;
    let packed = |keys: Vec<u8>| GetManyRequest { packed_keys: keys.into(), ..Default::default() };
    let keys: Vec<u8> = (0..19u8).flat_map(|n| [n % 3; 32]).collect();
    let found = run.client.get_many(packed(keys)).await.unwrap().into_inner();
    assert_eq!((found.entries.len(), found.slot), (0, Some(7)));
    assert_eq!((found.packed_values.len(), found.present.len()), (19 * 32, 3));
    for (index, value) in found.packed_values.chunks(32).enumerate() {
        let present = found.present[index / 8] >> (index % 8) & 1 == 1;
        assert_eq!((present, value), (index % 3 == 1, &[if present { 7 } else { 0 }; 32][..]), "index={index}");
    }
    let most = proto::v1::GET_MANY_KEYS_MAX * 32;
    assert_eq!(run.client.get_many(packed(vec![1; most])).await.unwrap().into_inner().packed_values.len(), most);
    for (request, message) in [
        (packed(vec![1; most + 32]), "E-REQUEST: too many keys, ask in parts: got=10001 max=10000"),
        (packed(vec![1; 33]), "E-REQUEST: packed_keys must be 32 bytes a key: got=33"),
        (
            GetManyRequest { keys: vec![Bytes::from_static(&[1; 32])], ..packed(vec![1; 32]) },
            "E-REQUEST: give keys or packed_keys, not both",
        ),
    ] {
        let refused = run.client.get_many(request).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, message));
    }
}

#[tokio::test]
async fn status_names_the_gap_and_a_stopped_pool_is_unavailable() {
    let mut run = start().await;
    let gap = Gap { first_slot: 8, last_slot: 9, detail: "parent".to_owned(), contradicts: false };
    run.pool.handles.status.ingest.progress.set_phase(Phase::Gap(gap));
    let status = run.client.status(StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((status.engine.as_str(), status.ready, status.lag_slots), ("redb", false, None));
    assert_eq!(status.checkpoint.unwrap().slot, Some(7));
    assert_eq!(status.gap.map(|gap| (gap.first_slot, gap.last_slot)), Some((8, 9)));
    run.pool.threads.join(later()).unwrap();
    assert_eq!(run.client.get(get(&[1; 32])).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn every_request_for_a_map_that_is_not_there_is_refused() {
    let mut run = start().await;
    let map = || "other".to_owned();
    let many = GetManyRequest { packed_keys: Bytes::from_static(&[1; 32]), map: map(), ..Default::default() };
    let channel = Endpoint::from_shared(format!("unix:{}", run.socket.display())).unwrap().connect().await.unwrap();
    let subscribe = SubscribeRequest { map: map(), ..Default::default() };
    let refused = [
        run.client.get(GetRequest { map: map(), ..get(&[1; 32]) }).await.unwrap_err(),
        run.client.get_many(many).await.unwrap_err(),
        run.client.status(StatusRequest { map: map() }).await.unwrap_err(),
        FeedClient::new(channel).subscribe(subscribe).await.unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::NotFound, "{status}");
        assert!(status.message().starts_with("E-REQUEST: no such map"), "{status}");
    }
}

#[tokio::test]
async fn the_unix_socket_serves_and_is_removed_at_shutdown() {
    let run = start().await;
    let uri = format!("unix:{}", run.socket.display());
    let mut client = KvClient::new(Endpoint::from_shared(uri).unwrap().connect().await.unwrap());
    let found = client.get(get(&[1; 32])).await.unwrap().into_inner();
    assert_eq!(found.value.as_deref(), Some(&[7u8; 32][..]));
    assert!(
        UdsListener::bind(&run.socket, &SocketAccess::OWNER)
            .unwrap_err()
            .to_string()
            .starts_with("another process listens here")
    );
    run.stop.send(()).unwrap();
    run.server.await.unwrap().unwrap();
    assert!(!run.socket.exists());
}

#[tokio::test]
async fn health_and_reflection_answer() {
    let run = start().await;
    let uri = format!("unix:{}", run.socket.display());
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let asked = tonic_health::pb::HealthCheckRequest { service: "solkv.v1.Kv".to_owned() };
    assert_eq!(health.check(asked.clone()).await.unwrap().into_inner().status, NOT_SERVING);
    let mut watch = health.watch(asked.clone()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(NOT_SERVING));
    run.live();
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(SERVING));
    for (service, status) in
        [("", SERVING), ("solkv.v1.Kv", SERVING), ("solkv.v1.Feed", SERVING), ("liveness", SERVING)]
    {
        let asked = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        assert_eq!(health.check(asked).await.unwrap().into_inner().status, status, "{service:?}");
    }
    run.pool.handles.status.ingest.progress.set_phase(Phase::CatchingUp);
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(NOT_SERVING));
    for (service, status) in [("", NOT_SERVING), ("solkv.v1.Feed", NOT_SERVING), ("liveness", SERVING)] {
        let asked = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        assert_eq!(health.check(asked).await.unwrap().into_inner().status, status, "{service:?}");
    }
    {
        use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
        let list = Some(MessageRequest::ListServices(String::new()));
        let request = tonic_reflection::pb::v1::ServerReflectionRequest { host: String::new(), message_request: list };
        let mut client = ServerReflectionClient::new(channel.clone());
        let answer = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
        let answer = StreamExt::into_future(answer).await.0.unwrap().unwrap().message_response;
        let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
        assert!(list.service.iter().any(|service| service.name == "solkv.v1.Kv"), "{list:?}");
    }
    {
        use tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::v1alpha::server_reflection_response::MessageResponse;
        let list = Some(MessageRequest::ListServices(String::new()));
        let request =
            tonic_reflection::pb::v1alpha::ServerReflectionRequest { host: String::new(), message_request: list };
        let mut client = ServerReflectionClient::new(channel.clone());
        let answer = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
        let answer = StreamExt::into_future(answer).await.0.unwrap().unwrap().message_response;
        let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
        assert!(list.service.iter().any(|service| service.name == "solkv.v1.Kv"), "{list:?}");
    }
}

#[tokio::test]
async fn a_stream_of_answers_outlasts_the_time_of_a_request() {
    let timeout = Duration::from_millis(500);
    let run = start_with(Pool::start(), ConnectionLimits { request_timeout: timeout, ..LIMITS }).await;
    let uri = format!("unix:{}", run.socket.display());
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let asked = tonic_health::pb::HealthCheckRequest { service: "solkv.v1.Kv".to_owned() };
    let mut watch = health.watch(asked).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(NOT_SERVING));
    run.live();
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(SERVING));
    tokio::time::sleep(timeout * 2).await;
    run.stop.send(()).unwrap();
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(NOT_SERVING));
}

#[tokio::test]
async fn an_idle_connection_ends_and_one_at_work_does_not() {
    let limits = ConnectionLimits { idle_timeout: Duration::from_secs(1), ..LIMITS };
    let mut run = start_with(Pool::start(), limits).await;
    let uri = format!("unix:{}", run.socket.display());
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let asked = tonic_health::pb::HealthCheckRequest { service: "solkv.v1.Kv".to_owned() };
    let mut watch = health.watch(asked).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(NOT_SERVING));
    run.client.get(get(&[1; 32])).await.unwrap();
    let figures = Arc::clone(&run.pool.handles.net);
    let ended = async {
        while figures.endings(Ending::Idle) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, ended).await.expect("the idle one is kept");
    run.live();
    assert_eq!(watch.message().await.unwrap().map(|answer| answer.status), Some(SERVING), "the stream goes on");
    assert_eq!(figures.endings(Ending::Idle), 1);
    run.client.get(get(&[1; 32])).await.unwrap();
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_file_is_not() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    let bound = UdsListener::bind(&stale, &SocketAccess { mode: SocketAccess::OWNER_AND_GROUP, group: None }).unwrap();
    assert_eq!(std::fs::metadata(&stale).unwrap().permissions().mode() & 0o777, 0o660);
    drop(bound);
    assert!(!stale.exists());
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(UdsListener::bind(&file, &SocketAccess::OWNER).unwrap_err().to_string().starts_with("not a socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

/// A web page of another site may send such requests without asking the service before.
#[tokio::test]
async fn a_request_that_is_not_grpcs_is_refused_for_every_method() {
    let run = start().await;
    let stream = tokio::net::UnixStream::connect(&run.socket).await.unwrap();
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let grpc = "application/grpc";
    for (method, content_type, status) in [
        ("POST", Some(grpc), 200),
        ("POST", Some("application/grpc+proto"), 200),
        ("POST", Some("application/grpc;charset=utf-8"), 200),
        ("POST", None, 415),
        ("POST", Some("text/plain"), 415),
        ("POST", Some("application/grpc-web+proto"), 415),
        ("POST", Some("application/x-www-form-urlencoded"), 415),
        ("GET", Some(grpc), 405),
        ("OPTIONS", Some(grpc), 405),
    ] {
        for path in ["solkv.v1.Kv/Get", "solkv.v1.Feed/Subscribe", "grpc.health.v1.Health/Check", "no/Method"] {
            let mut request = http::Request::builder().method(method).uri(format!("http://localhost/{path}"));
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            requests = requests.ready().await.unwrap();
            let (answer, _) = requests.send_request(request.body(()).unwrap(), true).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{method} {content_type:?} {path}: {answer:?}");
            assert_eq!(answer.headers().contains_key("grpc-status"), status == 200, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn too_many_keys_are_an_invalid_argument_with_the_most_however_many_they_are() {
    let mut run = start().await;
    let keys = |count: usize| GetManyRequest { keys: vec![Bytes::from_static(&[7; 32]); count], ..Default::default() };
    for (count, says) in
        [(10_001, "got=10001 max=10000"), (150_000, "at most 10000 keys"), (2_000_000, "at most 10000")]
    {
        let refused = run.client.get_many(keys(count)).await.unwrap_err();
        assert!(refused.code() == Code::InvalidArgument && refused.message().contains(says), "{count}: {refused:?}");
    }
    let held = run.pool.handles.net.held(Place::Bytes);
    // ORDERING: Relaxed: a statistic.
    assert_eq!(held.load(std::sync::atomic::Ordering::Relaxed), 0, "nothing of them is held");
    assert_eq!(run.client.get_many(keys(10_000)).await.unwrap().into_inner().entries.len(), 10_000);
}
