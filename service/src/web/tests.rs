//! Lookups over HTTP, over real sockets and a real store.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::base::setting::Given as _;
use crate::lookups::LookupState;
use crate::lookups::tests::{Pool, commit, later};
use crate::net::AccessGiven;
use crate::net::limit::Room;
use crate::net::limit::tests::ROOMY;
use crate::net::socket::SocketAccess;
use crate::net::uds::UdsListener;
use crate::pages::handles::Handles;

const TOKEN: &str = "a-token-of-some-length";

/// Base58 of `[1; 32]` and of `[7; 32]`, its value.
const KEY: &str = "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi";
const VALUE: &str = "US517G5965aydkZ46HS38QLi7UQiSojurfbQfKCELFx";

/// Base58 of an absent key, `[2; 32]`.
const ABSENT: &str = "8qbHbw2BbbTHBW1sbeqakYXVKRQM8Ne7pLK7m6CVfeR";

struct Running {
    pool: Pool,
    address: SocketAddr,
    socket: PathBuf,
    stop: oneshot::Sender<()>,
    server: JoinHandle<anyhow::Result<()>>,
}

async fn start(token: Option<&str>) -> Running {
    let pool = Pool::start();
    let socket = pool.dir.path().join("http.sock");
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let bearer_token_file = token.map(|token| {
        let file = pool.dir.path().join("tokens");
        std::fs::write(&file, token).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        file
    });
    let access = AccessGiven { bearer_token_file, ..AccessGiven::default() }.in_effect().unwrap();
    let Handles { lookups: LookupState { overlay, .. }, net, .. } = pool.handles.clone();
    let door = Door {
        tcp: Some(tcp),
        uds: Some(UdsListener::bind(&socket, &SocketAccess::OWNER).unwrap()),
        access: Arc::new(Access::open(&access).unwrap()),
        room: Room::new(ROOMY, &net),
    };
    let ask = Ask::new(pool.lookups.clone(), overlay, net);
    let (stop, stopped) = oneshot::channel();
    let ended = async {
        // An error means that the test has ended.
        let _ended = stopped.await;
    };
    let server = tokio::spawn(serve(door, None, ask, ended));
    Running { pool, address, socket, stop, server }
}

impl Running {
    /// Sends a request over TCP. Returns the status, the head and the body.
    async fn ask(&self, request: &str, more: &str, body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        exchange(&mut stream, request, &format!("host: localhost\r\nconnection: close\r\n{more}"), body).await
    }

    /// Returns the status and the answer to a request without a body.
    async fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.ask(&format!("GET {path}"), "", "").await;
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{path}: {body}")))
    }

    async fn post(&self, body: &Value) -> (u16, Value) {
        let (status, _, body) =
            self.ask("POST /v1/get-many", "content-type: application/json\r\n", &body.to_string()).await;
        (status, serde_json::from_str(&body).unwrap())
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap().unwrap();
        assert!(!self.socket.exists(), "the socket's file is removed");
        self.pool.threads.join(later()).unwrap();
    }
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &str,
    head: &str,
    body: &str,
) -> (u16, String, String) {
    let request = format!("{request} HTTP/1.1\r\n{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A reset ends it as well: the service does not read all of what it refuses.
    let _reset = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test]
async fn lookups_answer_in_base58_with_their_slot() {
    let running = start(None).await;
    assert_eq!(running.get(&format!("/v1/get/{KEY}")).await, (200, json!({ "value": VALUE, "slot": 7 })));
    let path = format!("/v1/get/{ABSENT}?commitment=confirmed&min_context_slot=7");
    assert_eq!(running.get(&path).await, (200, json!({ "value": null, "slot": 7 })));
    let many = running.post(&json!({ "keys": [ABSENT, KEY, KEY], "min_context_slot": 7 })).await;
    assert_eq!(many, (200, json!({ "values": [null, VALUE, VALUE], "slot": 7 })));
    assert_eq!(running.post(&json!({ "keys": [] })).await, (200, json!({ "values": [], "slot": 7 })));
    let (status, head, body) = running.ask("GET /healthz", "", "").await;
    assert_eq!((status, body.as_str()), (200, "ok\n"));
    assert!(head.contains("x-content-type-options: nosniff") && head.contains("cache-control: no-store"), "{head}");
    running.stop().await;
}

#[tokio::test]
async fn a_wait_for_a_slot_ends_with_it() {
    let running = start(None).await;
    let path = format!("/v1/get/{KEY}?min_context_slot=8");
    let asked = running.get(&path);
    let committed = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        commit(&running.pool.engine, &running.pool.handles.lookups, [1; 32], 8);
    };
    let ((status, answer), ()) = tokio::join!(asked, committed);
    assert_eq!((status, &answer["slot"]), (200, &json!(8)));
    running.stop().await;
}

#[tokio::test]
async fn what_cannot_be_answered_is_refused_with_a_status_and_a_code() {
    let running = start(None).await;
    let get = |rest: &str| format!("/v1/get/{KEY}{rest}");
    for (path, status, code, says) in [
        ("/v1/get/short".to_owned(), 400, "E-REQUEST", "base58 of 32 bytes"),
        (get("?commitment=sure"), 400, "E-REQUEST", "processed, confirmed or finalized"),
        (get("?min_context_slot=-1"), 400, "E-REQUEST", "min_context_slot"),
        (get("?min_slot=1"), 400, "E-REQUEST", "unknown field `min_slot`"),
        (get("?commitment=processed"), 501, "E-COMMITMENT", ""),
        (get("/more"), 404, "E-REQUEST", "/v1/get/KEY"),
        ("/".to_owned(), 404, "E-REQUEST", "/v1/get/KEY"),
        ("/v1/get-many".to_owned(), 405, "E-REQUEST", "POST /v1/get-many"),
        (format!("/v1/keys-of/{VALUE}"), 501, "E-DERIVED", "bootstrap derive"),
        (format!("/v1/keys-of/{VALUE}?limit=0"), 400, "E-REQUEST", "limit is 1 to 10000"),
        (format!("/v1/keys-of/{VALUE}?cursor=1"), 400, "E-REQUEST", "begin without one"),
        (format!("/v1/get-at/{KEY}/now"), 400, "E-REQUEST", "no number"),
        (format!("/v1/get-at/{KEY}/7"), 501, "E-DERIVED", "history_slots"),
    ] {
        let (got, answer) = running.get(&path).await;
        let (found, message) =
            (answer["error"]["code"].as_str().unwrap(), answer["error"]["message"].as_str().unwrap());
        assert_eq!((got, found), (status, code), "{path}: {message}");
        assert!(message.contains(says), "{path}: {message}");
    }
    for (body, says) in [
        (json!({ "keys": vec![KEY; 10_001] }), "too many keys, ask in parts: max=10000"),
        (json!({ "keys": ["short"] }), "base58 of 32 bytes"),
        (json!({ "keys": KEY }), "a list of keys in base58"),
        (json!({ "keys": [], "commitmnt": "confirmed" }), "unknown field `commitmnt`"),
        (json!({ "keys": ["1".repeat(1 << 20)] }), "max_bytes=1048576"),
    ] {
        let (status, answer) = running.post(&body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(says), "{answer}");
    }
    let most = running.post(&json!({ "keys": vec![KEY; 10_000] })).await;
    assert_eq!((most.0, most.1["values"].as_array().unwrap().len()), (200, 10_000));
    running.stop().await;
}

#[tokio::test]
async fn a_web_page_of_another_site_gets_nothing() {
    let running = start(None).await;
    let path = format!("GET /v1/get/{KEY}");
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let (status, _, body) = exchange(&mut stream, &path, "host: rebound.example\r\nconnection: close\r\n", "").await;
    assert_eq!(status, 421, "{body}");
    let (status, head, body) = running.ask("POST /v1/get-many", "content-type: text/plain\r\n", r#"{"keys":[]}"#).await;
    assert_eq!(status, 415, "a browser sends text without asking before: {body}");
    assert!(!head.contains("access-control-allow-origin"), "{head}");
    // No browser reaches the Unix socket, where any name will do.
    let mut local = UnixStream::connect(&running.socket).await.unwrap();
    let (status, ..) = exchange(&mut local, &path, "host: any.example\r\nconnection: close\r\n", "").await;
    assert_eq!(status, 200);
    running.stop().await;
}

#[tokio::test]
async fn without_its_token_a_client_of_the_network_gets_only_health() {
    let running = start(Some(TOKEN)).await;
    let path = format!("GET /v1/get/{KEY}");
    for wrong in ["", "authorization: Bearer another-token-of-length\r\n", "authorization: Basic eDp5\r\n"] {
        let (status, head, body) = running.ask(&path, wrong, "").await;
        assert!(status == 401 && head.contains("www-authenticate: bearer") && body.contains("E-TOKEN"), "{body}");
        assert!(!body.contains(VALUE), "{body}");
    }
    let (status, ..) = running.ask(&format!("{path}?token={TOKEN}"), "", "").await;
    assert_eq!(status, 401, "a token is never read from an address, which logs keep");
    assert_eq!(running.ask("GET /nowhere", "", "").await.0, 401);
    assert_eq!(running.ask("GET /healthz", "", "").await.0, 200);
    let right = format!("authorization: Bearer {TOKEN}\r\n");
    let (status, _, body) = running.ask(&path, &right, "").await;
    assert!(status == 200 && body.contains(VALUE), "{body}");
    let mut named = TcpStream::connect(running.address).await.unwrap();
    let head = format!("host: solkv.example\r\nconnection: close\r\n{right}");
    assert_eq!(exchange(&mut named, &path, &head, "").await.0, 200, "whoever has a token may use any name");
    let mut local = UnixStream::connect(&running.socket).await.unwrap();
    assert_eq!(exchange(&mut local, &path, "host: x\r\nconnection: close\r\n", "").await.0, 200);
    running.stop().await;
}

#[tokio::test]
async fn a_connection_is_kept_for_further_requests() {
    let running = start(None).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let request = format!("GET /v1/get/{KEY} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    // Sent together, and answered in their order.
    stream.write_all(request.repeat(3).as_bytes()).await.unwrap();
    let mut answers = String::new();
    while answers.matches(VALUE).count() < 3 {
        let mut piece = [0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "{answers}");
        answers.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    running.stop().await;
}
